"""Plan that does not fit → changes that make it fit, each tried by the memory model.

Single changes first, in the order of what they usually cost a step. Where none is enough, two or
three together. Where the same GPUs are not enough, offload to the host is tried; where the host's
memory is too small, less offload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice, product
from typing import Any

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.quantity import GIB
from ..experiment.plan import Plan, with_keys
from ..experiment.plan_keys import RECOMPUTE, short_key
from .verdict import Evaluate, Verdict

__all__ = ["Remedy", "advice", "remedies", "shortage"]

MAX_MULTIPLE = 64
"""Times that a size of the plan, or the cluster, is multiplied by at most."""

MAX_COMBINED = 3
"""Changes that are combined at most."""

MAX_COMBINATIONS = 80
"""Combinations of two changes, and of three, that are tried at most."""

ENOUGH_COMBINATIONS = 4
"""Combinations that fit, after which no more are tried."""


@frozen
class Remedy:
    """A change of the plan, or of the cluster, that fits.

    Attributes
    ----------
    change : str
        As keys and values of an experiment file.
    plan : Plan
        With the change.
    nodes : int
        Multiple of the cluster's nodes that it takes.
    verdict : Verdict
    together : int
        Number of changes that are combined.
    """

    change: str
    plan: Plan
    nodes: int
    verdict: Verdict
    together: int = 1


def remedies(
    plan: Plan, evaluate: Evaluate, *, transformer: bool = True, node: int = 8
) -> list[Remedy]:
    """Plan → changes that make it fit, the cheapest first.

    The order is that of what they usually cost a step: sharding states and sequence parallelism
    next to nothing, fused attention less than nothing, then recomputation inside attention, smaller
    micro-batches, tensor and expert parallelism inside a node, more stages, recomputation of
    everything, sharded parameters, context parallelism, tensor and expert parallelism across nodes,
    and more GPUs. Of each kind the smallest change that fits is returned. Where no single one fits,
    or only one of the last two kinds, combinations of two are tried, then of three; and offload to
    the host, with others only where nothing else fits at all. Where the host has too little memory,
    less offload comes first. Changes that these GPUs are too few for are tried last, with more.

    Parameters
    ----------
    plan : Plan
    evaluate : callable
        ``evaluate(plan, times)`` returns the `Verdict` on a plan with so many times the nodes;
        combinations that cannot work raise `InputError` and are left out.
    transformer : bool
        Whether the model is one, see `Plan.style`.
    node : int
        GPUs of a node.
    """
    verdicts: dict[tuple[Plan, int], Verdict | None] = {}

    def evaluated(candidate: Candidate) -> Verdict | None:
        _, changed, nodes = candidate
        if (changed, nodes) not in verdicts:
            try:
                verdicts[changed, nodes] = evaluate(changed, nodes)
            except InputError:
                verdicts[changed, nodes] = None
        return verdicts[changed, nodes]

    which = plan.style(transformer=transformer)
    kinds = _kinds(plan, which, node)
    now = evaluated(("", plan, 1))
    if now is not None and not now.host_fits and _less_offload(plan, which):
        kinds = [lambda p: _less_offload(p, which), *kinds]
    found = [fitting for kind in kinds if (fitting := _first(kind(plan), evaluated)) is not None]
    if not all(_is_expensive((each.change, each.plan, each.nodes), plan, node) for each in found):
        return found
    # What helps by itself may be enough with others; more nodes help only what is shared.
    peak = UNBOUNDED if now is None else now.peak
    useful = [
        kind for kind in kinds if kind is kinds[-1] or _smallest(kind(plan), evaluated)[1] < peak
    ]
    if found:  # at the price of tensor parallelism across nodes, or of more nodes
        expensive = [
            kind for kind in useful if any(_is_expensive(each, plan, node) for each in kind(plan))
        ]
        useful = [kind for kind in useful if kind not in expensive]
    offloaded = _first(_offloaded(plan, which), evaluated)
    found = found if offloaded is None else [offloaded, *found]
    for together in range(2, MAX_COMBINED + 1):
        several = _combined(plan, useful, together, evaluated)
        if several:
            return several + found
    if found:
        return found
    if not _offloaded(plan, which):
        return _with_more_nodes(plan, kinds, evaluated)
    # Those without offload have been tried, and do not fit.
    kinds = [lambda p: _offloaded(p, which), *useful]
    for together in range(2, MAX_COMBINED + 1):
        several = _combined(plan, kinds, together, evaluated)
        if several:
            return several
    return _with_more_nodes(plan, _kinds(plan, which, node), evaluated)


def shortage(verdict: Verdict) -> str:
    """Verdict on a plan that no change makes fit → a sentence with the memory it needs.

    Parameters
    ----------
    verdict : Verdict
    """
    needs = [] if verdict.headroom >= 0 else [f"GPUs of {verdict.peak / GIB:,.0f} GiB"]
    needs += [] if verdict.host_fits else [f"hosts of {verdict.host_peak / GIB:,.0f} GiB"]
    return (
        f"No change of the plan makes it fit, nor do {MAX_COMBINED} together; as it is, it takes "
        f"{' and '.join(needs)}."
    )


def advice(
    plan: Plan, verdict: Verdict, evaluate: Evaluate, *, transformer: bool = True, node: int = 8
) -> list[str]:
    """Plan, verdict → lines of output with changes that make the plan fit; none if it fits.

    Parameters as of `remedies`.
    """
    if verdict.fits:
        return []
    found = remedies(plan, evaluate, transformer=transformer, node=node)
    if not found:
        return [shortage(verdict)]
    width = max(len(remedy.change) for remedy in found)
    several = all(remedy.together > 1 for remedy in found)
    head = (
        "No single change makes it fit; any of these does:"
        if several
        else ("Any of these makes it fit:")
    )
    return [
        head,
        *(
            f"  {remedy.change:<{width}}  {remedy.verdict.peak / GIB:.1f} GiB"
            + ("" if remedy.verdict.certain else ", close")
            for remedy in found
        ),
    ]


Candidate = tuple[str, Plan, int]
"""The change, as keys of an experiment file; the changed plan; the multiple of the nodes."""

Changes = Callable[[Plan], list[Candidate]]
"""Plan → changes of one kind, from the smallest to the largest."""

Evaluated = Callable[[Candidate], Verdict | None]
"""Candidate → verdict; None where it cannot work."""


def _is_expensive(candidate: Candidate, plan: Plan, node: int) -> bool:
    """Whether a change takes more nodes, or tensor parallelism across nodes."""
    _, changed, nodes = candidate
    return nodes > 1 or changed.tp > max(plan.tp, node)


def _first(candidates: list[Candidate], evaluated: Evaluated) -> Remedy | None:
    """Return the first candidate that fits."""
    for candidate in candidates:
        verdict = evaluated(candidate)
        if verdict is not None and verdict.fits:
            return Remedy(*candidate, verdict)
    return None


def _with_more_nodes(plan: Plan, kinds: list[Changes], evaluated: Evaluated) -> list[Remedy]:
    """Return combinations, with more nodes, of changes that need more GPUs than there are."""
    nodes = kinds[-1]
    blocked = [kind for kind in kinds[:-1] if _smallest(kind(plan), evaluated)[1] == UNBOUNDED]
    pairs = (_combined(plan, [kind, nodes], 2, evaluated) for kind in blocked)
    return [each for several in pairs for each in several]


def _combined(
    plan: Plan, kinds: list[Changes], together: int, evaluated: Evaluated
) -> list[Remedy]:
    """Return combinations of changes that fit, each with the smallest changes that do.

    Of each combination of kinds, the changes that save most by themselves are evaluated first; only
    if they fit, smaller ones are.
    """
    found: list[Remedy] = []
    for chosen in islice(combinations(kinds, together), MAX_COMBINATIONS):
        rungs = [range(len(kind(plan))) for kind in chosen]
        best = _applied(plan, chosen, [_smallest(kind(plan), evaluated)[0] for kind in chosen])
        verdict = None if best is None else evaluated(best)
        if verdict is not None and verdict.fits:
            smallest = sorted(product(*rungs), key=sum)
            steps = (_applied(plan, chosen, each) for each in smallest)
            remedy = _first([each for each in steps if each is not None], evaluated)
            if remedy is not None:
                found.append(replace(remedy, together=together))
        if len(found) == ENOUGH_COMBINATIONS:
            break
    return found


def _smallest(candidates: list[Candidate], evaluated: Evaluated) -> tuple[int, int]:
    """Return the index of the candidate that takes least memory, and its bytes."""
    peaks = [
        UNBOUNDED if (verdict := evaluated(each)) is None else verdict.peak for each in candidates
    ]
    return peaks.index(min(peaks)), min(peaks)


UNBOUNDED = 1 << 62
"""Bytes taken by what cannot work: more than by anything that can."""


def _applied(plan: Plan, kinds: Sequence[Changes], rungs: Sequence[int]) -> Candidate | None:
    """Return the plan changed by one change of each kind; None if one has no use after others."""
    words, nodes = [], 1
    for kind, rung in zip(kinds, rungs, strict=True):
        candidates = kind(plan)
        if rung >= len(candidates):
            return None
        word, plan, times = candidates[rung]
        words.append(word)
        nodes *= times
    return ", ".join(words), plan, nodes


def _kinds(plan: Plan, which: str, node: int) -> list[Changes]:
    """Kinds of changes that a plan leaves room for, the cheapest first."""
    kinds: list[Changes] = []
    if which in ("megatron", "ddp") and plan.zero == 0:
        kinds.append(lambda p: _keys(p, {"zero": 1}))
    if which == "deepspeed":
        kinds.append(
            lambda p: [each for zero in range(p.zero + 1, 3) for each in _keys(p, {"zero": zero})]
        )
    if plan.tp > 1 and not plan.sequence_parallel:
        kinds.append(lambda p: _keys(p, {"sp": True}))
    if plan.framework.kernels == "eager":
        kinds.append(lambda p: _keys(p, {"framework.kernels": "flash"}))
    if plan.recompute.granularity == "none":
        kinds.append(lambda p: _keys(p, {RECOMPUTE: "selective"}))
    kinds.append(_micro_batches)
    kinds.append(lambda p: _grouped(p, "tp", lambda size: size <= node))
    kinds.append(lambda p: _grouped(p, "ep", lambda size: size <= node))
    kinds.append(lambda p: _grouped(p, "pp", lambda size: True))
    if plan.recompute.granularity != "full" or plan.recompute.layers is not None:
        kinds.append(lambda p: _keys(p, {RECOMPUTE: "full", "recompute.layers": None}))
    if plan.zero < 3:
        style = "deepspeed" if which == "deepspeed" else "fsdp"
        kinds.append(lambda p: _keys(p, {"framework.dp_style": style, "zero": 3}))
    kinds.append(lambda p: _grouped(p, "cp", lambda size: True))
    kinds.append(lambda p: _grouped(p, "ep", lambda size: size > node))
    kinds.append(lambda p: _grouped(p, "tp", lambda size: size > node))
    kinds.append(lambda p: [_more_nodes(p, times) for times in _powers_of_two()])
    return [kind for kind in kinds if kind(plan)]


def _keys(plan: Plan, keys: Mapping[str, Any]) -> list[Candidate]:
    """Change keys; nothing where the plan itself refuses."""
    given = {key: value for key, value in keys.items() if value is not None}
    words = ", ".join(f"{short_key(key)} = {_toml(value)}" for key, value in given.items())
    try:
        return [(words, with_keys(plan, keys), 1)]
    except InputError:
        return []


def _micro_batches(plan: Plan) -> list[Candidate]:
    smaller = [plan.micro_batch // times for times in _powers_of_two() if times <= plan.micro_batch]
    return [each for size in smaller for each in _keys(plan, {"micro_batch": size})]


def _grouped(plan: Plan, axis: str, allowed: Callable[[int], bool]) -> list[Candidate]:
    """Multiply tp, pp, cp or ep where the new size is allowed."""
    return [
        each
        for times in _powers_of_two()
        if allowed(getattr(plan, axis) * times)
        for each in _multiplied(plan, axis, times)
    ]


def _multiplied(plan: Plan, axis: str, times: int) -> list[Candidate]:
    """Multiply tp, pp, cp or ep on the same number of GPUs.

    A dp that was given shrinks, except for ep: experts are spread over the replicas there are.
    """
    keys = {axis: getattr(plan, axis) * times}
    if plan.dp is not None and axis != "ep":
        if plan.dp % times:
            return []
        keys["dp"] = plan.dp // times
    return _keys(plan, keys)


def _more_nodes(plan: Plan, times: int) -> Candidate:
    """Take more nodes; the new ranks are data parallel."""
    changed = plan if plan.dp is None else replace(plan, dp=plan.dp * times)
    return f"{times} times the nodes", changed, times


def _less_offload(plan: Plan, which: str) -> list[Candidate]:
    """Leave less on the host: a smaller share where the framework has one, else parameters alone.

    Then nothing of the optimizer, and of activations half, a quarter, …
    """
    offload, found = plan.offload, []
    if which == "megatron" or (which == "deepspeed" and plan.zero == 3 and not offload.parameters):
        shares = [share for share in (0.75, 0.5, 0.25) if share < offload.optimizer]
        found += [each for share in shares for each in _keys(plan, {"offload.optimizer": share})]
    if offload.parameters and which == "deepspeed":
        found += _keys(plan, {"offload.parameters": False})
    if offload.optimizer:
        others = [key for key in ("parameters", "overlap") if getattr(offload, key)]
        nothing: dict[str, Any] = {f"offload.{key}": False for key in others}
        found += _keys(plan, {"offload.optimizer": 0, **nothing})
    for times in _powers_of_two():
        if times <= offload.activations:
            found += _keys(plan, {"offload.activations": offload.activations // times})
    return found


def _offloaded(plan: Plan, which: str) -> list[Candidate]:
    """Offload to the host, as far as the framework can: the optimizer before the parameters."""
    if plan.offload.optimizer:
        return []
    optimizer = {"offload.optimizer": 1}
    everything = optimizer | {"offload.parameters": True}
    sharded = {"zero": 1} if not plan.zero else {}  # states that ranks share are offloaded
    if which == "fsdp":
        return _keys(plan, everything)
    if which == "megatron" and plan.zero <= 1:
        return _keys(plan, sharded | optimizer)
    if which == "deepspeed":
        more = _keys(plan, everything) if plan.zero == 3 else []
        return _keys(plan, sharded | optimizer) + more
    return []


def _powers_of_two() -> list[int]:
    return [2**i for i in range(1, MAX_MULTIPLE.bit_length())]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
