"""Kernels of fused attention, which differ in speed for one and the same description.

The newest is the fastest that is published for a GPU: FlashAttention-2 on Ampere, 3 on Hopper, 4 on
Blackwell. Which one runs is the framework's choice, and a matter of its date.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from .operations import Attention

__all__ = ["ATTENTION", "AttentionKernel"]

AttentionKernel = Literal["newest", "cudnn", "flash-2", "triton"]


@dataclass(frozen=True)
class CudnnAttention(Attention):
    """Of cuDNN, which Transformer Engine calls on Hopper, and JAX through it."""

    family: ClassVar[str] = "attention_cudnn"


@dataclass(frozen=True)
class Flash2Attention(Attention):
    """FlashAttention-2 (arXiv:2307.08691), which PyTorch's ``scaled_dot_product_attention`` has."""

    family: ClassVar[str] = "attention_flash_2"


@dataclass(frozen=True)
class TritonAttention(Attention):
    """FlashAttention of 2022 in Triton: ``flash_attn_triton.py`` of the package flash-attn."""

    family: ClassVar[str] = "attention_triton"


ATTENTION: Mapping[AttentionKernel, type[Attention]] = {
    "newest": Attention,
    "cudnn": CudnnAttention,
    "flash-2": Flash2Attention,
    "triton": TritonAttention,
}
"""Descriptions by the names that experiments use (``plan.attention``)."""
