"""The operators of a DLRM on one rank.

Sizes count every operand once. Of the forward pass is kept what autograd keeps: inputs of matrices,
outputs of activations, indices, and the features that meet.

Indices come to a rank in one of three ways (``plan.tables.inputs``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpisim.kernels.operations import Gemm

from ...program import Operation
from ..eager_modules import FP32, INDEX, copy, elementwise, fill
from ..operators import Communicate, Compute, Operator, Parameter, Task
from .table_operators import ROWS_ARRIVED, SUMS_ARRIVED, TableOperators

__all__ = ["DlrmOperators"]


class DlrmOperators(TableOperators):
    """Factory of the operators of one rank: those of its tables, and all others."""

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
    def all_row_elements(self) -> int:
        """Elements looked up for this rank by all."""
        return self.batch * sum(self.model.widths)

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

    # --- interaction ----------------------------------------------------------------------------

    def interaction(self) -> Operator:
        """Vectors of a sample → features of the top layers: side by side, or all dot products."""
        forward: list[Task]
        backward: list[Task]
        n, d, batch = self.features, self.base, self.batch
        dense = self.element * batch * d
        arrived = self.arrived(ROWS_ARRIVED) if max(self.sent) else ()
        if self.by_rows:
            arrived += self.arrived(SUMS_ARRIVED)
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
            backward += self.gradients_sent()
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
