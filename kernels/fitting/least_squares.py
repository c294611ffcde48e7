"""Measured kernels → the constants of a formula, by least squares.

Least squares of log(predicted / measured), with the soft-L1 loss, which lets single rows that a
formula cannot explain pull only in proportion to their distance. Every GPU counts the same, however
many rows it has. A weak pull towards the values of a wider fit (the architecture's for one GPU)
determines what the rows leave open. Nothing here is random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from mpisim.base.frozen import frozen

from ..analytical.formula import Constant, Formula
from ..gpu_parameters import gpu_parameters
from ..measured import MeasuredKernels

__all__ = ["GROWTH", "LAUNCH", "FormulaFit", "fit", "log_errors", "soft"]

LAUNCH = Constant("launch", 20e-6, 0.0, 200e-6, "CPU time that the measurement holds, s")
"""Where times hold the launch: fitted for every GPU beside the constants, and no part of a kernel's
time in a simulation, whose engine launches kernels itself."""

GROWTH = Constant("growth", 0.3e-3, 0.0, 2e-3, "by which a launch grew in the run, s")
"""Where launches grew in the course of the author's run: fitted beside the launch."""

LINEAR_LOSS_ERROR = 0.1
"""Relative errors from which on the loss grows linearly."""

PRIOR_ROWS = 5
"""Rows that the wider fit counts as: a constant moves from one end of its range to the
other as easily as so many rows bear an error of `LINEAR_LOSS_ERROR`."""

MAX_ROWS_FOR_START = 400
"""Rows of a GPU that are enough to choose among starting points."""

OTHER_STARTS = 4
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23)
"""Starting points besides the anchor, and the bases of the sequence (Halton) that spreads them."""


@frozen
class FormulaFit:
    """Constants of a formula fitted to measured kernels.

    Attributes
    ----------
    constants : dict of str to float
    launch : dict of str to float
        Seconds by GPU, of those whose times hold the launch.
    rows : int
    growth : dict of str to float
        Seconds by GPU, of those where the launch grew in the course of the run.
    """

    constants: dict[str, float]
    launch: dict[str, float]
    rows: int
    growth: dict[str, float] = field(default_factory=dict)


def _predicted(
    formula: Formula,
    rows: MeasuredKernels,
    constants: Mapping[str, float],
    launch: float,
    growth: float = 0.0,
) -> np.ndarray:
    """Return the times that the formula predicts for measured rows, launch included, in seconds."""
    host = (launch + growth * rows.elapsed) * rows.launched
    found: np.ndarray = formula.seconds(rows.columns, gpu_parameters(rows.gpu), constants) + host
    return found


def log_errors(
    formula: Formula, batches: Sequence[MeasuredKernels], found: FormulaFit
) -> list[np.ndarray]:
    """Return log(predicted / measured) of every row.

    A GPU without a launch time, or a growth, of its own has the median of the others'.

    Parameters
    ----------
    formula : Formula
    batches : sequence of MeasuredKernels
        Of this formula, of any GPUs.
    found : FormulaFit

    Returns
    -------
    list of ndarray of float64, shape (rows,)
        One for each batch.
    """
    other, grown = (
        float(np.median(list(each.values()))) if each else 0.0
        for each in (found.launch, found.growth)
    )
    return [
        np.log(
            _predicted(
                formula,
                rows,
                found.constants,
                found.launch.get(rows.gpu, other),
                found.growth.get(rows.gpu, grown),
            )
            / rows.seconds
        )
        for rows in batches
    ]


def fit(
    formula: Formula,
    batches: Sequence[MeasuredKernels],
    towards: Mapping[str, float] | None = None,
) -> FormulaFit:
    """Measured rows, of one GPU or of several together → the constants of a family's formula.

    Parameters
    ----------
    formula : Formula
    batches : sequence of MeasuredKernels
        Of this formula. If empty, the values of `towards` come back.
    towards : mapping of str to float, optional
        Values to start from, and to stay near where the rows determine nothing; the textbook
        values if not given.

    Returns
    -------
    FormulaFit
    """
    from scipy.optimize import least_squares

    constants = formula.constants
    if not batches:
        return FormulaFit(
            {each.name: (towards or {}).get(each.name, each.start) for each in constants}, {}, 0
        )
    seconds_of = formula.fitted or formula.seconds
    gpus = sorted({rows.gpu for rows in batches if rows.launched})
    growing = sorted({rows.gpu for rows in batches if rows.elapsed.any()})
    limits = list(constants) + [LAUNCH] * len(gpus) + [GROWTH] * len(growing)
    least = np.array([each.least for each in limits])
    span = np.array([each.most for each in limits]) - least
    start = [(towards or {}).get(each.name, each.start) for each in constants]
    anchor = (np.array(start + [each.start for each in limits[len(start) :]]) - least) / span

    totals = {name: sum(len(r) for r in batches if r.gpu == name) for name in _gpus(batches)}
    parameters = {name: gpu_parameters(name) for name in totals}
    pull = np.full(len(limits), LINEAR_LOSS_ERROR * np.sqrt(PRIOR_ROWS / sum(totals.values())))
    # A launch is known from nothing but its rows; where they also hold a floor, which only shows in
    # the same sum, the pull is to act on the floor.
    pull[len(constants) :] *= 1e-3

    def divided(values: np.ndarray) -> tuple[dict[str, float], dict[str, float]]:
        """Return launches and their growths by GPU."""
        host = values[len(constants) :].tolist()
        return dict(zip(gpus, host)), dict(zip(growing, host[len(gpus) :]))

    def residuals(point: np.ndarray, rows_of: Sequence[_FitRows]) -> np.ndarray:
        values = least + span * (point - 1)
        named = {each.name: float(value) for each, value in zip(constants, values, strict=False)}
        launch, growth = divided(values)
        parts = [
            # The soft-L1 loss is applied here and not by the solver, which would weigh the pull
            # by it as well, and whose scale would depend on the number of rows.
            each.weight
            * soft(
                np.log(
                    seconds_of(each.columns, parameters[each.gpu], named)
                    + each.launched
                    * (launch.get(each.gpu, 0.0) + growth.get(each.gpu, 0.0) * each.elapsed)
                )
                - each.log
            )
            for each in rows_of
        ]
        return np.concatenate([*parts, pull * (point - 1 - anchor)])

    def solve(start: np.ndarray, rows_of: Sequence[_FitRows]) -> Any:
        # Points run from 1 to 2, so that the solver's steps, which are relative, suit both ends.
        inside = 1 + np.clip(start, 1e-3, 1 - 1e-3)
        return least_squares(
            residuals, inside, args=(rows_of,), bounds=(1.0, 2.0), diff_step=1e-4, max_nfev=100
        )

    few = [_FitRows.of(rows, totals, MAX_ROWS_FOR_START) for rows in batches]
    starts = [anchor, *_starts(anchor, len(constants))]
    best = min((solve(start, few) for start in starts), key=lambda each: each.cost)
    every = [_FitRows.of(rows, totals, None) for rows in batches]
    found = solve(best.x - 1, every)
    values = least + span * (found.x - 1)
    launch, growth = divided(values)
    return FormulaFit(
        constants={each.name: float(value) for each, value in zip(constants, values, strict=False)},
        launch=launch,
        rows=sum(totals.values()),
        growth=growth,
    )


@frozen
class _FitRows:
    """Columns and logarithms of measured rows, all of them or some evenly spread."""

    gpu: str
    launched: float
    elapsed: np.ndarray
    columns: Mapping[str, Any]
    log: np.ndarray
    weight: float

    @classmethod
    def of(cls, rows: MeasuredKernels, totals: Mapping[str, int], most: int | None) -> _FitRows:
        step = 1 if most is None else -(-len(rows) // most)
        columns = {
            name: column if isinstance(column, str) else column[::step]
            for name, column in rows.columns.items()
        }
        # Each row left represents `step` of them.
        weight = np.sqrt(step / (totals[rows.gpu] * len(totals)))
        return cls(
            rows.gpu,
            rows.launched,
            rows.elapsed[::step],
            columns,
            np.log(rows.seconds[::step]),
            float(weight),
        )


def _starts(anchor: np.ndarray, constants: int) -> Iterator[np.ndarray]:
    """Yield other starting points, from which another minimum may be found.

    Points of Halton's sequence, whose k-th coordinate mirrors the digits of the point's number in
    the k-th prime; the launches stay.
    """
    for number in range(1, OTHER_STARTS + 1):
        point = anchor.copy()
        for k in range(constants):
            point[k] = _mirrored(number, PRIMES[k])
        yield point


def _mirrored(number: int, base: int) -> float:
    value, scale = 0.0, 1.0
    while number:
        scale /= base
        number, digit = divmod(number, base)
        value += digit * scale
    return value


def soft(error: np.ndarray) -> np.ndarray:
    """Return the signed root of the soft-L1 loss, 2 s² (sqrt(1 + (e/s)²) - 1).

    Written so that small errors keep their digits.
    """
    square = (error / LINEAR_LOSS_ERROR) ** 2
    return error * np.sqrt(2.0 / (np.sqrt(1.0 + square) + 1.0))


def _gpus(batches: Sequence[MeasuredKernels]) -> list[str]:
    return sorted({rows.gpu for rows in batches})
