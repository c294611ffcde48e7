"""The memory of every pipeline stage, put together from its parts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from ..experiment.plan import Plan
from ..program import Phase
from ..workloads.grid import Grid, Groups
from ..workloads.layout import ModelChunk
from ..workloads.operators import Layer
from ..workloads.schedules import Pipeline
from .activations import Kinds, chunk, peak
from .buffers import added_up, buckets, gathered, messages
from .communicators import connections
from .constants import constants
from .states import FP32, States, rates, sharding, shared, size, states, style

__all__ = ["PARTS", "StageMemory", "memory"]

PHASES = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.WEIGHT: "gradients of weights",
}

LASTING = ("ddp", "deepspeed")
"""Frameworks whose buckets are allocated once, and there through the whole step."""


@dataclass(frozen=True)
class StageMemory:
    """Bytes on one rank of a pipeline stage at its worst moment.

    Attributes
    ----------
    stage : int
    parameters, gradients, optimizer : int
        Model states, sharded as the plan says; master weights count with the optimizer's states.
    activations : int
        The most that is kept for backward passes.
    working : int
        What the worst moment holds on top: temporaries of the operator at work, the layer that is
        computed again, scores over the vocabulary; or what the optimizer takes, if that is more.
    gathered : int
        Parameters gathered from other ranks (FSDP, ZeRO-3).
    buckets : int
        Gradients on their way.
    messages : int
        What is about to be received from neighbouring stages.
    context : int
        CUDA's context.
    communicators : int
        NCCL's buffers, and DeepEP's or HybridEP's.
    fragmentation : int
        What the allocator reserves and cannot hand out.
    error : int
        One standard deviation of the total.
    moment : str
        When the worst moment is, in words.
    """

    stage: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    working: int
    gathered: int
    buckets: int
    messages: int
    context: int
    communicators: int
    fragmentation: int
    error: int
    moment: str

    @property
    def parts(self) -> Mapping[str, int]:
        """Bytes by part; their sum is `total`."""
        return {name: getattr(self, name) for name in PARTS}

    @property
    def states(self) -> int:
        """Parameters, gradients and optimizer states."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def tensors(self) -> int:
        """What the framework's allocator hands out: not context, communicators, fragmentation."""
        return self.total - self.context - self.communicators - self.fragmentation

    @property
    def total(self) -> int:
        """Bytes of everything."""
        return sum(self.parts.values())


PARTS = tuple(
    field.name for field in fields(StageMemory) if field.name not in ("stage", "error", "moment")
)
"""Names of the parts that add up to the total."""


def memory(
    pipeline: Pipeline,
    parts: Sequence[ModelChunk],
    plan: Plan,
    grid: Grid,
    *,
    transformer: bool = True,
    node: int = 8,
) -> list[StageMemory]:
    """Work out the memory of one rank of every pipeline stage.

    Parameters
    ----------
    pipeline : Pipeline
    parts : sequence of Part
        The layers of each part of the pipeline, in one rank's shapes.
    plan : Plan
    grid : Grid
    transformer : bool
        Of what kind the model is, which decides what the plan leaves open (`Plan.style`).
    node : int
        GPUs of a node: NCCL takes more for messages to peers within it.

    Returns
    -------
    list of StageMemory
        Of each stage.
    """
    plan = plan.settled(transformer=transformer)
    sizes = dict(Groups(grid, plan.zero_group).sizes)
    kinds = Kinds()
    known: dict[Hashable, _OfLayers] = {}
    return [
        _stage(pipeline, stage, parts, plan, grid, sizes, node, kinds, known)
        for stage in range(pipeline.stages)
    ]


class _OfLayers(NamedTuple):
    """What depends on the layers of a stage alone, which most stages have in common."""

    states: States
    gathered: int
    buckets: int
    update: int


def _stage(
    pipeline: Pipeline,
    stage: int,
    parts: Sequence[ModelChunk],
    plan: Plan,
    grid: Grid,
    sizes: dict[str, int],
    node: int,
    kinds: Kinds,
    of_layers: dict[Hashable, _OfLayers],
) -> StageMemory:
    known = constants()
    chunks = [parts[pipeline.part(stage, each)] for each in range(pipeline.chunks)]
    layers = [layer for each in chunks for layer in each.layers]
    # Layers of one kind share their operators.
    described = tuple((layer.operators, layer.role) for layer in layers)
    if described not in of_layers:
        of_layers[described] = _OfLayers(
            states(layers, plan, sizes),
            gathered(layers, plan),
            buckets(layers, plan, sizes),
            _update(layers, plan, sizes),
        )
    found = of_layers[described]
    sums = [added_up(each.layers, plan, sizes) for each in chunks]
    passes = [chunk(each, plan, sizes, kinds) for each in chunks]
    worst = peak(pipeline.actions[stage], passes, sums if any(sums) else ())
    moving = {
        "activations": worst.kept,
        "working": worst.total - worst.kept - worst.gradients,
        "gathered": found.gathered,
        "buckets": found.buckets + worst.gradients,
        "messages": messages(pipeline, stage, parts),
    }
    moment = f"{PHASES[worst.action.phase]} of micro-batch {worst.action.micro_batch}"
    # When the optimizer works, activations are gone, and gathered parameters with them.
    lasting = found.buckets if style(plan) in LASTING else 0
    if found.update + lasting > sum(moving.values()):
        moving = dict.fromkeys(moving, 0) | {"working": found.update, "buckets": lasting}
        moment = "the optimizer's step"
    tensors = {
        "parameters": found.states.parameters,
        "gradients": found.states.gradients,
        "optimizer": found.states.optimizer,
        **moving,
    }
    fragmentation = known.fragmentation.value * sum(tensors.values())
    connected = connections(layers, stage, plan, grid, sizes, node)
    errors = (
        known.temporaries.error * moving["working"],
        known.fragmentation.error * fragmentation,
        known.context.error * known.context.si,
        connected.error(known),
    )
    return StageMemory(
        stage=stage,
        **tensors,
        context=round(known.context.si),
        communicators=connected.bytes(known),
        fragmentation=round(fragmentation),
        error=round(sum(error**2 for error in errors) ** 0.5),
        moment=moment,
    )


def _update(layers: Sequence[Layer], plan: Plan, sizes: Mapping[str, int]) -> int:
    """Return the bytes the optimizer's step takes for a while, when activations are gone.

    PyTorch's optimizers work on lists of tensors and make one more copy of what they update
    (``foreach``, torch/optim/adam.py: about the size of the parameters); Megatron-LM copies 16-bit
    gradients to fp32 (megatron/core/optimizer/optimizer.py, ``_copy_model_grads_to_main_grads``).
    """
    if style(plan) == "megatron":
        if rates(plan).gradient == FP32:
            return 0
    elif style(plan) == "deepspeed" or plan.optimizer == "sgd":
        return 0
    *_, sharded = sharding(plan)
    return FP32 * (shared(layers, sizes) if sharded else size(layers))
