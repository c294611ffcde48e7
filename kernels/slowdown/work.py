"""What kernels are made of, as far as a communication beside them matters.

Of a kernel's time without what is fixed, T, the kernel model says which part is due to memory and
which to the multiprocessors (arithmetic, latencies, the L2 cache). The two overlap,
T⁴ = arithmetic⁴ + memory⁴, and the parts of T are the shares of these fourth powers
(:mod:`mpisim.kernels.analytical.overlap`), so that with either of them slower

    T' = T (arithmetic part × s_sm⁴ + memory part × s_mem⁴)^(1/4)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..analytical import Analytical, Machine, family_module, shared, stack
from ..gpu import PEAK
from ..model import KernelModel
from ..operations import Kernel
from ..roofline import Roofline
from .constants import class_of_family
from .waves import stretched

__all__ = ["Work", "work_of"]

Floats = NDArray[np.float64]

_MEMORY, _FLOOR = "memory", "floor"

_MOST_KNOWN = 1 << 16
"""Answers of either kind that are remembered, some 20 MB."""


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
    kernels : tuple of Kernel
    model : Analytical or Roofline
        That says which part is due to what.
    known : Known
        What it has said so far, of these kernels and others.
    """

    machine: Machine
    kind: NDArray[np.int64]
    seconds: Floats
    memory: Floats
    fixed: Floats
    use: Floats
    arithmetic: Floats
    kernels: tuple[Kernel, ...]
    model: Analytical | Roofline
    known: Known

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
        return self.known.stretches(self.model, self.kernels, self.machine, taken)


class Known:
    """What kernels are made of by one model, each worked out once."""

    def __init__(self) -> None:
        self._parts: dict[Kernel, tuple[float, float]] = {}
        self._stretches: dict[tuple[Kernel, int], float] = {}

    def parts(
        self, model: Analytical | Roofline, kernels: Sequence[Kernel]
    ) -> tuple[Floats, Floats]:
        """Return memory part and fixed share of kernels, shape (k,)."""
        if len(self._parts) > _MOST_KNOWN:
            self._parts.clear()
        for some in _batches(each for each in kernels if each not in self._parts):
            if isinstance(model, Analytical):
                memory, fixed = _of_formula(model, some)
            else:
                memory, fixed = _of_roofline(model, some)
            self._parts.update(zip(some, zip(memory.tolist(), fixed.tolist())))
        found = np.array([self._parts[each] for each in kernels]).reshape(-1, 2)
        return found[:, 0].copy(), found[:, 1].copy()

    def stretches(
        self, model: Analytical | Roofline, kernels: Sequence[Kernel], machine: Machine, taken: int
    ) -> Floats:
        """Return how much longer arithmetic takes with multiprocessors taken, shape (k,)."""
        known = self._stretches
        if len(known) > _MOST_KNOWN:
            known.clear()
        for some in _batches(each for each in kernels if (each, taken) not in known):
            constants = _served(model, some[0]) if isinstance(model, Analytical) else None
            longer = stretched(some, machine, taken, constants)
            known.update(((each, taken), by) for each, by in zip(some, longer.tolist()))
        return np.array([known[each, taken] for each in kernels], float)


def _batches(kernels: Iterable[Kernel]) -> list[tuple[Kernel, ...]]:
    """Sort kernels by family and format, each once."""
    found: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in dict.fromkeys(kernels):
        found.setdefault((kernel.family, getattr(kernel, "dtype", "")), []).append(kernel)
    return [tuple(some) for some in found.values()]


_known: WeakKeyDictionary[KernelModel, Known] = WeakKeyDictionary()
"""By model: plans that are compared share it."""


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
        model = shared(model.gpu)
    if model not in _known:
        _known[model] = Known()
    known = _known[model]
    memory, fixed = known.parts(model, kernels)
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
        kernels=tuple(kernels),
        model=model,
        known=known,
    )


def _served(model: Analytical, kernel: Kernel) -> Mapping[str, float]:
    """Return the constants that serve the family and format of a kernel."""
    module = family_module(kernel.family)
    columns = module.columns(kernel)
    dtype = (columns["dtype"],) if "dtype" in columns else ()
    return model.served(module.FAMILY, *dtype).constants


def _of_formula(model: Analytical, kernels: tuple[Kernel, ...]) -> tuple[Floats, Floats]:
    """Return memory part and fixed share of kernels of one family and format."""
    module = family_module(kernels[0].family)
    terms = module.shares(stack(kernels), model.machine, _served(model, kernels[0]))
    total = np.maximum(sum(terms.values()), 1e-12)
    working = np.maximum(total - terms[_FLOOR], 1e-15)
    every = np.zeros(len(kernels))
    return every + terms[_MEMORY] / working, every + terms[_FLOOR] / total


def _of_roofline(model: Roofline, kernels: tuple[Kernel, ...]) -> tuple[Floats, Floats]:
    """Return memory part, 1 or 0, and fixed share."""
    shares = [model.estimate(kernel).shares for kernel in kernels]
    by_memory = [not any(name.startswith(PEAK) for name in each) for each in shares]
    fixed = [
        sum(part for name, part in each.items() if name.endswith(f"_{_FLOOR}")) for each in shares
    ]
    return np.array(by_memory, float), np.array(fixed, float)
