"""PyTorch's DistributedDataParallel (torch/csrc/distributed/c10d/reducer.cpp).

Each gradient is copied into its bucket as the backward completes it, and a full bucket is reduced
beside the rest of the backward. At the backward's end the buckets are waited for one by one and
copied back. All but the last micro-batch run under ``no_sync``. Buckets are those of the second
iteration and later, when the reducer has put parameters in the order of their gradients.

Before the first forward of a step running statistics of batch normalisation go from the first rank
to the others (``broadcast_buffers``, on by default; other frameworks keep each rank's own): all
means and variances flattened into one message, all counters into another, then each is copied back
(`broadcast_coalesced` in comm.cpp beside it).

With zero = 1 the optimizer is a ZeroRedundancyOptimizer
(torch/distributed/optim/zero_redundancy_optimizer.py): each parameter belongs to one rank, which
updates it and broadcasts it. Here all ranks update as much as the busiest.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace
from typing import ClassVar

from mpisim.kernels.operations import Elementwise

from ...experiment.plan import Plan, Style
from ...program import Operation
from ..blocks import BlockBuilder
from ..grid import Groups
from ..operators import Communicate, Compute, Layer
from .buckets import Bucket, close_after
from .frameworks import frameworks
from .held import of_kind
from .strategy import Strategy, collective

__all__ = ["Ddp"]


class Ddp(Strategy):
    """Gradients reduced in buckets; parameters and their updates on all ranks.

    Attributes
    ----------
    buckets : tuple of tuple of Bucket
        Of each chunk, in the order in which they are reduced.
    """

    style: ClassVar[Style] = "ddp"
    quiet: ClassVar[bool] = True

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
        defaults = frameworks().ddp
        # A size the user gives holds for the first bucket, too (distributed.py).
        first, further = int(defaults.first_bucket.si), int(defaults.bucket.si)
        sizes = (first, further) if plan.bucket is None else (plan.bucket,)
        limits = [-(-size // self.gradient) for size in sizes]
        self.buckets = tuple(
            tuple(
                bucket
                for expert in (False, True)
                for bucket in close_after(of_kind(reversed(chunk), expert), limits)
                if not self.alone(expert)
            )
            for chunk in self.held
        )
        self._full = {
            (chunk, bucket.parameters[-1]): bucket
            for chunk, buckets in enumerate(self.buckets)
            for bucket in buckets
        }
        self._launched: dict[tuple[int, Bucket], int] = {}

    def before_forward(self, block: BlockBuilder, chunk: int, layer: int, first: bool) -> None:
        """Send running statistics to all ranks."""
        if not self.plan.broadcast_buffers:
            return
        channels = [
            operator.statistics
            for each in self.chunks[chunk]
            for operator in each.operators
            if operator.statistics
        ]
        if not first or layer > 0 or not channels or self.alone(False):
            return
        # A mean and a variance in fp32 a channel; an int64 a normalisation.
        tensors = {
            "statistics": [4 * each for each in channels for _ in range(2)],
            "counters": [8] * len(channels),
        }
        rows = []
        for what, sizes in tensors.items():
            block.compute(Compute(f"flatten {what}", Elementwise(2 * sum(sizes))))
            rows.append(
                block.launch(collective(Operation.BROADCAST, self.data(False), sum(sizes), what))
            )
        for row, (what, sizes) in zip(rows, tensors.items(), strict=True):
            assert row is not None  # the group has several members
            block.await_next([row])
            for size in sizes:
                block.compute(Compute(f"copy {what}", Elementwise(2 * size)))

    def after_gradients(
        self, block: BlockBuilder, chunk: int, layer: int, operator: int, last: bool
    ) -> None:
        """Copy gradients into buckets, and reduce those that are full."""
        if not last:
            return
        for each in self.at[chunk, layer, operator]:
            if self.alone(each.expert):
                continue
            self.copies(block, "copy gradient into bucket", [each], self.gradient)
            bucket = self._full.get((chunk, each))
            if self.plan.dp_overlap and bucket is not None:
                row = block.launch(self._reduction(bucket))
                assert row is not None  # the bucket's group has several members
                self._launched[chunk, bucket] = row

    def after_backward(self, block: BlockBuilder, chunk: int, layer: int, last: bool) -> None:
        """Wait for the buckets at the end of the backward, each before it is copied back."""
        if not last or layer > 0:
            return
        for bucket in self.buckets[chunk]:
            if self.plan.dp_overlap:
                block.await_next([self._launched[chunk, bucket]])
            else:
                block.communicate(self._reduction(bucket))
            self.copies(block, "copy gradient from bucket", bucket.parameters, self.gradient)

    def after_optimizer(self, block: BlockBuilder) -> None:
        """Broadcast each parameter from the rank that has updated it."""
        if not self.plan.zero:
            return
        rows = []
        for expert in (False, True):
            for share in self._shares(expert):
                for size in share:
                    step = collective(
                        Operation.BROADCAST, self.shard(expert), self.weight * size, "parameter"
                    )
                    row = block.launch(step)
                    rows += [] if row is None else [row]
        block.await_next(rows)

    @property
    def updated(self) -> int:
        """Parameters the optimizer updates; with zero = 1 those of the busiest rank."""
        if not self.plan.zero:
            return super().updated
        return sum(max(map(sum, self._shares(expert))) for expert in (False, True))

    @property
    def norm_groups(self) -> tuple[str, ...]:
        """None: nothing clips gradients."""
        return ()

    def _shares(self, expert: bool) -> list[list[int]]:
        """Return the sizes of each rank's parameters: the largest first, to whom has the least."""
        shares: list[list[int]] = [[] for _ in range(self.sharers(expert))]
        loads = [(0, rank) for rank in range(len(shares))]
        sizes = (each.size for chunk in self.held for each in chunk if each.expert is expert)
        for size in sorted(sizes, reverse=True):
            load, rank = loads[0]
            shares[rank].append(size)
            heapreplace(loads, (load + size, rank))
        return shares

    def _reduction(self, bucket: Bucket) -> Communicate:
        group, size = self.data(bucket.expert), self.gradient * bucket.size
        return collective(Operation.ALL_REDUCE, group, size, "gradient")
