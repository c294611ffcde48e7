"""Products in fp8 whose sums are kept in fp32 throughout.

Hopper's matrix units add up products in fp8 with fewer bits than fp32. cuBLAS leaves sums there
with fast accumulation, and otherwise moves them to fp32 registers again and again ("split
accumulator"). Frameworks take the first forward and the second for gradients: Transformer Engine
(``_2X_ACC_FPROP``, ``_2X_ACC_DGRAD`` and ``_2X_ACC_WGRAD``, pytorch/module/base.py), torchao
(``use_fast_accum``, torchao/float8/config.py), XLA (github:openxla/xla, issue 6168).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .operations import Gemm, GroupedGemm

__all__ = ["SplitGemm", "SplitGroupedGemm"]


@dataclass(frozen=True)
class SplitGemm(Gemm):
    """Products with split accumulators."""

    family: ClassVar[str] = "gemm_split"


@dataclass(frozen=True)
class SplitGroupedGemm(GroupedGemm):
    """Products of several experts with split accumulators."""

    family: ClassVar[str] = "grouped_gemm_split"
