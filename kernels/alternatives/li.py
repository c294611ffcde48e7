"""Li's model: the time of a kernel is linear in its arithmetic and in its traffic.

Li, Sun and Jog, "Path forward beyond simulators" (MICRO 2023, doi:10.1145/3613424.3614277), fit one
line a kind of kernel and GPU and find that its slopes go with the datasheet's numbers of GPUs.
TrioSim (ISCA 2025, github:sarchlab/triosim) takes a trace of one GPU with it to other GPUs and
batch sizes.

    time = floor + flops / (a × peak) + bytes / (b × bandwidth)

with a, b and floor from the rows of a GPU; for a GPU without rows, the mean of 1/a, 1/b and floor
over those that have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mpisim.base.errors import InputError
from mpisim.base.quantity import Quantity, picoseconds

from ..analytical.family import ANY, MODULES
from ..analytical.machine import Machine
from ..fit import machine
from ..gpu import Gpu
from ..measured import Rows
from ..model import Estimate
from ..operations import Kernel

__all__ = ["Li", "Line", "Regression", "regress"]


@dataclass(frozen=True)
class Line:
    """A fitted line, in time at the datasheet's rates.

    Attributes
    ----------
    floor : float
        Seconds.
    arithmetic, memory : float
        Times that a kernel takes the time of its arithmetic at the peak rate, and of its traffic at
        the full bandwidth; 0 where the rows show no dependence.
    error : float
        Relative: standard deviation of log(predicted / measured).
    rows : int
    """

    floor: float
    arithmetic: float
    memory: float
    error: float
    rows: int


Regression = Mapping[tuple[str, str, str], Line]
"""Lines by family, GPU and format; GPU ``"any"`` is the mean."""


def work(kernels: Sequence[Kernel], gpu: Machine, dtype: str) -> np.ndarray:
    """Return the time at the datasheet's rates: ones, arithmetic, traffic; shape (kernels, 3)."""
    flops = np.array([float(each.flops) for each in kernels])
    traffic = np.array([float(each.traffic) for each in kernels])
    # Kernels without a format have no arithmetic, either.
    peak = gpu.peaks.get(dtype, 1.0)
    return np.stack([np.ones(len(kernels)), flops / peak, traffic / gpu.bandwidth], axis=1)


def regress(
    batches: Sequence[Rows],
    launch: Callable[[Rows], float | np.ndarray] | None = None,
) -> Regression:
    """Fit lines to measured rows, minimising relative errors.

    Parameters
    ----------
    batches : sequence of Rows
    launch : callable, optional
        As for `Rows.net`.

    Returns
    -------
    Regression
    """
    from scipy.optimize import nnls

    groups: dict[tuple[str, str, str], list[Rows]] = {}
    for rows in batches:
        groups.setdefault((rows.family, rows.gpu, rows.dtype), []).append(rows)
    lines: dict[tuple[str, str, str], Line] = {}
    for (family, gpu, dtype), members in sorted(groups.items()):
        kernels = [kernel for rows in members for kernel in rows.kernels]
        seconds = np.concatenate([rows.net(launch) for rows in members])
        features = work(kernels, machine(gpu), dtype)
        slopes, _ = nnls(features / seconds[:, None], np.ones(len(seconds)))
        error = np.log(np.maximum(features @ slopes, 1e-12) / seconds).std()
        floor, arithmetic, memory = slopes.tolist()
        lines[family, gpu, dtype] = Line(floor, arithmetic, memory, float(error), len(seconds))
    for family, dtype in sorted({(family, dtype) for family, _, dtype in lines}):
        known = [line for key, line in lines.items() if (key[0], key[2]) == (family, dtype)]
        lines[family, ANY, dtype] = Line(
            floor=_mean(line.floor for line in known),
            arithmetic=_mean(line.arithmetic for line in known),
            memory=_mean(line.memory for line in known),
            error=_mean(line.error for line in known),
            rows=sum(line.rows for line in known),
        )
    return lines


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


class Li:
    """The model of one GPU.

    Parameters
    ----------
    gpu : Gpu
    regression : Regression
        Of `regress`.
    """

    def __init__(self, gpu: Gpu, regression: Regression) -> None:
        self._gpu = gpu
        self._machine = Machine.of(gpu)
        self._regression = regression
        self._numbers: dict[str, Quantity] = {}

    @property
    def gpu(self) -> Gpu:
        """The GPU."""
        return self._gpu

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """One number a family and format: 1, with the spread around its line."""
        return self._numbers

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel.

        Raises
        ------
        InputError
            If the GPU lacks the format, or no kernel of its family and format was measured.
        """
        family, dtype = MODULES[kernel.family], getattr(kernel, "dtype", ANY)
        if dtype != ANY:
            self._gpu.peak(dtype)  # or an error that says so
        owner = self._machine.name
        if (family, owner, dtype) not in self._regression:
            owner = ANY
        line = self._regression.get((family, owner, dtype))
        if line is None:
            raise InputError(f"Li's model has no measured kernels of {family} in {dtype}")
        name = f"line of {family} ({dtype})"
        source = f"regression over {line.rows:,} kernels of {owner}"
        self._numbers.setdefault(name, Quantity(1.0, "1", min(line.error, 10.0), source))
        one, arithmetic, memory = work([kernel], self._machine, dtype)[0].tolist()
        seconds = one * line.floor + arithmetic * line.arithmetic + memory * line.memory
        return Estimate(picoseconds(seconds), {name: 1.0}, line.error)

    def carry(self, seconds: float, kernel: Kernel, source: Li, wanted: Kernel) -> float:
        """Return the time of a kernel here from that of another, measured on another GPU.

        As TrioSim extrapolates a trace: the ratio of two predictions times the measurement.

        Parameters
        ----------
        seconds : float
            Measured.
        kernel : Kernel
            What was measured.
        source : Li
            Of the GPU it was measured on.
        wanted : Kernel
            The same operation, perhaps of another batch size.
        """
        return seconds * self.estimate(wanted).duration / source.estimate(kernel).duration
