"""Model, cluster, number of GPUs → a plan to start from, that fits.

Splits of the model (tensor parallelism inside a node, stages, experts over GPUs), recomputation and
sharded parameters are put in the order of the least time that a sequence can take with them
(`mpisim.search.bound`), and tried by the memory model. Of those that fit the one with the least
closer bound is taken, or one that is split less and is as fast within what plans of equal
predictions were measured to differ by. With that split larger micro-batches and model chunks are
tried, and taken if they are faster by more than that. It is no search for the fastest plan: nothing
is simulated, and what the bound leaves out (gradients that are exchanged, links that are shared,
launches) does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import product
from math import inf
from typing import Any, NamedTuple

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.quantity import GIB
from ..base.text import counted
from ..experiment import ClusterChoice, Experiment, Model, Plan, Transformer, with_keys
from ..experiment.model_counts import feed_forward_matrices, parameters
from ..experiment.models import Cnn
from ..experiment.plan_keys import PRECISION, RECOMPUTE, nested
from ..experiment.profile_filling import filled
from ..kernels import Gpu, find_gpu
from ..memory import Verdict, assess, capacity
from ..memory.states import FP32
from ..prediction.hardware import Hardware, hardware_of
from ..prediction.uncertainty import unshared_share
from ..topo import Cluster, find_cluster
from ..workloads import lay_out
from .bound import StepBounds

__all__ = ["StartingPlan", "starting_plan"]

MAX_PLANS = 200
"""Plans that are tried before the report says that none fits."""

MAX_MULTIPLE = 1024
"""Multiple of the GPUs that is tried at most where no plan fits."""

MAX_TP = 8
"""GPUs of a tensor-parallel group, also where nodes have more."""

ACCOUNT_FOR_ENDS = ("pipeline.account_for_embedding", "pipeline.account_for_loss")
"""Keys that make the first and the last stage a layer shorter."""

MIN_LAYER_BYTES, MIN_CHECKPOINT_BYTES = 12, 2
"""Bytes that a layer keeps at least of a token and channel, and that it keeps to be computed again;
the first stage of a pipeline keeps as many micro-batches as there are stages."""

UNEVEN_STAGES = (2, 4, 8, 16, 32)
"""Stages that layers are also spread over unevenly."""

FURTHER_STAGES = tuple(n for n in range(3, max(UNEVEN_STAGES)) if n not in UNEVEN_STAGES)
"""Stages that layers are spread over unevenly where no other plan fits."""

MAX_HOPELESS_PLANS = 8
"""Plans, of those that take least, that are tried where none can fit."""

MAX_MICRO_BATCH, CHUNKS = 4, (1, 2, 4)
"""Sequences of a micro-batch at most (powers of two are tried with the split chosen), and the model
chunks of a stage that are tried."""

SEQUENCES, SEQUENCES_A_STAGE = 8, 4
"""Sequences of a replica in a step without a pipeline; of each stage with one."""

SHORT, USUAL = 1024, 4096
"""Tokens below which sequences are short; as many of those as have together the tokens of a usual
one count as one, in a micro-batch and in a step."""

FROZEN_BYTES = 2
"""Bytes that a parameter takes at least where adapters alone are trained."""

SHARDED_BYTES, REPLICATED_BYTES = 3 * FP32, 6
"""Bytes of a parameter on Megatron-LM that data-parallel ranks shard, and that each keeps."""


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


class _Target(NamedTuple):
    """The GPUs that a plan is to run on."""

    name: str
    cluster: Cluster
    gpus: int
    gpu: Gpu
    framework: Mapping[str, Any]

    @property
    def choice(self) -> ClusterChoice:
        node = self.cluster.gpus_per_node
        given = None if node == find_cluster(self.name).gpus_per_node else node
        nodes = -(-self.gpus // node)
        return ClusterChoice(self.name, nodes=nodes, gpus=self.gpus, gpus_per_node=given)


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
    target = _Target(name, cluster, gpus, find_gpu(cluster.gpu), framework or {})
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


def _more_gpus(model: Model, target: _Target) -> tuple[int, dict[str, Any]] | None:
    """Return how many GPUs have room for a model, and a plan for them."""
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


def _chosen(model: Model, target: _Target) -> tuple[_Candidate, _Candidate | None]:
    """Return the best plan that surely fits, else that fits, else the one that takes least.

    With it the last plan that is faster by the bound and does not fit. Unusual numbers of stages
    and FSDP with tensor parallelism are tried where nothing else fits: the second gathers
    parameters from other nodes for every micro-batch, of which the bound knows nothing.
    """
    least: list[_Candidate] = []
    for candidates in _kinds(model, target):
        found, before = _best(model, target, candidates) if candidates else (None, None)
        if found is not None and found.verdict.fits:
            return found, before
        least += [] if found is None else [found]
    if not least:
        raise InputError(
            f"{target.gpus} GPUs of {target.name!r}: no plan divides the model evenly among them"
        )
    return min(least, key=lambda each: each.verdict.peak), None


def _kinds(model: Model, target: _Target) -> Iterator[list[tuple[dict[str, Any], float]]]:
    """Yield plans as of `_candidates`, first those of which any that fits is preferred."""
    if not isinstance(model, Transformer):
        yield list(_batches(model, target.gpus))
        return
    yield _candidates(model, target, _splits(model, target)) + _sharded(model, target, (1,))
    uneven = _splits(model, target, FURTHER_STAGES)
    yield _candidates(model, target, (each for each in uneven if each[1] in FURTHER_STAGES))
    yield _sharded(model, target, (size for size in _tensor_sizes(model, target) if size > 1))


def _best(
    model: Model, target: _Target, candidates: list[tuple[dict[str, Any], float]]
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


def _refined(model: Model, target: _Target, times: _Times, split: _Candidate) -> _Candidate:
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
    micro_batches = [1 << i for i in range((MAX_MICRO_BATCH * _packed(model)).bit_length())]
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

    def __init__(self, model: Model, target: _Target) -> None:
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
        plan = _plan(self._model, keys, self._target)
        experiment = Experiment(model=self._model, plan=plan, cluster=self._cluster)
        self._hardware = self._hardware or hardware_of(experiment)
        return bound(experiment, self._hardware) / plan.global_batch


def _packed(model: Transformer) -> int:
    """Return how many sequences count as one: of short ones the power of two that fits in."""
    length = model.seq_len
    return 1 if length >= SHORT else 1 << (USUAL // length).bit_length() - 1


def _split(keys: Mapping[str, Any]) -> int:
    """Return how many GPUs share a replica and its experts."""
    return int(keys.get("tp", 1) * keys.get("pp", 1) * keys.get("ep", 1))


def _plan(model: Model, keys: Mapping[str, Any], target: _Target) -> Plan:
    """Return a plan of keys, and of what the profile of the framework adds."""
    full = {key if key.startswith("framework.") else f"plan.{key}": keys[key] for key in keys}
    tables = nested(full)
    tables["framework"] = {**target.framework, **tables.get("framework", {})}
    tables["cluster"] = {"preset": target.name, "gpus": target.gpus}
    _, set_by = filled(tables, model, "", with_model=False)
    added = {key.removeprefix("plan."): each.value for key, each in set_by.items()}
    lists = {key: tuple(value) for key, value in added.items() if isinstance(value, list)}
    return with_keys(Plan(keys["global_batch"]), {**added, **lists, **keys})


def _verdict(model: Model, keys: dict[str, Any], target: _Target) -> Verdict:
    experiment = Experiment(model=model, plan=_plan(model, keys, target), cluster=target.choice)
    layout = lay_out(experiment, target.gpus)
    return assess(layout, target.gpu, node=target.cluster.gpus_per_node)


def _precision(gpu: Gpu) -> str:
    """Return the narrowest of the usual formats that a GPU has."""
    return next(each for each in ("bf16", "fp16", "fp32") if each in gpu.formats)


def _candidates(
    model: Transformer, target: _Target, splits: Iterable[tuple[int, int, int]]
) -> list[tuple[dict[str, Any], float]]:
    """Return keys of plans, each with a lower bound of its bytes."""
    total = parameters(model)
    routed = _routed(model)
    tokens = model.layers * model.seq_len * model.hidden
    found: list[tuple[dict[str, Any], float]] = []
    for tp, pp, ep in splits:
        dp = target.gpus // (tp * pp)
        held = (total - routed) / (tp * pp) + routed / (pp * ep)
        least = REPLICATED_BYTES * held
        least += SHARDED_BYTES * total / (target.gpus if dp > 1 else tp * pp)
        if model.lora_rank:
            least = FROZEN_BYTES * held
        sequences = (SEQUENCES if pp == 1 else SEQUENCES_A_STAGE * pp) * _packed(model)
        keys: dict[str, Any] = {"global_batch": sequences * dp, "micro_batch": 1}
        keys |= {"tp": tp, "pp": pp} | ({"ep": ep} if model.experts else {})
        if model.experts and tp > 1:
            keys["etp"] = 1
            # Megatron-LM asks for it beside experts, and does not set it.
            keys |= {"sp": True} if target.framework.get("name") else {}
        keys |= _spread(model.layers, pp)
        keys |= {"zero": 1} if dp > 1 else {}
        keys[PRECISION] = _precision(target.gpu)
        found += _with_recomputation(keys, least, tokens / tp)
    return _runnable(model, found)


def _sharded(
    model: Transformer, target: _Target, sizes: Iterable[int]
) -> list[tuple[dict[str, Any], float]]:
    """Return keys of plans of FSDP with tensor parallelism of some sizes, as `_candidates` does."""
    # A framework that is named keeps its own way of sharding.
    named = bool(target.framework.get("name"))
    usual = _plan(model, {"global_batch": target.gpus}, target).framework.dp_style
    precision = _precision(target.gpu)
    if (named and usual != "fsdp") or model.experts or precision == "fp32":
        return []
    least = parameters(model) * (FROZEN_BYTES if model.lora_rank else 4 * FP32) / target.gpus
    tokens = model.layers * model.seq_len * model.hidden
    found: list[tuple[dict[str, Any], float]] = []
    for tp in sizes:
        dp = target.gpus // tp
        if dp > 1 and target.gpus % tp == 0:
            batch = SEQUENCES * _packed(model) * dp
            keys = {"global_batch": batch, "micro_batch": 1, "framework.dp_style": "fsdp"}
            keys |= {"zero": 3, PRECISION: precision} | ({"tp": tp} if tp > 1 else {})
            found += _with_recomputation(keys, least, tokens / tp)
    return _runnable(model, found)


def _runnable(
    model: Transformer, found: list[tuple[dict[str, Any], float]]
) -> list[tuple[dict[str, Any], float]]:
    """Return plans with what a model needs besides."""
    # Shifted scores of Transformer-XL have no fused kernel.
    needed = {"framework.kernels": "eager"} if model.memory else {}
    return [(keys | needed, least) for keys, least in found]


def _with_recomputation(
    keys: dict[str, Any], least: float, kept: float
) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield a plan without recomputation and with it, and the bytes that each takes at least."""
    yield keys, least + MIN_LAYER_BYTES * kept
    yield keys | {RECOMPUTE: "full"}, least + MIN_CHECKPOINT_BYTES * kept


def _routed(model: Transformer) -> int:
    """Return a lower bound of the parameters of routed experts."""
    if not model.experts:
        return 0
    layers = sum(map(model.is_moe, range(model.layers)))
    routed = layers * feed_forward_matrices(model, model.experts * model.expert_ffn)
    return routed * (model.moe_latent or model.hidden) // model.hidden


def _splits(
    model: Transformer, target: _Target, uneven: Collection[int] = UNEVEN_STAGES
) -> Iterator[tuple[int, int, int]]:
    """Yield tensor, pipeline and expert parallel sizes that divide the model and the GPUs.

    Layers are spread unevenly over `uneven` numbers of stages alone.
    """
    gpus = target.gpus
    for tp in _tensor_sizes(model, target):
        for pp in range(1, 2 if model.family == "t5" else model.layers + 1):
            even = not (model.layers % pp and (model.layers + len(ACCOUNT_FOR_ENDS)) % pp)
            if gpus % (tp * pp) or not (even or pp in uneven):
                continue
            group = gpus // pp
            for ep in range(1, max(model.experts, 1) + 1):
                if not model.experts or not (model.experts % ep or group % ep):
                    yield tp, pp, ep


def _tensor_sizes(model: Transformer, target: _Target) -> Iterator[int]:
    """Yield tensor parallel sizes inside a node that divide the model."""
    most = min(MAX_TP, target.cluster.gpus_per_node)
    for tp in (size for size in (1, 2, 4, 8) if size <= most):
        uneven = (model.heads % tp, model.kv % min(tp, model.kv), model.ffn % tp)
        if not any(uneven) and not model.seq_len % tp:
            yield tp


def _spread(layers: int, pp: int) -> dict[str, Any]:
    """Return the keys that spread layers over stages.

    None if the stages divide the layers; embedding and head as a layer each if that divides; else
    the number of layers of each stage.
    """
    if layers % pp == 0:
        return {}
    slots = layers + len(ACCOUNT_FOR_ENDS)
    if slots % pp == 0:
        return dict.fromkeys(ACCOUNT_FOR_ENDS, True)
    # Stages in the middle get what is left over: the first keeps activations of most micro-batches.
    sizes = [slots // pp] * pp
    for i in range(slots % pp):
        sizes[pp // 2 + (-1) ** i * ((i + 1) // 2)] += 1
    sizes[0] -= 1
    sizes[-1] -= 1
    return {"pipeline.stages": tuple(sizes)}


def _batches(model: Model, gpus: int) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield plans of data parallelism alone, from the usual micro-batch to the smallest."""
    batch, optimizer = (64, "momentum") if isinstance(model, Cnn) else (2048, "sgd")
    while batch:
        keys = {"global_batch": batch * gpus, "micro_batch": batch}
        yield keys | {PRECISION: "fp32", "optimizer": optimizer}, 0.0
        batch //= 2


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
