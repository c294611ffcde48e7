"""A call of an operator: its name, and the types and shapes of what goes in and comes out."""

from __future__ import annotations

import math
from typing import TypeAlias

from ..base.frozen import frozen

__all__ = ["FUSED", "Argument", "OperatorCall", "TensorSpec"]

FUSED = "inductor::"
"""Namespace of kernels of Triton that Inductor has fused: the bytes that it counts come first."""


@frozen
class TensorSpec:
    """Format, shape and strides of a tensor.

    Attributes
    ----------
    dtype : str
        As PyTorch writes it: ``float32``, ``bfloat16``, ``int64``, ``bool``, ``float8_e4m3fn``.
    shape : tuple of int
    strides : tuple of int or None
        In elements; None: not recorded.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


Argument: TypeAlias = "TensorSpec | tuple[Argument, ...] | int | float | str | None"
"""A tensor, a list of them, a number, a name (types of elements, modes), or none."""


@frozen
class OperatorCall:
    """One call of an operator.

    Attributes
    ----------
    name : str
        With its namespace and without its overload: ``aten::addmm``, ``c10d::allreduce_``,
        ``triton::NAME`` for kernels of Triton, ``transformer_engine::…``.
    inputs : tuple of Argument
        In the order of the operator's schema.
    outputs : tuple of Argument
        Tensors, or lists of them; empty if not recorded.
    """

    name: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...] = ()
