"""Linear layers split over a tensor-parallel group, as Megatron-LM has them (arXiv:1909.08053).

A matrix split by columns takes the whole sequence and makes a share of the features; one split by
rows does the reverse. With sequence parallelism (arXiv:2205.05198) the sequence is gathered
before the first and the result reduce-scattered after the second; without, the result of the
second and the input gradient of the first are all-reduced. Order and overlap are those of
``megatron/core/tensor_parallel/layers.py``, `LinearWithGradAccumulationAndAsyncCommunication`:
the saved input is gathered again beside the input gradient, which is reduced beside the weight
gradient. Before that class the all-reduce came after both gradients (``plan.dgrad_overlap``).

PyTorch's DTensor (``plan.sp_style = "pytorch"``) keeps what it gathered, and its sequences come
after the batch: what ranks send lies rank by rank, and is copied to its place behind each all-
gather, and the other way before each reduce-scatter (`all_gather_tensor` and
`reduce_scatter_tensor` of torch/distributed/_functional_collectives.py). The input gradient is
reduced after both products, the two outputs of one node of autograd.

With fp8 or NVFP4, operands are cast (:mod:`.casts`) before they are gathered, so that gathers move
a byte an element or less. Casts of weights are made once a step (by Megatron-LM, and not counted
elsewhere), unless every pass makes them (``plan.fp8_weight_casts``): scale and cast forward, again
where the layer is computed again, and the cast, transposed, backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mpisim.kernels.operations import Elementwise, Gemm, Precision, operand_bytes

from ...program import Operation
from ..operators import Communicate, Compute, Operator, Parameter, Task
from .casts import cast, normed_cast, turned, turned_input, weight_cast
from .gradients import accumulate, weight_gradient
from .shapes import Shapes
from .tensor_parallel_overlap import gather_and_multiply, multiply_and_scatter

__all__ = ["column_linear", "exchange", "gathered_input", "linear", "reduce", "row_linear"]


def column_linear(
    s: Shapes,
    name: str,
    k: int,
    n: int,
    *,
    bias: bool = False,
    keep: int = 0,
    keeps_input: bool = True,
    quantised: bool = True,
    parameters: bool = True,
    tied: bool = False,
    gathered: bool = False,
) -> Operator:
    """A matrix (k, n) split by columns.

    Parameters
    ----------
    s : Shapes
    name : str
    k : int
        Features in, all of them.
    n : int
        Features out, this rank's.
    bias : bool
        Whether a bias is added here.
    keep : int
        Bytes of the output that whatever follows keeps, and does not count itself.
    keeps_input : bool
        False where another operator keeps the same input.
    quantised : bool
        Whether a plan in fp8 or NVFP4 includes this matrix.
    parameters : bool
        False where the matrix is another operator's.
    tied : bool
        See `Parameter`.
    gathered : bool
        Whether `gathered_input` has gathered and cast the input, and reduces its gradient.

    Returns
    -------
    Operator
    """
    quantised = quantised and s.quantised
    dtype = s.linear if quantised or not s.quantised else s.product
    entering = s.shared if s.sequence_parallel else s.tokens

    forward: list[Task] = []
    if quantised and not gathered:
        forward += normed_cast(s, name, entering * k)
    if quantised:
        forward += weight_cast(s, name, n * k)
    if s.sequence_parallel and s.plan.tp_overlap:
        gemm = Gemm(s.shared, n, k, dtype=dtype, output=s.stored)
        forward += gather_and_multiply(s, name, k, gemm)
    else:
        if s.sequence_parallel and not gathered:
            forward += placed(s, gather(s, name, dtype, k))
        forward.append(Compute(name, Gemm(s.tokens, n, k, dtype=dtype, output=s.stored)))
    if bias:
        forward += add_bias(s, name, s.tokens * n)

    backward: list[Task] = []
    after: tuple[str, ...] = ()
    if quantised:
        backward.append(cast(s, f"{name} gradient", s.tokens * n, made=True))
        backward += weight_cast(s, name, n * k, backward=True)
    keeps_gathered = s.sequence_second
    beside = s.plan.dgrad_overlap and not keeps_gathered
    if s.sequence_parallel and not keeps_gathered:
        after = ("gathered",)
        again = gather(s, name, dtype, k)
        backward.append(replace(again, weight=True, token="gathered"))
    backward.append(
        Compute(f"{name} input gradient", Gemm(s.tokens, k, n, dtype=dtype, output=s.stored))
    )
    reduced = f"{name} input gradient"
    if beside:
        backward += reduce(s, reduced, k, token="reduced")
    if quantised and not gathered:
        backward += turned_input(s, name, s.tokens * k, after)
    backward += weight_gradient(s, name, s.tokens, n, k, after=after, linear=dtype == s.linear)
    if not beside and not gathered:
        backward += reduce(s, reduced, k)
    if bias:
        backward += bias_gradient(s, name, s.tokens, n)
    owned = [Parameter(f"{name} weight", n * k, tied=tied)] if parameters else []
    if bias:
        owned.append(Parameter(f"{name} bias", n))
    held = s.tokens if keeps_gathered else entering
    saved = operand_bytes(dtype, held * k) if keeps_input else 0
    return Operator(name, tuple(forward), tuple(backward), tuple(owned), saved + keep)


def gathered_input(s: Shapes, name: str, k: int, uses: int) -> Operator:
    """The input of several matrices split by columns, gathered once; `uses`, how many.

    Their gradients of it are added up before they are put in order to be reduce-scattered: in one
    kernel where operations are fused.
    """
    dtype, size = s.linear, s.tokens * k
    forward: list[Task] = [cast(s, name, s.shared * k)] if s.quantised else []
    forward += placed(s, gather(s, name, dtype, k))
    backward: list[Task]
    if s.plan.fused:
        total = Elementwise((uses + 1) * s.element * size)
        backward = [Compute(f"{name} gradient sum", total)]
        gradient = exchange(s, f"{name} input gradient", Operation.REDUCE_SCATTER, s.element * size)
        backward.append(gradient)
    else:
        total = Elementwise(3 * s.element * size)
        backward = [Compute(f"{name} gradient sum", total)] * (uses - 1)
        backward += reduce(s, f"{name} input gradient", k)
    backward += turned(s, name, size)
    return Operator(name, tuple(forward), tuple(backward), (), operand_bytes(dtype, size))


def row_linear(s: Shapes, name: str, k: int, n: int, *, keeps_input: bool = True) -> Operator:
    """A matrix (k, n) split by rows, without its bias, which is added after the reduction.

    Parameters
    ----------
    s : Shapes
    name : str
    k : int
        Features in, this rank's.
    n : int
        Features out, all of them.
    keeps_input : bool
        False where another operator keeps the same input.

    Returns
    -------
    Operator
    """
    forward: list[Task] = []
    if s.quantised:
        forward.append(cast(s, name, s.tokens * k))
        forward += weight_cast(s, name, n * k)
    overlap = s.sequence_parallel and s.plan.tp_overlap
    if overlap:
        forward += multiply_and_scatter(s, name, k, n)
    else:
        gemm = Gemm(s.tokens, n, k, dtype=s.linear, output=s.stored)
        forward.append(Compute(name, gemm))
        forward += reduce(s, name, n)

    backward: list[Task] = []
    if s.quantised:
        gathers = s.sequence_parallel
        backward.append(cast(s, f"{name} gradient", s.shared * n, made=True, gathered=gathers))
        backward += weight_cast(s, name, n * k, backward=True)
    gradient = f"{name} input gradient"
    if overlap:
        gemm = Gemm(s.shared, k, n, dtype=s.linear, output=s.stored)
        backward += gather_and_multiply(s, gradient, n, gemm)
    else:
        if s.sequence_parallel:
            backward += placed(
                s,
                Communicate(
                    f"{name} gradient all-gather",
                    Operation.ALL_GATHER,
                    "tp",
                    s.operand(s.tokens * n),
                ),
            )
        gemm = Gemm(s.tokens, k, n, dtype=s.linear, output=s.stored)
        backward.append(Compute(gradient, gemm))
    backward += turned(s, f"{name} gradient", s.tokens * n)
    backward += weight_gradient(s, name, s.tokens, n, k)
    saved = s.operand(s.tokens * k) if keeps_input else 0
    return Operator(
        name, tuple(forward), tuple(backward), (Parameter(f"{name} weight", n * k),), saved
    )


def linear(
    s: Shapes,
    name: str,
    k: int,
    n: int,
    *,
    tokens: int,
    bias: bool = False,
    keeps_input: bool = True,
    quantised: bool = True,
    input_gradient: bool = True,
) -> Operator:
    """A matrix (k, n) that every rank of the tp group holds whole.

    Parameters
    ----------
    s : Shapes
    name : str
    k, n : int
        Features in and out.
    tokens : int
        Rows of the input on this rank.
    bias, keeps_input, quantised
        As in `column_linear`.
    input_gradient : bool
        False where the input is data.

    Returns
    -------
    Operator
    """
    quantised = quantised and s.quantised
    dtype = s.linear if quantised or not s.quantised else s.product
    forward: list[Task] = []
    if quantised:
        forward = [cast(s, name, tokens * k), *weight_cast(s, name, n * k)]
    forward.append(Compute(name, Gemm(tokens, n, k, dtype=dtype, output=s.stored)))
    if bias:
        forward += add_bias(s, name, tokens * n)
    backward: list[Task] = [cast(s, f"{name} gradient", tokens * n, made=True)] if quantised else []
    if input_gradient:
        if quantised:
            backward += weight_cast(s, name, n * k, backward=True)
        gemm = Gemm(tokens, k, n, dtype=dtype, output=s.stored)
        backward.append(Compute(f"{name} input gradient", gemm))
    backward += weight_gradient(s, name, tokens, n, k, linear=dtype == s.linear)
    parameters = [Parameter(f"{name} weight", n * k, replicated=True)]
    if bias:
        backward += bias_gradient(s, name, tokens, n)
        parameters.append(Parameter(f"{name} bias", n, replicated=True))
    saved = operand_bytes(dtype, tokens * k) if keeps_input else 0
    return Operator(name, tuple(forward), tuple(backward), tuple(parameters), saved)


def add_bias(s: Shapes, name: str, elements: int) -> Iterator[Compute]:
    """Add a bias where products do not end with it."""
    if s.plan.bias_kernels:
        yield Compute(f"{name} bias", Elementwise(2 * s.element * elements))


def bias_gradient(s: Shapes, name: str, tokens: int, n: int) -> Iterator[Compute]:
    """The sum of gradients over the tokens; fused, it is part of the matrix product."""
    if not s.plan.fused:
        traffic = s.element * tokens * n
        yield Compute(f"{name} bias gradient", Elementwise(traffic), weight=True)
    yield from accumulate(s, f"{name} bias", n)


def placed(s: Shapes, gathered: Communicate) -> Iterator[Task]:
    """All-gather sequences, and copy them to their places where they do not come first."""
    yield gathered
    if s.sequence_second:
        yield Compute(f"{gathered.name} copy", Elementwise(2 * gathered.bytes))


def gather(s: Shapes, name: str, dtype: Precision, k: int) -> Communicate:
    """Gather the input of a matrix, `k` features a token."""
    return Communicate(
        f"{name} all-gather", Operation.ALL_GATHER, "tp", operand_bytes(dtype, s.tokens * k)
    )


def reduce(s: Shapes, name: str, n: int, *, token: str = "") -> Iterator[Task]:
    """Add up what the ranks of the tp group have of (tokens, n)."""
    if s.grid.tp > 1:
        operation = Operation.REDUCE_SCATTER if s.sequence_parallel else Operation.ALL_REDUCE
        if s.sequence_second:
            yield Compute(f"{name} copy", Elementwise(2 * s.element * s.tokens * n))
        yield exchange(s, name, operation, s.element * s.tokens * n, token=token)


def exchange(
    s: Shapes, name: str, operation: Operation, size: int, *, token: str = ""
) -> Communicate:
    """A collective over the tp group, named after its operation."""
    what = operation.name.lower().replace("_", "-")
    return Communicate(f"{name} {what}", operation, "tp", size, token=token)
