"""What each kernel of a step costs, and what its duration rests on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypedDict

from mpisim.base.errors import InputError
from mpisim.base.quantity import picoseconds
from mpisim.kernels import Estimate, KernelModel
from mpisim.kernels.operations import Kernel

from .operators import Compute, Step

__all__ = ["AT_ONCE", "LONGEST", "Launching", "Priced", "Pricing"]

LONGEST = 2**60
"""Of all kernels of a rank together, in ps (13 days): what the engine's clocks can count."""


class Launching(TypedDict):
    """What launching a device row takes, in ps: CPU time before the call, from the call to the
    device, and the call itself."""

    host: int
    launch: int
    launch_cost: int


AT_ONCE = Launching(host=0, launch=0, launch_cost=0)
"""Launched with the row before."""


class Priced(NamedTuple):
    """What the duration of rows rests on, and their descriptions, by name and duration in ps."""

    shares: dict[tuple[str, int], Mapping[str, float]]
    kernels: dict[tuple[str, int], Kernel]


class Pricing:
    """Prices kernels by a model, and remembers what each price rests on.

    Parameters
    ----------
    model : KernelModel
    cuda_graphs : bool
        Whether launches are captured: the CPU then takes no time between two kernels.
    launch_blocking : bool
        Whether the CPU waits for each kernel it launches.

    Attributes
    ----------
    captured, blocking : bool
        As `cuda_graphs` and `launch_blocking`.
    launching : Launching
        Of every device row.
    host_shares : mapping of str to float
        Which numbers of the GPU the CPU time of a launch rests on.
    shares, kernels : dict
        What the duration of rows rests on, and their descriptions, by name and duration in ps.
    """

    def __init__(
        self, model: KernelModel, *, cuda_graphs: bool = False, launch_blocking: bool = False
    ) -> None:
        self.model, self.captured, self.blocking = model, cuda_graphs, launch_blocking
        gpu = model.gpu
        gap, call = (0.0, 0.0) if cuda_graphs else (gpu.host_gap.si, gpu.launch_call.si)
        self.launching = Launching(
            host=picoseconds(gap),
            launch=picoseconds(gpu.launch_latency.si),
            launch_cost=picoseconds(call),
        )
        whole = (gap + call) or 1.0
        self.host_shares: Mapping[str, float] = {
            "host_gap": gap / whole,
            "launch_call": call / whole,
        }
        self.shares: dict[tuple[str, int], Mapping[str, float]] = {}
        self.kernels: dict[tuple[str, int], Kernel] = {}
        # By identity: layers of one kind share their kernels, and a hash looks at every number.
        self._known: dict[tuple[str, int], tuple[Kernel, Estimate]] = {}
        self._ambiguous = False

    def launching_of(self, launches: int) -> Launching:
        """Return what a row that so many operations launch takes of the CPU."""
        if launches == 1:
            return self.launching
        if launches == 0:
            return AT_ONCE
        one = self.launching
        again = (launches - 1) * (one["host"] + one["launch_cost"])
        return Launching(
            host=one["host"], launch=one["launch"], launch_cost=one["launch_cost"] + again
        )

    def estimate(self, name: str, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel; `name` is that of its rows.

        Raises
        ------
        InputError
            If it is longer than the simulation's clocks can hold.
        """
        known = self._known.get((name, id(kernel)))
        estimate = self.model.estimate(kernel) if known is None else known[1]
        if estimate.duration > LONGEST:
            raise InputError(
                f"the kernel {name!r} takes {estimate.duration / 1e12:.3g} s, which the "
                "simulation's clocks cannot hold: is the model too large?"
            )
        before = self.kernels.get((name, estimate.duration), kernel)
        self._ambiguous |= before is not kernel and before != kernel
        self.shares[name, estimate.duration] = estimate.shares
        self.kernels[name, estimate.duration] = kernel
        self._known[name, id(kernel)] = kernel, estimate
        return estimate

    def priced(self, steps: Iterable[Step]) -> Priced:
        """Return what `estimate` has noted of the kernels among some steps."""
        found = Priced({}, {})
        for step in steps:
            if isinstance(step, Compute):
                estimate = self.estimate(step.name, step.kernel)
                found.shares[step.name, estimate.duration] = estimate.shares
                found.kernels[step.name, estimate.duration] = step.kernel
        return found

    def note(self, priced: Priced) -> None:
        """Note it again, as if each of those kernels had been asked for again.

        Of kernels with one name and duration that differ the last counts; where there are none,
        all are known.
        """
        if not self._ambiguous:
            return
        self.shares.update(priced.shares)
        self.kernels.update(priced.kernels)
