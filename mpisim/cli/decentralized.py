"""``mpisim decentralized``: workers that exchange updates with their neighbours alone."""

from __future__ import annotations

import argparse
from typing import Any

from ..base.errors import UsageError
from .output import (
    add_experiment_options,
    add_file_options,
    check_files,
    check_outputs,
    experiment_changes,
    write_figures,
)

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim decentralized mine.toml --graph ring-based                      every update is waited for
  mpisim decentralized mine.toml --graph ring-based --backup 1           ... of all senders but one
  mpisim decentralized mine.toml --graph double-ring --backup 1 --slow 1-10 --draws 8
  mpisim decentralized mine.toml --graph edges.txt --staleness 2 --max-gap 4
  mpisim decentralized mine.toml --graph ring --backup 1 --max-gap 4 --skip 3
  mpisim decentralized mine.toml --graph ring -o ring.h5 && mpisim report ring.h5
  mpisim decentralized mine.toml --graph ring --save-program step.h5     ... then mpisim run step.h5
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim decentralized``."""
    parser = subparsers.add_parser(
        "decentralized",
        help="simulate workers that exchange updates with neighbours alone (Hop)",
        description="Simulate iterations of decentralized training, in which every data-parallel "
        "replica of an experiment, a GPU, sends its update to its neighbours in a graph and waits "
        "for theirs: with backup workers, bounded staleness, token queues and skipped iterations, "
        "as in Hop. Print how long an iteration takes, beside that in which every update is waited "
        "for.",
        epilog=EXAMPLES,
    )
    add_experiment_options(parser)
    parser.add_argument(
        "--graph",
        required=True,
        metavar="GRAPH",
        help="ring, ring-based, double-ring, complete, or a file with an edge a line: SENDER "
        "RECEIVER",
    )
    parser.add_argument(
        "--backup",
        type=int,
        default=0,
        metavar="N",
        help="of so many senders' updates an iteration need not have come (default: 0)",
    )
    parser.add_argument(
        "--staleness",
        type=int,
        default=0,
        metavar="N",
        help="iterations by which updates may be old (default: 0)",
    )
    parser.add_argument(
        "--max-gap",
        type=int,
        metavar="N",
        help="iterations that a worker may be ahead of those it sends to, by token queues "
        "(default: without)",
    )
    parser.add_argument(
        "--skip",
        type=int,
        default=0,
        metavar="N",
        help="iterations that a worker skips at once where all that it sends to are ahead; with "
        "--backup and --max-gap (default: 0)",
    )
    parser.add_argument(
        "--iterations", type=int, default=20, metavar="N", help="of each worker (default: 20)"
    )
    parser.add_argument(
        "--slow",
        metavar="LEAST-MOST",
        help="divide the bandwidth of each GPU's links by a random factor, as 1-10",
    )
    parser.add_argument(
        "--draws", type=int, default=1, metavar="N", help="sets of such factors (default: 1)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the factors (default: 0)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the result (HDF5)")
    parser.add_argument(
        "--save-program", metavar="FILE", help="keep the program of the first draw (HDF5)"
    )
    add_file_options(parser)
    parser.set_defaults(run=run, collective=True)


def run(args: argparse.Namespace) -> int:
    """Print how long an iteration takes with a protocol and without, on process 0."""
    check_outputs(args)
    from ..decentralized import Protocol, compare_protocols
    from ..decentralized.comparison import Slowdown
    from ..decentralized.text import as_json, report_lines
    from ..mpi.parallel import collective_errors
    from .launch import world

    if args.draws > 1 and args.slow is None:
        raise UsageError(f"--draws is {args.draws}, but all draws are alike without --slow")
    slowdown = Slowdown(*_factors(args.slow), draws=args.draws, seed=args.seed)
    protocol = Protocol(args.backup, args.staleness, args.max_gap, args.skip)
    comm = world()
    with collective_errors(comm):
        if comm.rank == 0:
            check_files(args)
    changes = experiment_changes(args)
    found = compare_protocols(
        args.file, changes, args.graph, protocol, slowdown, args.iterations, comm, show=True
    )
    with collective_errors(comm):
        if comm.rank == 0:
            numbers = as_json(found)
            write_figures(args, numbers)
            if args.output is not None:
                from ..decentralized.store import write_comparison

                write_comparison(args.output, found, overwrite=args.overwrite)
            if args.save_program is not None:
                from ..program import save

                program = found.draws[0].protocol.iterations.program
                save(program, args.save_program, overwrite=args.overwrite)
            print("\n".join(report_lines(numbers)))
    return 0


def _factors(text: str | None) -> tuple[float, float]:
    """Value of ``--slow`` → the two numbers."""
    if text is None:
        return 1.0, 1.0
    least, dash, most = text.partition("-")
    try:
        return float(least), float(most if dash else least)
    except ValueError:
        raise UsageError(
            f"--slow is {text!r}; it is two numbers, as 1-10: the bandwidth of each GPU is divided "
            "by a factor between them"
        ) from None
