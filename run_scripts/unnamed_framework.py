#!/usr/bin/env python3
"""Predictions with and without frameworks' names → what not naming one is worth as an error bar.

    mpirun -n 2 python -m mpisim validate e2e all.csv --json named.json
    mpirun -n 2 python -m mpisim validate e2e all.csv --no-profiles --json unnamed.json
    python run_scripts/unnamed_framework.py all.csv named.json unnamed.json

Writes ``data/calibration/unnamed_framework.toml``: how far predictions of the same rows lie apart,
as the root of the mean square of their ratios' logarithms, of dense transformers on GPUs of before
2022 apart. The rows on later ones are nearly all of one vendor's frameworks, which say less about
others: there the spread of all GPUs counts. No measured time enters.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from pathlib import Path

from step_files import column_of, compared_cases

from mpisim.kernels.gpu import find_gpu
from mpisim.prediction.uncertainty import design_name, unnamed_class

__all__ = ["FILE", "main", "spreads"]

FILE = Path(__file__).resolve().parent.parent / "data" / "calibration" / "unnamed_framework.toml"

HEAD = """\
# How far off a step is for an experiment that says nothing of its framework, written by:
# run_scripts/unnamed_framework.py. Relative error bars (one standard deviation) by class of the
# model; sharded: dense with zero = 2 or 3; before_2022: on GPUs of architectures that old.

"""
KINDS = {
    "dense transformer": "dense",
    "mixture of experts": "experts",
    "recommendation": "recommendation",
    "other": "other",
}


def spreads(
    zero: dict[str, str], named: list[dict[str, object]], unnamed: list[dict[str, object]]
) -> dict[str, tuple[float, int]]:
    """Stages of ZeRO by row, cases of both runs → spread and number of rows by class."""
    without = {case["id"]: case for case in unnamed}
    apart = defaultdict(list)
    for case in named:
        other = without.get(case["id"])
        if other is None or case["trust"] not in ("A", "B"):
            continue
        stage = int(zero[str(case["id"])] or 0)
        model = KINDS[str(case["kind"])]
        kinds = {
            unnamed_class(model, stage, designs)
            for designs in ([], [design_name(find_gpu(str(case["gpu"])))])
        }
        for kind in kinds:
            apart[kind].append(math.log(float(other["predicted"]) / float(case["predicted"])))  # type: ignore[arg-type]
    return {
        kind: (math.sqrt(math.fsum(x * x for x in logs) / len(logs)), len(logs))
        for kind, logs in sorted(apart.items())
    }


def main() -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path)
    parser.add_argument("named", type=Path)
    parser.add_argument("unnamed", type=Path)
    args = parser.parse_args()
    zero = column_of(args.table, "zero_stage")
    cases = [compared_cases(path) for path in (args.named, args.unnamed)]
    lines = [
        f'{kind} = {{ value = 1, unit = "1", error = {spread:.3f}, source = "predictions of {n} '
        "published steps of trust A and B, with their frameworks' profiles and without\" }\n"
        for kind, (spread, n) in spreads(zero, *cases).items()
    ]
    FILE.write_text(HEAD + "".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
