"""The embedding tables of a DLRM on one rank: lookups, updates, and what travels for them.

Tables that are looked up for the samples of all ranks (whole ones and slices of columns) are one
kernel each way, tables divided by rows another, copies on all ranks a third; those in host memory
have their own of each (TorchRec's lookups, grouped by kind of sharding and of kernel). What the
kernels give travels so:

===================  ==========================================  ==================================
tables               forward                                     backward
===================  ==========================================  ==================================
whole, columns       all-to-all of the pooled rows               all-to-all of their gradients
row_wise             reduce-scatter of what each rank's rows     all-gather of the gradients of
                     add to the pooled rows                      pooled rows
data_parallel        nothing                                     all-reduce of the table's gradient,
                                                                 dense, as of any other weight
===================  ==========================================  ==================================

What travels among ranks is taken to be as much from each to each, though tables with more lookups
draw more indices.

Rows in host memory pass the host's link: with ``fused_uvm`` each lookup does, since the GPU does
not cache what it reads there (CUDA C++ Best Practices Guide, "Zero Copy"), and updates read and
write each distinct row; with ``fused_uvm_caching`` the rows of the batch that the cache does not
hold are fetched once before the lookup, and as many others, which were changed, written back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mpisim.kernels.operations import Embedding, EmbeddingTables, OptimizerStep

from ...experiment.models import Dlrm
from ...experiment.plan import Plan
from ...program import Operation
from ..eager_modules import FP32, INDEX, EagerModules, copy, elementwise, fill
from ..grid import Grid
from ..operators import Communicate, Compute, Operator, Parameter, Task
from .tables import Shard

__all__ = ["TableOperators"]

ROWS_ARRIVED, GRADIENTS_ARRIVED = "rows", "gradients of rows"
"""Tokens of the two all-to-alls."""

SUMS_ARRIVED, ALL_GRADIENTS_ARRIVED = "sums of rows", "gradients of sums"
"""Tokens of the reduce-scatter and the all-gather of tables divided by rows."""

SPARSE_UPDATE_BYTES = {"sgd": 12, "adagrad": 20}
"""Bytes of a sparse update for each element looked up: the gradient read, the weight (and the sum
of squares) read and written."""


class TableOperators(EagerModules):
    """Factory of the operators of one rank's tables.

    Parameters
    ----------
    model : Dlrm
    plan : Plan
    grid : Grid
    own : sequence of Shard
        What this rank holds of the tables.
    sent : sequence of tuple of int
        Of each rank the widths of the pooled rows that it sends for a sample.

    Attributes
    ----------
    batch : int
        Samples of this rank.
    global_batch : int
        Samples of all ranks.
    """

    def __init__(
        self,
        model: Dlrm,
        plan: Plan,
        grid: Grid,
        own: Sequence[Shard],
        sent: Sequence[Sequence[int]],
    ) -> None:
        super().__init__(plan, grid)
        self.model, self.plan = model, plan
        self.own, self.sent = own, [sum(widths) for widths in sent]
        self.by_rows = [each for each in own if each.by_rows]
        self.batch = plan.micro_batch
        self.global_batch = grid.dp * plan.micro_batch
        self.single_rank = grid.dp == 1

    @property
    def own_row_elements(self) -> int:
        """Elements this rank looks up for all, and sends."""
        return self.global_batch * sum(each.width for each in self.own if each.exchanged)

    @property
    def summed_elements(self) -> int:
        """Elements of a batch of all ranks to which each rank's rows add."""
        return self.global_batch * sum(each.width for each in self.by_rows)

    def tables(self) -> Iterator[Operator]:
        """Indices of all ranks' samples → rows of this rank's tables, sent to their ranks."""
        if not self.plan.framework.fused:
            yield from self._updates()
            for i, shard in enumerate(self.own):
                yield self._embedding_bag(i, shard)
            if not self.single_rank:
                yield self._exchange()
            return
        arrived = self.arrived(GRADIENTS_ARRIVED) if max(self.sent) else ()
        exchanged = [each for each in self.own if each.exchanged]
        yield from self._table_batched_embeddings("tables", exchanged, arrived)
        if not self.single_rank and max(self.sent):
            yield self._exchange()
        if self.by_rows:
            arrived = self.arrived(ALL_GRADIENTS_ARRIVED)
            yield from self._table_batched_embeddings("row-wise tables", self.by_rows, arrived)
            if not self.single_rank:
                yield self._reduce_scatter()
        copies = [each for each in self.own if each.sharding == "data_parallel"]
        yield from self._table_batched_embeddings("replicated tables", copies, ())

    def _table_batched_embeddings(
        self, name: str, shards: Sequence[Shard], after: tuple[str, ...]
    ) -> Iterator[Operator]:
        """Tables in one kernel each way, FBGEMM's table-batched embeddings.

        Those of each kind of memory are one. Not counted is Adagrad's state, there one number a
        row.
        """
        for kernel, suffix in (
            ("fused", ""),
            ("fused_uvm", " in host memory"),
            ("fused_uvm_caching", " in host memory, cached"),
        ):
            group = [each for each in shards if each.kernel == kernel]
            if group:
                yield self._tables_in_one_kernel(name + suffix, group, after)

    def _tables_in_one_kernel(
        self, name: str, shards: Sequence[Shard], after: tuple[str, ...]
    ) -> Operator:
        numbers = {id(each): number for number, each in enumerate(self.own)}
        forward = Compute(name, self._lookup(shards, backward=False))
        update = Compute(f"{name} update", self._lookup(shards, backward=True), True, after)
        begin, end = self._host_traffic(name, shards, after)
        dense = [each for each in shards if each.sharding == "data_parallel"]
        zeros = [
            Compute(f"{name} gradient", fill("", FP32 * each.size).kernel, weight=True)
            for each in dense
        ]
        return Operator(
            name,
            (*begin, forward),
            (*zeros, *end, update),
            tuple(self._parameter(numbers[id(each)], each) for each in shards if each.resident),
            saved=sum(map(self._index_bytes, shards)),
        )

    def _lookup(self, shards: Sequence[Shard], *, backward: bool) -> EmbeddingTables:
        """Lookups of a batch in several tables, one after the other: each has the whole cache."""
        batch = self.global_batch
        lookups = [each.lookups(batch) for each in shards]
        reuse = [each.reuse(batch) for each in shards]
        rows = [FP32 * each.width for each in shards]
        missed = np.sum(
            [one.missed_bytes(row) for one, row in zip(reuse, rows, strict=True)], axis=0
        )
        return EmbeddingTables(
            sum(lookups),
            sum(n * row for n, row in zip(lookups, rows, strict=True)),
            max(1, round(sum(one.distinct * row for one, row in zip(reuse, rows, strict=True)))),
            sum(each.samples(batch) * self.element * each.width for each in shards),
            tuple(map(round, missed.tolist())),
            backward,
        )

    def _host_traffic(
        self, name: str, shards: Sequence[Shard], after: tuple[str, ...]
    ) -> tuple[list[Task], list[Task]]:
        """Rows that pass the host's link, for the lookup and for the update."""
        kernel, batch = shards[0].kernel, self.global_batch
        if kernel == "fused":
            return [], []
        if kernel == "fused_uvm":
            read = sum(FP32 * each.width * each.lookups(batch) for each in shards)
            changed = sum(FP32 * each.width * each.reuse(batch).distinct for each in shards)
            update = copy(f"{name} rows changed", max(1, round(2 * changed))).kernel
            rows = [copy(f"{name} rows", read)]
            return [*rows], [Compute(f"{name} rows changed", update, True, after)]
        fetched = sum(FP32 * each.width * each.fetched(batch) for each in shards)
        if fetched < 1:
            return [], []
        evict = copy(f"{name} rows evicted", round(fetched))
        return [evict, copy(f"{name} rows fetched", round(fetched))], []

    def _embedding_bag(self, number: int, shard: Shard) -> Operator:
        """One table, ``EmbeddingBag(sparse=True)`` of PyTorch.

        Its gradient is a copy of the gradient of its output for each lookup.
        """
        pooling = shard.table.pooling
        lookups = self.global_batch * pooling
        lookup = Embedding(lookups, shard.width, shard.entries, pooling, dtype="fp32")
        return Operator(
            f"table {number}",
            (Compute(f"table {number}", lookup),),
            (elementwise(f"table {number} gradient", lookup.traffic, weight=True),),
            (self._parameter(number, shard),),
            saved=self._index_bytes(shard),
        )

    def _updates(self) -> Iterator[Operator]:
        """The optimizer's sparse updates, after all gradients: backward goes from last to first."""
        each = SPARSE_UPDATE_BYTES[self.plan.optimizer]
        steps = tuple(
            Compute(
                f"table {i} update",
                OptimizerStep(self.global_batch * shard.table.pooling * shard.width, each),
                weight=True,
            )
            for i, shard in enumerate(self.own)
        )
        yield Operator("table updates", (), steps)

    def _exchange(self) -> Operator:
        """Rows → the ranks whose samples they are, by all-to-all; backward their gradients."""
        forward: list[Task] = []
        backward: list[Task] = []
        if not self.plan.framework.fused and self.own:
            forward.append(
                elementwise("rows concatenation", 2 * self.element * self.own_row_elements)
            )
            for i, shard in enumerate(self.own):
                each = 2 * self.element * self.global_batch * shard.width
                name, kernel = f"table {i} gradient copy", elementwise("", each).kernel
                after = () if i else self.arrived(GRADIENTS_ARRIVED)
                backward.append(Compute(name, kernel, after=after))
        forward.append(self._all_to_all("rows all-to-all", ROWS_ARRIVED))
        return Operator("exchange", tuple(forward), tuple(backward))

    def _reduce_scatter(self) -> Operator:
        """Partial pooled rows of all samples → sums for this rank's samples, by reduce-scatter."""
        task = Communicate(
            "sums reduce-scatter",
            Operation.REDUCE_SCATTER,
            "dp",
            self.element * self.summed_elements,
            token=SUMS_ARRIVED,
            carried=True,
        )
        return Operator("sums", (task,))

    def _parameter(self, number: int, shard: Shard) -> Parameter:
        local = shard.sharding != "data_parallel"
        return Parameter(f"table {number} weight", shard.resident, local=local)

    def _index_bytes(self, shard: Shard) -> int:
        """Bytes of a table's indices and offsets, which the update needs again."""
        samples = shard.samples(self.global_batch)
        return INDEX * samples * (shard.table.pooling + 1)

    def gradients_sent(self) -> Iterator[Task]:
        """Gradients of this rank's rows → the ranks that have the tables."""
        if max(self.sent):
            row = self.element * self.batch
            for width in filter(None, self.sent):
                yield elementwise("rows gradient copy", 2 * row * width)
            yield elementwise("rows gradient concatenation", 2 * row * sum(self.sent))
            yield self._all_to_all("rows gradient all-to-all", GRADIENTS_ARRIVED)
        if self.by_rows:
            yield Communicate(
                "sums gradient all-gather",
                Operation.ALL_GATHER,
                "dp",
                self.element * self.summed_elements,
                token=ALL_GRADIENTS_ARRIVED,
                carried=True,
            )

    def _all_to_all(self, name: str, token: str) -> Communicate:
        """Rows of the rank that sends the most, beside what follows."""
        size = self.element * self.global_batch * max(self.sent)
        return Communicate(name, Operation.ALL_TO_ALL, "dp", size, token=token, carried=True)

    def arrived(self, token: str) -> tuple[str, ...]:
        """Return the token to wait for, of a message that has one where there are other ranks."""
        return () if self.single_rank else (token,)
