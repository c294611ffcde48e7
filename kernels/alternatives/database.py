"""Measured times of operations: exact where the kernel was measured, else interpolated.

The database answers for kernels that were measured on the GPU itself, and for those that differ
from two measured ones in one size only and lie between them: on a straight line in logarithms. All
else is asked of another model.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields

import numpy as np

from mpisim.base.quantity import Quantity, picoseconds

from ..analytical.machine import Machine
from ..gpu import Gpu
from ..measured import Rows
from ..model import Estimate, KernelModel
from ..operations import Kernel

__all__ = ["OperationDatabase"]

NOISE = Quantity(1.0, "1", 0.03, "medians of 20 launches differ so much from run to run")
BETWEEN = Quantity(1.0, "1", 0.08, "steps of tiles and waves between two measured sizes")

FARTHEST = 4.0
"""Ratio of the two sizes that may still be interpolated between."""


class OperationDatabase:
    """The times measured on one GPU.

    Parameters
    ----------
    rows : iterable of Rows
        Those of other GPUs are passed over. The median counts where a kernel was measured often.
    otherwise : KernelModel
        Of the same GPU: what to ask for kernels that the database does not know.
    launch : callable, optional
        As for `Rows.net`.

    Attributes
    ----------
    answers : Counter
        How many distinct kernels were ``"exact"``, ``"interpolated"`` and ``"missing"``.
    """

    def __init__(
        self,
        rows: Iterable[Rows],
        otherwise: KernelModel,
        launch: Callable[[Rows], float | np.ndarray] | None = None,
    ) -> None:
        name = Machine.of(otherwise.gpu).name
        times: dict[Kernel, list[float]] = {}
        for each in rows:
            if each.gpu == name:
                for kernel, seconds in zip(each.kernels, each.net(launch).tolist()):
                    times.setdefault(kernel, []).append(seconds)
        self._otherwise = otherwise
        self._times = {kernel: _median(found) for kernel, found in times.items()}
        self._lines: dict[tuple[object, ...], list[tuple[int, float]]] = {}
        for kernel, seconds in self._times.items():
            for line, size in _lines(kernel):
                self._lines.setdefault(line, []).append((size, seconds))
        for points in self._lines.values():
            points.sort()
        self._known: dict[Kernel, Estimate] = {}
        self.answers: Counter[str] = Counter()

    @property
    def gpu(self) -> Gpu:
        """The GPU."""
        return self._otherwise.gpu

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """The noise of measurements, the error of interpolation, and the other model's."""
        return {
            **self._otherwise.numbers,
            "measured kernels": NOISE,
            "interpolated kernels": BETWEEN,
        }

    def __len__(self) -> int:
        return len(self._times)

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel.

        Raises
        ------
        InputError
            If it was not measured and the other model cannot tell.
        """
        found = self._known.get(kernel)
        if found is None:
            found = self._known[kernel] = self._look_up(kernel)
        return found

    def _look_up(self, kernel: Kernel) -> Estimate:
        seconds = self._times.get(kernel)
        if seconds is not None:
            self.answers["exact"] += 1
            return Estimate(picoseconds(seconds), {"measured kernels": 1.0}, NOISE.error)
        seconds = self._between(kernel)
        if seconds is not None:
            self.answers["interpolated"] += 1
            return Estimate(picoseconds(seconds), {"interpolated kernels": 1.0}, BETWEEN.error)
        self.answers["missing"] += 1
        return self._otherwise.estimate(kernel)

    def _between(self, kernel: Kernel) -> float | None:
        """Interpolate along the size whose measured neighbours are nearest."""
        best: tuple[float, float] | None = None
        for line, size in _lines(kernel):
            points = self._lines.get(line, [])
            at = bisect(points, (size, 0.0))
            if not 0 < at < len(points):
                continue
            (low, fast), (high, slow) = points[at - 1], points[at]
            if high > FARTHEST * low:
                continue
            part = math.log(size / low) / math.log(high / low)
            seconds = fast ** (1 - part) * slow**part
            if best is None or high / low < best[0]:
                best = high / low, seconds
        return best[1] if best else None


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
