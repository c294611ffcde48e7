"""The analytical kernel model: formulas of the kernel families with fitted constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from mpisim.base.frozen import frozen
from mpisim.base.quantity import Quantity, picoseconds

from ..gpu import Gpu
from ..gpu_parameters import GpuParameters
from ..model import Estimate
from ..operations import Attention, Convolution, Gemm, GroupedGemm, Kernel
from ..roofline import Roofline
from ..scaled import rated_gpu, scaled_gpu
from .calibration import KernelCalibration, decade_of, packaged_calibration
from .families import FORMULAS, VARIANTS, formula_of, stack_columns
from .formula import ANY, Columns, Formula
from .lookup import CalibrationLookup, look_up
from .tiles import free_stretch

__all__ = ["Analytical", "analytical_model"]

MAX_CACHED_KERNELS = 1 << 15
"""Kernels whose estimates are cached, some 30 MB; one experiment has hundreds."""

MAX_CACHED_MODELS = 8
"""Kinds of GPUs of the experiments that a process compares."""

BURST = "burst"
"""The constant that says how long a kernel may run before the clock is lowered."""

EFFICIENCY = "efficiency"
"""The constant with the share of the peak that arithmetic alone reaches."""

LARGE_KERNELS: dict[str, Kernel] = {
    "gemm": Gemm(8192, 8192, 8192),
    "grouped_gemm": GroupedGemm(rows=65536, groups=8, n=8192, k=8192),
    "convolution": Convolution(256, 256, 256, height=56, width=56, kernel=3),
    "attention": Attention(8, 32, 32, 8192, 8192, 128, 128, causal=True),
}
"""By formula (all of attention together): a kernel that takes its time from arithmetic."""


@frozen
class _CalibratedFormula:
    """A formula with the constants that serve it on the GPU.

    Attributes
    ----------
    formula : Formula
    lookup : CalibrationLookup
    name : str
        Of the number that its estimates depend on: that of the formula whose constants it has.
    number : Quantity
        That: 1, with the error bar of the durations that are predicted worst.
    carried_name : str
        Of what it is off by beside the formula whose constants it has.
    errors : dict
        By decade of the durations so far: the error bar there, an estimate's shares, and what of
        the error is its own.
    """

    formula: Formula
    lookup: CalibrationLookup
    name: str
    number: Quantity
    carried_name: str
    errors: dict[int, tuple[float, dict[str, float], dict[str, float]]] = field(
        default_factory=dict
    )

    def error(self, seconds: float) -> tuple[float, dict[str, float], dict[str, float]]:
        """Seconds of a kernel → relative error; its shares by number; what of each is its own."""
        decade = decade_of(seconds)
        found = self.errors.get(decade)
        if found is None:
            error, largest = self.lookup.error(seconds), self.number.error
            of_base = math.sqrt(max(error**2 - self.lookup.carried**2, 0.0))
            shares = {self.name: of_base / largest if largest else 1.0}
            alone = self.lookup.own_share(seconds) * error**2
            own = {self.name: min(alone / of_base**2, 1.0) if of_base else 0.0}
            if self.lookup.carried:
                shares[self.carried_name] = 1.0
            found = self.errors[decade] = error, shares, own
        return found

    @property
    def numbers(self) -> dict[str, Quantity]:
        """The numbers that its estimates depend on, by name."""
        found = {self.name: self.number}
        if self.lookup.carried:
            beside = Quantity(1.0, "1", self.lookup.carried, self.number.source)
            found[self.carried_name] = beside
        return found


class Analytical:
    """The analytical model of one GPU.

    Each distinct kernel is priced once, and what it is divided into is worked out once.

    Parameters
    ----------
    gpu : Gpu
    calibration : KernelCalibration, optional
        The packaged one (``data/calibration/kernels.toml``) if not given.
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
        self, gpu: Gpu, calibration: KernelCalibration | None = None, *, alone: bool = False
    ) -> None:
        self._gpu = gpu
        self._alone = alone
        parameters = GpuParameters.of(gpu)
        self._parameters = parameters if alone else parameters.at_steady_clock()
        self._calibration = packaged_calibration() if calibration is None else calibration
        self._formula_of: dict[tuple[str, str | None], Formula] = {}
        self._calibrated: dict[tuple[str, str], _CalibratedFormula] = {}
        self._estimates: dict[Kernel, Estimate] = {}
        self._divisions: dict[Kernel, tuple[float, float]] = {}
        self._stretches: dict[Kernel, dict[int, float]] = {}  # by what is occupied
        self._n_stretches = 0
        self._numbers: dict[str, Quantity] = {}

    @property
    def gpu(self) -> Gpu:
        """GPU whose kernels are priced."""
        return self._gpu

    @property
    def parameters(self) -> GpuParameters:
        """The parameters of the GPU that the formulas take."""
        return self._parameters

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """Numbers that the estimates so far depend on, by the names in their `shares`.

        One number a formula and format: 1, with the error bar of the formula for kernels of the
        duration that is predicted worst. Kernels predicted better are off by a share of it, and
        partly each by itself (`Estimate.own`).
        """
        return self._numbers

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel.

        Raises
        ------
        InputError
            If the GPU lacks the kernel's number format, or no formula serves its family.
        """
        found = self._estimates.get(kernel)
        if found is None:
            if len(self._estimates) >= MAX_CACHED_KERNELS:
                self._estimates.clear()
            found = self._estimates[kernel] = self._price(kernel)
        return found

    def scaled(self, factors: Mapping[str, float]) -> Analytical:
        """Return the model of a GPU whose numbers are multiplied, with the constants of this one.

        Parameters
        ----------
        factors : mapping of str to float
            As of `mpisim.kernels.scaled.scaled_gpu`.
        """
        gpu = scaled_gpu(self._gpu, factors)
        if gpu is self._gpu:
            return self
        found = copy(self)
        found._gpu, found._parameters = gpu, self._parameters.rescaled(gpu)
        found._estimates, found._divisions, found._stretches, found._numbers = {}, {}, {}, {}
        found._n_stretches = 0
        return found  # which constants serve does not depend on factors

    def estimate_many(self, formula: str, columns: Mapping[str, Any]) -> np.ndarray:
        """Return the durations of many kernels of one formula, in seconds.

        Parameters
        ----------
        formula : str
            A name of `families.FORMULAS`.
        columns : mapping
            As `formula.Columns`.

        Returns
        -------
        ndarray of float64, shape (kernels,)

        Raises
        ------
        InputError
            If the GPU lacks the format.
        """
        calibrated = self._calibrate(formula, columns.get("dtype", ANY))
        constants = calibrated.lookup.constants
        seconds: np.ndarray = calibrated.formula.seconds(columns, self._parameters, constants)
        return seconds

    def look_up(self, formula: str, dtype: str = ANY) -> CalibrationLookup:
        """Return the constants for a formula in a format on this GPU, with their source.

        Parameters
        ----------
        formula : str
            A name of `families.FORMULAS`.
        dtype : str
            A number format, or ``"any"`` for kernels that have none.

        Raises
        ------
        InputError
            If the GPU lacks the format.
        """
        return self._calibrate(formula, dtype).lookup

    def terms(self, kernel: Kernel) -> dict[str, float]:
        """Return the terms of a kernel's duration, in seconds, for explanations."""
        calibrated, columns = self._describe(kernel)
        constants = calibrated.lookup.constants
        terms = calibrated.formula.shares(columns, self._parameters, constants)
        return {name: _scalar(value) for name, value in terms.items()}

    def divide(self, kernels: Sequence[Kernel]) -> tuple[np.ndarray, np.ndarray]:
        """Return how the durations of kernels divide between memory, multiprocessors and a floor.

        Parameters
        ----------
        kernels : sequence of Kernel, `k` of them

        Returns
        -------
        ndarray of float64, shape (k,)
            Part of the time without the floor that is due to memory; the rest is due to the
            multiprocessors.
        ndarray of float64, shape (k,)
            Share of the duration that is fixed.
        """
        if len(self._divisions) > MAX_CACHED_KERNELS:
            self._divisions.clear()
        found = [self._divisions.get(each) for each in kernels]
        unknown = list(dict.fromkeys(each for each, known in zip(kernels, found) if known is None))
        for places in _batches(unknown):
            batch = [unknown[i] for i in places]
            calibrated, _ = self._describe(batch[0])
            terms = calibrated.formula.shares(
                stack_columns(batch), self._parameters, calibrated.lookup.constants
            )
            total = np.maximum(sum(terms.values()), 1e-12)
            working = np.maximum(total - terms["floor"], 1e-15)
            zeros = np.zeros(len(batch))
            memory, fixed = zeros + terms["memory"] / working, zeros + terms["floor"] / total
            self._divisions.update(zip(batch, zip(memory.tolist(), fixed.tolist())))
        if None in found:
            found = [self._divisions[each] for each in kernels]
        parts = np.array(found, float).reshape(-1, 2)
        return parts[:, 0].copy(), parts[:, 1].copy()

    def stretch_of(self, kernels: Sequence[Kernel]) -> Callable[[int], np.ndarray]:
        """Return the function: multiprocessors occupied → slowdown factors of arithmetic.

        Kernels are looked up once for all numbers that are occupied.

        Parameters
        ----------
        kernels : sequence of Kernel, `k` of them

        Returns
        -------
        callable
            Multiprocessors that communications hold → ndarray of float64, shape (k,).
        """
        if max(self._n_stretches, len(self._stretches)) > MAX_CACHED_KERNELS:
            self._stretches.clear()
            self._n_stretches = 0
        known = [self._stretches.setdefault(each, {}) for each in kernels]

        def stretches(occupied: int) -> np.ndarray:
            found = [each.get(occupied) for each in known]
            if None in found:
                # Of equal kernels, which share a dictionary, one.
                pairs = zip(kernels, known, found)
                missing = {id(times): (each, times) for each, times, at in pairs if at is None}
                some = list(missing.values())
                for batch in _batches([each for each, _ in some]):
                    longer = self._stretched([some[i][0] for i in batch], occupied)
                    for i, factor in zip(batch, longer, strict=True):
                        some[i][1][occupied] = factor
                self._n_stretches += len(some)
                found = [each[occupied] for each in known]
            return np.array(found, float)

        return stretches

    def _stretched(self, batch: Sequence[Kernel], occupied: int) -> list[float]:
        """Return the slowdown factors of kernels of one formula and format."""
        calibrated, _ = self._describe(batch[0])
        stretch = calibrated.formula.stretch
        if stretch is None or occupied == 0:
            return [free_stretch(self._parameters, occupied)] * len(batch)
        constants = calibrated.lookup.constants
        longer: list[float] = stretch(
            stack_columns(batch), self._parameters, constants, occupied
        ).tolist()
        return longer

    def _describe(self, kernel: Kernel) -> tuple[_CalibratedFormula, Columns]:
        """Return the formula that serves a kernel, and the numbers it takes."""
        family = kernel.family, kernel.variant
        formula = self._formula_of.get(family)
        if formula is None:
            formula = self._formula_of[family] = formula_of(kernel.qualified_family)
        columns = formula.columns(kernel)
        key: Any = formula.name, columns.get("dtype", ANY)
        return self._calibrated.get(key) or self._calibrate(*key), columns

    def _calibrate(self, formula: str, dtype: str) -> _CalibratedFormula:
        key = formula, dtype
        found = self._calibrated.get(key)
        if found is None:
            if dtype != ANY:
                self._gpu.peak(dtype)  # or an error that names the formats
            lookup = look_up(self._calibration, formula, self._parameters, dtype)
            if lookup.unrelated and EFFICIENCY in lookup.constants:
                lookup = self._at_known_rate(lookup, formula, dtype)
            if not self._alone and BURST in lookup.constants:
                lookup = replace(lookup, constants={**lookup.constants, BURST: 0.0})
            of = "" if dtype == ANY else f" ({dtype})"
            largest = math.sqrt(max(lookup.largest_error**2 - lookup.carried**2, 0.0))
            found = self._calibrated[key] = _CalibratedFormula(
                FORMULAS[formula],
                lookup,
                name=f"{lookup.base or formula} model{of}",
                number=Quantity(1.0, "1", largest, lookup.source),
                carried_name=f"{formula} beside {lookup.base}{of}",
            )
        return found

    def _at_known_rate(
        self, lookup: CalibrationLookup, formula: str, dtype: str
    ) -> CalibrationLookup:
        """Return constants of unrelated GPUs that give a large kernel the rate known of this one.

        Architectures differ in the share of their peak that is reached (a product on an MI300X at
        best half, on an A100 0.87: github:stas00/ml-engineering, compute/accelerator); how
        small kernels fall below large ones is left to the constants.
        """
        variant = VARIANTS.get(formula)
        base = variant.base if variant else formula
        kernel: Any = LARGE_KERNELS["attention" if base.startswith("attention") else base]
        kernel = replace(kernel, dtype=dtype)
        rated = rated_gpu(self._gpu)
        known = Roofline(rated).estimate(kernel)
        found = FORMULAS[base]
        seconds = found.seconds(found.columns(kernel), GpuParameters.of(rated), lookup.constants)
        rate = lookup.constants[EFFICIENCY] * picoseconds(seconds) / known.duration
        return replace(
            lookup,
            constants={**lookup.constants, EFFICIENCY: rate},
            added=math.hypot(lookup.added, known.error),
        )

    def _price(self, kernel: Kernel) -> Estimate:
        calibrated, columns = self._describe(kernel)
        constants = calibrated.lookup.constants
        seconds: float = calibrated.formula.seconds(columns, self._parameters, constants)
        error, shares, own = calibrated.error(seconds)
        self._numbers |= calibrated.numbers
        return Estimate(picoseconds(seconds), shares, error, own)


@lru_cache(maxsize=MAX_CACHED_MODELS)
def analytical_model(gpu: Gpu) -> Analytical:
    """Return the model of a GPU by the packaged calibration; equal GPUs share one.

    Plans that are compared share it, and price each kernel once.
    """
    return Analytical(gpu)


def _batches(kernels: Sequence[Kernel]) -> list[list[int]]:
    """Kernels → the places of those of each formula and format."""
    found: dict[tuple[str, str], list[int]] = {}
    for i, kernel in enumerate(kernels):
        key = kernel.qualified_family, getattr(kernel, "dtype", "")
        found.setdefault(key, []).append(i)
    return list(found.values())


def _scalar(value: Any) -> float:
    """Return the one number of a formula's result."""
    return value if type(value) is float else float(np.asarray(value).item())
