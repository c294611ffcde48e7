"""A mixed model by maximum likelihood: few numbers from many measurements in families.

Measurement i of family f(i) is

    z_i = J_i x + u_f(i) + e_i

with numbers x, each normal around 0 with the variance of its group, u normal, and e Student's t:
few measurements are far off, and pull the less. Families are of several sorts, each with variances
of u and e of its own: what is badly understood says less. Variances are not known. With declared
guesses as a weak prior they are found, with x, by expectation-maximisation (Dempster, Laird and
Rubin 1977; for variances of random effects Laird and Ware 1982; for t as normal with unknown
weights Lange, Little and Taylor 1989), so that the measurements say how much families have in
common, how far numbers of one group are apart, and what counts as far off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Guesses", "Layout", "Posterior", "Variances", "expected", "maximised"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEAST = 1e-4
"""Least variance of what is left: (1 %)², as good as measured steps are repeated."""


class Layout(NamedTuple):
    """What belongs together.

    Attributes
    ----------
    group : int64, shape (numbers,)
    family : int64, shape (rows,)
    sort : int64, shape (families,)
    """

    group: Ints
    family: Ints
    sort: Ints


@dataclass(frozen=True)
class Guesses:
    """What is assumed before any measurement is looked at.

    Attributes
    ----------
    groups : float64, shape (groups,)
        Variance of numbers, by group.
    family, rest : float
        Variances of u and e, of every sort.
    strength : float
        How many numbers (families, measurements) that have exactly the guessed variance it counts
        as.
    freedom : float
        Degrees of freedom of Student's t.
    """

    groups: Floats
    family: float
    rest: float
    strength: float
    freedom: float


@dataclass(frozen=True)
class Variances:
    """Variances of numbers by group, of families and of what is left by sort; what each measurement
    counts."""

    groups: Floats
    family: Floats
    rest: Floats
    weights: Floats

    @classmethod
    def guessed(cls, guesses: Guesses, layout: Layout) -> Variances:
        """Return where to start from."""
        sorts = int(layout.sort.max(initial=-1)) + 1
        return cls(
            guesses.groups, np.full(sorts, guesses.family), np.full(sorts, guesses.rest),
            np.ones(len(layout.family)),
        )  # fmt: skip


class Posterior(NamedTuple):
    """Numbers and effects of families, given variances.

    Attributes
    ----------
    x : float64, shape (numbers,)
    covariance : float64, shape (numbers, numbers)
    families : float64, shape (families,)
    family_variances : float64, shape (families,)
    variances : float64, shape (rows,)
        Of J x + u.
    """

    x: Floats
    covariance: Floats
    families: Floats
    family_variances: Floats
    variances: Floats


def expected(slope: Floats, z: Floats, layout: Layout, known: Variances) -> Posterior:
    """Return what is known of the numbers with given variances.

    Parameters
    ----------
    slope : float64, shape (rows, numbers)
        J.
    z : float64, shape (rows,)
    layout : Layout
    known : Variances
    """
    family, count = layout.family, len(layout.sort)
    weight = known.weights / known.rest[layout.sort][family]
    # Effects of families are eliminated: each is its rows' weighted mean, shrunk.
    own = np.bincount(family, weight, count) + 1 / known.family[layout.sort]
    weighted = slope * weight[:, None]
    sums = (np.arange(count)[:, None] == family) @ weighted
    means = sums / own[:, None]
    curve = weighted.T @ slope - sums.T @ means
    curve[np.diag_indices_from(curve)] += 1 / known.groups[layout.group]
    covariance: Floats = np.linalg.inv(curve).astype(np.float64)
    of_family = np.bincount(family, weight * z, count) / own
    x = covariance @ (weighted.T @ z - sums.T @ of_family)
    families = of_family - means @ x
    family_variances = 1 / own + ((means @ covariance) * means).sum(axis=1)
    off = slope - means[family]
    variances = ((off @ covariance) * off).sum(axis=1) + (1 / own)[family]
    return Posterior(x, covariance, families, family_variances, variances)


def maximised(
    rest: Floats, x: Floats, layout: Layout, found: Posterior, guesses: Guesses, known: Variances
) -> Variances:
    """Return the variances that what is known of the numbers makes most likely.

    Parameters
    ----------
    rest : float64, shape (rows,)
        e: what numbers and families leave.
    x : float64, shape (numbers,)
        The numbers, where they differ from those of `found` (limits).
    layout : Layout
    found : Posterior
    guesses : Guesses
    known : Variances
        Those of `found`.
    """
    strength, of_row = guesses.strength, layout.sort[layout.family]

    def mean(squares: Floats, index: Ints, guess: Floats | float, size: int) -> Floats:
        count = np.bincount(index, minlength=size)
        total = np.bincount(index, squares, size)
        return np.asarray((total + strength * guess) / (count + strength))

    sorts = len(known.rest)
    squares = rest**2 + found.variances
    left = mean(known.weights * squares, of_row, guesses.rest, sorts)
    left = np.maximum(left, LEAST)
    return Variances(
        groups=mean(
            x**2 + np.diag(found.covariance), layout.group, guesses.groups, len(guesses.groups)
        ),
        family=mean(
            found.families**2 + found.family_variances, layout.sort, guesses.family, sorts
        ),
        rest=left,
        weights=(guesses.freedom + 1) / (guesses.freedom + squares / left[of_row]),
    )
