"""PyTorch's FullyShardedDataParallel (torch/distributed/fsdp, arXiv:2304.11277).

Each unit, `wrap_layers` blocks, is one flat parameter spread over the ranks; what is in no block
(embedding, head) is the root's, and experts are spread over the ranks that hold them. A unit is
gathered before its forward and, where it was freed after it, again before its backward; then its
gradients are reduced to shards. The root stays gathered from its forward to its backward.

Collectives of the sharding group run one after another on the stream of their communicator (section
3.3.2 of the paper). So the next unit is gathered before the gradients of the current one are
reduced (``BACKWARD_PRE``). Gathering waits for no kernel, which is why the CPU has to: it may not
gather a unit while two freed ones are still in use (``limit_all_gathers``). The count starts anew
with each pass.

zero = 2 keeps units gathered until their backward (``SHARD_GRAD_OP``), `zero_group` reduces shards
over replicas besides (``HYBRID_SHARD``). There is no ``no_sync``: every micro-batch reduces, and
waits for it at the end of its backward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from mpisim.kernels.operations import BYTES

from ...experiment.plan import Plan, Style
from ...program import Operation
from ..blocks import BlockBuilder
from ..groups import Groups
from ..operators import Communicate, Layer
from .buckets import padded
from .frameworks import frameworks
from .held import Held
from .strategy import Strategy, collective

__all__ = ["Fsdp", "Unit"]


@dataclass(frozen=True)
class Unit:
    """Layers that are gathered and reduced together.

    Attributes
    ----------
    first, last : int
        Layers of the chunk.
    dense, experts : int
        Elements of the flat parameters, padding included; 0 where there are none.
    """

    first: int
    last: int
    dense: int
    experts: int


@dataclass
class _Pass:
    """What a pass has gathered so far, and which kernels still use what it has freed."""

    gathered: dict[Unit, list[int]] = field(default_factory=dict)
    freed: deque[int] = field(default_factory=deque)


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
        self, plan: Plan, chunks: Sequence[Sequence[Layer]], groups: Groups, *, stage: int = 0
    ) -> None:
        super().__init__(plan, chunks, groups, stage=stage)
        roots, units = [], []
        for layers, parameters in zip(chunks, self.held, strict=True):
            blocks = [i for i, layer in enumerate(layers) if layer.role == "block"]
            size = plan.wrap_layers
            wraps = [blocks[i : i + size] for i in range(0, len(blocks), size)]
            units.append(tuple(self._unit(wrap, parameters) for wrap in wraps))
            rest = [i for i in range(len(layers)) if i not in blocks]
            roots.append(self._unit(rest, parameters) if rest else Unit(0, 0, 0, 0))
        self.roots, self.units = tuple(roots), tuple(units)
        self._passes = {(chunk, way): _Pass() for chunk in range(len(chunks)) for way in (0, 1)}
        self._reducing: dict[int, list[int]] = {chunk: [] for chunk in range(len(chunks))}

    def _unit(self, layers: Sequence[int], parameters: Sequence[Held]) -> Unit:
        sizes = [0, 0]
        for each in parameters:
            if each.layer in layers:
                sizes[each.expert] += each.size
        dense, experts = (padded(sizes[expert], self.sharers(expert)) for expert in (False, True))
        return Unit(layers[0], layers[-1], dense, experts)

    @property
    def _frees(self) -> bool:
        """Whether a unit is freed after its forward."""
        return self.plan.zero == 3 and self.plan.reshard_after_forward

    # --- gathering ------------------------------------------------------------------------------

    def before_forward(self, block: BlockBuilder, chunk: int, layer: int, first: bool) -> None:
        """Gather what the layer needs, and ahead of it."""
        if layer == 0:
            self._passes[chunk, 0] = _Pass()
            self._need(block, chunk, 0, [self.roots[chunk]])
        units = self.units[chunk]
        for i, unit in enumerate(units):
            if unit.first == layer:
                self._need(block, chunk, 0, units[i : i + 1 + self.plan.prefetch])

    def after_forward(self, block: BlockBuilder, chunk: int, layer: int, first: bool) -> None:
        """Free a unit."""
        if self._frees and any(unit.last == layer for unit in self.units[chunk]):
            self._passes[chunk, 0].freed.append(block.last)

    def before_backward(self, block: BlockBuilder, chunk: int, layer: int, last: bool) -> None:
        """Gather again what was freed, and ahead of it."""
        if layer == len(self.chunks[chunk]) - 1:
            self._passes[chunk, 1] = _Pass()
        if not self._frees:
            return
        units = self.units[chunk][::-1]
        for i, unit in enumerate(units):
            if unit.last == layer:
                self._need(block, chunk, 1, units[i : i + 1 + self.plan.prefetch])

    def _need(self, block: BlockBuilder, chunk: int, way: int, units: Sequence[Unit]) -> None:
        """Gather units, the first of which the next kernel waits for."""
        here = self._passes[chunk, way]
        if not self.plan.dp_overlap:
            for step in self._parameters(units[0]):
                block.communicate(step)
            return
        for i, unit in enumerate(units):
            if unit not in here.gathered:
                if len(here.freed) >= frameworks().fsdp.in_flight.si:
                    block.host_wait([here.freed.popleft()], "wait for a freed unit")
                rows = (block.launch(step, waits=()) for step in self._parameters(unit))
                here.gathered[unit] = [row for row in rows if row is not None]
            if i == 0:
                block.await_next(here.gathered[unit])

    def _parameters(self, unit: Unit) -> list[Communicate]:
        return [
            collective(Operation.ALL_GATHER, self.shard(expert), self.weight * size, "parameter")
            for expert, size in ((False, unit.dense), (True, unit.experts))
            if size
        ]

    # --- reducing -------------------------------------------------------------------------------

    def after_backward(self, block: BlockBuilder, chunk: int, layer: int, last: bool) -> None:
        """Reduce the gradients of a unit; wait for all of them at the end of the backward."""
        for unit in (*self.units[chunk], self.roots[chunk]):
            if unit.first == layer:
                self._reduce(block, chunk, unit)
        if layer == 0:
            block.await_next(self._reducing[chunk])
            self._reducing[chunk] = []
        elif any(unit.first == layer for unit in self.units[chunk]):
            self._passes[chunk, 1].freed.append(block.last)

    def _reduce(self, block: BlockBuilder, chunk: int, unit: Unit) -> None:
        for expert, elements in ((False, unit.dense), (True, unit.experts)):
            if not elements:
                continue
            size = self.gradient * elements
            share = size // self.sharers(expert)
            scatter = collective(Operation.REDUCE_SCATTER, self.shard(expert), size, "gradient")
            steps = [scatter]
            if self.plan.zero_group is not None:
                group = self.replica(expert)
                steps.append(collective(Operation.ALL_REDUCE, group, share, "gradient shard"))
            waits: list[int] | None = None
            for step in steps:
                if not self.plan.dp_overlap:
                    block.communicate(step)
                    continue
                row = block.launch(step, waits=waits)
                if row is not None:
                    waits = [row]
                    self._reducing[chunk].append(row)

    @property
    def kept(self) -> int:
        """Bytes of a gradient as the optimizer reads it: that of an fp32 shard."""
        return BYTES["fp32"]
