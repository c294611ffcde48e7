"""Group of plans of pipelines → what a layer takes, as measured and as predicted.

With m micro-batches of b sequences each and L layers on p equal stages, a step of a pipeline that
runs one forward and one backward in turn (1F1B) takes, from first principles,

    ((m + p - 1) L / p + m head) (fixed + b sequence) + once / p

``fixed`` is what a layer takes for a micro-batch of any size (launches, gaps, latencies of
communications, gradients added up), ``sequence`` what each sequence adds (products, memory, bytes
on the wire) and ``once`` what all parameters take once a step; ``head`` is what the last stage
computes besides, in layers, by its FLOPs. Plans that differ in p and b alone tell the three by
least squares. Measured and predicted times go through the same fit: it says which of the three is
off, where the mean error of steps says that one is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...base.frozen import frozen
from ...experiment import Transformer
from ...experiment.model_counts import model_flops
from ...experiment.plan_keys import short_key
from .groups import ComparablePlans, MeasuredPlan

__all__ = ["LayerTimes", "layer_times"]

MIN_PLANS = 6
"""Plans of a group from which the three times and their errors are found."""

VARYING_KEYS = ("pp", "dp", "micro_batch")
"""Keys in which the plans of one fit may differ; dp takes up what pp leaves."""


@frozen
class LayerTimes:
    """Time of a layer in plans of a group that differ in pipeline and micro-batch alone.

    Attributes
    ----------
    group : str
        Its name.
    sets : str
        What else tells these plans from others of the group; empty if nothing does.
    plans : int
    fixed, sequence : tuple of (float, float)
        Seconds of a layer for a micro-batch, and for each of its sequences: as measured, and as
        predicted; forward, backward and what is recomputed.
    fixed_error, sequence_error : float
        One standard error of those measured, from the scatter.
    scatter : float
        What the fit leaves of measured times, one standard deviation, relative.
    """

    group: str
    sets: str
    plans: int
    fixed: tuple[float, float]
    sequence: tuple[float, float]
    fixed_error: float
    sequence_error: float
    scatter: float


def layer_times(groups: Sequence[ComparablePlans]) -> list[LayerTimes]:
    """Groups of plans → time of a layer, measured and predicted.

    Parameters
    ----------
    groups : sequence of ComparablePlans

    Returns
    -------
    list of LayerTimes
        For plans of a group, at least `MIN_PLANS`, that differ in pipeline and micro-batch alone.
    """
    found = []
    for group in groups:
        alike: dict[str, list[MeasuredPlan]] = {}
        for plan in filter(_pipelined, group.plans):
            same = {
                key: value for key, value in plan.keys.items() if short_key(key) not in VARYING_KEYS
            }
            alike.setdefault(repr(sorted(same.items())), []).append(plan)
        for plans in alike.values():
            terms = np.array([_terms(each) for each in plans])
            # Micro-batches of one size do not tell what is fixed from what each sequence adds.
            if len(plans) >= MIN_PLANS and np.linalg.matrix_rank(terms / terms.max(axis=0)) == 3:
                found.append(_fitted(group, plans, terms))
    return found


def _pipelined(plan: MeasuredPlan) -> bool:
    """Whether a plan is of equal stages of one chunk each, one forward and one backward in turn."""
    experiment = plan.rows[0].mapped.experiment
    model, own = experiment.model, experiment.plan
    return (
        isinstance(model, Transformer)
        and own.vpp == 1
        and own.pipeline.schedule == "1f1b"
        and model.layers % own.pp == 0
    )


def _terms(plan: MeasuredPlan) -> tuple[float, float, float]:
    """Return what fixed, sequence and once are multiplied by in the step of a plan."""
    experiment = plan.rows[0].mapped.experiment
    model, own, dp = experiment.model, experiment.plan, plan.keys["dp"]
    assert isinstance(model, Transformer)
    assert isinstance(dp, int)
    batches = own.global_batch // (dp * own.micro_batch)
    scores = 3 * 2 * model.vocab * model.hidden * model.seq_len
    layer = (model_flops(model, 1) - scores) / model.layers
    if own.recompute.granularity == "full":
        layer *= 4 / 3  # forward once more, but not of the head
    passes = (batches + own.pp - 1) * model.layers / own.pp + batches * scores / layer
    return passes, passes * own.micro_batch, 1 / own.pp


def _fitted(
    group: ComparablePlans, plans: Sequence[MeasuredPlan], terms: NDArray[np.float64]
) -> LayerTimes:
    batch = [each.rows[0].mapped.experiment.plan.global_batch for each in plans]
    measured = np.array([each.measured for each in plans]) * batch
    predicted = np.array([each.predicted for each in plans]) * batch
    as_measured, errors, scatter = _least_squares(terms, measured)
    as_predicted, _, _ = _least_squares(terms, predicted)
    apart = [
        each
        for each in group.described(plans[0]).split(", ")
        if each.split(" ")[0] not in VARYING_KEYS
    ]
    return LayerTimes(
        group=group.name,
        sets=", ".join(apart),
        plans=len(plans),
        fixed=(float(as_measured[0]), float(as_predicted[0])),
        sequence=(float(as_measured[1]), float(as_predicted[1])),
        fixed_error=float(errors[0]),
        sequence_error=float(errors[1]),
        scatter=scatter,
    )


def _least_squares(
    terms: NDArray[np.float64], times: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Terms (plans × 3) and times → factors, their standard errors, scatter; errors relative."""
    weighted = terms / times[:, None]
    scale = np.linalg.norm(weighted, axis=0)  # terms differ by orders of magnitude
    weighted = weighted / scale
    factors, *_ = np.linalg.lstsq(weighted, np.ones(len(times)), rcond=None)
    left = weighted @ factors - 1
    variance = float(left @ left) / (len(times) - terms.shape[1])
    errors = np.sqrt(variance * np.diag(np.linalg.inv(weighted.T @ weighted)))
    return factors / scale, errors / scale, math.sqrt(variance)
