"""GPU, factors of its rates and bandwidths → the GPU with these, for what-if questions.

Measured properties of the GPU stay: the share of a peak that kernels reach, the clock that its
power allows, its calibration. A scaled GPU therefore refers to the one it was made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from mpisim.base.frozen import frozen
from mpisim.base.quantity import Quantity

from .gpu import PEAK, Gpu

if TYPE_CHECKING:
    from .model import Estimate, KernelModel
    from .operations import Kernel

__all__ = ["GPU_SCALES", "ScaledKernels", "rated_gpu", "scaled_gpu"]

GPU_SCALES: dict[str, tuple[str, ...]] = {
    "hbm_bandwidth": ("bandwidth",),
    "matrix_rate": tuple(name for name in Gpu.__annotations__ if name.startswith(PEAK)),
    "link_bandwidth": ("nvlink",),
    "pcie_bandwidth": ("pcie",),
    "launch_time": ("launch_call", "launch_latency", "host_gap", "loop_gap"),
    "memory": ("memory",),
}
"""Numbers of a GPU that each factor is of."""


@frozen
class ScaledGpu(Gpu):
    """A GPU with other numbers than its own.

    Attributes
    ----------
    rated : Gpu, optional
        As it is.
    """

    rated: Gpu | None = field(default=None, kw_only=True)


def rated_gpu(gpu: Gpu) -> Gpu:
    """Return the GPU as it is, of one that may be scaled."""
    rated = gpu.rated if isinstance(gpu, ScaledGpu) else None
    return gpu if rated is None else rated


def scaled_gpu(gpu: Gpu, factors: Mapping[str, float]) -> Gpu:
    """Return a GPU whose numbers are multiplied.

    Parameters
    ----------
    gpu : Gpu
    factors : mapping of str to float
        By names of `GPU_SCALES`; others are of no account.

    Examples
    --------
    >>> from mpisim.kernels import find_gpu
    >>> faster = scaled_gpu(find_gpu("h100-sxm"), {"hbm_bandwidth": 2})
    >>> faster.bandwidth.si / find_gpu("h100-sxm").bandwidth.si
    2.0
    """
    changes: dict[str, Any] = {}
    for key, names in GPU_SCALES.items():
        factor = factors.get(key, 1.0)
        for name in names:
            number: Quantity | None = getattr(gpu, name)
            if factor != 1 and number is not None:
                changes[name] = replace(number, value=number.value * factor)
    if not changes:
        return gpu
    if isinstance(gpu, ScaledGpu):
        return replace(gpu, **changes)
    return ScaledGpu(**{**vars(gpu), **changes}, rated=gpu)


class ScaledKernels:
    """Kernel model with measured times, scaled by the ratio that another model gives.

    Parameters
    ----------
    measured : KernelModel
        Of the GPU as it is.
    scaled, rated : KernelModel
        Of the scaled GPU, and of the GPU as it is.
    """

    def __init__(self, measured: KernelModel, scaled: KernelModel, rated: KernelModel) -> None:
        self._measured, self._scaled, self._rated = measured, scaled, rated

    @property
    def gpu(self) -> Gpu:
        """GPU with the scaled rates, as the simulated cluster has it."""
        return self._scaled.gpu

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """Numbers that the measured times depend on, unscaled."""
        return self._measured.numbers

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel, with the error of the measured one.

        Raises
        ------
        InputError
            As the models do.
        """
        found = self._measured.estimate(kernel)
        rated = self._rated.estimate(kernel).duration
        if not rated:
            return found
        ratio = self._scaled.estimate(kernel).duration / rated
        return found._replace(duration=round(found.duration * ratio))

    def scaled(self, factors: Mapping[str, float]) -> ScaledKernels:
        """Return the same of a GPU whose numbers are multiplied once more.

        Parameters
        ----------
        factors : mapping of str to float
            As of `scaled_gpu`.
        """
        return ScaledKernels(self._measured, self._scaled.scaled(factors), self._rated)
