"""``mpisim validate job``: published training runs beside the jobs predicted of them."""

from __future__ import annotations

import argparse
from typing import Any

from ..base.errors import UsageError
from .output import add_file_options, check_files, write_figures

__all__ = ["add_kind", "run"]

EXAMPLES = """\
examples:
  mpisim validate job                              every published run
  mpisim validate job llama3 --json jobs.json      those with "llama3" in their name
"""


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim validate job``."""
    parser = kinds.add_parser(
        "job",
        help="published training runs beside the jobs predicted of them",
        description="Print how often published runs were interrupted beside what the rates of "
        "other fleets say, and how long they took beside what is predicted.",
        epilog=EXAMPLES,
    )
    parser.add_argument("words", metavar="WORD", nargs="*", help="only names with these words")
    add_file_options(parser)
    parser.set_defaults(run=run, collective=True)


def run(args: argparse.Namespace) -> int:
    """Simulate and print both tables; the first process prints."""
    from ..mpi.parallel import collective_errors
    from ..validate.jobs import as_json, published_jobs, render
    from .launch import world

    comm = world()
    with collective_errors(comm):
        if comm.rank == 0:
            check_files(args)
    found = published_jobs(args.words, comm)
    if not found:
        raise UsageError(f"no published run has {' '.join(args.words)!r} in its name")
    with collective_errors(comm):
        if comm.rank == 0:
            print(render(found))
            write_figures(args, as_json(found))
    return 0
