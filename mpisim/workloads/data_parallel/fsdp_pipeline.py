"""FSDP inside a pipeline: units are gathered and reduced once a step.

Units are gathered for their first forward of the step and stay so
(``set_reshard_after_backward(False)``; arXiv:2407.21783, section 3.3.2: no resharding after the
forward pass). Gradients of micro-batches are added up in the format in which they are reduced
(``to_accumulated_grad_if_needed``) and reduced once, after the last backward.

`FsdpPipeline` overlaps both, as arXiv:2407.21783 describes ("asynchronously prefetching sharded
model weights and reducing gradients"). Shards lie ready since the optimizer's step before: the
first `prefetch` units are gathered as the step begins, while the first activations are on their
way, as the ``UNSHARD`` actions of torch/distributed/pipelining/schedules.py, which come before the
first ``RECV_F``; each further one as many units ahead, of the next model chunk where a chunk is at
its end, when the copy of the unit before the one at work has freed a buffer. A unit's gradients are
reduced as soon as its own last backward is done, beside all that follows; the next unit's wait for
them, whose buffer is needed again; the optimizer waits for all.

`PyTorchPipeline` is torch.distributed.pipelining without such actions
(torch/distributed/pipelining/stage.py, ``backward_maybe_with_nosync``): a stage gathers when the
CPU comes to its forward, after what it receives, and reduces when a chunk's last backward is done,
unit after unit, and waits (``_root_post_backward_final_callback``).
"""

from __future__ import annotations

from collections.abc import Sequence

from mpisim.kernels.operations import Elementwise

from ...experiment.plan import Plan
from ..blocks import BlockBuilder
from ..grid import Groups
from ..operators import Compute, Layer
from .fsdp import Fsdp, Gathering, Reductions, Unit

__all__ = ["FsdpPipeline", "PyTorchPipeline"]

GRADIENTS = "gradients"
"""The port of reductions that run beside what follows."""


class _Staged(Fsdp):
    """What both ways have in common: gradients of micro-batches are added up."""

    @property
    def _computed(self) -> int:
        """Bytes of a gradient before it is copied to where it is reduced."""
        return self.gradient

    def _of(self, chunk: int) -> list[Unit]:
        """Return what a chunk has, as it is gathered: the root first."""
        return [unit for unit in (self.roots[chunk], *self.units[chunk]) if unit.kinds]

    def _add_up(self, block: BlockBuilder, chunk: int, layer: int) -> list[Unit]:
        """Add a layer's gradients to those of the micro-batches before; return its units."""
        *units, root = *self.units[chunk], self.roots[chunk]
        found = [unit for unit in (*units, root) if unit.kinds and unit.first == layer]
        for unit in found:
            for _, size in unit.kinds:
                traffic = (self.weight + 2 * self.gradient) * size
                block.compute(Compute("gradient accumulation", Elementwise(traffic)))
        return found


class FsdpPipeline(_Staged):
    """Gathers ahead of what is at work, over model chunks; reduces beside what follows."""

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
        self._sequence = [(chunk, unit) for chunk in self.order for unit in self._of(chunk)]
        self._place = {item: i for i, item in enumerate(self._sequence)}
        self._launched = 0
        self._rows: dict[str, tuple[BlockBuilder, list[int]]] = {}

    def begin(self, block: BlockBuilder) -> None:
        """Gather the first units."""
        self._launch_until(block, self._ahead)

    def before_forward(self, block: BlockBuilder, chunk: int, layer: int, first: bool) -> None:
        """Gather what the layer needs, and ahead of it."""
        if not first:
            return
        root = self.roots[chunk]
        units = [root] if layer == 0 and root.kinds else []
        units += [unit for unit in self.units[chunk] if unit.first == layer and unit.kinds]
        for unit in units:
            place = self._place[chunk, unit]
            self._launch_until(block, place + 1 + self._ahead)
            here = Gathering({unit: self._awaited(block, f"gathered {place}")})
            self._copy_out(block, here, unit)
            if not self.plan.flat_shards:
                self._note(block, f"copied {place}", here.copied)

    def before_backward(self, block: BlockBuilder, chunk: int, layer: int, last: bool) -> None:
        """Everything is still gathered."""

    def _launch_until(self, block: BlockBuilder, end: int) -> None:
        """Gather units up to a place in the sequence."""
        for place in range(self._launched, min(end, len(self._sequence))):
            _, unit = self._sequence[place]
            here = Gathering()
            # One buffer more than units ahead: the one before them frees it.
            freed = f"copied {place - self._ahead - 1}"
            self._gather(block, here, unit, self._awaited(block, freed))
            self._note(block, f"gathered {place}", here.gathered[unit])
            self._launched = place + 1

    def _note(self, block: BlockBuilder, name: str, rows: list[int]) -> None:
        self._rows[name] = block, rows
        block.export(name, rows)

    def _awaited(self, block: BlockBuilder, name: str) -> list[int]:
        """Return rows of this block or of an earlier one by name; none if there are none."""
        if name not in self._rows:
            return []
        by, rows = self._rows[name]
        return rows if by is block else [block.port(name)] if rows else []

    def after_backward(self, block: BlockBuilder, chunk: int, layer: int, last: bool) -> None:
        """Add up the gradients of a unit; reduce them when they are those of the step."""
        for unit in self._add_up(block, chunk, layer):
            if not last:
                continue
            by, rows = self._rows.get(GRADIENTS, (block, []))
            here = Reductions()
            if not self.plan.flat_shards:  # nothing is copied to a buffer
                here.latest += rows if by is block else [block.port(GRADIENTS)]
            self._reduce(block, here, unit)
            self._note(block, GRADIENTS, here.all)

    def before_optimizer(self, block: BlockBuilder) -> None:
        """Wait for all reductions."""
        if GRADIENTS in self._rows:
            block.await_next([block.port(GRADIENTS)])


class PyTorchPipeline(_Staged):
    """Gathers what a chunk has in its first forward; reduces after its last backward, and waits."""

    def before_forward(self, block: BlockBuilder, chunk: int, layer: int, first: bool) -> None:
        """Gather what the layer needs, and ahead of it in its chunk."""
        if first:
            super().before_forward(block, chunk, layer, first)

    def after_backward(self, block: BlockBuilder, chunk: int, layer: int, last: bool) -> None:
        """Add up the gradients of a unit; at the end of the last backward reduce all."""
        self._add_up(block, chunk, layer)
        if last and layer == 0:
            here = self._reducing[chunk]
            root, *units = self.roots[chunk], *self.units[chunk]
            for unit in (*units, root):
                if unit.kinds:
                    self._reduce(block, here, unit)
            block.await_next(here.all)
            self._reducing[chunk] = Reductions()
