"""The operators of a DLRM on one rank.

Sizes count every operand once. Of the forward pass is kept what autograd keeps: inputs of matrices,
outputs of activations, indices, and the features that meet.

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

Indices come to a rank in one of three ways (``plan.tables.inputs``). What travels among ranks is
taken to be as much from each to each, though tables with more lookups draw more indices.

Rows in host memory pass the host's link: with ``fused_uvm`` each lookup does, since the GPU does
not cache what it reads there (CUDA C++ Best Practices Guide, "Zero Copy"), and updates read and
write each distinct row; with ``fused_uvm_caching`` the rows of the batch that the cache does not
hold are fetched once before the lookup, and as many others, which were changed, written back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mpisim.kernels.operations import Embedding, EmbeddingTables, Gemm, OptimizerStep

from ...experiment.models import Dlrm
from ...experiment.plan import Plan
from ...program import Operation
from ..eager_modules import FP32, INDEX, EagerModules, copy, elementwise, fill
from ..grid import Grid
from ..operators import Communicate, Compute, Operator, Parameter, Task
from .tables import Shard

__all__ = ["DlrmOperators"]

ROWS_ARRIVED, GRADIENTS_ARRIVED = "rows", "gradients of rows"
"""Tokens of the two all-to-alls."""

SUMS_ARRIVED, ALL_GRADIENTS_ARRIVED = "sums of rows", "gradients of sums"
"""Tokens of the reduce-scatter and the all-gather of tables divided by rows."""

SPARSE_UPDATE_BYTES = {"sgd": 12, "adagrad": 20}
"""Bytes of a sparse update for each element looked up: the gradient read, the weight (and the sum
of squares) read and written."""


class DlrmOperators(EagerModules):
    """Factory of the operators of one rank.

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
    def features(self) -> int:
        """Vectors that interact in a sample: one of each table, and the dense one."""
        return len(self.model.table_entries) + 1

    @property
    def pairs(self) -> int:
        """Pairs of these vectors."""
        return self.features * (self.features - 1) // 2

    @property
    def base(self) -> int:
        """Width of the vectors that interact."""
        return self.model.bottom_mlp[-1]

    @property
    def interactions(self) -> int:
        """Elements of a sample that the top layers see."""
        if self.model.interaction != "dot":
            return sum(self.model.widths) + self.base
        return self.pairs + self.base

    @property
    def own_row_elements(self) -> int:
        """Elements this rank looks up for all, and sends."""
        return self.global_batch * sum(each.width for each in self.own if each.exchanged)

    @property
    def all_row_elements(self) -> int:
        """Elements looked up for this rank by all."""
        return self.batch * sum(self.model.widths)

    @property
    def summed_elements(self) -> int:
        """Elements of a batch of all ranks to which each rank's rows add."""
        return self.global_batch * sum(each.width for each in self.by_rows)

    # --- inputs and loss ------------------------------------------------------------------------

    def inputs(self) -> Operator:
        """Samples → dense features, offsets and indices on the GPU (``plan.tables.inputs``)."""
        dense, offsets, indices = self._inputs
        tasks: list[Task] = [
            copy("copy dense features", dense),
            copy("copy offsets", offsets),
            copy("copy indices", indices),
        ]
        kind = self.plan.tables.inputs
        if kind == "ahead":  # beside the step before, as this step's are
            tasks = []
        if kind != "all" and self._handed_on:
            # Those of the next step are waited for by nothing in this one.
            token = "indices of the next step" if kind == "ahead" else ""
            size = self._handed_on
            tasks.append(
                Communicate(
                    "indices all-to-all",
                    Operation.ALL_TO_ALL,
                    "dp",
                    size,
                    token=token,
                    carried=True,
                )
            )
        if self.mixed:
            narrowed = self._read_samples * self.model.dense_features * (FP32 + self.element)
            tasks.append(elementwise("dense features cast", narrowed))
        return Operator("inputs", tuple(tasks))

    @property
    def input_bytes(self) -> int:
        """Bytes of the samples that this rank reads."""
        return sum(self._inputs)

    @property
    def _read_samples(self) -> int:
        """Samples that this rank reads."""
        return self.global_batch if self.plan.tables.inputs == "all" else self.batch

    @property
    def _inputs(self) -> tuple[int, int, int]:
        tables = len(self.model.table_entries)
        lookups = sum(map(self.model.lookups, range(tables)))
        return (
            FP32 * self._read_samples * self.model.dense_features,
            INDEX * self._read_samples * tables,
            INDEX * self._read_samples * lookups,
        )

    @property
    def _handed_on(self) -> int:
        """Bytes of offsets and indices of this rank's samples in tables that not all ranks have."""
        if self.single_rank:
            return 0
        copies = [each.table for each in self.own if each.sharding == "data_parallel"]
        tables = len(self.model.table_entries)
        numbers = sum(self.model.lookups(i) + 1 for i in range(tables))
        return INDEX * self.batch * (numbers - sum(each.pooling + 1 for each in copies))

    def loss(self) -> Operator:
        """Binary cross-entropy; keeps the labels."""
        size = FP32 * self.batch
        cast = (FP32 + self.element) * self.batch
        return Operator(
            "loss",
            (
                copy("copy labels", size),
                *([elementwise("loss cast", cast)] if self.mixed else []),
                elementwise("binary cross-entropy", 3 * size),
                elementwise("mean", size + FP32),
            ),
            (
                fill("loss gradient", FP32),
                elementwise("binary cross-entropy backward", 3 * size),
                elementwise("mean backward", 2 * size),
                *([elementwise("loss cast backward", cast)] if self.mixed else []),
            ),
            saved=size,
        )

    # --- matrices -------------------------------------------------------------------------------

    def bottom(self) -> Iterator[Operator]:
        """Dense features → vector that interacts."""
        widths = (self.model.dense_features, *self.model.bottom_mlp)
        yield from self._mlp("bottom", widths, first=True)

    def top(self) -> Iterator[Operator]:
        """Interactions → click probability; the last layer ends with a sigmoid."""
        yield from self._mlp("top", (self.interactions, *self.model.top_mlp), last="sigmoid")

    def _mlp(
        self, name: str, widths: Sequence[int], *, first: bool = False, last: str = "relu"
    ) -> Iterator[Operator]:
        count = len(widths) - 1
        for i in range(1, count + 1):
            yield self.linear(
                f"{name} {i}",
                self.batch,
                widths[i - 1],
                widths[i],
                first=first and i == 1,
                kept=i > 1,
            )
            kind = last if i == count else "relu"
            yield self.activation(f"{name} {i} {kind}", self.batch * widths[i])

    # --- tables ---------------------------------------------------------------------------------

    def tables(self) -> Iterator[Operator]:
        """Indices of all ranks' samples → rows of this rank's tables, sent to their ranks."""
        if not self.plan.framework.fused:
            yield from self._updates()
            for i, shard in enumerate(self.own):
                yield self._embedding_bag(i, shard)
            if not self.single_rank:
                yield self._exchange()
            return
        arrived = self._arrived(GRADIENTS_ARRIVED) if max(self.sent) else ()
        exchanged = [each for each in self.own if each.exchanged]
        yield from self._table_batched_embeddings("tables", exchanged, arrived)
        if not self.single_rank and max(self.sent):
            yield self._exchange()
        if self.by_rows:
            arrived = self._arrived(ALL_GRADIENTS_ARRIVED)
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
                after = () if i else self._arrived(GRADIENTS_ARRIVED)
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

    # --- interaction ----------------------------------------------------------------------------

    def interaction(self) -> Operator:
        """Vectors of a sample → features of the top layers: side by side, or all dot products."""
        forward: list[Task]
        backward: list[Task]
        n, d, batch = self.features, self.base, self.batch
        dense = self.element * batch * d
        arrived = self._arrived(ROWS_ARRIVED) if max(self.sent) else ()
        if self.by_rows:
            arrived += self._arrived(SUMS_ARRIVED)
        widened, narrowed = self._widening(arrived)
        side_by_side = self.model.interaction != "dot"
        vectors = self.element * batch * n * d
        if side_by_side:
            vectors = self.element * self.all_row_elements + dense
        joined = Compute(
            "features concatenation",
            elementwise("", 2 * vectors).kernel,
            after=() if widened else arrived,
        )
        if side_by_side:
            forward, backward, saved = [joined], [], 0
        else:
            picked, index = self.element * batch * self.pairs, 2 * INDEX * self.pairs
            output = self.element * batch * self.interactions

            def product(name: str, rows: int, columns: int, inner: int) -> Compute:
                dtype = self.dtype
                return Compute(name, Gemm(rows, columns, inner, batch, dtype=dtype, output=dtype))

            forward = [
                *widened,
                joined,
                product("interaction", n, n, d),
                elementwise("pairs", 2 * picked + index),
                elementwise("interaction concatenation", 2 * output),
            ]
            backward = [
                fill("products gradient", self.element * batch * n * n),
                elementwise("pairs backward", 3 * picked + index),
                product("features gradient", n, d, n),
                product("transposed features gradient", d, n, n),
                elementwise("features gradient sum", 3 * vectors),
                elementwise("dense gradient sum", 3 * dense),
                *narrowed,
            ]
            saved = vectors + index
        if not self.single_rank:
            backward += self._gradients_sent()
        parameters = tuple(self._widening_parameters())
        return Operator("interaction", tuple(forward), tuple(backward), parameters, saved=saved)

    def cross(self) -> Iterator[Operator]:
        """Features side by side → as many, each layer times the first (DCNv2, arXiv:2008.13535).

        ``LowRankCrossNet`` of TorchRec (torchrec/modules/crossnet.py): two matrices through few
        features, a bias, the product with what came in first, and the sum.
        """
        if self.model.interaction != "cross":
            return
        width, rank = self.interactions, self.model.cross_rank
        size = self.element * self.batch * width
        for i in range(1, self.model.cross_layers + 1):
            yield self.linear(f"cross {i} down", self.batch, width, rank)
            yield self.linear(f"cross {i} up", self.batch, rank, width)
            yield Operator(
                f"cross {i}",
                (elementwise(f"cross {i}", 4 * size),),
                (
                    elementwise(f"cross {i} product backward", 5 * size),
                    elementwise(f"cross {i} gradient sum", 3 * size),
                ),
                saved=2 * size,
            )

    def _gradients_sent(self) -> Iterator[Task]:
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

    def _narrow(self) -> dict[int, int]:
        """Widths below that of the vectors that interact, and how many tables have each."""
        if self.model.interaction != "dot":
            return {}
        narrow = sorted(width for width in self.model.widths if width < self.base)
        return {width: narrow.count(width) for width in dict.fromkeys(narrow)}

    def _widening(self, after: tuple[str, ...]) -> tuple[list[Task], list[Task]]:
        """Pooled rows → vectors as wide as the others, by a matrix for each table without a bias.

        `PrEmbeddingBag` of facebookresearch/dlrm (tricks/md_embedding_bag.py); here behind the
        exchange, so that narrow rows travel, and tables of one width in one batched product.
        """
        forward: list[Task] = []
        backward: list[Task] = []
        for width, number in self._narrow().items():

            def product(m: int, n: int, k: int, batch: int = number) -> Gemm:
                return Gemm(m, n, k, batch, dtype=self.dtype, output=self.dtype)

            name, waits = f"widening from {width}", () if forward else after
            forward.append(Compute(name, product(self.batch, self.base, width), after=waits))
            inward = product(self.batch, width, self.base)
            gradient = product(self.base, width, self.batch)
            backward.append(Compute(f"{name} input gradient", inward))
            backward.append(Compute(f"{name} weight gradient", gradient, weight=True))
        return forward, backward

    def _widening_parameters(self) -> Iterator[Parameter]:
        for width, number in self._narrow().items():
            for i in range(number):
                yield Parameter(f"widening from {width} {i} weight", width * self.base)

    # --- messages -------------------------------------------------------------------------------

    def _all_to_all(self, name: str, token: str) -> Communicate:
        """Rows of the rank that sends the most, beside what follows."""
        size = self.element * self.global_batch * max(self.sent)
        return Communicate(name, Operation.ALL_TO_ALL, "dp", size, token=token, carried=True)

    def _arrived(self, token: str) -> tuple[str, ...]:
        return () if self.single_rank else (token,)
