"""Experiment → whether it fits into GPU memory, and changes of the plan that make it fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..base.errors import InputError
from ..base.quantity import GIB
from ..experiment import USUAL_LENGTH, Experiment, Transformer
from ..kernels import Gpu
from ..memory import Evaluate, Verdict, assess, capacity, evaluator
from ..workloads import Layout, lay_out
from .hardware import Hardware, hardware_of

__all__ = ["advice_for", "assess_layout", "verdict"]


def verdict(experiment: Experiment, hardware: Hardware | None = None) -> Verdict:
    """Experiment → verdict on whether it fits into memory. Local.

    Parameters
    ----------
    experiment : Experiment
    hardware : Hardware, optional
        Of the experiment, where it is known.

    Raises
    ------
    InputError
        If hardware is unknown, model, plan and cluster do not go together, or the plan does not fit
        (and ``run.allow_oom`` is not set).
    """
    try:
        on = hardware_of(experiment) if hardware is None else hardware
        return assess_layout(lay_out(experiment, on.gpus), on)[0]
    except InputError as error:
        raise InputError(f"{experiment.source}: {error}") from error


def assess_layout(layout: Layout, hardware: Hardware) -> tuple[Verdict, Evaluate | None]:
    """Layout → its memory verdict, and if it does not fit, a function that assesses other plans.

    Parameters
    ----------
    layout : Layout
    hardware : Hardware
        The GPU with the least memory counts.

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
    evaluate = evaluator(_with_even_batches(experiment), hardware.gpus, smallest, node=node)
    if found.certain and not experiment.run.allow_oom:
        raise _refusal(experiment, found, evaluate)
    return found, evaluate


def advice_for(
    experiment: Experiment, found: Verdict, evaluate: Evaluate | None
) -> tuple[str, ...]:
    """Return changes that would make an experiment fit, as lines; none if it fits.

    Parameters
    ----------
    experiment : Experiment
    found : Verdict
        On its plan.
    evaluate : callable, optional
        As `assess_layout` returns it; None if the plan fits.
    """
    if evaluate is None:
        return ()
    from ..memory.remedies import advice

    lines = advice(
        _with_even_batches(experiment).plan, found, evaluate, **_remedy_arguments(experiment)
    )
    return (*lines, *_shorter_sequences(experiment))


def _with_even_batches(experiment: Experiment) -> Experiment:
    """Return an experiment with its batch shared evenly by replicas, to search what would fit."""
    return replace(experiment, plan=replace(experiment.plan, replica_batch=()))


def _remedy_arguments(experiment: Experiment) -> dict[str, Any]:
    """Return the arguments of `remedies` other than the plan."""
    node = hardware_of(experiment).cluster.gpus_per_node
    return {"transformer": isinstance(experiment.model, Transformer), "node": node}


def _refusal(experiment: Experiment, found: Verdict, evaluate: Evaluate) -> InputError:
    """Return the error for a plan that does not fit, with changes that would make it fit."""
    from ..memory.remedies import remedies, shortage

    others = remedies(
        _with_even_batches(experiment).plan, evaluate, **_remedy_arguments(experiment)
    )
    fits = "; ".join(f"{each.change} ({each.verdict.peak / GIB:.1f} GiB)" for each in others)
    single = any(each.together == 1 for each in others)
    if others:
        head = "" if single else "No single change makes it fit. "
        choice = "any of: " if len(others) > 1 else "" if single else "all of: "
        text = f"{head}It fits with {choice}{fits}. "
    else:
        text = f"{shortage(found)} "
    text += "".join(f"{line} " for line in _shorter_sequences(experiment))
    return InputError(f"the plan {found.sentence()}. {text}--allow-oom simulates it all the same")


def _shorter_sequences(experiment: Experiment) -> list[str]:
    """Return sentences on a sequence length that is the longest a config.json allows.

    They say where it comes from, and what fits with a shorter one; none for other lengths.
    """
    model = experiment.model
    if not experiment.config_length or not isinstance(model, Transformer):
        return []
    if model.seq_len <= USUAL_LENGTH:
        return []
    lines = [
        f"model.seq_len = {model.seq_len} is the longest that {experiment.config_length} allows "
        "(max_position_embeddings), not what models are usually trained on."
    ]
    hardware = hardware_of(experiment)
    smallest = min(hardware.named.values(), key=capacity)
    length = model.seq_len // 2
    while length > USUAL_LENGTH and not _verdict(experiment, length, hardware, smallest).fits:
        length //= 2
    length = max(length, USUAL_LENGTH)
    found = _verdict(experiment, length, hardware, smallest)
    if found.fits:
        return [*lines, f"With model.seq_len = {length} it fits ({found.peak / GIB:.1f} GiB)."]
    from ..memory.remedies import remedies

    changed = _with_even_batches(_with_length(experiment, USUAL_LENGTH))
    node = hardware.cluster.gpus_per_node
    others = remedies(
        changed.plan,
        evaluator(changed, hardware.gpus, smallest, node=node),
        **_remedy_arguments(experiment),
    )
    if others:
        lines.append(
            f"With model.seq_len = {USUAL_LENGTH} and {others[0].change} it fits "
            f"({others[0].verdict.peak / GIB:.1f} GiB)."
        )
    return lines


def _with_length(experiment: Experiment, length: int) -> Experiment:
    assert isinstance(experiment.model, Transformer)
    return replace(experiment, model=replace(experiment.model, seq_len=length))


def _verdict(experiment: Experiment, length: int, hardware: Hardware, gpu: Gpu) -> Verdict:
    layout = lay_out(_with_length(experiment, length), hardware.gpus)
    return assess(layout, gpu, node=hardware.cluster.gpus_per_node)
