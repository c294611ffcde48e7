"""How much slower kernels are that turn what they read or write."""

from __future__ import annotations

from functools import cache
from typing import Literal

from mpisim.base.presets import packaged
from mpisim.base.quantity import Quantity
from mpisim.base.schema import build

__all__ = ["turned_rate"]

FILE = "calibration/transposed.toml"


@cache
def turned_rate(kind: Literal["streams", "weight_gradients"]) -> float:
    """Return the rate, beside that of kernels that do not.

    Parameters
    ----------
    kind : str
        ``streams``: kernels that stream through memory and write a result transposed;
        ``weight_gradients``: of convolutions in tf32. These sum over pixels, which are not next to
        each other, and of 32 bits matrix units take no turned operands (PTX ISA, wgmma.mma_async:
        transposition of 16-bit matrices alone).
    """
    return build(Quantity, packaged(FILE)[kind], FILE, kind).si
