"""What every kernel model offers: the duration of a kernel, and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from .gpu import Gpu
from .operations import Kernel

__all__ = ["Estimate", "KernelModel"]


@dataclass(frozen=True)
class Estimate:
    """The duration of one kernel.

    Attributes
    ----------
    duration : int
        ps.
    shares : mapping of str to float
        For each number of the GPU (an attribute of `Gpu`) the share of the duration that is
        inversely or directly proportional to it: a relative error e of the number changes the
        duration by share × e. Error bars are carried to the end of a simulation with them
        (:mod:`mpisim.uncertainty`).
    """

    duration: int
    shares: Mapping[str, float]


class KernelModel(Protocol):
    """Says how long kernels take on one kind of GPU. Local."""

    @property
    def gpu(self) -> Gpu:
        """The GPU."""

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel.

        The same kernel has the same duration whenever it is asked for.

        Raises
        ------
        InputError
            If the GPU lacks the kernel's number format, or the model does not know its kind.
        """
