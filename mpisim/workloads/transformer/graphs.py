"""Parts of a layer whose launches are captured in CUDA graphs of their own.

As Transformer Engine's ``make_graphed_callables``, which Megatron-LM uses for parts of a layer
(``--cuda-graph-impl transformer_engine``): replaying a graph is one launch, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..operators import Compute, Operator, Task
from .shapes import Shapes

__all__ = ["captured", "captured_steps"]


def captured(s: Shapes, module: str, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Return operators with their launches captured, if the plan says so of a module."""
    if module not in s.plan.cuda_graph_modules or not operators:
        return operators
    forward = [each.forward for each in operators]
    backward = [each.backward for each in reversed(operators)]
    passes = zip(_replayed(forward), reversed(_replayed(backward)), strict=True)
    return tuple(
        replace(each, forward=there, backward=back)
        for each, (there, back) in zip(operators, passes, strict=True)
    )


def captured_steps(s: Shapes, module: str, steps: Iterable[Task]) -> tuple[Task, ...]:
    """Return steps with their launches captured, if the plan says so of a module."""
    steps = tuple(steps)
    return _replayed([steps])[0] if module in s.plan.cuda_graph_modules else steps


def _replayed(parts: Iterable[tuple[Task, ...]]) -> list[tuple[Task, ...]]:
    """Let the first kernel of a pass launch all of them."""
    launches = 1
    found = []
    for steps in parts:
        written: list[Task] = []
        for step in steps:
            if isinstance(step, Compute):
                step = replace(step, launches=launches)
                launches = 0
            written.append(step)
        found.append(tuple(written))
    return found
