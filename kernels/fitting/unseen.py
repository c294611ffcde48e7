"""Measured kernels → calibration of each chip by the other chips alone (leave one chip out).

This gives the error for a GPU without any measurement. Every chip is left out in turn, with all
boards that have it: constants, the weight of its relatives and the stated errors come from the
other chips. (The errors of another chip come from fits that saw this one's rows; only its own
errors are kept out.)

Times that hold the launch of a kernel tell of two things: the chip, and the host that launches. No
other chip's rows know the host. Its launch is therefore read off the chip's own rows, two numbers
for a family's thousands of rows, while all that a simulation uses stays that of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mpisim.base.frozen import frozen

from ..analytical.calibration import FittedConstants, KernelCalibration
from ..analytical.families import FORMULAS
from ..gpu_parameters import gpu_parameters
from ..measured import MeasuredKernels
from .calibrate import Key, unseen_tables
from .cross_validation import leave_out_chips
from .least_squares import GROWTH, LAUNCH, soft

__all__ = ["UnseenChip", "leave_each_chip_out", "with_own_launch"]


@frozen
class UnseenChip:
    """A chip that was left out, with the calibration made of the others.

    Attributes
    ----------
    gpus : tuple of str
        Presets of the boards that have it, of which there are rows.
    rows : tuple of MeasuredKernels
        Theirs.
    calibration : KernelCalibration
        From the rows of all other chips.
    """

    gpus: tuple[str, ...]
    rows: tuple[MeasuredKernels, ...]
    calibration: KernelCalibration

    @property
    def name(self) -> str:
        """Preset of the first board that has the chip."""
        return self.gpus[0]


def leave_each_chip_out(batches: Sequence[MeasuredKernels]) -> Iterator[UnseenChip]:
    """Leave out one chip at a time.

    Parameters
    ----------
    batches : sequence of MeasuredKernels
        Of all formulas, GPUs and formats. Where a formula and format was measured on one chip
        alone, no table is left for it, and it has the constants that `look_up` finds instead.

    Yields
    ------
    UnseenChip
        In the order of the names of GPUs, after all fits are done.
    """
    chips = {rows.gpu: gpu_parameters(rows.gpu).chip for rows in batches}
    tables: dict[object, dict[Key, FittedConstants]] = {chip: {} for chip in chips.values()}
    for family, dtype in sorted({(rows.family, rows.dtype) for rows in batches}):
        formula = FORMULAS[family]
        found = leave_out_chips(
            formula, [rows for rows in batches if (rows.family, rows.dtype) == (family, dtype)]
        )
        for left_out in found:
            others = [each for each in found if each is not left_out]
            here = tables[chips[left_out.rows[0].gpu]]
            for owner, table in unseen_tables(formula, left_out, others).items():
                here[family, owner, dtype] = table
    for chip in dict.fromkeys(chips[gpu] for gpu in sorted(chips)):
        yield UnseenChip(
            gpus=tuple(gpu for gpu in sorted(chips) if chips[gpu] == chip),
            rows=tuple(rows for rows in batches if chips[rows.gpu] == chip),
            calibration=KernelCalibration(tables[chip]),
        )


def with_own_launch(
    rows: Sequence[MeasuredKernels], seconds: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return predicted times plus the host's launch time, which is fitted to the measurements.

    Parameters
    ----------
    rows : sequence of MeasuredKernels
        Of one GPU and one family.
    seconds : sequence of ndarray of float64
        Predicted for each, without the launch.

    Returns
    -------
    list of ndarray of float64
        Seconds; as they are where no launch was measured.
    """
    from scipy.optimize import least_squares

    if not any(each.launched for each in rows):
        return list(seconds)
    most = np.array([LAUNCH.most, GROWTH.most])

    def total(point: np.ndarray) -> list[np.ndarray]:
        launch, growth = point * most
        return [
            kernel + (launch + growth * each.elapsed) * each.launched
            for each, kernel in zip(rows, seconds)
        ]

    def residuals(point: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [soft(np.log(time / each.seconds)) for each, time in zip(rows, total(point))]
        )

    start = np.array([LAUNCH.start, GROWTH.start]) / most
    return total(least_squares(residuals, start, bounds=(0.0, 1.0)).x)
