"""The blocks of one pipeline stage: forward, backward and weight gradients of its model chunks."""

from __future__ import annotations

from collections.abc import Sequence

from ..experiment.plan import Plan
from ..program import Names, Phase
from .blocks import Block, BlockBuilder, Slots
from .data_parallel import Strategy
from .operators import Layer, Operator
from .parts import Part
from .pricing import Pricing

__all__ = ["Stage", "recomputes"]


def recomputes(plan: Plan, block: int) -> bool:
    """Whether the whole of a part's layer is computed again, `block` counting its blocks from 0.

    As Megatron-LM's ``--recompute-method block``: the first `recompute_layers` of each part.
    """
    if plan.recompute != "full":
        return False
    return plan.recompute_layers is None or block < plan.recompute_layers


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
    """

    def __init__(
        self, names: Names, pricing: Pricing, slots: Slots, plan: Plan,
        chunks: Sequence[Part], strategy: Strategy,
    ) -> None:  # fmt: skip
        self.names, self.pricing, self.slots = names, pricing, slots
        self.plan, self.chunks, self.strategy = plan, chunks, strategy
        self._blocks: dict[tuple[Phase, int, str, bool], Block] = {}

    def builder(self) -> BlockBuilder:
        """Return a builder of a further block."""
        return BlockBuilder(self.names, self.pricing, self.slots)

    def block(self, phase: Phase, chunk: int, part: str, edge: bool) -> Block:
        """Return the block of one action.

        Parameters
        ----------
        phase : Phase
            FORWARD, BACKWARD or WEIGHT.
        chunk : int
        part : {"all", "input", "weight"}
            Of the backward.
        edge : bool
            Whether it is the chunk's first forward, or its last completion of gradients.
        """
        key = (phase, chunk, part, edge)
        if key not in self._blocks:
            builder = self.builder()
            builder.tags(phase=phase)
            if phase is Phase.FORWARD:
                self._forward(builder, chunk, edge)
            else:
                self._backward(builder, chunk, part, edge)
            self._blocks[key] = builder.done()
        return self._blocks[key]

    def _forward(self, builder: BlockBuilder, chunk: int, first: bool) -> None:
        part = self.chunks[chunk]
        for i, layer in enumerate(part.layers):
            builder.tags(layer=part.numbers[i])
            self.strategy.before_forward(builder, chunk, i, first)
            for operator in layer.operators:
                builder.forward(operator)
            self.strategy.after_forward(builder, chunk, i, first)

    def _backward(self, builder: BlockBuilder, chunk: int, which: str, last: bool) -> None:
        part = self.chunks[chunk]
        again = _recomputed(self.plan, part)
        for i in reversed(range(len(part.layers))):
            layer = part.layers[i]
            builder.tags(layer=part.numbers[i])
            if which != "weight":
                self.strategy.before_backward(builder, chunk, i, last)
                if again[i]:
                    self._recompute(builder, layer.operators)
            for operator in reversed(layer.operators):
                if self._selective(operator) and which != "weight" and not again[i]:
                    self._recompute(builder, [operator])
                builder.backward(operator, which)
                if which != "input":
                    self.strategy.after_operator(builder, chunk, i, operator, last)
            if which != "input":
                self.strategy.after_backward(builder, chunk, i, last)

    def _selective(self, operator: Operator) -> bool:
        return operator.selective and self.plan.recompute == "selective"

    def _recompute(self, builder: BlockBuilder, operators: Sequence[Operator]) -> None:
        builder.tags(phase=Phase.RECOMPUTE)
        for operator in operators:
            builder.forward(operator)
        builder.tags(phase=Phase.BACKWARD)


def _recomputed(plan: Plan, part: Part) -> list[bool]:
    """Whether each layer of a part is computed again as a whole."""
    found, block = [], 0
    for layer in part.layers:
        found.append(_is_block(layer) and recomputes(plan, block))
        block += _is_block(layer)
    return found


def _is_block(layer: Layer) -> bool:
    return layer.role == "block"
