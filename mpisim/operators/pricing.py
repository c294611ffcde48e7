"""Kernels of operators → their durations on a GPU."""

from __future__ import annotations

from dataclasses import replace

from ..base.errors import InputError
from ..base.frozen import frozen
from ..kernels import Estimate, Gpu
from ..kernels.analytical import Analytical
from ..kernels.operations import Elementwise, Kernel
from .tensors import Launched

__all__ = ["UNKNOWN_ERROR", "OperatorPricing", "Priced"]

UNKNOWN_ERROR = 1.0
"""Relative error bar of an operator that is priced by its bytes alone: a factor of two or more."""


@frozen
class Priced:
    """The kernels of a call on one GPU.

    Attributes
    ----------
    kernels : tuple of Kernel
        As they run there.
    estimates : tuple of Estimate
        One each.
    known : bool
        Whether a model of their kind prices them; else their bytes do.
    """

    kernels: tuple[Kernel, ...]
    estimates: tuple[Estimate, ...]
    known: bool

    @property
    def duration(self) -> int:
        """Of all kernels together, in ps."""
        return sum(each.duration for each in self.estimates)

    @property
    def error(self) -> float:
        """Relative error bar of that: kernels of a call are off together."""
        if not self.known:
            return UNKNOWN_ERROR
        total = self.duration or 1
        return sum(each.error * each.duration for each in self.estimates) / total


class OperatorPricing:
    """The price of what operators launch on one kind of GPU.

    Products in tf32 run in fp32 on GPUs that have no tf32, as PyTorch's permission to use it has no
    effect there.

    Parameters
    ----------
    gpu : Gpu

    Examples
    --------
    >>> from mpisim.kernels import find_gpu
    >>> from mpisim.operators import OperatorCall, TensorSpec, kernels_of
    >>> square = TensorSpec("bfloat16", (4096, 4096))
    >>> launched = kernels_of(OperatorCall("aten::mm", (square, square)))
    >>> 150e6 < OperatorPricing(find_gpu("h100-sxm")).price(launched).duration < 300e6
    True
    """

    def __init__(self, gpu: Gpu) -> None:
        self.model = Analytical(gpu)

    def price(self, launched: Launched) -> Priced:
        """Return the durations of what a call launches.

        What the GPU cannot run, for want of a number format, is priced by its bytes.
        """
        kernels = launched.kernels
        if "tf32" not in self.model.gpu.formats:
            kernels = _without_tf32(kernels)
        try:
            estimates = tuple(self.model.estimate(each) for each in kernels)
        except InputError:
            kernels = tuple(Elementwise(bytes=max(1, each.traffic)) for each in kernels)
            estimates = tuple(self.model.estimate(each) for each in kernels)
            return Priced(kernels, estimates, known=False)
        return Priced(kernels, estimates, launched.known)


def _without_tf32(kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Kernels → those that run in place of tf32; nothing is turned for matrix units then."""
    if not any(getattr(each, "dtype", None) == "tf32" for each in kernels):
        return kernels
    return tuple(
        replace(each, dtype="fp32") if getattr(each, "dtype", None) == "tf32" else each  # type: ignore[call-arg]
        for each in kernels
        if not (isinstance(each, Elementwise) and each.transposes)
    )
