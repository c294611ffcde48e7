"""From a plan to its strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...experiment.plan import Plan, Style
from ..grid import Groups
from ..operators import Layer
from .ddp import Ddp
from .deepspeed import DeepSpeed
from .fsdp import Fsdp
from .fsdp_pipeline import FsdpPipeline, PyTorchPipeline
from .megatron import Megatron
from .strategy import Strategy
from .zero3 import Zero3

__all__ = ["strategy"]

STRATEGIES: Mapping[Style, type[Strategy]] = {
    "ddp": Ddp,
    "megatron": Megatron,
    "deepspeed": DeepSpeed,
    "fsdp": Fsdp,
}


def strategy(
    plan: Plan,
    chunks: Sequence[Sequence[Layer]],
    groups: Groups,
    *,
    stage: int = 0,
    transformer: bool = True,
    order: Sequence[int] | None = None,
) -> Strategy:
    """Return the strategy of a plan for one stage of its pipeline.

    Parameters
    ----------
    plan : Plan
    chunks : sequence of sequence of Layer
        The model chunks the stage holds.
    groups : Groups
    stage : int
    transformer : bool
        Of what kind the model is, see `Plan.settled`.
    order : sequence of int, optional
        Chunks as they first come forward; as they are numbered if not given.

    Raises
    ------
    InputError
        If the framework knows no such sharding.
    """
    plan = plan.settled(transformer=transformer)
    assert plan.dp_style is not None
    kind = STRATEGIES[plan.dp_style]
    if plan.dp_style == "deepspeed" and plan.zero == 3:
        kind = Zero3
    if plan.dp_style == "fsdp" and plan.pp > 1:
        kind = PyTorchPipeline if plan.fsdp_pipeline == "pytorch" else FsdpPipeline
    return kind(plan, chunks, groups, stage=stage, order=order)
