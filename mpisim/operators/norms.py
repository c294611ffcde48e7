"""Normalisations, softmax and losses of PyTorch → kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from ..kernels.operations import Kernel, Norm, NormVariant, Softmax
from .call import OperatorCall, TensorSpec
from .streams import stream
from .tensors import all_tensors, element_bytes, format_of, number, numbers, tensor, touched

__all__ = [
    "batch_norm",
    "gathered_statistics",
    "group_norm",
    "layer_norm",
    "loss",
    "loss_backward",
    "softmax",
]

Kernels = tuple[Kernel, ...]
Kind = Literal["layer", "rms", "batch"]


def layer_norm(
    kind: Kind, *, backward: bool = False, at: int = 0, variant: NormVariant | None = None
) -> Callable[[OperatorCall], Kernels | None]:
    """Kind of norm, position of its input → rule of a norm over the last dimensions.

    The normalised width is the given shape's (``normalized_shape``, after the input), where it was
    recorded, else the last dimension.

    Parameters
    ----------
    kind : Kind
        ``layer``, ``rms`` or ``batch``.
    backward : bool
    at : int
        Position among the inputs of the tensor that is normalised.
    variant : NormVariant, optional
        Implementation, where it is not PyTorch's own.

    Returns
    -------
    callable
        Rule: call → kernels.
    """

    def rule(call: OperatorCall) -> Kernels | None:
        x = tensor(call, at)
        if x is None or not x.shape:
            return None
        over = next((numbers(call, i) for i in (at + 1, at + 2) if numbers(call, i)), None)
        columns = math.prod(over) if over and math.prod(over) else x.shape[-1]
        return _norm(x, columns, kind, backward, variant)

    return rule


def _norm(
    x: TensorSpec, columns: int, kind: Kind, backward: bool, variant: NormVariant | None = None
) -> Kernels:
    if not x.elements or columns < 1:
        return ()
    rows = max(1, x.elements // columns)
    dtype = format_of(x)
    return (Norm(rows, columns, kind=kind, backward=backward, dtype=dtype, variant=variant),)


def batch_norm(
    *,
    backward: bool = False,
    at: int = 0,
    training: int | None = None,
    passes: tuple[int, int] = (1, 1),
) -> Callable[[OperatorCall], Kernels | None]:
    """Return the rule of a batch norm; channels are the second dimension.

    Parameters
    ----------
    backward : bool
    at : int
        Which input is normalised.
    training : int, optional
        Which input says whether statistics are taken: without them it is elementwise.
    passes : tuple of int
        Of how many passes over the images this operator makes how many, where statistics of
        several ranks are gathered between the kernels that are one operator elsewhere.
    """

    def rule(call: OperatorCall) -> Kernels | None:
        x = tensor(call, at)
        if x is None or len(x.shape) < 2:
            return None
        if training is not None and not number(call, training, 1):
            return stream(2 * touched(x))
        made, of = passes
        part = replace(x, shape=(x.elements * made // of // x.shape[1], x.shape[1]))
        return _norm(part, x.shape[1], "batch", backward)

    return rule


def gathered_statistics(call: OperatorCall) -> Kernels | None:
    """``batch_norm_gather_stats_with_counts(x, means, deviations, …)`` → reads those of ranks."""
    return stream(sum(touched(each) for each in all_tensors((*call.inputs[1:], *call.outputs))))


def group_norm(*, backward: bool = False) -> Callable[[OperatorCall], Kernels | None]:
    """Direction → rule of ``native_group_norm``: a norm over channels and pixels of a group.

    Parameters
    ----------
    backward : bool

    Returns
    -------
    callable
        Rule: call → kernels.
    """

    def rule(call: OperatorCall) -> Kernels | None:
        x = tensor(call, 1 if backward else 0)
        if x is None or len(x.shape) < 2:
            return None
        groups = number(call, 8 if backward else 6, 32)
        return _norm(x, x.elements // max(1, x.shape[0] * groups), "layer", backward)

    return rule


def softmax(
    *, backward: bool = False, fused: bool = False, causal: bool = False
) -> Callable[[OperatorCall], Kernels | None]:
    """Return the rule of ``_softmax`` and ``_log_softmax``, and of their gradients.

    Parameters
    ----------
    backward : bool
    fused : bool
        Of a library whose kernel also scales and masks, over the last dimension.
    causal : bool
        Whether such a kernel reads only what a causal mask leaves.
    """

    def rule(call: OperatorCall) -> Kernels | None:
        x = tensor(call, 0)
        if x is None or not x.shape:
            return None
        columns = x.shape[-1 if fused else _axis(call, x, 2 if backward else 1)]
        if not x.elements:
            return ()
        own = Softmax(x.elements // columns, columns, backward, format_of(x), causal)
        if backward and not fused and "log" not in call.name:
            # The product of gradient and result is a kernel of its own, and the gradient that the
            # next one reads (aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out).
            return (*stream(3 * touched(x)), own)
        return (own,)

    return rule


def _axis(call: OperatorCall, x: TensorSpec, position: int) -> int:
    axis = number(call, position, -1)
    return axis if -len(x.shape) <= axis < len(x.shape) else -1


def loss(call: OperatorCall) -> Kernels | None:
    """``nll_loss_forward(scores, classes, …)`` → reads one score a row."""
    scores, classes = tensor(call, 0), tensor(call, 1)
    if scores is None or classes is None:
        return None
    return stream(touched(classes) + 32 * classes.elements)  # a sector of 32 bytes a score


def loss_backward(call: OperatorCall) -> Kernels | None:
    """``nll_loss_backward(gradient, scores, classes, …)`` → zeros, and one number a row."""
    scores, classes = tensor(call, 1), tensor(call, 2)
    if scores is None or classes is None:
        return None
    zeros = stream(element_bytes(scores.dtype) * scores.elements)
    return (*zeros, *stream(touched(classes) + 32 * classes.elements))
