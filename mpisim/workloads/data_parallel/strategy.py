"""The hooks of data parallelism in a training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...experiment.plan import Plan
from ..blocks import BlockBuilder
from ..groups import Groups
from ..operators import Layer, Operator, total

__all__ = ["Strategy", "strategy"]


class Strategy:
    """What a framework does for data parallelism besides the passes; here: nothing.

    A stage calls the hooks while it writes its blocks. `first` and `last` say whether a block is
    the chunk's first forward or its last backward of the step; others are written once and used for
    all micro-batches in between, so what a hook writes may depend on nothing else.

    Parameters
    ----------
    plan : Plan
    chunks : sequence of sequence of Layer
        The model chunks this stage holds.
    groups : Groups
    """

    def __init__(self, plan: Plan, chunks: Sequence[Sequence[Layer]], groups: Groups) -> None:
        self.plan, self.chunks, self.groups = plan, chunks, groups

    @property
    def streams(self) -> Mapping[str, str]:
        """Slots that share a stream, or have one of another name, for `Slots`."""
        return {}

    def begin(self, block: BlockBuilder) -> None:
        """Before everything else of the step."""

    def before_forward(self, block: BlockBuilder, chunk: int, layer: int, first: bool) -> None:
        """Before a layer's forward; `layer` counts those of the chunk."""

    def after_forward(self, block: BlockBuilder, chunk: int, layer: int, first: bool) -> None:
        """After a layer's forward."""

    def before_backward(self, block: BlockBuilder, chunk: int, layer: int, last: bool) -> None:
        """Before a layer is computed again, if it is, and its backward."""

    def after_operator(
        self, block: BlockBuilder, chunk: int, layer: int, operator: Operator, last: bool
    ) -> None:
        """After the gradients of an operator's weights are there."""

    def after_backward(self, block: BlockBuilder, chunk: int, layer: int, last: bool) -> None:
        """After a layer's backward (of its weights, where that is put off)."""

    def before_optimizer(self, block: BlockBuilder) -> None:
        """After all blocks: whatever is still to be reduced, and waiting for it."""

    def after_optimizer(self, block: BlockBuilder) -> None:
        """After the optimizer's step."""

    @property
    def updated(self) -> int:
        """Parameters this rank's optimizer updates."""
        return total(
            p for layers in self.chunks for layer in layers for p in layer.parameters if not p.local
        )


def strategy(plan: Plan, chunks: Sequence[Sequence[Layer]], groups: Groups) -> Strategy:
    """Return the strategy of a plan."""
    return Strategy(plan, chunks, groups)
