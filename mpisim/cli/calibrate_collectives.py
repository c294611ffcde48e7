"""``mpisim calibrate collectives``: fit the model of collectives to measured ones."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError
from .fit_output import add_output, print_skipped, rows_line, writing
from .measured_collectives import add_reading, read_rows, sorted_rows
from .output import add_monitor_option

if TYPE_CHECKING:
    from ..topo.collectives.batches import Batch
    from ..topo.collectives.calibration import OwnerCalibration

__all__ = ["add_kind"]

EXAMPLES = """\
examples:
  mpisim calibrate collectives all_reduce.log alltoall.json --cluster mine.toml -o mine.cal.toml
  mpisim calibrate collectives my.log --cluster dgx-h100 --platform my-cluster -o mine.cal.toml
  mpisim calibrate collectives nccl_measurements.csv -o all.toml
  mpisim validate collectives nccl_measurements.csv --calibration all.toml --split test
"""


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim calibrate collectives``."""
    parser = kinds.add_parser(
        "collectives",
        help="fit the model of collectives",
        description="Fit a few numbers to measured collectives (docs/collectives.md), and find "
        "their errors on what is left out in turn. Of one platform what was measured is fitted, "
        "and the rest is left to the calibration that comes along; of several, the numbers of "
        "each, of their families and of all.",
        epilog=EXAMPLES,
    )
    add_reading(parser)
    parser.add_argument(
        "--platform",
        metavar="NAME",
        help="all files are of one machine, which gets this name (default: that of --cluster)",
    )
    add_output(parser, "calibration")
    parser.add_argument(
        "--train",
        choices=("half", "all"),
        help="fit half of each platform's curves, chosen by their names, or all (default: all of a "
        "single platform, half of several)",
    )
    add_monitor_option(parser)
    parser.set_defaults(run=writing(_fit))


def _fit(args: argparse.Namespace) -> str:
    """Fit, print a line a table as it is done, and return the calibration."""
    from ..topo.collectives.batches import TRAIN, select
    from ..topo.collectives.calibrate import one_platform
    from ..topo.collectives.calibration import CollectiveCalibration

    rows, skipped = read_rows(args)
    known, left = sorted_rows(rows, args, args.platform)
    single = one_platform(known)
    if single is not None and args.platform is None and args.cluster is None:
        known, left = sorted_rows(rows, args, single)
    half = args.train == "half" or (args.train is None and single is None)
    split = TRAIN if half else "all"
    measured = select(known, split=split)
    skipped += left
    if not measured:
        reasons = "; ".join(sorted(skipped))
        raise InputError(
            f"no row of {', '.join(args.paths)} can be fitted"
            + (f": {reasons}" if reasons else "; try --train all")
            + ("; --cluster says which machine it is" if "is unknown" in reasons else "")
        )
    print(f"{'table':24s} {'curves':>6s} {'rows':>6s} {'median':>7s} {'p90':>7s}")
    tables: dict[str, OwnerCalibration] = {}
    if single is not None or args.platform is not None or args.cluster is not None:
        name = measured[0].platform.name
        tables[name] = _own(name, measured, split)
    else:
        tables = _all(measured, split)
    print_skipped(skipped.items())
    print("median, p90: errors of platforms or set-ups left out in turn, or of the wider table")
    return CollectiveCalibration(tables, args.output).text()


def _all(measured: list[Batch], split: str) -> dict[str, OwnerCalibration]:
    """Fit all platforms, their families and architectures, and all machines."""
    from ..mpi.parallel import progress
    from ..mpi.phases import phases
    from ..topo.collectives.calibrate import calibrate

    tables: dict[str, OwnerCalibration] = {}
    with progress(None, "fitting numbers"):
        for owner, table in calibrate(measured, split):
            tables[owner] = table
            with phases.silent():
                print(_line(owner, table), flush=True)
    return tables


def _own(name: str, measured: list[Batch], split: str) -> OwnerCalibration:
    """Fit one platform, and say what is left to the calibration that comes along."""
    from ..topo.collectives.calibrate import calibrate_platform
    from ..topo.collectives.calibration import CollectiveCalibration, calibration_of
    from ..topo.nccl.shape import REGIMES

    table = calibrate_platform(name, measured, split)
    print(_line(name, table))
    found = calibration_of(CollectiveCalibration({name: table}, ""), (name, *table.behind))
    for regime in REGIMES:
        where = f"{regime} nodes" if regime == "across" else "inside a node"
        if table.covers(regime):
            rows = sum(len(each) for each in measured if each.regime == regime)
            print(f"{where}: fitted to {rows} rows")
        else:
            print(f"{where}: not measured; numbers and errors of {found.sources[regime]}")
    return table


def _line(owner: str, table: OwnerCalibration) -> str:
    numbers = ", ".join(f"{name} {value:.3g}" for name, value in table.numbers.items())
    return f"{owner:24s} {table.curves:6d} {table.rows:6,d} {rows_line(table.errors)}  {numbers}"
