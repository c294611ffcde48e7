"""Key of a model, a plan or a framework → the condition under which it certainly has an effect.

Whether a key has an effect is found by making the step again (:mod:`.unused_keys`), which takes
time. Keys that are listed here need no trial where their condition holds.
"""

from __future__ import annotations

from collections.abc import Callable

from ..experiment import Dlrm, Experiment, Transformer

__all__ = ["EFFECTIVE_KEYS"]

Condition = Callable[[Experiment], bool]
"""Experiment → whether a key of `EFFECTIVE_KEYS` has an effect: it has experts, a pipeline, …"""


def _always(experiment: Experiment) -> bool:
    return True


def _transformer(experiment: Experiment) -> bool:
    return isinstance(experiment.model, Transformer)


def _replicated(experiment: Experiment) -> bool:
    """Whether there may be more than one data-parallel rank."""
    plan, cluster = experiment.plan, experiment.cluster
    gpus = cluster.gpus or cluster.nodes * cluster.node_gpus
    return plan.dp != 1 and gpus > plan.tp * plan.pp


def _experts(experiment: Experiment) -> bool:
    model = experiment.model
    return isinstance(model, Transformer) and model.experts > 0


def _dispatched(experiment: Experiment) -> bool:
    return _experts(experiment) and experiment.plan.experts != "modules"


def _dlrm(experiment: Experiment) -> bool:
    return isinstance(experiment.model, Dlrm)


def _sharded(experiment: Experiment) -> bool:
    return _dlrm(experiment) and not experiment.plan.tables.placement


def _pipeline(experiment: Experiment) -> bool:
    return experiment.plan.pp > 1


def _shared_evenly(experiment: Experiment) -> bool:
    return (
        _transformer(experiment) and _pipeline(experiment) and not experiment.plan.pipeline.stages
    )


def _exchange(experiment: Experiment) -> bool:
    return _experts(experiment) and experiment.plan.ep > 1


def _deep_ep(experiment: Experiment) -> bool:
    return _exchange(experiment) and experiment.plan.framework.moe_dispatcher == "flex"


def _copies_for_ranks(experiment: Experiment) -> bool:
    return _exchange(experiment) and experiment.plan.framework.dispatches_by_kernels


def _one_hot(experiment: Experiment) -> bool:
    return _experts(experiment) and experiment.plan.framework.moe_dispatcher == "one-hot"


def _leaves(experiment: Experiment) -> bool:
    plan = experiment.plan
    return (
        _experts(experiment)
        and plan.experts == "modules"
        and plan.zero == 3
        and plan.style(transformer=True) == "deepspeed"
    )


def _axes(experiment: Experiment) -> bool:
    plan = experiment.plan
    return sum(size > 1 for size in (plan.tp, plan.cp, plan.ep, plan.pp)) > 1


def _words(experiment: Experiment) -> bool:
    model = experiment.model
    return isinstance(model, Transformer) and model.family != "vit"


def _decoder(experiment: Experiment) -> bool:
    model = experiment.model
    return isinstance(model, Transformer) and model.family == "t5"


def _tensor(experiment: Experiment) -> bool:
    return experiment.plan.tp > 1


def _context(experiment: Experiment) -> bool:
    return experiment.plan.cp > 1


def _fused_attention(experiment: Experiment) -> bool:
    return _transformer(experiment) and experiment.plan.framework.kernels == "flash"


def _fused_norms(experiment: Experiment) -> bool:
    return _transformer(experiment) and experiment.plan.framework.fuses_norms


def _whole_layers(experiment: Experiment) -> bool:
    return _transformer(experiment) and not _tensor(experiment)


def _separate_projections(experiment: Experiment) -> bool:
    return _transformer(experiment) and experiment.plan.framework.separate_projections


def _recomputed_layers(experiment: Experiment) -> bool:
    return _transformer(experiment) and experiment.plan.recompute.granularity == "full"


def _fsdp(experiment: Experiment) -> bool:
    plan = experiment.plan
    return plan.zero == 3 and plan.style(transformer=_transformer(experiment)) == "fsdp"


def _fsdp_head(experiment: Experiment) -> bool:
    return _fsdp(experiment) and experiment.plan.framework.end_units


def _tensor_overlap(experiment: Experiment) -> bool:
    return experiment.plan.overlap.tp


def _fp8(experiment: Experiment) -> bool:
    return _transformer(experiment) and experiment.plan.precision.products == "fp8"


def _small_blocks(experiment: Experiment) -> bool:
    precision = experiment.plan.precision
    mxfp8 = precision.products == "fp8" and precision.fp8_scaling == "blocks"
    return _transformer(experiment) and (mxfp8 or precision.products == "nvfp4")


def _autocast(experiment: Experiment) -> bool:
    return _transformer(experiment) and experiment.plan.precision.autocast


def _computed_again(experiment: Experiment) -> bool:
    return _transformer(experiment) and experiment.plan.recompute.granularity != "none"


def _mla(experiment: Experiment) -> bool:
    model = experiment.model
    return isinstance(model, Transformer) and model.attention == "mla"


def _buckets(experiment: Experiment) -> bool:
    return experiment.plan.style(transformer=_transformer(experiment)) != "fsdp"


EFFECTIVE_KEYS: dict[str, Condition] = {
    **dict.fromkeys(
        (
            "plan.global_batch",
            "plan.micro_batch",
            "plan.replica_batch",
            "plan.tp",
            "plan.pp",
            "plan.cp",
            "plan.ep",
            "plan.dp",
            "plan.vpp",
            "plan.pipeline.stages",
            "framework.dp_style",
            "plan.precision",
            "plan.precision.gradients",
            "plan.optimizer",
            "plan.clip",
            "plan.offload.optimizer",
            "plan.offload.activations",
            "framework.fused",
            "framework.cuda_graphs",
            "framework.launch_blocking",
        ),
        _always,
    ),
    **dict.fromkeys(("plan.zero", "plan.overlap.dp"), _replicated),
    **dict.fromkeys(("plan.pipeline", "plan.pipeline.run", "plan.overlap.p2p"), _pipeline),
    **dict.fromkeys(
        ("plan.pipeline.account_for_embedding", "plan.pipeline.account_for_loss"), _shared_evenly
    ),
    **dict.fromkeys(("plan.sp", "plan.overlap.tp", "plan.overlap.dgrad"), _tensor),
    **dict.fromkeys(("plan.recompute", "framework.kernels"), _transformer),
    "plan.overlap.mirror": _pipeline,
    "plan.precision.autocast": _autocast,
    "framework.persistent_norms": _fused_norms,
    "framework.attention": _fused_attention,
    "framework.separate_projections": _whole_layers,
    "framework.fused_qkv": _separate_projections,
    "framework.stacked_layers": _recomputed_layers,
    **dict.fromkeys(
        (
            "framework.wrap_layers",
            "framework.reshard_after_forward",
            "framework.flat_shards",
            "framework.fully_shard",
            "framework.end_units",
        ),
        _fsdp,
    ),
    "framework.loss_chunks": _fsdp_head,
    **dict.fromkeys(("plan.overlap.tp_scatter", "plan.overlap.tp_pairs"), _tensor_overlap),
    **dict.fromkeys(("plan.precision.fp8_scaling", "framework.fp8_casts"), _fp8),
    "framework.scales_apart": _small_blocks,
    **dict.fromkeys(
        (
            "framework.moe_dispatcher",
            "framework.moe_router",
            "framework.moe_router_fusion",
        ),
        _dispatched,
    ),
    "framework.moe_experts": _experts,
    **dict.fromkeys(("plan.precision.dispatch", "plan.moe_imbalance"), _exchange),
    "framework.leaf_modules": _leaves,
    "framework.moe_multihot_fusion": _deep_ep,
    "framework.moe_balance": _copies_for_ranks,
    "framework.moe_capacity_factor": _one_hot,
    "plan.order": _axes,
    "framework.cp_style": _context,
    "plan.recompute.layers": _computed_again,
    "framework.bucket": _buckets,
    "plan.tables": _sharded,
    **dict.fromkeys(("plan.tables.placement", "plan.tables.inputs"), _dlrm),
    **dict.fromkeys(
        (
            "model.family",
            "model.preset",
            "model.hf_config",
            "model.parameters",
            "model.layers",
            "model.hidden",
            "model.heads",
            "model.seq_len",
            "model.kv_heads",
            "model.head_size",
            "model.ffn_hidden",
            "model.norm",
            "model.activation",
            "model.attention",
            "model.experts",
            "model.depth",
            "model.decoder_layers",
            "model.table_entries",
            "model.embedding",
            "model.bottom_mlp",
            "model.top_mlp",
            "model.dense_features",
            "model.shared_experts",
            "model.mtp_layers",
        ),
        _always,
    ),
    "model.vocab": _words,
    **dict.fromkeys(("model.pooling", "model.skew", "model.reuse"), _dlrm),
    "model.decoder_seq_len": _decoder,
    **dict.fromkeys(("model.topk", "model.moe_ffn_hidden", "model.dense_layers"), _experts),
    **dict.fromkeys(
        (
            "model.q_lora_rank",
            "model.kv_lora_rank",
            "model.qk_nope_head_size",
            "model.qk_rope_head_size",
            "model.v_head_size",
        ),
        _mla,
    ),
}
"""Keys that change the step of every experiment for which the condition holds."""
