"""Group of measured and predicted plans → how well the prediction puts them in order.

Regret is what choosing by prediction costs: measured time of the plan that is predicted to be the
fastest, over that of the fastest measured, less one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import combinations, pairwise
from typing import Any

from ...base.frozen import frozen
from ..e2e.cross_validation import sufficient_error
from .groups import Group, MeasuredPlan

__all__ = ["CLEAR", "LIMITS", "Ranking", "Reliable", "reliability", "unshared_error"]

CLEAR = 0.05
"""Difference of two measured times from which their order counts as told: releases of one
framework, and repetitions on busy clusters, differ by up to this."""

LIMITS = (0.0, 0.5, 1.0, 2.0, 4.0, math.inf)
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
        Pairs whose measured times differ by more than `CLEAR`.
    right : int
        Those of them whose order is predicted.
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

    @classmethod
    def of(cls, group: Group) -> Ranking:
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
            if max(one.measured, other.measured) > (1 + CLEAR) * min(one.measured, other.measured)
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
        )


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


def reliability(groups: Sequence[Group]) -> list[Reliable]:
    """Groups → how often the order of two plans is right, by how sure the prediction is of it.

    Pairs that were measured, or are predicted, to take equally long are left out.
    """
    pairs = list(_pairs(groups))
    found = []
    for low, high in pairwise(LIMITS):
        own = [(z, right) for z, right in pairs if low <= z < high]
        if own:
            stated = sum(0.5 * (1 + math.erf(z / math.sqrt(2))) for z, _ in own) / len(own)
            found.append(Reliable(low, high, len(own), sum(right for _, right in own), stated))
    return found


def _pairs(groups: Sequence[Group]) -> Iterator[tuple[float, bool]]:
    """Yield z of every pair of plans of one group, and whether their order is right."""
    for group in groups:
        for one, other in combinations(group.plans, 2):
            if one.measured != other.measured and one.predicted != other.predicted:
                yield abs(one.ahead(other)), _right(one, other)


def unshared_error(groups: Sequence[Group]) -> float:
    """Groups → error that plans do not share with which intervals hold 90 % of their differences.

    What ``data/plans.toml`` states: the least share of the shorter step that has to be added to
    what the inputs' errors make of a difference.
    """
    residuals, inputs = [], []
    for group in groups:
        for one, other in combinations(group.plans, 2):
            ratio = one.predicted / other.predicted * other.measured / one.measured
            residuals.append(math.log(ratio))
            shorter = min(one.predicted, other.predicted)
            inputs.append(one.difference_error(other, unshared=0.0) / shorter)
    return sufficient_error(residuals, inputs)
