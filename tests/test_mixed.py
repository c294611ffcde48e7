"""Numbers and variances of a mixed model: found where they are known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from mpisim.validate.e2e.mixed_model import (
    Grouping,
    Posterior,
    Prior,
    Variances,
    e_step,
    m_step,
)

Floats = NDArray[np.float64]

PRIOR = Prior(np.array([0.04, 0.04]), 0.01, 0.01, 0.01, 1.0, 1e6)  # e almost normal

GROUPS = 3
"""In each family."""


def made(families: int, rows: int) -> tuple[Floats, Floats, Grouping]:
    """z of numbers with standard deviations 0.3 and 0.05, families 0.1, groups 0.05, rest 0.02."""
    random = np.random.default_rng(7)
    numbers = 40
    family = np.repeat(np.arange(families), GROUPS)
    group = np.repeat(np.arange(len(family)), rows)
    slope = random.random((len(group), numbers)) * (random.random((len(group), numbers)) < 0.2)
    kind = np.arange(numbers) % 2
    x = random.normal(0, np.array([0.3, 0.05])[kind])
    z = slope @ x + random.normal(0, 0.1, families)[family][group]
    z += random.normal(0, 0.05, len(family))[group] + random.normal(0, 0.02, len(group))
    return slope, z, Grouping(kind, group, family, np.zeros(families, np.int64))


def test_variances_are_found_again() -> None:
    slope, z, grouping = made(60, 10)
    known = Variances.guessed(PRIOR, grouping)
    for _ in range(100):
        found = e_step(slope, z, grouping, known)
        rest = z - slope @ found.x - found.effects(grouping)
        known = m_step(rest, found.x, grouping, found, PRIOR, known)
    # Of 20 numbers each, and the guess counts as one: (20 σ² + 0.04) / 21.
    shrunk = [((20 * each**2 + 0.04) / 21) ** 0.5 for each in (0.3, 0.05)]
    assert np.sqrt(known.kinds) == pytest.approx(shrunk, rel=0.25)
    assert known.family**0.5 == pytest.approx(0.1, rel=0.2)
    assert known.group**0.5 == pytest.approx(0.05, rel=0.2)
    assert known.rest**0.5 == pytest.approx(0.02, rel=0.1)


def whole(slope: Floats, z: Floats, grouping: Grouping, known: Variances) -> Posterior:
    """The same with effects as numbers among the others: normal equations."""
    families, groups, numbers = len(grouping.sort), len(grouping.family), slope.shape[1]
    of_row = grouping.family[grouping.group]
    both = np.hstack([slope, np.eye(families)[of_row], np.eye(groups)[grouping.group]])
    weight = known.weights / known.rest[grouping.of_rows]
    prior = np.concatenate(
        [
            known.kinds[grouping.kind],
            known.family[grouping.sort],
            known.group[grouping.of_groups],
        ]
    )
    covariance = np.linalg.inv((both.T * weight) @ both + np.diag(1 / prior))
    mean = covariance @ (both.T @ (weight * z))
    variances, end = np.diag(covariance), numbers + families
    return Posterior(
        mean[:numbers],
        covariance[:numbers, :numbers],
        mean[numbers:end],
        variances[numbers:end],
        mean[end:],
        variances[end:],
        np.einsum("ij,jk,ik->i", both, covariance, both),
    )


def test_families_and_groups_may_be_eliminated() -> None:
    slope, z, grouping = made(8, 3)
    grouping = grouping._replace(sort=np.arange(8) % 2)
    random = np.random.default_rng(3)
    known = Variances(
        np.array([0.1, 0.02]),
        np.array([0.03, 0.2]),
        np.array([0.02, 0.07]),
        np.array([0.01, 0.05]),
        random.random(72),
    )
    for one, other in zip(
        e_step(slope, z, grouping, known), whole(slope, z, grouping, known), strict=True
    ):
        assert one == pytest.approx(other, abs=1e-9)


def test_rows_that_ran_alike_say_little_more_than_one() -> None:
    """Of two groups that differ in what rests on a number, many rows leave it as unknown as few."""

    def error(rows: int) -> float:
        group = np.repeat([0, 1], rows)
        grouping = Grouping(
            np.zeros(1, np.int64), group, np.zeros(2, np.int64), np.zeros(1, np.int64)
        )
        known = Variances(
            np.array([1.0]),
            np.array([0.04]),
            np.array([0.01]),
            np.array([1e-4]),
            np.ones(2 * rows),
        )
        slope = (0.1 + 0.4 * group)[:, None]
        return float(e_step(slope, np.zeros(2 * rows), grouping, known).covariance[0, 0] ** 0.5)

    # Two groups 0.1 off each, told apart by 0.4: 0.1 sqrt(2) / 0.4 = 0.35, before a prior of 1.
    assert 0.3 < error(1000) < error(10) < 1.02 * error(1000) < 0.36


def test_what_is_far_off_counts_less() -> None:
    slope, z, grouping = made(10, 10)
    z[0] += 5.0
    prior = Prior(PRIOR.kinds, 0.01, 0.01, 0.01, 1.0, 4.0)
    known = Variances.guessed(prior, grouping)
    for _ in range(10):
        found = e_step(slope, z, grouping, known)
        rest = z - slope @ found.x - found.effects(grouping)
        known = m_step(rest, found.x, grouping, found, prior, known)
    assert known.weights[0] < 0.05 < 0.5 < np.median(known.weights)
