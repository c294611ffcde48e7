"""PyTorch's DistributedDataParallel (torch/csrc/distributed/c10d/reducer.cpp).

Each gradient is copied into its bucket as the backward completes it, and a full bucket is reduced
beside the rest of the backward. At the backward's end the buckets are waited for one by one and
copied back. Compiled code launches a copy for each parameter. All but the last micro-batch run
under ``no_sync``. Buckets are those of the second iteration and later, when the reducer has put
parameters in the order of their gradients.

Before PyTorch 1.6 a full bucket is divided by the number of ranks in a kernel of its own
(``divides_buckets``); since then the copies into it divide (pull requests 34904 and 40358).

With ``find_unused_parameters`` the CPU walks autograd's graph behind the last forward, and behind
the last bucket a number for each parameter says whether it was used: copied to the device and
added up over all ranks. If all were, as here, nobody waits for the sums but the device.

Before the first forward of a step running statistics of batch normalisation go from the first rank
to the others (``broadcast_buffers``, on by default; other frameworks keep each rank's own): all
means and variances flattened into one message, all counters into another, then each is copied back
(`broadcast_coalesced` in comm.cpp beside it).

Without expert parallelism experts are parameters like all others: they share buckets with them.

With zero = 1 the optimizer is a ZeroRedundancyOptimizer
(torch/distributed/optim/zero_redundancy_optimizer.py): each parameter belongs to one rank, which
updates it and broadcasts it. Here all ranks update as much as the busiest.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace
from typing import ClassVar

from mpisim.kernels.operations import Copy, Elementwise

from ...experiment.plan import Style
from ...program import Operation
from ..blocks import BlockBuilder
from ..operators import Communicate, Compute
from .buckets import Bucket, ChunkParameter, buckets_closed_after, of_kind
from .frameworks import frameworks
from .strategy import PassPoint, Strategy, collective

__all__ = ["Ddp"]

INT32 = 4
"""Bytes of the number that says whether a parameter was used."""


class Ddp(Strategy):
    """Gradients reduced in buckets; parameters and their updates on all ranks.

    Attributes
    ----------
    buckets : tuple of tuple of Bucket
        Of each chunk, in the order in which they are reduced.
    """

    style: ClassVar[Style] = "ddp"
    first_and_last_only: ClassVar[bool] = True

    def _prepare(self) -> None:
        defaults, limits = frameworks().ddp, self._limits()
        self.buckets = tuple(
            tuple(
                bucket
                for expert in (False, True)
                for bucket in buckets_closed_after(of_kind(reversed(chunk), expert), limits)
                if not self.unreplicated(expert)
            )
            for chunk in self.parameters
        )
        self._full = {
            (chunk, bucket.parameters[-1]): bucket
            for chunk, buckets in enumerate(self.buckets)
            for bucket in buckets
        }
        self._launched: dict[tuple[int, Bucket], int] = {}
        self._copy_launch = defaults.copy_launch.value
        self._searched_node = defaults.searched_node.value

    def _limits(self) -> Sequence[int]:
        """Return how many elements fill the first bucket, the second, …; the last for the rest."""
        defaults, given = frameworks().ddp, self.plan.framework.bucket
        # A size the user gives holds for the first bucket, too (distributed.py).
        first, further = int(defaults.first_bucket.si), int(defaults.bucket.si)
        sizes = (first, further) if given is None else (given,)
        return [-(-size // self.gradient_size) for size in sizes]

    def before_forward(self, at: PassPoint) -> None:
        """Before the first forward, send the running statistics of all the chunk's layers."""
        block = at.block
        if not self.plan.framework.broadcast_buffers:
            return
        channels = [
            operator.statistics
            for each in self.chunks[at.chunk]
            for operator in each.operators
            if operator.statistics
        ]
        if not at.edge or at.layer > 0 or not channels or self.unreplicated(False):
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
                block.launch(
                    collective(Operation.BROADCAST, self.data_group(False), sum(sizes), what)
                )
            )
        for row, (what, sizes) in zip(rows, tensors.items(), strict=True):
            assert row is not None  # the group has several members
            block.await_next([row])
            for size in sizes:
                copy = Elementwise(2 * size)
                block.compute(Compute(f"copy {what}", copy, launch_share=self._copy_launch))

    def before_backward(self, at: PassPoint) -> None:
        """Behind the last forward, look for parameters that it did not use."""
        if not self._finds_unused(at) or at.layer < len(self.chunks[at.chunk]) - 1:
            return
        operators = [each for layer in self.chunks[at.chunk] for each in layer.operators]
        kernels = sum(isinstance(task, Compute) for each in operators for task in each.forward)
        launching = at.block.pricing.launching
        launch = launching["host"] + launching["launch_cost"]
        nodes = kernels + len(self.parameters[at.chunk])
        at.block.host_wait(
            [], "unused parameters", host=round(self._searched_node * launch * nodes)
        )

    def after_gradients(self, at: PassPoint) -> None:
        """In the last backward, copy gradients into buckets and reduce those that are full."""
        if not at.edge:
            return
        for each in self.of_operator[at.operator_key]:
            if self.unreplicated(each.expert):
                continue
            self._write_copies(at.block, "copy gradient into bucket", [each])
            bucket = self._full.get((at.chunk, each))
            if bucket is None:
                continue
            if self.plan.framework.divides_buckets:
                self._compute(at.block, "divide bucket", 2 * self.gradient_size * bucket.size)
            if self.plan.overlap.dp:
                row = at.block.launch(self._reduction(bucket))
                assert row is not None  # the bucket's group has several members
                self._launched[at.chunk, bucket] = row

    def after_backward(self, at: PassPoint) -> None:
        """At the end of the last backward, wait for each bucket and copy it back."""
        block = at.block
        if not at.edge or at.layer > 0:
            return
        used = self._reduce_used(at)
        for bucket in self.buckets[at.chunk]:
            if self.plan.overlap.dp:
                block.await_next([self._launched[at.chunk, bucket]])
            else:
                block.communicate(self._reduction(bucket))
            self._write_copies(block, "copy gradient from bucket", bucket.parameters)
        block.await_next(used)

    def _finds_unused(self, at: PassPoint) -> bool:
        return (
            at.edge and self.plan.framework.find_unused_parameters and bool(self.buckets[at.chunk])
        )

    def _reduce_used(self, at: PassPoint) -> list[int]:
        """Add up over all ranks which parameters were used; return the row, if there is one."""
        if not self._finds_unused(at):
            return []
        size = INT32 * len(self.parameters[at.chunk])
        block = at.block
        block.compute(
            Compute("copy used parameters", Copy(size, "host"), launch_share=self._copy_launch)
        )
        group = self.data_group(False)
        row = block.launch(collective(Operation.ALL_REDUCE, group, size, "used parameters"))
        return [] if row is None else [row]

    def _compute(self, block: BlockBuilder, name: str, size: int) -> None:
        """Write an elementwise kernel that the reducer launches from compiled code."""
        block.compute(Compute(name, Elementwise(size), launch_share=self._copy_launch))

    def after_optimizer(self, block: BlockBuilder) -> None:
        """Broadcast each parameter from the rank that has updated it."""
        if not self.plan.zero:
            return
        rows = []
        for expert in (False, True):
            for share in self._shares(expert):
                for size in share:
                    step = collective(
                        Operation.BROADCAST,
                        self.shard_group(expert),
                        self.weight_size * size,
                        "parameter",
                    )
                    row = block.launch(step)
                    rows += [] if row is None else [row]
        block.await_next(rows)

    @property
    def updated_parameters(self) -> int:
        """Parameters the optimizer updates; with zero = 1 those of the busiest rank."""
        if not self.plan.zero:
            return super().updated_parameters
        return sum(max(map(sum, self._shares(expert))) for expert in (False, True))

    @property
    def norm_groups(self) -> tuple[str, ...]:
        """None: nothing clips gradients."""
        return ()

    def _write_copies(
        self, block: BlockBuilder, name: str, parameters: Sequence[ChunkParameter]
    ) -> None:
        """Write copies of gradients, which the reducer launches from compiled code."""
        self.write_copies(
            block, name, parameters, self.gradient_size, launch_share=self._copy_launch
        )

    def _shares(self, expert: bool) -> list[list[int]]:
        """Sizes of the parameters of each rank: the largest first, to the rank with the least."""
        shares: list[list[int]] = [[] for _ in range(self.shard_ranks(expert))]
        loads = [(0, rank) for rank in range(len(shares))]
        sizes = (each.size for chunk in self.parameters for each in chunk if each.expert is expert)
        for size in sorted(sizes, reverse=True):
            load, rank = loads[0]
            shares[rank].append(size)
            heapreplace(loads, (load + size, rank))
        return shares

    def _reduction(self, bucket: Bucket) -> Communicate:
        group, size = self.data_group(bucket.expert), self.gradient_size * bucket.size
        return collective(Operation.ALL_REDUCE, group, size, "gradient")
