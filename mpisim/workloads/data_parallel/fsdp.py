"""PyTorch's FSDP2, ``fully_shard`` (torch/distributed/fsdp/_fully_shard; arXiv:2304.11277).

Each parameter is spread over the ranks. A unit, `wrap_layers` blocks, is gathered in one collective
before its forward and, where it was freed after it, again before its backward; then its gradients
are reduced to shards. What is in no block (embedding, head) is the root's, and experts are spread
over the ranks that hold them. The root stays gathered from its forward to its backward.

What is gathered lies rank by rank, and is copied to where the parameters are; gradients are copied
the other way, in the format in which they are reduced: two copies of a unit on the stream of the
kernels (``foreach_all_gather_copy_out``, ``foreach_reduce_scatter_copy_in``). Not counted are the
casts between shards and those formats, on streams of their own. Megatron-FSDP keeps a unit in one
buffer, which is gathered and reduced as it is (``plan.flat_shards``): nothing is copied.

Memory sets the pace of gathering (``wait_for_unshard``): forward, a unit waits until the last but
one has been copied; backward, until the last one has. Backward the next unit is gathered before the
kernels of the current one are launched, so before its gradients are reduced
(``_backward_prefetch``); forward the CPU comes to it early enough (more units ahead are
``set_modules_to_forward_prefetch``). Kernels wait for the gradients of the unit before last, whose
buffer is needed again (``post_backward``). Collectives of a group run one after another.

zero = 2 keeps units gathered until their backward (``reshard_after_forward=False``), `zero_group`
reduces shards over replicas besides (hybrid sharding). Every micro-batch reduces, and waits for it
at the end of its backward.

Stages of a pipeline gather and reduce once a step: :mod:`.fsdp_pipeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from mpisim.kernels.operations import BYTES, Elementwise

from ...experiment.plan import Plan, Style
from ...program import Operation
from ..blocks import BlockBuilder
from ..grid import Groups
from ..operators import Communicate, Compute, Layer
from .buckets import padded
from .held import Held
from .strategy import Strategy, collective

__all__ = ["Fsdp", "Gathering", "Reductions", "Unit"]


@dataclass(frozen=True)
class Unit:
    """Layers that are gathered and reduced together.

    Attributes
    ----------
    first, last : int
        Layers of the chunk.
    dense, experts : int
        Elements of the parameters, padding included; 0 where there are none.
    """

    first: int
    last: int
    dense: int
    experts: int

    @property
    def kinds(self) -> list[tuple[bool, int]]:
        """Whether of experts, and elements, of what it has."""
        return [(kind, size) for kind, size in ((False, self.dense), (True, self.experts)) if size]


@dataclass
class Gathering:
    """What a pass has gathered so far, and the copies it made of it."""

    gathered: dict[Unit, list[int]] = field(default_factory=dict)
    copied: list[int] = field(default_factory=list)


@dataclass
class Reductions:
    """Those of a pass so far: the latest reduce-scatters, and everything."""

    latest: list[int] = field(default_factory=list)
    all: list[int] = field(default_factory=list)


class Fsdp(Strategy):
    """Parameters, gradients and the optimizer's states sharded.

    Attributes
    ----------
    roots : tuple of Unit
        Of each chunk: what is in no block.
    units : tuple of tuple of Unit
        Of each chunk, in order of execution.
    """

    style: ClassVar[Style] = "fsdp"

    def __init__(
        self,
        plan: Plan,
        chunks: Sequence[Sequence[Layer]],
        groups: Groups,
        *,
        stage: int = 0,
        order: Sequence[int] | None = None,
    ) -> None:
        super().__init__(plan, chunks, groups, stage=stage, order=order)
        roots, units = [], []
        for layers, parameters in zip(chunks, self.held, strict=True):
            blocks = [i for i, layer in enumerate(layers) if layer.role == "block"]
            size = plan.wrap_layers
            wraps = [blocks[i : i + size] for i in range(0, len(blocks), size)]
            units.append(tuple(self._unit(wrap, parameters) for wrap in wraps))
            rest = [i for i in range(len(layers)) if i not in blocks]
            roots.append(self._unit(rest, parameters) if rest else Unit(0, 0, 0, 0))
        self.roots, self.units = tuple(roots), tuple(units)
        self._forward = [Gathering() for _ in chunks]
        self._backward = [Gathering() for _ in chunks]
        self._reducing = [Reductions() for _ in chunks]

    def _unit(self, layers: Sequence[int], parameters: Sequence[Held]) -> Unit:
        sizes = [0, 0]
        for each in parameters:
            if each.layer in layers:
                sizes[each.expert] += padded(each.size, self.sharers(each.expert))
        return Unit(layers[0], layers[-1], *sizes)

    @property
    def _frees(self) -> bool:
        """Whether a unit is freed after its forward."""
        return self.plan.zero == 3 and self.plan.reshard_after_forward

    @property
    def _computed(self) -> int:
        """Bytes of a gradient before it is copied to where it is reduced."""
        return self.weight

    @property
    def _ahead(self) -> int:
        """Units that are gathered ahead of the one at work."""
        return self.plan.prefetch if self.plan.dp_overlap else 0

    # --- gathering ------------------------------------------------------------------------------

    def before_forward(self, block: BlockBuilder, chunk: int, layer: int, first: bool) -> None:
        """Gather what the layer needs, and ahead of it."""
        if layer == 0:
            self._forward[chunk] = here = Gathering()
            root = self.roots[chunk]
            # Shards may still be at work: the first gather waits for all that was launched before.
            self._gather(block, here, root, None)
            self._copy_out(block, here, root)
        here, units = self._forward[chunk], self.units[chunk]
        for i, unit in enumerate(units):
            if unit.first == layer:
                waits = here.copied[-2:-1] if here.gathered else None
                self._gather(block, here, unit, waits)
                self._copy_out(block, here, unit)
                for ahead in units[i + 1 : i + self._ahead]:
                    self._gather(block, here, ahead, here.copied[-2:-1])

    def before_backward(self, block: BlockBuilder, chunk: int, layer: int, last: bool) -> None:
        """Gather again what was freed, and ahead of it."""
        if layer == len(self.chunks[chunk]) - 1:
            self._backward[chunk] = Gathering()
        if not self._frees:
            return
        here, units = self._backward[chunk], self.units[chunk][::-1]
        for i, unit in enumerate(units):
            if unit.last == layer:
                self._gather(block, here, unit, here.copied[-1:])
                self._copy_out(block, here, unit)
                for ahead in units[i + 1 : i + 1 + self._ahead]:
                    self._gather(block, here, ahead, here.copied[-1:])

    def _gather(
        self, block: BlockBuilder, here: Gathering, unit: Unit, waits: Sequence[int] | None
    ) -> None:
        """Gather a unit, unless that was done ahead, after rows or after all kernels before."""
        if unit in here.gathered or not unit.kinds:
            return
        if not self._ahead:
            waits = None
        here.gathered[unit] = []
        for expert, size in unit.kinds:
            step = collective(
                Operation.ALL_GATHER, self.shard(expert), self.weight * size, "parameter"
            )
            if not self.plan.dp_overlap:
                block.communicate(step)
                continue
            row = block.launch(step, waits=waits)
            here.gathered[unit] += [] if row is None else [row]

    def _copy_out(self, block: BlockBuilder, here: Gathering, unit: Unit) -> None:
        """Bring what was gathered to where the parameters are."""
        if unit.kinds:
            block.await_next(here.gathered[unit])
            for expert, size in () if self.plan.flat_shards else unit.kinds:
                source = self.weight if self.sharers(expert) > 1 else BYTES["fp32"]
                traffic = (source + self.weight) * size
                block.compute(Compute("copy parameters out", Elementwise(traffic)))
            here.copied.append(block.last)

    # --- reducing -------------------------------------------------------------------------------

    def after_backward(self, block: BlockBuilder, chunk: int, layer: int, last: bool) -> None:
        """Reduce the gradients of a unit; wait for all of them at the end of the backward."""
        here = self._reducing[chunk]
        units = [unit for unit in (*self.units[chunk], self.roots[chunk]) if unit.kinds]
        for unit in units:
            if unit.first == layer:
                self._reduce(block, here, unit)
        if layer == 0:
            block.await_next(here.all)
            self._reducing[chunk] = Reductions()

    def _reduce(self, block: BlockBuilder, here: Reductions, unit: Unit) -> None:
        block.await_next(here.latest)
        here.latest = []
        for expert, size in unit.kinds:
            if not self.plan.flat_shards:
                traffic = (self._computed + self.gradient) * size
                block.compute(Compute("copy gradients in", Elementwise(traffic)))
            group, whole = self.shard(expert), self.gradient * size
            scatter = collective(Operation.REDUCE_SCATTER, group, whole, "gradient")
            steps: list[Communicate] = [scatter]
            if self.plan.zero_group is not None:
                share, group = whole // self.sharers(expert), self.replica(expert)
                steps.append(collective(Operation.ALL_REDUCE, group, share, "gradient shard"))
            waits: list[int] | None = None
            for step in steps:
                if not self.plan.dp_overlap:
                    block.communicate(step)
                    continue
                row = block.launch(step, waits=waits)
                if row is None:
                    continue
                if step is scatter:
                    here.latest.append(row)
                waits = [row]
                here.all.append(row)

    @property
    def kept(self) -> int:
        """Bytes of a gradient as the optimizer reads it: that of an fp32 shard."""
        return BYTES["fp32"]
