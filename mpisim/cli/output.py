"""What commands that end in a report share: where results go, and how much is printed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import UsageError

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..results import Results

__all__ = [
    "LINES",
    "add_fold_option",
    "add_json_option",
    "add_report_options",
    "add_result_options",
    "check_json",
    "check_options",
    "check_outputs",
    "deliver",
    "in_detail",
    "page_of",
    "written",
]

LINES = 10
"""Lines of each list of the report, unless ``--top`` says otherwise."""

OUTPUTS = (
    ("-o", "output"),
    ("--save-program", "save_program"),
    ("--json", "json"),
    ("--draw", "draw"),
    ("--plot", "plot"),
)
"""Options that name what is written."""


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--details``, ``--top`` and ``--json``."""
    parser.add_argument(
        "--details",
        action="store_true",
        help="print everything: assumptions, and tables of memory, ranks, kernels, communications, "
        "links and the critical path",
    )
    parser.add_argument(
        "--top",
        type=int,
        metavar="N",
        help=f"lines of each list of --details, which it implies (default: {LINES})",
    )
    add_json_option(parser)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", metavar="FILE", help="also write all figures to this file (JSON)")


def add_fold_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--no-fold``: its value is the argument ``fold`` of `simulate`."""
    parser.add_argument(
        "--no-fold",
        dest="fold",
        action="store_const",
        const=False,
        default=None,
        help="simulate every rank, even those that do the same as another at the same times "
        "(slower; the result is the same)",
    )


def add_result_options(parser: argparse.ArgumentParser) -> None:
    """Add ``-o``, ``--timeline`` and ``--overwrite``, and the options of a report."""
    parser.add_argument("-o", "--output", metavar="FILE", help="write the result (HDF5)")
    parser.add_argument(
        "--timeline",
        action="store_true",
        help="write every row of every rank, too; ranks that do the same share theirs",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    add_report_options(parser)


def check_options(args: argparse.Namespace) -> None:
    """Refuse options that do not go together, before anything is loaded.

    Raises
    ------
    UsageError
    """
    if args.top is not None and args.top < 1:
        raise UsageError(f"--top is {args.top}; it must be 1 or more")
    check_outputs(args)
    named = getattr(args, "output", None)
    if getattr(args, "timeline", False) and named is None:
        raise UsageError("--timeline needs a file to write: -o FILE")
    if getattr(args, "overwrite", False) and (named or getattr(args, "save_program", None)) is None:
        raise UsageError("--overwrite needs a file to write: -o FILE")


def check_outputs(args: argparse.Namespace) -> None:
    """Refuse outputs that would write over each other or over the input.

    Raises
    ------
    UsageError
    """
    inputs = [getattr(args, key, None) for key in ("file", "path", "experiment")]
    inputs += getattr(args, "paths", [])
    taken = {os.path.realpath(path) for path in inputs if path}
    by_option: dict[str, str] = {}
    for option, key in OUTPUTS:
        path = getattr(args, key, None)
        if not path:
            continue
        real = os.path.realpath(path)
        if real in by_option and not real.startswith("/dev/"):
            raise UsageError(f"{path}: {by_option[real]} and {option} name the same file")
        by_option[real] = option
        if real in taken or _is_trace_of(real, taken):
            raise UsageError(f"{path}: {option} would write over the input; name another file")


def _is_trace_of(path: str, inputs: Iterable[str]) -> bool:
    """Whether an existing file is a trace in one of some folders."""
    folders = [folder for folder in inputs if path.startswith(os.path.join(folder, ""))]
    if not folders or not path.endswith((".json", ".json.gz")) or not os.path.isfile(path):
        return False
    from ..traces.sources import is_kineto

    return is_kineto(Path(path))


def check_json(args: argparse.Namespace) -> None:
    """Refuse a ``--json`` file that cannot be written, before the work that fills it. Local.

    Raises
    ------
    OutputError
    """
    if args.json is not None:
        from ..base.files import check_output

        check_output(args.json, overwrite=True, device=True)


def page_of(path: str) -> str:
    """Return the page that figures are to be written into; empty if there is none yet. Local.

    Raises
    ------
    InputError
        If it cannot be read.
    OutputError
        If it cannot be written.
    """
    from ..base.files import check_output, read_text

    check_output(path, overwrite=True)
    return read_text(path) if Path(path).exists() else ""


def deliver(
    results: Results | None,
    args: argparse.Namespace,
    comm: Intracomm,
    extra: Mapping[str, Any] | None = None,
) -> str:
    """Write the figures if asked to, and return the report. **Collective.**

    Parameters
    ----------
    results : Results or None
        On process 0; None on the others, which get an empty text.
    args : argparse.Namespace
    comm : mpi4py.MPI.Intracomm
    extra : mapping, optional
        Figures beside those of the report.
    """
    from ..mpi.parallel import collective_errors

    report = ""
    with collective_errors(comm):
        if results is not None:  # the others need not even load what follows
            report = written(results, args, extra)
    return report


def written(
    results: Results, args: argparse.Namespace, extra: Mapping[str, Any] | None = None
) -> str:
    """Write the figures if asked to, and return the report, short or with all details. Local.

    Parameters
    ----------
    results : Results
    args : argparse.Namespace
    extra : mapping, optional
        Figures beside those of the report.
    """
    from ..base.files import write_json

    if args.json is not None:
        from ..report.figures import figures

        write_json(args.json, {**figures(results), **(extra or {})})
    if in_detail(args):
        from ..report.text import render

        return render(results, args.top or LINES)
    from ..report.drawing import drawing_for
    from ..report.summary import summarise
    from .launch import without_launcher

    return summarise(results, drawing_for(sys.stdout, launched=not without_launcher()))


def in_detail(args: argparse.Namespace) -> bool:
    """Whether all tables are to be printed."""
    return args.details or args.top is not None
