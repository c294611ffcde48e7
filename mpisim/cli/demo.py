"""``mpisim demo``, and ``mpisim`` alone: simulate an experiment and print the report."""

from __future__ import annotations

import argparse
from typing import Any

from .output import add_result_options, check_json, check_options, deliver

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpirun -n 8 python -m mpisim               one simulated GPU a process
  python -m mpisim                           the same result from one process
  mpisim demo -o run.h5 --timeline           save the result, with every operation of every GPU
  mpisim demo --show > mine.toml             an experiment to start from ...
  mpisim demo --experiment mine.toml         ... and to run
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim demo``."""
    parser = subparsers.add_parser(
        "demo",
        help="simulate a training step of a GPT (the default command)",
        description="Simulate one training step of a GPT with data and tensor parallelism, and "
        "print where its time goes. Without --experiment: 3.4 billion parameters on 8 GPUs.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--experiment", metavar="FILE", help="an experiment of your own (TOML)")
    parser.add_argument("--show", action="store_true", help="print the experiment, do not run it")
    add_result_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the experiment and print the report; the first process prints."""
    check_options(args)
    from ..experiment import load, read
    from ..parallel import agreed
    from .launch import world

    comm = world()
    with agreed(comm):
        # One process reads: the file may be on the first machine alone, or change in between.
        text, experiment = load(args.experiment) if comm.rank == 0 else ("", None)
        if comm.rank == 0:
            check_json(args)
    if comm.size > 1:
        text = comm.bcast(text, root=0)
    if args.show:
        if comm.rank == 0:
            print(text, end="")
        return 0

    from ..simulate import simulate

    experiment = experiment or read(text, args.experiment or "default.toml")
    results = simulate(
        experiment, comm, output=args.output, timeline=args.timeline, overwrite=args.overwrite,
        text=text, progress=True,
    )  # fmt: skip
    report = deliver(results, args, comm)
    if comm.rank == 0:
        print(report)
    return 0
