"""Operator, split → one tensor-parallel rank's share of its kernels, and its collectives.

The kinds of `Split`, with the collectives of Megatron-LM (arXiv:1909.08053;
megatron/core/tensor_parallel) and of BlackSamorez/tensor_parallel, which TrioSim takes as its
reference:

=============  ===================================  ==========================================
column         features out                         backward: all-reduce of the input's gradient
row            features in                          forward: all-reduce of the output
inside         heads or features between the two    none
vocabulary     entries of a table                   forward: all-reduce of what was looked up
scores         scores of such a vocabulary          forward: three numbers a token, all-reduced
gathered       features out of any other layer      forward: all-gather of the output; backward:
                                                    reduce-scatter of its gradient
whole          nothing                              none
scatter        nothing                              backward: all-gather of the gradient
=============  ===================================  ==========================================

With sequence parallelism (arXiv:2205.05198) what lies outside of pairs of matrices has a share of
the tokens. The input of a matrix split by columns is gathered, backward once more beside the
input's gradient, which is reduce-scattered; the output of one split by rows is reduce-scattered,
and its gradient gathered. What is looked up in a divided vocabulary is reduce-scattered; where
other tables are added to it, which takes the whole sequence, each rank keeps its share behind them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ..base.errors import InputError
from ..base.frozen import frozen
from ..kernels.operations import (
    BYTES,
    Attention,
    Convolution,
    Copy,
    CrossEntropy,
    Elementwise,
    Embedding,
    Gemm,
    Kernel,
    Norm,
    Softmax,
    operand_bytes,
)
from ..kernels.recorded import Recorded
from ..operators.tensors import element_bytes
from ..program import Operation
from ..workloads.operators import Communicate, Compute, Task
from ..workloads.transformer.shapes import VOCABULARY_MULTIPLE
from .growth import Growth, ProductRole, share_of, times, with_sizes
from .step import Role, TracedKernel, TracedOperator

__all__ = ["NOT_SPLIT", "Split", "SplitKind", "split_kernel", "split_tasks"]

SplitKind = Literal[
    "none", "column", "row", "inside", "vocabulary", "scores", "gathered", "whole", "scatter"
]

FP32 = BYTES["fp32"]

_ON_OUTPUTS = ("column", "gathered")


@frozen
class Split:
    """How an operator is divided over a tensor-parallel group.

    Attributes
    ----------
    kind : str
        A row of the table above; "none": every rank computes all of it.
    outputs, inputs : int
        Features of its weight; of "inside" those out of the matrix before, and those of one head
        that a norm is over; of "scores" the entries of the vocabulary; 0 where there are none.
    vocabulary : bool
        Whether `outputs` are the entries of a vocabulary, which Megatron-LM pads to a multiple of
        128 for each rank.
    small : int
        Of "scores": bytes up to which a kernel works on numbers of tokens, not on scores.
    rows : int
        Of "scores": how many there are for each entry of the vocabulary, as traced; 0 for all
        operators of a loss but the first, whose collectives serve all.
    sequence : bool
        Whether it is entered and left with a share of the tokens: sequence parallelism.
    first, last : bool
        Of "column": whether it is the first and the last of the matrices that share its input, as
        queries, keys and values do where each has a matrix. They are gathered and reduced together.
    beside : int
        Of "column": features that the matrix before made besides the input, as of the keys'
        positions beside a latent, which go to all heads.
    """

    kind: SplitKind = "none"
    outputs: int = 0
    inputs: int = 0
    vocabulary: bool = False
    small: int = 0
    rows: int = 0
    sequence: bool = False
    first: bool = True
    last: bool = True
    beside: int = 0

    def share(self, tp: int) -> int:
        """Return the features out, or entries of a vocabulary, that one rank has.

        Raises
        ------
        InputError
            If tp does not divide them, and they are not padded.
        """
        if self.vocabulary:
            return -(-self.outputs // (VOCABULARY_MULTIPLE * tp)) * VOCABULARY_MULTIPLE
        return divided(self.outputs, tp, "features of a matrix")

    def parameter(self, shape: tuple[int, ...], tp: int) -> int:
        """Return how many elements of a parameter one of `tp` ranks holds."""
        size = 1
        for n in shape:
            size *= n
        weight = len(shape) > 1
        if self.vocabulary and shape[0] == self.outputs:
            return size // shape[0] * self.share(tp)
        if self.kind == "inside":  # a number of each feature or head, but for norms of one head
            return size if shape == (self.inputs,) or size % tp else size // tp
        if self.kind == "scores":
            return size // tp if shape == (self.outputs,) else size
        divided = self.kind in (*_ON_OUTPUTS, "vocabulary") or (self.kind == "row" and weight)
        return size // tp if divided else size


NOT_SPLIT = Split()
"""Of operators that every rank computes whole."""


def divided(size: int, tp: int, what: str) -> int:
    """Size → one rank's share.

    Raises
    ------
    InputError
        If tp does not divide it.
    """
    if size % tp:
        raise InputError(f"tp is {tp}, which does not divide the {size} {what}")
    return size // tp


def split_kernel(
    kernel: Kernel,
    split: Split,
    product: ProductRole | None,
    backward: bool,
    role: Role,
    tp: int,
) -> Kernel:
    """Kernel, split → one tensor-parallel rank's share of it.

    Parameters
    ----------
    kernel : Kernel
        At the sizes of the micro-batch.
    split : Split
        Of its operator.
    product : str or None
        Of matrix products: which size counts tokens.
    backward : bool
    role : str
        As of the traced kernel.
    tp : int
    """
    match split.kind:
        case "inside":
            return _share(kernel, tp)
        case "whole" | "scatter":
            return kernel
        case "scores":
            if isinstance(kernel, Softmax | CrossEntropy):
                own = kernel.columns == split.outputs
                columns = split.share(tp) if own else times(kernel.columns, 1 / tp)
                return replace(kernel, columns=columns)
            # What has a number for each token alone is not divided.
            large = isinstance(kernel, Elementwise) and kernel.bytes > split.small
            return _share(kernel, tp) if large else kernel
        case "vocabulary":
            if isinstance(kernel, Embedding):
                return replace(kernel, entries=split.share(tp))
            if isinstance(kernel, Elementwise) and role == "weights":  # its gradient, of zeros
                return share_of(kernel, split.share(tp) / split.outputs)
            return _share(kernel, tp) if isinstance(kernel, Copy) else kernel
    if isinstance(kernel, Gemm) and product is not None:
        return _product(kernel, split, product, backward, tp)
    if isinstance(kernel, Convolution):
        return replace(kernel, outputs=divided(kernel.outputs, tp, "channels of a convolution"))
    if isinstance(kernel, Elementwise) and (split.kind != "row" or role == "weights"):
        # Of a bias, or of the weight: as large as the share of the product that it belongs to.
        return _share(kernel, tp)
    return kernel


_FEATURES: Mapping[tuple[bool, ProductRole], tuple[str, str]] = {
    (False, "m"): ("n", "k"),  # tokens × in, in × out
    (False, "n"): ("m", "k"),
    (False, "k"): ("m", "n"),
    (True, "m"): ("k", "n"),  # tokens × out, out × in: the input's gradient
    (True, "n"): ("k", "m"),
    (True, "k"): ("m", "n"),  # out × tokens, tokens × in: the weight's gradient
}
"""Backward or not, size that counts tokens → sizes that are features out and in."""


def _product(kernel: Gemm, split: Split, product: ProductRole, backward: bool, tp: int) -> Gemm:
    """Return the share of the product of a weight: its features out or in are divided."""
    outputs, inputs = _FEATURES[backward, product]
    on_outputs = split.kind in _ON_OUTPUTS
    wanted = split.outputs if on_outputs else split.inputs
    for name in (outputs, inputs) if on_outputs else (inputs, outputs):
        if getattr(kernel, name) == wanted:
            if on_outputs:
                return with_sizes(kernel, {name: split.share(tp)})
            return with_sizes(kernel, {name: divided(wanted, tp, "features of a matrix")})
    return kernel


def _share(kernel: Kernel, tp: int) -> Kernel:
    """Return a share of a kernel between two divided matrices: of its heads or its features."""
    match kernel:
        case Attention():
            return replace(
                kernel,
                heads=divided(kernel.heads, tp, "heads of attention"),
                kv_heads=times(kernel.kv_heads, 1 / tp),
            )
        case Gemm() if kernel.batch > 1:
            return replace(kernel, batch=divided(kernel.batch, tp, "heads of attention"))
        case Softmax() | Norm():
            return replace(kernel, rows=times(kernel.rows, 1 / tp))
        case Elementwise() | Copy():
            return share_of(kernel, 1 / tp, "columns")
    return kernel


def split_tasks(
    operator: TracedOperator,
    split: Split,
    forward: tuple[Task, ...],
    backward: tuple[Task, ...],
    growth: Growth,
    tp: int,
) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Tasks of both passes, split → the same with the collectives that the split needs.

    Parameters
    ----------
    operator : TracedOperator
    split : Split
    forward, backward : tuple of Task
        In the shapes of one rank.
    growth : Growth
    tp : int
    """
    sequence = split.sequence
    if split.kind == "column":
        return _column(operator, split, forward, backward)
    if split.kind in ("row", "vocabulary"):
        size = _output_bytes(forward, operator, 1)
        reduction = Operation.REDUCE_SCATTER if sequence else Operation.ALL_REDUCE
        after: list[Task] = [_collective(operator, reduction, size)]
        if split.kind == "row" and any(len(one.shape) == 1 for one in operator.parameters):
            # Not of partial sums.
            after.append(Compute("bias", Elementwise(2 * size // (tp if sequence else 1))))
        if split.kind == "vocabulary":  # rows that another rank has are zeros
            after.insert(0, Compute("mask", Elementwise(size)))
            backward = (Compute("mask backward", Elementwise(2 * size)), *backward)
        if sequence:
            gather = _collective(operator, Operation.ALL_GATHER, size, "gradient")
            backward = (gather, *backward)
        return (*forward, *after), backward
    if split.kind == "scatter":
        size = _passed_bytes(operator, growth)
        own = Compute("share of the sequence", Elementwise(max(1, 2 * size // tp)))
        gather = _collective(operator, Operation.ALL_GATHER, size, "gradient")
        return (*forward, own), (gather, *backward)
    if split.kind == "scores":
        if not split.rows:
            return forward, backward
        rows = times(split.rows, growth.activations)
        sums = [
            Communicate(f"loss {what} all-reduce", Operation.ALL_REDUCE, "tp", FP32 * rows)
            for what in ("maximum", "target", "sum")
        ]
        return (*forward, *sums), backward
    if split.kind == "gathered":
        size = _output_bytes(forward, operator, tp)
        gather = _collective(operator, Operation.ALL_GATHER, size)
        joined = Compute("concatenation", Elementwise(2 * size))
        apart = Compute("concatenation backward", Elementwise(2 * size))
        scatter = _collective(operator, Operation.REDUCE_SCATTER, size)
        return (*forward, gather, joined), (apart, scatter, *backward) if backward else ()
    return forward, backward


def _column(
    operator: TracedOperator,
    split: Split,
    forward: tuple[Task, ...],
    backward: tuple[Task, ...],
) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Gather the input, where ranks have shares of it, and reduce its gradient.

    The first of several matrices with one input gathers for all, and reduces what all have added
    up, since the backward pass comes to it last; to the last it comes first, which gathers again.

    The reduction runs beside the product that makes the weight's gradient; so does, beside the
    product before, the second gather of the input, which that needs.
    """
    sequence = split.sequence
    gathers = _gathers(operator, forward) if sequence else None
    if gathers is not None and split.first:
        forward = (gathers, *forward)
    after: tuple[Task, ...] = ()
    if gathers is not None and split.beside:
        size = gathers.bytes // split.inputs * split.beside
        forward = (_collective(operator, Operation.ALL_GATHER, size, "rest of input"), *forward)
        after = (_collective(operator, Operation.REDUCE_SCATTER, size, "rest of gradient"),)
    if gathers is not None and split.last:
        again = replace(gathers, weight=True, token="gathered")
        backward = (again, *(_behind(task, "gathered") for task in backward))
    products = [
        i
        for i, task in enumerate(backward)
        if isinstance(task, Compute) and not task.weight and _has_product(task)
    ]
    if not products or not split.first:  # the input is data, or reduced by another
        return forward, (*backward, *after)
    at = products[0] + 1
    kernel = backward[products[0]]
    assert isinstance(kernel, Compute)
    assert isinstance(kernel.kernel, Recorded)
    product = next(each for each in kernel.kernel.now if isinstance(each, Gemm))
    size = BYTES[product.output] * product.batch * product.m * product.n
    beside = any(isinstance(task, Compute) and task.weight for task in backward[at:])
    reduction = Operation.REDUCE_SCATTER if sequence else Operation.ALL_REDUCE
    reduced = _collective(operator, reduction, size, "input gradient")
    if beside:
        reduced = replace(reduced, token="reduced")
    return forward, (*backward[:at], reduced, *backward[at:], *after)


def _gathers(operator: TracedOperator, forward: Sequence[Task]) -> Communicate | None:
    """The all-gather of the input of a matrix."""
    product = next((each for each in _kernels(forward) if isinstance(each, Gemm)), None)
    if product is None:
        return None
    size = operand_bytes(product.dtype, product.batch * product.m * product.k)
    return _collective(operator, Operation.ALL_GATHER, size, "input")


def _behind(task: Task, token: str) -> Task:
    """A product that makes a weight's gradient, behind a communication; other tasks as they are."""
    if isinstance(task, Compute) and task.weight and _has_product(task):
        return replace(task, after=(*task.after, token))
    return task


def _passed_bytes(operator: TracedOperator, growth: Growth) -> int:
    """Bytes of what an operator between lookups and the first layer passes on."""
    for task in operator.forward:
        if isinstance(task, TracedKernel):
            for kernel in task.kernels:
                if isinstance(kernel, Elementwise):  # two are read, their sum is written
                    return round(kernel.bytes / 3 * growth.activations)
    raise InputError(f"{operator.name}: how large its output is is not known; sp cannot be true")


def _has_product(task: Compute) -> bool:
    kernel = task.kernel
    return isinstance(kernel, Recorded) and any(isinstance(each, Gemm) for each in kernel.now)


def _kernels(tasks: Sequence[Task]) -> list[Kernel]:
    found: list[Kernel] = []
    for task in tasks:
        if isinstance(task, Compute) and isinstance(task.kernel, Recorded):
            found += task.kernel.now
    return found


def _output_bytes(forward: Sequence[Task], operator: TracedOperator, times_tp: int) -> int:
    """Return the bytes of an operator's whole output for a micro-batch."""
    for kernel in _kernels(forward):
        if isinstance(kernel, Gemm):
            return BYTES[kernel.output] * kernel.batch * kernel.m * kernel.n * times_tp
        if isinstance(kernel, Convolution):
            pixels = kernel.batch * kernel.height * kernel.width
            element = element_bytes(operator.inputs[0].dtype) if operator.inputs else FP32
            return element * pixels * kernel.outputs * times_tp
        if isinstance(kernel, Embedding):
            return BYTES[kernel.dtype] * (kernel.outputs or kernel.lookups) * kernel.width
    raise InputError(f"{operator.name}: how large its output is is not known; it cannot be split")


def _collective(
    operator: TracedOperator, operation: Operation, size: int, what: str = "output"
) -> Communicate:
    name = operation.name.lower().replace("_", "-")
    return Communicate(
        f"{operator.name.removeprefix('aten::')} {what} {name}", operation, "tp", size
    )
