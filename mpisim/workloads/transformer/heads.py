"""Sizes of the heads that meet in one attention."""

from __future__ import annotations

from dataclasses import dataclass

from mpisim.kernels.operations import ATTENTION_VARIANTS, Attention

from .shapes import Shapes

__all__ = ["Heads"]


@dataclass(frozen=True)
class Heads:
    """Queries, keys and values of one rank.

    Attributes
    ----------
    heads, kv_heads : int
    head, value : int
        Elements of a head of queries and keys, and of values.
    queries : int
        Of a sequence on this rank.
    keys : int
        Of the whole sequence.
    length : int
        Of the sequence the keys are made of.
    causal : bool
    relative_bias : bool
        Whether a bias for each pair of tokens is added to the scores (T5).
    window : int, optional
        Tokens each of which a token sees.
    """

    heads: int
    kv_heads: int
    head: int
    value: int
    queries: int
    keys: int
    length: int
    causal: bool
    relative_bias: bool = False
    window: int | None = None

    @classmethod
    def of(cls, s: Shapes, *, causal: bool | None = None) -> Heads:
        """Return those of self-attention, `causal` if not as the model says."""
        model = s.model
        kv_heads = s.heads if model.attention == "mla" else s.kv_heads
        return cls(
            s.heads,
            kv_heads,
            model.head,
            model.value_head,
            s.local_length,
            s.length,
            s.length,
            model.causal if causal is None else causal,
            model.position == "relative",
            s.window,
        )

    def kernel(
        self, s: Shapes, queries: int, keys: int, causal: bool, *, backward: bool = False
    ) -> Attention:
        """Return the fused kernel over so many queries and keys.

        cuDNN's in fp8 have no window on the way back: of 4096 tokens it takes 1.5 to 2.1 ms in fp8
        with a window of 128 or without, 0.44 to 0.46 ms in bf16 (github:NVIDIA/cudnn-frontend,
        benchmark/attention_training/results/gpt_oss).
        """
        whole = backward and s.attended == "fp8" and s.plan.attention == "cudnn"
        return Attention(
            s.batch,
            self.heads,
            self.kv_heads,
            queries,
            keys,
            self.head,
            self.value,
            causal,
            backward,
            s.attended,
            None if whole else self.window,
            variant=ATTENTION_VARIANTS[s.plan.attention],
        )

    @property
    def query_width(self) -> int:
        """Elements of a token's queries."""
        return self.heads * self.head

    @property
    def key_value_width(self) -> int:
        """Elements of a token's keys and values."""
        return self.kv_heads * (self.head + self.value)

    @property
    def output_width(self) -> int:
        """Elements of a token's result."""
        return self.heads * self.value
