"""``mpisim calibrate collectives``: fit the model of collectives to measured ones."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .fitted import add_output, print_skipped, rows_line, writing

if TYPE_CHECKING:
    from ..topo.collectives.calibration import Table

__all__ = ["add_kind"]

EXAMPLES = """\
examples:
  mpisim calibrate collectives nccl_measurements.csv -o mine.toml
  mpisim calibrate collectives *.csv -o mine.toml --train all
  mpisim validate collectives nccl_measurements.csv --calibration mine.toml --split test
"""


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim calibrate collectives``."""
    parser = kinds.add_parser(
        "collectives",
        help="fit the model of collectives",
        description="Fit a few numbers a platform to tables of measured collectives (which: "
        "docs/collectives.md), and find their errors on platforms and set-ups left out in turn.",
        epilog=EXAMPLES,
    )
    parser.add_argument("paths", metavar="CSV", nargs="+", help="tables of measured collectives")
    add_output(parser, "calibration")
    parser.add_argument(
        "--train",
        choices=("half", "all"),
        default="half",
        help="fit half of each platform's curves, chosen by their names, or all (default: half)",
    )
    parser.set_defaults(run=writing(_fit))


def _fit(args: argparse.Namespace) -> str:
    """Fit, print a line a table as it is done, and return the calibration."""
    from ..topo.collectives.batches import batches, select
    from ..topo.collectives.calibrate import calibrate
    from ..topo.collectives.calibration import Calibration
    from ..topo.collectives.halves import TRAIN
    from ..topo.collectives.measured import read

    split = "all" if args.train == "all" else TRAIN
    rows, skipped = read(args.paths)
    known, left = batches(rows)
    measured = select(known, split=split)
    skipped += left
    if not measured:
        reasons = "; ".join(sorted(skipped))
        raise InputError(
            f"no row of {', '.join(args.paths)} can be fitted"
            + (f": {reasons}" if reasons else "; try --train all")
        )
    print(f"{'table':24s} {'curves':>6s} {'rows':>6s} {'median':>7s} {'p90':>7s}")
    tables: dict[str, Table] = {}
    for owner, table in calibrate(measured, split):
        tables[owner] = table
        print(_line(owner, table))
        sys.stdout.flush()
    print_skipped(skipped.items())
    print("median, p90: errors of platforms or set-ups left out in turn, or of the wider table")
    return Calibration(tables, args.output).text()


def _line(owner: str, table: Table) -> str:
    numbers = ", ".join(f"{name} {value:.3g}" for name, value in table.numbers.items())
    return f"{owner:24s} {table.curves:6d} {table.rows:6,d} {rows_line(table.errors)}  {numbers}"
