"""Model chunks, schedule, plan → memory of one rank of every pipeline stage.

    model chunks ─► parameter counts ─► states, buffers        (.states)
                 ─► activations of passes ─► worst moment      (.activations)
                 ─► NCCL's connections                         (.communicators)

The worst moment is either in a pass or in the optimizer's step, when activations and gathered
parameters are freed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from ..base.frozen import frozen
from ..experiment.plan import Plan
from ..program import Phase
from ..schedules import Pipeline
from ..workloads.grid import Grid, Groups
from ..workloads.layout import ModelChunk
from ..workloads.operators import Layer
from ..workloads.recomputation import recomputed_layers
from .activations import ChunkMemory, chunk_memory
from .communicators import Connections, own_connections, with_neighbours
from .constants import constants
from .host import HostMemory, host_memory
from .schedule_peak import Moment, peak
from .states import (
    ModelStates,
    accumulated_gradients,
    framework,
    gathered_parameters,
    gradient_buckets,
    model_states,
    optimizer_buffers,
    parameter_counts,
)

__all__ = ["PARTS", "StageMemory", "StageMoments", "memory", "moments"]

PHASES = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.WEIGHT: "gradients of weights",
}

ALWAYS = ("parameters", "gradients", "optimizer", "context", "communicators", "fragmentation")
"""Parts that are held through the whole step."""

MOST_GRIDS = 256
"""Grids of which the sizes of groups are kept."""

PERMANENT_BUCKETS = ("ddp", "deepspeed")
"""Frameworks that allocate their buckets once and keep them through the whole step."""


@frozen
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
        Further bytes of the worst moment: temporaries of the running operator, the layer that is
        recomputed, scores over the vocabulary; or buffers of the optimizer, if that is more.
    gathered : int
        Parameters gathered from other ranks (FSDP, ZeRO-3).
    buckets : int
        Gradients that are being reduced.
    messages : int
        Buffers for what neighbouring stages send.
    context : int
        CUDA's context.
    communicators : int
        NCCL's buffers, and DeepEP's or HybridEP's.
    fragmentation : int
        Memory that the allocator reserves and cannot use.
    error : int
        One standard deviation of the total.
    moment : str
        Description of the worst moment.
    host : HostMemory
        Host memory of the rank, which is not part of the total.
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
    host: HostMemory = HostMemory()

    @property
    def parts(self) -> Mapping[str, int]:
        """Bytes by part; their sum is `total`."""
        return {name: getattr(self, name) for name in PARTS}

    @property
    def states(self) -> int:
        """Bytes of parameters, gradients and optimizer states."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def tensors(self) -> int:
        """Bytes that the framework allocates: not context, communicators, fragmentation."""
        return self.total - self.context - self.communicators - self.fragmentation

    @property
    def total(self) -> int:
        """Bytes of a GPU of the stage at the worst moment of a step, everything included."""
        return sum(self.parts.values())


PARTS = tuple(
    field.name
    for field in fields(StageMemory)
    if field.name not in ("stage", "error", "moment", "host")
)
"""Names of the parts that add up to the total."""


def memory(
    pipeline: Pipeline,
    chunks: Sequence[ModelChunk],
    plan: Plan,
    grid: Grid,
    *,
    transformer: bool = True,
    node: int = 8,
) -> list[StageMemory]:
    """Model chunks and their schedule → memory of one rank of every pipeline stage.

    Parameters
    ----------
    pipeline : Pipeline
    chunks : sequence of ModelChunk
        In the order of the layers, in one rank's shapes.
    plan : Plan
    grid : Grid
    transformer : bool
        Whether the model is one, which decides what the plan leaves open (`Plan.style`).
    node : int
        GPUs of a node: NCCL takes more for messages to peers within it.
    """
    model = _MemoryModel(pipeline, chunks, plan.resolved(transformer=transformer), grid, node)
    return [model.stage(stage) for stage in range(pipeline.stages)]


class StageMoments(NamedTuple):
    """Bytes on one rank of a stage over a step: constant parts, and the part of each action.

    Attributes
    ----------
    parts : mapping of str to int
        Held through all passes, by part: model states, buffers, context, communicators,
        fragmentation.
    moments : list of Moment
        Further bytes held during each action.
    optimizer_parts : mapping of str to int
        Held in the optimizer's step, all in all, by part.
    """

    parts: Mapping[str, int]
    moments: list[Moment]
    optimizer_parts: Mapping[str, int]

    @property
    def fixed(self) -> int:
        """Bytes that are held from the first pass of a step to the last."""
        return sum(self.parts.values())

    @property
    def optimizer(self) -> int:
        """Bytes held in the optimizer's step."""
        return sum(self.optimizer_parts.values())


def moments(
    pipeline: Pipeline,
    chunks: Sequence[ModelChunk],
    plan: Plan,
    grid: Grid,
    stage: int,
    *,
    transformer: bool = True,
    node: int = 8,
) -> StageMoments:
    """Model chunks and their schedule → memory of one rank of one stage over a step.

    Parameters
    ----------
    pipeline, chunks, plan, grid, transformer, node
        As of `memory`.
    stage : int
    """
    model = _MemoryModel(pipeline, chunks, plan.resolved(transformer=transformer), grid, node)
    return model.moments(stage)


class _OfLayers(NamedTuple):
    """Bytes that depend on the layers of a stage alone, which most stages have in common."""

    states: ModelStates
    gathered: int
    buckets: int
    update: int
    connections: Connections
    host: HostMemory


class _MemoryModel:
    """The memory of stages that share a plan; parameters as of `memory`."""

    def __init__(
        self,
        pipeline: Pipeline,
        chunks: Sequence[ModelChunk],
        plan: Plan,
        grid: Grid,
        node: int,
    ) -> None:
        self._pipeline, self._chunks = pipeline, chunks
        self._plan, self._grid, self._node = plan, grid, node
        self._sizes = _sizes_of(grid, plan.zero_group)
        # By the tuples of operators themselves, which the chunks hold: layers of one kind have one.
        self._layers: dict[tuple[tuple[int, str], ...], _OfLayers] = {}
        self._sums: dict[tuple[int, ...], int] = {}
        self._chunk_memories: dict[Hashable, ChunkMemory] = {}

    def stage(self, stage: int) -> StageMemory:
        """Return the memory of one stage."""
        plan, pipeline = self._plan, self._pipeline
        known = constants()
        chunks = [self._chunks[pipeline.part(stage, each)] for each in range(pipeline.chunks)]
        layers = [layer for each in chunks for layer in each.layers]
        found = self._of_layers(layers)
        sums = [self._accumulated(each.layers) for each in chunks]
        passes = [self._chunk_memory(each) for each in chunks]
        worst = peak(pipeline, stage, passes, sums if any(sums) else ())
        moving = {
            "activations": worst.kept,
            "working": worst.total - worst.kept - worst.gradients,
            "gathered": found.gathered,
            "buckets": found.buckets + worst.gradients,
            "messages": _messages(pipeline, stage, self._chunks),
        }
        moment = f"{PHASES[worst.action.phase]} of micro-batch {worst.action.micro_batch}"
        # When the optimizer works, activations are freed, and gathered parameters with them.
        permanent = found.buckets if framework(plan) in PERMANENT_BUCKETS else 0
        if found.update + permanent > sum(moving.values()):
            moving = dict.fromkeys(moving, 0) | {"working": found.update, "buckets": permanent}
            moment = "the optimizer's step"
        tensors = {
            "parameters": found.states.parameters,
            "gradients": found.states.gradients,
            "optimizer": found.states.optimizer,
            **moving,
        }
        fragmentation = known.fragmentation.value * sum(tensors.values())
        connected = with_neighbours(found.connections, stage, self._grid, self._node)
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
            host=replace(found.host, activations=sum(each.offloaded for each in passes)),
        )

    def moments(self, stage: int) -> StageMoments:
        """Return the memory of one stage over a step."""
        pipeline, plan = self._pipeline, self._plan
        chunks = [self._chunks[pipeline.part(stage, each)] for each in range(pipeline.chunks)]
        found = self._of_layers([layer for each in chunks for layer in each.layers])
        sums = [self._accumulated(each.layers) for each in chunks]
        passes = [self._chunk_memory(each) for each in chunks]
        moments: list[Moment] = []
        peak(pipeline, stage, passes, sums if any(sums) else (), moments)
        whole = self.stage(stage)
        always = {name: whole.parts[name] for name in ALWAYS}
        passing = {
            "gathered": found.gathered,
            "buckets": found.buckets,
            "messages": _messages(pipeline, stage, self._chunks),
        }
        permanent = found.buckets if framework(plan) in PERMANENT_BUCKETS else 0
        updating = {"buckets": permanent, "working": found.update}
        return StageMoments({**always, **passing}, moments, {**always, **updating})

    def _of_layers(self, layers: Sequence[Layer]) -> _OfLayers:
        key = tuple([(id(layer.operators), layer.role) for layer in layers])
        if key not in self._layers:
            plan, sizes = self._plan, self._sizes
            own = plan.framework
            counts = parameter_counts(layers, own.wrap_layers, own.end_units)
            self._layers[key] = _OfLayers(
                model_states(counts, plan, sizes),
                gathered_parameters(counts, plan),
                gradient_buckets(counts, plan, sizes),
                optimizer_buffers(counts, plan, sizes),
                own_connections(layers, plan, self._grid, sizes, self._node),
                host_memory(counts, plan, sizes, accumulates=self._pipeline.micro_batches > 1),
            )
        return self._layers[key]

    def _accumulated(self, layers: Sequence[Layer]) -> int:
        """Return the bytes of buffers in which gradients of a chunk are accumulated."""
        if framework(self._plan) != "fsdp" or self._plan.pp == 1:
            return 0
        key = tuple([id(layer.operators) for layer in layers])
        if key not in self._sums:
            counts = parameter_counts(layers)
            self._sums[key] = accumulated_gradients(counts, self._plan, self._sizes)
        return self._sums[key]

    def _chunk_memory(self, chunk: ModelChunk) -> ChunkMemory:
        whole = recomputed_layers(self._plan, chunk.numbers)
        key = tuple([(id(each.operators), each.checkpoint) for each in chunk.layers]), tuple(whole)
        if key not in self._chunk_memories:
            found = chunk_memory(chunk, self._plan, self._sizes)
            self._chunk_memories[key] = found
        return self._chunk_memories[key]


@lru_cache(maxsize=MOST_GRIDS)
def _sizes_of(grid: Grid, zero_group: int | None) -> Mapping[str, int]:
    """Return the members of each group of ranks, kept since plans of a search share grids."""
    return MappingProxyType(dict(Groups(grid, zero_group).sizes))


def _messages(pipeline: Pipeline, stage: int, chunks: Sequence[ModelChunk]) -> int:
    """Return the bytes of receive buffers: of the largest activation and the largest gradient.

    What was received and is kept for the backward pass is counted with the activations.
    """
    activation = gradient = 0
    for chunk in range(pipeline.chunks):
        part = pipeline.part(stage, chunk)
        before, after = pipeline.previous(stage, chunk), pipeline.next(stage, chunk)
        if before is not None and before[0] != stage:
            activation = max(activation, chunks[part - 1].layers[-1].output)
        if after is not None and after[0] != stage:
            gradient = max(gradient, chunks[part].layers[-1].output)
    return activation + gradient
