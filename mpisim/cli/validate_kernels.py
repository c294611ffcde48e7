"""``mpisim validate kernels``: kernel models beside measured kernels and whole models."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError, UsageError
from ..base.text import percentage
from .error_tables import figures_of, print_tables
from .fit_output import print_skipped
from .output import add_file_options, write_figures

if TYPE_CHECKING:
    from ..kernels.analytical import KernelCalibration

__all__ = ["add_kind", "run"]

MODELS = ("analytical", "roofline", "li", "simai", "database")

EXAMPLES = """\
examples:
  mpisim validate kernels gemm.csv vector.csv --split test
  mpisim validate kernels gemm.csv --test-gpus H100 --model li --train-gpus P100 V100
  mpisim validate kernels *.csv --unseen             each chip by the others alone
  mpisim validate kernels neusight_e2e_labels.csv    whole models on one GPU
"""


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim validate kernels``."""
    parser = kinds.add_parser(
        "kernels",
        help="kernel models beside measured kernels",
        description="Predict measured kernels, or steps of whole models on one GPU, and print the "
        "errors by operator, GPU, number format and size.",
        epilog=EXAMPLES,
    )
    parser.add_argument("paths", metavar="CSV", nargs="+", help="tables of measurements")
    parser.add_argument(
        "--model", metavar="MODEL", choices=MODELS, default=MODELS[0], help=", ".join(MODELS)
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="of mpisim calibrate kernels (default: the packaged one)",
    )
    parser.add_argument(
        "--test-gpus", metavar="GPU", nargs="+", default=[], help="only these (default: all)"
    )
    parser.add_argument(
        "--split", metavar="SPLIT", nargs="+", default=[], help="only these rows (default: all)"
    )
    parser.add_argument(
        "--train-gpus",
        metavar="GPU",
        nargs="+",
        default=[],
        help="whose rows of the split 'train' li, simai and database learn from (default: all)",
    )
    parser.add_argument(
        "--unseen",
        action="store_true",
        help="predict each chip from constants fitted to all others (minutes); not with the "
        "options above",
    )
    add_file_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Predict and print tables of errors."""
    from .output import check_files, check_outputs

    check_outputs(args)
    check_files(args)
    from ..kernels.analytical import KernelCalibration
    from ..validate.whole_models import is_whole_models

    if args.unseen:
        _refuse_beside_unseen(args)
    calibration = KernelCalibration.read(args.calibration) if args.calibration else None
    whole = [is_whole_models(path) for path in args.paths]
    if any(whole) and not all(whole):
        raise UsageError("tables of kernels and of whole models must be validated one at a time")
    if all(whole) and args.unseen:
        raise UsageError("--unseen takes tables of kernels, and these are whole models")
    if args.unseen:
        figures = _unseen(args)
    else:
        figures = _whole_models(args, calibration) if all(whole) else _kernels(args, calibration)
    write_figures(args, figures)
    return 0


def _refuse_beside_unseen(args: argparse.Namespace) -> None:
    beside = {
        "--model": args.model != MODELS[0],
        "--calibration": args.calibration is not None,
        "--test-gpus": bool(args.test_gpus),
        "--split": bool(args.split),
        "--train-gpus": bool(args.train_gpus),
    }
    given = [name for name, is_given in beside.items() if is_given]
    if given:
        raise UsageError(
            f"--unseen fits and tests on all rows of the tables, with the analytical model; "
            f"leave out {', '.join(given)}"
        )


def _unseen(args: argparse.Namespace) -> dict[str, Any]:
    """Leave out each chip once, predict it by the others, and print errors and summary."""
    from ..kernels.measured import TEST, TRAIN, read_all, select
    from ..mpi.parallel import progress
    from ..validate.unseen import compare_unseen, judge, tabulate_chips

    rows, left_out = read_all(args.paths)
    skipped: dict[str, int] = {}
    for left in left_out.values():
        skipped |= left
    rows = select(rows, splits=[TRAIN, TEST])
    with progress(None, "leaving out chips"):
        chips = compare_unseen(rows)
    for each in chips:
        skipped |= each.found.skipped
    if not any(each.chip.calibration.tables for each in chips):
        raise InputError(
            f"{', '.join(args.paths)}: no kernel family was measured on two chips in one format"
        )
    tables = tabulate_chips(chips)
    print_tables(tables, skipped, args.model, width=34)
    verdict = judge(chips, tables)
    print(
        f"\n{verdict['chips']} chips, each by the others alone: mean of their mean errors "
        f"{percentage(verdict['mean'], 1)} ({percentage(verdict['mean_elsewhere'], 1)}\n"
        f"with the launches of other hosts), worst {percentage(verdict['worst'], 1)} "
        f"({verdict['worst_chip']}); in the 90 % interval at least\n"
        f"{percentage(verdict['least_covered'], 1)} of a chip's rows "
        f"({verdict['least_covered_chip']})"
    )
    groups = {
        f"{grouping}={name}": group
        for grouping, table in tables.items()
        for name, group in table.items()
    }
    return {
        "kind": "unseen kernels",
        "rows": sum(len(each) for each in rows),
        "skipped": dict(sorted(skipped.items())),
        **verdict,
        "groups": groups,
    }


def _kernels(args: argparse.Namespace, calibration: KernelCalibration | None) -> dict[str, Any]:
    from ..kernels.measured import TRAIN, read_all, select
    from ..validate.kernels import compare, model_maker, tabulate

    rows, left_out = read_all(args.paths)
    skipped: dict[str, int] = {}
    for left in left_out.values():
        skipped |= left
    wanted = select(rows, gpus=args.test_gpus, splits=args.split)
    if not wanted:
        raise InputError(
            f"no row of {', '.join(args.paths)} is of the GPUs and splits asked for; there are "
            f"{', '.join(sorted({each.gpu for each in rows}))}"
        )
    training = select(rows, gpus=args.train_gpus, splits=[TRAIN])
    errors = compare(wanted, model_maker(args.model, calibration, training), calibration)
    skipped |= errors.skipped
    tables = tabulate(errors)
    print_tables(tables, skipped, args.model, width=28)
    return {
        "kind": "kernels",
        "model": args.model,
        "rows": sum(len(each) for each in wanted),
        **figures_of(tables, skipped),
        "cases": [
            {
                "id": f"{each.rows.file}:{line}",
                "measured": measured,
                "predicted": predicted,
                "error": predicted / measured - 1,
                "stated_error": stated,
            }
            for each in errors.compared
            for line, measured, predicted, stated in zip(
                each.rows.line.tolist(),
                each.rows.seconds.tolist(),
                each.predicted.tolist(),
                each.error.tolist(),
            )
        ],
    }


def _whole_models(
    args: argparse.Namespace, calibration: KernelCalibration | None
) -> dict[str, Any]:
    from ..validate.kernels import model_maker
    from ..validate.whole_models import validate_whole_models

    if args.model not in ("analytical", "roofline"):
        raise UsageError(
            f"--model {args.model} learns from measured kernels, and these are whole models; "
            "allowed: analytical, roofline"
        )
    make = model_maker(args.model, calibration, [])
    validation = validate_whole_models(args.paths, make, args.test_gpus)
    if not validation.cases:
        raise InputError(f"{args.paths[0]}: no row here could be predicted")
    print(f"{'case':56s} {'measured':>11s} {'predicted':>11s} {'error':>8s} {'error bar':>9s}")
    for case in validation.cases:
        print(
            f"{case.id:56.56s} {case.measured * 1e3:8.1f} ms {case.predicted * 1e3:8.1f} ms "
            f"{percentage(case.error, 1, signed=True):>8} "
            f"{percentage(case.extra['stated_error'], 1):>9}"
        )
    figures = validation.as_json()
    print()
    for name, group in {"all": figures, **figures["groups"]}.items():
        rows = group["n"] if "n" in group else group["predicted"]
        print(
            f"{name:36s} {rows:4d} rows: mean {percentage(group['mape'], 1)}, "
            f"median {percentage(group['median'], 1)}, p90 {percentage(group['p90'], 1)}"
        )
    print_skipped(figures["skipped"].items())
    return figures
