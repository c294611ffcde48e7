"""Fitting a family's constants to measured kernels.

Least squares of log(predicted / measured), with the soft-L1 loss, which lets single rows that a
formula cannot explain pull only in proportion to their distance. Every GPU counts the same, however
many rows it has. A weak pull towards the values of a wider fit (the architecture's for one GPU)
settles what the rows leave open. Nothing here is random.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .analytical.family import Constant, FamilyModule
from .analytical.machine import Machine
from .gpu import find_gpu
from .measured import Rows

__all__ = ["LAUNCH", "Fit", "cross_validate", "fit", "log_ratios", "machine"]

LAUNCH = Constant("launch", 20e-6, 0.0, 200e-6, "CPU time that the measurement holds, s")
"""Where times hold the launch: fitted for every GPU beside the constants, and no part of a kernel's
time in a simulation, whose engine launches kernels itself."""

SCALE = 0.1
"""Relative errors from which on the loss grows linearly."""

PRIOR = 5
"""Rows that the wider fit counts as: a constant moves from one end of its range to the other as
easily as so many rows bear an error of `SCALE`."""

FOLDS = 5


@dataclass(frozen=True)
class Fit:
    """Fitted constants.

    Attributes
    ----------
    constants : dict of str to float
    launch : dict of str to float
        Seconds by GPU, of those whose times hold the launch.
    rows : int
    """

    constants: dict[str, float]
    launch: dict[str, float]
    rows: int


def machine(gpu: str) -> Machine:
    """Return the numbers of a preset."""
    return Machine.of(find_gpu(gpu))


def predicted(
    module: FamilyModule, rows: Rows, constants: Mapping[str, float], launch: float
) -> np.ndarray:
    """Return what the formula says for measured rows, in seconds."""
    return module.seconds(rows.columns, machine(rows.gpu), constants) + launch * rows.launched


def log_ratios(module: FamilyModule, batches: Sequence[Rows], found: Fit) -> list[np.ndarray]:
    """Return log(predicted / measured) of every row.

    A GPU without a launch time of its own has the median of the others'.
    """
    other = float(np.median(list(found.launch.values()))) if found.launch else 0.0
    return [
        np.log(
            predicted(module, rows, found.constants, found.launch.get(rows.gpu, other))
            / rows.seconds
        )
        for rows in batches
    ]


def fit(
    module: FamilyModule,
    batches: Sequence[Rows],
    towards: Mapping[str, float] | None = None,
) -> Fit:
    """Fit a family's constants to measured rows, of one GPU or of several together.

    Parameters
    ----------
    module : FamilyModule
    batches : sequence of Rows
        Of this family. Of none, the values to stay near come back.
    towards : mapping of str to float, optional
        Values to start from and to stay near where the rows do not say; without them, the
        textbook values.

    Returns
    -------
    Fit
    """
    from scipy.optimize import least_squares

    constants = module.CONSTANTS
    if not batches:
        return Fit(
            {each.name: (towards or {}).get(each.name, each.start) for each in constants}, {}, 0
        )
    gpus = sorted({rows.gpu for rows in batches if rows.launched})
    limits = list(constants) + [LAUNCH] * len(gpus)
    least = np.array([each.least for each in limits])
    span = np.array([each.most for each in limits]) - least
    start = [(towards or {}).get(each.name, each.start) for each in constants]
    anchor = (np.array(start + [LAUNCH.start] * len(gpus)) - least) / span

    totals = {name: sum(len(r) for r in batches if r.gpu == name) for name in _gpus(batches)}
    weights = [np.sqrt(1.0 / (totals[rows.gpu] * len(totals))) for rows in batches]
    pull = SCALE * np.sqrt(PRIOR / sum(totals.values()))
    machines = {name: machine(name) for name in totals}
    logs = [np.log(rows.seconds) for rows in batches]

    def residuals(point: np.ndarray) -> np.ndarray:
        values = least + span * point
        named = {each.name: float(value) for each, value in zip(constants, values, strict=False)}
        launch = dict(zip(gpus, values[len(constants) :].tolist()))
        parts = [
            # The soft-L1 loss is applied here and not by the solver, which would weigh the pull
            # by it as well, and whose scale would depend on the number of rows.
            weight
            * _soft(
                np.log(
                    module.seconds(rows.columns, machines[rows.gpu], named)
                    + (launch[rows.gpu] if rows.launched else 0.0)
                )
                - log
            )
            for rows, weight, log in zip(batches, weights, logs)
        ]
        return np.concatenate([*parts, pull * (point - anchor)])

    inside = np.clip(anchor, 1e-3, 1 - 1e-3)
    found = least_squares(residuals, inside, bounds=(0.0, 1.0), diff_step=1e-4, max_nfev=200)
    values = (least + span * found.x).tolist()
    return Fit(
        constants={each.name: value for each, value in zip(constants, values, strict=False)},
        launch=dict(zip(gpus, values[len(constants) :])),
        rows=sum(totals.values()),
    )


def _soft(error: np.ndarray) -> np.ndarray:
    """Return the signed root of the soft-L1 loss, 2 s² (sqrt(1 + (e/s)²) - 1).

    Written so that small errors keep their digits.
    """
    square = (error / SCALE) ** 2
    return error * np.sqrt(2.0 / (np.sqrt(1.0 + square) + 1.0))


def _gpus(batches: Sequence[Rows]) -> list[str]:
    return sorted({rows.gpu for rows in batches})


def cross_validate(
    module: FamilyModule,
    batches: Sequence[Rows],
    towards: Mapping[str, float] | None = None,
) -> list[np.ndarray]:
    """Return log(predicted / measured) of every row, by constants fitted without its shape.

    Rows of one shape are in one of five folds together, on all GPUs.
    """
    folds = [_folds(rows) for rows in batches]
    found = [np.empty(len(rows)) for rows in batches]
    for fold in range(FOLDS):
        kept = [rows.take(of != fold) for rows, of in zip(batches, folds)]
        fitted = fit(module, [rows for rows in kept if len(rows)], towards)
        for rows, of, out in zip(batches, folds, found):
            held = rows.take(of == fold)
            if len(held):
                (out[of == fold],) = log_ratios(module, [held], fitted)
    return found


def _folds(rows: Rows) -> np.ndarray:
    # Not the hash that divides rows into train and test: its folds would be uneven within a split.
    hashes = [zlib.crc32(repr(kernel)[::-1].encode()) for kernel in rows.kernels]
    return np.array(hashes) % FOLDS
