"""Sizes of one attention call on one rank: heads, queries, keys, widths."""

from __future__ import annotations

from mpisim.kernels.operations import ATTENTION_VARIANTS, Attention

from ...base.frozen import frozen
from .shapes import Shapes

__all__ = ["AttentionShape"]


@frozen
class AttentionShape:
    """Queries, keys and values of one attention call on one rank.

    Attributes
    ----------
    heads, kv_heads : int
        Heads of queries, and of keys and values.
    head_size, value_size : int
        Elements of a head of queries and keys, and of values.
    queries : int
        Tokens of a sequence on this rank.
    keys : int
        Tokens of the whole sequence that keys and values are made of.
    causal : bool
        Whether a token attends to those before it alone.
    relative_bias : bool
        Whether a bias for each pair of tokens is added to the scores (T5).
    window : int, optional
        Tokens that a token attends to.
    """

    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    queries: int
    keys: int
    causal: bool
    relative_bias: bool = False
    window: int | None = None

    @classmethod
    def of(cls, s: Shapes, *, causal: bool | None = None) -> AttentionShape:
        """Sizes of self-attention on one rank.

        Parameters
        ----------
        s : Shapes
            Keys take its whole `length` in tokens, queries this rank's part of it (cp).
        causal : bool, optional
            If not as the model says: T5's decoder is causal.

        Returns
        -------
        AttentionShape
            With latent attention (MLA) every head of queries has keys and values of its own.
        """
        model = s.model
        kv_heads = s.heads if model.attention == "mla" else s.kv_heads
        return cls(
            s.heads,
            kv_heads,
            model.head,
            model.value_head,
            s.local_length,
            s.length,
            model.causal if causal is None else causal,
            model.position == "relative",
            s.window,
        )

    def is_packed(self, s: Shapes) -> bool:
        """Whether fused attention reads queries, keys and values in the tensor of their product.

        With ``framework.packed_attention``, and where no kernel between the two writes them to
        tensors of their own: rotary positions, norms of queries and keys, copies of keys and values
        for each head of queries, exchanges of a context that ranks share, latent attention.

        Parameters
        ----------
        s : Shapes
        """
        framework, model = s.plan.framework, s.model
        apart = (
            model.position == "rotary"
            or model.qk_norm
            or model.attention == "mla"
            or s.grid.cp > 1
            or (framework.repeats_heads and self.kv_heads < self.heads)
        )
        return framework.packed_attention and framework.kernels == "flash" and not apart

    def kernel(
        self, s: Shapes, queries: int, keys: int, causal: bool, *, backward: bool = False
    ) -> Attention:
        """Fused kernel over `queries` × `keys` tokens of each sequence.

        Parameters
        ----------
        s : Shapes
        queries, keys : int
            Tokens of a sequence; context parallelism computes a part of them at a time.
        causal : bool
            Whether these queries and keys are masked against each other.
        backward : bool
            cuDNN's kernel in fp8 has no window in the backward pass: of 4096 tokens it takes 1.5 to
            2.1 ms in fp8 with a window of 128 or without, 0.44 to 0.46 ms in bf16
            (github:NVIDIA/cudnn-frontend, benchmark/attention_training/results/gpt_oss).
        """
        example = s.model.example_length
        if example is not None and example < s.length and not self.relative_bias:
            examples = max(1, round(s.length / example))
        else:
            examples = 1
        ignores_window = (
            backward
            and s.attention_format == "fp8"
            and s.plan.framework.attention.startswith("cudnn")
        )
        return Attention(
            s.batch * examples,
            self.heads,
            self.kv_heads,
            max(1, queries // examples),
            max(1, keys // examples),
            self.head_size,
            self.value_size,
            causal,
            backward,
            s.attention_format,
            None if ignores_window else self.window,
            variant=ATTENTION_VARIANTS[s.plan.framework.attention],
        )

    @property
    def query_width(self) -> int:
        """Elements of a token's queries."""
        return self.heads * self.head_size

    @property
    def key_value_width(self) -> int:
        """Elements of a token's keys and values."""
        return self.kv_heads * (self.head_size + self.value_size)

    @property
    def output_width(self) -> int:
        """Elements of a token's output."""
        return self.heads * self.value_size
