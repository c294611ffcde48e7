"""Fused attention (FlashAttention and its like): shapes → FLOP and bytes of memory traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Literal

from mpisim.base.frozen import frozen

from .kernel import BYTES, Kernel, Precision

__all__ = ["ATTENTION_VARIANTS", "Attention", "AttentionVariant"]

AttentionVariant = Literal["cudnn", "cudnn_9_13", "flash_2", "aotriton", "triton"]
"""Without a variant the newest, which is the fastest that is published for a GPU: FlashAttention-2
on Ampere, 3 on Hopper, 4 on Blackwell.

``cudnn``: cuDNN's, which Transformer Engine calls on Hopper, and JAX through it. ``cudnn_9_13``:
the same up to 9.13, September 2025, whose kernels for Blackwell were slower. ``flash_2``:
FlashAttention-2 (arXiv:2307.08691), which PyTorch's ``scaled_dot_product_attention`` has.
``aotriton``: that of PyTorch on AMD's GPUs since AOTriton 0.11, whose backward pass is AITER's.
``triton``: FlashAttention of 2022 in Triton, ``flash_attn_triton.py`` of the package flash-attn."""

ATTENTION_VARIANTS: Mapping[str, AttentionVariant | None] = {
    "newest": None,
    "cudnn": "cudnn",
    "cudnn-9.13": "cudnn_9_13",
    "flash-2": "flash_2",
    "aotriton": "aotriton",
    "triton": "triton",
}
"""Value of ``framework.attention`` in an experiment → variant of `Attention`."""


@frozen
class Attention(Kernel):
    """Fused attention, which never writes its scores to memory (FlashAttention, arXiv:2205.14135).

    Attributes
    ----------
    batch : int
        Sequences.
    heads, kv_heads : int
        Of the queries, and of keys and values.
    queries, keys : int
        Tokens of a sequence on each side.
    head_size, value_size : int
        Elements of a head of queries and keys, and of values.
    causal : bool
        Whether a token sees only those before it: half of the scores.
    backward : bool
    dtype : Precision
    window : int, optional
        Tokens a token sees at most, itself and those before it; all if not given.
    variant : AttentionVariant, optional
    """

    family: ClassVar[str] = "attention"
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_size: int
    value_size: int
    causal: bool = True
    backward: bool = False
    dtype: Precision = "bf16"
    window: int | None = None
    variant: AttentionVariant | None = field(default=None, kw_only=True)

    @property
    def flops(self) -> int:
        """Two products forward; five backward, as the scores are computed again.

        Of the five, three run over the head size (scores, gradients of queries and of keys), two
        over the value size (gradients of values and of the probabilities). With a mask the i-th
        token sees min(i, w) of s, on average w - w²/2s; without one a window counts on both sides.
        """
        seen, keys = min(self.window or self.keys, self.keys), self.keys
        masked = 2 * seen * keys - (seen * seen if self.causal else 0)
        scores = self.batch * self.heads * self.queries * masked // keys
        products = (
            3 * self.head_size + 2 * self.value_size
            if self.backward
            else self.head_size + self.value_size
        )
        return scores * products

    @property
    def traffic(self) -> int:
        """Forward Q, K, V, O; backward these, the gradient of O, and those of Q, K, V."""
        q = self.heads * self.queries * self.head_size
        k = self.kv_heads * self.keys * self.head_size
        v = self.kv_heads * self.keys * self.value_size
        o = self.heads * self.queries * self.value_size
        elements = 2 * (q + k + v + o) if self.backward else q + k + v + o
        return BYTES[self.dtype] * self.batch * elements
