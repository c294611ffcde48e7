"""What commands that end in a report share: where results go, and how much is printed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..results import Results

__all__ = ["add_report_options", "add_result_options", "check_json", "check_options", "deliver"]


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` and ``--top``."""
    parser.add_argument("--json", metavar="FILE", help="also write all figures to this file (JSON)")
    parser.add_argument(
        "--top", type=int, metavar="N", default=10, help="lines of each list (default: 10)"
    )


def add_result_options(parser: argparse.ArgumentParser) -> None:
    """Add ``-o``, ``--timeline`` and ``--overwrite``, and the options of a report."""
    parser.add_argument("-o", "--output", metavar="FILE", help="write the result (HDF5)")
    parser.add_argument(
        "--timeline", action="store_true", help="write every row of every rank, too"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    add_report_options(parser)


def check_options(args: argparse.Namespace) -> None:
    """Refuse options that do not go together, before anything is loaded.

    Raises
    ------
    UsageError
    """
    if args.top < 1:
        raise UsageError(f"--top is {args.top}; it must be 1 or more")
    named = getattr(args, "output", None)
    if getattr(args, "timeline", False) and named is None:
        raise UsageError("--timeline needs a file to write: -o FILE")
    if getattr(args, "overwrite", False) and (named or getattr(args, "save_program", None)) is None:
        raise UsageError("--overwrite needs a file to write: -o FILE")


def check_json(args: argparse.Namespace) -> None:
    """Refuse a ``--json`` file that cannot be written, before the work that fills it. Local.

    Raises
    ------
    OutputError
    """
    if args.json is not None:
        from ..files import check_output

        check_output(args.json, overwrite=True, device=True)


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
    from ..parallel import agreed

    report = ""
    with agreed(comm):
        if results is not None:  # the others need not even load what follows
            from ..files import write_json
            from ..report import figures, render

            if args.json is not None:
                write_json(args.json, {**figures(results), **(extra or {})})
            report = render(results, args.top)
    return report
