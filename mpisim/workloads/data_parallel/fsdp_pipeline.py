"""PyTorch's FSDP2 inside a pipeline: a unit is gathered and reduced once for all micro-batches.

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

from mpisim.kernels.operations import Elementwise

from ..blocks import BlockBuilder
from ..operators import Compute
from .fsdp import Fsdp, GatherState, ReduceState, Unit
from .strategy import PassPoint

__all__ = ["FsdpPipeline", "PyTorchPipeline"]

REDUCED_GRADIENTS = "gradients"
"""Port of reductions that run beside what follows."""


class _PipelinedFsdp(Fsdp):
    """FSDP inside a pipeline: gradients of micro-batches are added up before the reduction."""

    @property
    def _computed_gradient_size(self) -> int:
        """Bytes of a gradient before it is copied to where it is reduced."""
        return self.gradient_size

    def _gather_order(self, chunk: int) -> list[Unit]:
        """Units of a chunk as they are gathered: the root first."""
        return [unit for unit in (self.roots[chunk], *self.units[chunk]) if unit.kinds]

    def _accumulate(self, block: BlockBuilder, chunk: int, layer: int) -> list[Unit]:
        """Add a layer's gradients to those of the micro-batches before; return its units."""
        *units, root = *self.units[chunk], self.roots[chunk]
        found = [unit for unit in (*units, root) if unit.reduced and unit.first == layer]
        for unit in found:
            for _, size in unit.reduced:
                traffic = (self.weight_size + 2 * self.gradient_size) * size
                block.compute(Compute("gradient accumulation", Elementwise(traffic)))
        return found


class FsdpPipeline(_PipelinedFsdp):
    """FSDP that gathers units ahead across model chunks, and reduces beside later work."""

    def _prepare(self) -> None:
        super()._prepare()
        self._sequence = [
            (chunk, unit) for chunk in self.order for unit in self._gather_order(chunk)
        ]
        self._position = {item: i for i, item in enumerate(self._sequence)}
        self._launched = 0
        self._rows: dict[str, tuple[BlockBuilder, list[int]]] = {}

    def begin(self, block: BlockBuilder) -> None:
        """Gather the first units."""
        self._launch_until(block, self._prefetched)

    def before_forward(self, at: PassPoint) -> None:
        """In the first forward, gather the units that begin at this layer, and ahead of them.

        The root is gathered before layer 0.
        """
        block, chunk = at.block, at.chunk
        if not at.edge:
            return
        root = self.roots[chunk]
        units = [root] if at.layer == 0 and root.kinds else []
        units += [unit for unit in self.units[chunk] if unit.first == at.layer and unit.kinds]
        for unit in units:
            position = self._position[chunk, unit]
            self._launch_until(block, position + 1 + self._prefetched)
            state = GatherState({unit: self._awaited(block, f"gathered {position}")})
            self._copy_out(block, state, unit)
            if not self.plan.framework.flat_shards:
                self._export(block, f"copied {position}", state.copied)

    def before_backward(self, at: PassPoint) -> None:
        """Nothing: all units are still gathered."""

    def _launch_until(self, block: BlockBuilder, end: int) -> None:
        """Gather units up to a position in the sequence."""
        for position in range(self._launched, min(end, len(self._sequence))):
            _, unit = self._sequence[position]
            state = GatherState()
            # One buffer more than units ahead: the one before them frees it.
            freed = f"copied {position - self._prefetched - 1}"
            self._gather(block, state, unit, self._awaited(block, freed))
            self._export(block, f"gathered {position}", state.gathered[unit])
            self._launched = position + 1

    def _export(self, block: BlockBuilder, name: str, rows: list[int]) -> None:
        self._rows[name] = block, rows
        block.export(name, rows)

    def _awaited(self, block: BlockBuilder, name: str) -> list[int]:
        """Rows that this block or an earlier one exported under a name; none if there are none."""
        if name not in self._rows:
            return []
        by, rows = self._rows[name]
        return rows if by is block else [block.port(name)] if rows else []

    def after_backward(self, at: PassPoint) -> None:
        """Add up the gradients of the units that begin here; in the last backward reduce them."""
        block = at.block
        for unit in self._accumulate(block, at.chunk, at.layer):
            if not at.edge:
                continue
            by, rows = self._rows.get(REDUCED_GRADIENTS, (block, []))
            state = ReduceState()
            if not self.plan.framework.flat_shards:  # nothing is copied to a buffer
                state.latest += rows if by is block else [block.port(REDUCED_GRADIENTS)]
            self._reduce(block, state, unit)
            self._export(block, REDUCED_GRADIENTS, state.all)

    def before_optimizer(self, block: BlockBuilder) -> None:
        """Wait for all reductions."""
        if REDUCED_GRADIENTS in self._rows:
            block.await_next([block.port(REDUCED_GRADIENTS)])


class PyTorchPipeline(_PipelinedFsdp):
    """FSDP that gathers a chunk in its first forward and reduces it after its last backward."""

    def before_forward(self, at: PassPoint) -> None:
        """In the first forward alone, gather as `Fsdp` does in every one."""
        if at.edge:
            super().before_forward(at)

    def after_backward(self, at: PassPoint) -> None:
        """Add up the gradients of the units that begin here; after the last backward reduce all."""
        block, chunk = at.block, at.chunk
        self._accumulate(block, chunk, at.layer)
        if at.edge and at.layer == 0:
            state = self._reducing[chunk]
            root, *units = self.roots[chunk], *self.units[chunk]
            for unit in (*units, root):
                if unit.reduced:
                    self._reduce(block, state, unit)
            block.await_next(state.all)
            self._reducing[chunk] = ReduceState()
