"""Products of 16-bit numbers that run on CUDA cores.

cuBLAS before CUDA 11.7 took them where rows were no multiple of 16 bytes (ampere_fp16_sgemm and its
like): operands are turned to fp32 as they are read, and multiplied as in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .operations import Gemm

__all__ = ["CoreGemm"]


@dataclass(frozen=True)
class CoreGemm(Gemm):
    """A product whose `dtype` is the format it is computed in: fp32."""

    family: ClassVar[str] = "gemm_cores"
