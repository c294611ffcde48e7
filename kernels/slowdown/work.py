"""Kernels on a GPU → the parts of their times that a communication beside them slows.

Of a kernel's time without what is fixed, T, the kernel model says which part is due to memory and
which to the multiprocessors (arithmetic, latencies, the L2 cache). The two overlap,
T⁴ = arithmetic⁴ + memory⁴, and the parts of T are the shares of these fourth powers
(:mod:`mpisim.kernels.analytical.formula`), so that with either of them slower

    T' = T (arithmetic part × s_sm⁴ + memory part × s_mem⁴)^(1/4)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mpisim.base.frozen import frozen

from ..analytical import Analytical, analytical_model
from ..analytical.tiles import free_stretch
from ..gpu import PEAK
from ..gpu_parameters import GpuParameters
from ..model import KernelModel
from ..operations import Kernel
from ..roofline import Roofline
from .constants import class_of_family

__all__ = ["KernelWork", "work_of"]

Floats = NDArray[np.float64]


@frozen(eq=False)
class KernelWork:
    """Kernels of one GPU, `k` of them.

    Attributes
    ----------
    parameters : GpuParameters
    kind : int64, shape (k,)
        Entry of `CLASSES`.
    seconds : float64, shape (k,)
        Duration of each kernel with the GPU to itself.
    memory : float64, shape (k,)
        Part of the time, without what is fixed, that is due to memory; the rest is due to the
        multiprocessors.
    fixed : float64, shape (k,)
        Share of the duration that is fixed: starting and draining.
    use : float64, shape (k,)
        Bytes that pass the memory, as a share of what its bandwidth allows in the duration.
    arithmetic : float64, shape (k,)
        Operations of the matrix units, as a share of what the peak allows in the duration.
    kernels : tuple of Kernel
    model : Analytical or Roofline
        The model that divides the times.
    """

    parameters: GpuParameters
    kind: NDArray[np.int64]
    seconds: Floats
    memory: Floats
    fixed: Floats
    use: Floats
    arithmetic: Floats
    kernels: tuple[Kernel, ...]
    model: Analytical | Roofline

    def __len__(self) -> int:
        return len(self.kind)

    def stretch(self, taken: int) -> Floats:
        """Return the slowdown of the multiprocessors' part with some of them occupied.

        Parameters
        ----------
        taken : int
            Multiprocessors that communications occupy.

        Returns
        -------
        float64, shape (k,)
            1 or more.
        """
        if isinstance(self.model, Analytical):
            return self._stretches(taken)
        return np.full(len(self), free_stretch(self.parameters, taken))

    @cached_property
    def _stretches(self) -> Callable[[int], Floats]:
        """What the analytical model knows of its kernels."""
        assert isinstance(self.model, Analytical)
        return self.model.stretch_of(self.kernels)


def work_of(model: KernelModel, kernels: Sequence[Kernel], seconds: Sequence[float]) -> KernelWork:
    """Divide the times of kernels into their parts.

    Parameters
    ----------
    model : KernelModel
        That gave their durations. The parts are those of a roofline where that is the model, all
        due to memory or to the multiprocessors, and of the analytical model otherwise.
    kernels : sequence of Kernel
    seconds : sequence of float
        Their durations.
    """
    parameters = GpuParameters.of(model.gpu)
    if not isinstance(model, (Analytical, Roofline)):
        model = analytical_model(model.gpu)
    if isinstance(model, Analytical):
        memory, fixed = model.divide(kernels)
    else:
        memory, fixed = _divide_by_roofline(model, kernels)
    lasting = np.maximum(np.array(seconds, float), 1e-12)
    traffic = np.array([kernel.traffic for kernel in kernels], float)
    flops = np.array(
        [
            kernel.flops / parameters.peaks.get(getattr(kernel, "dtype", ""), np.inf)
            for kernel in kernels
        ]
    )
    return KernelWork(
        parameters=parameters,
        kind=np.array([class_of_family(each.qualified_family) for each in kernels], np.int64),
        seconds=lasting,
        memory=memory,
        fixed=fixed,
        use=np.minimum(traffic / (parameters.bandwidth * lasting), 1.0),
        arithmetic=np.minimum(flops / lasting, 1.0),
        kernels=tuple(kernels),
        model=model,
    )


def _divide_by_roofline(model: Roofline, kernels: Sequence[Kernel]) -> tuple[Floats, Floats]:
    """Return memory part, 1 or 0, and fixed share."""
    shares = [model.estimate(kernel).shares for kernel in kernels]
    by_memory = [not any(name.startswith(PEAK) for name in each) for each in shares]
    fixed = [sum(part for name, part in each.items() if name.endswith("_floor")) for each in shares]
    return np.array(by_memory, float), np.array(fixed, float)
