"""Kernel models beside measured kernels → errors by group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.quantity import PICOSECONDS, Z_90
from ..kernels import KernelModel, find_gpu
from ..kernels.analytical import Analytical, KernelCalibration
from ..kernels.measured import MeasuredKernels
from ..kernels.operations import Gemm, Kernel, Norm
from ..mpi.parallel import progress
from .cases import summary

__all__ = [
    "Compared",
    "KernelErrors",
    "compare",
    "group_figures",
    "model_maker",
    "operator",
    "tabulate",
]

ModelMaker = Callable[[str], KernelModel]
"""From the name of a GPU to its model."""

Figures = dict[str, float | int | None]
"""Of a group of rows."""


@frozen
class Compared:
    """Measured rows of one GPU, family and format with their predictions.

    Attributes
    ----------
    rows : MeasuredKernels
    predicted : ndarray of float64
        Seconds, the launch included where the measurements hold it.
    error : ndarray of float64
        Relative standard error that the model states.
    """

    rows: MeasuredKernels
    predicted: np.ndarray
    error: np.ndarray

    @property
    def relative(self) -> np.ndarray:
        """Predicted over measured, less one."""
        return self.predicted / self.rows.seconds - 1

    @property
    def inside(self) -> np.ndarray:
        """Whether the stated 90 % interval holds the measurement."""
        return np.abs(np.log(self.predicted / self.rows.seconds)) <= Z_90 * self.error


@dataclass
class KernelErrors:
    """A validation: what was compared, and the rows left out by reason."""

    compared: list[Compared] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)


def model_maker(
    name: str, calibration: KernelCalibration | None, training: Sequence[MeasuredKernels]
) -> ModelMaker:
    """Name of a kernel model, calibration → function that makes it for a GPU.

    Parameters
    ----------
    name : str
        ``"analytical"``, ``"roofline"``, ``"li"``, ``"simai"`` or ``"database"``.
    calibration : KernelCalibration or None
        Of the analytical model, and of the CPU time that measurements hold; None for ours.
    training : sequence of MeasuredKernels
        What the models that learn from rows may see, see `alternatives.learned_models`.

    Raises
    ------
    InputError
        If the model learns from rows and there are none.
    """
    from ..kernels import Roofline
    from ..kernels.alternatives import learned_models

    if name == "analytical":
        return lambda gpu: Analytical(find_gpu(gpu), calibration, alone=True)
    if name == "roofline":
        return lambda gpu: Roofline(find_gpu(gpu))
    learned = learned_models(name, training, calibration, alone=True)
    return lambda gpu: learned(find_gpu(gpu))


def compare(
    rows: Sequence[MeasuredKernels],
    make: ModelMaker,
    calibration: KernelCalibration | None = None,
    *,
    launched: bool = True,
) -> KernelErrors:
    """Predict measured kernels.

    Parameters
    ----------
    rows : sequence of MeasuredKernels
    make : callable
        Of `model_maker`.
    calibration : KernelCalibration, optional
        For the CPU time that measurements hold: whatever the model, the same is added.
    launched : bool
        Whether it is added.

    Returns
    -------
    KernelErrors
        Rows that a model cannot predict are counted with its words.
    """
    found = KernelErrors()
    models: dict[str, KernelModel] = {}
    timers: dict[str, Analytical] = {}
    done, total = 0, sum(map(len, rows))
    with progress(None, "predicting kernels", total) as update:
        for each in rows:
            update(done)
            done += len(each)
            if each.gpu not in models:
                models[each.gpu] = make(each.gpu)
                timers[each.gpu] = Analytical(find_gpu(each.gpu), calibration)
            try:
                lookup = timers[each.gpu].look_up(each.family, each.dtype)
                launch = launched * each.launched * (lookup.launch + lookup.growth * each.elapsed)
                predicted, error = _predict(models[each.gpu], each)
            except InputError as reason:
                found.skipped[str(reason)] = found.skipped.get(str(reason), 0) + len(each)
                continue
            found.compared.append(Compared(each, predicted + launch, error))
    return found


def _predict(model: KernelModel, rows: MeasuredKernels) -> tuple[np.ndarray, np.ndarray]:
    """Return durations in seconds and their relative errors."""
    if isinstance(model, Analytical):
        seconds = model.estimate_many(rows.family, rows.columns)
        lookup = model.look_up(rows.family, rows.dtype)
        return seconds, np.array([lookup.error(each) for each in seconds.tolist()])
    estimates = [model.estimate(kernel) for kernel in rows.kernels]
    seconds = np.array([each.duration for each in estimates]) / PICOSECONDS
    return seconds, np.array([each.error for each in estimates])


def operator(kernel: Kernel, op: str) -> str:
    """Kernel, its author's name → name of the operator in tables of errors.

    Parameters
    ----------
    kernel : Kernel
    op : str
        The author's name; only ``bmm`` counts, for a GEMM.
    """
    if isinstance(kernel, Gemm):
        return "bmm" if kernel.batch > 1 or op == "bmm" else "linear"
    if isinstance(kernel, Norm):
        return "layer norm" if kernel.kind == "layer" else f"{kernel.kind} norm"
    return kernel.qualified_family.replace("_", " ")


def tabulate(found: KernelErrors) -> dict[str, dict[str, Figures]]:
    """Errors of kernels → tables by operator, operator and GPU, format, and decade of duration.

    Parameters
    ----------
    found : KernelErrors

    Returns
    -------
    dict
        For each grouping the groups; each with n, and mean (``mape``), median and 90th percentile
        of the absolute relative errors, the median signed error (``bias``), and the share of rows
        within the stated 90 % interval (``covered``).
    """
    relative: list[np.ndarray] = []
    inside: list[np.ndarray] = []
    labels: dict[str, list[str]] = {"operator": [], "operator, gpu": [], "dtype": [], "size": []}
    for each in found.compared:
        rows = each.rows
        relative.append(each.relative)
        inside.append(each.inside)
        names = [operator(kernel, op) for kernel, op in zip(rows.kernels, rows.op.tolist())]
        labels["operator"] += names
        labels["operator, gpu"] += [f"{name}, {rows.gpu}" for name in names]
        labels["dtype"] += [rows.dtype] * len(rows)
        labels["size"] += [_decade(s) for s in rows.seconds.tolist()]
    if not relative:
        return {}
    errors, covered = np.concatenate(relative), np.concatenate(inside)
    tables = {"all": {"all": group_figures(errors, covered)}}
    for grouping, column in labels.items():
        values = np.array(column)
        tables[grouping] = {
            str(value): group_figures(errors[values == value], covered[values == value])
            for value in np.unique(values)
        }
    return tables


def group_figures(errors: np.ndarray, covered: np.ndarray) -> Figures:
    """Errors of a group of rows → their summary, bias and share in the interval.

    Parameters
    ----------
    errors : ndarray of float64
        Relative.
    covered : ndarray of bool
        Whether each is within the stated interval.
    """
    return {
        **summary(errors.tolist()),
        "bias": float(np.median(errors)),
        "covered": float(covered.mean()),
    }


def _decade(seconds: float) -> str:
    """Name a decade so that names sort by size."""
    power = int(np.floor(np.log10(seconds)))
    return f"1e{power:+03d} s"
