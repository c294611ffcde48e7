"""Which products in fp8 keep their sums in fp32: those that make gradients.

Forward, cuBLAS's fast accumulation serves (`mpisim.kernels.operations.GemmVariant`).
"""

from __future__ import annotations

from dataclasses import replace

from mpisim.kernels.operations import Gemm, GroupedGemm

from ..operators import Compute, Operator, Step
from .shapes import Shapes

__all__ = ["split_sums"]


def split_sums(s: Shapes, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Return operators whose gradients in fp8 have split accumulators, if the plan has them."""
    if s.linear != "fp8" or not s.plan.fp8_split_sums:
        return operators
    return tuple(replace(each, backward=tuple(map(_split, each.backward))) for each in operators)


def _split(step: Step) -> Step:
    if not isinstance(step, Compute):
        return step
    kernel = step.kernel
    if isinstance(kernel, Gemm | GroupedGemm) and kernel.dtype == "fp8":
        return replace(step, kernel=replace(kernel, variant="split"))
    return step
