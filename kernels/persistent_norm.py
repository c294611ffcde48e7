"""Norms that read each row once, into registers.

Apex's FastLayerNorm and the tuned kernels of Transformer Engine keep a row in the registers of its
threads from the first read to the last write (transformer_engine/common/normalization). Other
kernels go through it twice. Which one runs is the framework's choice, and for Megatron-LM's layer
norms one of the width, too (``persist_ln_hidden_sizes``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .operations import Norm

__all__ = ["PersistentNorm"]


@dataclass(frozen=True)
class PersistentNorm(Norm):
    """A layer or RMS norm that keeps rows in registers."""

    family: ClassVar[str] = "norm_persistent"
