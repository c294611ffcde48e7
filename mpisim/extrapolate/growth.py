"""Kernel of a traced step → the same at other samples, sequences, shares of parameters.

Sizes of activations grow with samples and tokens, sizes of weights do not. Which of a matrix
product's three sizes are weights follows from the shapes of the parameters: of the product of an
activation and a weight one side is the weight, and the gradient of a weight has its shape.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

from ..base.errors import InputError
from ..base.frozen import frozen
from ..kernels.operations import (
    Attention,
    Convolution,
    Copy,
    Counted,
    CrossEntropy,
    Elementwise,
    Embedding,
    EmbeddingTables,
    Gemm,
    GroupedGemm,
    Kernel,
    Norm,
    OptimizerStep,
    Softmax,
)
from .step import Role

__all__ = ["Growth", "ProductRole", "grown", "product_role", "share_of", "times", "with_sizes"]

ProductRole = Literal["m", "n", "k", "batch"]
"""Which size of a matrix product counts tokens."""

Across = Literal["rows", "columns"]
"""What a kernel that adds up the rows of a matrix has more or fewer of."""


@frozen
class Growth:
    """By how much a step grows.

    Attributes
    ----------
    samples : float
        Of a micro-batch, over those traced.
    length : float
        Tokens of a sample, over those traced.
    sequence : int or None
        Tokens of a sample as traced, where they are known.
    tokens : int
        Of the traced step, or its samples where tokens are not known.
    """

    samples: float = 1.0
    length: float = 1.0
    sequence: int | None = None
    tokens: int = 1

    @property
    def activations(self) -> float:
        """Growth of what has a value for each token."""
        return self.samples * self.length

    @property
    def is_none(self) -> bool:
        """Whether nothing grows."""
        return self.samples == self.length == 1


def times(size: int, factor: float) -> int:
    """Size × factor, rounded to a whole number that is at least 1.

    Parameters
    ----------
    size : int
    factor : float

    Returns
    -------
    int
    """
    return max(1, round(size * factor))


def product_role(
    kernel: Gemm, weights: Collection[tuple[int, int]], backward: bool, tokens: int
) -> ProductRole:
    """Matrix product of a trace → which of its sizes counts tokens.

    Parameters
    ----------
    kernel : Gemm
    weights : collection of (int, int)
        Shapes of weights.
    backward : bool
    tokens : int
        Of the traced step; decides where shapes leave it open.

    Examples
    --------
    >>> weights = {(4096, 1024)}
    >>> product_role(Gemm(512, 4096, 1024), weights, False, 512)
    'm'
    >>> product_role(Gemm(4096, 1024, 512), weights, True, 512)
    'k'
    """

    def is_weight(rows: int, columns: int) -> bool:
        return (rows, columns) in weights or (columns, rows) in weights

    if kernel.batch > 1:
        return "batch"
    gradient = backward and is_weight(kernel.m, kernel.n)
    left = is_weight(kernel.m, kernel.k)
    if gradient and (kernel.k == tokens or not (is_weight(kernel.n, kernel.k) or left)):
        return "k"
    if is_weight(kernel.n, kernel.k):
        return "m"
    return "n" if left else "m"


def grown(
    kernel: Kernel,
    growth: Growth,
    weights: Collection[tuple[int, int]],
    *,
    backward: bool,
    role: Role = "",
) -> Kernel:
    """Kernel of a pass, growth → the kernel at other sizes.

    Parameters
    ----------
    kernel : Kernel
        As traced.
    growth : Growth
    weights : collection of (int, int)
        Shapes of weights.
    backward : bool
    role : {"", "weights", "scores"}

    Raises
    ------
    InputError
        If it is not known how a longer sequence changes it.
    """
    if growth.is_none or role == "weights":
        return kernel
    more, longer = growth.samples, growth.length
    both = growth.activations
    if role == "scores" and isinstance(kernel, Elementwise):
        return _streamed(kernel, both * longer)
    match kernel:
        case Gemm():
            return _product(kernel, growth, weights, backward)
        case Attention():
            return replace(
                kernel,
                batch=times(kernel.batch, more),
                queries=times(kernel.queries, longer),
                keys=times(kernel.keys, longer),
            )
        case Convolution():
            if longer != 1:
                raise InputError(
                    "the length of sequences is changed, but the trace has convolutions"
                )
            return replace(kernel, batch=times(kernel.batch, more))
        case Softmax():
            columns = kernel.columns
            if columns == growth.sequence:
                columns = times(columns, longer)
            return replace(kernel, rows=times(kernel.rows, both), columns=columns)
        case Norm() | CrossEntropy() | GroupedGemm():
            return replace(kernel, rows=times(kernel.rows, both))
        case Embedding():
            outputs = None if kernel.outputs is None else times(kernel.outputs, both)
            return replace(kernel, lookups=times(kernel.lookups, both), outputs=outputs)
        case EmbeddingTables():
            # The miss-ratio curve is of the accesses' skew, which stays: of as many times the rows
            # each cache misses as many times the bytes, and never fewer than the distinct rows'.
            return replace(
                kernel,
                lookups=times(kernel.lookups, both),
                row_bytes=times(kernel.row_bytes, both),
                output_bytes=times(kernel.output_bytes, both),
                distinct_bytes=times(kernel.distinct_bytes, both),
                missed=tuple(times(each, both) for each in kernel.missed),
            )
        case Elementwise() | Copy() | Counted():
            return _streamed(kernel, both)
    return kernel


def _product(
    kernel: Gemm, growth: Growth, weights: Collection[tuple[int, int]], backward: bool
) -> Gemm:
    which = product_role(kernel, weights, backward, growth.tokens)
    if which != "batch":
        return with_sizes(kernel, {which: times(getattr(kernel, which), growth.activations)})
    sizes: dict[str, int] = {}
    if growth.length != 1:  # scores of attention: queries × keys
        sizes = {
            name: times(getattr(kernel, name), growth.length)
            for name in ("m", "n", "k")
            if getattr(kernel, name) == growth.sequence
        }
        if not sizes and _in_chunks(kernel, growth):
            return with_sizes(kernel, {"batch": times(kernel.batch, growth.activations)})
        if not sizes:
            raise InputError(
                "the length of sequences is changed, but how it changes a batched product of "
                f"{kernel.m} × {kernel.n} × {kernel.k} is not known"
            )
    return with_sizes(kernel, {"batch": times(kernel.batch, growth.samples), **sizes})


def with_sizes(kernel: Gemm, sizes: Mapping[str, int]) -> Gemm:
    """Matrix product, sizes by name → the product with these sizes.

    Parameters
    ----------
    kernel : Gemm
    sizes : mapping of str to int
        Of ``m``, ``n``, ``k``, ``batch`` those that change.

    Returns
    -------
    Gemm
    """
    given: dict[str, Any] = dict(sizes)
    return replace(kernel, **given)


def _in_chunks(kernel: Gemm, growth: Growth) -> bool:
    """Whether products are each of a chunk of the tokens, so that a longer sequence has more.

    As of Mamba-2's scan, whose chunks keep their size (arXiv:2405.21060, section 6).
    """
    if not growth.sequence:
        return False
    samples = growth.tokens // growth.sequence
    chunks = {
        growth.sequence // size
        for size in (kernel.m, kernel.n, kernel.k)
        if 1 < size < growth.sequence and growth.sequence % size == 0
    }
    return any(kernel.batch % (samples * each) == 0 for each in chunks)


def _streamed(
    kernel: Elementwise | Copy | Counted, factor: float, across: Across = "rows"
) -> Kernel:
    """Return a kernel that goes through so many times the elements."""
    size = times(kernel.bytes, factor)
    match kernel:
        case Elementwise(summed=int(), sums=int()):
            return _summed(kernel, factor, across)
        case Elementwise():
            indexed, instructions, loads = (
                None if each is None else times(each, factor)
                for each in (kernel.indexed, kernel.instructions, kernel.loads)
            )
            return replace(
                kernel, bytes=size, indexed=indexed, instructions=instructions, loads=loads
            )
        case Counted():
            return replace(kernel, operations=times(kernel.operations, factor), bytes=size)
    return replace(kernel, bytes=size)


def _summed(kernel: Elementwise, factor: float, across: Across) -> Elementwise:
    """Return the sums of a matrix's columns of so many times the rows, or as many more columns."""
    assert kernel.summed is not None
    assert kernel.sums is not None
    if across == "columns":
        size = times(kernel.bytes, factor)
        return replace(kernel, bytes=size, sums=times(kernel.sums, factor))
    rows = times(kernel.summed, factor)
    # What is written, a row, stays.
    size = times(kernel.bytes, (rows + 1) / (kernel.summed + 1))
    return replace(kernel, bytes=size, summed=rows)


def share_of(kernel: Kernel, share: float, across: Across = "rows") -> Kernel:
    """Kernel → the same kernel on a share of what it goes through, as of the parameters.

    Parameters
    ----------
    kernel : Kernel
    share : float
        Of its elements; above 1 where it goes through more.
    across : {"rows", "columns"}
        Of kernels that add up the rows of a matrix: what of it is shared out. Shards of a weight
        are rows of it, as a rank's tokens are; ranks of tensor parallelism have columns.

    Returns
    -------
    Kernel
        Unchanged where its work does not grow with its elements.
    """
    match kernel:
        case OptimizerStep():
            return replace(kernel, parameters=times(kernel.parameters, share))
        case Elementwise() | Copy() | Counted():
            return _streamed(kernel, share, across)
        case Norm() | Softmax():
            return replace(kernel, rows=times(kernel.rows, share))
    return kernel
