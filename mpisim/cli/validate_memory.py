"""``mpisim validate memory``: published figures of memory, and runs, beside what is predicted."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..base.errors import UsageError
from .output import add_file_options, write_figures

__all__ = ["add_kind", "run"]

EXAMPLES = """\
examples:
  mpisim validate memory                     published peaks, runs that failed
  mpisim validate memory --details           each of them
  mpisim validate memory mine.toml           figures of your own, of the form of
                                             data/validation/memory.toml
  mpisim validate memory all.csv             measured steps: is one refused that ran?
"""


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim validate memory``."""
    parser = kinds.add_parser(
        "memory",
        help="published peaks of memory, runs that went and that failed, beside predictions",
        description="Print how far the memory model is from published figures, and what it says of "
        "runs that went and of runs that ran out of memory. Nothing is simulated. docs/memory.md "
        "explains the tables.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "table",
        metavar="TABLE",
        nargs="?",
        help="published figures (.toml), or measured steps as for 'mpisim validate e2e' (.csv); "
        "those that come with mpisim if not given",
    )
    parser.add_argument(
        "--details",
        action="store_true",
        help="also a line for each figure and run, or step that is close",
    )
    add_file_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Assess and print the tables; under a launcher only the first process does."""
    from .output import check_files

    suffix = ".toml" if args.table is None else Path(args.table).suffix
    if suffix not in (".toml", ".csv"):
        raise UsageError(f"TABLE is {args.table!r}; its name must end in .toml or .csv")
    check_files(args)
    if suffix == ".csv":
        from ..validate.e2e import fitting

        judged = fitting.judged_rows(args.table)
        text, figures = fitting.render(judged, details=args.details), fitting.as_json(judged)
    else:
        from ..validate import memory

        rows = memory.memory_rows(None if args.table is None else Path(args.table))
        text, figures = memory.render(rows, details=args.details), memory.as_json(rows)
    print(text)
    write_figures(args, figures)
    return 0
