"""Model, cluster, number of GPUs → a plan to start from, that fits.

Splits of the model, recomputation and sharded parameters (`mpisim.search.starting_candidates`) are
put in the order of the least time that a sequence can take with them (`mpisim.search.bound`), and
tried by the memory model. Of those that fit the one with the least
closer bound is taken, or one that is split less and is as fast within what plans of equal
predictions were measured to differ by. With that split larger micro-batches and model chunks are
tried, and taken if they are faster by more than that. It is no search for the fastest plan: nothing
is simulated, and what the bound leaves out (gradients that are exchanged, links that are shared,
launches) does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from math import inf
from typing import Any, NamedTuple

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.quantity import GIB
from ..base.text import counted
from ..experiment import Experiment, Model, Transformer
from ..experiment.plan_keys import RECOMPUTE
from ..kernels import find_gpu
from ..memory import Verdict, assess, capacity
from ..prediction.hardware import Hardware, hardware_of
from ..prediction.uncertainty import unshared_share
from ..topo import Cluster
from ..workloads import lay_out
from .bound import StepBounds
from .starting_candidates import PlanTarget, candidate_plans, plan_of_keys, sequences_as_one

__all__ = ["StartingPlan", "starting_plan"]

MAX_PLANS = 200
"""Plans that are tried before the report says that none fits."""

MAX_MULTIPLE = 1024
"""Multiple of the GPUs that is tried at most where no plan fits."""

MAX_HOPELESS_PLANS = 8
"""Plans, of those that take least, that are tried where none can fit."""

MAX_MICRO_BATCH, CHUNKS = 4, (1, 2, 4)
"""Sequences of a micro-batch at most (powers of two are tried with the split chosen), and the model
chunks of a stage that are tried."""


@frozen
class StartingPlan:
    """A plan to start from.

    Attributes
    ----------
    keys : mapping
        Keys of ``[plan]``; what they leave out has its default. `dp` is never given: it is what
        remains of the GPUs, also when other sizes are changed.
    verdict : Verdict
        On the plan.
    why : tuple of str
        Sentences: the choice and its reason, or that nothing fits and what would.
    """

    keys: Mapping[str, Any]
    verdict: Verdict
    why: tuple[str, ...]


class _Candidate(NamedTuple):
    """Keys of a plan, and the verdict on it."""

    keys: dict[str, Any]
    verdict: Verdict


def starting_plan(
    model: Model,
    name: str,
    cluster: Cluster,
    gpus: int,
    framework: Mapping[str, Any] | None = None,
) -> StartingPlan:
    """Model, cluster, GPUs → a plan that fits, or else the one that takes least.

    Parameters
    ----------
    model : Model
    name : str
        Of the cluster, as in ``[cluster] preset``.
    cluster : Cluster
        With as many GPUs of a node as are to be used.
    gpus : int
        To use.
    framework : mapping, optional
        The table ``[framework]``.
    """
    target = PlanTarget(name, cluster, gpus, find_gpu(cluster.gpu), framework or {})
    chosen, before = _chosen(model, target)
    verdict = chosen.verdict
    worst = verdict.worst
    needs = f"{worst.total / GIB:.1f} GiB ± {worst.error / GIB:.1f} of {verdict.capacity / GIB:.1f}"
    words = _words(chosen.keys)
    if verdict.fits:
        close = "" if verdict.certain else ", too close to be sure"
        why = [f"{words}: the fullest GPU needs {needs}{close}"]
        if before is not None:
            peak = before.verdict.peak / GIB
            faster = _words(before.keys)
            why.append(f"what could be faster does not fit: {faster} needs {peak:.1f} GiB")
        return StartingPlan(chosen.keys, verdict, tuple(why))
    why = [
        f"no plan that was tried fits into {counted(gpus, 'GPU')} of {name!r}; "
        f"this one takes least, {words}: {needs}"
    ]
    more = _more_gpus(model, target)
    if more is not None:
        number, keys = more
        why.append(f"{number:,} GPUs have room, with {_words(keys)}")
    return StartingPlan(chosen.keys, verdict, tuple(why))


def _more_gpus(model: Model, target: PlanTarget) -> tuple[int, dict[str, Any]] | None:
    """Model, target without room → number of GPUs that have room, and a plan for them."""
    if target.cluster.fabric is None:
        return None
    times = 2
    while times <= MAX_MULTIPLE:
        larger = target._replace(gpus=target.gpus * times)
        found, _ = _chosen(model, larger)
        if found.verdict.fits:
            return larger.gpus, found.keys
        times *= 2
    return None


def _chosen(model: Model, target: PlanTarget) -> tuple[_Candidate, _Candidate | None]:
    """Return the best plan that surely fits, else that fits, else the one that takes least.

    With it the last plan that is faster by the bound and does not fit. Unusual numbers of stages
    and FSDP with tensor parallelism are tried where nothing else fits: the second gathers
    parameters from other nodes for every micro-batch, of which the bound knows nothing.
    """
    least: list[_Candidate] = []
    for candidates in candidate_plans(model, target):
        found, before = _best(model, target, candidates) if candidates else (None, None)
        if found is not None and found.verdict.fits:
            return found, before
        least += [] if found is None else [found]
    if not least:
        raise InputError(
            f"{target.gpus} GPUs of {target.name!r}: no plan divides the model evenly among them"
        )
    return min(least, key=lambda each: each.verdict.peak), None


def _best(
    model: Model, target: PlanTarget, candidates: list[tuple[dict[str, Any], float]]
) -> tuple[_Candidate | None, _Candidate | None]:
    """Return the best of some plans as `_chosen` does, None if none can be; and what is faster."""
    room = capacity(target.gpu)
    possible = [keys for keys, least in candidates if least <= room]
    if not possible:
        least_first = sorted(candidates, key=lambda each: each[1])
        possible = [keys for keys, _ in least_first[:MAX_HOPELESS_PLANS]]
    close: _Candidate | None = None
    least: _Candidate | None = None
    before: _Candidate | None = None
    times = _Times(model, target)
    fitting: list[tuple[float, _Candidate]] = []
    alike = inf
    for time, keys in times.sorted(possible)[:MAX_PLANS]:
        if time > alike:
            break
        try:
            found = _Candidate(keys, _verdict(model, keys, target))
        except InputError:
            continue
        if found.verdict.fits and found.verdict.certain:
            closer = times.closer(keys)
            alike = min(alike, closer * (1 + unshared_share()))
            fitting.append((closer, found))
        elif fitting:
            continue
        elif found.verdict.fits:
            close = close or found
        else:
            before = found
        if least is None or found.verdict.peak < least.verdict.peak:
            least = found
    if fitting:
        fastest = [each for each in fitting if each[0] <= alike]
        split = min(fastest, key=lambda each: (_split(each[1].keys), each[0]))[1]
        return _refined(model, target, times, split), before
    return close or least, before if close else None


def _refined(model: Model, target: PlanTarget, times: _Times, split: _Candidate) -> _Candidate:
    """Return a plan with other micro-batches and model chunks, where these are surely faster.

    With as many samples in a step: larger micro-batches keep kernels busier, and are fewer, which
    makes the bubble of a pipeline longer; chunks make it shorter.
    """
    if not isinstance(model, Transformer):
        return split
    keys, best = split.keys, split
    pp = keys.get("pp", 1)
    even = pp > 1 and model.family != "t5" and model.layers % pp == 0
    alike = 1 + unshared_share()
    now = times.closer(keys)
    micro_batches = [
        1 << i for i in range((MAX_MICRO_BATCH * sequences_as_one(model)).bit_length())
    ]
    for vpp, micro_batch in product(CHUNKS, micro_batches):
        changed = {**keys, "micro_batch": micro_batch}
        if vpp > 1:
            if not even or model.layers % (pp * vpp):
                continue
            changed |= {"pipeline.schedule": "interleaved", "vpp": vpp}
        try:
            time = times.closer(changed)
            if time * alike >= now:
                continue
            found = _Candidate(changed, _verdict(model, changed, target))
        except InputError:  # micro-batches that do not divide the samples of a replica
            continue
        if found.verdict.fits and found.verdict.certain:
            now, best = time, found
    return best


class _Times:
    """Lower bounds of the ps that a sample takes with a plan; 0 for models that have one split."""

    def __init__(self, model: Model, target: PlanTarget) -> None:
        self._model, self._target, self._cluster = model, target, target.choice
        self._bounds = StepBounds()
        self._hardware: Hardware | None = None

    def sorted(self, plans: Iterable[dict[str, Any]]) -> list[tuple[float, dict[str, Any]]]:
        """Return plans with their times, the least first.

        Those that do not go together with the model or the cluster are left out.
        """
        found = []
        for keys in plans:
            try:
                found.append((self._time(keys, self._bounds.of), keys))
            except InputError:
                continue
        return sorted(found, key=lambda each: each[0])

    def closer(self, keys: dict[str, Any]) -> float:
        """Return a closer bound, which takes longer."""
        return self._time(keys, self._bounds.closer)

    def _time(self, keys: dict[str, Any], bound: Callable[[Experiment, Hardware], int]) -> float:
        if not isinstance(self._model, Transformer):
            return 0.0
        plan = plan_of_keys(self._model, keys, self._target)
        experiment = Experiment(model=self._model, plan=plan, cluster=self._cluster)
        self._hardware = self._hardware or hardware_of(experiment)
        return bound(experiment, self._hardware) / plan.global_batch


def _split(keys: Mapping[str, Any]) -> int:
    """Return how many GPUs share a replica and its experts."""
    return int(keys.get("tp", 1) * keys.get("pp", 1) * keys.get("ep", 1))


def _verdict(model: Model, keys: dict[str, Any], target: PlanTarget) -> Verdict:
    experiment = Experiment(
        model=model, plan=plan_of_keys(model, keys, target), cluster=target.choice
    )
    layout = lay_out(experiment, target.gpus)
    return assess(layout, target.gpu, node=target.cluster.gpus_per_node)


def _words(keys: Mapping[str, Any]) -> str:
    """Return the keys of a plan that decide over memory, as text."""
    given = {key: keys[key] for key in ("tp", "pp", "ep") if keys.get(key, 1) > 1}
    parts = [f"{key} = {value}" for key, value in given.items()]
    if "framework.dp_style" in keys:
        parts.append("dp_style = fsdp")
    elif keys.get("zero"):
        parts.append("zero = 1")
    if RECOMPUTE in keys:
        parts.append("recompute = full")
    if keys.get("vpp", 1) > 1:
        parts.append(f"vpp = {keys['vpp']}")
    if "optimizer" in keys or keys.get("micro_batch", 1) > 1:
        parts.append(f"micro_batch = {keys['micro_batch']}")
    return ", ".join(parts) or "data parallelism alone"
