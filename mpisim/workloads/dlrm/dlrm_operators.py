"""The operators of a DLRM on one rank.

Sizes count every operand once. Of the forward pass is kept what autograd keeps: inputs of matrices,
outputs of activations, indices, and the features that meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpisim.kernels.operations import Embedding, Gemm, OptimizerStep

from ...experiment.models import Dlrm
from ...experiment.plan import Plan
from ...program import Operation
from ..eager_modules import FP32, INDEX, EagerModules, copy, elementwise, fill
from ..grid import Grid
from ..operators import Communicate, Compute, Operator, Parameter, Task
from .sharding import EmbeddingTable

__all__ = ["DlrmOperators"]

ROWS_ARRIVED, GRADIENTS_ARRIVED = "rows", "gradients of rows"
"""Tokens of the two all-to-alls."""

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
    own : sequence of EmbeddingTable
        The tables this rank holds.
    counts : sequence of int
        Number of tables of each rank.

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
        own: Sequence[EmbeddingTable],
        counts: Sequence[int],
    ) -> None:
        super().__init__(plan, grid)
        self.model, self.plan = model, plan
        self.own, self.counts = own, counts
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
    def interactions(self) -> int:
        """Elements of a sample that the top layers see."""
        if self.model.interaction == "cat":
            return self.features * self.model.embedding
        return self.pairs + self.model.embedding

    @property
    def own_row_elements(self) -> int:
        """Elements this rank looks up for all."""
        return self.global_batch * len(self.own) * self.model.embedding

    @property
    def all_row_elements(self) -> int:
        """Elements looked up for this rank by all."""
        return self.batch * (self.features - 1) * self.model.embedding

    # --- inputs and loss ------------------------------------------------------------------------

    def inputs(self) -> Operator:
        """Copies of the samples of all ranks to the GPU: dense features, offsets and indices."""
        dense, offsets, indices = self._inputs
        return Operator(
            "inputs",
            (
                copy("copy dense features", dense),
                copy("copy offsets", offsets),
                copy("copy indices", indices),
            ),
        )

    @property
    def input_bytes(self) -> int:
        """Bytes of the samples of all ranks."""
        return sum(self._inputs)

    @property
    def _inputs(self) -> tuple[int, int, int]:
        tables = len(self.model.table_entries)
        lookups = sum(map(self.model.lookups, range(tables)))
        return (
            FP32 * self.global_batch * self.model.dense_features,
            INDEX * self.global_batch * tables,
            INDEX * self.global_batch * lookups,
        )

    def loss(self) -> Operator:
        """Binary cross-entropy; keeps the labels."""
        size = FP32 * self.batch
        return Operator(
            "loss",
            (
                copy("copy labels", size),
                elementwise("binary cross-entropy", 3 * size),
                elementwise("mean", size + FP32),
            ),
            (
                fill("loss gradient", FP32),
                elementwise("binary cross-entropy backward", 3 * size),
                elementwise("mean backward", 2 * size),
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
        if not self.plan.fused:
            yield from self._updates()
            for i, table in enumerate(self.own):
                yield self._embedding_bag(i, table)
        elif self.own:
            yield self._table_batched_embeddings()
        if not self.single_rank:
            yield self._exchange()

    def _table_batched_embeddings(self) -> Operator:
        """All tables in one kernel each way, FBGEMM's table-batched embeddings.

        Not counted is Adagrad's state, there one number a row.
        """

        def kernel(*, backward: bool) -> Embedding:
            return Embedding(
                self.global_batch * sum(table.pooling for table in self.own),
                self.model.embedding,
                sum(table.entries for table in self.own),
                backward=backward,
                dtype="fp32",
                outputs=self.global_batch * len(self.own),
            )

        update = Compute(
            "tables update",
            kernel(backward=True),
            weight=True,
            after=self._arrived(GRADIENTS_ARRIVED),
        )
        return Operator(
            "tables",
            (Compute("tables", kernel(backward=False)),),
            (update,),
            tuple(self._parameter(i, table) for i, table in enumerate(self.own)),
            saved=sum(map(self._index_bytes, self.own)),
        )

    def _embedding_bag(self, number: int, table: EmbeddingTable) -> Operator:
        """One table, ``EmbeddingBag(sparse=True)`` of PyTorch.

        Its gradient is a copy of the gradient of its output for each lookup.
        """
        lookups = self.global_batch * table.pooling
        lookup = Embedding(lookups, table.width, table.entries, table.pooling, dtype="fp32")
        return Operator(
            f"table {number}",
            (Compute(f"table {number}", lookup),),
            (elementwise(f"table {number} gradient", lookup.traffic, weight=True),),
            (self._parameter(number, table),),
            saved=self._index_bytes(table),
        )

    def _updates(self) -> Iterator[Operator]:
        """The optimizer's sparse updates, after all gradients: backward goes from last to first."""
        each = SPARSE_UPDATE_BYTES[self.plan.optimizer]
        steps = tuple(
            Compute(
                f"table {i} update",
                OptimizerStep(self.global_batch * table.pooling * table.width, each),
                weight=True,
            )
            for i, table in enumerate(self.own)
        )
        yield Operator("table updates", (), steps)

    def _exchange(self) -> Operator:
        """Rows → the ranks whose samples they are, by all-to-all; backward their gradients."""
        forward: list[Task] = []
        backward: list[Task] = []
        if not self.plan.fused and self.own:
            forward.append(elementwise("rows concatenation", 2 * FP32 * self.own_row_elements))
            each = 2 * FP32 * self.global_batch * self.model.embedding
            for i in range(len(self.own)):
                name, kernel = f"table {i} gradient copy", elementwise("", each).kernel
                after = () if i else self._arrived(GRADIENTS_ARRIVED)
                backward.append(Compute(name, kernel, after=after))
        forward.append(self._all_to_all("rows all-to-all", ROWS_ARRIVED))
        return Operator("exchange", tuple(forward), tuple(backward))

    def _parameter(self, number: int, table: EmbeddingTable) -> Parameter:
        return Parameter(f"table {number} weight", table.size, local=True)

    def _index_bytes(self, table: EmbeddingTable) -> int:
        """Bytes of a table's indices and offsets, which the update needs again."""
        return INDEX * self.global_batch * (table.pooling + 1)

    # --- interaction ----------------------------------------------------------------------------

    def interaction(self) -> Operator:
        """Vectors of a sample → features of the top layers: side by side, or all dot products."""
        forward: list[Task]
        backward: list[Task]
        n, d, batch = self.features, self.model.embedding, self.batch
        vectors, dense = FP32 * batch * n * d, FP32 * batch * d
        joined = Compute(
            "features concatenation",
            elementwise("", 2 * vectors).kernel,
            after=self._arrived(ROWS_ARRIVED),
        )
        if self.model.interaction == "cat":
            forward, backward, saved = [joined], [], 0
        else:
            picked, index = FP32 * batch * self.pairs, 2 * INDEX * self.pairs
            output = FP32 * batch * self.interactions

            def product(name: str, rows: int, columns: int, inner: int) -> Compute:
                dtype = self.dtype
                return Compute(name, Gemm(rows, columns, inner, batch, dtype=dtype, output=dtype))

            forward = [
                joined,
                product("interaction", n, n, d),
                elementwise("pairs", 2 * picked + index),
                elementwise("interaction concatenation", 2 * output),
            ]
            backward = [
                fill("products gradient", FP32 * batch * n * n),
                elementwise("pairs backward", 3 * picked + index),
                product("features gradient", n, d, n),
                product("transposed features gradient", d, n, n),
                elementwise("features gradient sum", 3 * vectors),
                elementwise("dense gradient sum", 3 * dense),
            ]
            saved = vectors + index
        if not self.single_rank:
            for count in filter(None, self.counts):
                backward.append(elementwise("rows gradient copy", 2 * dense * count))
            backward.append(
                elementwise("rows gradient concatenation", 2 * FP32 * self.all_row_elements)
            )
            backward.append(self._all_to_all("rows gradient all-to-all", GRADIENTS_ARRIVED))
        return Operator("interaction", tuple(forward), tuple(backward), saved=saved)

    # --- messages -------------------------------------------------------------------------------

    def _all_to_all(self, name: str, token: str) -> Communicate:
        """Rows of the rank that has the most tables, beside what follows."""
        size = FP32 * self.global_batch * max(self.counts) * self.model.embedding
        return Communicate(name, Operation.ALL_TO_ALL, "dp", size, token=token, carried=True)

    def _arrived(self, token: str) -> tuple[str, ...]:
        return () if self.single_rank else (token,)
