"""Grouped products: one kernel works on the tiles of all experts (CUTLASS, example 24; DeepGEMM).

    time = floor + (arithmetic⁴ + memory⁴)^(1/4)

The arithmetic is that of a batched product (:mod:`.tiles`) in which every expert has the mean
number of tokens, rounded up to whole tiles by itself, slowed by the power limit as any product.
Transformer Engine's loop over experts on four streams (``GroupedLinear``) fills the machine alike.
In formats in which no grouped product was measured the constants are those of single ones
(`.calibration.ELSEWHERE`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..operations import BYTES, OPERAND, GroupedGemm
from .family import Columns, Constant
from .machine import Machine
from .maths import ceil, floats, where
from .overlap import PIPELINED, Overlapped
from .tiles import TILES, preferred, throttled, times

__all__ = ["CONSTANTS", "FAMILY", "columns", "seconds", "shares"]

FAMILY = "grouped_gemm"

CONSTANTS = (
    Constant("efficiency", 0.85, 0.2, 1.3, "rate of the arithmetic alone, as a share of the peak"),
    Constant("loading", 0.5, 0.0, 3.0, "share of reading operands from L2 that is waited for"),
    Constant("memory", 0.8, 0.3, 1.0, "share of the memory's bandwidth"),
    Constant("quantisation", 0.4, 0.0, 1.0, "1: a partial last wave takes as long as a full one"),
    Constant("prologue", 60.0, 0.0, 600.0, "starting and ending a tile, in steps of k"),
    Constant("floor", 4e-6, 0.0, 2e-5, "starting and draining the machine, s"),
)

CHOICE = 0.1
"""Grouped kernels are tuned for their shapes: they find a nearly best tile."""


def columns(kernel: GroupedGemm) -> dict[str, float | int | str]:
    """Return the numbers of one description.

    Returns
    -------
    dict
        dtype, rows, groups, n, k, weight as 0 or 1, and ``result``: bytes read and written for an
        element of the result.
    """
    return {
        "dtype": kernel.dtype,
        "rows": kernel.rows,
        "groups": kernel.groups,
        "n": kernel.n,
        "k": kernel.k,
        "weight": int(kernel.weight),
        "result": BYTES[kernel.output] * (2 if kernel.accumulate else 1),
    }


def _parts(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> tuple[Any, Any]:
    """Return the times that arithmetic and that memory alone would take."""
    dtype: str = columns["dtype"]
    rows, groups, n, k = floats(columns, "rows", "groups", "n", "k")
    weight = columns["weight"] != 0
    tokens = ceil(rows / groups)
    found = times(
        TILES["fp32" if dtype == "fp32" else "half"],
        dtype,
        where(weight, k, tokens),
        n,
        where(weight, tokens, k),
        groups,
        gpu,
        efficiency=constants["efficiency"],
        loading=constants["loading"],
        quantisation=constants["quantisation"],
        prologue=constants["prologue"],
    )
    matrices = groups * n * k
    operands = where(weight, rows * (n + k), rows * k + matrices)
    results = where(weight, matrices, rows * n)
    traffic = OPERAND[dtype] * operands + columns["result"] * results
    memory = traffic / (gpu.bandwidth * constants["memory"])
    # No grouped product was measured for long enough to say when the clock is lowered; a product's
    # constants, where they serve, say it.
    return throttled(preferred(found, CHOICE), constants.get("burst", 0.0), gpu), memory


_FORMULA = Overlapped(_parts, ("arithmetic", "memory"), PIPELINED)
seconds, shares = _FORMULA.seconds, _FORMULA.shares
