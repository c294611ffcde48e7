"""Robust least squares of positive numbers: what all fits to measured communications share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["SCALE", "least_squares", "tempered"]

SCALE = 0.2
"""Relative errors beyond which a row counts ever less."""

Logs = NDArray[np.float64]


def tempered(errors: Logs) -> Logs:
    """Return residuals whose squares are the Cauchy loss of some log errors.

    SCALE² log(1 + (e / SCALE)²) is what errors cost that scatter by about `SCALE`, with some rows
    far off (Student's distribution of one degree of freedom). Single sizes take many times as long
    as those beside them; a loss that keeps its slope there, such as the soft-L1 loss, pays for them
    with all others.
    """
    size: Logs = SCALE * np.sqrt(np.log1p((errors / SCALE) ** 2))
    return np.copysign(size, errors)


def least_squares(
    log_errors: Callable[[Logs], Logs],
    start: Logs,
    weights: Logs,
    towards: Logs,
    pull: Logs,
    reach: float = 50.0,
) -> Logs:
    """Fit positive numbers.

    Parameters
    ----------
    log_errors : callable
        From the numbers to log(predicted / measured) of every row.
    start : float64, shape (n,)
        The numbers to start from, above 0.
    weights : float64
        Of the squared loss of every row; they should add up to the number of curves.
    towards : float64, shape (n,)
        Where the numbers lie if the rows do not say.
    pull : float64, shape (n,)
        In curves: a number that is off `towards` by a factor of e costs SCALE² for each.
    reach : float
        Largest factor by which a number may leave its start.

    Returns
    -------
    float64, shape (n,)
    """
    from scipy import optimize

    root = np.sqrt(weights)
    strength = np.sqrt(pull) * SCALE
    centre, origin = np.log(towards), np.log(start)

    def residuals(point: Logs) -> Logs:
        numbers = np.exp(point)
        return np.concatenate([root * tempered(log_errors(numbers)), strength * (point - centre)])

    found = optimize.least_squares(
        residuals,
        origin,
        bounds=(origin - np.log(reach), origin + np.log(reach)),
        diff_step=1e-4,
        x_scale=1.0,
        ftol=1e-4,
        xtol=1e-3,
        max_nfev=40,
    )
    numbers: Logs = np.exp(found.x)
    return numbers
