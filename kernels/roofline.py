"""The roofline model: a kernel takes the longer of its arithmetic and its memory traffic.

    time = max(flops / (peak × fraction), bytes / (bandwidth × fraction)) + floor

The model is that of Williams, Waterman and Patterson (doi:10.1145/1498765.1498785) with shares of
both rates that kernels of a kind are known to reach, and a constant for starting a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from mpisim.base.errors import InputError
from mpisim.base.quantity import Quantity, picoseconds

from .gpu import PEAK, Gpu
from .model import Estimate
from .operations import (
    Attention,
    Convolution,
    Copy,
    Counted,
    CrossEntropy,
    Elementwise,
    Embedding,
    EmbeddingTables,
    Gemm,
    GroupedGemm,
    Kernel,
    Norm,
    OptimizerStep,
    Softmax,
)
from .scaled import scaled_gpu

__all__ = ["Roofline"]


class _Terms(NamedTuple):
    """The numbers of a GPU that a kernel's time is computed from, as names of attributes of `Gpu`.

    Attributes
    ----------
    arithmetic, memory : tuple of str
        The factors of each rate; empty where a kernel has no arithmetic.
    floor : str
    """

    arithmetic: tuple[str, ...]
    memory: tuple[str, ...]
    floor: str


STREAMING = ("bandwidth", "memory_fraction")


def _gemm_fraction(dtype: str) -> str:
    """Return the attribute with the reachable share of the peak of a format.

    fp32 runs on cores of its own, fp8 with scales of its own.

    In NVFP4, no rates of which are published for training, products are taken to reach the share
    of the peak that they reach in fp8.
    """
    known = {"fp32": "fp32_fraction", "fp8": "fp8_fraction", "nvfp4": "fp8_fraction"}
    return known.get(dtype, "gemm_fraction")


def _terms(kernel: Kernel) -> _Terms:
    match kernel:
        case Gemm() | Counted():
            rate = (PEAK + kernel.dtype, _gemm_fraction(kernel.dtype))
            return _Terms(rate, STREAMING, "gemm_floor")
        case GroupedGemm():
            rate = (PEAK + kernel.dtype, _gemm_fraction(kernel.dtype))
            return _Terms((*rate, "grouped_gemm_factor"), STREAMING, "gemm_floor")
        case Attention():
            rate = (PEAK + kernel.dtype, "attention_fraction")
            return _Terms(rate, STREAMING, "gemm_floor")
        case Convolution():
            prefix = "fp32_" if kernel.dtype == "fp32" else ""
            rate = (PEAK + kernel.dtype, f"{prefix}convolution_fraction")
            return _Terms(rate, STREAMING, "gemm_floor")
        case Norm() | Softmax() | CrossEntropy():
            return _Terms((), ("bandwidth", "reduction_fraction"), "memory_floor")
        case Embedding() | EmbeddingTables():
            return _Terms((), ("bandwidth", "embedding_fraction"), "memory_floor")
        case Copy(path="host"):
            return _Terms((), ("pcie", "pcie_fraction"), "copy_floor")
        case Elementwise() | OptimizerStep() | Copy():
            return _Terms((), STREAMING, "memory_floor")
    raise InputError(f"the roofline knows no kernels of the family {kernel.family!r}")


class Roofline:
    """The roofline model of one GPU.

    Each distinct kernel is priced once.

    Parameters
    ----------
    gpu : Gpu

    Examples
    --------
    >>> from mpisim.kernels import find_gpu
    >>> Roofline(find_gpu("h100-sxm")).estimate(Gemm(m=4096, n=4096, k=4096)).duration
    202253802
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._estimates: dict[Kernel, Estimate] = {}

    @property
    def gpu(self) -> Gpu:
        """GPU whose kernels are priced."""
        return self._gpu

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """Numbers of the GPU with their errors, by name of the field of `Gpu`."""
        return {
            name: number for name, number in vars(self._gpu).items() if isinstance(number, Quantity)
        }

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel.

        Raises
        ------
        InputError
            If the GPU lacks the kernel's number format.
        """
        found = self._estimates.get(kernel)
        if found is None:
            found = self._estimates[kernel] = self._price(kernel)
        return found

    def scaled(self, factors: Mapping[str, float]) -> Roofline:
        """Return the model of a GPU whose numbers are multiplied.

        Parameters
        ----------
        factors : mapping of str to float
            As of `mpisim.kernels.scaled.scaled_gpu`.
        """
        return Roofline(scaled_gpu(self._gpu, factors))

    def _price(self, kernel: Kernel) -> Estimate:
        terms = _terms(kernel)
        if terms.arithmetic:
            self.gpu.peak(terms.arithmetic[0].removeprefix(PEAK))  # or an error that says so
        arithmetic = kernel.flops / self._product(terms.arithmetic)
        memory = kernel.traffic / self._product(terms.memory)
        work, limit = max((arithmetic, terms.arithmetic), (memory, terms.memory), key=_time)
        fixed = self._product((terms.floor,))
        total = work + fixed
        shares = dict.fromkeys(limit, work / total) | {terms.floor: fixed / total}
        effects = [share * getattr(self.gpu, name).error for name, share in shares.items()]
        return Estimate(picoseconds(total), shares, math.hypot(*effects))

    def _product(self, names: tuple[str, ...]) -> float:
        product = 1.0
        for name in names:
            product *= getattr(self.gpu, name).si
        return product


def _time(side: tuple[float, tuple[str, ...]]) -> float:
    return side[0]
