"""Group of measured and predicted plans → how well the prediction puts them in order.

Regret is what choosing by prediction costs: measured time of the plan that is predicted to be the
fastest, over that of the fastest measured, less one.

A rank correlation gives every pair one weight, those whose measured order is noise as well. Two
figures stand beside it: the mean correlation of measured times with the same times measured again,
which no prediction can be above (`Ranking.ceiling`), and Goodman and Kruskal's gamma over the pairs
that differ by more than noise (`Ranking.gamma`; J. Am. Stat. Assoc. 49, 1954).

A correlation of five plans that take equally long to a few percent says little about a model whose
steps are off by as much. `Expected` says what correlation the errors that predictions state would
give, and how far it would vary: a mean below that interval tells of errors that are not stated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import combinations, pairwise
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.frozen import frozen
from ...experiment.plan_keys import short_key
from ...prediction.uncertainty import unshared_share
from ..e2e.interval_errors import sufficient_error
from .groups import ComparablePlans, MeasuredPlan

__all__ = [
    "MIN_CLEAR_DIFFERENCE",
    "MIN_NOISE_DEVIATIONS",
    "Dimension",
    "Expected",
    "Ranking",
    "Reliable",
    "beyond_noise",
    "dimensions",
    "gamma_of",
    "reliability",
    "unshared_error",
]

MIN_CLEAR_DIFFERENCE = 0.05
"""Difference of two measured times from which their order counts as told: releases of one
framework, and repetitions on busy clusters, differ by up to this."""

MIN_NOISE_DEVIATIONS = 2.0
"""Standard deviations of the difference of two measurements from which on it is beyond noise."""

Draws = NDArray[np.int64]
"""How often something is in each of the draws."""

BOOTSTRAP_DRAWS = 1000
"""Of times measured again, for `Ranking.ceiling`; of errors, for `Expected`; of plans, for
`Dimension.low`."""

TAIL_SHARE = 0.05
"""Share of the draws on each side of the intervals of `Dimension.priced` and `Expected`."""

Z_BOUNDS = (0.0, 0.5, 1.0, 2.0, 4.0, math.inf)
"""Bounds of z, size of a predicted difference over its standard deviation, for `reliability`."""


@frozen
class Ranking:
    """How well the plans of a group are put in order.

    Attributes
    ----------
    plans : int
    best, chosen : MeasuredPlan
        The fastest as measured, and as predicted.
    regret : float
    blind : float
        Mean regret of choosing any plan of the group.
    spearman, kendall : float
        Rank correlations of measured and predicted times; NaN where all are equal.
    clear : int
        Pairs whose measured times differ by more than `MIN_CLEAR_DIFFERENCE`.
    right : int
        Those of them whose order is predicted.
    ceiling : float
        Spearman's correlation of measured times with the same times and the group's noise once
        more, in the mean: what a perfect prediction would have.
    beyond : int
        Pairs whose measured times differ by more than noise.
    gamma : float
        Of these: pairs in the right order less pairs in the wrong one, over both; NaN without any.
    """

    plans: int
    best: MeasuredPlan
    chosen: MeasuredPlan
    regret: float
    blind: float
    spearman: float
    kendall: float
    clear: int
    right: int
    ceiling: float
    beyond: int
    gamma: float

    @classmethod
    def of(cls, group: ComparablePlans) -> Ranking:
        """Group → its ranking."""
        stats: Any = import_module("scipy.stats")
        plans = group.plans
        best = min(plans, key=lambda each: each.measured)
        # Of plans predicted to be equally fast the slowest counts: nothing said which to take.
        chosen = min(plans, key=lambda each: (each.predicted, -each.measured))
        measured = [each.measured for each in plans]
        predicted = [each.predicted for each in plans]
        flat = len(set(measured)) == 1 or len(set(predicted)) == 1
        clear = [
            (one, other)
            for one, other in combinations(plans, 2)
            if max(one.measured, other.measured)
            > (1 + MIN_CLEAR_DIFFERENCE) * min(one.measured, other.measured)
        ]
        return cls(
            plans=len(plans),
            best=best,
            chosen=chosen,
            regret=chosen.measured / best.measured - 1,
            blind=sum(measured) / len(measured) / best.measured - 1,
            spearman=math.nan if flat else float(stats.spearmanr(measured, predicted).statistic),
            kendall=math.nan if flat else float(stats.kendalltau(measured, predicted).statistic),
            clear=len(clear),
            right=sum(_right(one, other) for one, other in clear),
            ceiling=math.nan if flat else _ceiling(measured, group.noise),
            beyond=len(beyond := list(_beyond(group))),
            gamma=gamma_of(beyond),
        )


def _ceiling(measured: Sequence[float], noise: float) -> float:
    """Return the mean rank correlation of times with the same times and their noise once more."""
    draws = np.random.default_rng(0).standard_normal((BOOTSTRAP_DRAWS, len(measured)))
    return float(_rank_correlations(measured, noise * draws).mean())


def _rank_correlations(times: Sequence[float], errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Times, errors of their logarithms (draws × times) → rank correlation of both, by draw."""
    stats: Any = import_module("scipy.stats")
    again = stats.rankdata(np.log(times) + errors, axis=1)
    ranks = stats.rankdata(times)
    ranks, again = ranks - ranks.mean(), again - again.mean(axis=1, keepdims=True)
    scale = np.sqrt((ranks**2).sum() * (again**2).sum(axis=1))
    return np.asarray(again @ ranks / scale, np.float64)


@frozen
class Expected:
    """Spearman's correlation that predictions with the errors they state would have.

    Attributes
    ----------
    mean : float
        Of draws of these errors and of the noise of measurements, with measured times as the truth;
        NaN where all are equal. Of several groups: of the mean of their correlations.
    low, high : float
        Bounds of 90 % of the draws.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, groups: Sequence[ComparablePlans]) -> Expected:
        """Groups → the mean of their correlations, as their plans' stated errors would make it."""
        rng = np.random.default_rng(0)
        drawn = [_expected_correlations(each, rng) for each in groups]
        known = [each for each in drawn if each is not None]
        if not known:
            return cls(math.nan, math.nan, math.nan)
        means = np.mean(known, axis=0)
        low, high = np.quantile(means, (TAIL_SHARE, 1 - TAIL_SHARE))
        return cls(float(means.mean()), float(low), float(high))


def _expected_correlations(
    group: ComparablePlans, rng: np.random.Generator
) -> NDArray[np.float64] | None:
    """Group → rank correlation in every draw of its plans' errors; None if all times are equal.

    An input that is off is off in all plans, each by its own effect. What the model leaves out and
    plans do not share (`unshared_share`) is that of a difference: each of two has it over √2.
    """
    measured = [each.measured for each in group.plans]
    if len(set(measured)) < 2:
        return None
    names = sorted({name for each in group.plans for name in each.effects})
    effects = np.array([[each.effects.get(name, 0.0) for name in names] for each in group.plans])
    own = math.hypot(unshared_share() / math.sqrt(2), group.noise)
    errors = rng.standard_normal((BOOTSTRAP_DRAWS, len(names))) @ effects.T
    return _rank_correlations(measured, errors + own * rng.standard_normal(errors.shape))


def _differ(group: ComparablePlans) -> Iterator[tuple[MeasuredPlan, MeasuredPlan]]:
    """Yield pairs of plans whose measured times differ by more than noise."""
    least = MIN_NOISE_DEVIATIONS * math.sqrt(2) * group.noise
    for one, other in combinations(group.plans, 2):
        if abs(math.log(one.measured / other.measured)) > least:
            yield one, other


def _beyond(group: ComparablePlans) -> Iterator[int]:
    """Yield 1 for a pair that differs by more than noise and is in the right order, else -1 or 0.

    0: both plans are predicted to take equally long.
    """
    for one, other in _differ(group):
        right = (one.measured - other.measured) * (one.predicted - other.predicted)
        yield (right > 0) - (right < 0)


def gamma_of(signs: Sequence[int]) -> float:
    """Pairs in right or wrong order → Goodman and Kruskal's gamma.

    Parameters
    ----------
    signs : sequence of int
        1 for a pair in the right order, -1 for one in the wrong, 0 for one that is undecided.

    Returns
    -------
    float
        -1 to 1; NaN if no pair is decided.
    """
    decided = sum(map(abs, signs))
    return sum(signs) / decided if decided else math.nan


def beyond_noise(groups: Sequence[ComparablePlans]) -> list[int]:
    """Groups of plans → order of all pairs that differ by more than noise.

    Parameters
    ----------
    groups : sequence of ComparablePlans

    Returns
    -------
    list of int
        1 right, -1 wrong, 0 undecided.
    """
    return [sign for group in groups for sign in _beyond(group)]


@frozen
class Dimension:
    """Pairs of plans that differ in one key alone, by more than noise.

    Attributes
    ----------
    key : str
        Of the plan; of degrees of parallelism dp takes up the difference.
    pairs, right : int
        All of them, and those whose order is predicted.
    priced : float
        Median of the predicted over the measured difference, of logarithms of times: above 1 the
        key is predicted to matter more than it does.
    low, high : float
        Bounds within which 90 % of such medians lie when the plans of each group are drawn again,
        with replacement. Pairs share plans, and each plan has one measured time: there is less to
        tell a price from than there are pairs. NaN of a single pair.
    """

    key: str
    pairs: int
    right: int
    priced: float
    low: float
    high: float


def dimensions(groups: Sequence[ComparablePlans]) -> list[Dimension]:
    """Groups of plans → how well the effect of each key of the plan is predicted.

    Parameters
    ----------
    groups : sequence of ComparablePlans

    Returns
    -------
    list of Dimension
        Those with the most pairs first.
    """
    rng = np.random.default_rng(0)
    shares: dict[str, list[float]] = {}
    weights: dict[str, list[Draws]] = {}
    for group in groups:
        number = len(group.plans)
        drawn = rng.multinomial(number, [1 / number] * number, BOOTSTRAP_DRAWS) if number else None
        times = {id(each): i for i, each in enumerate(group.plans)}
        for one, other in _differ(group):
            mine, its = ({**each.keys, "dp": 0} for each in (one, other))
            keys = [key for key in {**mine, **its} if mine.get(key) != its.get(key)]
            if len(keys) == 1 and drawn is not None:
                measured = math.log(one.measured / other.measured)
                share = math.log(one.predicted / other.predicted) / measured
                key = short_key(keys[0])
                shares.setdefault(key, []).append(share)
                weights.setdefault(key, []).append(
                    drawn[:, times[id(one)]] * drawn[:, times[id(other)]]
                )
    return sorted(
        (
            Dimension(
                key,
                len(each),
                sum(share > 0 for share in each),
                median(each),
                *_interval(each, weights[key]),
            )
            for key, each in shares.items()
        ),
        key=lambda each: (-each.pairs, each.key),
    )


def _interval(shares: Sequence[float], weights: Sequence[Draws]) -> tuple[float, float]:
    """Shares, and how often each is in every draw → bounds of 90 % of their medians."""
    if len(shares) < 2:
        return math.nan, math.nan
    order = np.argsort(shares)
    sums = np.stack([weights[i] for i in order], axis=1).cumsum(axis=1)
    sums = sums[sums[:, -1] > 0]
    if not len(sums):
        return math.nan, math.nan
    middle = (2 * sums >= sums[:, -1:]).argmax(axis=1)
    low, high = np.quantile(np.asarray(shares)[order][middle], (TAIL_SHARE, 1 - TAIL_SHARE))
    return float(low), float(high)


def _right(one: MeasuredPlan, other: MeasuredPlan) -> bool:
    """Whether the faster of two plans is predicted to be the faster."""
    return (one.measured - other.measured) * (one.predicted - other.predicted) > 0


@frozen
class Reliable:
    """Pairs of plans whose predicted difference is so many standard deviations.

    Attributes
    ----------
    low, high : float
        Bounds of z.
    pairs, right : int
        All of them, and those whose order is predicted.
    stated : float
        Share that would be right if differences were normally distributed with the stated errors.
    """

    low: float
    high: float
    pairs: int
    right: int
    stated: float


def reliability(groups: Sequence[ComparablePlans]) -> list[Reliable]:
    """Groups of plans → how often the order of two plans is right, by the certainty stated for it.

    Parameters
    ----------
    groups : sequence of ComparablePlans
        Pairs that were measured, or are predicted, to take equally long are left out.

    Returns
    -------
    list of Reliable
        By rising certainty (`Z_BOUNDS`).
    """
    pairs = list(_pairs(groups))
    found = []
    for low, high in pairwise(Z_BOUNDS):
        own = [(z, right) for z, right in pairs if low <= z < high]
        if own:
            stated = sum(0.5 * (1 + math.erf(z / math.sqrt(2))) for z, _ in own) / len(own)
            found.append(Reliable(low, high, len(own), sum(right for _, right in own), stated))
    return found


def _pairs(groups: Sequence[ComparablePlans]) -> Iterator[tuple[float, bool]]:
    """Yield z of every pair of plans of one group, and whether their order is right."""
    for group in groups:
        for one, other in combinations(group.plans, 2):
            if one.measured != other.measured and one.predicted != other.predicted:
                yield abs(one.ahead(other)), _right(one, other)


def unshared_error(groups: Sequence[ComparablePlans]) -> float:
    """Groups of plans → error that plans do not share, from the spread of their differences.

    The smallest share of the shorter step that, added to the error from uncertain inputs, lets
    intervals hold 90 % of the differences; ``data/plans.toml`` states it.

    Parameters
    ----------
    groups : sequence of ComparablePlans

    Returns
    -------
    float
        Relative, one standard deviation.
    """
    residuals, inputs = [], []
    for group in groups:
        for one, other in combinations(group.plans, 2):
            ratio = one.predicted / other.predicted * other.measured / one.measured
            residuals.append(math.log(ratio))
            shorter = min(one.predicted, other.predicted)
            inputs.append(one.difference_error(other, unshared=0.0) / shorter)
    return sufficient_error(residuals, inputs)
