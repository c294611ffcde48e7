"""A model, a cluster and a number of GPUs → a plan to start from, that fits.

Splits of the model are tried in the order of what they usually cost a step, by the memory model
itself, until one fits: tensor parallelism inside a node, then stages, experts over the GPUs of a
node, then over more, recomputation, and sharded parameters. It is no search for the fastest plan:
nothing is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log2
from typing import Any, NamedTuple

from ..base.errors import InputError
from ..experiment import ClusterChoice, Experiment, Model, Plan, Transformer
from ..experiment.models import Cnn
from ..kernels import Gpu, find_gpu
from ..topo import Cluster
from ..workloads import lay_out
from ..workloads.closed_forms import feed_forward_matrices, parameters
from .assess import assess
from .constants import capacity
from .states import FP32
from .verdict import GIB, Verdict

__all__ = ["Start", "starting_plan"]

MOST_TRIED = 40
"""Plans that are looked at before it is said that none fits."""

MOST_TIMES = 1024
"""Times the GPUs that are tried where none fits."""

LARGEST_TP = 8
"""GPUs of a tensor-parallel group, also where nodes have more."""

ENDS = ("account_for_embedding", "account_for_loss")
"""Keys that make the first and the last stage a layer shorter."""

COSTS = {
    "tp": 0.02,
    "tp of experts": 0.06,
    "pp": 0.06,
    "ep": 0.02,
    "far": 0.1,
    "full": 0.25,
    "fsdp": 0.15,
}
"""Shares of a step that candidates are put in order by, no predictions: of each doubling of tensor
parallelism (more beside experts, which it does not split), of stages (besides the bubble), of the
groups of experts, in a node and beyond; of computing activations again, a fourth of all products;
of gathering parameters."""

LEAST_OF_LAYER, LEAST_CHECKPOINT = 12, 2
"""Bytes that a layer keeps at least of a token and channel, and that it keeps to be computed again;
the first stage of a pipeline keeps as many micro-batches as there are stages."""

UNEVEN = (2, 4, 8, 16, 32)
"""Stages that layers are also spread over unevenly."""

LOOKED_AT = 8
"""Plans of which the one that takes least is named where none can fit."""

SHARED, KEPT = 3 * FP32, 6
"""Bytes of a parameter on Megatron-LM: what data-parallel ranks share, and what each keeps."""


@dataclass(frozen=True)
class Start:
    """A plan to start from.

    Attributes
    ----------
    keys : mapping
        Keys of ``[plan]``; what they leave out has its default. `dp` is never given: it is what
        remains of the GPUs, also when other sizes are changed.
    verdict : Verdict
        On it.
    why : tuple of str
        Sentences: what was chosen and why, or that nothing fits and what would.
    """

    keys: Mapping[str, Any]
    verdict: Verdict
    why: tuple[str, ...]


class _Where(NamedTuple):
    """What a plan is to run on."""

    name: str
    cluster: Cluster
    gpus: int
    gpu: Gpu

    @property
    def choice(self) -> ClusterChoice:
        node = self.cluster.gpus_per_node
        return ClusterChoice(self.name, nodes=-(-self.gpus // node), gpus=self.gpus)


class _Tried(NamedTuple):
    """A plan and the verdict on it."""

    keys: dict[str, Any]
    verdict: Verdict


def starting_plan(model: Model, name: str, cluster: Cluster, gpus: int) -> Start:
    """Choose a plan that fits, or the one that takes least.

    Parameters
    ----------
    model : Model
    name : str
        Of the cluster, as in ``[cluster] preset``.
    cluster : Cluster
    gpus : int
        To use.

    Returns
    -------
    Start
    """
    where = _Where(name, cluster, gpus, find_gpu(cluster.gpu))
    chosen, before = _chosen(model, where)
    verdict = chosen.verdict
    worst = verdict.worst
    needs = f"{worst.total / GIB:.1f} GiB ± {worst.error / GIB:.1f} of {verdict.capacity / GIB:.1f}"
    said = _words(chosen.keys)
    if verdict.fits:
        close = "" if verdict.certain else ", too close to be sure"
        why = [f"{said}: the fullest GPU needs {needs}{close}"]
        if before is not None:
            peak = before.verdict.peak / GIB
            why.append(f"what costs less does not fit: {_words(before.keys)} needs {peak:.1f} GiB")
        return Start(chosen.keys, verdict, tuple(why))
    why = [
        f"no plan that was tried fits into {gpus:,} GPUs of {name!r}; this one takes least, {said}:"
        f" {needs}"
    ]
    more = _more_gpus(model, where)
    if more is not None:
        number, keys = more
        why.append(f"{number:,} GPUs have room, with {_words(keys)}")
    return Start(chosen.keys, verdict, tuple(why))


def _more_gpus(model: Model, where: _Where) -> tuple[int, dict[str, Any]] | None:
    """Return how many GPUs have room for a model, and a plan for them."""
    if where.cluster.fabric is None:
        return None
    times = 2
    while times <= MOST_TIMES:
        larger = where._replace(gpus=where.gpus * times)
        found, _ = _chosen(model, larger)
        if found.verdict.fits:
            return larger.gpus, found.keys
        times *= 2
    return None


def _chosen(model: Model, where: _Where) -> tuple[_Tried, _Tried | None]:
    """Return the first plan that surely fits, else that fits, else that takes least; and the last
    one before it that does not."""
    candidates = _candidates(model, where)
    room = capacity(where.gpu)
    possible = [keys for keys, least in candidates if least <= room][:MOST_TRIED]
    if not possible:
        least_first = sorted(candidates, key=lambda each: each[1])
        possible = [keys for keys, _ in least_first[:LOOKED_AT]]
    close: _Tried | None = None
    least: _Tried | None = None
    before: _Tried | None = None
    for keys in possible:
        try:
            found = _Tried(keys, _verdict(model, keys, where))
        except InputError:
            continue
        if found.verdict.fits and found.verdict.certain:
            return found, before
        if found.verdict.fits:
            close = close or found
        else:
            before = found
        if least is None or found.verdict.peak < least.verdict.peak:
            least = found
    chosen = close or least
    if chosen is None:
        raise InputError(
            f"{where.gpus} GPUs of {where.name!r}: no plan divides the model evenly among them"
        )
    return chosen, before if close else None


def _verdict(model: Model, keys: dict[str, Any], where: _Where) -> Verdict:
    experiment = Experiment(model=model, plan=Plan(**keys), cluster=where.choice)
    layout = lay_out(experiment, where.gpus)
    return assess(layout, where.gpu, node=where.cluster.gpus_per_node)


def _candidates(model: Model, where: _Where) -> list[tuple[dict[str, Any], float]]:
    """Return plans, the cheapest first, each with a number of bytes that it takes at least."""
    precision = next(each for each in ("bf16", "fp16", "fp32") if each in where.gpu.formats)
    if not isinstance(model, Transformer):
        return list(_batches(model, where.gpus))
    total = parameters(model)
    routed = _routed(model)
    tokens = model.layers * model.seq_len * model.hidden
    found: list[tuple[float, dict[str, Any], float]] = []
    for tp, pp, ep in _splits(model, where):
        dp = where.gpus // (tp * pp)
        least = KEPT * ((total - routed) / (tp * pp) + routed / (pp * ep))
        least += SHARED * total / (where.gpus if dp > 1 else tp * pp)
        cost = COSTS["tp of experts" if model.experts else "tp"] * log2(tp) + COSTS["ep"] * log2(ep)
        cost += COSTS["far"] * max(0.0, log2(ep / where.cluster.gpus_per_node))
        micro_batches = 8 if pp == 1 else 4 * pp
        cost += (pp - 1) / (micro_batches + pp - 1) + COSTS["pp"] * log2(pp)
        keys: dict[str, Any] = {"global_batch": micro_batches * dp, "micro_batch": 1}
        keys |= {"tp": tp, "pp": pp} | ({"ep": ep} if model.experts else {})
        keys |= {"etp": 1} if model.experts and tp > 1 else {}
        keys |= _spread(model.layers, pp)
        keys |= {"zero": 1} if dp > 1 else {}
        keys["precision"] = precision
        found.append((cost, keys, least + LEAST_OF_LAYER * tokens / tp))
        again = keys | {"recompute": "full"}
        found.append((cost + COSTS["full"], again, least + LEAST_CHECKPOINT * tokens / tp))
    if not model.experts and where.gpus > 1 and precision != "fp32":
        keys = {
            "global_batch": 8 * where.gpus,
            "micro_batch": 1,
            "dp_style": "fsdp",
            "zero": 3,
            "precision": precision,
        }
        least = total * 4 * FP32 / where.gpus
        cost = COSTS["fsdp"] + COSTS["pp"] * max(0.0, log2(where.gpus / 8))
        found.append((cost, keys, least + LEAST_OF_LAYER * tokens))
        again = keys | {"recompute": "full"}
        found.append((cost + COSTS["full"], again, least + LEAST_CHECKPOINT * tokens))
    return [(keys, least) for _, keys, least in sorted(found, key=lambda each: each[0])]


def _routed(model: Transformer) -> int:
    """Return the parameters of routed experts, at least."""
    if not model.experts:
        return 0
    layers = (model.layers - model.dense_layers) // model.moe_every
    return layers * feed_forward_matrices(model, model.experts * model.expert_ffn)


def _splits(model: Transformer, where: _Where) -> Iterator[tuple[int, int, int]]:
    """Yield tensor, pipeline and expert parallel sizes that come out even."""
    gpus, node = where.gpus, where.cluster.gpus_per_node
    most = min(LARGEST_TP, node)
    for tp in (size for size in (1, 2, 4, 8) if size <= most):
        uneven = (model.heads % tp, model.kv % min(tp, model.kv), model.ffn % tp)
        if any(uneven) or model.seq_len % tp:
            continue
        for pp in range(1, 2 if model.family == "t5" else model.layers + 1):
            even = not (model.layers % pp and (model.layers + len(ENDS)) % pp)
            if gpus % (tp * pp) or not (even or pp in UNEVEN):
                continue
            group = gpus // pp
            for ep in range(1, max(model.experts, 1) + 1):
                if not model.experts or not (model.experts % ep or group % ep):
                    yield tp, pp, ep


def _spread(layers: int, pp: int) -> dict[str, Any]:
    """Return the keys that spread layers over stages: none if they come out even, by themselves or
    with embedding and head as a layer each; else how many each stage has."""
    if layers % pp == 0:
        return {}
    slots = layers + len(ENDS)
    if slots % pp == 0:
        return dict.fromkeys(ENDS, True)
    # Stages in the middle get what is left over: the first keeps activations of most micro-batches.
    sizes = [slots // pp] * pp
    for i in range(slots % pp):
        sizes[pp // 2 + (-1) ** i * ((i + 1) // 2)] += 1
    sizes[0] -= 1
    sizes[-1] -= 1
    return {"stages": tuple(sizes)}


def _batches(model: Model, gpus: int) -> Iterator[tuple[dict[str, Any], float]]:
    """Plans of data parallelism alone, from the usual micro-batch to the smallest."""
    batch, optimizer = (64, "momentum") if isinstance(model, Cnn) else (2048, "sgd")
    while batch:
        keys = {"global_batch": batch * gpus, "micro_batch": batch}
        yield keys | {"precision": "fp32", "optimizer": optimizer}, 0.0
        batch //= 2


def _words(keys: Mapping[str, Any]) -> str:
    """Say what of a plan decides over memory."""
    said = {key: keys[key] for key in ("tp", "pp", "ep") if keys.get(key, 1) > 1}
    words = [f"{key} = {value}" for key, value in said.items()]
    if "dp_style" in keys:
        words.append("dp_style = fsdp")
    elif keys.get("zero"):
        words.append("zero = 1")
    if "recompute" in keys:
        words.append("recompute = full")
    if "optimizer" in keys:
        words.append(f"micro_batch = {keys['micro_batch']}")
    return ", ".join(words) or "data parallelism alone"
