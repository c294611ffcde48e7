"""``mpisim demo``, and ``mpisim`` alone: simulate an experiment and print the report."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import UsageError

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
    parser.add_argument("-o", "--output", metavar="FILE", help="write the result (HDF5)")
    parser.add_argument(
        "--timeline", action="store_true", help="write every operation of every GPU, too"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    parser.add_argument("--json", metavar="FILE", help="write all figures of the report (JSON)")
    parser.add_argument(
        "--top", type=int, metavar="N", default=10, help="lines of each list (default: 10)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the experiment and print the report; the first process prints."""
    if args.top < 1:
        raise UsageError(f"--top is {args.top}; it must be 1 or more")
    if args.output is None and (args.timeline or args.overwrite):
        option = "--timeline" if args.timeline else "--overwrite"
        raise UsageError(f"{option} needs a file to write: -o FILE")

    from ..experiment import load, read
    from ..parallel import agreed
    from .launch import world

    comm = world()
    with agreed(comm):
        # One process reads: the file may be on the first machine alone, or change in between.
        text, experiment = load(args.experiment) if comm.rank == 0 else ("", None)
        if args.json is not None and comm.rank == 0:
            from ..files import check_output

            check_output(args.json, overwrite=True, device=True)
    if comm.size > 1:
        text = comm.bcast(text, root=0)
    if args.show:
        if comm.rank == 0:
            print(text, end="")
        return 0

    from ..report import figures, render
    from ..simulate import simulate

    experiment = experiment or read(text, args.experiment or "default.toml")
    results = simulate(
        experiment, comm, output=args.output, timeline=args.timeline, overwrite=args.overwrite,
        text=text, progress=True,
    )  # fmt: skip
    with agreed(comm):
        if results is not None and args.json is not None:
            from ..files import write_json

            write_json(args.json, figures(results))
    if results is not None:
        print(render(results, args.top))
    return 0
