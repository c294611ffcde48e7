"""A formula that can be worked by hand: the roofline of products with two efficiencies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mpisim.kernels.analytical import families
from mpisim.kernels.analytical.families import stack_columns
from mpisim.kernels.analytical.formula import Columns, Constant, Formula, filled_like
from mpisim.kernels.gpu_parameters import GpuParameters, gpu_parameters
from mpisim.kernels.measured import MeasuredKernels
from mpisim.kernels.operations import Gemm

CONSTANTS = (
    Constant("efficiency", 0.8, 0.1, 1.0, "share of the peak"),
    Constant("memory", 0.8, 0.1, 1.0, "share of the bandwidth"),
    Constant("floor", 3e-6, 0.0, 1e-5, "s"),
)


def columns(kernel: Any) -> dict[str, float | int | str]:
    """Arithmetic and traffic."""
    return {"flops": kernel.flops, "traffic": kernel.traffic, "dtype": kernel.dtype}


def shares(columns: Columns, gpu: GpuParameters, constants: Mapping[str, float]) -> dict[str, Any]:
    """Two terms and the floor; they simply add up."""
    arithmetic = columns["flops"] / gpu.peaks[columns["dtype"]] / constants["efficiency"]
    memory = columns["traffic"] / gpu.bandwidth / constants["memory"]
    floor = filled_like(arithmetic, constants["floor"])
    return {"arithmetic": arithmetic, "memory": memory, "floor": floor}


def seconds(columns: Columns, gpu: GpuParameters, constants: Mapping[str, float]) -> Any:
    """The sum of the terms."""
    return sum(shares(columns, gpu, constants).values())


FORMULA = Formula("gemm", CONSTANTS, columns, seconds, shares, power_limited=True)

TRUE = {"efficiency": 0.7, "memory": 0.6, "floor": 4e-6}
"""Constants of the times of `batch`."""


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this formula serve matrix products."""
    monkeypatch.setitem(families.FORMULAS, FORMULA.name, FORMULA)


def batch(
    gpu: str,
    *,
    launch: float = 0.0,
    noise: float = 0.0,
    constants: Mapping[str, float] | None = None,
    growth: float = 0.0,
    run: str = "",
) -> MeasuredKernels:
    """Products of 135 sizes, timed by the formula above."""
    sizes = [2**i for i in range(4, 13)]
    kernels = tuple(
        Gemm(m, n, k, dtype="fp32", output="fp32")
        for m in sizes
        for n in sizes[::3]
        for k in sizes[::2]
    )
    found = stack_columns(kernels)
    times = seconds(found, gpu_parameters(gpu), constants or TRUE) + launch
    elapsed = np.linspace(0, growth > 0, len(kernels))
    times += growth * elapsed
    times *= np.exp(noise * np.random.default_rng(1).standard_normal(len(kernels)))
    return MeasuredKernels(
        file="toy.csv",
        publisher="nobody",
        family="gemm",
        gpu=gpu,
        dtype="fp32",
        launched=launch > 0,
        kernels=kernels,
        columns=found,
        seconds=times,
        op=np.array(["toy"] * len(kernels)),
        split=np.array(["train"] * len(kernels)),
        line=np.arange(2, 2 + len(kernels)),
        run=np.array([run] * len(kernels)),
        elapsed=elapsed,
    )
