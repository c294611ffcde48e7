"""The middle of attention: scores, softmax and their product with the values.

One operator, the one that selective recomputation drops (arXiv:2205.05198): fused, in memory
(:mod:`.eager`), or spread over the ranks of a context (:mod:`.context_parallel`).
"""

from __future__ import annotations

from dataclasses import replace

from mpisim.kernels.operations import BYTES, Attention

from ..operators import Compute, Operator, Task
from .context_parallel import gathered_attention, ring_attention, rotated_attention
from .eager import eager_attention
from .heads import Heads
from .pointwise import stream
from .shapes import Shapes

__all__ = ["core_attention"]

AROUND = {
    "ring": ring_attention,
    "all-gather": gathered_attention,
    "pytorch": rotated_attention,
}
"""Attention over a context, by `Plan.cp_style`."""


def core_attention(s: Shapes, name: str, heads: Heads) -> Operator:
    """Attention between queries, keys and values that are all there.

    Parameters
    ----------
    s : Shapes
    name : str
    heads : Heads

    Returns
    -------
    Operator
    """
    if s.plan.kernels == "eager":
        return eager_attention(s, name, heads)
    # Of fused attention the logarithm of each row's sum is kept; its output is the next input, but
    # for products that take it in another format.
    saved = BYTES["fp32"] * s.batch * heads.heads * heads.queries
    if s.quantised:
        result = BYTES["fp8"] if s.attended == "fp8" else s.element
        saved += result * s.batch * heads.queries * heads.output_width
    repeated: list[Task] = []
    summed: list[Task] = []
    if s.plan.repeats_heads and heads.kv_heads < heads.heads:
        whole = replace(heads, kv_heads=heads.heads)
        width = heads.key_value_width + whole.key_value_width
        traffic = s.element * s.batch * (heads.length // s.grid.cp) * width
        repeated = [stream(f"{name} repeated heads", traffic)]
        summed = [stream(f"{name} repeated heads backward", traffic)]
        heads = whole
    if s.grid.cp > 1:
        forward, backward = AROUND[s.plan.cp_style](s, name, heads)
        return Operator(
            name, (*repeated, *forward), (*backward, *summed), saved=saved, selective=True
        )

    def kernel(*, backward: bool = False) -> Attention:
        return heads.kernel(s, heads.queries, heads.keys, heads.causal, backward=backward)

    before: list[Task] = [Compute(name, kernel())]
    behind: list[Task] = [Compute(f"{name} backward", kernel(backward=True))]
    if s.attended == "fp8":
        width = heads.queries * heads.query_width + heads.length * heads.key_value_width
        before.insert(0, stream(f"{name} cast", _cast(s) * width))
        result = heads.queries * heads.output_width
        behind.insert(0, stream(f"{name} gradient cast", _cast(s) * result))
    if not s.plan.fused and not s.plan.separate_projections:
        # Queries, keys and values were cut out of one tensor: so is their gradient put together.
        width = s.batch * (heads.queries * heads.query_width + heads.length * heads.key_value_width)
        behind.append(stream(f"{name} concatenated gradients", 2 * s.element * width))
    return Operator(name, (*repeated, *before), (*behind, *summed), saved=saved, selective=True)


def _cast(s: Shapes) -> int:
    """Bytes read and written to cast a number of each sequence to fp8."""
    return s.batch * (s.element + BYTES["fp8"])
