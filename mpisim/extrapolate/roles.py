"""Operators of a step → its samples and tokens, their layers, and what their kernels work on."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..base.errors import InputError
from ..kernels.operations import BYTES, Elementwise, Embedding, Gemm, GroupedGemm, Kernel
from ..operators import OperatorCall, TensorSpec
from ..operators.tensors import all_tensors
from .layers import layer_names, with_tied
from .step import Role, TracedKernel, TracedOperator, TracedTask

__all__ = ["DescribedOperators", "activations", "described", "first_with_weight"]


class DescribedOperators(NamedTuple):
    """Operators of a step, with the layer of each and what its kernels work on.

    Attributes
    ----------
    operators : tuple of TracedOperator
    samples : int
        Of the step.
    sequence : int or None
        Tokens of a sample; None where the first layer looks up no embeddings.
    embedding, head : tuple of str
        Layers.
    """

    operators: tuple[TracedOperator, ...]
    samples: int
    sequence: int | None
    embedding: tuple[str, ...]
    head: tuple[str, ...]


def described(
    operators: Sequence[TracedOperator],
    paths: Sequence[tuple[str, ...]],
    call_of: Callable[[int], tuple[OperatorCall, Sequence[Kernel]]],
    parameters: Collection[tuple[int, ...]],
    batch: int | None,
    source: str,
) -> DescribedOperators:
    """Operators, module paths → samples, tokens and layers; kernels of weights and scores.

    Parameters
    ----------
    operators, call_of, parameters
        As of `with_roles`.
    paths : sequence of tuple of str
        The modules around each operator; see `layer_names`.
    batch : int, optional
        Samples of the step, where they are known.
    source : str
        The file, for messages.

    Raises
    ------
    InputError
        If it is not clear how many samples there are.
    """
    samples, sequence = batch_of(operators, batch)
    if samples is None:
        raise InputError(
            f"{source}: how many samples a step has is not clear from the input of its first "
            "layer; --traced-batch says so"
        )
    found = with_roles(operators, call_of, parameters, sequence, samples * (sequence or 1))
    layers, embedding, head = layer_names(found, paths)
    named = [replace(each, layer=layer) for each, layer in zip(found, layers, strict=True)]
    return DescribedOperators(tuple(with_tied(named)), samples, sequence, embedding, head)


def activations(call: OperatorCall, parameters: Iterable[tuple[int, ...]]) -> list[TensorSpec]:
    """Call → its input tensors without parameters, transposed or not.

    Parameters
    ----------
    call : OperatorCall
    parameters : iterable of tuple of int
        Shapes of those that it works on. Of several tensors of such a shape the last is taken for
        the parameter, as calls name them behind what they work on.
    """
    found = list(all_tensors(call.inputs))
    for shape in parameters:
        for wanted in (shape, tuple(reversed(shape))):
            places = [i for i, each in enumerate(found) if each.shape == wanted]
            if places:
                del found[places[-1]]
                break
    return found


def batch_of(
    operators: Sequence[TracedOperator], given: int | None = None
) -> tuple[int | None, int | None]:
    """Operators → samples, and tokens of a sample, by the first layer with a weight.

    A weight that is not trained, as beside adapters, shows no parameter: of a lookup it is the
    first input.

    Parameters
    ----------
    operators : sequence of TracedOperator
        In the order of the forward pass.
    given : int, optional
        The samples, where they are known.

    Returns
    -------
    samples : int or None
        None where it is not clear.
    tokens : int or None
        None where the first layer looks up no embeddings, or not a sequence for each sample.
    """
    first = first_with_weight(operators)
    inputs = () if first is None else first.inputs
    if first is not None and not _is_trained(first):
        inputs = inputs[1:]
    largest = max(inputs, key=lambda each: each.elements, default=None)
    looks_up = first is not None and "embedding" in first.name
    if given is not None:
        if largest is None or not looks_up or largest.elements % given:
            return given, None
        return given, largest.elements // given
    if largest is None or not largest.shape:
        return None, None
    if looks_up and len(largest.shape) == 2:
        return largest.shape[0], largest.shape[1]
    if looks_up and not _is_shared(largest.shape[0], operators):
        return None, None
    return largest.shape[0], None


def _is_shared(count: int, operators: Sequence[TracedOperator]) -> bool:
    """Whether layers with weights behind the lookups work on as many, too.

    What a lookup in a part of the vocabulary is of, as of adaptive embeddings (arXiv:1809.10853),
    is neither samples nor tokens.
    """
    others = [each for each in operators if _is_trained(each) and "embedding" not in each.name]
    return any(count in one.shape for each in others for one in each.inputs)


def first_with_weight(operators: Sequence[TracedOperator]) -> TracedOperator | None:
    """Operators of the forward pass → the first with a weight, trained or not; None without any."""
    return next(
        (o for o in operators if _is_trained(o) or ("embedding" in o.name and len(o.inputs) > 1)),
        None,
    )


def _is_trained(operator: TracedOperator) -> bool:
    """Whether an operator has a weight with a gradient."""
    return any(len(each.shape) > 1 for each in operator.parameters)


def with_roles(
    operators: Sequence[TracedOperator],
    call_of: Callable[[int], tuple[OperatorCall, Sequence[Kernel]]],
    parameters: Collection[tuple[int, ...]],
    sequence: int | None,
    tokens: int,
) -> list[TracedOperator]:
    """Say which kernels work on weights alone, and which on scores of attention.

    Parameters
    ----------
    operators : sequence of TracedOperator
    call_of : callable
        Number of a call → the call, and its kernels.
    parameters : collection of tuple of int
        Shapes of all parameters.
    sequence : int, optional
        Tokens of a sample.
    tokens : int
        Of the step.
    """
    weights = {shape for shape in parameters if len(shape) > 1}
    weights |= {tuple(reversed(shape)) for shape in weights}
    roles: dict[int, Role] = {}

    def role(number: int) -> Role:
        if number not in roles:
            call, described = call_of(number)
            tensors: Iterable[TensorSpec] = all_tensors(call.inputs)
            shapes = [each.shape for each in tensors if len(each.shape) > 1]
            roles[number] = ""
            # A product of weights alone there is none; activations may be as large as a weight.
            product = any(isinstance(each, Gemm | GroupedGemm) for each in described)
            of_tokens = any(shape[0] == tokens for shape in shapes)
            if not (product or of_tokens) and shapes and weights.issuperset(shapes):
                roles[number] = "weights"
            elif shapes and all(_are_scores(s, sequence, tokens) for s in shapes):
                roles[number] = "scores"
        return roles[number]

    def told(each: TracedTask, tables: Collection[int]) -> TracedTask:
        if not isinstance(each, TracedKernel) or each.call < 0:
            return each
        fills = any(isinstance(k, Elementwise) and k.bytes in tables for k in each.kernels)
        return replace(each, role="weights" if fills else role(each.call))

    return [
        replace(
            each,
            forward=tuple(told(task, ()) for task in each.forward),
            backward=_with_input_gradient(
                tuple(told(task, _table_sizes(each)) for task in each.backward), weights, tokens
            ),
        )
        for each in operators
    ]


def _with_input_gradient(
    tasks: tuple[TracedTask, ...], weights: Collection[tuple[int, ...]], tokens: int
) -> tuple[TracedTask, ...]:
    """Tell the input's gradient of a matrix from the weight's, where both are of equal sizes.

    So they are where a step has as many tokens as the matrix has features. The input's comes first,
    as in ``AddmmBackward0`` (PyTorch's tools/autograd/derivatives.yaml).
    """
    found: dict[tuple[int, int, int], list[int]] = {}
    for place, each in enumerate(tasks):
        of_one = isinstance(each, TracedKernel) and len(each.kernels) == 1 and not each.on_weight
        kernel = each.kernels[0] if of_one and isinstance(each, TracedKernel) else None
        if isinstance(kernel, Gemm) and kernel.batch == 1 and kernel.k == tokens:
            found.setdefault((kernel.m, kernel.n, kernel.k), []).append(place)
    told = list(tasks)
    for (m, n, k), places in found.items():
        if len(places) == 2 and (m, n) in weights and (n, k) in weights:
            first = told[places[0]]
            assert isinstance(first, TracedKernel)
            told[places[0]] = replace(first, on_weight=True)
    return tuple(told)


def _are_scores(shape: tuple[int, ...], sequence: int | None, tokens: int) -> bool:
    """Whether a tensor is of queries × keys, not of tokens × as many features.

    Scores have heads besides, or are of four dimensions.
    """
    if sequence is None or not shape[-1] == shape[-2] == sequence:
        return False
    return len(shape) > 3 or math.prod(shape[:-2]) > tokens // sequence


def _table_sizes(operator: TracedOperator) -> set[int]:
    """Bytes of the gradient of a table of embeddings, which is filled with zeros."""
    return {
        bytes_of * kernel.entries * kernel.width
        for kernel in operator.products()
        if isinstance(kernel, Embedding)
        for bytes_of in (BYTES["bf16"], BYTES["fp32"])
    }
