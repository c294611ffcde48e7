"""Data parallelism: how ranks share gradients, optimizer states and parameters.

``make_strategy(plan, chunks, groups)``
    The `Strategy` of a plan for one stage of its pipeline.
``Strategy``
    Hooks that a stage calls while it writes its passes; this one does nothing.
``PassPoint``
    The point of a pass that a hook is called at.

Read in this order:

`strategy`
    The hooks, and sizes that all frameworks share.
`buckets`
    Parameters of a model chunk; the rules by which they are cut into buckets.
`frameworks`
    Default sizes of the frameworks, from ``data/frameworks.toml``.
`ddp`
    PyTorch's DistributedDataParallel and ZeroRedundancyOptimizer: the simplest strategy.
`apex`
    Apex's DistributedDataParallel, which joins buckets in one kernel.
`horovod`
    Horovod, whose buckets are formed by time.
`megatron`
    Megatron-LM's DistributedDataParallel and distributed optimizer.
`deepspeed`, `zero3`
    DeepSpeed without ZeRO and with its stages 1 and 2; stage 3.
`fsdp`, `fsdp_pipeline`
    PyTorch's FSDP2, alone and inside a pipeline.

A further strategy is a module with a subclass of `Strategy`, a case of `_kind` below, and its name
in `mpisim.experiment.plan.Style`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...experiment.plan import Plan
from ..grid import Groups
from ..host import Host
from ..operators import Layer
from .strategy import PassPoint, Strategy

__all__ = ["PassPoint", "Strategy", "make_strategy"]


def make_strategy(
    plan: Plan,
    chunks: Sequence[Sequence[Layer]],
    groups: Groups,
    *,
    stage: int = 0,
    transformer: bool = True,
    order: Sequence[int] | None = None,
    host: Host | None = None,
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
    host : Host, optional
        Of the GPUs, for what is offloaded to it.

    Raises
    ------
    InputError
        If the framework knows no such sharding.
    """
    plan = plan.resolved(transformer=transformer)
    kind = _kind(plan)
    return kind(plan, chunks, groups, stage=stage, order=order, host=host)


def _kind(plan: Plan) -> type[Strategy]:
    """Plan → its strategy, the only one that is loaded."""
    match plan.framework.dp_style:
        case "ddp" if plan.framework.cycle_time is not None:
            from .horovod import Horovod

            return Horovod
        case "ddp" if plan.framework.reducer != "pytorch":
            from .apex import Apex

            return Apex
        case "ddp":
            from .ddp import Ddp

            return Ddp
        case "megatron":
            from .megatron import Megatron

            return Megatron
        case "deepspeed" if plan.zero == 3:
            from .zero3 import Zero3

            return Zero3
        case "deepspeed":
            from .deepspeed import DeepSpeed

            return DeepSpeed
        case "fsdp":
            from .fsdp import Fsdp

            if plan.pp == 1:
                return Fsdp
            from .fsdp_pipeline import FsdpPipeline, PyTorchPipeline

            return PyTorchPipeline if plan.framework.fsdp_pipeline == "pytorch" else FsdpPipeline
        case None:
            raise AssertionError("a plan that is not resolved")
