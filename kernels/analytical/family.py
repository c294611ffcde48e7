"""What a module of an operator family offers, and which module serves which kernels.

A family module computes the time of one kernel or of many at once from a few constants. The
constants are dimensionless or seconds, relative to what the datasheet of a GPU says, so that those
fitted on some GPUs serve others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from mpisim.base.errors import InputError

from ..operations import Kernel
from .machine import Machine

__all__ = ["ANY", "MODULES", "Columns", "Constant", "FamilyModule", "family_module", "stack"]

Columns = Mapping[str, Any]
"""The numbers of the kernels' descriptions: arrays of one length, one row a kernel, or plain
numbers of one kernel; and ``"dtype"``, one text for all of them, where the family has formats."""

ANY = "any"
"""The format of families that know none, and the calibration that serves all GPUs."""

MODULES: dict[str, str] = {
    "gemm": "gemm",
    "gemm_cores": "gemm_cores",
    "gemm_split": "gemm_split",
    "grouped_gemm": "grouped_gemm",
    "grouped_gemm_split": "grouped_gemm_split",
    "attention": "attention",
    "attention_cudnn": "attention_cudnn",
    "attention_flash_2": "attention_flash_2",
    "attention_triton": "attention_triton",
    "convolution": "convolution",
    "elementwise": "memory_bound",
    "copy": "memory_bound",
    "optimizer": "memory_bound",
    "softmax": "softmax",
    "norm": "norm",
    "norm_persistent": "norm_persistent",
    "cross_entropy": "softmax",
    "embedding": "embedding",
}
"""The module that serves each `Kernel.family`; also the names of the calibration's tables."""


@dataclass(frozen=True)
class Constant:
    """A number of a family's formula that is fitted to measurements.

    Attributes
    ----------
    name : str
    start : float
        Where a fit starts, and the value without a calibration: a textbook figure.
    least, most : float
        What is physically possible.
    meaning : str
        In one line, with the unit if it has one.
    """

    name: str
    start: float
    least: float
    most: float
    meaning: str

    def __post_init__(self) -> None:
        if not self.least <= self.start <= self.most or self.least == self.most:
            raise ValueError(f"constant {self.name!r}: {self.least} ≤ {self.start} ≤ {self.most}")


class FamilyModule(Protocol):
    """A module of this package: ``gemm``, ``attention`` and so on."""

    FAMILY: str
    """Its name, as in `MODULES`."""

    CONSTANTS: tuple[Constant, ...]
    """At most eight."""

    def columns(self, kernel: Any) -> dict[str, float | int | str]:
        """Return the numbers of one kernel's description."""

    def seconds(self, columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> Any:
        """Return the duration of each kernel, in seconds. No loop over rows.

        An ndarray of float64, shape (kernels,), where the columns are arrays, and a float where
        they are plain numbers: both to the same picosecond.
        """

    def shares(
        self, columns: Columns, gpu: Machine, constants: Mapping[str, float]
    ) -> dict[str, Any]:
        """Return how the durations divide into terms, in seconds: they add up to `seconds`."""


def family_module(kernel_family: str) -> FamilyModule:
    """Return the module that serves a `Kernel.family`.

    Raises
    ------
    InputError
        If none does.
    """
    if kernel_family not in MODULES:
        raise InputError(
            f"no analytical model of the family {kernel_family!r}; there are {', '.join(MODULES)}"
        )
    return load(MODULES[kernel_family])


def load(name: str) -> FamilyModule:
    """Return a family module by its own name; it is imported when it is first used."""
    module: Any = import_module(f"{__package__}.{name}")
    found: FamilyModule = module
    return found


def stack(kernels: Sequence[Kernel]) -> dict[str, Any]:
    """Return the columns of kernels of one family and one format.

    Parameters
    ----------
    kernels : sequence of Kernel
        At least one.

    Returns
    -------
    dict
        As `Columns`.
    """
    module = family_module(kernels[0].family)
    rows = [module.columns(kernel) for kernel in kernels]
    found: dict[str, Any] = {
        name: np.array([row[name] for row in rows]) for name in rows[0] if name != "dtype"
    }
    if "dtype" in rows[0]:
        (found["dtype"],) = {row["dtype"] for row in rows}
    return found
