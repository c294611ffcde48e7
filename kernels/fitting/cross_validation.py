"""Measured kernels → errors of rows left out of a fit: shapes, runs or whole chips in turn."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np

from mpisim.base.frozen import frozen

from ..analytical.calibration import HELD_OUT_RUNS, HELD_OUT_SHAPES, HeldOut
from ..analytical.formula import Formula
from ..analytical.lookup import RELATED_ARCHITECTURES
from ..gpu_parameters import gpu_parameters
from ..measured import MeasuredKernels
from ..measured.reading import NOT_SIZES
from ..operations import Kernel
from .least_squares import FormulaFit, fit, log_errors

__all__ = [
    "LeftOutChip",
    "best_chip_weight",
    "chip_count",
    "cross_validate",
    "leave_out_chips",
    "shrink",
]

FOLDS = 5

MAX_RUN_SHARE = 0.75
"""Share of the rows from which on a run is divided by shape: the rest does not determine the
constants."""

MAX_ROWS = 1000
"""Of one batch, spread evenly, that are fitted to where a chip is left out: more do not move the
constants by as much as another chip does."""

CHIP_WEIGHTS = (0.0, 0.2, 1 / 3, 0.5, 2 / 3, 0.8, 1.0)
"""Weights of one chip relative to all others, for `best_chip_weight` to choose from."""

DEFAULT_CHIP_WEIGHT = 0.5
"""Where no chip was left out."""


def cross_validate(
    formula: Formula,
    batches: Sequence[MeasuredKernels],
    towards: Mapping[str, float] | None = None,
) -> tuple[HeldOut, list[np.ndarray]]:
    """Return log(predicted / measured) of every row of one GPU, by constants fitted without it.

    Where an author measured in several runs, one is left out at a time: what a board's temperature
    and power do to a whole run shows in none of its rows alone, and no user's run is among those
    that were fitted to. Within one run, and one that has most of the rows, rows of about the same
    shape are in one of five folds together: with the shape beside it among the rows, an error that
    a formula makes for shapes of a kind would not show.

    Parameters
    ----------
    formula : Formula
    batches : sequence of MeasuredKernels
        Of one formula, one GPU and one format.
    towards : mapping of str to float, optional
        As for `least_squares.fit`.

    Returns
    -------
    str
        What was left out at a time, ``"runs"`` or ``"shapes"``.
    list of ndarray of float64
        One for each batch.
    """
    runs = sorted({(rows.file, each) for rows in batches for each in np.unique(rows.run).tolist()})
    folds = _run_folds(batches, runs) if len(runs) > 1 else [_shape_folds(rows) for rows in batches]
    found = [np.empty(len(rows)) for rows in batches]
    for fold in range(FOLDS + len(runs)):
        kept = [rows.take(of != fold) for rows, of in zip(batches, folds)]
        held = [rows.take(of == fold) for rows, of in zip(batches, folds)]
        if not any(len(rows) for rows in held):
            continue
        fitted = fit(formula, [rows for rows in kept if len(rows)], towards)
        for rows, of, out in zip(held, folds, found):
            if len(rows):
                (out[of == fold],) = log_errors(formula, [rows], fitted)
    return (HELD_OUT_RUNS if len(runs) > 1 else HELD_OUT_SHAPES), found


def _run_folds(
    batches: Sequence[MeasuredKernels], runs: Sequence[tuple[str, str]]
) -> list[np.ndarray]:
    """Return a fold for each run, those of shapes for a run of most rows."""
    numbers = {run: FOLDS + number for number, run in enumerate(runs)}
    found = [np.array([numbers[rows.file, each] for each in rows.run.tolist()]) for rows in batches]
    counts = np.bincount(np.concatenate(found))
    for rows, of in zip(batches, found):
        most = counts[of] > MAX_RUN_SHARE * counts.sum()
        of[most] = _shape_folds(rows)[most]
    return found


def _shape_folds(rows: MeasuredKernels) -> np.ndarray:
    return np.array(
        [zlib.crc32(repr(_shape_cell(kernel)).encode()) % FOLDS for kernel in rows.kernels]
    )


def _shape_cell(kernel: Kernel) -> tuple[object, ...]:
    """Return the key of kernels of about the same shape: sizes rounded down to powers of two.

    All kernels that are validated together are of one variant.
    """
    values = (getattr(kernel, each.name) for each in fields(kernel) if each.name not in NOT_SIZES)
    return tuple(v.bit_length() if type(v) is int else v for v in values)


@frozen
class LeftOutChip:
    """A chip that was left out, and the fits whose constants then apply to its boards.

    Attributes
    ----------
    rows : sequence of MeasuredKernels
        Its measurements.
    fitted : sequence of MeasuredKernels
        Measurements of all other chips, as they were fitted to.
    others : FormulaFit
        To these.
    related : FormulaFit, optional
        To those of its architecture, or of the nearest that was measured.
    architecture : str
        Of `related`; empty if there is none.
    chips : int
        Number of chips that `related` depends on.
    """

    rows: Sequence[MeasuredKernels]
    fitted: Sequence[MeasuredKernels]
    others: FormulaFit
    related: FormulaFit | None = None
    architecture: str = ""
    chips: int = 0

    def errors(self, formula: Formula, weight: float) -> list[np.ndarray]:
        """Return log(predicted / measured) of each batch; `weight` as in `shrink`.

        Parameters
        ----------
        formula : Formula
        weight : float
            From 0 to 1; not used where no related chip was measured.

        Returns
        -------
        list of float64 arrays
            Natural logarithms, an array for each batch of `rows`.
        """
        fitted = self.others
        if self.related:
            fitted = shrink(self.related, self.others, self.chips, weight)
        return log_errors(formula, self.rows, fitted)


def leave_out_chips(formula: Formula, batches: Sequence[MeasuredKernels]) -> list[LeftOutChip]:
    """Leave out one chip at a time, with all boards that have it: none if there is only one.

    Parameters
    ----------
    formula : Formula
    batches : sequence of MeasuredKernels
        Of this formula and one format.
    """
    chips = {rows.gpu: gpu_parameters(rows.gpu).chip for rows in batches}
    found = []
    for chip in dict.fromkeys(chips[gpu] for gpu in sorted(chips)):
        own = [rows for rows in batches if chips[rows.gpu] == chip]
        others = [_thinned(rows) for rows in batches if chips[rows.gpu] != chip]
        if not others:
            break
        all_others = fit(formula, others)
        own_architecture = gpu_parameters(own[0].gpu).family
        for architecture in (own_architecture, *RELATED_ARCHITECTURES.get(own_architecture, ())):
            near = [rows for rows in others if gpu_parameters(rows.gpu).family == architecture]
            if near:
                related = fit(formula, near, all_others.constants)
                chip_left_out = LeftOutChip(
                    own, others, all_others, related, architecture, chip_count(near)
                )
                break
        else:
            chip_left_out = LeftOutChip(own, others, all_others)
        found.append(chip_left_out)
    return found


def _thinned(rows: MeasuredKernels) -> MeasuredKernels:
    """Return at most `MAX_ROWS` of the rows."""
    return rows.take(np.arange(0, len(rows), -(-len(rows) // MAX_ROWS)))


def chip_count(batches: Sequence[MeasuredKernels]) -> int:
    """Return the number of different chips that were measured."""
    return len({gpu_parameters(rows.gpu).chip for rows in batches})


def shrink(related: FormulaFit, others: FormulaFit, chips: int, weight: float) -> FormulaFit:
    """Return the constants of an architecture for its GPUs that were not measured.

    Few chips say little of their architecture: their constants are shrunk towards those of all.
    One chip has the weight w, n of them n w / (n w + 1 - w).

    Parameters
    ----------
    related, others : FormulaFit
        To the architecture's GPUs, and to all.
    chips : int
        How many chips `related` depends on.
    weight : float
        w, from 0 to 1.
    """
    share = chips * weight / (chips * weight + 1 - weight)

    def between(near: Mapping[str, float], far: Mapping[str, float]) -> dict[str, float]:
        """Return one CPU time for all GPUs, shrunk as the constants are, among them the floor."""
        if not near:
            return dict(far)
        first, second = (float(np.median(list(each.values()))) for each in (near, far))
        return {"": share * first + (1 - share) * second}

    return FormulaFit(
        {
            name: share * related.constants[name] + (1 - share) * others.constants[name]
            for name in related.constants
        },
        between(related.launch, others.launch),
        related.rows,
        between(related.growth, others.growth),
    )


def best_chip_weight(formula: Formula, chips: Sequence[LeftOutChip]) -> float:
    """Return the weight of `shrink` by which chips that were left out are predicted best.

    By the mean over them of the mean of |log(predicted / measured)|.

    Parameters
    ----------
    formula : Formula
    chips : sequence of LeftOutChip
    """
    with_related = [each for each in chips if each.related]
    if not with_related:
        return DEFAULT_CHIP_WEIGHT

    def mean_error(weight: float) -> float:
        return sum(
            float(np.abs(np.concatenate(each.errors(formula, weight))).mean())
            for each in with_related
        )

    return min(CHIP_WEIGHTS, key=mean_error)
