"""Kernel → its duration and launch times, with the GPU numbers each duration depends on.

name of a row, kernel ─► KernelModel ─► duration in ps, sensitivities to the GPU's numbers
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict

from mpisim.base.errors import InputError
from mpisim.base.quantity import picoseconds
from mpisim.kernels import Estimate, KernelModel
from mpisim.kernels.operations import GroupedGemm, Kernel
from mpisim.kernels.recorded import Recorded

from .operators import Compute, Task

__all__ = ["MAX_DURATION", "NO_LAUNCH", "Launching", "Pricing", "shortened"]

MAX_DURATION = 2**60
"""Of all kernels of a rank together, in ps (13 days): what the engine's clocks can count."""


class Launching(TypedDict):
    """CPU time and latency of launching a device row, in ps.

    Attributes
    ----------
    host : int
        CPU time before the call.
    launch : int
        From the call to the start on the device.
    launch_cost : int
        The call itself.
    """

    host: int
    launch: int
    launch_cost: int


NO_LAUNCH = Launching(host=0, launch=0, launch_cost=0)
"""Of a row that is launched together with the row before."""


def shortened(launching: Launching, share: float) -> Launching:
    """Launch times from Python → those of a launch that takes the CPU a share of them.

    Parameters
    ----------
    launching : Launching
    share : float
        0 to 1. The call itself stays as long as it fits.
    """
    time = round(share * (launching["host"] + launching["launch_cost"]))
    call = min(launching["launch_cost"], time)
    return Launching(host=time - call, launch=launching["launch"], launch_cost=call)


class Pricing:
    """Durations of the kernels of a step on one kind of GPU.

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
        Of a device row with one launch.
    gap, graph_gap : int
        From the end of a kernel to the start of the next one, in ps; inside a CUDA graph.
    host_shares : mapping of str to float
        Share of each number of the GPU in the CPU time of a launch.
    shares : dict of (str, int) to mapping
        Name and duration in ps of a row → share of each number that the duration depends on.
    kernels : dict of (str, int) to Kernel
        Name and duration in ps of a row → its kernel. Of kernels that share both, the one priced
        last.
    """

    def __init__(
        self, model: KernelModel, *, cuda_graphs: bool = False, launch_blocking: bool = False
    ) -> None:
        self.model, self.captured, self.blocking = model, cuda_graphs, launch_blocking
        gpu = model.gpu
        gap, call = (0.0, 0.0) if cuda_graphs else (gpu.host_gap.si, gpu.launch_call.si)
        loop_gap = gap if cuda_graphs or gpu.loop_gap is None else gpu.loop_gap.si
        self._loop_launch = picoseconds(loop_gap + call)
        self._call = picoseconds(call)
        self.launching = Launching(
            host=picoseconds(gap),
            launch=picoseconds(gpu.launch_latency.si),
            launch_cost=picoseconds(call),
        )
        self.graph_gap = picoseconds(gpu.graph_gap.si)
        self.gap = self.graph_gap if cuda_graphs else picoseconds(gpu.kernel_gap.si)
        total = (gap + call) or 1.0
        self.host_shares: Mapping[str, float] = {
            "host_gap": gap / total,
            "launch_call": call / total,
        }
        self.shares: dict[tuple[str, int], Mapping[str, float]] = {}
        self.kernels: dict[tuple[str, int], Kernel] = {}
        self._estimates: dict[Kernel, Estimate] = {}
        self._ambiguous = False

    def launching_for(self, task: Compute) -> Launching:
        """Return the launch times of a kernel: as measured, or those of the GPU."""
        kernel = task.kernel
        if isinstance(kernel, Recorded) and not kernel.priced:
            if self.captured:
                return Launching(host=0, launch=self.launching["launch"], launch_cost=0)
            return Launching(host=kernel.host, launch=kernel.launch, launch_cost=kernel.launch_cost)
        found = self.launching_of(task.launches, compiled_loop=task.compiled_loop)
        if task.launch_share < 1:
            found = shortened(found, task.launch_share)
        if task.calls and task.launches:
            calls = task.calls * self._call
            found = Launching(
                host=found["host"],
                launch=found["launch"],
                launch_cost=found["launch_cost"] + calls,
            )
        return found

    def gap_before(self, task: Compute) -> int:
        """Return the gap between a kernel and the previous end on the device, in ps.

        As measured; else that of the GPU, for each of the kernels that the row stands for, small
        ones beside them (`Compute.calls`) included. Products of experts that a loop launches run on
        several streams, and hide all but one.
        """
        kernel = task.kernel
        if isinstance(kernel, Recorded) and not kernel.priced:
            return kernel.gap
        if task.launches == 0:
            return self.graph_gap * (1 + task.calls)
        launches = 1 if isinstance(kernel, GroupedGemm) else task.launches
        return self.gap * (launches + task.calls)

    def launching_of(self, launches: int, *, compiled_loop: bool = False) -> Launching:
        """Return the launch times of a row that represents several launches.

        Those after the first of a loop in compiled code take the loop's time.
        """
        if launches == 1:
            return self.launching
        if launches == 0:
            return NO_LAUNCH
        one = self.launching
        each = self._loop_launch if compiled_loop else one["host"] + one["launch_cost"]
        others = (launches - 1) * each
        return Launching(
            host=one["host"], launch=one["launch"], launch_cost=one["launch_cost"] + others
        )

    def estimate(self, name: str, kernel: Kernel) -> Estimate:
        """Kernel → its duration, which is noted in `shares` and `kernels`.

        Parameters
        ----------
        name : str
            Of its rows.
        kernel : Kernel

        Raises
        ------
        InputError
            If it is longer than the simulation's clocks can hold.
        """
        estimate = self._estimates.get(kernel)
        if estimate is None:
            estimate = self._estimates[kernel] = self.model.estimate(kernel)
        if estimate.duration > MAX_DURATION:
            raise InputError(
                f"the kernel {name!r} takes {estimate.duration / 1e12:.3g} s, which the "
                "simulation's clocks cannot hold: is the model too large?"
            )
        before = self.kernels.get((name, estimate.duration), kernel)
        self._ambiguous |= before is not kernel and before != kernel
        self.shares[name, estimate.duration] = estimate.shares
        self.kernels[name, estimate.duration] = kernel
        return estimate

    def note(self, tasks: Iterable[Task]) -> None:
        """Note the kernels of tasks whose rows were copied, as `estimate` would.

        That makes a difference only where two kernels share a name and a duration.
        """
        if self._ambiguous:
            for task in tasks:
                if isinstance(task, Compute):
                    self.estimate(task.name, task.kernel)
