"""Backward of a layer → all but the gradients of attention's weights, and these for later.

Of a forward and a backward that overlap (``plan.overlap.ep``), Megatron-LM sends what both made
before it computes the gradients of the attention's weights in the backward's last layer ("Delay the
last attn_dw in backward pass ... for overlapping with the p2p comm",
``megatron/core/models/common/model_chunk_schedule_plan.py``). Recipes set ``delay_wgrad_compute``
wherever they overlap passes. Those of the layers before come at once, as they would without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .blocks import BlockBuilder
from .operators import Operator

__all__ = ["attention_part", "write_all_but_delayed", "write_delayed"]


def attention_part(operators: Sequence[Operator]) -> int:
    """Operators of a layer → how many come before the router; 0 if it has none.

    Parameters
    ----------
    operators : sequence of Operator
        In the order of the forward.
    """
    return next((i for i, each in enumerate(operators) if each.name == "router"), 0)


def write_all_but_delayed(builder: BlockBuilder, operators: Sequence[Operator]) -> Iterator[None]:
    """Write the backward of a layer but for `write_delayed`; yield at exchanges of tokens.

    Parameters
    ----------
    builder : BlockBuilder
    operators : sequence of Operator
        Of a layer with experts, in the order of the forward.
    """
    own = attention_part(operators)
    yield from builder.write_operators(operators[own:][::-1], "all")
    yield from builder.write_operators(operators[:own][::-1], "input")


def write_delayed(builder: BlockBuilder, operators: Sequence[Operator]) -> None:
    """Write the gradients of the weights of a layer's attention.

    Parameters
    ----------
    builder : BlockBuilder
    operators : sequence of Operator
        As of `write_all_but_delayed`.
    """
    for _ in builder.write_operators(operators[: attention_part(operators)][::-1], "weight"):
        pass
