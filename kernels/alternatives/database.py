"""Kernel → measured time: exact where it was measured, else interpolated in size.

The database has the times of kernels that were measured on the GPU itself, and of those that differ
from two measured ones in one size only and lie between them: on a straight line in logarithms.
Another model estimates all others.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields

import numpy as np

from mpisim.base.quantity import Quantity, picoseconds

from ..gpu import Gpu
from ..gpu_parameters import GpuParameters
from ..measured import MeasuredKernels
from ..model import Estimate, KernelModel
from ..numbers import quantity
from ..operations import Kernel
from ..scaled import ScaledKernels

__all__ = ["EXACT", "INTERPOLATED", "MAX_SIZE_RATIO", "OperationDatabase", "interpolated"]

EXACT = quantity("measured_kernel")
INTERPOLATED = quantity("interpolated_kernel")
"""Multiples of the true time: 1, with the error of a measurement and of an interpolation."""

MAX_SIZE_RATIO = 4.0
"""Of the two sizes that may still be interpolated between."""


class OperationDatabase:
    """The times measured on one GPU.

    Parameters
    ----------
    rows : iterable of MeasuredKernels
        Those of other GPUs are left out. Of repeated measurements the median counts.
    fallback : KernelModel
        Of the same GPU, for kernels that the database does not have.
    launch : callable, optional
        As for `MeasuredKernels.net`.

    Attributes
    ----------
    counts : Counter
        How many distinct kernels were ``"exact"``, ``"interpolated"`` and ``"missing"``.
    """

    def __init__(
        self,
        rows: Iterable[MeasuredKernels],
        fallback: KernelModel,
        launch: Callable[[MeasuredKernels], float | np.ndarray] | None = None,
    ) -> None:
        name = GpuParameters.of(fallback.gpu).name
        times: dict[Kernel, list[float]] = {}
        for each in rows:
            if each.gpu == name:
                for kernel, seconds in zip(each.kernels, each.net(launch).tolist()):
                    times.setdefault(kernel, []).append(seconds)
        self._fallback = fallback
        self._times = {kernel: _median(found) for kernel, found in times.items()}
        self._lines: dict[tuple[object, ...], list[tuple[int, float]]] = {}
        for kernel, seconds in self._times.items():
            for line, size in _lines(kernel):
                self._lines.setdefault(line, []).append((size, seconds))
        for points in self._lines.values():
            points.sort()
        self._known: dict[Kernel, Estimate] = {}
        self.counts: Counter[str] = Counter()

    @property
    def gpu(self) -> Gpu:
        """GPU whose kernels are priced."""
        return self._fallback.gpu

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """The noise of measurements, the error of interpolation, and the other model's."""
        return {
            **self._fallback.numbers,
            "measured kernels": EXACT,
            "interpolated kernels": INTERPOLATED,
        }

    def __len__(self) -> int:
        return len(self._times)

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel.

        Raises
        ------
        InputError
            If it was not measured and the other model cannot estimate it.
        """
        found = self._known.get(kernel)
        if found is None:
            found = self._known[kernel] = self._look_up(kernel)
        return found

    def scaled(self, factors: Mapping[str, float]) -> ScaledKernels:
        """Return the times of a GPU whose numbers are multiplied, by the other model's ratio.

        Parameters
        ----------
        factors : mapping of str to float
            As of `mpisim.kernels.scaled.scaled_gpu`.
        """
        return ScaledKernels(self, self._fallback.scaled(factors), self._fallback)

    def _look_up(self, kernel: Kernel) -> Estimate:
        seconds = self._times.get(kernel)
        if seconds is not None:
            self.counts["exact"] += 1
            return Estimate(picoseconds(seconds), {"measured kernels": 1.0}, EXACT.error)
        seconds = self._between(kernel)
        if seconds is not None:
            self.counts["interpolated"] += 1
            return Estimate(picoseconds(seconds), {"interpolated kernels": 1.0}, INTERPOLATED.error)
        self.counts["missing"] += 1
        return self._fallback.estimate(kernel)

    def _between(self, kernel: Kernel) -> float | None:
        """Interpolate along the size whose measured neighbours are nearest."""
        best: tuple[float, float] | None = None
        for line, size in _lines(kernel):
            points = self._lines.get(line, [])
            at = bisect(points, (size, 0.0))
            if not 0 < at < len(points):
                continue
            (low, fast), (high, slow) = points[at - 1], points[at]
            if high > MAX_SIZE_RATIO * low:
                continue
            seconds = interpolated(low, fast, high, slow, size)
            if best is None or high / low < best[0]:
                best = high / low, seconds
        return best[1] if best else None


def interpolated(low: float, fast: float, high: float, slow: float, size: float) -> float:
    """Two sizes and their times → the time of a size between them, on a line in logarithms.

    Parameters
    ----------
    low, fast, high, slow : float
        The smaller size, its time, the larger size, its time; times in any unit.
    size : float

    Examples
    --------
    >>> round(interpolated(1, 10, 4, 40, 2), 9)
    20.0
    """
    part = math.log(size / low) / math.log(high / low)
    return float(fast ** (1 - part) * slow**part)


def _median(values: list[float]) -> float:
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def _lines(kernel: Kernel) -> Iterator[tuple[tuple[object, ...], int]]:
    """Yield the lines that a kernel lies on, each with the size that varies along it."""
    names = [each.name for each in fields(kernel)]
    values = [getattr(kernel, name) for name in names]
    for index, value in enumerate(values):
        if type(value) is int:
            others = tuple(values[:index] + values[index + 1 :])
            yield (type(kernel), names[index], *others), value
