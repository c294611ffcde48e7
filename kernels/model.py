"""Interface of kernel models: kernel → duration, with the GPU numbers that it depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from mpisim.base.quantity import Quantity

from .gpu import Gpu
from .operations import Kernel

__all__ = ["Estimate", "KernelModel"]


class Estimate(NamedTuple):
    """The duration of one kernel.

    Attributes
    ----------
    duration : int
        ps.
    shares : mapping of str to float
        For each number that the model depends on (a name of `KernelModel.numbers`) the share of the
        duration that is inversely or directly proportional to it: a relative error e of the number
        changes the duration by share × e. Error bars are carried to the end of a simulation with
        them (:mod:`mpisim.prediction.uncertainty`).
    error : float
        Relative error bar of this one duration: one standard deviation.
    own : mapping of str to float
        Of numbers among `shares` the share of the error's variance that is this kernel's own: the
        rest is off together in all kernels that depend on the number.
    """

    duration: int
    shares: Mapping[str, float]
    error: float = 0.0
    own: Mapping[str, float] = {}


class KernelModel(Protocol):
    """A model of kernel durations on one kind of GPU. Local."""

    @property
    def gpu(self) -> Gpu:
        """GPU whose kernels are priced."""

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """Numbers that the estimates so far depend on, by name, each with its error bar."""

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel.

        Equal kernels have equal durations.

        Raises
        ------
        InputError
            If the GPU lacks the kernel's number format, or the model does not know its kind.
        """

    def scaled(self, factors: Mapping[str, float]) -> KernelModel:
        """Return the model of a GPU whose numbers are multiplied: see `mpisim.kernels.scaled`."""
