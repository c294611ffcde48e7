"""Long steps from two shorter ones: more micro-batches of the same kind only repeat what is there.

Once a pipeline is full, every further round of micro-batches takes as long as the one before, until
the end. So the step of m micro-batches follows from those of two smaller numbers, which both have
the beginning, the end and what is hidden behind them:

    T(m) = T(b) + (m - b) (T(b) - T(a)) / (b - a)

with a, b and m equal modulo the number of stages, so that all end in the same place of a round.
"""

from __future__ import annotations

from dataclasses import replace

from ...experiment import Experiment

__all__ = ["extended", "shorter", "with_micro_batches"]

LEAST = {False: 2, True: 4}
"""Micro-batches of a round where there are fewer stages, without and with interleaving."""

FILLING = {False: 1, True: 2}
"""Rounds before a pipeline counts as full: interleaved ones take longer to fill."""

WORTH = 0.6
"""Share of the whole work below which the detour pays."""


def shorter(experiment: Experiment) -> tuple[int, int, int] | None:
    """Return a, b and m, or None if the step is not long enough to be worth it."""
    plan = experiment.plan
    if plan.dp is None:
        return None
    m, rest = divmod(plan.global_batch, plan.dp * plan.micro_batch)
    if rest:
        return None  # a plan that will be refused
    interleaved = plan.vpp > 1
    a_round = plan.pp * -(-LEAST[interleaved] // plan.pp)
    a = FILLING[interleaved] * a_round + m % a_round
    b = a + a_round
    return (a, b, m) if a + b <= WORTH * m else None


def with_micro_batches(experiment: Experiment, number: int) -> Experiment:
    """Return an experiment with another number of micro-batches."""
    plan = experiment.plan
    assert plan.dp is not None
    batch = number * plan.dp * plan.micro_batch
    return replace(experiment, plan=replace(plan, global_batch=batch))


def extended(at_a: float, at_b: float, numbers: tuple[int, int, int]) -> float:
    """Return T(m)."""
    a, b, m = numbers
    return at_b + (m - b) * (at_b - at_a) / (b - a)
