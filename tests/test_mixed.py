"""Numbers and variances of a mixed model: found where they are known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from mpisim.validate.e2e.mixed import (
    Guesses,
    Layout,
    Posterior,
    Variances,
    expected,
    maximised,
)

Floats = NDArray[np.float64]

GUESSES = Guesses(np.array([0.04, 0.04]), 0.01, 0.01, 1.0, 1e6)  # e almost normal


def made(families: int, rows: int) -> tuple[Floats, Floats, Layout]:
    """z of numbers with standard deviations 0.3 and 0.05, families 0.1, rest 0.02."""
    random = np.random.default_rng(7)
    numbers = 40
    family = np.repeat(np.arange(families), rows)
    slope = random.random((len(family), numbers)) * (random.random((len(family), numbers)) < 0.2)
    group = np.arange(numbers) % 2
    x = random.normal(0, np.array([0.3, 0.05])[group])
    z = slope @ x + random.normal(0, 0.1, families)[family] + random.normal(0, 0.02, len(family))
    return slope, z, Layout(group, family, np.zeros(families, np.int64))


def test_variances_are_found_again() -> None:
    slope, z, layout = made(60, 20)
    known = Variances.guessed(GUESSES, layout)
    for _ in range(100):
        found = expected(slope, z, layout, known)
        rest = z - slope @ found.x - found.families[layout.family]
        known = maximised(rest, found.x, layout, found, GUESSES, known)
    assert np.sqrt(known.groups) == pytest.approx([0.3, 0.05], rel=0.35)
    assert known.family**0.5 == pytest.approx(0.1, rel=0.2)
    assert known.rest**0.5 == pytest.approx(0.02, rel=0.1)


def whole(slope: Floats, z: Floats, layout: Layout, known: Variances) -> Posterior:
    """The same with effects of families as numbers among the others: normal equations."""
    families, numbers = len(layout.sort), slope.shape[1]
    both = np.hstack([slope, np.eye(families)[layout.family]])
    weight = known.weights / known.rest[layout.sort][layout.family]
    prior = np.concatenate([known.groups[layout.group], known.family[layout.sort]])
    covariance = np.linalg.inv((both.T * weight) @ both + np.diag(1 / prior))
    mean = covariance @ (both.T @ (weight * z))
    return Posterior(
        mean[:numbers], covariance[:numbers, :numbers], mean[numbers:],
        np.diag(covariance)[numbers:], np.einsum("ij,jk,ik->i", both, covariance, both),
    )  # fmt: skip


def test_families_may_be_eliminated() -> None:
    slope, z, layout = made(8, 9)
    layout = layout._replace(sort=np.arange(8) % 2)
    random = np.random.default_rng(3)
    known = Variances(
        np.array([0.1, 0.02]), np.array([0.03, 0.2]), np.array([0.01, 0.05]), random.random(72)
    )
    for one, other in zip(
        expected(slope, z, layout, known), whole(slope, z, layout, known), strict=True
    ):
        assert one == pytest.approx(other, abs=1e-9)


def test_what_is_far_off_counts_less() -> None:
    slope, z, layout = made(10, 10)
    z[0] += 5.0
    guesses = Guesses(GUESSES.groups, 0.01, 0.01, 1.0, 4.0)
    known = Variances.guessed(guesses, layout)
    for _ in range(10):
        found = expected(slope, z, layout, known)
        rest = z - slope @ found.x - found.families[layout.family]
        known = maximised(rest, found.x, layout, found, guesses, known)
    assert known.weights[0] < 0.05 < 0.5 < np.median(known.weights)
