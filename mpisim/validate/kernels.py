"""Kernel models beside measured kernels → errors by group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..base.errors import InputError
from ..base.quantity import PICOSECONDS
from ..kernels import KernelModel, find_gpu
from ..kernels.analytical.calibration import NORMAL, Calibration
from ..kernels.analytical.machine import Machine
from ..kernels.analytical.model import Analytical
from ..kernels.measured import Rows
from ..kernels.operations import Gemm, Kernel, Norm
from .cases import summary

__all__ = ["Compared", "KernelErrors", "compare", "model_maker", "operator", "tabulate"]

ModelMaker = Callable[[str], KernelModel]
"""From the name of a GPU to its model."""

Figures = dict[str, float | int | None]
"""Of a group of rows."""


@dataclass(frozen=True)
class Compared:
    """Measured rows of one GPU, family and format with their predictions.

    Attributes
    ----------
    rows : Rows
    predicted : ndarray of float64
        Seconds, the launch included where the measurements hold it.
    error : ndarray of float64
        Relative standard error that the model states.
    """

    rows: Rows
    predicted: np.ndarray
    error: np.ndarray

    @property
    def relative(self) -> np.ndarray:
        """Predicted over measured, less one."""
        return self.predicted / self.rows.seconds - 1

    @property
    def inside(self) -> np.ndarray:
        """Whether the stated 90 % interval holds the measurement."""
        return np.abs(np.log(self.predicted / self.rows.seconds)) <= NORMAL * self.error


@dataclass
class KernelErrors:
    """A validation: what was compared, and the rows left out by reason."""

    compared: list[Compared] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)


def model_maker(name: str, calibration: Calibration | None, training: Sequence[Rows]) -> ModelMaker:
    """Return what makes a GPU's kernel model of a kind.

    Parameters
    ----------
    name : str
        ``"analytical"``, ``"roofline"``, ``"li"``, ``"simai"`` or ``"database"``.
    calibration : Calibration or None
        Of the analytical model, and of the CPU time that measurements hold; None for ours.
    training : sequence of Rows
        What the models that learn from rows may see: all of them for Li's lines; the GPU's own
        for the database, which asks the analytical model otherwise; for SimAI's rules, those of
        the GPU of highest peak rate among them that is not the one asked for.

    Raises
    ------
    InputError
        If the model learns from rows and there are none.
    """
    from ..kernels import Roofline
    from ..kernels.alternatives import Li, OperationDatabase, Scaling, regress

    def analytical(gpu: str) -> Analytical:
        return Analytical(find_gpu(gpu), calibration, alone=True)

    def database(gpu: str) -> OperationDatabase:
        return OperationDatabase(training, analytical(gpu), launch)

    def launch(rows: Rows) -> np.ndarray:
        served = analytical(rows.gpu).served(rows.family, rows.dtype)
        return served.launch + served.growth * rows.elapsed

    if name in ("li", "simai", "database") and not training:
        raise InputError(f"the model {name!r} learns from measured rows, and none are for training")
    if name == "analytical":
        return analytical
    if name == "roofline":
        return lambda gpu: Roofline(find_gpu(gpu))
    if name == "database":
        return database
    if name == "li":
        lines = regress(training, launch)
        return lambda gpu: Li(find_gpu(gpu), lines)
    by_rate = sorted({rows.gpu for rows in training}, key=_rate, reverse=True)

    def scaled(gpu: str) -> Scaling:
        others = [each for each in by_rate if each != gpu]
        if not others:
            raise InputError(f"SimAI's rules need rows of another GPU than {gpu} for training")
        return Scaling(find_gpu(gpu), database(others[0]))

    return scaled


def _rate(gpu: str) -> float:
    return max(Machine.of(find_gpu(gpu)).peaks.values())


def compare(
    rows: Iterable[Rows], make: ModelMaker, calibration: Calibration | None = None
) -> KernelErrors:
    """Predict measured kernels.

    Parameters
    ----------
    rows : iterable of Rows
    make : callable
        Of `model_maker`.
    calibration : Calibration, optional
        For the CPU time that measurements hold: whatever the model, the same is added.

    Returns
    -------
    KernelErrors
        Rows that a model cannot predict are counted with its words.
    """
    found = KernelErrors()
    models: dict[str, KernelModel] = {}
    timers: dict[str, Analytical] = {}
    for each in rows:
        if each.gpu not in models:
            models[each.gpu] = make(each.gpu)
            timers[each.gpu] = Analytical(find_gpu(each.gpu), calibration)
        try:
            served = timers[each.gpu].served(each.family, each.dtype)
            launch = each.launched * (served.launch + served.growth * each.elapsed)
            predicted, error = _predict(models[each.gpu], each)
        except InputError as reason:
            found.skipped[str(reason)] = found.skipped.get(str(reason), 0) + len(each)
            continue
        found.compared.append(Compared(each, predicted + launch, error))
    return found


def _predict(model: KernelModel, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return durations in seconds and their relative errors."""
    if isinstance(model, Analytical):
        seconds = model.estimate_many(rows.family, rows.columns)
        served = model.served(rows.family, rows.dtype)
        return seconds, np.array([served.error(each) for each in seconds.tolist()])
    estimates = [model.estimate(kernel) for kernel in rows.kernels]
    seconds = np.array([each.duration for each in estimates]) / PICOSECONDS
    return seconds, np.array([each.error for each in estimates])


def operator(kernel: Kernel, op: str) -> str:
    """Return what a kernel is called in tables of errors, given its author's name."""
    if isinstance(kernel, Gemm):
        return "bmm" if kernel.batch > 1 or op == "bmm" else "linear"
    if isinstance(kernel, Norm):
        return "layer norm" if kernel.kind == "layer" else f"{kernel.kind} norm"
    return kernel.family.replace("_", " ")


def tabulate(found: KernelErrors) -> dict[str, dict[str, Figures]]:
    """Return errors by operator, by operator and GPU, by format, and by decade of duration.

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
    tables = {"all": {"all": _figures(errors, covered)}}
    for grouping, column in labels.items():
        values = np.array(column)
        tables[grouping] = {
            str(value): _figures(errors[values == value], covered[values == value])
            for value in np.unique(values)
        }
    return tables


def _figures(errors: np.ndarray, covered: np.ndarray) -> Figures:
    return {
        **summary(errors.tolist()),
        "bias": float(np.median(errors)),
        "covered": float(covered.mean()),
    }


def _decade(seconds: float) -> str:
    """Name a decade so that names sort by size."""
    power = int(np.floor(np.log10(seconds)))
    return f"1e{power:+03d} s"
