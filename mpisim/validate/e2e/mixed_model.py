"""Linear mixed model with Student-t errors, fitted by expectation-maximisation.

Measurement i, one of the group p(i) of rows that ran in one way, which is of family f(p), is

    z_i = J_i x + u_f + v_p + e_i

with numbers x, each normal around 0 with the variance of its kind, u and v normal, and e Student's
t: few measurements are far off, and pull the less. Rows that ran in one way share an error, so
that many of them say little more than one about what distinguishes others. Families are of several
sorts, each with variances of u, v and e of its own: what is badly understood says less. Variances
are not known. With the declared ones as a weak prior they are found, with x, by
expectation-maximisation
(Dempster, Laird and Rubin 1977; for variances of random effects Laird and Ware 1982; for t as
normal with unknown weights Lange, Little and Taylor 1989), so that the measurements say how much
families have in common, how far numbers of one kind are apart, and what counts as far off.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...base.frozen import frozen

__all__ = ["Grouping", "Posterior", "Prior", "Variances", "e_step", "m_step"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MIN_VARIANCE = 1e-4
"""Least residual variance: (1 %)², the repeatability of measured steps."""


class Grouping(NamedTuple):
    """Groups and families of rows; rows of a group, and groups of a family, are adjacent.

    Attributes
    ----------
    kind : int64, shape (numbers,)
    group : int64, shape (rows,)
        0, 0, 1, …: of rows that ran in one way.
    family : int64, shape (groups,)
        0, 0, 1, …
    sort : int64, shape (families,)
    """

    kind: Ints
    group: Ints
    family: Ints
    sort: Ints

    @property
    def of_groups(self) -> Ints:
        """Sort of each group."""
        return self.sort[self.family]

    @property
    def of_rows(self) -> Ints:
        """Sort of each row."""
        return self.of_groups[self.group]


@frozen
class Prior:
    """Prior of the variances.

    Attributes
    ----------
    kinds : float64, shape (kinds,)
        Variance of numbers, by kind.
    family, group, rest : float
        Variances of u, v and e, of every sort.
    strength : float
        How many numbers (families, groups, measurements) that have exactly the guessed variance it
        counts as.
    freedom : float
        Degrees of freedom of Student's t.
    """

    kinds: Floats
    family: float
    group: float
    rest: float
    strength: float
    freedom: float


@frozen
class Variances:
    """Variances of numbers by kind, of families, groups and residuals by sort; weights of rows."""

    kinds: Floats
    family: Floats
    group: Floats
    rest: Floats
    weights: Floats

    @classmethod
    def guessed(cls, prior: Prior, grouping: Grouping) -> Variances:
        """Return the variances of the prior, to start from.

        Parameters
        ----------
        prior : Prior
        grouping : Grouping
            Of the measurements; says how many sorts there are.

        Returns
        -------
        Variances
            Every sort the same, every measurement with weight 1.
        """
        sorts = int(grouping.sort.max(initial=-1)) + 1
        return cls(
            prior.kinds,
            np.full(sorts, prior.family),
            np.full(sorts, prior.group),
            np.full(sorts, prior.rest),
            np.ones(len(grouping.group)),
        )


class Posterior(NamedTuple):
    """Numbers, and effects of families and groups, given variances.

    Attributes
    ----------
    x : float64, shape (numbers,)
    covariance : float64, shape (numbers, numbers)
    families : float64, shape (families,)
    family_variances : float64, shape (families,)
    groups : float64, shape (groups,)
    group_variances : float64, shape (groups,)
    variances : float64, shape (rows,)
        Of J x + u + v.
    """

    x: Floats
    covariance: Floats
    families: Floats
    family_variances: Floats
    groups: Floats
    group_variances: Floats
    variances: Floats

    def effects(self, grouping: Grouping) -> Floats:
        """Return u + v of each row."""
        return (self.families[grouping.family] + self.groups)[grouping.group]


def e_step(slope: Floats, z: Floats, grouping: Grouping, known: Variances) -> Posterior:
    """E step: the posterior of numbers and effects, given variances.

    Parameters
    ----------
    slope : float64, shape (rows, numbers)
        J.
    z : float64, shape (rows,)
    grouping : Grouping
    known : Variances
    """
    group, family = grouping.group, grouping.family
    weight = known.weights / known.rest[grouping.of_rows]
    # Effects of groups are eliminated, then those of families: each is a weighted mean, shrunk.
    inside = _sums(weight, group)
    own = inside + 1 / known.group[grouping.of_groups]
    held = inside / own
    weighted = slope * weight[:, None]
    means = _sums(weighted, group) / inside[:, None]
    z_means = _sums(weight * z, group) / inside
    counts = inside * (1 - held)
    whole = _sums(counts, family) + 1 / known.family[grouping.sort]
    above = _sums(means * counts[:, None], family) / whole[:, None]
    z_above = _sums(z_means * counts, family) / whole
    eliminated = (means * (inside * held)[:, None], above * whole[:, None])
    curve = weighted.T @ slope - eliminated[0].T @ means - eliminated[1].T @ above
    curve[np.diag_indices_from(curve)] += 1 / known.kinds[grouping.kind]
    covariance: Floats = np.linalg.inv(curve).astype(np.float64)
    x = covariance @ (weighted.T @ z - eliminated[0].T @ z_means - eliminated[1].T @ z_above)
    families = z_above - above @ x
    deviation = means - above[family]
    groups = held * (z_means - means @ x - families[family])
    off = slope - (above[family] + held[:, None] * deviation)[group]
    left = 1 / own + (1 - held) ** 2 / whole[family]
    return Posterior(
        x,
        covariance,
        families,
        1 / whole + _squares(above, covariance),
        groups,
        1 / own + held**2 * (1 / whole[family] + _squares(deviation, covariance)),
        _squares(off, covariance) + left[group],
    )


def m_step(
    rest: Floats, x: Floats, grouping: Grouping, found: Posterior, prior: Prior, known: Variances
) -> Variances:
    """M step: the variances of greatest expected likelihood, given the posterior.

    Parameters
    ----------
    rest : float64, shape (rows,)
        e: what numbers, families and groups leave.
    x : float64, shape (numbers,)
        The numbers, where they differ from those of `found` (limits).
    grouping : Grouping
    found : Posterior
    prior : Prior
    known : Variances
        Those of `found`.
    """
    strength, of_row = prior.strength, grouping.of_rows

    def mean(squares: Floats, index: Ints, guess: Floats | float, size: int) -> Floats:
        count = np.bincount(index, minlength=size)
        total = np.bincount(index, squares, size)
        return np.asarray((total + strength * guess) / (count + strength))

    sorts = len(known.rest)
    squares = rest**2 + found.variances
    left = mean(known.weights * squares, of_row, prior.rest, sorts)
    left = np.maximum(left, MIN_VARIANCE)
    return Variances(
        kinds=mean(x**2 + np.diag(found.covariance), grouping.kind, prior.kinds, len(prior.kinds)),
        family=mean(found.families**2 + found.family_variances, grouping.sort, prior.family, sorts),
        group=mean(found.groups**2 + found.group_variances, grouping.of_groups, prior.group, sorts),
        rest=left,
        weights=(prior.freedom + 1) / (prior.freedom + squares / left[of_row]),
    )


def _sums(values: Floats, index: Ints) -> Floats:
    """Return sums over neighbours of equal index 0, 0, 1, …"""
    first = np.searchsorted(index, np.arange(index[-1] + 1))
    return np.asarray(np.add.reduceat(values, first, axis=0), np.float64)


def _squares(rows: Floats, covariance: Floats) -> Floats:
    """Return the variance of each combination of numbers."""
    return np.asarray(((rows @ covariance) * rows).sum(axis=1))
