"""``mpisim program``: look at a program file, or simulate one."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import Any

from ..errors import UsageError
from .output import add_result_options, check_json, check_options, deliver

__all__ = ["add_parser", "run", "show"]

SHOW_EXAMPLES = """\
examples:
  mpisim program show step.h5              ranks, tables and communicators
  mpisim program show step.h5 --rank 3     and the first rows of rank 3
  mpisim program show step.h5 --rank 3 --rows 1000
"""

RUN_EXAMPLES = """\
examples:
  mpisim program run step.h5                         simulate it and print the report
  mpirun -n 8 python -m mpisim program run step.h5   the same, shared by 8 processes
  mpisim program run step.h5 -o run.h5 --timeline    save the result with every row
"""


def add_parser(subparsers: Any) -> None:
    """Add the parsers of ``mpisim program``."""
    parser = subparsers.add_parser(
        "program",
        help="look at a program file, or simulate one",
        description="Look at a program file (what every simulated rank does), or simulate one.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    look = actions.add_parser(
        "show",
        help="print what a program file holds",
        description="Print what a program file holds: ranks, tables, communicators, rows.",
        epilog=SHOW_EXAMPLES,
    )
    look.add_argument("file", metavar="FILE", help="a program file (HDF5)")
    look.add_argument("--rank", type=int, metavar="R", help="also list the rows of this rank")
    look.add_argument(
        "--rows", type=int, metavar="N", default=40, help="how many rows to list (default: 40)"
    )
    look.add_argument(
        "--first", type=int, metavar="I", default=0, help="the first row to list (default: 0)"
    )
    look.set_defaults(run=show)
    go = actions.add_parser(
        "run",
        help="simulate a program file",
        description="Simulate a program file and print where its time goes. Every communication "
        "needs a duration of its own.",
        epilog=RUN_EXAMPLES,
    )
    go.add_argument("file", metavar="FILE", help="a program file (HDF5)")
    add_result_options(go)
    go.set_defaults(run=run)


def show(args: argparse.Namespace) -> int:
    """Print a program; under a launcher only the first process reads and prints."""
    from ..parallel import agreed
    from .launch import launched_rank, launched_size, world

    for option in ("rows", "first"):
        if getattr(args, option) < 0:
            raise UsageError(f"--{option} is {getattr(args, option)}; it must be 0 or more")
    with agreed(world()) if launched_size() > 1 else nullcontext():
        if launched_rank() == 0:
            _show(args)
    return 0


def _show(args: argparse.Namespace) -> None:
    from ..program.show import overview, rows
    from ..program.store import load

    program = load(args.file)
    text = overview(program)
    if args.rank is not None:
        text += "\n\n" + rows(program, args.rank, args.first, args.rows)
    print(text)


def run(args: argparse.Namespace) -> int:
    """Simulate a program and print the report; the first process prints."""
    check_options(args)
    from ..parallel import agreed
    from ..program.store import load
    from ..simulate import simulate
    from .launch import world

    comm = world()
    with agreed(comm):
        if comm.rank == 0:
            check_json(args)
        program = load(args.file)
    results = simulate(
        program, comm, output=args.output, timeline=args.timeline, overwrite=args.overwrite,
        progress=True,
    )  # fmt: skip
    report = deliver(results, args, comm)
    if comm.rank == 0:
        print(report)
    return 0
