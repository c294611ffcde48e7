"""Layers of Transformer Engine, which are one operator each → norms, products, activations.

Its autograd functions (transformer_engine/pytorch/module) are given their tensors one by one:
``_Linear`` weight and input, ``_LayerNormLinear`` input, norm and weight, ``_LayerNormMLP`` input,
norm and both weights. Which is which follows from their shapes. That products run in fp8 is not to
be seen in the types of these tensors: they are taken to run in the type that is recorded.
"""

from __future__ import annotations

from collections.abc import Callable

from ..kernels.operations import Kernel, Norm
from .call import OperatorCall, TensorSpec
from .products import product
from .streams import stream
from .tensors import all_tensors, element_bytes, format_of

__all__ = ["RULES"]

Kernels = tuple[Kernel, ...]
Rule = Callable[[OperatorCall], "Kernels | None"]


def _layer(*, backward: bool, normed: bool) -> Rule:
    """Return the rule of a layer, of one product or two."""

    def rule(call: OperatorCall) -> Kernels | None:
        given = call.inputs
        if backward:
            given = given[-1] if given and isinstance(given[-1], tuple) else ()
        tensors = tuple(all_tensors(given))
        found = _input_and_weights(tensors, two="MLP" in call.name)
        if found is None:
            return None
        x, weights = found
        return _kernels(x, weights, backward, normed)

    return rule


def _input_and_weights(
    tensors: tuple[TensorSpec, ...], two: bool
) -> tuple[TensorSpec, tuple[TensorSpec, ...]] | None:
    """Return the input, and the weights (out, in) of the products that follow each other."""
    large = [each for each in tensors if len(each.shape) >= 2 and each.elements]
    for x in sorted(large, key=lambda each: -len(each.shape)):
        width, weights = x.shape[-1], []
        for each in large:
            fits = len(each.shape) == 2 and each.shape[1] in (width, width // 2)
            if each is not x and fits and len(weights) < 1 + two:
                weights.append(each)
                width = each.shape[0]
        if len(weights) == 1 + two and weights[0].shape[1] == x.shape[-1]:
            return x, tuple(weights)
    return None


def _kernels(
    x: TensorSpec, weights: tuple[TensorSpec, ...], backward: bool, normed: bool
) -> Kernels:
    rows = x.elements // x.shape[-1]
    size = element_bytes(x.dtype)
    found: Kernels = ()
    if normed:
        found += (Norm(rows, x.shape[-1], kind="rms", backward=backward, dtype=format_of(x)),)
    for weight, following in zip(weights, (*weights[1:], None)):
        outputs, inputs = weight.shape
        if backward:
            found += product(x, rows, inputs, outputs)
            found += product(x, outputs, inputs, rows)
        else:
            found += product(x, rows, outputs, inputs)
        if following is not None:  # the activation, of a gate or without one
            between = size * rows * (outputs + following.shape[1])
            found += stream(between + (size * rows * following.shape[1] if backward else 0))
    return found


RULES: dict[str, Rule] = {
    f"{name}{end}": _layer(backward=bool(end), normed="Norm" in name)
    for name in ("_Linear", "_LayerNormLinear", "_LayerNormMLP")
    for end in ("", "Backward")
}
"""Rules by the name of the autograd function."""
