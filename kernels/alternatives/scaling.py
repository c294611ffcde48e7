"""SimAI's rules: kernel times of one GPU → times of another, by ratios of datasheet rates.

Wang et al. (NSDI 2025, "SimAI"): kernels that arithmetic limits scale by the ratio of peak rates,
kernels that memory limits by the ratio of bandwidths.
"""

from __future__ import annotations

from collections.abc import Mapping

from mpisim.base.quantity import Quantity

from ..gpu import Gpu
from ..model import Estimate, KernelModel
from ..operations import Kernel
from ..scaled import scaled_gpu

__all__ = ["Scaling"]


class Scaling:
    """The model of one GPU, by the times of another.

    Parameters
    ----------
    gpu : Gpu
    base : KernelModel
        Of the GPU whose times are known: measured (`OperationDatabase`) or modelled.
    """

    def __init__(self, gpu: Gpu, base: KernelModel) -> None:
        self._gpu = gpu
        self._base = base

    @property
    def gpu(self) -> Gpu:
        """GPU whose kernels are priced, not the one that was measured."""
        return self._gpu

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """Numbers of the base model; the error of scaling is not known."""
        return self._base.numbers

    def ratio(self, kernel: Kernel) -> float:
        """Return the time of a kernel on this GPU over that on the base's GPU.

        Arithmetic limits it if it takes longer at the base's peak rate than its traffic at the
        base's bandwidth.

        Raises
        ------
        InputError
            If either GPU lacks the format.
        """
        known = self._base.gpu
        if kernel.flops:
            dtype = kernel.dtype  # type: ignore[attr-defined]
            here, there = self._gpu.peak(dtype).si, known.peak(dtype).si
            if kernel.flops / there > kernel.traffic / known.bandwidth.si:
                return there / here
        return known.bandwidth.si / self._gpu.bandwidth.si

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel.

        Raises
        ------
        InputError
            If either GPU lacks the format, or the base cannot estimate the kernel.
        """
        ratio = self.ratio(kernel)
        found = self._base.estimate(kernel)
        return Estimate(round(found.duration * ratio), found.shares, found.error)

    def scaled(self, factors: Mapping[str, float]) -> Scaling:
        """Return the model of a GPU whose numbers are multiplied, by the same times.

        Parameters
        ----------
        factors : mapping of str to float
            As of `mpisim.kernels.scaled.scaled_gpu`.
        """
        return Scaling(scaled_gpu(self._gpu, factors), self._base)
