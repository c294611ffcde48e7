"""The analytical kernel model: formulas of the operator families with fitted constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mpisim.base.quantity import Quantity, picoseconds

from ..gpu import Gpu
from ..model import Estimate
from ..operations import Kernel
from .calibration import Calibration, Served, decade, packaged_calibration
from .family import ANY, Columns, FamilyModule, family_module, load
from .machine import Machine

__all__ = ["Analytical"]

_MOST_KNOWN = 1 << 15
"""Kernels whose prices are remembered, some 30 MB; one experiment has hundreds."""

BURST = "burst"
"""The constant that says how long a kernel may run before the clock is lowered."""


@dataclass(frozen=True)
class _Formula:
    """A family's module with the constants that serve it here.

    Attributes
    ----------
    module : FamilyModule
    served : Served
    name : str
        Of what its estimates rest on.
    number : Quantity
        That: 1, with the error bar of the durations that are foretold worst.
    errors : dict
        By decade of the duration, as far as met: the error bar there, and an estimate's shares.
    """

    module: FamilyModule
    served: Served
    name: str
    number: Quantity
    errors: dict[int, tuple[float, dict[str, float]]] = field(default_factory=dict)

    def error(self, seconds: float) -> tuple[float, dict[str, float]]:
        """Return the error bar of a duration, and what it rests on."""
        at = decade(seconds)
        found = self.errors.get(at)
        if found is None:
            error, largest = self.served.error(seconds), self.number.error
            found = self.errors[at] = error, {self.name: error / largest if largest else 1.0}
        return found


class Analytical:
    """The analytical model of one GPU.

    Each distinct kernel is priced once.

    Parameters
    ----------
    gpu : Gpu
    calibration : Calibration, optional
        Ours (``data/calibration/kernels.toml``) if not given.
    alone : bool
        Whether each kernel runs by itself, as when it is measured: then a short one ends before
        the board lowers its clock. In a training step kernels follow one another, and all run at
        the clock that the power sustains.

    Examples
    --------
    >>> from mpisim.kernels import find_gpu, operations
    >>> model = Analytical(find_gpu("h100-sxm"))
    >>> estimate = model.estimate(operations.Gemm(m=4096, n=4096, k=4096))
    >>> 150e6 < estimate.duration < 300e6
    True
    """

    def __init__(
        self, gpu: Gpu, calibration: Calibration | None = None, *, alone: bool = False
    ) -> None:
        self._gpu = gpu
        self._alone = alone
        machine = Machine.of(gpu)
        self._machine = machine if alone else machine.in_step()
        self._calibration = packaged_calibration() if calibration is None else calibration
        self._modules: dict[str, FamilyModule] = {}
        self._formulas: dict[tuple[str, str], _Formula] = {}
        self._known: dict[Kernel, Estimate] = {}
        self._numbers: dict[str, Quantity] = {}

    @property
    def gpu(self) -> Gpu:
        """The GPU."""
        return self._gpu

    @property
    def machine(self) -> Machine:
        """The numbers of the GPU that the formulas take."""
        return self._machine

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """What the estimates so far rest on, by the names in their `shares`.

        One number a family and format: 1, with the error bar of the family's formula for kernels
        of the duration that is foretold worst. All kernels of the family are taken to be off
        together, those foretold better by a share of it.
        """
        return self._numbers

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel.

        Raises
        ------
        InputError
            If the GPU lacks the kernel's number format, or no module serves its family.
        """
        found = self._known.get(kernel)
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[kernel] = self._price(kernel)
        return found

    def estimate_many(self, family: str, columns: Mapping[str, Any]) -> np.ndarray:
        """Return the durations of many kernels of one family, in seconds.

        Parameters
        ----------
        family : str
            A name of `family.MODULES`' modules.
        columns : mapping
            As `family.Columns`.

        Returns
        -------
        ndarray of float64, shape (kernels,)

        Raises
        ------
        InputError
            If the GPU lacks the format.
        """
        formula = self._formula(family, columns.get("dtype", ANY))
        return formula.module.seconds(columns, self._machine, formula.served.constants)

    def served(self, family: str, dtype: str = ANY) -> Served:
        """Return the constants that serve a family in a format here, and where they come from.

        Raises
        ------
        InputError
            If the GPU lacks the format.
        """
        return self._formula(family, dtype).served

    def terms(self, kernel: Kernel) -> dict[str, float]:
        """Return how a kernel's duration divides into terms, in seconds, for explanations."""
        formula, columns = self._describe(kernel)
        shares = formula.module.shares(columns, self._machine, formula.served.constants)
        return {name: _number(value) for name, value in shares.items()}

    def _describe(self, kernel: Kernel) -> tuple[_Formula, Columns]:
        """Return the formula that serves a kernel, and the numbers it takes."""
        module = self._modules.get(kernel.family)
        if module is None:
            module = self._modules[kernel.family] = family_module(kernel.family)
        columns = module.columns(kernel)
        key: Any = module.FAMILY, columns.get("dtype", ANY)
        return self._formulas.get(key) or self._formula(*key), columns

    def _formula(self, family: str, dtype: str) -> _Formula:
        key = family, dtype
        found = self._formulas.get(key)
        if found is None:
            if dtype != ANY:
                self._gpu.peak(dtype)  # or an error that says so
            served = self._calibration.serve(family, self._machine, dtype)
            if not self._alone and BURST in served.constants:
                served = replace(served, constants={**served.constants, BURST: 0.0})
            name = f"{family} model" + ("" if dtype == ANY else f" ({dtype})")
            number = Quantity(1.0, "1", served.largest_error, served.source)
            found = self._formulas[key] = _Formula(load(family), served, name, number)
        return found

    def _price(self, kernel: Kernel) -> Estimate:
        formula, columns = self._describe(kernel)
        seconds: float = formula.module.seconds(columns, self._machine, formula.served.constants)
        error, shares = formula.error(seconds)
        self._numbers[formula.name] = formula.number
        return Estimate(picoseconds(seconds), shares, error)


def _number(value: Any) -> float:
    """Return the one number of a formula's result."""
    return value if type(value) is float else float(np.asarray(value).item())
