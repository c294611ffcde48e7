"""The attention half of a block: projections, positions, attention and the way back."""

from __future__ import annotations

from dataclasses import replace

from ..operators import Operator, Parameter, Task
from .again import again
from .attention import core_attention
from .gradients import accumulate
from .heads import Heads
from .latent_attention import latent_projections
from .pointwise import branch, dropout_add, norm, rotate, stream
from .separate import separate_linears
from .shapes import Shapes
from .tensor_parallel import column_linear, row_linear

__all__ = ["cross_attention", "relative_bias", "self_attention"]

RELATIVE_BUCKETS = 32
"""Distances that T5 tells apart (arXiv:1910.10683, section 2.1)."""


def self_attention(s: Shapes, *, causal: bool | None = None) -> tuple[Operator, ...]:
    """Norm, projections, attention, and the sum with what came in.

    Parameters
    ----------
    s : Shapes
    causal : bool, optional
        If not as the model says: T5's decoder.
    """
    heads = Heads.of(s, causal=causal)
    before = norm(s, "attention norm", s.shared, s.model.hidden, residual=True)
    if s.model.attention == "mla":
        projections = latent_projections(s, heads)
    else:
        projections = _projections(s, heads)
    ups = [each for each in projections if each.name in ("query up", "key-value up", "rotary")]
    return (
        before,
        *projections,
        *again(s, "layernorm", before),
        core_attention(s, "attention", heads),
        *(again(s, "mla_up_proj", *ups) if s.model.attention == "mla" else ()),
        *_way_back(s, "attention", heads),
    )


def cross_attention(s: Shapes, encoder: Shapes) -> tuple[Operator, ...]:
    """Attention of the decoder's tokens to the encoder's output.

    Parameters
    ----------
    s, encoder : Shapes
        Of the decoder and of the encoder.
    """
    model, e = s.model, s.element
    width = s.kv_heads * (model.head + model.value_head)
    heads = Heads(
        s.heads,
        s.kv_heads,
        model.head,
        model.value_head,
        s.local_length,
        encoder.length,
        encoder.length,
        causal=False,
    )
    bias = model.has_qkv_bias
    return (
        norm(s, "cross attention norm", s.shared, model.hidden, residual=True),
        column_linear(
            s,
            "cross query",
            model.hidden,
            heads.query_width,
            bias=bias,
            keep=e * s.tokens * heads.query_width,
        ),
        branch(encoder, "encoder output", encoder.shared * model.hidden),
        # All layers keep the same output of the encoder; it is counted where it is made.
        column_linear(
            encoder,
            "cross key-value",
            model.hidden,
            width,
            bias=bias,
            keeps_input=False,
            keep=e * encoder.tokens * width,
        ),
        *_head_norms(s, encoder, heads),
        core_attention(s, "cross attention", heads),
        *_way_back(s, "cross attention", heads),
    )


def _projections(s: Shapes, heads: Heads) -> tuple[Operator, ...]:
    model = s.model
    width = heads.query_width + heads.key_value_width
    # Queries, keys and values are kept also where attention is computed again.
    if s.separate_projections:
        widths = {
            "query": heads.query_width,
            "key": heads.kv_heads * heads.head,
            "value": heads.kv_heads * heads.value,
        }
        operators = list(separate_linears(s, "qkv", widths, bias=model.has_qkv_bias, kept=True))
    else:
        matrix = column_linear(
            s,
            "qkv",
            model.hidden,
            width,
            bias=model.has_qkv_bias,
            keep=s.element * s.tokens * width,
            keeps_input="layernorm" not in s.plan.recompute_modules,
        )
        operators = [matrix, *_divided(s, heads)]
    operators += _head_norms(s, s, heads)
    if model.position == "rotary":
        operators.append(rotary(s, heads))
    return tuple(operators)


def _divided(s: Shapes, heads: Heads) -> tuple[Operator, ...]:
    """Queries, keys and values cut out of one tensor, as Megatron-LM with fused attention does.

    Queries of several heads to a key are copied, since no view puts heads of all groups behind one
    another (``query.reshape``, megatron/core/transformer/attention.py); gradients of the three are
    put together again (``SplitAlongDim`` of Transformer Engine, whose ``noop_cat`` is of no use:
    rotary positions and attention make three tensors).
    """
    if not (s.megatron and s.plan.fused and s.plan.kernels == "flash"):
        return ()
    moved = 2 * s.element * s.tokens
    grouped = heads.kv_heads < heads.heads
    forward = (stream("query copy", moved * heads.query_width),) if grouped else ()
    width = heads.query_width + heads.key_value_width
    backward = (stream("qkv gradient concatenation", moved * width),)
    return (Operator("qkv split", forward, backward),)


def _head_norms(s: Shapes, of_keys: Shapes, heads: Heads) -> tuple[Operator, ...]:
    """Norms of each head of queries and of keys, which may be made from other tokens."""
    if not s.model.qk_norm:
        return ()
    return (
        norm(s, "query norm", s.tokens * heads.heads, heads.head, of_heads=True),
        norm(s, "key norm", of_keys.tokens * heads.kv_heads, heads.head, of_heads=True),
    )


def rotary(s: Shapes, heads: Heads) -> Operator:
    """Rotary positions of queries and keys.

    Transformer Engine's kernel scales nothing: for YaRN's positions Megatron-LM takes an operation
    after the other (``megatron/core/models/common/embeddings/rope_utils.py``,
    `apply_rotary_pos_emb` with ``mscale``).
    """
    if s.model.yarn and s.megatron:
        s = replace(s, plan=replace(s.plan, fused=False))
    parts = {
        "query rotary": s.tokens * heads.query_width,
        "key rotary": s.tokens * heads.kv_heads * heads.head,
    }
    return Operator(
        "rotary",
        tuple(rotate(s, parts.items())),
        tuple(rotate(s, [(f"{name} backward", size) for name, size in parts.items()])),
    )


def relative_bias(s: Shapes, name: str) -> Operator:
    """T5's bias for each pair of tokens: looked up once, added to the scores of every layer."""
    pairs = s.local_length * s.length
    traffic = s.element * pairs * s.heads
    forward: list[Task] = [stream(name, traffic), stream(f"{name} transposition", 2 * traffic)]
    backward: list[Task] = [stream(f"{name} backward", traffic)]
    size = RELATIVE_BUCKETS * s.heads
    backward += accumulate(s, name, size)
    return Operator(name, tuple(forward), tuple(backward), (Parameter(f"{name} weight", size),))


def _way_back(s: Shapes, name: str, heads: Heads) -> tuple[Operator, ...]:
    """The product behind attention, and the sum with what came in.

    In fp8 Megatron-LM lets it cast what attention keeps once more for its gradient, but with
    delayed scaling (``set_save_original_input`` of megatron/core/transformer/attention.py).
    """
    model, plan = s.model, s.plan
    casts_again = (
        plan.precision == "fp8"
        and plan.fp8_scaling != "delayed"
        and plan.recompute == "none"
        and s.megatron
        and plan.kernels == "flash"
    )
    return (
        row_linear(
            s, f"{name} output", heads.output_width, model.hidden, keeps_input=not casts_again
        ),
        dropout_add(s, f"{name} dropout add", bias=model.bias),
    )
