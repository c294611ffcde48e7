"""Losses of two tensors, element by element: a kernel for the elements, and those of their sum.

PyTorch writes the loss of each element, and then adds them up or takes their mean by a kernel of
its own; what the formula of an element needs may be several kernels (``Loss.cu`` of
aten/src/ATen/native/cuda and ``Loss.cpp`` of aten/src/ATen/native). Losses of classes are in
:mod:`.norms`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..kernels.operations import Copy, Kernel
from .call import OperatorCall, TensorSpec
from .streams import elementwise, stream
from .tensors import all_tensors, element_bytes, number, result, tensor, touched

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_backward",
    "is_reduced",
    "loss_of_two",
    "loss_of_two_backward",
    "with_logits",
]

Kernels = tuple[Kernel, ...]
_MEAN = 1
"""``Reduction::Mean``, which losses take where nothing else is said; ``None`` is 0."""


def is_reduced(call: OperatorCall, position: int) -> bool:
    """Call, place of its ``reduction`` → whether its result is one number.

    Parameters
    ----------
    call : OperatorCall
    position : int
    """
    to = result(call)
    if to is not None and to.shape:
        return False
    return number(call, position, _MEAN) != 0


def _summed(call: OperatorCall, x: TensorSpec, position: int) -> Kernels:
    """Return the kernel that adds up the losses of elements; none where they are the result."""
    size = element_bytes(x.dtype)
    return stream(size * (x.elements + 1)) if is_reduced(call, position) else ()


def loss_of_two(written: int, again: int = 0) -> Callable[[OperatorCall], Kernels | None]:
    """Return the rule of a loss ``(x, target, reduction, …)``.

    Parameters
    ----------
    written : int
        Kernels that read two tensors and write one.
    again : int
        Those that read one and write one.
    """

    def rule(call: OperatorCall) -> Kernels | None:
        x, target = tensor(call, 0), tensor(call, 1)
        if x is None or target is None:
            return None
        size = touched(x)
        two, one = stream(size + touched(target) + size), stream(2 * size)
        return (*two * written, *one * again, *_summed(call, x, 2))

    return rule


def loss_of_two_backward(written: int, again: int) -> Callable[[OperatorCall], Kernels | None]:
    """Return the rule of a gradient ``(gradient, x, target, …)`` of several kernels.

    Parameters
    ----------
    written, again : int
        As for `loss_of_two`.
    """

    def rule(call: OperatorCall) -> Kernels | None:
        x = tensor(call, 1)
        if x is None:
            return None
        size = touched(x)
        return (*stream(3 * size) * written, *stream(2 * size) * again)

    return rule


def binary_cross_entropy(call: OperatorCall) -> Kernels | None:
    """``binary_cross_entropy(x, target, weight, reduction)`` → elements, weights, sum, a copy.

    The sum is copied into the result, which has held the losses of elements
    (``binary_cross_entropy_out_cuda`` of Loss.cu).
    """
    x, target, weight = (tensor(call, each) for each in range(3))
    if x is None or target is None:
        return None
    size = touched(x)
    weighted = () if weight is None else stream(2 * size + touched(weight))
    summed = _summed(call, x, 3)
    copied = (Copy(bytes=element_bytes(x.dtype)),) if summed else ()
    return (*stream(2 * size + touched(target)), *weighted, *summed, *copied)


def binary_cross_entropy_backward(call: OperatorCall) -> Kernels | None:
    """``binary_cross_entropy_backward(gradient, x, target, weight, reduction)`` → its kernels.

    Weights and the division by the number of elements are kernels of their own.
    """
    x, weight = tensor(call, 1), tensor(call, 3)
    operands = tuple(all_tensors(call.inputs[:3]))
    own = elementwise(OperatorCall(call.name, operands, call.outputs))
    if x is None or own is None:
        return None
    size = touched(x)
    weighted = () if weight is None else stream(2 * size + touched(weight))
    return (*own, *weighted, *(stream(2 * size) if number(call, 4, _MEAN) == _MEAN else ()))


def with_logits(call: OperatorCall) -> Kernels | None:
    """``binary_cross_entropy_with_logits(x, target, weight, pos_weight, reduction)`` → its kernels.

    ``log_sigmoid(x)``; ``(1 - target) * x - log_sigmoid(x)`` in three; of a weight of the positive
    class three more and its product with the first (Loss.cpp).
    """
    x, target, weight, positive = (tensor(call, each) for each in range(4))
    if x is None or target is None:
        return None
    size, given = touched(x), touched(target)
    found = stream(2 * size)
    if positive is not None:
        own = touched(positive)
        found += (*stream(2 * own), *stream(own + given + size), *stream(2 * size))
        found += stream(3 * size)
    found += (*stream(given + size), *stream(3 * size) * 2)
    if weight is not None:
        found += stream(2 * size + touched(weight))
    return (*found, *_summed(call, x, 4))
