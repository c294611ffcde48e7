"""Parts of a layer that are computed again before the backward pass of what follows them.

Megatron-LM's ``--recompute-modules`` with ``--recompute-granularity selective``: norms,
activations of experts and the projections up to the heads of latent attention throw away their
results (``megatron/core/tensor_parallel/random.py``, `CheckpointWithoutOutput`) and make them again
when the backward pass comes to what has read them; dense feed-forward blocks keep their input only.
Its "core_attn" is `plan.recompute` = "selective".
"""

from __future__ import annotations

from ...experiment.plan import RecomputedModule
from ..operators import Operator
from .shapes import Shapes

__all__ = ["again"]


def again(s: Shapes, module: RecomputedModule, *operators: Operator) -> tuple[Operator, ...]:
    """Return what runs operators again, if the plan says so of their module.

    It belongs behind what reads their results: its backward pass is their forward.
    """
    if module not in s.plan.recompute_modules:
        return ()
    steps = tuple(step for each in operators for step in each.forward)
    return (Operator(f"{operators[0].name} again", (), steps),)
