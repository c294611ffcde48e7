"""Operators on lists of tensors: fused and ``foreach`` optimizers, unscaling of gradients."""

from __future__ import annotations

from collections.abc import Callable

from ..kernels.operations import Elementwise, Kernel
from .call import OperatorCall, TensorSpec
from .tensors import element_bytes, tensor_list

__all__ = ["each", "each_norm", "fused", "multi_tensor", "of_one_tensor"]

Kernels = tuple[Kernel, ...]

_CHUNK = 65536
"""Elements that one block of a kernel over lists handles."""
_BLOCKS = 320
"""Blocks of one such kernel at most."""
_TENSORS = (110, 64, 48, 36, 30)
"""Tensors of one such kernel at most, by the number of lists: its arguments have 4 KB
(aten/src/ATen/native/cuda/MultiTensorApply.cuh)."""


def _launches(first: tuple[TensorSpec, ...], lists: int) -> int:
    """Return how many kernels go through lists of so many tensors."""
    chunks = sum(-(-t.elements // _CHUNK) for t in first)
    most = _TENSORS[min(lists, len(_TENSORS)) - 1]
    return max(1, -(-chunks // _BLOCKS), -(-len(first) // most))


def _kernels(call: OperatorCall, first: int, reads: int, writes: int, lists: int) -> Kernels | None:
    """Return the kernels of an operator that reads and writes elements of a list so often."""
    tensors = tensor_list(call, first)
    if not tensors:
        return None
    amount = sum(element_bytes(t.dtype) * t.elements for t in tensors) * (reads + writes)
    if not amount:
        return ()
    count = _launches(tensors, lists)
    return (Elementwise(bytes=-(-amount // count)),) * count


def _copies(into: tuple[TensorSpec, ...], out_of: tuple[TensorSpec, ...]) -> Kernels:
    """Lists of tensors → the kernels that copy one to the other, which may be of another type."""
    amount = sum(element_bytes(t.dtype) * t.elements for t in (*into, *out_of))
    if not amount:
        return ()
    count = _launches(into, 2)
    return (Elementwise(bytes=-(-amount // count)),) * count


def each(call: OperatorCall) -> Kernels | None:
    """``_foreach_…`` → reads each list among the inputs, writes one."""
    lists = [i for i, value in enumerate(call.inputs) if isinstance(value, tuple)]
    lists = [i for i in lists if tensor_list(call, i)]
    if not lists:
        return None
    separate = 0 if call.name.endswith("_") else 1
    if "copy" in call.name:
        return _copies(tensor_list(call, lists[0]), tensor_list(call, lists[-1]))
    if "zero" in call.name:
        return _kernels(call, lists[0], 0, 1, 1)
    return _kernels(call, lists[0], len(lists), 1, len(lists) + separate)


def each_norm(call: OperatorCall) -> Kernels | None:
    """``_foreach_norm`` → reads the list."""
    return _kernels(call, 0, 1, 0, 1)


def fused(reads: int) -> Callable[[OperatorCall], Kernels | None]:
    """Number of lists that are read → rule of a fused optimizer.

    Parameters
    ----------
    reads : int
        Lists of tensors at the head of the inputs: parameters, gradients, then the states. All but
        the gradients are written as well; each list is counted with its own type of elements.

    Returns
    -------
    callable
        Rule: call → kernels.
    """

    def rule(call: OperatorCall) -> Kernels | None:
        lists = [tensor_list(call, i) for i, value in enumerate(call.inputs[:reads])]
        lists = [found for found in lists if found]
        if not lists:
            return None
        sizes = [sum(element_bytes(t.dtype) * t.elements for t in found) for found in lists]
        amount = sum(sizes) + sum(sizes[:1]) + sum(sizes[2:])  # gradients, the second, are read
        count = _launches(lists[0], len(lists))
        return (Elementwise(bytes=max(1, -(-amount // count))),) * count

    return rule


def of_one_tensor(call: OperatorCall) -> Kernels | None:
    """bitsandbytes' ``optimizer_update_…`` (name, gradient, parameter, states, …) → one kernel.

    It reads the gradient, and reads and writes all else; of 8 bits a number of a state, with a
    scale for 256 of them (``optimizer_update_8bit_blockwise`` in bitsandbytes/_ops.py).
    """
    tensors = [each for each in call.inputs if isinstance(each, TensorSpec)]
    sizes = [element_bytes(each.dtype) * each.elements for each in tensors]
    if len(sizes) < 3:
        return None
    return (Elementwise(bytes=2 * sum(sizes) - sizes[0]),) if any(sizes) else ()


def multi_tensor(call: OperatorCall) -> Kernels | None:
    """Apex's ``multi_tensor_…`` (…, lists of tensors, …) → reads all lists, writes the last."""
    lists = next(
        (value for value in call.inputs if isinstance(value, tuple) and value
         and all(isinstance(part, tuple) for part in value)),
        None,
    )  # fmt: skip
    if lists is None:
        return each(call)
    sizes = [
        sum(element_bytes(t.dtype) * t.elements for t in part if isinstance(t, TensorSpec))
        for part in lists
        if isinstance(part, tuple)
    ]
    if not any(sizes):
        return None
    written = (
        sum(sizes[1:]) if any(each in call.name for each in ("adam", "sgd", "lion")) else sizes[-1]
    )
    first = tuple(t for t in lists[0] if isinstance(t, TensorSpec))  # type: ignore[union-attr]
    count = _launches(first, len(lists))
    amount = sum(sizes) + (0 if "norm" in call.name else written)
    return (Elementwise(bytes=-(-amount // count)),) * count
