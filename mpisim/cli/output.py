"""Options and output of commands that end in a report: files, pages, how much is printed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import UsageError

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..experiment import Experiment
    from ..page.shown import ShownRun
    from ..prediction.prepared import PreparedExperiment
    from ..prediction.prepared_program import PreparedProgram
    from ..program import Program
    from ..results import Results

__all__ = [
    "LINES",
    "add_change_options",
    "add_experiment_options",
    "add_file_options",
    "add_fold_option",
    "add_html_option",
    "add_json_option",
    "add_monitor_option",
    "add_overwrite_option",
    "add_report_options",
    "add_result_options",
    "add_set_option",
    "check_files",
    "check_options",
    "check_outputs",
    "deliver",
    "experiment_changes",
    "in_detail",
    "page_of",
    "simulate_with_options",
    "write_figures",
    "write_page_text",
    "written",
]

LINES = 10
"""Lines of each list of the report, unless ``--top`` says otherwise."""

OUTPUTS = (
    ("-o", "output"),
    ("--save-program", "save_program"),
    ("--save-tables", "save_tables"),
    ("--kernels", "kernels"),
    ("--json", "json"),
    ("--csv", "csv"),
    ("--html", "html"),
    ("--draw", "draw"),
    ("--plot", "plot"),
    ("--monitor", "monitor"),
)
"""Options that name what is written."""
WRITTEN_WHOLE = ("output", "save_program", "save_snapshot", "json", "html")
"""Those of files that appear whole at the end; pictures and tables have checks of their own."""


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--details``, ``--top``, ``--json`` and ``--html``."""
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
    add_html_option(parser)


def add_html_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--html``."""
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="also write a page to look at in a browser: one file that needs nothing else",
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", metavar="FILE", help="also write all figures to this file (JSON)")


def add_overwrite_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--overwrite``."""
    parser.add_argument(
        "--overwrite", action="store_true", help="replace files that exist, in place of refusing"
    )


def add_set_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--set``: changes to the experiment."""
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set a key of the experiment, as plan.tp=8; may be repeated",
    )


def add_experiment_options(
    parser: argparse.ArgumentParser,
    what: str = "an experiment (TOML), or the name of one of mpisim list experiments",
) -> None:
    """Parser → the same with FILE, an experiment, and the options that change keys of it.

    Parameters
    ----------
    parser : ArgumentParser
    what : str
        What FILE may be.
    """
    parser.add_argument("file", metavar="FILE", help=what)
    add_change_options(parser)


def add_change_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--set`` and ``--allow-oom``: see `experiment_changes`."""
    add_set_option(parser)
    parser.add_argument(
        "--allow-oom", action="store_true", help="simulate a plan that does not fit into memory"
    )


def experiment_changes(args: argparse.Namespace) -> list[str]:
    """Options of `add_change_options` → changes to the experiment."""
    return [*args.set, *(["run.allow_oom=true"] if args.allow_oom else [])]


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


def add_monitor_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--monitor``, which `mpisim.cli.main` looks at."""
    parser.add_argument(
        "--monitor",
        metavar="FILE",
        help="write how the run stands to this file about once a second, or to one in this folder, "
        "for 'mpisim watch' (docs/monitoring.md)",
    )


def add_file_options(parser: argparse.ArgumentParser, *, monitor: bool = True) -> None:
    """Parser → the same with ``--json``, ``--overwrite`` and, unless it is off, ``--monitor``."""
    add_json_option(parser)
    add_overwrite_option(parser)
    if monitor:
        add_monitor_option(parser)


def add_result_options(parser: argparse.ArgumentParser) -> None:
    """Add ``-o``, ``--timeline`` and ``--overwrite``, and the options of a report."""
    parser.add_argument("-o", "--output", metavar="FILE", help="write the result (HDF5)")
    parser.add_argument(
        "--timeline",
        action="store_true",
        help="write every row of every rank, too; ranks that do the same share theirs",
    )
    add_overwrite_option(parser)
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


def check_outputs(args: argparse.Namespace) -> None:
    """Refuse outputs that would write over each other or over the input, and --overwrite of none.

    Raises
    ------
    UsageError
    """
    inputs = [getattr(args, key, None) for key in ("file", "other", "path", "experiment")]
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
    if getattr(args, "overwrite", False) and not by_option:
        options = [f"{option} FILE" for option, key in OUTPUTS[:-1] if hasattr(args, key)]
        raise UsageError(f"--overwrite needs a file to write: {' or '.join(options)}")


def _is_trace_of(path: str, inputs: Iterable[str]) -> bool:
    """Whether an existing file is a trace in one of some folders."""
    folders = [folder for folder in inputs if path.startswith(os.path.join(folder, ""))]
    if not folders or not path.endswith((".json", ".json.gz")) or not os.path.isfile(path):
        return False
    from ..traces.sources import is_kineto

    return is_kineto(Path(path))


def check_files(args: argparse.Namespace, but: Collection[str] = ()) -> None:
    """Refuse files that exist or cannot be written, before the work that fills them. Local.

    Parameters
    ----------
    args : argparse.Namespace
        Of the options of `WRITTEN_WHOLE` those that the command has.
    but : collection of str
        Keys of options that are checked elsewhere.

    Raises
    ------
    OutputError
    """
    from ..base.files import check_output

    for key in WRITTEN_WHOLE:
        path = None if key in but else getattr(args, key, None)
        if path is not None:
            check_output(path, overwrite=args.overwrite, device=key == "json")


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


def write_page_text(args: argparse.Namespace, text: str) -> None:
    """Write the page that ``--markdown`` names, of which `page_of` was. Local."""
    from ..base.files import write_whole

    with write_whole(args.markdown, overwrite=True) as file:
        file.write(text.encode())


def write_figures(args: argparse.Namespace, figures: Mapping[str, Any] | Sequence[Any]) -> None:
    """Figures of a command → the file that ``--json`` names, if it is given. Local."""
    if args.json is not None:
        from ..base.files import write_json

        write_json(args.json, figures, overwrite=args.overwrite)


def simulate_with_options(
    what: Experiment | PreparedExperiment | PreparedProgram | Program,
    args: argparse.Namespace,
    comm: Intracomm,
    **settings: Any,
) -> tuple[Results | None, ShownRun | None]:
    """Experiment or program → its results and, for ``--html``, the run. **Collective.**

    Parameters
    ----------
    what : Experiment, PreparedExperiment, PreparedProgram or Program
    args : argparse.Namespace
        With the options of `add_result_options`.
    comm : mpi4py.MPI.Intracomm
    **settings
        Further arguments of `mpisim.simulate`.

    Returns
    -------
    results : Results or None
        On process 0, None on the others; in a file where ``-o`` names one.
    shown : ShownRun or None
        None without ``--html``.
    """
    from ..simulate import Simulated, simulate

    simulated: list[Simulated] | None = None if args.html is None else []
    results = simulate(
        what,
        comm,
        output=args.output,
        timeline=args.timeline,
        overwrite=args.overwrite,
        progress=True,
        simulated=simulated,
        **settings,
    )
    if not simulated:
        return results, None
    from ..page.shown import ShownRun

    return results, ShownRun.of(simulated[0])


def deliver(
    results: Results | None,
    args: argparse.Namespace,
    comm: Intracomm,
    extra: Mapping[str, Any] | None = None,
    shown: ShownRun | None = None,
) -> str:
    """Write the figures and the page if asked to, and return the report. **Collective.**

    Parameters
    ----------
    results : Results or None
        On process 0; None on the others, which get an empty text.
    args : argparse.Namespace
    comm : mpi4py.MPI.Intracomm
    extra : mapping, optional
        Figures beside those of the report.
    shown : ShownRun, optional
        The run, where ``--html`` was given.
    """
    from ..mpi.parallel import collective_errors, progress

    report = ""
    with collective_errors(comm):
        if results is not None:  # the others need not even load what follows
            report = written(results, args, extra)
    if args.html is not None:
        from ..page.write import write_run_page

        with progress(comm, f"writing {args.html}"):
            write_run_page(
                results, shown, args.html, comm, name=_name(args), overwrite=args.overwrite
            )
    return report


def _name(args: argparse.Namespace) -> str:
    """Return what a run without a title is called: the file it was made of."""
    paths = getattr(args, "paths", None) or [getattr(args, "file", None) or ""]
    return Path(paths[0]).stem


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

        write_json(args.json, {**figures(results), **(extra or {})}, overwrite=args.overwrite)
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
