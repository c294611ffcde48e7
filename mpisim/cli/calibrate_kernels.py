"""``mpisim calibrate kernels``: fit the analytical kernel model to measured kernels."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError
from .fit_output import add_output, print_skipped, rows_line, writing
from .output import add_monitor_option

if TYPE_CHECKING:
    from ..kernels.analytical.calibration import FittedConstants

__all__ = ["add_kind"]

EXAMPLES = """\
examples:
  mpisim calibrate kernels gemm.csv vector.csv -o mine.toml
  mpisim calibrate kernels *.csv -o old.toml --gpus P100 V100 --train train
  mpisim validate kernels gemm.csv --calibration mine.toml --split test
"""


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim calibrate kernels``."""
    parser = kinds.add_parser(
        "kernels",
        help="fit the analytical kernel model",
        description="Fit the constants of the analytical kernel model to tables of measured "
        "kernels (which: docs/kernels.md), and find its errors on rows that are left out in turn.",
        epilog=EXAMPLES,
    )
    parser.add_argument("paths", metavar="CSV", nargs="+", help="tables of measured kernels")
    add_output(parser, "calibration")
    parser.add_argument(
        "--gpus", metavar="GPU", nargs="+", default=[], help="only rows of these (default: all)"
    )
    parser.add_argument(
        "--train",
        metavar="SPLIT",
        nargs="+",
        default=["train"],
        help="rows of these splits (default: train; rows without one are divided by shape)",
    )
    add_monitor_option(parser)
    parser.set_defaults(run=writing(_fit))


def _fit(args: argparse.Namespace) -> str:
    """Fit, print a line a table as it is done, and return the calibration."""
    from ..kernels.fitting import calibrate, write
    from ..kernels.measured import read_all, select
    from ..mpi.parallel import progress
    from ..mpi.phases import phases

    rows, left_out = read_all(args.paths)
    skipped = {
        f"{path}: {reason}": count
        for path, left in left_out.items()
        for reason, count in left.items()
    }
    chosen = select(rows, gpus=args.gpus, splits=args.train)
    if not chosen:
        raise InputError(
            f"no row of {', '.join(args.paths)} is of the GPUs and splits asked for: GPUs there "
            f"are {', '.join(sorted({each.gpu for each in rows})) or 'none'}; splits "
            f"{', '.join(sorted({str(s) for each in rows for s in each.split})) or 'none'}"
        )
    print(f"{'table':36s} {'rows':>7s} {'median':>7s} {'p90':>7s}  errors of rows held out")
    tables = []
    with progress(None, "fitting constants"):
        for (family, owner, dtype), table in calibrate(chosen):
            tables.append(((family, owner, dtype), table))
            with phases.silent():
                print(_line(f"{family}.{owner}.{dtype}", table), flush=True)
    print_skipped(skipped.items())
    return write(tables)


def _line(name: str, table: FittedConstants) -> str:
    constants = ", ".join(f"{key} {value:.3g}" for key, value in table.constants.items())
    return (
        f"{name:36s} {table.rows:7,d} {rows_line(table.errors)}  by {table.held_out}; {constants}"
    )
