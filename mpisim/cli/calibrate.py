"""``mpisim calibrate``: fit the simulator's constants to measurements."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .calibrate_collectives import add_kind as add_collectives
from .calibrate_e2e import add_kind as add_e2e
from .calibrate_overlap import add_kind as add_overlap

if TYPE_CHECKING:
    from ..kernels.analytical.calibration import Table
    from ..kernels.measured import Rows

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim calibrate kernels gemm.csv vector.csv -o mine.toml
  mpisim calibrate kernels *.csv -o old.toml --gpus P100 V100 --train train
  mpisim validate kernels gemm.csv --calibration mine.toml --split test
  mpisim calibrate collectives nccl_measurements.csv -o mine.toml
  mpirun -n 2 python -m mpisim calibrate e2e all.csv -o mine.toml
  mpisim calibrate overlap pairs.csv -o mine.toml
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim calibrate``."""
    parser = subparsers.add_parser(
        "calibrate",
        help="fit the simulator's constants to measurements",
        description="Fit the simulator's constants to measurements.",
        epilog=EXAMPLES,
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    kernels = kinds.add_parser(
        "kernels",
        help="fit the analytical kernel model",
        description="Fit the constants of the analytical kernel model to tables of measured "
        "kernels (which: docs/kernels.md), and find its errors on rows that are left out in turn.",
        epilog=EXAMPLES,
    )
    kernels.add_argument("paths", metavar="CSV", nargs="+", help="tables of measured kernels")
    kernels.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="write the calibration (TOML)"
    )
    kernels.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    kernels.add_argument(
        "--gpus", metavar="GPU", nargs="+", default=[], help="only rows of these (default: all)"
    )
    kernels.add_argument(
        "--train",
        metavar="SPLIT",
        nargs="+",
        default=["train"],
        help="rows of these splits (default: train; rows without one are divided by shape)",
    )
    kernels.set_defaults(run=run)
    add_collectives(kinds)
    add_e2e(kinds)
    add_overlap(kinds)


def run(args: argparse.Namespace) -> int:
    """Fit, print a line a table, write the file; under a launcher only the first process does."""
    from .launch import launched_rank
    from .output import check_outputs

    check_outputs(args)
    if launched_rank() != 0:
        return 0
    from ..files import check_output, staged
    from ..kernels.calibrate import calibrate, write
    from ..kernels.measured import read, select

    check_output(args.output, overwrite=args.overwrite)
    rows: list[Rows] = []
    skipped: dict[str, int] = {}
    for path in args.paths:
        found, left = read(path)
        rows += found
        skipped |= {f"{path}: {reason}": count for reason, count in left.items()}
    chosen = select(rows, gpus=args.gpus, splits=args.train)
    if not chosen:
        raise InputError(
            f"no row of {', '.join(args.paths)} is of the GPUs and splits asked for: GPUs there "
            f"are {', '.join(sorted({each.gpu for each in rows})) or 'none'}; splits "
            f"{', '.join(sorted({str(s) for each in rows for s in each.split})) or 'none'}"
        )
    print(HEAD)
    tables = []
    for (family, owner, dtype), table in calibrate(chosen):
        tables.append(((family, owner, dtype), table))
        print(_line(f"{family}.{owner}.{dtype}", table))
        sys.stdout.flush()
    for reason, count in sorted(skipped.items()):
        print(f"skipped: {count} × {reason}")
    with staged(args.output, overwrite=args.overwrite) as file:
        file.write(write(tables).encode())
    return 0


HEAD = f"{'table':36s} {'rows':>7s} {'median':>7s} {'p90':>7s}  errors of rows held out"


def _line(name: str, table: Table) -> str:
    """One table: errors over all sizes, each by its number of rows."""
    rows = sum(each.rows for each in table.errors)
    median = sum(each.rows * each.median for each in table.errors) / rows
    p90 = sum(each.rows * each.p90 for each in table.errors) / rows
    constants = ", ".join(f"{key} {value:.3g}" for key, value in table.constants.items())
    return f"{name:36s} {table.rows:7,d} {median:7.1%} {p90:7.1%}  by {table.held_out}; {constants}"
