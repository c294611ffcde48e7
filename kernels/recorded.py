"""Traced kernels: measured times, scaled to other sizes or GPUs by a kernel model.

    time = measured time × (model at the new sizes, on the new GPU) / (model as traced)

Where neither sizes nor GPU differ this is the measured time itself, whatever the model says of it.
Li et al. (MICRO 2023) and TrioSim (ISCA 2025) carry traces over in this way with Li's regression
lines; here any kernel model serves. The ratio keeps what the measured kernel is better or worse at
than the model takes it for; how much of the model's error cancels in the ratio is not known, so
that all of it counts: once for other sizes on the same GPU, and that of both GPUs where they
differ. Kernels of a captured job, which was not run, have no measured time: the model alone prices
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import ClassVar

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.quantity import Quantity

from .gpu import Gpu
from .model import Estimate, KernelModel
from .numbers import number
from .operations import Attention, Convolution, Elementwise, Gemm, GroupedGemm, Kernel

__all__ = ["MEASURED", "UNKNOWN_ERROR", "Recorded", "RecordedKernels"]

MEASURED = "kernels as measured"
"""Name of what is not scaled; it has no error bar."""

UNKNOWN = "kernels of unknown operators, scaled"

BY_BYTES = "kernels of unknown operators"

UNKNOWN_ERROR = number("unknown_kernel_error")
"""Relative error bar of a kernel that is priced, or scaled, by its bytes alone."""

SOURCE = "ratio of two estimates of the kernel model"


@frozen
class Recorded(Kernel):
    """A measured kernel: its time, and descriptions of it and of its operator's kernels.

    Attributes
    ----------
    duration : int
        Measured, in ps.
    then : tuple of Kernel
        All kernels of its operator, as traced: a library may launch more kernels, or fewer, than
        the description has, so that one ratio serves all of them.
    now : tuple of Kernel
        The same at the sizes at which it is to run.
    known : bool
        Whether a rule of its operator has described it; otherwise bytes do.
    counts : bool
        Whether the operations of `now` count for it; they do for one kernel of an operator.
    host, launch, launch_cost, gap : int
        Of its row, as traced, in ps: see `mpisim.program.Table`.
    priced : bool
        Whether it was captured, and not measured: it takes what the model says of `now`, and the
        rest of its row is the GPU's.
    """

    family: ClassVar[str] = "recorded"
    duration: int
    then: tuple[Kernel, ...] = ()
    now: tuple[Kernel, ...] = ()
    known: bool = True
    counts: bool = True
    host: int = field(default=0, kw_only=True)
    launch: int = field(default=0, kw_only=True)
    launch_cost: int = field(default=0, kw_only=True)
    gap: int = field(default=0, kw_only=True)
    priced: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Take any sizes: they were measured."""

    @property
    def flops(self) -> int:
        """FLOP of the matrix units, of the kernel as it is simulated."""
        return sum(each.flops for each in self.now) if self.counts else 0

    @property
    def traffic(self) -> int:
        """Bytes that move between memory and cores, of the kernel as it is simulated."""
        return sum(each.traffic for each in self.now) if self.counts else 0


class RecordedKernels:
    """A kernel model in which measured kernels have their measured times, scaled where needed.

    Parameters
    ----------
    model : KernelModel
        Of the GPU that is simulated; it prices kernels that were not measured.
    traced : KernelModel
        Of the GPU of the trace; `model` itself if it is the same.
    slowest : (str, Quantity), optional
        Name and size of the factor by which products on the slowest of many GPUs take longer than
        on the traced one.
    """

    def __init__(
        self,
        model: KernelModel,
        traced: KernelModel,
        slowest: tuple[str, Quantity] | None = None,
    ) -> None:
        self._model, self._traced, self._slowest = model, traced, slowest
        self._numbers: dict[str, Quantity] = {}
        self._sums: dict[tuple[bool, tuple[Kernel, ...]], tuple[float, float]] = {}

    @property
    def gpu(self) -> Gpu:
        """GPU whose kernels are priced, not the one of the trace."""
        return self._model.gpu

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """Numbers of the model, and a ratio for each family of kernels that was scaled."""
        return {**self._model.numbers, **self._numbers}

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel, measured or not.

        Raises
        ------
        InputError
            As of the models.
        """
        if not isinstance(kernel, Recorded):
            return self._model.estimate(kernel)
        found = self._carried_over(kernel)
        if self._slowest is None or not any(map(_is_product, kernel.now)):
            return found
        name, factor = self._slowest
        self._numbers[name] = factor
        duration = round(found.duration * factor.value)
        return found._replace(duration=duration, shares={**found.shares, name: 1.0})

    def _carried_over(self, kernel: Recorded) -> Estimate:
        """Return the duration of a measured kernel on a GPU as fast as the traced one."""
        if kernel.priced:
            return self._priced(kernel)
        if kernel.now == kernel.then and self._model is self._traced:
            return Estimate(kernel.duration, {MEASURED: 1.0})
        if kernel.then and not kernel.now:  # nothing is left to do
            return Estimate(0, {})
        before, before_error = self._sum(kernel.then, traced=True)
        after, after_error = self._sum(kernel.now, traced=False)
        name = UNKNOWN
        error = UNKNOWN_ERROR
        if kernel.known and before > 0:
            error = after_error
            if self._model is not self._traced:
                error = math.hypot(before_error, after_error)
            largest = max(kernel.now, key=lambda each: (each.flops, each.traffic))
            name = f"{largest.family} kernels, scaled"
        ratio = after / before if before > 0 else 1.0
        known = self._numbers.get(name)
        if known is None or known.error < error:
            self._numbers[name] = Quantity(1, "1", error, SOURCE)
        return Estimate(max(0, round(kernel.duration * ratio)), {name: 1.0}, error)

    def _priced(self, kernel: Recorded) -> Estimate:
        """Return what the model says of a kernel that was not measured."""
        found = [_estimate(self._model, each) for each in kernel.now]
        total = sum(each.duration for each in found)
        if not kernel.known:
            self._numbers[BY_BYTES] = Quantity(1, "1", UNKNOWN_ERROR, SOURCE)
            return Estimate(total, {BY_BYTES: 1.0}, UNKNOWN_ERROR)
        if len(found) == 1:
            return found[0]
        shares: dict[str, float] = {}
        for each in found:
            for name, share in each.shares.items():
                shares[name] = shares.get(name, 0.0) + share * each.duration / (total or 1)
        error = sum(each.error * each.duration for each in found) / (total or 1)
        return Estimate(total, shares, error)

    def scaled(self, factors: Mapping[str, float]) -> RecordedKernels:
        """Return the model of a GPU whose numbers are multiplied; measured times are scaled.

        Parameters
        ----------
        factors : mapping of str to float
            As of `mpisim.kernels.scaled.scaled_gpu`.
        """
        model = self._model.scaled(factors)
        if model is self._model:
            return self
        return RecordedKernels(model, self._traced, self._slowest)

    def _sum(self, kernels: tuple[Kernel, ...], *, traced: bool) -> tuple[float, float]:
        """Return the time of kernels one after another, in ps, and their mean relative error."""
        model = self._traced if traced else self._model
        key = (model is self._traced, kernels)
        found = self._sums.get(key)
        if found is None:
            total = error = 0.0
            for each in kernels:
                estimate = _estimate(model, each)
                total += estimate.duration
                error += estimate.duration * estimate.error
            found = self._sums[key] = (total, error / total if total else 0.0)
        return found


def _is_product(kernel: Kernel) -> bool:
    return isinstance(kernel, Gemm | GroupedGemm | Convolution | Attention)


def _estimate(model: KernelModel, kernel: Kernel) -> Estimate:
    """Return an estimate; by its bytes where the GPU lacks the kernel's number format.

    What tf32 is allowed for runs in fp32 where there is none.
    """
    try:
        allowed = isinstance(kernel, Gemm | Convolution) and kernel.dtype == "tf32"
        if allowed and "tf32" not in model.gpu.formats:
            kernel = replace(kernel, dtype="fp32")  # type: ignore[call-arg]
        return model.estimate(kernel)
    except InputError:
        found = model.estimate(Elementwise(bytes=max(1, kernel.traffic)))
        return found._replace(error=UNKNOWN_ERROR)
