"""The end of a step: waiting for gradients, and the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..kernels.operations import OptimizerStep
from .blocks import BlockBuilder
from .data_parallel import Strategy
from .operators import Compute

if TYPE_CHECKING:
    from .step import Layout

__all__ = ["write_optimizer"]


def write_optimizer(block: BlockBuilder, layout: Layout, stage: int, strategy: Strategy) -> None:
    """Write the end of a stage's step."""
    strategy.before_optimizer(block)
    if strategy.updated:
        block.compute(Compute("adam", OptimizerStep(strategy.updated, 30)))
    strategy.after_optimizer(block)
