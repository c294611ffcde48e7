"""``mpisim validate collectives``: models of collectives beside measured ones."""

from __future__ import annotations

import argparse
from typing import Any

from ..base.errors import InputError
from .error_tables import figures_of, print_tables
from .measured_collectives import add_reading, read_rows, sorted_rows
from .output import add_file_options

__all__ = ["add_kind", "run"]

MODELS = ("nccl", "alpha-beta", "echo", "sigmoid")

EXAMPLES = """\
examples:
  mpisim validate collectives nccl_measurements.csv --split test --grades A
  mpisim validate collectives all_reduce.log alltoall.json --calibration mine.cal.toml
  mpisim validate collectives mine.csv curves_index.csv --calibration mine.toml
  mpisim validate collectives nccl_measurements.csv --model echo --split test
"""


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim validate collectives``."""
    parser = kinds.add_parser(
        "collectives",
        help="models of collectives beside measured collectives",
        description="Predict measured collectives (docs/collectives.md) and print the errors by "
        "operation, platform, number of GPUs and size.",
        epilog=EXAMPLES,
    )
    add_reading(parser)
    parser.add_argument(
        "--model", metavar="MODEL", choices=MODELS, default=MODELS[0], help=", ".join(MODELS)
    )
    parser.add_argument(
        "--calibration", metavar="FILE", help="of mpisim calibrate collectives (default: packaged)"
    )
    parser.add_argument(
        "--split",
        choices=("train", "test", "all"),
        default="all",
        help="the half of the curves that is fitted with --train half, the other, or all (default)",
    )
    parser.add_argument(
        "--grades",
        metavar="GRADE",
        nargs="+",
        default=[],
        choices=("A", "B", "C"),
        help="only curves of these grades: A, B, C (default: all)",
    )
    add_file_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Predict and print tables of errors."""
    from .output import check_files, check_outputs

    check_outputs(args)
    check_files(args)
    from ..topo.collectives.batches import TRAIN, select
    from ..topo.collectives.calibration import CollectiveCalibration, packaged_calibration
    from ..topo.collectives.models import predictor
    from ..validate.collectives import as_cases, compare, tabulate

    calibration = (
        CollectiveCalibration.read(args.calibration) if args.calibration else packaged_calibration()
    )
    rows, skipped = read_rows(args)
    known, left = sorted_rows(rows, args)
    skipped += left
    wanted = select(known, split=args.split, grades=args.grades)
    if not known and skipped:
        raise InputError(f"no row of {', '.join(args.paths)} can be used: {next(iter(skipped))}")
    if not wanted:
        raise InputError(
            f"no row of {', '.join(args.paths)} is of the split and grades asked for: there are "
            f"{', '.join(sorted({each.grade or 'none' for each in known})) or 'no rows'}"
        )
    training = select(known, split=TRAIN) if args.model != "nccl" else []
    found = compare(wanted, predictor(args.model, calibration, training))
    skipped += found.skipped
    tables = tabulate(found)
    print_tables(tables, skipped, args.model, width=44)
    if args.json is not None:
        from ..base.files import write_json

        figures = {
            "kind": "collectives",
            "model": args.model,
            "calibration": calibration.source,
            "split": args.split,
            "rows": sum(map(len, wanted)),
            **figures_of(tables, skipped),
            "cases": as_cases(found),
        }
        write_json(args.json, figures, overwrite=args.overwrite)
    return 0
