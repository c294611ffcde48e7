"""Data parallelism: how ranks share gradients, optimizer states and parameters.

``make_strategy(plan, chunks, groups)``
    The `Strategy` of a plan for one stage of its pipeline.
``Strategy``
    Hooks that a stage calls while it writes its passes; this one does nothing.

Read in this order:

`strategy`
    The hooks, and sizes that all frameworks share.
`buckets`
    Parameters of a model chunk; the rules by which they are cut into buckets.
`frameworks`
    Default sizes of the frameworks, from ``data/frameworks.toml``.
`ddp`
    PyTorch's DistributedDataParallel and ZeroRedundancyOptimizer: the simplest strategy.
`megatron`
    Megatron-LM's DistributedDataParallel and distributed optimizer.
`deepspeed`, `zero3`
    DeepSpeed without ZeRO and with its stages 1 and 2; stage 3.
`fsdp`
    PyTorch's FSDP2, alone and inside a pipeline.

A further strategy is a module with a subclass of `Strategy`, a line in `STRATEGIES` below, and its
name in `mpisim.experiment.plan.Style`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...experiment.plan import Plan, Style
from ..grid import Groups
from ..operators import Layer
from .ddp import Ddp
from .deepspeed import DeepSpeed
from .fsdp import Fsdp, FsdpPipeline, PyTorchPipeline
from .megatron import Megatron
from .strategy import Strategy
from .zero3 import Zero3

__all__ = ["STRATEGIES", "Strategy", "make_strategy"]

STRATEGIES: Mapping[Style, type[Strategy]] = {
    "ddp": Ddp,
    "megatron": Megatron,
    "deepspeed": DeepSpeed,
    "fsdp": Fsdp,
}
"""By `Plan.dp_style`; `make_strategy` takes variants for ZeRO 3 and for pipelines."""


def make_strategy(
    plan: Plan,
    chunks: Sequence[Sequence[Layer]],
    groups: Groups,
    *,
    stage: int = 0,
    transformer: bool = True,
    order: Sequence[int] | None = None,
) -> Strategy:
    """Plan and model chunks → the strategy of one stage of the pipeline.

    Parameters
    ----------
    plan : Plan
    chunks : sequence of sequence of Layer
        The model chunks the stage holds.
    groups : Groups
    stage : int
    transformer : bool
        Whether the model is a transformer, see `Plan.resolved`.
    order : sequence of int, optional
        Chunks as they first come forward; as they are numbered if not given.

    Raises
    ------
    InputError
        If the framework knows no such sharding.
    """
    plan = plan.resolved(transformer=transformer)
    assert plan.dp_style is not None
    kind = STRATEGIES[plan.dp_style]
    if plan.dp_style == "deepspeed" and plan.zero == 3:
        kind = Zero3
    if plan.dp_style == "fsdp" and plan.pp > 1:
        kind = PyTorchPipeline if plan.fsdp_pipeline == "pytorch" else FsdpPipeline
    return kind(plan, chunks, groups, stage=stage, order=order)
