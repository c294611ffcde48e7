"""``mpisim export``: a run as a trace for Perfetto, PyTorch's tools or ASTRA-sim, or as a table."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .output import add_monitor_option, check_outputs

if TYPE_CHECKING:
    from ..export.ranks import Chosen

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim run mine.toml -o run.h5                                 any run, or a replay of traces ...
  mpisim export run.h5 --format perfetto -o run.pftrace.gz       ... to look at in ui.perfetto.dev
  mpisim export run.h5 --format chrome -o traces/ --ranks all    ... as PyTorch's profiler writes it
  mpisim replay traces/                                          (gives the same step time)
  mpisim export run.h5 --format csv -o rows.csv.gz --ranks 0,8-15     ... every row as a line
  mpisim export run.h5 --format chakra -o et/                    ... for ASTRA-sim
  mpisim export run.h5 --format simai -o workload.txt            ... for SimAI
"""

FORMATS = ("chrome", "perfetto", "csv", "chakra", "simai")
"""The names of `mpisim.export.FORMATS`, which takes long to load."""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim export``."""
    parser = subparsers.add_parser(
        "export",
        help="write a run as a trace or a table for other tools",
        description="Write a run, a prediction or a replay, as a trace or a table for other tools. "
        "The results file says what was simulated; it is simulated again, which gives the same to "
        "the last bit, and every row is written.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "file", metavar="FILE", help="a results file: of mpisim run -o or mpisim replay -o"
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        required=True,
        help="chrome: a folder of Kineto traces (.json.gz), one a rank, as PyTorch's profiler "
        "writes them; perfetto: one file for ui.perfetto.dev; csv: one line a row; chakra: a "
        "folder of Chakra execution traces; simai: a text workload of SimAI, one line a layer",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="the file or folder to write; a file that ends in .gz is compressed",
    )
    parser.add_argument(
        "--ranks",
        metavar="RANKS",
        help="ranks to write, as 0,8-15, or all (default: one of each kind, as a "
        "rank of each pipeline stage; chakra: all; simai: a rank of the stage that is "
        "written, by default of the one that stands best for all)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an earlier export if there is one"
    )
    add_monitor_option(parser)
    parser.set_defaults(run=run, collective=True)


def run(args: argparse.Namespace) -> int:
    """Export a run; the first process prints."""
    check_outputs(args)
    from ..export import export_run, read_kept, resimulate
    from ..export.ranks import ALL, named_ranks, some_ranks
    from ..export.write import check_destination
    from ..mpi.parallel import collective_errors, progress
    from .launch import world
    from .other_files import expected

    comm = world()
    with collective_errors(comm):
        if comm.rank == 0:
            check_destination(args.format, args.output, overwrite=args.overwrite)
    with expected([args.file], ("mpisim-results",)):
        kept = read_kept(args.file, comm)
    with collective_errors(comm):
        if comm.rank == 0:
            kept.check_not_input(args.output)
    whole = args.format in ("chakra", "simai")
    requested = args.ranks if args.ranks is not None or not whole else ALL
    chosen = None if requested is None else named_ranks(requested, kept.numbers)
    with progress(comm, "simulating source"):
        source = resimulate(kept, comm, progress=True)
    chosen = chosen or some_ranks(source.program)
    with progress(comm, f"writing {args.output}"):
        how = export_run(source, args.format, args.output, comm, chosen, overwrite=args.overwrite)
    if comm.rank == 0:
        print(_sentence(args, chosen, kept.numbers) + (f"; {how}" if how else ""))
    return 0


def _sentence(args: argparse.Namespace, chosen: Chosen, numbers: list[int]) -> str:
    """File, format and exported ranks → the sentence that is printed."""
    from ..base.rank_ranges import ranges_text
    from ..export import FORMATS as DESCRIBED

    n, total = len(chosen.ranks), len(numbers)
    which = ranges_text([numbers[rank] for rank in chosen.ranks])
    ranks = f"all {total} ranks" if n == total else f"{n} of {total} ranks: {which}"
    why = f" ({chosen.why}; see --ranks)" if chosen.why else ""
    return f"{args.output}: {DESCRIBED[args.format].what}; {ranks}{why}"
