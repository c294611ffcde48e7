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
from ..eager_modules import FP32, INDEX, EagerModules, copy, fill, stream
from ..grid import Grid
from ..operators import Communicate, Compute, Operator, Parameter, Task
from .sharding import Table

__all__ = ["Modules"]

ROWS, GRADIENTS = "rows", "gradients of rows"
"""Tokens of the two all-to-alls."""

UPDATE = {"sgd": 12, "adagrad": 20}
"""Bytes of a sparse update for each element looked up: the gradient read, the weight (and the sum
of squares) read and written."""


class Modules(EagerModules):
    """Writes the operators of a rank.

    Parameters
    ----------
    model : Dlrm
    plan : Plan
    grid : Grid
    own : sequence of Table
        The tables this rank holds.
    counts : sequence of int
        How many each rank holds.

    Attributes
    ----------
    batch : int
        Samples of this rank.
    everyone : int
        Samples of all ranks.
    """

    def __init__(
        self, model: Dlrm, plan: Plan, grid: Grid, own: Sequence[Table], counts: Sequence[int]
    ) -> None:
        super().__init__(plan, grid)
        self.model, self.plan = model, plan
        self.own, self.counts = own, counts
        self.batch = plan.micro_batch
        self.everyone = grid.dp * plan.micro_batch
        self.alone = grid.dp == 1

    @property
    def features(self) -> int:
        """Vectors that meet: one of each table, and the dense one."""
        return len(self.model.table_entries) + 1

    @property
    def pairs(self) -> int:
        """Pairs of them."""
        return self.features * (self.features - 1) // 2

    @property
    def interactions(self) -> int:
        """Elements of a sample that the top layers see."""
        if self.model.interaction == "cat":
            return self.features * self.model.embedding
        return self.pairs + self.model.embedding

    @property
    def own_rows(self) -> int:
        """Elements this rank looks up for all."""
        return self.everyone * len(self.own) * self.model.embedding

    @property
    def all_rows(self) -> int:
        """Elements looked up for this rank by all."""
        return self.batch * (self.features - 1) * self.model.embedding

    # --- inputs and loss ------------------------------------------------------------------------

    def inputs(self) -> Operator:
        """The samples of all ranks, on their way to the GPU: dense, offsets and indices."""
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
            FP32 * self.everyone * self.model.dense_features,
            INDEX * self.everyone * tables,
            INDEX * self.everyone * lookups,
        )

    def loss(self) -> Operator:
        """Binary cross-entropy; keeps the labels."""
        size = FP32 * self.batch
        return Operator(
            "loss",
            (
                copy("copy labels", size),
                stream("binary cross-entropy", 3 * size),
                stream("mean", size + FP32),
            ),
            (
                fill("loss gradient", FP32),
                stream("binary cross-entropy backward", 3 * size),
                stream("mean backward", 2 * size),
            ),
            saved=size,
        )

    # --- matrices -------------------------------------------------------------------------------

    def bottom(self) -> Iterator[Operator]:
        """The layers that dense features pass."""
        widths = (self.model.dense_features, *self.model.bottom_mlp)
        yield from self._mlp("bottom", widths, first=True)

    def top(self) -> Iterator[Operator]:
        """The layers that interactions pass; the last ends with a sigmoid."""
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
        """Look up this rank's tables for all ranks, and send the rows off."""
        if not self.plan.fused:
            yield from self._updates()
            for i, table in enumerate(self.own):
                yield self._bag(i, table)
        elif self.own:
            yield self._batched()
        if not self.alone:
            yield self._exchange()

    def _batched(self) -> Operator:
        """All tables in one kernel; not counted is Adagrad's state, there one number a row."""

        def kernel(*, backward: bool) -> Embedding:
            return Embedding(
                self.everyone * sum(table.pooling for table in self.own),
                self.model.embedding,
                sum(table.entries for table in self.own),
                backward=backward,
                dtype="fp32",
                outputs=self.everyone * len(self.own),
            )

        update = Compute(
            "tables update", kernel(backward=True), weight=True, after=self._arrived(GRADIENTS)
        )
        return Operator(
            "tables",
            (Compute("tables", kernel(backward=False)),),
            (update,),
            tuple(self._parameter(i, table) for i, table in enumerate(self.own)),
            saved=sum(map(self._kept, self.own)),
        )

    def _bag(self, number: int, table: Table) -> Operator:
        """One table; its gradient is a copy of the gradient of its output for each lookup."""
        lookups = self.everyone * table.pooling
        lookup = Embedding(lookups, table.width, table.entries, table.pooling, dtype="fp32")
        return Operator(
            f"table {number}",
            (Compute(f"table {number}", lookup),),
            (stream(f"table {number} gradient", lookup.traffic, weight=True),),
            (self._parameter(number, table),),
            saved=self._kept(table),
        )

    def _updates(self) -> Iterator[Operator]:
        """The optimizer's sparse updates, after all gradients: backward goes from last to first."""
        each = UPDATE[self.plan.optimizer]
        steps = tuple(
            Compute(
                f"table {i} update",
                OptimizerStep(self.everyone * table.pooling * table.width, each),
                weight=True,
            )
            for i, table in enumerate(self.own)
        )
        yield Operator("table updates", (), steps)

    def _exchange(self) -> Operator:
        """Send the rows to the ranks whose samples they are; backward take in their gradients."""
        forward: list[Task] = []
        backward: list[Task] = []
        if not self.plan.fused and self.own:
            forward.append(stream("rows concatenation", 2 * FP32 * self.own_rows))
            each = 2 * FP32 * self.everyone * self.model.embedding
            for i in range(len(self.own)):
                name, kernel = f"table {i} gradient copy", stream("", each).kernel
                after = () if i else self._arrived(GRADIENTS)
                backward.append(Compute(name, kernel, after=after))
        forward.append(self._all_to_all("rows all-to-all", ROWS))
        return Operator("exchange", tuple(forward), tuple(backward))

    def _parameter(self, number: int, table: Table) -> Parameter:
        return Parameter(f"table {number} weight", table.size, local=True)

    def _kept(self, table: Table) -> int:
        """Bytes of a table's indices and offsets, which the update needs again."""
        return INDEX * self.everyone * (table.pooling + 1)

    # --- interaction ----------------------------------------------------------------------------

    def interaction(self) -> Operator:
        """Where features meet: side by side, or all pairs of dot products."""
        forward: list[Task]
        backward: list[Task]
        n, d, batch = self.features, self.model.embedding, self.batch
        vectors, dense = FP32 * batch * n * d, FP32 * batch * d
        joined = Compute(
            "features concatenation", stream("", 2 * vectors).kernel, after=self._arrived(ROWS)
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
                stream("pairs", 2 * picked + index),
                stream("interaction concatenation", 2 * output),
            ]
            backward = [
                fill("products gradient", FP32 * batch * n * n),
                stream("pairs backward", 3 * picked + index),
                product("features gradient", n, d, n),
                product("transposed features gradient", d, n, n),
                stream("features gradient sum", 3 * vectors),
                stream("dense gradient sum", 3 * dense),
            ]
            saved = vectors + index
        if not self.alone:
            for count in filter(None, self.counts):
                backward.append(stream("rows gradient copy", 2 * dense * count))
            backward.append(stream("rows gradient concatenation", 2 * FP32 * self.all_rows))
            backward.append(self._all_to_all("rows gradient all-to-all", GRADIENTS))
        return Operator("interaction", tuple(forward), tuple(backward), saved=saved)

    # --- messages -------------------------------------------------------------------------------

    def _all_to_all(self, name: str, token: str) -> Communicate:
        """Rows of the rank that has the most tables, beside what follows."""
        size = FP32 * self.everyone * max(self.counts) * self.model.embedding
        return Communicate(name, Operation.ALL_TO_ALL, "dp", size, token=token, carried=True)

    def _arrived(self, token: str) -> tuple[str, ...]:
        return () if self.alone else (token,)
