"""`Kernel`: base class of kernel descriptions; number formats and their bytes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen

__all__ = ["BYTES", "OPERAND_BYTES", "Counted", "Kernel", "Precision", "operand_bytes"]

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4"]
"""Number formats of matrix operands."""

BYTES: dict[str, int] = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of an element in memory, by the formats that tensors are kept in."""

OPERAND_BYTES: dict[str, float] = {**BYTES, "nvfp4": 9 / 16}
"""Bytes of an element of a matrix operand. NVFP4 has 4 bits and one scale of 8 bits for 16 elements
(arXiv:2509.25149)."""


def operand_bytes(dtype: str, elements: int) -> int:
    """Return the bytes of a matrix operand of so many elements, scales included.

    Parameters
    ----------
    dtype : str
        A number format of `OPERAND_BYTES`.
    elements : int
    """
    return math.ceil(OPERAND_BYTES[dtype] * elements)


@frozen
class Kernel(ABC):
    """Description of one kernel; see the subclasses.

    Attributes
    ----------
    family : str
        Kernels of one family have one formula in the analytical model.
    variant : str, optional
        Of the family's kernels, one of another speed; only some families have variants.
    """

    family: ClassVar[str]

    @property
    def variant(self) -> str | None:
        """Name of the kernel's variant; None in families without variants."""
        return None

    @property
    def qualified_family(self) -> str:
        """The family, with the variant if there is one: ``"attention_cudnn"``."""
        variant = self.variant
        return self.family if variant is None else f"{self.family}_{variant}"

    @property
    def flops(self) -> int:
        """FLOP of the matrix units (Tensor Cores); 0 where the kernel uses none."""
        return 0

    @property
    @abstractmethod
    def traffic(self) -> int:
        """Bytes that move between memory and cores: read, and written."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is int and value < 1:
                raise InputError(f"a kernel's {name!r} is {value}; it must be 1 or more")


@frozen
class Counted(Kernel):
    """A kernel known by its operation and byte counts alone, as in traces of other simulators.

    Attributes
    ----------
    operations : int
        Of the matrix units.
    bytes : int
        Read and written, together.
    dtype : Precision
        Of its operations.
    """

    family: ClassVar[str] = "counted"
    operations: int
    bytes: int
    dtype: Precision = "bf16"

    @property
    def flops(self) -> int:
        """FLOP of the matrix units, as the source counts them."""
        return self.operations

    @property
    def traffic(self) -> int:
        """Bytes read and written, as the source counts them."""
        return self.bytes
