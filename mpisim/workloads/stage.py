"""The blocks of one pipeline stage: forward, backward and weight gradients of its model chunks."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from ..experiment.plan import Plan
from ..program import Names, Phase
from .blocks import Block, BlockBuilder
from .data_parallel import Strategy
from .fragments import Fragments
from .operators import Operator, Step
from .parts import Part
from .pricing import Pricing
from .recomputation import again as run_again
from .shelf import Shelf
from .slots import Slots

__all__ = ["Pass", "Stage", "recomputed"]


class Pass(NamedTuple):
    """What one action of a schedule writes.

    Attributes
    ----------
    phase : Phase
        FORWARD, BACKWARD or WEIGHT.
    chunk : int
    part : {"all", "input", "weight"}
        Of the backward.
    edge : bool
        Whether it is the chunk's first forward, or its last completion of gradients.
    """

    phase: Phase
    chunk: int
    part: str
    edge: bool


def recomputed(plan: Plan, part: Part) -> list[bool]:
    """Return whether each layer of a part is computed again as a whole.

    As Megatron-LM's ``--recompute-method block``: the first `recompute_layers` blocks of each part.
    """
    found, blocks = [], 0
    for number in part.numbers:
        again = number >= 0 and plan.recompute == "full"
        if again and plan.recompute_layers is not None:
            again = blocks < plan.recompute_layers
        found.append(again)
        blocks += number >= 0
    return found


class Stage:
    """Writes each block when it is first asked for.

    Parameters
    ----------
    names : Names
        Of the program's rows.
    pricing : Pricing
    slots : Slots
    plan : Plan
    chunks : sequence of Part
        The model chunks the stage holds.
    strategy : Strategy
        Of data parallelism.
    shelf : Shelf
    fragments : Fragments
        Both of the step, whose tables have the same plan and names.
    """

    def __init__(
        self,
        names: Names,
        pricing: Pricing,
        slots: Slots,
        plan: Plan,
        chunks: Sequence[Part],
        strategy: Strategy,
        shelf: Shelf,
        fragments: Fragments,
    ) -> None:
        self.names, self.pricing, self.slots = names, pricing, slots
        self.plan, self.chunks, self.strategy = plan, chunks, strategy
        self._shelf, self._fragments = shelf, fragments
        self._blocks: dict[tuple[Pass, ...], Block] = {}
        self._parts: dict[tuple[int, str], tuple[Step, ...]] = {}

    def builder(self) -> BlockBuilder:
        """Return a builder of a further block."""
        return BlockBuilder(self.names, self.pricing, self.slots)

    def block(self, *passes: Pass) -> Block:
        """Return the block of one pass, or of two that take turns: where one waits, the other runs.

        The latter is how DeepSeek-V3 hides the communication of a forward behind the kernels of a
        backward and the reverse (arXiv:2412.19437, section 3.2.1).
        """
        if passes not in self._blocks:
            if self.strategy.first_and_last_only and not any(each.edge for each in passes):
                key, layer = self._described(passes)
                self._blocks[passes] = self._shelf.block(
                    key, layer, self.slots, lambda: self._written(passes)
                )
            else:
                self._blocks[passes] = self._written(passes)
        return self._blocks[passes]

    def _described(self, passes: Sequence[Pass]) -> tuple[Hashable, int]:
        """Return all that decides what passes write, and what their layers are counted from.

        Where data parallelism writes nothing these are the operators of the layers (layers of one
        kind share them) and the model of the GPU.
        """
        parts = [self.chunks[each.chunk] for each in passes]
        first = min((n for part in parts for n in part.numbers if n >= 0), default=0)
        described = tuple(
            (
                each.phase,
                each.part,
                tuple(id(layer.operators) for layer in part.layers),
                tuple(n - first if n >= 0 else None for n in part.numbers),
                tuple(recomputed(self.plan, part)),
            )
            for each, part in zip(passes, parts, strict=True)
        )
        return (id(self.pricing), described), first

    def _written(self, passes: Sequence[Pass]) -> Block:
        builder = self.builder()
        if len(passes) == 1:
            builder = BlockBuilder(self.names, self.pricing, self.slots, self._fragments)
        running = {lane: self._write(builder, each) for lane, each in enumerate(passes)}
        while running:
            for lane, writing in list(running.items()):
                builder.lane(lane)
                if next(writing, DONE) is DONE:
                    del running[lane]
        return builder.done()

    def _write(self, builder: BlockBuilder, what: Pass) -> Iterator[None]:
        """Write a pass, pausing where its next kernel has to wait for a communication."""
        builder.tags(phase=what.phase)
        if what.phase is Phase.FORWARD:
            yield from self._forward(builder, what.chunk, what.edge)
        else:
            yield from self._backward(builder, what.chunk, what.part, what.edge)

    def _forward(self, builder: BlockBuilder, chunk: int, first: bool) -> Iterator[None]:
        part = self.chunks[chunk]
        for i, layer in enumerate(part.layers):
            builder.tags(layer=part.numbers[i])
            self.strategy.before_forward(builder, chunk, i, first)
            for j, operator in enumerate(layer.operators):
                self.strategy.before_operator(builder, chunk, i, j, first)
                yield from builder.stepwise(operator.forward)
            self.strategy.after_forward(builder, chunk, i, first)

    def _backward(
        self, builder: BlockBuilder, chunk: int, which: str, last: bool
    ) -> Iterator[None]:
        part = self.chunks[chunk]
        again = recomputed(self.plan, part)
        for i in reversed(range(len(part.layers))):
            layer = part.layers[i]
            builder.tags(layer=part.numbers[i])
            if which != "weight":
                self.strategy.before_backward(builder, chunk, i, last)
                if again[i]:
                    yield from self._recompute(builder, run_again(self.plan, layer.operators))
            for j, operator in reversed(list(enumerate(layer.operators))):
                if which != "weight":
                    self.strategy.before_gradients(builder, chunk, i, j, last)
                if self._selective(operator) and which != "weight" and not again[i]:
                    yield from self._recompute(builder, [operator])
                yield from builder.stepwise(self._part(operator, which))
                if which != "input":
                    self.strategy.after_gradients(builder, chunk, i, j, last)
            if which != "input":
                self.strategy.after_backward(builder, chunk, i, last)

    def _part(self, operator: Operator, which: str) -> tuple[Step, ...]:
        """Return a part of an operator's backward: one and the same each time."""
        key = id(operator), which
        if key not in self._parts:
            self._parts[key] = operator.backward_part(which)
        return self._parts[key]

    def _selective(self, operator: Operator) -> bool:
        return operator.selective and self.plan.recompute == "selective"

    def _recompute(self, builder: BlockBuilder, operators: Sequence[Operator]) -> Iterator[None]:
        builder.tags(phase=Phase.RECOMPUTE)
        for operator in operators:
            yield from builder.stepwise(operator.forward)
        builder.tags(phase=Phase.BACKWARD)


DONE = object()
"""What a pass that has been written to its end says."""
