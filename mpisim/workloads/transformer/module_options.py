"""Options that act on single modules of a layer: recomputation and CUDA graphs.

Recomputation
    Megatron-LM's ``--recompute-modules`` with ``--recompute-granularity selective``: norms,
    activations of experts and the projections up to the heads of latent attention throw away their
    results (``megatron/core/tensor_parallel/random.py``, `CheckpointWithoutOutput`) and make them
    again when the backward pass comes to what has read them; dense feed-forward blocks and mixtures
    of experts keep their input only. Its "core_attn" is `plan.recompute` = "selective", and whole
    layers are for :mod:`..recomputation`.

CUDA graphs
    Transformer Engine's ``make_graphed_callables``, which Megatron-LM uses for parts of a layer
    (``--cuda-graph-impl transformer_engine``): replaying a graph is one launch, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...experiment.plan_options import RecomputedModule
from ..operators import Compute, Operator, Task
from .shapes import Shapes

__all__ = ["capture_module", "capture_steps", "recompute_module"]


def recompute_module(
    s: Shapes, module: RecomputedModule, *operators: Operator
) -> tuple[Operator, ...]:
    """Operators of a module → an operator that runs them again; none if the plan does not say so.

    It belongs behind what reads their results: its backward pass is their forward.

    Parameters
    ----------
    s : Shapes
    module : {"layernorm", "moe_act", "mla_up_proj", "mlp", "moe"}
        As in ``plan.recompute.modules``.
    *operators : Operator
        In the order of the forward pass.
    """
    if module not in s.plan.recompute.modules:
        return ()
    steps = tuple(step for each in operators for step in each.forward)
    return (Operator(f"{operators[0].name} again", (), steps),)


def capture_module(s: Shapes, module: str, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Operators of a module → the same launched as one CUDA graph a pass, if the plan says so.

    Parameters
    ----------
    s : Shapes
    module : str
        As in ``framework.cuda_graph_modules``.
    operators : tuple of Operator
        In the order of the forward pass.
    """
    if module not in s.plan.framework.cuda_graph_modules or not operators:
        return operators
    forward = [each.forward for each in operators]
    backward = [each.backward for each in reversed(operators)]
    passes = zip(_replayed(forward), reversed(_replayed(backward)), strict=True)
    return tuple(
        replace(each, forward=there, backward=back)
        for each, (there, back) in zip(operators, passes, strict=True)
    )


def capture_steps(s: Shapes, module: str, steps: Iterable[Task]) -> tuple[Task, ...]:
    """Steps of a module → the same launched as one CUDA graph, if the plan says so.

    Parameters
    ----------
    s : Shapes
    module : str
        As in ``framework.cuda_graph_modules``.
    steps : iterable of Task
        Of one pass.
    """
    steps = tuple(steps)
    return _replayed([steps])[0] if module in s.plan.framework.cuda_graph_modules else steps


def _replayed(parts: Iterable[tuple[Task, ...]]) -> list[tuple[Task, ...]]:
    """Steps of several operators → the same with all launches in the first kernel.

    Small kernels beside the first cost no call more, and the gap that they are in the graph: before
    its second kernel.
    """
    launches, waiting = 1, 0
    found = []
    for steps in parts:
        written: list[Task] = []
        for step in steps:
            if isinstance(step, Compute):
                calls, waiting = (0, step.calls) if launches else (waiting + step.calls, 0)
                step = replace(step, launches=launches, calls=calls)
                launches = 0
            written.append(step)
        found.append(tuple(written))
    return found
