"""``mpisim report``: where did the time of a run go?"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError
from ..base.text import one_line
from .other_files import expected, hdf5_format
from .output import (
    add_overwrite_option,
    add_report_options,
    check_files,
    check_options,
    in_detail,
    write_figures,
    written,
)

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..page.shown import ShownRun
    from ..results import Results

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim report run.h5                     step time, where it goes, what costs most
  mpisim report run.h5 --details           ranks, kernels, communications, critical path
  mpisim report run.h5 --top 30            longer lists
  mpisim report run.h5 --json run.json     the same as numbers
  mpisim report run.h5 --html run.html     a page to look at, or to send to someone
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim report``."""
    parser = subparsers.add_parser(
        "report",
        help="print where the time of a run went",
        description="Print where the time of a run went, in short or with all details: per rank, "
        "per kernel, along the critical path. A page (--html) also shows every row of some ranks: "
        "what was simulated is simulated again for it.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a results file, or what mpisim search -o or mpisim job -o has kept (HDF5)",
    )
    add_report_options(parser)
    add_overwrite_option(parser)
    # Only a page needs the run again, which processes can share.
    parser.set_defaults(run=run, collective=lambda args: args.html is not None)


def run(args: argparse.Namespace) -> int:
    """Print a report; with a page on all processes, of which the first prints."""
    check_options(args)
    if args.html is not None:
        return _with_page(args)
    check_files(args)
    from ..results import open_results

    format = hdf5_format(Path(args.file))
    if format == "mpisim-search":
        return _search(args)
    if format == "mpisim-job":
        return _job(args)
    if format == "mpisim-decentralized":
        return _decentralized(args)

    with expected([args.file], ("mpisim-results",)), open_results(args.file) as results:
        print(written(results, args))
    return 0


def _job(args: argparse.Namespace) -> int:
    """Print when a job is done."""
    from ..job.store import read_job
    from ..report.drawing import drawing_for
    from .launch import without_launcher

    report = read_job(args.file)
    write_figures(args, {"title": report.title, **report.numbers})
    drawing = drawing_for(sys.stdout, launched=not without_launcher())
    print(report.text(drawing, details=in_detail(args)))
    return 0


def _decentralized(args: argparse.Namespace) -> int:
    """Print how long iterations of decentralized training take."""
    from ..decentralized.store import read_comparison
    from ..decentralized.text import report_lines

    numbers = read_comparison(args.file)
    write_figures(args, numbers)
    print("\n".join(report_lines(numbers)))
    return 0


def _search(args: argparse.Namespace) -> int:
    """Print what a search has found."""
    from ..report.drawing import drawing_for
    from ..search import read_store
    from ..search.answer import Answer, answer_lines
    from .launch import without_launcher

    space, records, kept = read_store(args.file)
    found = Answer.of_json(kept) if kept is not None else Answer.unfinished(records)
    write_figures(args, found.as_json())
    drawing = drawing_for(sys.stdout, launched=not without_launcher())
    lines = answer_lines(space, found, drawing)
    if kept is None:
        lines += ["", f"The search has not ended: mpisim search -o {args.file} --resume"]
    print("\n".join(lines))
    return 0


def _with_page(args: argparse.Namespace) -> int:
    """Print the report and write the page. **Collective.**"""
    from ..mpi.parallel import collective_errors, progress
    from ..page.write import write_run_page
    from ..results import open_results
    from .launch import world

    comm = world()
    with ExitStack() as stack:
        results: Results | None = None
        with collective_errors(comm):
            if comm.rank == 0:
                check_files(args)
                results = stack.enter_context(open_results(args.file))
        shown, why = _simulated_again(args, comm)
        with progress(comm, f"writing {args.html}"):
            write_run_page(
                results,
                shown,
                args.html,
                comm,
                why=why,
                name=Path(args.file).stem,
                overwrite=args.overwrite,
            )
        with collective_errors(comm):
            if results is not None:
                if why:
                    note = f"{args.html}: without timeline and memory: {why}"
                    print(f"mpisim: note: {one_line(note)}", file=sys.stderr)
                print(written(results, args))
    return 0


def _simulated_again(args: argparse.Namespace, comm: Intracomm) -> tuple[ShownRun | None, str]:
    """Return the run of a results file, or why there is none. **Collective.**

    Raises
    ------
    UsageError
        If the page would be written over what the run was made of.
    """
    from ..export import read_kept, resimulate
    from ..mpi.parallel import collective_errors, progress
    from ..page.shown import ShownRun

    try:
        kept = read_kept(args.file, comm)
    except InputError as error:
        return None, str(error)
    with collective_errors(comm):
        if comm.rank == 0:
            kept.check_not_input(args.html)
    try:
        with progress(comm, "simulating again"):
            return ShownRun.of(resimulate(kept, comm, progress=True, repeat=True)), ""
    except InputError as error:
        return None, str(error)
