"""A command that goes on until a file appears, and ends as it is told: ``python slow_command.py``.

``slow [--monitor FILE] --until FILE HOW``: HOW is well, input, bug, or last (the last process has a
bug while the others wait for it inside MPI).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    from mpisim.cli.output import add_monitor_option

    parser = subparsers.add_parser("slow_command")
    parser.add_argument("how")
    parser.add_argument("--until", type=Path)
    add_monitor_option(parser)
    parser.set_defaults(run=run, collective=True)


def run(args: argparse.Namespace) -> int:
    from mpisim.base.errors import InputError
    from mpisim.cli.launch import world
    from mpisim.mpi.parallel import progress

    comm = world()
    if comm.rank == 0:
        print("begun", flush=True)
    with progress(comm, "working", 8) as update:
        update(2)
        while args.until is not None and not args.until.exists():
            time.sleep(0.02)
        if args.how == "input":
            raise InputError("mine.toml: plan.tp is 3; it must divide 8")
        if args.how == "bug" or (args.how == "last" and comm.rank == comm.size - 1):
            raise ZeroDivisionError("of all things")
        comm.barrier()
    return 0


if __name__ == "__main__":
    from mpisim.cli import main

    sys.exit(main(["slow_command", *sys.argv[1:]], ["slow_command"]))
