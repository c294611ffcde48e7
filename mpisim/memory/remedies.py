"""What would make a plan fit that does not: single changes, tried by the model itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InputError
from ..experiment.plan import Plan
from .verdict import GIB, Verdict

__all__ = ["Evaluate", "Remedy", "advice", "remedies"]

MOST = 64
"""Times that a size of the plan, or the cluster, is multiplied by at most."""

Evaluate = Callable[[Plan, int], Verdict]
"""Returns the verdict on a plan where the cluster has so many times the nodes, or raises
`InputError` where the two do not go together."""


@dataclass(frozen=True)
class Remedy:
    """A change of the plan, or of the cluster, that fits.

    Attributes
    ----------
    change : str
        In the words of an experiment file.
    plan : Plan
        As changed.
    nodes : int
        How many times the nodes it takes.
    verdict : Verdict
    """

    change: str
    plan: Plan
    nodes: int
    verdict: Verdict


def remedies(plan: Plan, evaluate: Evaluate, *, transformer: bool = True) -> list[Remedy]:
    """Try single changes of a plan and return those that fit, the cheapest first.

    The order is that of what they usually cost a step: sharding states and sequence parallelism
    next to nothing, fused attention less than nothing, then recomputation inside attention, smaller
    micro-batches, recomputation of everything, sharded parameters, larger model parallelism, and
    more GPUs. Of each kind the smallest change that fits is returned.

    Parameters
    ----------
    plan : Plan
    evaluate : callable
        ``evaluate(plan, times)`` returns the `Verdict` on a plan with so many times the nodes;
        combinations that cannot work raise `InputError` and are left out.
    transformer : bool
        Of what kind the model is, see `Plan.style`.
    """
    found = []
    for ladder in _ladders(plan, plan.style(transformer=transformer)):
        for change, changed, nodes in ladder:
            try:
                verdict = evaluate(changed, nodes)
            except InputError:
                continue
            if verdict.fits:
                found.append(Remedy(change, changed, nodes, verdict))
                break
    return found


def advice(
    plan: Plan, verdict: Verdict, evaluate: Evaluate, *, transformer: bool = True
) -> list[str]:
    """Return lines for people: what would make a plan fit; none where it does."""
    if verdict.fits:
        return []
    found = remedies(plan, evaluate, transformer=transformer)
    if not found:
        return ["No single change of the plan makes it fit: combine several, or use more GPUs."]
    width = max(len(remedy.change) for remedy in found)
    return [
        "Any of these makes it fit:",
        *(
            f"  {remedy.change:<{width}}  {remedy.verdict.peak / GIB:.1f} GiB"
            + ("" if remedy.verdict.certain else ", close")
            for remedy in found
        ),
    ]


Candidate = tuple[str, Plan, int]


def _ladders(plan: Plan, which: str) -> Iterator[list[Candidate]]:
    """Kinds of changes, the cheapest first; each from the smallest change to the largest."""
    if which in ("megatron", "ddp") and plan.zero == 0:
        yield _keys(plan, zero=1)
    if which == "deepspeed":
        yield [each for zero in range(plan.zero + 1, 3) for each in _keys(plan, zero=zero)]
    if plan.tp > 1 and not plan.sequence_parallel:
        yield _keys(plan, sp=True)
    if plan.kernels == "eager":
        yield _keys(plan, kernels="flash")
    if plan.recompute == "none":
        yield _keys(plan, recompute="selective")
    smaller = [plan.micro_batch // times for times in _doubled() if times <= plan.micro_batch]
    yield [each for size in smaller for each in _keys(plan, micro_batch=size)]
    if plan.recompute != "full" or plan.recompute_layers is not None:
        yield _keys(plan, recompute="full", recompute_layers=None)
    if plan.zero < 3:
        yield _keys(plan, dp_style="deepspeed" if which == "deepspeed" else "fsdp", zero=3)
    for axis in ("tp", "pp", "cp"):
        yield [each for times in _doubled() for each in _sized(plan, axis, times)]
    yield [_grown(plan, times) for times in _doubled()]


def _keys(plan: Plan, **keys: Any) -> list[Candidate]:
    """Change keys; nothing where the plan itself refuses."""
    given = {key: value for key, value in keys.items() if value is not None}
    words = ", ".join(f"{key} = {_toml(value)}" for key, value in given.items())
    try:
        return [(words, replace(plan, **keys), 1)]
    except InputError:
        return []


def _sized(plan: Plan, axis: str, times: int) -> list[Candidate]:
    """Multiply tp, pp or cp on the same number of GPUs: dp shrinks, if it was given."""
    keys = {axis: getattr(plan, axis) * times}
    if plan.dp is not None:
        if plan.dp % times:
            return []
        keys["dp"] = plan.dp // times
    return _keys(plan, **keys)


def _grown(plan: Plan, times: int) -> Candidate:
    """Take more nodes; the new ranks are data parallel."""
    changed = plan if plan.dp is None else replace(plan, dp=plan.dp * times)
    return f"{times} times the nodes", changed, times


def _doubled() -> list[int]:
    return [2**i for i in range(1, MOST.bit_length())]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
