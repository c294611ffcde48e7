"""Tensors of a call → bytes, number formats, and the results that a recording left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from ..base.frozen import frozen
from ..kernels.operations import Kernel, Precision
from .call import Argument, OperatorCall, TensorSpec

__all__ = [
    "DTYPES",
    "Launched",
    "all_tensors",
    "broadcast",
    "element_bytes",
    "format_of",
    "is_dense",
    "lie_alike",
    "number",
    "numbers",
    "promoted",
    "result",
    "tensor",
    "tensor_list",
    "torch_dtype",
    "touched",
]

_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "complex32": 4,
    "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip

DTYPES = tuple(_BYTES)
"""Types of elements by PyTorch's names."""

_WRITTEN = {
    "c10::half": "float16", "c10::bfloat16": "bfloat16", "half": "float16", "float": "float32",
    "double": "float64", "char": "int8", "signed char": "int8", "byte": "uint8",
    "unsigned char": "uint8", "short": "int16", "short int": "int16", "int": "int32",
    "long": "int64", "long int": "int64", "long long": "int64",
    "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
}  # fmt: skip
"""What Kineto traces and execution traces call types of elements, in small letters."""

_KINETO = {
    "float16": "c10::Half", "bfloat16": "c10::BFloat16", "float32": "float", "float64": "double",
    "int8": "signed char", "uint8": "unsigned char", "int16": "short int", "int32": "int",
    "int64": "long int",
}  # fmt: skip
"""PyTorch's names → Kineto's, where they differ."""

_FORMATS: dict[str, Precision] = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "float4_e2m1fn_x2": "nvfp4",
}


@frozen
class Launched:
    """Kernels that a call of an operator launches.

    Attributes
    ----------
    kernels : tuple of Kernel
        In order; empty for views, and for operators that stay on the host.
    known : bool
        Whether the table knows the operator. Otherwise the kernels stand for the bytes of its
        tensors, which may be far off.
    """

    kernels: tuple[Kernel, ...]
    known: bool


def torch_dtype(written: str) -> str | None:
    """Type of elements as a trace writes it → PyTorch's name; None if it is none.

    Parameters
    ----------
    written : str
        In the spelling of a Kineto or execution trace.

    Returns
    -------
    str or None
        One of `DTYPES`.

    Examples
    --------
    >>> torch_dtype("c10::BFloat16"), torch_dtype("long int"), torch_dtype("ScalarList")
    ('bfloat16', 'int64', None)
    """
    small = written.strip().lower()
    name = _WRITTEN.get(small, small.removeprefix("c10::").removeprefix("torch."))
    return name if name in _BYTES else None


def kineto_type(dtype: str) -> str:
    """PyTorch's name of a type of elements → Kineto's.

    Examples
    --------
    >>> kineto_type("int64"), kineto_type("bool")
    ('long int', 'bool')
    """
    return _KINETO.get(dtype, dtype)


def element_bytes(dtype: str) -> int:
    """Name of a dtype → bytes of one element.

    Parameters
    ----------
    dtype : str
        PyTorch's name.

    Returns
    -------
    int
        4 for types that are not known.
    """
    return _BYTES.get(dtype, 4)


def format_of(spec: TensorSpec) -> Precision:
    """Operand of a product → its number format.

    Parameters
    ----------
    spec : TensorSpec

    Returns
    -------
    str
        ``fp32`` for types that no matrix unit multiplies.
    """
    return _FORMATS.get(spec.dtype, "fp32")


def tensor(call: OperatorCall, position: int) -> TensorSpec | None:
    """Operator call, position of an argument → the tensor given there, or None.

    Parameters
    ----------
    call : OperatorCall
    position : int

    Returns
    -------
    TensorSpec or None
        None if there is no such input, or it is no tensor.
    """
    if position >= len(call.inputs):
        return None
    found = call.inputs[position]
    return found if isinstance(found, TensorSpec) else None


def tensor_list(call: OperatorCall, position: int) -> tuple[TensorSpec, ...]:
    """Operator call, position of an argument → the tensors of the list given there.

    Parameters
    ----------
    call : OperatorCall
    position : int

    Returns
    -------
    tuple of TensorSpec
        Empty if it was not recorded.
    """
    if position >= len(call.inputs):
        return ()
    return tuple(all_tensors((call.inputs[position],)))


def number(call: OperatorCall, position: int, otherwise: int) -> int:
    """Operator call, position of an argument → the whole number given there, or a default.

    Parameters
    ----------
    call : OperatorCall
    position : int
    otherwise : int
        Returned where no number was recorded there.

    Returns
    -------
    int
    """
    found = call.inputs[position] if position < len(call.inputs) else None
    return int(found) if isinstance(found, (int, float)) else otherwise


def numbers(call: OperatorCall, position: int) -> tuple[int, ...] | None:
    """Operator call, position of an argument → the whole numbers of the list given there.

    Parameters
    ----------
    call : OperatorCall
    position : int

    Returns
    -------
    tuple of int or None
        One number for a scalar; None if it was not recorded.
    """
    found = call.inputs[position] if position < len(call.inputs) else None
    if isinstance(found, (int, float)):
        return (int(found),)
    if isinstance(found, tuple) and all(isinstance(each, (int, float)) for each in found):
        return tuple(int(each) for each in found)  # type: ignore[arg-type]
    return None


def all_tensors(arguments: Iterable[Argument]) -> Iterator[TensorSpec]:
    """Arguments of an operator → the tensors among them and in lists among them.

    Parameters
    ----------
    arguments : iterable
        Inputs of a call, or a list among them.

    Yields
    ------
    TensorSpec
        In order.
    """
    for each in arguments:
        if isinstance(each, TensorSpec):
            yield each
        elif isinstance(each, tuple):
            yield from all_tensors(each)


def touched(spec: TensorSpec) -> int:
    """Tensor → bytes of its elements in memory.

    Parameters
    ----------
    spec : TensorSpec

    Returns
    -------
    int
        A dimension that is broadcast (stride 0) counts once.
    """
    elements = spec.elements
    if elements and spec.strides is not None and len(spec.strides) == len(spec.shape):
        elements = math.prod(n for n, step in zip(spec.shape, spec.strides) if step)
    return element_bytes(spec.dtype) * elements


def is_dense(spec: TensorSpec) -> bool:
    """Tensor → whether its elements lie in memory in row-major order, without holes.

    Parameters
    ----------
    spec : TensorSpec

    Returns
    -------
    bool
        True if its strides are not known.
    """
    if spec.strides is None:
        return True
    expected = 1
    for n, step in zip(reversed(spec.shape), reversed(spec.strides)):
        if n != 1 and step != expected:
            return False
        expected *= n
    return True


def lie_alike(one: TensorSpec, other: TensorSpec) -> bool:
    """Two tensors → whether they have the same layout in memory, without holes.

    So have images whose channels are last: PyTorch goes through such operands in the order of
    memory (``TensorIterator`` reorders and joins their dimensions), as through one dimension.

    Parameters
    ----------
    one, other : TensorSpec

    Returns
    -------
    bool
    """
    if is_dense(one) and is_dense(other):
        return one.elements == other.elements
    if one.shape != other.shape or one.strides is None or other.strides is None:
        return False
    expected = 1
    for step, n, same in sorted(zip(one.strides, one.shape, other.strides, strict=True)):
        if n != 1 and (step != expected or same != step):
            return False
        expected *= n
    return True


def broadcast(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Shapes of operands → shape of an elementwise result.

    Parameters
    ----------
    shapes : iterable of tuple of int

    Returns
    -------
    tuple of int
        0 in a dimension where an operand is empty.

    Examples
    --------
    >>> broadcast([(8, 1, 4), (3, 1), ()])
    (8, 3, 4)
    """
    sizes = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return tuple(reversed([0 if 0 in each else max(each) for each in sizes]))


def promoted(operands: Iterable[TensorSpec]) -> str:
    """Operands → type of an elementwise result: floating before whole numbers, then the widest.

    Tensors without dimensions do not widen others, as in PyTorch.

    Parameters
    ----------
    operands : iterable of TensorSpec
        At least one.

    Returns
    -------
    str
        PyTorch's name.
    """
    operands = tuple(operands)
    ranked = [each for each in operands if each.shape] or list(operands)
    found = {each.dtype for each in ranked}
    if {"float16", "bfloat16"} <= found:
        return "float32"
    return max(found, key=lambda name: ("float" in name, element_bytes(name), name))


def result(call: OperatorCall) -> TensorSpec | None:
    """Return the first result if it was recorded."""
    return next(all_tensors(call.outputs), None)
