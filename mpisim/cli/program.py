"""``mpisim program``: look at a program file."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import Any

from ..errors import UsageError

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim program show step.h5              ranks, tables and communicators
  mpisim program show step.h5 --rank 3     and the first rows of rank 3
  mpisim program show step.h5 --rank 3 --rows 1000
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim program``."""
    parser = subparsers.add_parser(
        "program", help="look at a program file", description="Look at a program file."
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser(
        "show",
        help="print what a program file holds",
        description="Print what a program file holds: ranks, tables, communicators, rows.",
        epilog=EXAMPLES,
    )
    show.add_argument("file", metavar="FILE", help="a program file (HDF5)")
    show.add_argument("--rank", type=int, metavar="R", help="also list the rows of this rank")
    show.add_argument(
        "--rows", type=int, metavar="N", default=40, help="how many rows to list (default: 40)"
    )
    show.add_argument(
        "--first", type=int, metavar="I", default=0, help="the first row to list (default: 0)"
    )
    show.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
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
