"""Shared experts beside the all-to-alls of the routed ones.

As Megatron-LM's ``--moe-shared-expert-overlap``
(``megatron/core/transformer/moe/shared_experts.py``): the first matrix and the non-linearity
beside the dispatch, the second matrix beside the combination; backward in the other order. All of
it becomes one operator, inside which steps can run beside each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...program import Operation
from ..operators import Communicate, Compute, Operator, Task

__all__ = ["overlapped"]


def overlapped(routed: Sequence[Operator], shared: tuple[Operator, ...]) -> Operator:
    """Return one operator of routed and shared experts.

    Parameters
    ----------
    routed : sequence of Operator
        In order, with all-to-alls on the way to the experts and on the way back.
    shared : tuple of Operator
        What is before the matrix down, and that.
    """
    *up, down = shared
    forward = [step for operator in routed for step in operator.forward]
    backward = [step for operator in reversed(routed) for step in operator.backward]
    together = (*shared, *routed)
    return Operator(
        "mixture of experts",
        _beside(forward, [step for each in up for step in each.forward], down.forward),
        _beside(backward, down.backward, [step for each in reversed(up) for step in each.backward]),
        tuple(parameter for operator in together for parameter in operator.parameters),
        sum(operator.saved for operator in together),
    )


def _beside(steps: Iterable[Task], *others: Sequence[Task]) -> tuple[Task, ...]:
    """Let the i-th run of all-to-alls go beside the i-th of the others."""
    found: list[Task] = []
    waiting: tuple[str, ...] = ()
    remaining = list(others)
    exchanging = False
    for step in steps:
        if isinstance(step, Communicate) and step.operation is Operation.ALL_TO_ALL:
            waiting = (*waiting, f"exchange {len(found)}")
            found.append(replace(step, token=waiting[-1]))
            exchanging = True
            continue
        if exchanging:
            found += remaining.pop(0)
            exchanging = False
        if waiting and isinstance(step, Communicate):
            step = replace(step, after=(*(step.after or ()), *waiting))
        elif waiting and isinstance(step, Compute):
            step = replace(step, after=(*step.after, *waiting))
            waiting = ()
        found.append(step)
    return tuple(found)
