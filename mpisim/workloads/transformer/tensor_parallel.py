"""Linear layers split over a tensor-parallel group, as Megatron-LM has them (arXiv:1909.08053).

A matrix split by columns takes the whole sequence and makes a share of the features; one split by
rows does the reverse. With sequence parallelism (arXiv:2205.05198) the sequence is gathered
before the first and the result reduce-scattered after the second; without, the result of the
second and the input gradient of the first are all-reduced. Order and overlap are those of
``megatron/core/tensor_parallel/layers.py``, `LinearWithGradAccumulationAndAsyncCommunication`:
the saved input is gathered again beside the input gradient, which is reduced beside the weight
gradient. Before that class the all-reduce came after both gradients (``plan.overlap.dgrad``).

PyTorch's DTensor (``framework.sp_style = "pytorch"``) keeps what it gathered, and its sequences
come after the batch: what ranks send lies rank by rank, and is copied to its place behind each all-
gather, and the other way before each reduce-scatter (`all_gather_tensor` and
`reduce_scatter_tensor` of torch/distributed/_functional_collectives.py). The input gradient is
reduced after both products, the two outputs of one node of autograd.

Matrices with one input are separate with ``framework.separate_projections``, as torchtitan, MaxText
and Hugging Face have them (queries, keys and values; gate and value): the products are smaller, the
gradients of their input are added up, and selective recomputation can keep some of them. With
PyTorch's tensor parallelism their input is gathered once, and its gradient reduced once.

With fp8 or NVFP4, operands are cast (:mod:`.precision`) before they are gathered, so that gathers
move a byte an element or less. Casts of weights are made once a step (by Megatron-LM, and not
counted elsewhere), unless every pass makes them (``framework.fp8_weight_casts``): scale and cast
forward, again where the layer is computed again, and the cast, transposed, backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from mpisim.kernels.operations import Elementwise, Gemm, Precision, operand_bytes

from ...program import Operation
from ..operators import Communicate, Compute, Operator, Parameter, Task
from .autocast import autocast_copies, autocast_copy, autocast_kept
from .pointwise import added_bias, branch
from .precision import (
    accumulate_gradient,
    cast,
    cast_names,
    cast_norm_output,
    cast_share,
    cast_weight,
    transpose_column_input,
    transpose_gathered,
    weight_gradient,
)
from .shapes import Shapes
from .tensor_parallel_overlap import gather_and_multiply, multiply_and_scatter

__all__ = [
    "column_linear",
    "linear",
    "reduce_output",
    "row_linear",
    "separate_linears",
    "tp_collective",
]

# --- linear layers ------------------------------------------------------------------------------


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
    """Hidden states (tokens, k) → features (tokens, n) of this rank: a matrix split by columns.

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
        False where another operator lists the matrix.
    tied : bool
        See `Parameter`.
    gathered : bool
        Whether `_gather_shared_input` has gathered and cast the input, and reduces its gradient.
    """
    quantised = quantised and s.quantised
    dtype = s.linear_format if quantised or not s.quantised else s.matmul_format
    entering = s.sharded_tokens if s.sequence_parallel else s.tokens

    copied = {f"{name} weight": n * k, f"{name} bias": n if bias else 0}
    forward: list[Task] = [*autocast_copies(s, copied)]
    if quantised and not gathered:
        forward += cast_norm_output(s, name, entering * k)
    if quantised:
        forward += cast_weight(s, name, n * k)
    if s.sequence_parallel and s.plan.overlap.tp:
        gemm = Gemm(s.sharded_tokens, n, k, dtype=dtype, output=s.storage_format)
        forward += gather_and_multiply(s, name, k, gemm)
    else:
        if s.sequence_parallel and not gathered:
            forward += _gather_in_order(s, _input_all_gather(s, name, dtype, k))
        forward.append(Compute(name, Gemm(s.tokens, n, k, dtype=dtype, output=s.storage_format)))
    if bias:
        forward += _add_bias(s, name, s.tokens * n)

    backward: list[Task] = []
    after: tuple[str, ...] = ()
    if quantised:
        backward.append(cast(s, f"{name} gradient", s.tokens * n, after_kernel=True))
        backward += cast_weight(s, name, n * k, backward=True)
    keeps_gathered = s.gathers_batch_first
    overlaps_reduction = s.plan.overlap.dgrad and not keeps_gathered
    if s.sequence_parallel and not keeps_gathered:
        after = ("gathered",)
        gathering = _input_all_gather(s, name, dtype, k)
        backward.append(replace(gathering, weight=True, token="gathered"))
    backward.append(
        Compute(
            f"{name} input gradient", Gemm(s.tokens, k, n, dtype=dtype, output=s.storage_format)
        )
    )
    reduced = f"{name} input gradient"
    if overlaps_reduction:
        backward += reduce_output(s, reduced, k, token="reduced")
    if quantised and not gathered:
        backward += transpose_column_input(s, name, s.tokens * k, after)
    backward += weight_gradient(
        s, name, s.tokens, n, k, after=after, linear=dtype == s.linear_format
    )
    if not overlaps_reduction and not gathered:
        backward += reduce_output(s, reduced, k)
    if bias:
        backward += _bias_gradient(s, name, s.tokens, n)
    owned = [Parameter(f"{name} weight", n * k, tied=tied, rows=n)] if parameters else []
    if bias:
        owned.append(Parameter(f"{name} bias", n))
    held = s.tokens if keeps_gathered else entering
    saved = operand_bytes(dtype, held * k) if keeps_input else 0
    saved += autocast_kept(s, n * k)
    return Operator(name, tuple(forward), tuple(backward), tuple(owned), saved + keep)


def row_linear(s: Shapes, name: str, k: int, n: int, *, keeps_input: bool = True) -> Operator:
    """Features (tokens, k) of this rank → hidden states (tokens, n): a matrix split by rows.

    Its bias is not here: it is added after the reduction.

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
    """
    forward: list[Task] = [*autocast_copies(s, {f"{name} weight": n * k})]
    if s.quantised:
        forward.append(cast(s, name, s.tokens * k))
        forward += cast_weight(s, name, n * k)
    overlap = s.sequence_parallel and s.plan.overlap.tp
    if overlap:
        forward += multiply_and_scatter(s, name, k, n)
    else:
        gemm = Gemm(s.tokens, n, k, dtype=s.linear_format, output=s.storage_format)
        forward.append(Compute(name, gemm))
        forward += reduce_output(s, name, n)

    backward: list[Task] = []
    if s.quantised:
        size = s.sharded_tokens * n
        backward += cast_share(s, f"{name} gradient", size, after_kernel=True)
        backward += cast_weight(s, name, n * k, backward=True)
    gradient = f"{name} input gradient"
    if overlap:
        gemm = Gemm(s.sharded_tokens, k, n, dtype=s.linear_format, output=s.storage_format)
        backward += gather_and_multiply(s, gradient, n, gemm)
    else:
        if s.sequence_parallel:
            backward += _gather_in_order(
                s,
                Communicate(
                    f"{name} gradient all-gather",
                    Operation.ALL_GATHER,
                    "tp",
                    s.operand_bytes(s.tokens * n),
                ),
            )
        gemm = Gemm(s.tokens, k, n, dtype=s.linear_format, output=s.storage_format)
        backward.append(Compute(gradient, gemm))
    backward += transpose_gathered(s, f"{name} gradient", s.tokens * n)
    backward += weight_gradient(s, name, s.tokens, n, k)
    saved = s.operand_bytes(s.tokens * k) if keeps_input else 0
    saved += autocast_kept(s, n * k)
    return Operator(
        name, tuple(forward), tuple(backward), (Parameter(f"{name} weight", n * k, rows=n),), saved
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
    """Rows (tokens, k) → rows (tokens, n): a matrix that every rank of the tp group holds whole.

    Parameters
    ----------
    s : Shapes
    name : str
    k, n : int
        Features in and out.
    tokens : int
        Rows of the input on this rank.
    bias, keeps_input, quantised : bool
        As in `column_linear`.
    input_gradient : bool
        False where the input is data.
    """
    quantised = quantised and s.quantised
    dtype = s.linear_format if quantised or not s.quantised else s.matmul_format
    copied = {f"{name} weight": n * k, f"{name} bias": n if bias else 0}
    forward: list[Task] = [*autocast_copies(s, copied)]
    if quantised:
        forward = [cast(s, name, tokens * k), *cast_weight(s, name, n * k)]
    forward.append(Compute(name, Gemm(tokens, n, k, dtype=dtype, output=s.storage_format)))
    if bias:
        forward += _add_bias(s, name, tokens * n)
    backward: list[Task] = (
        [cast(s, f"{name} gradient", tokens * n, after_kernel=True)] if quantised else []
    )
    if input_gradient:
        if quantised:
            backward += cast_weight(s, name, n * k, backward=True)
        gemm = Gemm(tokens, k, n, dtype=dtype, output=s.storage_format)
        backward.append(Compute(f"{name} input gradient", gemm))
    backward += weight_gradient(s, name, tokens, n, k, linear=dtype == s.linear_format)
    parameters = [Parameter(f"{name} weight", n * k, replicated=True, rows=n)]
    if bias:
        backward += _bias_gradient(s, name, tokens, n)
        parameters.append(Parameter(f"{name} bias", n, replicated=True))
    saved = operand_bytes(dtype, tokens * k) if keeps_input else 0
    saved += autocast_kept(s, n * k)
    return Operator(name, tuple(forward), tuple(backward), tuple(parameters), saved)


def separate_linears(
    s: Shapes,
    name: str,
    widths: Mapping[str, int],
    *,
    bias: bool = False,
    kept: bool = False,
    keeps_input: bool = True,
) -> tuple[Operator, ...]:
    """Hidden states → the features of several matrices, each split by columns.

    Parameters
    ----------
    s : Shapes
    name : str
        Of all of them.
    widths : mapping of str to int
        Features out by name of the matrix.
    bias, keeps_input : bool
        As in `column_linear`.
    kept : bool
        Whether whatever follows keeps the results, and does not count them itself.
    """
    hidden = s.model.hidden
    if s.gathers_batch_first:
        found = [_gather_shared_input(s, name, hidden, len(widths))]
        for each, width in widths.items():
            keep = s.element_size * s.tokens * width if kept else 0
            found.append(
                column_linear(
                    s, each, hidden, width, bias=bias, keep=keep, keeps_input=False, gathered=True
                )
            )
        return tuple(found)
    found = [branch(s, name, s.sharded_tokens * hidden)] * (len(widths) - 1)
    copies = s.autocast and not s.plan.framework.fused  # of the input, one for each matrix
    for i, (each, width) in enumerate(widths.items()):
        keep = s.element_size * s.tokens * width if kept else 0
        matrix = column_linear(
            s,
            each,
            hidden,
            width,
            bias=bias,
            keep=keep,
            keeps_input=keeps_input and (copies or not i),
        )
        if i:  # the input has been cast for the first
            forward = tuple(step for step in matrix.forward if step.name not in cast_names(each))
            matrix = replace(matrix, forward=forward)
        if i and copies:  # the norm casts for the first
            size = s.sharded_tokens * hidden
            copy = autocast_copy(s, f"{each} input", size)
            back = autocast_copy(s, f"{each} input gradient", size)
            matrix = replace(
                matrix, forward=(copy, *matrix.forward), backward=(*matrix.backward, back)
            )
        found.append(matrix)
    return tuple(found)


def _gather_shared_input(s: Shapes, name: str, k: int, uses: int) -> Operator:
    """Share of the sequence → input of `uses` matrices split by columns, gathered once.

    Their gradients of it are added up before they are put in order to be reduce-scattered: in one
    kernel where operations are fused.
    """
    dtype, size = s.linear_format, s.tokens * k
    forward: list[Task] = [cast(s, name, s.sharded_tokens * k)] if s.quantised else []
    forward += _gather_in_order(s, _input_all_gather(s, name, dtype, k))
    backward: list[Task]
    if s.plan.framework.fused:
        total = Elementwise((uses + 1) * s.element_size * size)
        backward = [Compute(f"{name} gradient sum", total)]
        gradient = tp_collective(
            s, f"{name} input gradient", Operation.REDUCE_SCATTER, s.element_size * size
        )
        backward.append(gradient)
    else:
        total = Elementwise(3 * s.element_size * size)
        backward = [Compute(f"{name} gradient sum", total)] * (uses - 1)
        backward += reduce_output(s, f"{name} input gradient", k)
    backward += transpose_gathered(s, name, size)
    return Operator(name, tuple(forward), tuple(backward), (), operand_bytes(dtype, size))


def _add_bias(s: Shapes, name: str, elements: int) -> Iterator[Compute]:
    """Kernel that adds a bias, where it is a kernel of its own."""
    if s.plan.framework.bias_kernels:
        yield added_bias(s, name, elements)


def _bias_gradient(s: Shapes, name: str, tokens: int, n: int) -> Iterator[Compute]:
    """Gradients of `tokens` rows → gradient of a bias; fused, the matrix product makes it."""
    if not s.plan.framework.fused:
        sums = Elementwise.column_sums(s.element_size, tokens, n)
        yield Compute(f"{name} bias gradient", sums, weight=True)
    yield from accumulate_gradient(s, f"{name} bias", n)


# --- collectives of the tp group ----------------------------------------------------------------


def _input_all_gather(s: Shapes, name: str, dtype: Precision, k: int) -> Communicate:
    """The all-gather of the input of a matrix, `k` features a token."""
    return Communicate(
        f"{name} all-gather", Operation.ALL_GATHER, "tp", operand_bytes(dtype, s.tokens * k)
    )


def _gather_in_order(s: Shapes, gathered: Communicate) -> Iterator[Task]:
    """All-gather, and a copy of the sequences to their places where they do not come first."""
    yield gathered
    if s.gathers_batch_first:
        yield Compute(f"{gathered.name} copy", Elementwise(2 * gathered.bytes))


def reduce_output(s: Shapes, name: str, n: int, *, token: str = "") -> Iterator[Task]:
    """Partial sums (tokens, n) of the tp group's ranks → their sum, or this rank's share of it.

    Parameters
    ----------
    s : Shapes
    name : str
    n : int
        Features.
    token : str
        As in `Communicate`: makes it run beside what follows.
    """
    if s.grid.tp > 1:
        operation = Operation.REDUCE_SCATTER if s.sequence_parallel else Operation.ALL_REDUCE
        if s.gathers_batch_first:
            yield Compute(f"{name} copy", Elementwise(2 * s.element_size * s.tokens * n))
        yield tp_collective(s, name, operation, s.element_size * s.tokens * n, token=token)


def tp_collective(
    s: Shapes, name: str, operation: Operation, size: int, *, token: str = ""
) -> Communicate:
    """A collective over the tp group, named after its operation.

    Parameters
    ----------
    s : Shapes
    name : str
    operation : Operation
    size : int
        Bytes, as `Communicate` counts them.
    token : str
        As in `Communicate`: makes it run beside what follows.
    """
    what = operation.name.lower().replace("_", "-")
    return Communicate(f"{name} {what}", operation, "tp", size, token=token)
