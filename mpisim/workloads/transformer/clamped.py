"""Gates and values that are clamped before a gated activation, as gpt-oss has them.

Megatron-LM does so outside of the fused activation (``megatron/core/fusions/fused_bias_geglu.py``,
`weighted_bias_quick_geglu_impl`): both halves are clamped and joined again, and the offset of the
values, a number, is made a tensor on the GPU. That copy from the host's memory makes the CPU wait
for all that it has launched.
"""

from __future__ import annotations

from dataclasses import replace

from mpisim.kernels.operations import Copy

from ..operators import Await, Compute, Operator
from .pointwise import stream
from .shapes import Shapes

__all__ = ["clamped"]

OFFSET = "copy offset"


def clamped(s: Shapes, activation: Operator, size: int) -> Operator:
    """Return a gated activation of `size` results with its inputs clamped before.

    What it keeps is kept twice: as it came, and clamped.
    """
    name, e = activation.name, s.element
    return replace(
        activation,
        forward=(
            stream(f"{name} clamp gate", 2 * e * size),
            stream(f"{name} clamp values", 2 * e * size),
            stream(f"{name} concatenation", 4 * e * size),
            Compute(OFFSET, Copy(e, "host")),
            Await("wait for offset", OFFSET),
            *activation.forward,
        ),
        backward=(
            *activation.backward,
            stream(f"{name} clamp values backward", 3 * e * size),
            stream(f"{name} clamp gate backward", 3 * e * size),
            stream(f"{name} concatenation backward", 4 * e * size),
        ),
        saved=2 * activation.saved,
    )
