"""The attention half of a block: norm, projections, positions, attention, output projection.

Multi-head and grouped-query attention make queries, keys and values from the hidden states by one
matrix, or by three (``framework.separate_projections``). Multi-head latent attention (DeepSeek-V2,
arXiv:2405.04434, section 2.1) makes them from short latent vectors: as in Megatron-LM
(``megatron/core/transformer/multi_latent_attention.py``) the matrices down to these are held whole
by every rank and work on its share of the sequence; those up are split by columns and gather the
short vectors. One head of keys with positions serves all heads and is gathered by itself.

What is between projections and output projection: :mod:`.core_attention`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...experiment import with_keys
from ...experiment.transformer import RELATIVE_BUCKETS
from ...kernels.operations import BYTES, Elementwise
from ...program import Operation
from ..operators import Compute, Operator, Parameter, Task
from .attention_shape import AttentionShape
from .core_attention import core_attention
from .module_options import recompute_module
from .pointwise import branch, broadcast, dropout_add, elementwise, norm, rotary_kernels
from .precision import accumulate_gradient
from .shapes import Shapes
from .tensor_parallel import column_linear, linear, row_linear, separate_linears, tp_collective

__all__ = ["cross_attention", "relative_bias", "self_attention"]

FP32 = BYTES["fp32"]


def self_attention(s: Shapes, *, causal: bool | None = None) -> tuple[Operator, ...]:
    """Hidden states → hidden states: norm, projections, core attention, output matrix, residual.

    Megatron-LM's `SelfAttention` (megatron/core/transformer/attention.py).

    Parameters
    ----------
    s : Shapes
    causal : bool, optional
        If not as the model says: T5's decoder is causal.
    """
    shape = AttentionShape.of(s, causal=causal)
    before = norm(s, "attention norm", s.sharded_tokens, s.model.hidden, residual=True)
    if s.model.attention == "mla":
        projections = _latent_projections(s, shape)
    else:
        projections = _qkv_projections(s, shape)
    ups = [each for each in projections if each.name in ("query up", "key-value up", "rotary")]
    return (
        before,
        *projections,
        *recompute_module(s, "layernorm", before),
        core_attention(s, "attention", shape),
        *_output_gate(s, shape),
        *(recompute_module(s, "mla_up_proj", *ups) if s.model.attention == "mla" else ()),
        *_output_projection(s, "attention", shape),
    )


def cross_attention(s: Shapes, encoder: Shapes) -> tuple[Operator, ...]:
    """Decoder's and encoder's hidden states → decoder's: it attends to the encoder's output.

    Megatron-LM's `CrossAttention` (megatron/core/transformer/attention.py).

    Parameters
    ----------
    s, encoder : Shapes
        Of the decoder and of the encoder.
    """
    model, e = s.model, s.element_size
    width = s.kv_heads * (model.head + model.value_head)
    shape = AttentionShape(
        s.heads,
        s.kv_heads,
        model.head,
        model.value_head,
        s.local_length,
        encoder.length,
        causal=False,
    )
    bias = model.has_qkv_bias
    return (
        norm(s, "cross attention norm", s.sharded_tokens, model.hidden, residual=True),
        column_linear(
            s,
            "cross query",
            model.hidden,
            shape.query_width,
            bias=bias,
            keep=e * s.tokens * shape.query_width,
        ),
        branch(encoder, "encoder output", encoder.sharded_tokens * model.hidden),
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
        *_query_key_norms(s, encoder, shape),
        core_attention(s, "cross attention", shape),
        *_output_projection(s, "cross attention", shape),
    )


def _output_projection(s: Shapes, name: str, shape: AttentionShape) -> tuple[Operator, ...]:
    """Heads' results → hidden states: the matrix behind core attention, and the residual.

    In fp8 Megatron-LM lets it cast what attention keeps once more for its gradient, but with
    delayed scaling (``set_save_original_input`` of megatron/core/transformer/attention.py).
    """
    model, plan = s.model, s.plan
    casts_again = (
        plan.precision.products == "fp8"
        and plan.precision.fp8_scaling != "delayed"
        and plan.recompute.granularity == "none"
        and s.is_megatron
        and plan.framework.kernels == "flash"
    )
    return (
        row_linear(
            s, f"{name} output", shape.output_width, model.hidden, keeps_input=not casts_again
        ),
        dropout_add(s, f"{name} dropout add", bias=model.bias),
    )


# --- projections --------------------------------------------------------------------------------


def _qkv_projections(s: Shapes, shape: AttentionShape) -> tuple[Operator, ...]:
    """Hidden states → queries, keys and values, their norms and positions included."""
    model = s.model
    gates = shape.output_width if model.attention_gate else 0
    width = shape.query_width + gates + shape.key_value_width
    # Queries, keys and values are kept also where attention is computed again.
    if s.separate_projections and not s.fused_qkv:
        widths = {
            "query": shape.query_width + gates,
            "key": shape.kv_heads * shape.head_size,
            "value": shape.kv_heads * shape.value_size,
        }
        operators = list(separate_linears(s, "qkv", widths, bias=model.has_qkv_bias, kept=True))
    else:
        matrix = column_linear(
            s,
            "qkv",
            model.hidden,
            width,
            bias=model.has_qkv_bias,
            keep=s.element_size * s.tokens * width,
            keeps_input="layernorm" not in s.plan.recompute.modules,
        )
        operators = [matrix, *_split_qkv(s, shape)]
    operators += _query_key_norms(s, s, shape)
    if model.position == "rotary":
        operators.append(_rotary(s, shape))
    return tuple(operators)


def _output_gate(s: Shapes, shape: AttentionShape) -> tuple[Operator, ...]:
    """Heads' results, gates made with the queries → their product with the gates' sigmoid."""
    if not s.model.attention_gate:
        return ()
    name, size = "attention gate", s.element_size * s.tokens * shape.output_width
    backward = (elementwise(f"{name} backward", 5 * size),)
    return (Operator(name, (elementwise(name, 3 * size),), backward, saved=size),)


def _split_qkv(s: Shapes, shape: AttentionShape) -> tuple[Operator, ...]:
    """One tensor of queries, keys and values → three tensors.

    As Megatron-LM with fused attention: queries of several heads to a key are copied, since no view
    puts heads of all groups behind one another (``query.reshape``,
    megatron/core/transformer/attention.py), by PyTorch's kernel of tensors that are not dense;
    gradients of the three are put together again
    (``SplitAlongDim`` of Transformer Engine, whose ``noop_cat`` is of no use: rotary positions and
    attention make three tensors). torchtitan (``FusedQKVLinear``) copies each of the three and puts
    gradients together; compiled, kernels of positions do so for queries and keys. Packed attention
    reads and writes the one tensor (`AttentionShape.is_packed`).
    """
    if shape.is_packed(s):
        return ()
    moved = 2 * s.element_size * s.tokens
    values = shape.kv_heads * shape.value_size
    width = shape.query_width + shape.key_value_width
    if s.fused_qkv:
        widths = {"value": values}
        if s.plan.framework.fused:
            width = values
        else:
            widths |= {"query": shape.query_width, "key": shape.kv_heads * shape.head_size}
        copies = [broadcast(f"{k} copy", moved * n, s.tokens * n) for k, n in widths.items()]
        backward = (elementwise("qkv gradient concatenation", moved * width),)
        return (Operator("qkv split", tuple(copies), backward),)
    if not (s.is_megatron and s.plan.framework.fused and s.plan.framework.kernels == "flash"):
        return ()
    grouped = shape.kv_heads < shape.heads
    elements = s.tokens * shape.query_width
    forward = (broadcast("query copy", 2 * s.element_size * elements, elements),) if grouped else ()
    backward = (elementwise("qkv gradient concatenation", moved * width),)
    return (Operator("qkv split", forward, backward),)


def _query_key_norms(s: Shapes, key_shapes: Shapes, shape: AttentionShape) -> tuple[Operator, ...]:
    """Queries and keys → normalised heads of them (``model.qk_norm``).

    Keys may be made from other tokens than queries: `key_shapes`.
    """
    if not s.model.qk_norm:
        return ()
    return (
        norm(s, "query norm", s.tokens * shape.heads, shape.head_size, per_head=True),
        norm(s, "key norm", key_shapes.tokens * shape.kv_heads, shape.head_size, per_head=True),
    )


def _latent_projections(s: Shapes, shape: AttentionShape) -> tuple[Operator, ...]:
    """Hidden states → latent vectors → queries, keys and values (latent attention)."""
    m = s.model
    e = s.element_size
    up = shape.heads * (m.qk_nope_head_size + m.v_head_size)
    kept = e * s.tokens * shape.query_width
    keys = e * s.tokens * shape.key_value_width
    if "mla_up_proj" in s.plan.recompute.modules:
        kept = keys = 0
    keeps_input = "layernorm" not in s.plan.recompute.modules
    operators = [branch(s, "latent", s.sharded_tokens * m.hidden)]
    if m.q_lora_rank:
        operators += [
            linear(
                s,
                "query down",
                m.hidden,
                m.q_lora_rank,
                tokens=s.sharded_tokens,
                keeps_input=keeps_input,
            ),
            norm(s, "query latent norm", s.sharded_tokens, m.q_lora_rank),
            column_linear(s, "query up", m.q_lora_rank, shape.query_width, keep=kept),
        ]
    else:
        operators.append(
            column_linear(
                s, "query", m.hidden, shape.query_width, keep=kept, keeps_input=keeps_input
            )
        )
    operators += [
        linear(
            s,
            "key-value down",
            m.hidden,
            m.kv_lora_rank + m.qk_rope_head_size,
            tokens=s.sharded_tokens,
            keeps_input=False,
        ),
        _gather_key_position(s),
        norm(s, "key-value latent norm", s.sharded_tokens, m.kv_lora_rank),
        column_linear(s, "key-value up", m.kv_lora_rank, up, keep=keys),
        _latent_rotary(s, shape),
    ]
    return tuple(operators)


def _gather_key_position(s: Shapes) -> Operator:
    """The keys' part with positions: a share of the sequence → all of it."""
    name, size = "key position", s.element_size * s.tokens * s.model.qk_rope_head_size
    forward: tuple[Task, ...] = ()
    backward: tuple[Task, ...] = ()
    if s.sequence_parallel:
        forward = (tp_collective(s, name, Operation.ALL_GATHER, size),)
        backward = (tp_collective(s, f"{name} gradient", Operation.REDUCE_SCATTER, size),)
    return Operator(name, forward, backward)


# --- positions ----------------------------------------------------------------------------------


def _rotary(s: Shapes, shape: AttentionShape) -> Operator:
    """Queries and keys → the same with rotary positions.

    Transformer Engine's kernel scales nothing: for YaRN's positions Megatron-LM runs elementary
    operations (``megatron/core/models/common/embeddings/rope_utils.py``,
    `_apply_rotary_pos_emb_bshd` with ``mscale``). What they turn is joined with what they do not,
    where that is nothing, too: a copy, and backward a gradient of zeros that is added.
    """
    parts = {
        "query rotary": s.tokens * shape.query_width,
        "key rotary": s.tokens * shape.kv_heads * shape.head_size,
    }
    elementary = s.model.yarn and s.is_megatron
    if elementary:
        s = replace(s, plan=with_keys(s.plan, {"framework.fused": False}))
    forward = list(rotary_kernels(s, parts.items()))
    back = {f"{name} backward": size for name, size in parts.items()}
    backward = list(rotary_kernels(s, back.items()))
    if elementary:
        e = s.element_size
        forward += [elementwise(f"{name} copy", 2 * e * size) for name, size in parts.items()]
        for name, size in back.items():
            backward.append(elementwise(f"{name} zeros", e * size))
            backward.append(elementwise(f"{name} zeros sum", 3 * e * size))
    return Operator("rotary", tuple(forward), tuple(backward))


def _latent_rotary(s: Shapes, shape: AttentionShape) -> Operator:
    """Both parts of queries and keys → heads with rotary positions (latent attention).

    With ``framework.rotary = "operations"`` as Megatron-Core before 0.13, whose Triton kernels
    (``megatron/core/fusions/fused_mla_yarn_rope_apply.py``) came then, does it in
    ``rope_utils.py``, `_apply_rotary_pos_emb_bshd` with ``multi_latent_attention``: sines and
    cosines are made of angles by each call, even and odd features put together first.
    """
    m, e = s.model, s.element_size
    rope = m.qk_rope_head_size
    rotated = {
        "query rotary": s.tokens * shape.heads * rope,
        "key rotary": s.tokens * rope,
    }
    pairs = s.tokens * shape.key_value_width
    up = s.tokens * (shape.heads * (m.qk_nope_head_size + m.v_head_size) + rope)

    def steps(suffix: str) -> tuple[Task, ...]:
        if s.plan.framework.fused and s.plan.framework.rotary != "operations":
            return (
                *rotary_kernels(s, [(f"query rotary{suffix}", rotated["query rotary"])]),
                elementwise(f"key-value rotary{suffix}", e * (up + pairs)),
            )
        queries = s.tokens * shape.query_width
        return (
            *(
                step
                for name, size in rotated.items()
                for step in _latent_rotary_kernels(s, name, suffix, size)
            ),
            elementwise(f"query concatenation{suffix}", 2 * e * queries),
            elementwise(
                f"key concatenation{suffix}", 2 * e * s.tokens * shape.kv_heads * shape.head_size
            ),
            elementwise(
                f"value copy{suffix}", 2 * e * s.tokens * shape.kv_heads * shape.value_size
            ),
        )

    return Operator("rotary", steps(""), steps(" backward"))


def _latent_rotary_kernels(s: Shapes, name: str, suffix: str, size: int) -> Iterator[Task]:
    """The kernels of rotary positions of one tensor of `size` elements."""
    e, operations = s.element_size, s.plan.framework.rotary == "operations"
    if operations and not suffix:
        # Cosine, product with YaRN's scale, cast; the same of the sine.
        angles = 2 * s.length * s.model.qk_rope_head_size * (5 * FP32 + e)
        yield Compute(f"{name} sines", Elementwise(angles), launches=6)
        yield elementwise(f"{name} order", 2 * e * size)
    yield from rotary_kernels(s, [(f"{name}{suffix}", size)])
    if operations and suffix:
        # Of every second feature, twice, and of the part that is turned, which is all of it.
        yield Compute(f"{name} zeros", Elementwise(3 * e * size), launches=3)
        yield Compute(f"{name} order backward", Elementwise(2 * e * size), launches=2)
        yield Compute(f"{name} gradient sum", Elementwise(2 * 3 * e * size), launches=2)
    elif operations:
        yield elementwise(f"{name} copy", 2 * e * size)


def relative_bias(s: Shapes, name: str) -> Operator:
    """Table of distances → T5's bias of each pair of tokens (arXiv:1910.10683, section 2.1).

    The first layer of a stack looks it up; the scores of all its layers have it added.

    Parameters
    ----------
    s : Shapes
    name : str
    """
    pairs = s.local_length * s.length
    traffic = s.element_size * pairs * s.heads
    forward: list[Task] = [
        elementwise(name, traffic),
        elementwise(f"{name} transposition", 2 * traffic),
    ]
    backward: list[Task] = [elementwise(f"{name} backward", traffic)]
    size = RELATIVE_BUCKETS * s.heads
    backward += accumulate_gradient(s, name, size)
    return Operator(
        name,
        tuple(forward),
        tuple(backward),
        (Parameter(f"{name} weight", size, rows=RELATIVE_BUCKETS),),
    )
