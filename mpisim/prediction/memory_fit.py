"""Whether an experiment fits into memory, and what would if it does not."""

from __future__ import annotations

from dataclasses import replace

from ..errors import InputError
from ..experiment import Experiment, Transformer
from ..memory import Evaluate, Verdict, advice, assess, capacity, evaluator, remedies
from ..workloads import Layout, lay_out
from .hardware import Hardware, hardware_of

__all__ = ["advice_for", "assessed", "verdict"]

GIB = 2**30


def verdict(experiment: Experiment) -> Verdict:
    """Return whether an experiment fits into memory. Local.

    Raises
    ------
    InputError
        If hardware is unknown, model, plan and cluster do not go together, or the plan does not fit
        (and ``run.allow_oom`` is not set).
    """
    try:
        hardware = hardware_of(experiment)
        return assessed(lay_out(experiment, hardware.gpus), hardware)[0]
    except InputError as error:
        raise InputError(f"{experiment.source}: {error}") from error


def assessed(layout: Layout, hardware: Hardware) -> tuple[Verdict, Evaluate | None]:
    """Return whether a layout fits; where not, also what says whether another plan does.

    Raises
    ------
    InputError
        If it does not fit (and ``run.allow_oom`` is not set).
    """
    experiment, node = layout.experiment, hardware.cluster.gpus_per_node
    smallest = min(hardware.named.values(), key=capacity)
    found = assess(layout, smallest, node=node)
    if found.fits:
        return found, None
    evaluate = evaluator(_even(experiment), hardware.gpus, smallest, node=node)
    if found.certain and not experiment.run.allow_oom:
        raise _refusal(experiment, found, evaluate)
    return found, evaluate


def advice_for(
    experiment: Experiment, found: Verdict, evaluate: Evaluate | None
) -> tuple[str, ...]:
    """Return what would make an experiment fit, lines for people; none if it does."""
    if evaluate is None:
        return ()
    plan, transformer = _even(experiment).plan, isinstance(experiment.model, Transformer)
    return tuple(advice(plan, found, evaluate, transformer=transformer))


def _even(experiment: Experiment) -> Experiment:
    """Return the experiment of which it is asked what would fit: replicas share the batch evenly.
    """
    return replace(experiment, plan=replace(experiment.plan, replica_batch=()))


def _refusal(experiment: Experiment, found: Verdict, evaluate: Evaluate) -> InputError:
    """Return the error for a plan that does not fit, with what would."""
    plan, transformer = _even(experiment).plan, isinstance(experiment.model, Transformer)
    others = remedies(plan, evaluate, transformer=transformer)
    fits = "; ".join(f"{each.change} ({each.verdict.peak / GIB:.1f} GiB)" for each in others)
    return InputError(
        f"the plan {found.sentence()}. "
        + (f"It fits with any of: {fits}. " if others else "No single change makes it fit. ")
        + "--allow-oom simulates it all the same"
    )
