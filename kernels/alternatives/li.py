"""Li's model: kernel → time, by regression over FLOP and memory traffic.

Li, Sun and Jog, "Path forward beyond simulators" (MICRO 2023, doi:10.1145/3613424.3614277), fit one
line a kind of kernel and GPU and find that its slopes go with the datasheet's numbers of GPUs.
TrioSim (ISCA 2025, github:sarchlab/triosim) carries a trace of one GPU to other GPUs and batch
sizes by the ratio of two such predictions.

    time = floor + flops / (a × peak) + bytes / (b × bandwidth)

with a, b and floor from the rows of a GPU; for a GPU without rows, the mean of 1/a, 1/b and floor
over those that have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.quantity import Quantity, picoseconds

from ..analytical.families import formula_of
from ..analytical.formula import ANY
from ..gpu import Gpu
from ..gpu_parameters import GpuParameters, gpu_parameters
from ..measured import MeasuredKernels
from ..model import Estimate
from ..operations import Kernel
from ..scaled import scaled_gpu

__all__ = ["Li", "Regression", "RegressionLine", "regress"]


@frozen
class RegressionLine:
    """A fitted line over the times at the datasheet's rates.

    Attributes
    ----------
    floor : float
        Seconds.
    arithmetic, memory : float
        Slopes 1/a and 1/b: multiples of the time of the arithmetic at the peak rate, and of the
        traffic at the full bandwidth; 0 where the rows show no dependence.
    error : float
        Relative: standard deviation of log(predicted / measured).
    rows : int
    """

    floor: float
    arithmetic: float
    memory: float
    error: float
    rows: int


Regression = Mapping[tuple[str, str, str], RegressionLine]
"""Lines by formula, GPU and format; GPU ``"any"`` is the mean."""


def _features(kernels: Sequence[Kernel], gpu: GpuParameters, dtype: str) -> np.ndarray:
    """Return ones, arithmetic and traffic at the datasheet's rates, in s; shape (kernels, 3)."""
    flops = np.array([float(each.flops) for each in kernels])
    traffic = np.array([float(each.traffic) for each in kernels])
    # Kernels without a format have no arithmetic, either.
    peak = gpu.peaks.get(dtype, 1.0)
    return np.stack([np.ones(len(kernels)), flops / peak, traffic / gpu.bandwidth], axis=1)


def regress(
    batches: Sequence[MeasuredKernels],
    launch: Callable[[MeasuredKernels], float | np.ndarray] | None = None,
) -> Regression:
    """Fit lines to measured rows, minimising relative errors.

    Parameters
    ----------
    batches : sequence of MeasuredKernels
    launch : callable, optional
        As for `MeasuredKernels.net`.

    Returns
    -------
    Regression
    """
    from scipy.optimize import nnls

    groups: dict[tuple[str, str, str], list[MeasuredKernels]] = {}
    for rows in batches:
        groups.setdefault((rows.family, rows.gpu, rows.dtype), []).append(rows)
    lines: dict[tuple[str, str, str], RegressionLine] = {}
    for (family, gpu, dtype), members in sorted(groups.items()):
        kernels = [kernel for rows in members for kernel in rows.kernels]
        seconds = np.concatenate([rows.net(launch) for rows in members])
        features = _features(kernels, gpu_parameters(gpu), dtype)
        slopes, _ = nnls(features / seconds[:, None], np.ones(len(seconds)))
        error = np.log(np.maximum(features @ slopes, 1e-12) / seconds).std()
        floor, arithmetic, memory = slopes.tolist()
        lines[family, gpu, dtype] = RegressionLine(
            floor, arithmetic, memory, float(error), len(seconds)
        )
    for family, dtype in sorted({(family, dtype) for family, _, dtype in lines}):
        known = [line for key, line in lines.items() if (key[0], key[2]) == (family, dtype)]
        lines[family, ANY, dtype] = RegressionLine(
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
        self._parameters = GpuParameters.of(gpu)
        self._regression = regression
        self._numbers: dict[str, Quantity] = {}

    @property
    def gpu(self) -> Gpu:
        """GPU whose kernels are priced."""
        return self._gpu

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """One number a formula and format: 1, with the spread around its line."""
        return self._numbers

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel.

        Raises
        ------
        InputError
            If the GPU lacks the format, or no kernel of its family and format was measured.
        """
        family = formula_of(kernel.qualified_family).name
        dtype = getattr(kernel, "dtype", ANY)
        if dtype != ANY:
            self._gpu.peak(dtype)  # or an error that says so
        owner = self._parameters.name
        if (family, owner, dtype) not in self._regression:
            owner = ANY
        line = self._regression.get((family, owner, dtype))
        if line is None:
            kind = family if dtype == ANY else f"{family} in {dtype}"
            raise InputError(f"Li's model has no measured kernels of {kind}")
        name = f"line of {family} ({dtype})"
        source = f"regression over {line.rows:,} kernels of {owner}"
        self._numbers.setdefault(name, Quantity(1.0, "1", min(line.error, 10.0), source))
        one, arithmetic, memory = _features([kernel], self._parameters, dtype)[0].tolist()
        seconds = one * line.floor + arithmetic * line.arithmetic + memory * line.memory
        return Estimate(picoseconds(seconds), {name: 1.0}, line.error)

    def scaled(self, factors: Mapping[str, float]) -> Li:
        """Return the model of a GPU whose numbers are multiplied, with the lines of this one.

        Parameters
        ----------
        factors : mapping of str to float
            As of `mpisim.kernels.scaled.scaled_gpu`.
        """
        return Li(scaled_gpu(self._gpu, factors), self._regression)
