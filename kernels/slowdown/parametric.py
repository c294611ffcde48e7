"""Parametric model of overlap slowdown: load of the communications → factors of both.

A communication kernel holds one multiprocessor a thread block (NCCL: a channel), from when it
starts, though it may still wait for other ranks; while it moves data it takes a part of the
memory's bandwidth, κ bytes a byte sent:

    s_sm  = waves with S - n multiprocessors / waves with S       (:mod:`..analytical.tiles`)
    s_mem = 1 / (1 - min(share, κ × rate / bandwidth))
    s     = fixed + (1 - fixed) (arithmetic s_sm⁴ + memory s_mem⁴)^(1/4)      (:mod:`.work`)
    kernel: s × (1 + ε × min(1, κ × rate / bandwidth / share)), from 1 to `most`
    communication: 1 + δ × share of the memory's bandwidth that the kernels use alone

ε, of the kernel's class, is what else is lost: hits in the L2 cache, above all. It grows with what
the communication moves; one that waits costs other kernels multiprocessors alone.

After Echo (arXiv:2412.12487), which measures such pairs of kernels and learns the factors, and the
tail effect of a wave that no longer fits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.base.distinct import distinct
from mpisim.base.quantity import Quantity

from .constants import CLASSES, SlowdownConstants
from .work import KernelWork

__all__ = ["Load", "Parametric", "Sensitivity", "slowed"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Load(NamedTuple):
    """Resources of a GPU that communications use, `p` times.

    Attributes
    ----------
    taken : int64, shape (p,)
        Multiprocessors.
    bandwidth : float64, shape (p,)
        B/s of the memory that they would use.
    which : int64, shape (p,)
        The communication that matters most, an entry of some list; -1 where none moves data.
    """

    taken: Ints
    bandwidth: Floats
    which: Ints

    def at(self, index: Ints) -> Load:
        """Return the entries of an index."""
        return Load(self.taken[index], self.bandwidth[index], self.which[index])


class Sensitivity(NamedTuple):
    """Sensitivity of kernels' times to the constants: d log time / d log of each.

    Attributes
    ----------
    own : float64, shape (p,)
        With ε.
    bandwidth : float64, shape (p,)
        With κ.
    taken : float64, shape (p,)
        With the number of multiprocessors taken.
    """

    own: Floats
    bandwidth: Floats
    taken: Floats


def slowed(
    memory: Floats, fixed: Floats, own: Floats, used: Floats, stretch: Floats, share: float
) -> Floats:
    """Return the factors of kernels by the formula above, before limits.

    Parameters
    ----------
    memory, fixed : float64, shape (p,)
        Part of the time due to memory, and share that is fixed: see `KernelWork`.
    own : float64, shape (p,)
        ε.
    used : float64, shape (p,)
        Share of the memory's bandwidth that communications would use.
    stretch : float64, shape (p,)
        s_sm.
    share : float
        The most that they take.
    """
    held = np.minimum(used, share)
    powers = memory * _fourth(1 / (1 - held)) + (1 - memory) * _fourth(stretch)
    return (1 + own * (held / share)) * (fixed + (1 - fixed) * _root(powers))


class Parametric:
    """The parametric model of one GPU.

    Parameters
    ----------
    work : KernelWork
        The kernels of the GPU.
    constants : SlowdownConstants
    """

    def __init__(self, work: KernelWork, constants: SlowdownConstants) -> None:
        self.work, self.constants = work, constants
        self._own = np.array([getattr(constants, name).si for name in CLASSES])
        # By number of multiprocessors taken: the row of `_stretch` that holds each kernel's factor.
        self._place: Ints = np.zeros(1, np.int64)
        self._stretch: Floats = np.ones((1, len(work)))  # with none taken

    def kernels(self, kernel: Ints, load: Load) -> tuple[Floats, Sensitivity]:
        """Return the slowdown factors of kernels, and their sensitivity to the constants.

        Parameters
        ----------
        kernel : int64, shape (p,)
            Entries of `work`.
        load : Load

        Returns
        -------
        float64, shape (p,)
            From 1 to the constant `most`; 1 where nothing is taken.
        Sensitivity
            0 where one of these limits holds.
        """
        share, most = self.constants.share.si, self.constants.most.si
        used = load.bandwidth / self.work.parameters.bandwidth
        held = np.minimum(used, share)
        memory, fixed = self.work.memory[kernel], self.work.fixed[kernel]
        own = self._own[self.work.kind[kernel]]
        stretch = self._stretched(kernel, load.taken)
        factor = slowed(memory, fixed, own, used, stretch, share)
        by_memory = memory * _fourth(1 / (1 - held))
        by_arithmetic = (1 - memory) * _fourth(stretch)
        powers = by_memory + by_arithmetic
        working = (1 - fixed) * _root(powers)
        own = own * (held / share)
        within = (factor > 1) & (factor < most)
        part = within * working / ((fixed + working) * powers)
        growing = np.where(used < share, 1.0, 0.0)
        left = np.maximum(self.work.parameters.sms - load.taken, 1)
        own = within * own / (1 + own)
        return np.clip(factor, 1.0, most), Sensitivity(
            own=own,
            bandwidth=growing * (own + part * by_memory * held / (1 - held)),
            taken=part * by_arithmetic * np.minimum(load.taken / left, 1.0),
        )

    def communications(self, use: Floats) -> Floats:
        """Return the slowdown factors of communications.

        Parameters
        ----------
        use : float64
            Share of the memory's bandwidth that kernels use alone, 0 to 1.
        """
        return 1 + self.constants.communication.si * use

    def numbers(self) -> dict[str, Quantity]:
        """Return the constants as they enter error bars, by name."""
        known = self.constants
        kappa = max((known.gather, known.reduce, known.multicast, known.send), key=_error)
        return {
            **{f"overlap: {name} kernels": getattr(known, name) for name in CLASSES},
            "overlap: bandwidth of memory": kappa,
            "overlap: multiprocessors": known.block,
            "overlap: communications": known.communication,
        }

    def _stretched(self, kernel: Ints, taken: Ints) -> Floats:
        """Return how many times as long arithmetic takes, computed once for each number taken."""
        most = int(taken.max(initial=0))
        if most >= len(self._place):
            more = np.full(most + 1 - len(self._place), -1)
            self._place = np.concatenate([self._place, more])
        place = self._place[taken]
        if (place < 0).any():
            for number in distinct(taken[place < 0]).tolist():
                self._place[number] = len(self._stretch)
                self._stretch = np.vstack([self._stretch, self.work.stretch(number)])
            place = self._place[taken]
        found: Floats = self._stretch[place, kernel]
        return found


def _error(number: Quantity) -> float:
    return number.error


def _fourth(x: Floats) -> Floats:
    square = x * x
    return square * square


def _root(x: Floats) -> Floats:
    # Square roots are exact to the last bit wherever they are computed; powers are not.
    found: Floats = np.sqrt(np.sqrt(x))
    return found
