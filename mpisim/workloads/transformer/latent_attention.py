"""Projections of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).

Queries, keys and values are made from short latent vectors. As in Megatron-LM
(``megatron/core/transformer/multi_latent_attention.py``) the matrices down to them are held whole
by every rank and work on its share of the sequence; those up are split by columns and gather the
short vectors. One head of keys with positions serves all heads and is gathered by itself.
"""

from __future__ import annotations

from ...program import Operation
from ..operators import Operator, Task
from .heads import Heads
from .pointwise import branch, norm, rotate, stream
from .shapes import Shapes
from .tensor_parallel import column_linear, exchange, linear

__all__ = ["latent_projections"]


def latent_projections(s: Shapes, heads: Heads) -> tuple[Operator, ...]:
    """Return the operators that make queries, keys and values from the hidden states."""
    m = s.model
    e = s.element
    up = heads.heads * (m.qk_nope_head_size + m.v_head_size)
    kept = e * s.tokens * heads.query_width
    keys = e * s.tokens * heads.key_value_width
    if "mla_up_proj" in s.plan.recompute_modules:
        kept = keys = 0
    keeps_input = "layernorm" not in s.plan.recompute_modules
    operators = [branch(s, "latent", s.shared * m.hidden)]
    if m.q_lora_rank:
        operators += [
            linear(
                s, "query down", m.hidden, m.q_lora_rank, tokens=s.shared, keeps_input=keeps_input
            ),
            norm(s, "query latent norm", s.shared, m.q_lora_rank),
            column_linear(s, "query up", m.q_lora_rank, heads.query_width, keep=kept),
        ]
    else:
        operators.append(
            column_linear(
                s, "query", m.hidden, heads.query_width, keep=kept, keeps_input=keeps_input
            )
        )
    operators += [
        linear(
            s,
            "key-value down",
            m.hidden,
            m.kv_lora_rank + m.qk_rope_head_size,
            tokens=s.shared,
            keeps_input=False,
        ),
        _position(s),
        norm(s, "key-value latent norm", s.shared, m.kv_lora_rank),
        column_linear(s, "key-value up", m.kv_lora_rank, up, keep=keys),
        _rotary(s, heads),
    ]
    return tuple(operators)


def _position(s: Shapes) -> Operator:
    """The gather of the keys' part with positions."""
    name, size = "key position", s.element * s.tokens * s.model.qk_rope_head_size
    forward: tuple[Task, ...] = ()
    backward: tuple[Task, ...] = ()
    if s.sequence_parallel:
        forward = (exchange(s, name, Operation.ALL_GATHER, size),)
        backward = (exchange(s, f"{name} gradient", Operation.REDUCE_SCATTER, size),)
    return Operator(name, forward, backward)


def _rotary(s: Shapes, heads: Heads) -> Operator:
    """Positions, and the assembly of the heads from both of their parts."""
    m, e = s.model, s.element
    rope = m.qk_rope_head_size
    rotated = {
        "query rotary": s.tokens * heads.heads * rope,
        "key rotary": s.tokens * rope,
    }
    pairs = s.tokens * heads.key_value_width
    up = s.tokens * (heads.heads * (m.qk_nope_head_size + m.v_head_size) + rope)

    def steps(suffix: str) -> tuple[Task, ...]:
        if s.plan.fused:
            return (
                *rotate(s, [(f"query rotary{suffix}", rotated["query rotary"])]),
                stream(f"key-value rotary{suffix}", e * (up + pairs)),
            )
        queries = s.tokens * heads.query_width
        return (
            *rotate(s, [(f"{name}{suffix}", size) for name, size in rotated.items()]),
            stream(f"query concatenation{suffix}", 2 * e * queries),
            stream(f"key concatenation{suffix}", 2 * e * s.tokens * heads.kv_heads * heads.head),
            stream(f"value copy{suffix}", 2 * e * s.tokens * heads.kv_heads * heads.value),
        )

    return Operator("rotary", steps(""), steps(" backward"))
