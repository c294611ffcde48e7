"""Operators of a traced step → how tensor parallelism divides each.

A pair of matrices that Megatron-LM splits by columns and by rows (arXiv:1909.08053, section 3)
shows in the order of operators: one matrix or several with one width in (queries, keys and values;
gate and value), something between them that works on features or heads alone (attention, an
activation), and a matrix back to the width they began with. Norms need all features, so that none
lies between.

Latent attention (arXiv:2405.04434, section 2.1) makes queries, or keys and values, in two steps: a
matrix down to a latent, a norm of all its features, and a matrix up to the heads. What is up is
split by columns, each with an input of its own; down and norm every rank computes whole, or of its
share of the tokens (``q_down_proj``, ``linear_kv_down_proj`` of
megatron/core/transformer/multi_latent_attention.py).

Queries of a decoder that attends to an encoder have an input of their own. It shows backward: what
queries add to the gradient of an input that they share with keys follows their product, while the
gradients of an encoder's output from several layers are added up before it.

An embedding whose table is split by entries, and scores of the same vocabulary, go together. All
other layers, convolutions above all, divide their outputs, which are gathered: what TrioSim and its
reference do with every layer. Around the pairs of a transformer they are few, and every rank
computes them whole, as Megatron-LM does with the convolution of a vision transformer's patches and
its table of positions (megatron/core/models/vision/clip_vit_model.py).

With sequence parallelism tables that are added to what was looked up in a divided vocabulary (of
positions, of token types) are looked up for the whole sequence, and each rank keeps its share of
the sum (megatron/core/models/common/embeddings/language_model_embedding.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..base.errors import InputError
from ..kernels.operations import Convolution, Elementwise, Embedding, Gemm, Kernel, Norm
from ..operators.tensors import element_bytes
from .split import NOT_SPLIT, Split
from .step import TracedKernel, TracedOperator, TracedStep

__all__ = ["splits_of", "sums_input_gradient"]


_MIN_ADAPTER_RATIO = 4
"""Times that an adapter is narrower, at least, than the matrix beside it: LoRA's ranks are far
below hidden sizes (arXiv:2106.09685 has 1 to 64)."""


_BESIDES_LOSS = (Gemm, Convolution, Embedding, Norm)
"""Kernels that no loss has."""

_MIN_LATENT_RATIO = 2
"""Times that a latent is narrower, at least, than what it is made from: 4.7 and 14 in DeepSeek-V3
(arXiv:2412.19437, section 4.2: 1,536 and 512 of 7,168)."""


class _Matrix(NamedTuple):
    """Of a linear layer; `latent` is what it takes in, where another made that."""

    number: int
    inputs: int
    outputs: int
    rows: int
    latent: _Matrix | None = None


class _Open:
    """Matrices of which none has gone back yet to the width that the first began with."""

    def __init__(self) -> None:
        self.matrices: list[_Matrix] = []
        self._norms: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return bool(self.matrices)

    @property
    def width(self) -> int:
        """Features that all of them are made from."""
        first = self.matrices[0]
        return (first.latent or first).inputs

    @property
    def downs(self) -> list[_Matrix]:
        """Those that make latents."""
        return [each.latent for each in self.matrices if each.latent]

    def add_norm(self, number: int, widths: Iterable[int]) -> None:
        """Take an operator that normalises so many features."""
        self._norms += [(number, width) for width in widths]

    def with_latent(self, matrix: _Matrix) -> _Matrix:
        """Matrix → the same, with that of `matrices` whose normalised output it takes in."""
        for down in reversed(self.matrices):
            narrow = _MIN_LATENT_RATIO * matrix.inputs < down.inputs
            narrow = narrow and matrix.inputs < matrix.outputs
            normalised = any(
                down.number < number < matrix.number and width == matrix.inputs
                for number, width in self._norms
            )
            if not down.latent and narrow and normalised and down.outputs >= matrix.inputs:
                return matrix._replace(latent=down)
        return matrix

    def add(self, matrix: _Matrix) -> None:
        """Take one more, in place of what makes its latent."""
        self.matrices = [each for each in self.matrices if each is not matrix.latent]
        self.matrices.append(matrix)

    def columns(self, alone: int | None = None) -> dict[int, Split]:
        """Return their splits; those that share an input are gathered and reduced together.

        Parameters
        ----------
        alone : int, optional
            Number of the matrix that has an input of its own.
        """
        found = {}
        for each in self.matrices:
            own = [
                one
                for one in self.matrices
                if one.latent is each.latent and (one.number == alone) == (each.number == alone)
            ]
            found[each.number] = Split(
                "column",
                each.outputs,
                each.inputs,
                first=each is own[0],
                last=each is own[-1],
                beside=each.latent.outputs - each.inputs if each.latent else 0,
            )
        return found

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Features in and out of each."""
        return tuple((each.inputs, each.outputs) for each in self.matrices)

    def clear(self) -> None:
        """Forget all."""
        self.matrices.clear()
        self._norms.clear()


def splits_of(step: TracedStep, tp: int, *, sequence: bool = False) -> Mapping[int, Split]:
    """Traced step, tp → split of each operator that tensor parallelism divides, by number.

    Parameters
    ----------
    step : TracedStep
    tp : int
    sequence : bool
        Whether what lies outside of pairs of matrices has a share of the tokens.

    Returns
    -------
    mapping of int to Split
        Operators that every rank computes whole are left out; with `sequence` those of which each
        rank computes its tokens.

    Raises
    ------
    InputError
        If sequence parallelism needs pairs of matrices that are not there, or there are adapters.
    """
    _check_adapters(step, tp)
    found: dict[int, Split] = {}
    pending = _Open()
    vocabulary = _vocabulary(step, found)
    crossing: set[tuple[tuple[int, int], ...]] = set()

    def gather() -> None:
        for each in (*pending.downs, *pending.matrices):
            # Beside a divided vocabulary they are small: poolers, heads of classes.
            if not vocabulary and each.outputs % tp == 0:
                found[each.number] = Split("gathered", each.outputs, each.inputs)
        pending.clear()

    for number, operator in enumerate(step.operators):
        matrix = _matrix(operator, number)
        if matrix is None:
            if number not in found and _looked_up(operator) & vocabulary:  # once more
                found[number] = found[next(iter(found))]
            widths = _normalised(operator)
            if widths and pending and all(width < pending.width for width in widths):
                pending.add_norm(number, widths)  # of heads' features, or of a latent
            elif widths:
                gather()
            if any(isinstance(each, Convolution) for each in operator.products()):
                gather()
                outputs = max((one.shape[0] for one in operator.parameters), default=0)
                if outputs:
                    found[number] = Split("gathered", outputs)
            continue
        if pending and matrix.rows != pending.matrices[0].rows:
            gather()
        matrix = pending.with_latent(matrix)
        if pending and _closes(matrix, pending, step.operators):
            crosses = _crosses(pending.matrices, step.operators)
            if crosses:
                crossing.add(pending.sizes)
            elif crosses is None:  # the first that adds to an encoder's gradient has nothing to add
                crosses = pending.sizes in crossing
            found |= pending.columns(pending.matrices[0].number if crosses else None)
            whole = {
                n
                for each in pending.matrices
                if each.latent
                for n in range(each.latent.number, each.number)
            }
            for between in range(pending.matrices[0].number + 1, number):
                if between not in whole:
                    outputs = pending.matrices[-1].outputs
                    head = max(_normalised(step.operators[between]), default=0)
                    found.setdefault(between, Split("inside", outputs, head))
            found[number] = Split("row", matrix.outputs, matrix.inputs)
            pending.clear()
            continue
        if pending and not matrix.latent and matrix.inputs != pending.width:
            gather()
        if matrix.outputs in vocabulary:
            gather()
            found[number] = Split("column", matrix.outputs, matrix.inputs, vocabulary=True)
            rows = matrix.rows
            for behind, one in enumerate(step.operators[number + 1 :], number + 1):
                if any(isinstance(each, _BESIDES_LOSS) for each in one.products()):
                    break  # scores are made once more, of the next token but one
                first = behind == number + 1
                found[behind] = Split(
                    "scores",
                    matrix.outputs,
                    vocabulary=True,
                    small=16 * rows,
                    rows=rows if first else 0,
                )
            continue
        pending.add(matrix)
    gather()
    _keep_ends_whole(step, found)
    found = {number: split for number, split in found.items() if split is not NOT_SPLIT}
    return _by_sequence(step, found, tp) if sequence else found


def _check_adapters(step: TracedStep, tp: int) -> None:
    """Refuse matrices that are trained beside wider ones that are not."""
    trained = [one.shape for one in step.parameters if len(one.shape) == 2]
    frozen = [
        min(weight)
        for each in step.operators
        if (weight := each.frozen_weight(trained)) is not None
        and not any(isinstance(kernel, Embedding) for kernel in each.products())
    ]
    thin = [shape for shape in trained if frozen and _MIN_ADAPTER_RATIO * min(shape) <= min(frozen)]
    if thin:
        shown = " × ".join(map(str, thin[0]))
        raise InputError(
            f"tp is {tp}, but {step.source} has adapters (a trained matrix of {shown} beside "
            f"{len(frozen)} that are not trained), of which it is not known how they are divided"
        )


def _keep_ends_whole(step: TracedStep, found: dict[int, Split]) -> None:
    """Leave to every rank what lies before the first pair of matrices, and behind the last.

    Unless there are convolutions between pairs: of such a network they are most of the work.
    """
    pairs = [number for number, split in found.items() if split.kind in ("column", "row")]
    if not pairs:
        return
    first, last = min(pairs), max(pairs)
    inside = step.operators[first:last]
    if any(isinstance(each, Convolution) for operator in inside for each in operator.products()):
        return
    for number, split in list(found.items()):
        if split.kind == "gathered" and not first < number < last:
            del found[number]


def _by_sequence(step: TracedStep, found: dict[int, Split], tp: int) -> dict[int, Split]:
    """Return splits whose operators are entered and left with a share of the tokens."""
    kinds = {split.kind for split in found.values()}
    if "gathered" in kinds or "row" not in kinds:
        raise InputError(
            f"sp is true, but {step.source} has layers that are no pairs of matrices: what lies "
            "between two pairs is what sequence parallelism divides"
        )
    if step.sequence is None or step.sequence % tp:
        said = "unknown" if step.sequence is None else f"{step.sequence:,}"
        raise InputError(
            f"sp is true: tp = {tp} must divide the tokens of a sample, which are {said}"
        )
    paired = {n: replace(split, sequence=True) for n, split in found.items()}
    first = min(number for number, split in found.items() if split.kind in ("column", "row"))
    tables = [
        number
        for number, operator in enumerate(step.operators[:first])
        if number not in found and any(isinstance(each, Embedding) for each in operator.products())
    ]
    vocabulary = next((n for n, split in found.items() if split.kind == "vocabulary"), None)
    if tables and vocabulary is not None:
        paired[vocabulary] = found[vocabulary]
        last = max(tables) + 1  # the addition of the last
        paired |= {number: Split("whole") for number in range(vocabulary + 1, last)}
        paired[last] = Split("scatter")
    return paired


def _vocabulary(step: TracedStep, found: dict[int, Split]) -> set[int]:
    """Split the first embedding by its entries; return the sizes of a vocabulary split so.

    A table behind a layer, as of the positions of patches, holds no vocabulary.
    """
    for number, operator in enumerate(step.operators):
        if any(isinstance(each, Gemm | Convolution) for each in operator.products()):
            return set()
        tables = [each.shape for each in operator.parameters if len(each.shape) == 2]
        looked_up = [each for each in operator.products() if isinstance(each, Embedding)]
        if looked_up:
            entries = looked_up[0].entries
            found[number] = Split("vocabulary", entries, looked_up[0].width, vocabulary=True)
            return {entries, *(shape[0] for shape in tables)}
    return set()


def _matrix(operator: TracedOperator, number: int) -> _Matrix | None:
    """Return the matrix of a linear layer."""
    products = [each for each in operator.products() if isinstance(each, Gemm) and each.batch == 1]
    if not products:
        return None
    kernel = products[0]
    sizes = {kernel.n, kernel.k}
    for each in operator.parameters:
        if len(each.shape) == 2 and set(each.shape) == sizes:
            return _Matrix(number, kernel.k, kernel.n, kernel.m)
    # The gradient of a matrix that is used twice is complete elsewhere: scores of an embedding.
    return None if operator.parameters else _Matrix(number, kernel.k, kernel.n, kernel.m)


def _closes(matrix: _Matrix, pending: _Open, operators: tuple[TracedOperator, ...]) -> bool:
    """Whether a matrix goes back to the width that those before it began with."""
    between = operators[pending.matrices[-1].number + 1 : matrix.number]
    works = any(isinstance(task, TracedKernel) for each in between for task in each.forward)
    fits = matrix.inputs <= sum(each.outputs for each in pending.matrices)
    return works and fits and not matrix.latent and matrix.outputs == pending.width


def _crosses(matrices: Sequence[_Matrix], operators: Sequence[TracedOperator]) -> bool | None:
    """Whether the first of several matrices has an input of its own; None where none shows."""
    first = operators[matrices[0].number]
    kernels = _backward(first)
    products = (i for i, each in enumerate(kernels) if isinstance(each, Gemm))
    at = next(products, len(kernels))
    before = next(
        (own for o in reversed(operators[: matrices[0].number]) if (own := _backward(o))), []
    )

    def adds(each: Kernel) -> bool:
        return sums_input_gradient(each, first)

    if any(map(adds, kernels[at:])) or any(map(adds, before[:1])):
        return False
    others = [kernel for each in matrices[1:] for kernel in _backward(operators[each.number])]
    return True if any(map(adds, (*others, *kernels[:at]))) else None


def _backward(operator: TracedOperator) -> list[Kernel]:
    """Return the kernels of an operator's backward pass."""
    tasks = (task for task in operator.backward if isinstance(task, TracedKernel))
    return [kernel for task in tasks for kernel in task.kernels]


def sums_input_gradient(kernel: Kernel, operator: TracedOperator) -> bool:
    """Kernel, operator → whether it adds the gradient of the operator's input to another's.

    As of an encoder's output, which each layer of the decoder works on.

    Parameters
    ----------
    kernel : Kernel
        Of the backward pass.
    operator : TracedOperator
    """
    if not isinstance(kernel, Elementwise) or not operator.inputs:
        return False
    spec = operator.inputs[0]
    return kernel.bytes == 3 * element_bytes(spec.dtype) * spec.elements


def _looked_up(operator: TracedOperator) -> set[int]:
    """Return how many entries the tables have that an operator looks up without a gradient."""
    if operator.parameters:
        return set()
    return {each.entries for each in operator.products() if isinstance(each, Embedding)}


def _normalised(operator: TracedOperator) -> set[int]:
    """Return how many features the norms of an operator are over."""
    return {each.columns for each in operator.products() if isinstance(each, Norm)}
