"""What kernels are made of, as far as a communication beside them matters.

Of a kernel's time without what is fixed, T, the kernel model says which part is due to memory and
which to the multiprocessors (arithmetic, latencies, the L2 cache). The two overlap,
T⁴ = arithmetic⁴ + memory⁴, and the parts of T are the shares of these fourth powers
(:mod:`mpisim.kernels.analytical.overlap`), so that with either of them slower

    T' = T (arithmetic part × s_sm⁴ + memory part × s_mem⁴)^(1/4)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..analytical import Analytical, Machine, family_module, stack
from ..gpu import PEAK
from ..model import KernelModel
from ..operations import Kernel
from ..roofline import Roofline
from .constants import class_of_family
from .waves import stretched

__all__ = ["Work", "work_of"]

Floats = NDArray[np.float64]

_MEMORY, _FLOOR = "memory", "floor"


@dataclass(frozen=True, eq=False)
class Work:
    """Kernels of one GPU, `k` of them.

    Attributes
    ----------
    machine : Machine
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
    batches : tuple
        Groups of kernels of one family and format: (their entries, the constants that serve them or
        None, the kernels).
    """

    machine: Machine
    kind: NDArray[np.int64]
    seconds: Floats
    memory: Floats
    fixed: Floats
    use: Floats
    arithmetic: Floats
    batches: tuple[tuple[NDArray[np.int64], Mapping[str, float] | None, tuple[Kernel, ...]], ...]

    def __len__(self) -> int:
        return len(self.kind)

    def stretch(self, taken: int) -> Floats:
        """Return how much longer the multiprocessors' part takes with some of them taken.

        Parameters
        ----------
        taken : int
            Multiprocessors that a communication occupies.

        Returns
        -------
        float64, shape (k,)
            1 or more.
        """
        found = np.ones(len(self))
        for rows, constants, kernels in self.batches:
            found[rows] = stretched(kernels, self.machine, taken, constants)
        return found


def work_of(model: KernelModel, kernels: Sequence[Kernel], seconds: Sequence[float]) -> Work:
    """Describe kernels.

    Parameters
    ----------
    model : KernelModel
        That gave their durations. The parts are those of the analytical model, or of a roofline,
        all of one or the other, where that is the model.
    kernels : sequence of Kernel
    seconds : sequence of float
        Their durations.
    """
    machine = Machine.of(model.gpu)
    if not isinstance(model, (Analytical, Roofline)):
        model = Analytical(model.gpu)
    batches: dict[tuple[str, str], list[int]] = {}
    for i, kernel in enumerate(kernels):
        batches.setdefault((kernel.family, getattr(kernel, "dtype", "")), []).append(i)
    memory, fixed = np.zeros((2, len(kernels)))
    found = []
    for rows in batches.values():
        some = tuple(kernels[i] for i in rows)
        at = np.array(rows)
        if isinstance(model, Analytical):
            constants, memory[at], fixed[at] = _of_formula(model, some)
        else:
            constants = None
            memory[at], fixed[at] = _of_roofline(model, some)
        found.append((at, constants, some))
    lasting = np.maximum(np.array(seconds, float), 1e-12)
    traffic = np.array([kernel.traffic for kernel in kernels], float)
    flops = np.array(
        [
            kernel.flops / machine.peaks.get(getattr(kernel, "dtype", ""), np.inf)
            for kernel in kernels
        ]
    )
    return Work(
        machine=machine,
        kind=np.array([class_of_family(kernel.family) for kernel in kernels], np.int64),
        seconds=lasting,
        memory=memory,
        fixed=fixed,
        use=np.minimum(traffic / (machine.bandwidth * lasting), 1.0),
        arithmetic=np.minimum(flops / lasting, 1.0),
        batches=tuple(found),
    )


def _of_formula(
    model: Analytical, kernels: tuple[Kernel, ...]
) -> tuple[Mapping[str, float], Floats, Floats]:
    """Return constants, memory part and fixed share of kernels of one family and format."""
    module = family_module(kernels[0].family)
    columns = stack(kernels)
    dtype = (columns["dtype"],) if "dtype" in columns else ()
    constants = model.served(module.FAMILY, *dtype).constants
    terms = module.shares(columns, model.machine, constants)
    total = np.maximum(sum(terms.values()), 1e-12)
    working = np.maximum(total - terms[_FLOOR], 1e-15)
    return constants, np.asarray(terms[_MEMORY] / working), np.asarray(terms[_FLOOR] / total)


def _of_roofline(model: Roofline, kernels: tuple[Kernel, ...]) -> tuple[Floats, Floats]:
    """Return memory part, 1 or 0, and fixed share."""
    shares = [model.estimate(kernel).shares for kernel in kernels]
    by_memory = [not any(name.startswith(PEAK) for name in each) for each in shares]
    fixed = [
        sum(part for name, part in each.items() if name.endswith(f"_{_FLOOR}")) for each in shares
    ]
    return np.array(by_memory, float), np.array(fixed, float)
