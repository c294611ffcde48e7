"""A traced step → Li's regression lines over its own kernels, by which its times are scaled.

TrioSim (ISCA 2025) scales a trace to another batch, or another GPU, by the ratio of two predictions
of Li et al. (MICRO 2023): time = floor + flops / (a × peak) + bytes / (b × bandwidth), a line a
kind of kernel (`mpisim.kernels.alternatives.li`). Here lines are fitted to the calls of one traced
step. A call that launches several kernels counts as the sum of what they compute, as the line is
linear. Kinds with too few calls, or calls too alike, have no line: the kernel model scales them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import hypot

import numpy as np

from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import Quantity
from ..base.schema import build
from ..base.text import percentage
from ..kernels import Gpu, KernelModel
from ..kernels.alternatives.li import Li, Regression, RegressionLine
from ..kernels.analytical.families import FORMULA_OF_FAMILY
from ..kernels.analytical.formula import ANY
from ..kernels.gpu_parameters import GpuParameters
from ..kernels.model import Estimate
from ..kernels.operations import Kernel
from .step import TracedKernel, TracedStep

__all__ = ["LiScaling", "Lines", "lines_of"]

FILE = "extrapolation.toml"

_MIN_FITTED_CALLS = 6
"""Calls from which on a line, which has three numbers, is fitted to them."""

_MIN_FITTED_SIZES = 3
"""Different amounts of work that these calls have, at least: as many as numbers are fitted."""


@frozen
class Lines:
    """Lines of a traced step.

    Attributes
    ----------
    regression : mapping
        By formula, GPU and format, as `Li` takes them: of the traced GPU, and of any other.
    share : float
        Of the kernels' time in calls that lines serve.
    """

    regression: Regression
    share: float

    @property
    def notes(self) -> list[str]:
        """Lines for people: what is scaled by which."""
        own = [
            f"{family}{'' if dtype == ANY else f' in {dtype}'} ({line.rows} calls, ± "
            f"{percentage(line.error)})"
            for (family, gpu, dtype), line in sorted(self.regression.items())
            if gpu != ANY
        ]
        found = ", ".join(own) or "none has enough calls"
        return [
            f"times are scaled by Li's lines over the trace's own kernels: {found}; the others, "
            f"{percentage(1 - self.share)} of the kernels' time, by the kernel model"
        ]


def lines_of(step: TracedStep, gpu: Gpu) -> Lines:
    """Fit lines to the calls of a traced step.

    Parameters
    ----------
    step : TracedStep
    gpu : Gpu
        That it is of.
    """
    from scipy.optimize import nnls

    parameters = GpuParameters.of(gpu)
    groups: dict[tuple[str, str], list[tuple[Sequence[Kernel], int]]] = {}
    for kernels, duration in _calls(step):
        kinds = {(FORMULA_OF_FAMILY.get(k.qualified_family, ""), _format(k)) for k in kernels}
        if len(kinds) == 1 and "" not in (kind := kinds.pop()):
            groups.setdefault(kind, []).append((kernels, duration))
    new = build(Quantity, packaged(FILE)["li"]["new_gpu"], FILE, "li.new_gpu").error
    found: dict[tuple[str, str, str], RegressionLine] = {}
    served = 0
    for (family, dtype), rows in sorted(groups.items()):
        features = np.array([_features(kernels, parameters, dtype) for kernels, _ in rows])
        seconds = np.array([duration for _, duration in rows]) * 1e-12
        if (
            len(rows) < _MIN_FITTED_CALLS
            or len({tuple(each) for each in features}) < _MIN_FITTED_SIZES
        ):
            continue
        slopes, _ = nnls(features / seconds[:, None], np.ones(len(seconds)))
        if not slopes[1:].any():  # no dependence on the work: nothing to scale by
            continue
        error = float(np.log(np.maximum(features @ slopes, 1e-12) / seconds).std())
        floor, arithmetic, memory = slopes.tolist()
        line = RegressionLine(floor, arithmetic, memory, error, len(rows))
        found[family, parameters.name, dtype] = line
        elsewhere = hypot(error, new)
        found[family, ANY, dtype] = RegressionLine(floor, arithmetic, memory, elsewhere, len(rows))
        served += sum(duration for _, duration in rows)
    return Lines(found, served / max(1, step.kernel_time))


def _calls(step: TracedStep) -> Iterator[tuple[tuple[Kernel, ...], int]]:
    """Yield what each call of a known operator computes, and how long its kernels took, in ps."""
    tasks = [task for one in step.operators for task in (*one.forward, *one.backward)]
    known: dict[int, tuple[Kernel, ...]] = {}
    times: dict[int, int] = {}
    for task in (*tasks, *step.optimizer, *step.zeroing):
        if isinstance(task, TracedKernel) and task.known and task.kernels:
            known[task.call] = task.kernels
            times[task.call] = times.get(task.call, 0) + task.duration
    for call, kernels in known.items():
        if times[call] > 0:
            yield kernels, times[call]


def _format(kernel: Kernel) -> str:
    return str(getattr(kernel, "dtype", ANY))


def _features(kernels: Sequence[Kernel], gpu: GpuParameters, dtype: str) -> tuple[float, ...]:
    """Return how many kernels, and arithmetic and traffic at the datasheet's rates, in s."""
    flops = sum(float(each.flops) for each in kernels)
    traffic = sum(float(each.traffic) for each in kernels)
    return float(len(kernels)), flops / gpu.peaks.get(dtype, 1.0), traffic / gpu.bandwidth


class LiScaling:
    """A kernel model of Li's lines where a trace has them, and of another model elsewhere.

    Parameters
    ----------
    model : KernelModel
        Of the GPU.
    lines : Lines
    """

    def __init__(self, model: KernelModel, lines: Lines) -> None:
        self._model, self._lines = model, lines
        self._li = Li(model.gpu, lines.regression)

    @property
    def gpu(self) -> Gpu:
        """The GPU."""
        return self._model.gpu

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """Those of the model, and one for each line that was used."""
        return {**self._model.numbers, **self._li.numbers}

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel.

        Raises
        ------
        InputError
            As of the model.
        """
        family = FORMULA_OF_FAMILY.get(kernel.qualified_family, "")
        if (family, ANY, _format(kernel)) in self._lines.regression:
            return self._li.estimate(kernel)
        return self._model.estimate(kernel)

    def scaled(self, factors: Mapping[str, float]) -> LiScaling:
        """Return the model of a GPU whose numbers are multiplied.

        Parameters
        ----------
        factors : mapping of str to float
            As of `mpisim.kernels.scaled.scaled_gpu`.
        """
        model = self._model.scaled(factors)
        return self if model is self._model else LiScaling(model, self._lines)
