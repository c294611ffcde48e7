"""Products at the pace of the slowest of many GPUs.

GPUs of a kind reach different clocks at the same power, and with them different rates. That is
taken to hold for what draws most of it, matrix products, convolutions and attention, and not for
what waits for the memory. Kernels are measured on one GPU, some GPU. A step on many ends when the
slowest has done its part, as all meet at least once in it. Of N GPUs whose times are lognormal with
spread s (``data/variation.toml``), the slowest takes

    exp(s z),   z = Φ⁻¹((N - 0.375) / (N + 0.25))

times as long as the median, by Blom's formula for the mean of the largest of N normal numbers: z is
1.4 for 8 GPUs, 2.3 for 64, 3.2 for 1,024. It is an upper bound where others rarely wait for each
GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from statistics import NormalDist

from ..base.quantity import Quantity
from ..base.schema import build, parse
from ..data import text
from ..kernels import Estimate, Gpu, KernelModel
from ..kernels.operations import Attention, Convolution, Gemm, GroupedGemm, Kernel

__all__ = ["SlowestKernels", "slowest"]

FILE = "variation.toml"

NAME = "slowest GPU"
"""Of the factor, in error bars."""


@cache
def _spread() -> Quantity:
    return build(Quantity, parse(text(FILE), FILE)["gpus"], FILE, "gpus")


def slowest(gpus: int) -> Quantity:
    """Return how many times as long products take on the slowest of so many GPUs as on most."""
    spread = _spread()
    normal = NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25)) if gpus > 1 else 0.0
    beyond = spread.si * normal
    return Quantity(math.exp(beyond), "1", beyond * spread.error, spread.source)


class SlowestKernels:
    """A kernel model of the slowest of many GPUs.

    Parameters
    ----------
    model : KernelModel
        Of most of them.
    gpus : int
    """

    def __init__(self, model: KernelModel, gpus: int) -> None:
        self._model, self._factor = model, slowest(gpus)
        self._prices: dict[Kernel, Estimate] = {}

    @property
    def gpu(self) -> Gpu:
        """The GPU."""
        return self._model.gpu

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """Those of the model, and the factor."""
        return {**self._model.numbers, NAME: self._factor}

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel."""
        if not isinstance(kernel, (Gemm, GroupedGemm, Convolution, Attention)):
            return self._model.estimate(kernel)
        found = self._prices.get(kernel)
        if found is None:
            most = self._model.estimate(kernel)
            duration = round(most.duration * self._factor.value)
            found = self._prices[kernel] = Estimate(
                duration, {**most.shares, NAME: 1.0}, most.error
            )
        return found
