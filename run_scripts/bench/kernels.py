#!/usr/bin/env python3
"""How fast the analytical model prices kernels that it has not seen before.

    source run_scripts/env.sh
    .venv/bin/python run_scripts/bench/kernels.py [GPU] [--json FILE]

For each family: microseconds of CPU time that an estimate takes, ``model.estimate(kernel)`` of
1,000 shapes one after the other, best of five models; the same of making the description of a
shape; and seconds for the durations of 100,000 shapes at once, ``model.estimate_many``. The mean
counts every line the same.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical, formula_of, stack_columns
from mpisim.kernels.operations import (
    Attention,
    Convolution,
    Copy,
    CrossEntropy,
    Elementwise,
    Embedding,
    Gemm,
    GroupedGemm,
    Kernel,
    Norm,
    OptimizerStep,
    Softmax,
)

SHAPES = 1_000
REPEATS = 5
MANY = 100_000

LONG = 10**9

Draw = Callable[[int, int], int]
"""A size between two, evenly drawn."""

KINDS: dict[str, Callable[[Draw], Kernel]] = {
    "gemm": lambda n: Gemm(n(1, 8192), n(1, 8192), n(1, 8192)),
    "batched gemm, fp32": lambda n: Gemm(
        *(n(1, 4096), n(1, 4096), n(1, 4096), n(2, 64)), dtype="fp32", output="fp32"
    ),
    "grouped gemm": lambda n: GroupedGemm(n(64, 65536), n(2, 64), n(1, 8192), n(1, 8192)),
    "attention": lambda n: Attention(
        *(n(1, 16), n(1, 64), n(1, 8), n(1, 8192), n(1, 8192), 128, 128)
    ),
    "convolution": lambda n: Convolution(
        *(n(1, 64), n(16, 512), n(16, 512), n(7, 112), n(7, 112), 3)
    ),
    "elementwise": lambda n: Elementwise(n(1, LONG)),
    "optimizer": lambda n: OptimizerStep(n(1, LONG), 16),
    "copy": lambda n: Copy(n(1, LONG)),
    "softmax": lambda n: Softmax(n(1, 100_000), n(1, 8192)),
    "cross-entropy": lambda n: CrossEntropy(n(1, 100_000), n(1, 100_000)),
    "norm": lambda n: Norm(n(1, 100_000), n(1, 8192)),
    "embedding": lambda n: Embedding(n(1, 100_000), n(1, 8192), n(1, 100_000)),
}


def measured(gpu: str, make: Callable[[Draw], Kernel]) -> dict[str, float]:
    """Price shapes of one kind: seconds an estimate, a description, and of many at once."""
    draw = random.Random(0).randint
    begin = time.process_time()
    kernels = [make(draw) for _ in range(SHAPES)]
    described = (time.process_time() - begin) / SHAPES
    first = make(draw)
    best = float("inf")
    for _ in range(REPEATS):
        model = Analytical(find_gpu(gpu))
        model.estimate(first)
        begin = time.process_time()
        for kernel in kernels:
            model.estimate(kernel)
        best = min(best, (time.process_time() - begin) / SHAPES)
    columns = stack_columns(kernels * (MANY // SHAPES))
    begin = time.process_time()
    model.estimate_many(formula_of(first.qualified_family).name, columns)
    return {"estimate": best, "description": described, "many": time.process_time() - begin}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gpu", nargs="?", default="a100-sxm", metavar="GPU")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    figures = {}
    print(f"{'us each':>10s} {'described':>10s} {f's, {MANY:,}':>12s}  kernels on {args.gpu}")
    for name, make in KINDS.items():
        found = figures[name] = measured(args.gpu, make)
        print(
            f"{found['estimate'] * 1e6:10.1f} {found['description'] * 1e6:10.1f} "
            f"{found['many']:12.3f}  {name}",
            flush=True,
        )
    figures["mean"] = {
        key: sum(each[key] for each in figures.values()) / len(KINDS)
        for key in ("estimate", "description", "many")
    }
    mean = figures["mean"]
    print(
        f"{mean['estimate'] * 1e6:10.1f} {mean['description'] * 1e6:10.1f} "
        f"{mean['many']:12.3f}  mean"
    )
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
