"""Prediction → its uncertainty with sources, its assumptions, and what is not modelled.

Each becomes an attribute of the results. `program_statements` does the same for program files
without an experiment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.quantity import PICOSECONDS
from ..base.text import format_value, percentage
from ..engine.run import Run
from ..experiment import Cnn, Dlrm, Experiment, Plan, Transformer, VariationChoice
from ..experiment.plan_keys import short_key
from ..program import Program
from ..topo import Cluster, find_cluster
from ..topo.speeds import nic_bottleneck
from ..workloads.input_pipeline import image_side
from ..workloads.transformer.core_attention import MATRIX_UNIT_LOAD
from .circuits import set_up_notes
from .framework_lines import dispatcher_lines, profile_lines
from .hardware import link_excess
from .network import NetworkCache, NetworkRequest
from .path_shares import PathShares
from .prepared import PreparedExperiment, prepare
from .published import compare_published
from .quantities import values_now, why_not
from .step_constants import model_class
from .uncertainty import Uncertainty, at_least_a_library, error_bar
from .unused_keys import equivalent, unused_keys
from .unused_network_keys import same_communications, unused_network_keys

if TYPE_CHECKING:
    from ..engine import RunSetup
    from ..overlap import OverlapSummary
    from .prepared_program import PreparedProgram

__all__ = [
    "METHOD",
    "OVERLAP_SLOWDOWN",
    "describe_random_factors",
    "network_notes",
    "scale_lines",
    "statements",
    "uncertainty_lines",
]

OVERLAP_SLOWDOWN = "the slowdown of kernels and communications that overlap"

NOT_MODELLED = (
    OVERLAP_SLOWDOWN,
    "clocks that fall while kernels run back to back, but for products, attention, convolutions",
    "packets: communications that share a link share its bandwidth fairly and at once",
)

METHOD = (
    "one standard deviation, first order along the critical path, inputs independent of each other "
    "(error bars and sources: mpisim/data)"
)
"""How error bars are made."""

MIN_LISTED_EFFECT = 0.0005
"""Relative effect on the step time below which a number is not listed by itself."""


def statements(
    prepared: PreparedExperiment,
    run: Run,
    defaults: Mapping[str, object],
    overlap: OverlapSummary | None = None,
    shares: PathShares | None = None,
) -> dict[str, Any]:
    """Return the statements of a prediction, as attributes of its results. Local.

    Parameters
    ----------
    prepared : PreparedExperiment
    run : Run
        With its critical path.
    defaults : mapping of str to value
        Keys the experiment did not give, with the values taken instead.
    overlap : OverlapSummary, optional
        The slowdown of what overlaps, if that was modelled.
    shares : PathShares, optional
        Of the run, if known.

    Returns
    -------
    dict
        ``throughput`` (for people), ``tokens`` (of models without: ``images``, ``samples``) and
        ``model_flops`` of the step, ``utilisation`` (of the GPUs' dense
        peak), ``uncertainty`` (relative, one standard deviation),
        ``uncertainty_method``, as lists of texts ``uncertainty_sources``, ``assumptions``,
        ``not_modelled`` and ``memory`` (a table), and ``memory_peak``, ``memory_error`` (one
        standard deviation) and ``memory_capacity`` in bytes; ``published``, where the experiment
        gives published figures; and the entries of `OverlapSummary.statements`.
    """
    bar = error_bar(prepared, run, overlap=overlap, shares=shares)
    seconds = run.step_time / PICOSECONDS
    work, plan = prepared.workload, prepared.experiment.plan
    peak = prepared.peak / work.layout.grid.world
    a_gpu = work.flops / seconds / work.layout.grid.world
    model = prepared.experiment.model
    words = model.samples == "sequences"
    rate = f"{digits(plan.global_batch / seconds)} {model.samples}/s"
    if words:
        rate = f"{work.tokens / seconds:,.0f} tokens/s ({rate})"
    attributes = {
        "throughput": (
            f"{rate}, {a_gpu / 1e12:.0f} TFLOP/s a GPU, {percentage(a_gpu / peak, 1)} of its dense "
            f"{prepared.format} peak"
        ),
        "tokens" if words else model.samples: work.tokens,
        "model_flops": float(work.flops),
        "executed_flops": float(work.executed_flops),
        "utilisation": a_gpu / peak,
        "uncertainty": bar.relative,
        "uncertainty_method": (
            f"{METHOD}; model error: what steps have shown that were not fitted"
        ),
        "uncertainty_sources": uncertainty_lines(bar),
        "assumptions": _assumptions(prepared, run, defaults),
        "not_modelled": [
            *(each for each in NOT_MODELLED if overlap is None or each != OVERLAP_SLOWDOWN),
            *_input_not_modelled(prepared),
            *_jitter_not_modelled(prepared),
        ],
        "memory": [*prepared.memory.text().splitlines(), *prepared.advice],
        "memory_peak": prepared.memory.peak,
        "memory_error": prepared.memory.worst.error,
        "memory_capacity": prepared.memory.capacity,
        **({} if overlap is None else overlap.statements()),
    }
    found = compare_published(
        prepared.experiment, seconds, {**attributes, "gpus": work.layout.grid.world}
    )
    return {**({"published": [str(each) for each in found]} if found else {}), **attributes}


def _assumptions(
    prepared: PreparedExperiment, run: Run, defaults: Mapping[str, object]
) -> list[str]:
    """Prepared experiment, run and defaults → what was taken for granted, a line each."""
    experiment = prepared.experiment
    return [
        prepared.cluster.title,
        prepared.gpu.title,
        *_link_excess(prepared),
        *prepared.notes,
        *([] if experiment.guess is None else experiment.guess.notes),
        *_unused_constants(prepared),
        *scale_lines(prepared),
        *unused_keys(prepared),
        *_plan_assumptions(experiment),
        *profile_lines(experiment, at_least_a_library=at_least_a_library(prepared)),
        *dispatcher_lines(experiment, prepared.workload.layout.grid),
        *_rank_assumptions(prepared),
        *_input_lines(prepared),
        *prepared.host.lines(experiment.plan),
        *network_notes(
            prepared.cluster,
            prepared.program,
            _network_request(experiment),
            prepared.networks,
            run.setup,
        ),
        *(
            f"{short_key(key)} = {format_value(value)} (default)"
            for key, value in defaults.items()
            if _worth_listing(key, value, prepared)
        ),
    ]


def digits(number: float) -> str:
    """Return a number with four digits or more, and never with an exponent."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:,.4g}"


def uncertainty_lines(found: Uncertainty) -> list[str]:
    """Return the parts of an error bar, as lines. Local."""
    return [
        f"{each.name} ± {percentage(each.error)} on {percentage(each.share, 1)} of the step: "
        f"± {percentage(each.effect, 1)}"
        for each in found.effects
        if each.effect >= MIN_LISTED_EFFECT
    ]


def _link_excess(prepared: PreparedExperiment) -> list[str]:
    """Say that links are faster than the GPUs', unless ``[scale]`` asks for that."""
    experiment = prepared.experiment
    if "link_bandwidth" in experiment.scale.changes or experiment.kernels.gpu is not None:
        return []
    found = link_excess(prepared.cluster, prepared.gpu)
    return [] if found is None else [found]


def network_notes(
    cluster: Cluster,
    program: Program,
    request: NetworkRequest,
    networks: NetworkCache,
    setup: RunSetup | None = None,
) -> list[str]:
    """Return bottleneck of the NICs, notes of the network and its unused keys, as lines. Local.

    Parameters
    ----------
    cluster : Cluster
        With the speeds that were given.
    program : Program
    request : NetworkRequest
    networks : NetworkCache
        Networks that are not in it yet are built and added.
    setup : RunSetup, optional
        Of a run of the program; link sharing found there is not worked out again.
    """
    limit = (
        nic_bottleneck(cluster) if request.nodes > 1 and request.choice.model == "nccl" else None
    )
    return [
        *([] if limit is None else [limit]),
        *getattr(request.network(networks), "notes", ()),
        *set_up_notes(program, request.network(networks)),
        *unused_network_keys(program, request, networks, setup),
    ]


def _network_request(experiment: Experiment) -> NetworkRequest:
    choice = experiment.cluster
    return NetworkRequest(
        find_cluster(choice.preset),
        choice.nodes,
        experiment.network,
        choice.speeds,
        Path(experiment.source).parent,
        experiment.scale,
    )


def _plan_assumptions(experiment: Experiment) -> list[str]:
    """The assumptions behind the plan's keys, given or not."""
    plan = experiment.plan
    products = f"{plan.precision.products} matrix products"
    if isinstance(experiment.model, Transformer):
        products += f", {'fused' if plan.framework.kernels == 'flash' else 'unfused'} attention"
    elif plan.precision.convolutions is not None:
        products += f", convolutions in {plan.precision.convolutions}"
        if "plan.precision.convolutions" in experiment.defaulted:
            products += " (as PyTorch lets cuDNN by default)"
    return [
        f"{products}, {'fused' if plan.framework.fused else 'elementary'} elementwise kernels",
        "kernels one after another on one stream; each kind of communicator on a stream of its own",
        *_more_layers_than_there_are(experiment),
        *_wide_experts(experiment),
    ]


def _wide_experts(experiment: Experiment) -> list[str]:
    """Say that frozen experts are not in 4 bits, where a plan keeps frozen matrices so."""
    plan, model = experiment.plan, experiment.model
    if plan.precision.frozen is None or not isinstance(model, Transformer):
        return []
    if not model.experts or plan.experts == "modules":
        return []
    why = "bitsandbytes packs nn.Linear alone (framework.moe_experts = 'modules')"
    return [f"plan.precision.frozen: routed experts stay in 16 bits, {why}"]


def _more_layers_than_there_are(experiment: Experiment) -> list[str]:
    """Say that fewer layers are recomputed than the plan asks for: no chunk has as many."""
    plan, layers = experiment.plan, experiment.plan.recompute.layers
    if layers is None or not isinstance(experiment.model, Transformer):
        return []
    even = -(-experiment.model.layers // (plan.pp * plan.vpp))
    most = max(plan.pipeline.stages, default=even)
    if layers <= most:
        return []
    has = f"no part of the pipeline has more than {most} layers"
    return [f"plan.recompute.layers is {layers}, but {has}: all of them"]


def _unused_constants(prepared: PreparedExperiment) -> list[str]:
    """Say that step constants are not applied, where the file names some but they do not fit."""
    given = prepared.experiment.calibration.file is not None
    if not given or model_class(prepared.experiment.model) != "experts":
        return []
    what = "constants fitted to steps do not apply to models with experts or recurrences"
    return [f"calibration.file: {what}"]


def _rank_assumptions(prepared: PreparedExperiment) -> list[str]:
    """Say how ranks differ, or that they are taken to be equal."""
    choice, layout = prepared.experiment.variation, prepared.workload.layout
    lines = ["neighbouring ranks share a node"]
    if layout.gpu_of is not None:
        pricings = prepared.workload.pricings
        count = np.bincount(layout.gpu_of, minlength=len(pricings)).tolist()
        names = [each.model.gpu.title for each in pricings]
        gpus = ", ".join(f"{n:,} × {name}" for n, name in zip(count, names, strict=True))
        lines.append(f"GPUs: {gpus}; links as if all were the first")
    if layout.shorter:
        lines.append("replicas have batches of their own; gradients are averaged over sequences")
    varies = describe_random_factors(choice)
    if varies is not None:
        lines.append(varies)
    else:
        same = "" if choice.speeds else " at the same speed"
        if choice.waits_for_slowest:
            same = " at the speed of the slowest GPU to be expected"
        lines.append(f"ranks of a stage with the same GPU do the same work{same}")
    return lines


def describe_random_factors(choice: VariationChoice) -> str | None:
    """Return the random factors of a run as one line; None if there are none. Local."""
    if not choice.random:
        return None
    return (
        f"random factors on kernels: standard deviation {choice.kernels:.3g} each, "
        f"{choice.gpus:.3g} a GPU (lognormal, mean 1, seed {choice.seed})"
    )


def _input_lines(prepared: PreparedExperiment) -> list[str]:
    """Say how fast the host prepares images, if it does."""
    found = prepared.input_pipeline
    return [] if found is None else [found.text]


def _input_not_modelled(prepared: PreparedExperiment) -> list[str]:
    """Say which parts of loading samples are not modelled."""
    experiment = prepared.experiment
    if prepared.input_pipeline is None:
        key = " ([data] images)" if image_side(experiment.model) is not None else ""
        return [f"input pipeline{key}, checkpoints"]
    lines = ["reading of files from storage, checkpoints"]
    if experiment.data.loader == "dali-gpu":
        lines.append("what nvJPEG takes of the GPU")
    if experiment.variation.speeds or experiment.variation.random:
        lines.append("loaders that do not slow down with their GPUs ([variation])")
    return lines


def _jitter_not_modelled(prepared: PreparedExperiment) -> list[str]:
    """Say which differences between GPUs are not modelled."""
    choice = prepared.experiment.variation
    if choice.random or choice.speeds:
        return []
    slow = "" if choice.waits_for_slowest else " and slow GPUs"
    return [f"jitter{slow} ([variation])"]


def scale_lines(prepared: PreparedExperiment | PreparedProgram) -> list[str]:
    """Factors of ``[scale]`` → a line each; of one without effect it gives the reason. Local.

    Parameters
    ----------
    prepared : PreparedExperiment or PreparedProgram
    """
    applies = values_now(prepared)
    lines = []
    for key, factor in prepared.experiment.scale.changes.items():
        effect = "not as it is"
        if key == "memory":
            effect = "no effect on the step, only on whether it fits"
        elif key not in applies:
            effect = f"no effect, {why_not(key, prepared)}"
        elif isinstance(prepared, PreparedExperiment) and not _scale_is_used(key, prepared):
            effect = "no effect, nothing that this step does depends on it"
        lines.append(f"scale.{key} = {factor:g}: {effect}")
    return lines


def _scale_is_used(key: str, prepared: PreparedExperiment) -> bool:
    """Whether a factor that applies to the cluster changes any communication or kernel."""
    experiment = prepared.experiment
    if key not in ("link_bandwidth", "nic_bandwidth", "pcie_bandwidth", "switch_bandwidth"):
        return True
    plain = replace(experiment, scale=replace(experiment.scale, **{key: 1.0}))
    one, other = _network_request(experiment), _network_request(plain)
    if not same_communications(prepared.program, one, other, prepared.networks):
        return True
    # Copies from and to the host's memory are kernels, which take PCIe.
    return key == "pcie_bandwidth" and not equivalent(prepared, prepare(plain))


def _worth_listing(key: str, value: object, prepared: PreparedExperiment) -> bool:
    """Whether a default is listed among the assumptions: it may have changed the step time."""
    if value is not True and value in (None, False, 0, 1, (), {}):
        return False
    if key.startswith("prices."):  # no step time depends on them
        return False
    if key.startswith("data."):
        return prepared.input_pipeline is not None and key != "data.images"
    experiment, grid = prepared.experiment, prepared.workload.layout.grid
    plan, model = experiment.plan, experiment.model
    transformer, images = isinstance(model, Transformer), isinstance(model, Cnn)
    mixture = isinstance(model, Transformer) and model.experts > 0
    staged = plan.pp > 1 and plan.style(transformer=transformer) == "fsdp"
    rotary = isinstance(model, Transformer) and (
        model.position == "rotary" or model.attention == "mla"
    )
    scaled = transformer and plan.precision.products in ("fp8", "nvfp4")
    conditions = {
        **{
            key: scaled for key in experiment.defaulted if key.rpartition(".")[2].startswith("fp8_")
        },
        "framework.recipe": False,
        "framework.gradients_ready": plan.framework.cycle_time is not None,
        "framework.sp_style": plan.tp > 1,
        "plan.overlap.dp": grid.dp * grid.cp > 1,
        "framework.rotary": rotary,
        "plan.order": sum(size > 1 for size in (plan.tp, plan.cp, plan.ep, plan.pp)) > 0,
        "plan.pipeline.schedule": plan.pp > 1,
        "plan.pipeline.run": plan.pp > 1,
        "framework.cp_style": plan.cp > 1,
        "plan.overlap.tp_scatter": plan.overlap.tp,
        "plan.overlap.dgrad": plan.tp > 1 and not plan.sequence_parallel,
        "framework.broadcast_buffers": images
        and plan.style(transformer=transformer) == "ddp"
        and plan.framework.reducer == "pytorch",
        "framework.divides_buckets": grid.dp * grid.cp > 1 and plan.framework.reducer == "pytorch",
        "framework.kernels": transformer,
        "framework.attention": transformer and plan.framework.kernels == "flash",
        "framework.unaligned": isinstance(model, Transformer) and _unaligned(model, plan),
        "framework.scores_softmax": transformer
        and plan.framework.kernels == "eager"
        and (plan.framework.fused or plan.framework.scores_softmax == "operations"),
        "framework.norm_fusion": images,
        "framework.image_layout": images,
        "plan.moe_imbalance": mixture,
        "framework.moe_dispatcher": mixture and plan.ep > 1,
        "framework.moe_multihot_fusion": mixture
        and plan.ep > 1
        and plan.framework.moe_dispatcher == "flex",
        "framework.moe_balance": mixture and plan.ep > 1 and plan.framework.dispatches_by_kernels,
        "framework.moe_capacity_factor": mixture and plan.framework.moe_dispatcher == "one-hot",
        "framework.moe_router": mixture and plan.experts != "modules",
        "framework.moe_router_fusion": mixture
        and plan.style(transformer=transformer) == "megatron",
        "plan.precision.dispatch": mixture and plan.ep > 1,
        "framework.reshard_after_forward": plan.zero == 3,
        "framework.leaf_modules": mixture
        and plan.experts == "modules"
        and plan.zero == 3
        and plan.style(transformer=transformer) == "deepspeed",
        "framework.wrap_layers": plan.zero == 3,
        "framework.end_units": plan.zero == 3,
        "framework.loss_chunks": plan.zero == 3 and transformer,
        "framework.loss_gradient": isinstance(model, Transformer) and _one_loss(model, plan),
        "framework.fused_norms": transformer,
        "framework.prefetch": plan.zero == 3 or staged,
        "framework.fsdp_pipeline": staged,
        "plan.precision.main_parameters": plan.weight_format != "fp32"
        and plan.style(transformer=transformer) in ("ddp", "fsdp"),
        "plan.precision.moments": transformer and plan.weight_format != "fp32",
        "plan.tables.inputs": isinstance(model, Dlrm) and grid.dp > 1,
        "plan.tables.sharder": isinstance(model, Dlrm) and not plan.tables.placement,
        "network.contention": experiment.network.model == "nccl",
        "overlap.passes": experiment.overlap.model == "coupled",
    }
    return conditions.get(key, True)


def _unaligned(model: Transformer, plan: Plan) -> bool:
    """Whether products of scores in memory have sizes that matrix units do not load at once."""
    widths = (model.head, model.value_head, model.seq_len, model.decoder_seq_len or 0)
    odd = any(2 * width % MATRIX_UNIT_LOAD for width in widths)
    return plan.framework.kernels == "eager" and plan.weight_format != "fp32" and odd


def _one_loss(model: Transformer, plan: Plan) -> bool:
    """Whether the loss is a fused cross-entropy over a whole vocabulary."""
    framework = plan.framework
    whole = model.family != "vit" and not model.cutoffs and plan.tp == 1
    other = framework.eager_loss or framework.compiled_loss
    return whole and framework.fuses_loss and not other
