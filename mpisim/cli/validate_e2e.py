"""``mpisim validate e2e``: measured training steps beside their predictions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ..errors import UsageError

__all__ = ["add_kind", "run"]

EXAMPLES = """\
examples:
  mpisim validate e2e all.csv
  mpisim validate e2e all.csv --where source=vtrain,trust=A --json out.json
  mpisim validate e2e all.csv --where trust=A|B --plot scatter.png
  mpisim validate e2e all.csv --set plan.fused=false
  mpirun -n 2 python -m mpisim validate e2e all.csv
"""


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim validate e2e``."""
    parser = kinds.add_parser(
        "e2e",
        help="measured training steps beside their predictions",
        description="Make an experiment of every row of a table of measured training steps, "
        "simulate it, and print the errors by source, GPU, precision, scale and parallelism. Under "
        "mpirun the processes share the rows. docs/accuracy.md explains the table.",
        epilog=EXAMPLES,
    )
    parser.add_argument("paths", metavar="CSV", nargs=1, help="table of measurements")
    parser.add_argument(
        "--where", metavar="COLUMN=VALUE", nargs="+", default=[],
        help="only rows with this value, or one of several between | ; several conditions with "
        "commas between; source is its short name",
    )  # fmt: skip
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N rows")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", nargs="+", default=[], dest="changes",
        help="set keys of every experiment",
    )  # fmt: skip
    parser.add_argument(
        "--every-micro-batch", action="store_true",
        help="simulate long steps in full, in place of two shorter ones that say how long each "
        "further micro-batch takes (several times slower)",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="also write all figures to this file")
    parser.add_argument("--plot", metavar="FILE", help="also draw predicted over measured times")
    parser.add_argument(
        "--top", type=int, metavar="N", default=10, help="worst rows to show (default: 10)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Predict, and print tables of errors. **Collective** under a launcher."""
    from .launch import world
    from .output import check_json, check_outputs

    check_outputs(args)
    if args.limit is not None and args.limit < 1:
        raise UsageError(f"--limit is {args.limit}; it must be 1 or more")
    if args.top < 0:
        raise UsageError(f"--top is {args.top}; it must be 0 or more")
    where = conditions(args.where)
    from ..parallel import agreed
    from ..validate.e2e import as_json, check_plot, compare, render, scatter

    comm = world()
    with agreed(comm):
        if comm.rank == 0:
            check_json(args)
            if args.plot is not None:
                check_plot(args.plot)
    path = args.paths[0]
    found = compare(
        path, comm, where=where, limit=args.limit, changes=args.changes,
        every=args.every_micro_batch,
    )  # fmt: skip
    with agreed(comm):
        if found is not None:
            print(render(found, args.top))
            if args.json is not None:
                from ..files import write_json

                write_json(args.json, as_json(found, path))
            if args.plot is not None:
                scatter(found.compared, args.plot)
    return 0


def conditions(texts: Sequence[str]) -> dict[str, str]:
    """Read ``--where``.

    Raises
    ------
    UsageError
        If a condition is no assignment, or a column has two.
    """
    found: dict[str, str] = {}
    for condition in ",".join(texts).split(",") if texts else ():
        column, equals, value = condition.partition("=")
        if not equals or not column.strip():
            raise UsageError(f"--where {condition}: not of the form COLUMN=VALUE")
        if column.strip() in found:
            raise UsageError(f"--where: column {column.strip()!r} has two conditions")
        found[column.strip()] = value.strip()
    return found
