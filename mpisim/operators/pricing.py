"""Kernels of operators → their durations on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.quantity import picoseconds
from ..base.text import percentage
from ..kernels import Estimate, Gpu
from ..kernels.analytical import Analytical
from ..kernels.operations import Elementwise, Gemm, Kernel
from ..kernels.recorded import UNKNOWN_ERROR
from .call import OperatorCall
from .measured import MeasuredOperators, MeasuredTime
from .tensors import Launched

__all__ = ["MEASURED", "OperatorPricing", "Priced", "as_measured", "measured_share"]

MEASURED: Mapping[str, str] = {
    "exact": "measured operators",
    "interpolated": "operators between measured ones",
}
"""Names of the numbers that measured times depend on, by how they were found."""


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
        Whether a model of their kind prices them, or a measured time; else their bytes do.
    how : {"exact", "interpolated", "model"}
        Whether the call was measured, lies between two that were, or neither.
    """

    kernels: tuple[Kernel, ...]
    estimates: tuple[Estimate, ...]
    known: bool
    how: Literal["exact", "interpolated", "model"] = "model"

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
    measured : MeasuredOperators, optional
        Times of operators on this GPU, which come first.

    Examples
    --------
    >>> from mpisim.kernels import find_gpu
    >>> from mpisim.operators import OperatorCall, TensorSpec, kernels_of
    >>> square = TensorSpec("bfloat16", (4096, 4096))
    >>> launched = kernels_of(OperatorCall("aten::mm", (square, square)))
    >>> 150e6 < OperatorPricing(find_gpu("h100-sxm")).price(launched).duration < 300e6
    True
    """

    def __init__(self, gpu: Gpu, measured: MeasuredOperators | None = None) -> None:
        self.model, self.measured = Analytical(gpu), measured

    def price(self, launched: Launched, call: OperatorCall | None = None) -> Priced:
        """Return the durations of what a call launches.

        What the GPU cannot run, for want of a number format, is priced by its bytes.

        Parameters
        ----------
        launched : Launched
        call : OperatorCall, optional
            The call, to be looked up among the measured ones.
        """
        modelled = self._modelled(launched)
        found = None if self.measured is None or call is None else self.measured.find(call)
        return modelled if found is None else as_measured(modelled, found)

    def _modelled(self, launched: Launched) -> Priced:
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


def as_measured(modelled: Priced, found: MeasuredTime) -> Priced:
    """Kernels of a call, its measured time → the kernels, which take that time together.

    It is divided between them as the models divide theirs. A call that launches nothing by the
    table has a kernel of its own.

    Parameters
    ----------
    modelled : Priced
    found : MeasuredTime
    """
    time = picoseconds(found.seconds)
    shares = {MEASURED[found.how]: 1.0}
    kernels, total = modelled.kernels, modelled.duration
    if not total:
        kernel = Elementwise(bytes=1)
        return Priced((kernel,), (Estimate(time, shares, found.error),), True, found.how)
    ends = [0]
    for each in modelled.estimates:
        ends.append(ends[-1] + each.duration)
    lengths = (time * b // total - time * a // total for a, b in pairwise(ends))
    estimates = tuple(Estimate(length, shares, found.error) for length in lengths)
    return Priced(kernels, estimates, True, found.how)


def _without_tf32(kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Kernels → those that run in place of tf32; nothing is turned for matrix units then."""
    if not any(getattr(each, "dtype", None) == "tf32" for each in kernels):
        return kernels
    return tuple(
        _in_fp32(each) if getattr(each, "dtype", None) == "tf32" else each
        for each in kernels
        if not (isinstance(each, Elementwise) and each.variant == "layout")
    )


def _in_fp32(kernel: Kernel) -> Kernel:
    """Kernel in tf32 → the same on CUDA cores, whose copies have one size."""
    if isinstance(kernel, Gemm):
        return replace(kernel, dtype="fp32", variant=None)
    return replace(kernel, dtype="fp32")  # type: ignore[call-arg]


def measured_share(by_how: Mapping[str, float]) -> list[str]:
    """Kernel time by how it was found → a line on the share that is measured; none if nothing is.

    Parameters
    ----------
    by_how : mapping of str to float
        Time in any one unit, by `Priced.how`.

    Returns
    -------
    list of str
    """
    whole = sum(by_how.values())
    exact, between = (by_how.get(how, 0.0) for how in MEASURED)
    if not exact + between:
        return []
    return [
        f"of kernel time {percentage(exact / whole, 1)} as measured, "
        f"{percentage(between / whole, 1)} between measured operators"
    ]
