"""Model, GPUs → plans that `starting_plan` tries, each with the bytes that a GPU needs at least.

Tensor parallelism inside a node, stages of a pipeline, experts over GPUs, recomputation, and
parameters sharded by FSDP; data parallelism alone where the model has one split.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..experiment import ClusterChoice, Model, Plan, Transformer, with_keys
from ..experiment.model_counts import feed_forward_matrices, parameters
from ..experiment.models import Cnn
from ..experiment.plan_keys import PRECISION, RECOMPUTE, nested
from ..experiment.profile_filling import filled
from ..kernels import Gpu
from ..memory.states import FP32
from ..topo import Cluster, find_cluster

__all__ = ["PlanTarget", "candidate_plans", "plan_of_keys", "sequences_as_one"]

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

SEQUENCES, SEQUENCES_A_STAGE = 8, 4
"""Sequences of a replica in a step without a pipeline; of each stage with one."""

SHORT, USUAL = 1024, 4096
"""Tokens below which sequences are short; as many of those as have together the tokens of a usual
one count as one, in a micro-batch and in a step."""

FROZEN_BYTES = 2
"""Bytes that a parameter takes at least where adapters alone are trained."""

SHARDED_BYTES, REPLICATED_BYTES = 3 * FP32, 6
"""Bytes of a parameter on Megatron-LM that data-parallel ranks shard, and that each keeps."""


class PlanTarget(NamedTuple):
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


def candidate_plans(
    model: Model, target: PlanTarget
) -> Iterator[list[tuple[dict[str, Any], float]]]:
    """Model, GPUs → keys of plans and the bytes that each needs at least, list by list.

    Any plan of a list that fits is preferred to those of the next.

    Parameters
    ----------
    model : Model
    target : PlanTarget
    """
    if not isinstance(model, Transformer):
        yield list(_batches(model, target.gpus))
        return
    yield _candidates(model, target, _splits(model, target)) + _sharded(model, target, (1,))
    uneven = _splits(model, target, FURTHER_STAGES)
    yield _candidates(model, target, (each for each in uneven if each[1] in FURTHER_STAGES))
    yield _sharded(model, target, (size for size in _tensor_sizes(model, target) if size > 1))


def _candidates(
    model: Transformer, target: PlanTarget, splits: Iterable[tuple[int, int, int]]
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
        sequences = (SEQUENCES if pp == 1 else SEQUENCES_A_STAGE * pp) * sequences_as_one(model)
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
    model: Transformer, target: PlanTarget, sizes: Iterable[int]
) -> list[tuple[dict[str, Any], float]]:
    """Return keys of plans of FSDP with tensor parallelism of some sizes, as `_candidates` does."""
    # A framework that is named keeps its own way of sharding.
    named = bool(target.framework.get("name"))
    usual = plan_of_keys(model, {"global_batch": target.gpus}, target).framework.dp_style
    precision = _precision(target.gpu)
    if (named and usual != "fsdp") or model.experts or precision == "fp32":
        return []
    least = parameters(model) * (FROZEN_BYTES if model.lora_rank else 4 * FP32) / target.gpus
    tokens = model.layers * model.seq_len * model.hidden
    found: list[tuple[dict[str, Any], float]] = []
    for tp in sizes:
        dp = target.gpus // tp
        if dp > 1 and target.gpus % tp == 0:
            batch = SEQUENCES * sequences_as_one(model) * dp
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
    model: Transformer, target: PlanTarget, uneven: Collection[int] = UNEVEN_STAGES
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


def _tensor_sizes(model: Transformer, target: PlanTarget) -> Iterator[int]:
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


def sequences_as_one(model: Transformer) -> int:
    """Model → how many sequences count as one: of short ones the power of two that fits in."""
    length = model.seq_len
    return 1 if length >= SHORT else 1 << (USUAL // length).bit_length() - 1


def plan_of_keys(model: Model, keys: Mapping[str, Any], target: PlanTarget) -> Plan:
    """Keys of a plan → the plan, with what the profile of the framework adds."""
    full = {key if key.startswith("framework.") else f"plan.{key}": keys[key] for key in keys}
    tables = nested(full)
    tables["framework"] = {**target.framework, **tables.get("framework", {})}
    tables["cluster"] = {"preset": target.name, "gpus": target.gpus}
    _, set_by = filled(tables, model, "", with_model=False)
    added = {key.removeprefix("plan."): each.value for key, each in set_by.items()}
    lists = {key: tuple(value) for key, value in added.items() if isinstance(value, list)}
    return with_keys(Plan(keys["global_batch"]), {**added, **lists, **keys})


def _precision(gpu: Gpu) -> str:
    """Return the narrowest of the usual formats that a GPU has."""
    return next(each for each in ("bf16", "fp16", "fp32") if each in gpu.formats)
