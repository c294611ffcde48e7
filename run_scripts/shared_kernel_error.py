#!/usr/bin/env python3
"""Measured products of whole layers → how much of their errors they share.

    python run_scripts/shared_kernel_error.py ../shared/groundtruth/kernels/vidur_gemm_fp16.csv

The products of one layer (model, tensor parallelism, tokens) of Vidur's table are predicted with
constants fitted without their run. If a share s of the variance v of their errors is common to a
run, and the rest each one's own, their sum has the variance v (s + (1 - s) H), where H is the sum
of the squares of their parts of the layer. Printed by GPU: errors (root mean square) of products,
by their parts, and of sums, H and s. ``shared_kernel_error`` in
``data/calibration/kernel_numbers.toml`` is the largest s: three GPUs are too few for a mean.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mpisim.kernels.analytical.families import FORMULAS
from mpisim.kernels.fitting.cross_validation import cross_validate
from mpisim.kernels.fitting.least_squares import fit
from mpisim.kernels.measured import MeasuredKernels, read_all, select

__all__ = ["main", "shared_part"]

LAYER = ("model", "tp", "M")
"""Columns of Vidur's table in which the products of one layer agree."""

SHORTEST = 1e-4
"""Seconds: least time of a layer's longest product, as launches tell of shorter ones."""

LEAST = 3
"""Products that a layer has at least."""


def _layers(batches: Sequence[MeasuredKernels], path: Path) -> list[np.ndarray]:
    """Products of one GPU, their table → for each layer the places of its products among all."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lines = np.concatenate([each.line for each in batches])
    places = defaultdict(list)
    for place, line in enumerate(lines.tolist()):
        row = rows[line - 2]  # behind the heading, which is line 1
        places[tuple(row[name] for name in LAYER)].append(place)
    return [np.array(each) for each in places.values() if len(each) >= LEAST]


def shared_part(
    seconds: np.ndarray, errors: np.ndarray, layers: Sequence[np.ndarray]
) -> tuple[float, float, float, float]:
    """Products and their layers → variance of their errors and of sums, H, part that they share.

    Parameters
    ----------
    seconds : ndarray of float64
        Measured.
    errors : ndarray of float64
        log(predicted / measured).
    layers : sequence of ndarray of int64
        As of `_layers`.
    """
    alone, sums, even = [], [], []
    for layer in layers:
        own, off = seconds[layer], errors[layer]
        if own.max() < SHORTEST:
            continue
        parts = own / own.sum()
        alone.append(parts @ off**2)
        sums.append(math.log(parts @ np.exp(off)) ** 2)
        even.append(parts @ parts)
    variance, of_sums, h = (float(np.mean(each)) for each in (alone, sums, even))
    return variance, of_sums, h, (of_sums / variance - h) / (1 - h)


def main() -> int:
    """Print errors and parts by GPU, and the largest part."""
    path = Path(sys.argv[1])
    batches = select(read_all([path])[0])
    formula = FORMULAS["gemm"]
    towards = fit(formula, batches).constants
    found = []
    for gpu in sorted({each.gpu for each in batches}):
        own = [each for each in batches if each.gpu == gpu]
        errors = np.concatenate(cross_validate(formula, own, towards)[1])
        seconds = np.concatenate([each.seconds for each in own])
        variance, of_sums, h, part = shared_part(seconds, errors, _layers(own, path))
        found.append(part)
        print(
            f"{gpu:16} products {math.sqrt(variance):.3f}, sums {math.sqrt(of_sums):.3f}, "
            f"H {h:.2f}: they share {part:.2f}"
        )
    print(f"largest {max(found):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
