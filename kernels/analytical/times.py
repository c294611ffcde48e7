"""Kernels that take so many times as long as those of another family, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from mpisim.base.presets import packaged
from mpisim.base.quantity import Quantity
from mpisim.base.schema import build

from .family import Columns
from .machine import Machine
from .maths import where

__all__ = ["TimesAsLong"]


class Formula(Protocol):
    """What is taken of the other family's module, as in `FamilyModule`."""

    def seconds(self, columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> Any:
        """Return the duration of each kernel, in seconds."""

    def shares(
        self, columns: Columns, gpu: Machine, constants: Mapping[str, float]
    ) -> dict[str, Any]:
        """Return the durations divided, in seconds."""


@dataclass(frozen=True)
class TimesAsLong:
    """The formula of such a family; its columns have ``backward``, its constants are the other's.

    Attributes
    ----------
    other : module
        Of the other family.
    path : str
        Of the two ratios, ``forward`` and ``backward``, in the folder of data.
    """

    other: Formula
    path: str

    @cached_property
    def ratios(self) -> tuple[Quantity, Quantity]:
        """How many times as long, forward and backward."""
        tables = packaged(self.path)
        forward, backward = (
            build(Quantity, tables[name], self.path, name) for name in ("forward", "backward")
        )
        return forward, backward

    def seconds(self, columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> Any:
        """Return the duration of each kernel, in seconds."""
        return self._ratio(columns) * self.other.seconds(columns, gpu, constants)

    def shares(
        self, columns: Columns, gpu: Machine, constants: Mapping[str, float]
    ) -> dict[str, Any]:
        """Return the durations divided as those of the other family, in seconds."""
        found = self.other.shares(columns, gpu, constants)
        return {name: self._ratio(columns) * share for name, share in found.items()}

    def _ratio(self, columns: Columns) -> Any:
        forward, backward = self.ratios
        return where(columns["backward"] != 0, backward.si, forward.si)
