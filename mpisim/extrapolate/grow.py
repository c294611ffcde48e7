"""A traced step, a plan and a cluster → the program of all ranks, and what it rests on.

    traced step ─► network (.network) ─► layout, blocks, tables (mpisim.workloads) ─► program

The plan's keys are those of ``[plan]`` and ``[framework]`` of an experiment, and mean the same.
What they leave open follows from the trace: the format of weights, the micro-batch, and the layers
of each pipeline stage, which are balanced by their measured times.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache, partial
from typing import Any, Literal

import numpy as np

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import Z_90, Quantity
from ..base.schema import build
from ..experiment import ClusterChoice, Experiment, Plan, with_keys
from ..experiment.load import plan_of
from ..experiment.plan_keys import nested, with_sub_tables
from ..experiment.traced import Traced
from ..kernels import KernelModel, find_gpu, gpu_name, gpu_names
from ..kernels.analytical import analytical_model
from ..kernels.counted import COUNTED, kept_kernels
from ..kernels.gpu_parameters import GpuParameters
from ..kernels.operations import Copy, Kernel
from ..kernels.recorded import Recorded, RecordedKernels
from ..kernels.scaled import rated_gpu
from ..prediction.hardware import gpu_kinds
from ..prediction.program_statements import SAMPLES, TOKENS
from ..prediction.variation import FACTOR_NAME, slowest_factor
from ..program import Program
from ..replay.error import differences
from ..topo import find_cluster
from ..workloads import Layout, Workload, lay_out, training_step
from ..workloads.grid import Grid
from ..workloads.operators import Network
from ..workloads.pricing import Pricing
from .captured_step import priced_for
from .context_parallel import check_context
from .expert_parallel import check_experts, experts_of
from .gpu_traces import steps_by_gpu
from .kineto_step import unknown_operators
from .layers import balanced
from .li_scaling import FILE, LiScaling, lines_of
from .network import growth_of, passed_on, traced_network
from .split import Split
from .step import TracedKernel, TracedStep
from .tensor_parallel import splits_of
from .threads import as_threads

__all__ = ["Extrapolated", "Target", "extrapolate", "plan_for", "several_gpus"]

SHARED = ("host_gap", "launch_call", "launch_latency")
"""Numbers of a GPU that launches of kernels depend on which were not traced."""

CPU = "the CPU's times, as traced"
"""Name of their error bar."""


@frozen
class Target:
    """Where a traced step is to run, and how.

    Attributes
    ----------
    cluster : str
        A name of ``mpisim list clusters``, or the path of a file.
    plan : mapping of str to object
        Keys of ``[plan]``, those of ``[framework]`` with their table's name.
    batch : int, optional
        Samples of the step on all GPUs; by default each replica's share is the traced batch.
    sequence : int, optional
        Tokens of a sample; as traced if not given.
    gpu : str, optional
        GPU in place of the cluster's.
    other_gpus : mapping of str to str
        Nodes with other GPUs, as ``"4-7"`` → ``"a100-sxm"``.
    source : str
        What messages call the plan.
    threads : bool
        Whether data parallelism is by threads of one process (``torch.nn.DataParallel``).
    scaling : {"kernel-model", "li"}
        What scales measured times to other sizes and GPUs: the ratio of the kernel model, or of
        Li's regression lines over the trace's own kernels.
    upload : bool
        Whether each micro-batch begins with the copy of its input from the host, which the trace
        does not show.
    traces : mapping of str to TracedStep
        The same step as recorded on other GPUs of the job, by the GPU's name: ranks that have such
        a GPU do as its trace says.
    """

    cluster: str
    plan: Mapping[str, Any]
    batch: int | None = None
    sequence: int | None = None
    gpu: str | None = None
    threads: bool = False
    other_gpus: Mapping[str, str] = field(default_factory=dict)
    source: str = "--plan"
    scaling: Literal["kernel-model", "li"] = "kernel-model"
    upload: bool = False
    traces: Mapping[str, TracedStep] = field(default_factory=dict)


@frozen
class Extrapolated:
    """A traced step at another scale.

    Attributes
    ----------
    step : TracedStep
    target : Target
    workload : Workload
        Its layout, with the network, and its program.
    program : Program
        The same, with the attribute that says what its times rest on.
    nodes : int
        Of the cluster.
    assumptions : tuple of str
        Lines for people.
    """

    step: TracedStep
    target: Target
    workload: Workload
    program: Program
    nodes: int
    assumptions: tuple[str, ...]


def extrapolate(step: TracedStep, target: Target) -> Extrapolated:
    """Return the program of a traced step at another scale. Local.

    Parameters
    ----------
    step : TracedStep
    target : Target

    Raises
    ------
    InputError
        If trace, plan and cluster do not go together; the message names the key.
    """
    cluster = find_cluster(target.cluster)
    if target.sequence is not None and step.sequence is None:
        raise InputError(
            f"--seq-len is {target.sequence}, but how many tokens a sample of {step.source} has is "
            "not known: its first layer looks up no embeddings"
        )
    step = priced_for(step, target.gpu or cluster.gpu)
    if step.priced and target.scaling == "li":
        raise InputError(
            f"{step.source}: --scaling li fits lines to measured times, and a captured program has "
            "none"
        )
    if target.traces and target.scaling == "li":
        raise InputError("--scaling li fits lines to one trace; traces of several GPUs are given")
    if target.upload:
        _check_upload(step, target)
    plan = plan_for(step, target)
    experts = experts_of(step)
    check_experts(step, plan, experts)
    check_context(step, plan, target.sequence)
    world = plan.tp * plan.pp * plan.cp * (plan.dp or 1)
    nodes = -(-world // cluster.gpus_per_node)
    choice = ClusterChoice(
        target.cluster, nodes=nodes, gpus=world, other_gpus=dict(target.other_gpus)
    )
    named_gpu = target.gpu or cluster.gpu
    named = dict.fromkeys((named_gpu, *target.other_gpus.values()))
    kinds = gpu_kinds(choice, cluster, {name: find_gpu(name) for name in named})
    steps = steps_by_gpu(step, target.traces, tuple(named))
    lines = lines_of(step, find_gpu(step.gpu)) if target.scaling == "li" else None

    def model_of(name: str) -> KernelModel:
        found = analytical_model(rated_gpu(find_gpu(name)))
        return found if lines is None else LiScaling(found, lines)

    traced = {each.gpu: model_of(each.gpu) for each in steps}
    slowest = (FACTOR_NAME, slowest_factor(world)) if world > 1 else None
    models = [
        RecordedKernels(
            traced[each.gpu] if gpu_name(name) == each.gpu else model_of(name),
            traced[each.gpu],
            slowest,
        )
        for name, each in zip(named, steps, strict=True)
    ]
    networks = {
        each.source: partial(
            _network,
            each,
            target,
            splits_of(each, plan.tp, sequence=plan.sequence_parallel) if plan.tp > 1 else {},
        )
        for each in (step, *steps)
    }
    of_kind = np.array([list(networks).index(each.source) for each in steps])
    first, *others = networks.values()
    experiment = Experiment(
        model=Traced(
            step.source,
            step.batch,
            step.format,
            first,
            tuple(others),
            None if kinds is None else of_kind[kinds],
        ),
        plan=plan,
        cluster=choice,
        title=f"{step.source} on {world} GPU{'s' if world > 1 else ''}",
        source=step.source,
    )
    layout = lay_out(experiment, world, kinds)
    workload = training_step(layout, *models)
    assumptions = (
        *_assumptions(step, target, plan, layout, dict(zip(named, steps, strict=True))),
        *(() if lines is None else lines.notes),
    )
    unchanged = world == 1 and plan.micro_batch == plan.global_batch == step.batch
    unchanged = unchanged and not target.upload and target.sequence in (None, step.sequence)
    unchanged = unchanged and gpu_name(named_gpu) == step.gpu
    text = _counted(
        workload,
        models,
        assumptions,
        priced=step.priced,
        splits_used=plan.tp > 1,
        unchanged=unchanged,
        alone=world == 1,
    )
    of_step = {SAMPLES: str(plan.global_batch)}
    if step.sequence:
        of_step[TOKENS] = str(workload.tokens)
    program = workload.program.replace(
        attributes={
            **workload.program.attributes,
            COUNTED: text,
            "extrapolated": step.source,
            **of_step,
        }
    )
    return Extrapolated(step, target, workload, program, nodes, assumptions)


def _check_upload(step: TracedStep, target: Target) -> None:
    """Refuse to add an upload of the input where there is one."""
    tasks = [task for one in step.operators for task in one.forward]
    copies = [
        kernel.bytes
        for task in tasks
        if isinstance(task, TracedKernel)
        for kernel in task.kernels
        if isinstance(kernel, Copy) and kernel.path == "host"
    ]
    if 2 * max(copies, default=0) >= passed_on(step.operators):
        raise InputError(
            f"--upload is given, but {step.source} has a copy of {max(copies):,} bytes from the "
            "host in its forward pass: the input is uploaded already"
        )
    if target.threads:
        raise InputError("--upload is given; --threads scatters the input from the first GPU")


def _network(
    step: TracedStep, target: Target, splits: Mapping[int, Split], plan: Plan, grid: Grid
) -> Network:
    found = traced_network(
        step, plan, grid, sequence=target.sequence, splits=splits, upload=target.upload
    )
    if not target.threads:
        return found
    growth = growth_of(step, plan, target.sequence)
    return as_threads(found, step, growth.activations, grid.dp)


# --- the plan -------------------------------------------------------------------------------------


def plan_for(step: TracedStep, target: Target) -> Plan:
    """Return the plan of a target, with what it leaves open as the trace has it.

    Parameters
    ----------
    step : TracedStep
    target : Target

    Raises
    ------
    InputError
        If keys are unknown or contradict each other, or the batch cannot be shared.
    """
    keys = dict(target.plan)
    if "global_batch" in keys:
        raise InputError(
            f"{target.source}: global_batch is given; --batch says how many samples a step has"
        )
    if target.threads:
        axes = ("pp", "tp", "cp", "ep", "etp")
        others = [key for key in (*axes, "zero", "framework.dp_style") if key in keys]
        if others or "micro_batch" in keys:
            key = (*others, "micro_batch")[0]
            raise InputError(
                f"{target.source}: {key} is given; threads of one process (--threads) have dp"
            )
    for key in ("dp", "pp", "vpp", "tp", "cp", "ep", "etp"):
        size = keys.get(key, 1)
        if not isinstance(size, int) or size < 1:
            raise InputError(
                f"{target.source}: {key} is {size!r}; it must be a whole number, 1 or more"
            )
    tp, cp = keys.get("tp", 1), keys.get("cp", 1)
    pp, experts = keys.get("pp", 1), bool(experts_of(step))
    # Experts are spread over the ranks of a stage, however these share the rest.
    spread = keys.get("ep", 1) * (keys.get("etp", tp) if experts else 1)
    dp = keys.setdefault("dp", spread // math.gcd(spread, tp * cp))
    batch = target.batch if target.batch is not None else step.batch * dp
    if batch % dp:
        raise InputError(f"{batch} samples cannot be shared by {dp} data-parallel replicas")
    keys.setdefault("micro_batch", _micro_batch(batch // dp, pp))
    if tp == 1:
        keys.pop("sp", None)
    else:
        keys.setdefault("sp", experts)  # tokens are routed by one rank alone
    keys.setdefault("clip", False)
    keys.setdefault("precision.products", step.format)
    style = "fsdp" if keys.get("zero", 0) in (2, 3) else "ddp"
    keys.setdefault("framework.dp_style", style)
    in_plan = {f"plan.{key}": value for key, value in keys.items() if not _of_framework(key)}
    in_plan |= {key: value for key, value in keys.items() if _of_framework(key)}
    tables = with_sub_tables(nested({"plan.global_batch": batch, **in_plan}), target.source)
    plan = plan_of(tables, target.source)
    parts = plan.pp * plan.vpp
    if parts > 1 and not plan.pipeline.stages:
        plan = with_keys(plan, {"pipeline.stages": _stages(step, parts)})
    return plan


def _of_framework(key: str) -> bool:
    return key.startswith("framework.")


def _micro_batch(batch: int, pp: int) -> int:
    """Return the micro-batch of a replica: all of its samples, or in a pipeline 1/(4 pp) of them,
    or as near to that as whole numbers allow."""
    if pp == 1:
        return batch
    counts = [n for n in range(pp, 4 * pp + 1) if batch % n == 0]
    counts = counts or [n for n in range(1, batch + 1) if batch % n == 0]
    return batch // max(each for each in counts if each <= 4 * pp)


def _stages(step: TracedStep, parts: int) -> tuple[int, ...]:
    """Return the blocks of each part of a pipeline, balanced by measured time."""
    layers = step.layers()
    outside = {*step.embedding, *step.head}
    blocks = [sum(each.duration for each in ops) for name, ops in layers if name not in outside]
    if len(blocks) < parts:
        raise InputError(
            f"pp × vpp is {parts}, but {step.source} has {len(blocks)} layers that a pipeline can "
            "be cut between"
        )
    ends = {name: sum(each.duration for each in ops) for name, ops in layers if name in outside}
    blocks[0] += sum(ends[name] for name in step.embedding)
    blocks[-1] += sum(ends[name] for name in step.head)
    return tuple(balanced(blocks, parts))


# --- what it rests on -----------------------------------------------------------------------------


def _counted(
    workload: Workload,
    models: Sequence[KernelModel],
    assumptions: tuple[str, ...],
    *,
    priced: bool,
    splits_used: bool,
    unchanged: bool,
    alone: bool,
) -> str:
    """Return the attribute that says what the program's times depend on.

    The CPU's times are those of one step. In another one they differ, as recorded steps do; those
    of a captured job, and gaps between kernels that a plan adds, are the GPU's. On several GPUs the
    step is off by what no part of it stands for, as published factors have shown.
    """
    shares: dict[tuple[str, int], Mapping[str, float]] = {}
    for pricing in workload.pricings:
        shares |= pricing.shares
    used = {number for each in shares.values() for number in each}
    numbers: dict[str, float] = {}
    for model in models:
        for name, quantity in model.numbers.items():
            if name in used:
                numbers[name] = max(numbers.get(name, 0.0), quantity.error)
    numbers |= {name: getattr(models[0].gpu, name).error for name in SHARED}
    host: dict[str, float] = {} if unchanged else {CPU: 1.0}
    gaps: list[tuple[int, dict[str, float]]] = []
    if not unchanged:
        numbers[CPU] = differences()[0].si / Z_90  # replay.toml bounds nine of ten errors
    if priced:
        host = dict(workload.pricings[0].host_shares)
    if priced or not unchanged:
        for name in ("graph_gap", "kernel_gap"):
            numbers[name] = max(getattr(model.gpu, name).error for model in models)
        for pricing in workload.pricings:
            gaps += [(pricing.graph_gap, {"graph_gap": 1.0}), (pricing.gap, {"kernel_gap": 1.0})]
    missing = [
        "the CPU's work for what the plan adds, but for launches; the Python of the traced step is "
        "kept as recorded",
        "memory: whether the plan fits is not checked",
    ]
    if priced:
        missing[0] = "the CPU's own work: data loading, the script's Python beside launches"
    if splits_used:
        missing.append("layouts that a split changes: copies that make parts of tensors contiguous")
    return json.dumps(
        {
            "numbers": numbers,
            "shares": [[name, at, dict(rest)] for (name, at), rest in shares.items()],
            "host": host,
            "launch": {"launch_latency": 1.0} if priced else {},
            "gap": gaps,
            **(_kernels(workload.pricings) if priced else {}),
            "assumptions": list(assumptions),
            "not_modelled": missing,
            "left_out": 0.0 if alone else several_gpus().error,
        }
    )


def _kernels(pricings: Sequence[Pricing]) -> dict[str, Any]:
    """Return what kernels compute, for their slowdown beside communications; of one kind of GPU."""
    name = GpuParameters.of(pricings[0].model.gpu).name
    if len(pricings) > 1 or name not in gpu_names():
        return {}
    kernels: dict[tuple[str, int], Kernel] = {}
    for key, kernel in pricings[0].kernels.items():
        if not isinstance(kernel, Recorded):
            kernels[key] = kernel
        elif len(kernel.now) == 1:
            kernels[key] = kernel.now[0]
    return {"kernels": kept_kernels(kernels), "gpu": name}


@cache
def several_gpus() -> Quantity:
    """Return how far steps are off that were extrapolated from one GPU to several, as a factor."""
    return build(Quantity, packaged(FILE)["several_gpus"], FILE, "several_gpus")


def _assumptions(
    step: TracedStep,
    target: Target,
    plan: Plan,
    layout: Layout,
    gpus: Mapping[str, TracedStep],
) -> tuple[str, ...]:
    others = [name for name, each in gpus.items() if gpu_name(name) != each.gpu]
    kernels = step.kernel_time / 1e9
    title = find_gpu(step.gpu).title
    lines = [
        f"extrapolated from {step.source}: one step of {step.batch} samples on {title}, "
        f"{step.measured / 1e9:,.3f} ms, of which kernels {kernels:,.3f} ms",
        f"{len(step.layers())} layers, {sum(p.elements for p in step.parameters):,} parameters in "
        f"{len(step.parameters)} tensors, by the gradients that were accumulated",
        *step.notes,
    ]
    if step.priced:
        lines[0] = (
            f"extrapolated from {step.source}: a captured step of {step.batch} samples, of which "
            f"no kernel was measured: all are priced for {title} by their shapes, "
            f"{kernels:,.3f} ms together; launches and gaps are the GPU's"
        )
    if layout.grid.world > 1:
        lines.append(
            f"the traced GPU is taken for a typical one; of {layout.grid.world} the slowest sets "
            "the pace of products"
        )
    if plan.micro_batch != step.batch and not step.priced:
        lines.append(
            f"micro-batches of {plan.micro_batch} samples: measured times × the ratio of the "
            "kernel model at both sizes; launches as traced"
        )
    if target.sequence is not None and target.sequence != step.sequence:
        lines.append(f"samples of {target.sequence} tokens in place of {step.sequence}, likewise")
    for name in () if step.priced else others:
        title = find_gpu(name).title
        lines.append(f"measured times × the ratio of the kernel model on {title}; CPU as traced")
    for name, each in gpus.items():
        if each is not step:
            lines += [
                f"ranks on {find_gpu(name).title} do as {each.source} has it, a step of "
                f"{each.batch} samples, of which kernels {each.kernel_time / 1e9:,.3f} ms",
                *(f"{each.source}: {note}" for note in each.notes),
            ]
    lines += [
        f"nodes {nodes} have {find_gpu(name).title}" for nodes, name in target.other_gpus.items()
    ]
    if plan.pp > 1:
        lines.append(
            f"layers of each part of the pipeline: {list(plan.pipeline.stages)}; between parts "
            "goes the largest input of the layer behind"
        )
    if plan.tp > 1:
        lines.append(
            "tensor parallelism: columns and rows as Megatron-LM where matrices pair, else outputs "
            "divided and gathered; "
            + (
                "what lies between such pairs has a share of the tokens"
                if plan.sequence_parallel
                else "what is not divided every rank computes"
            )
        )
    if plan.cp > 1:
        lines.append(
            f"context parallelism ({plan.framework.cp_style}): {plan.cp} ranks have a share of "
            "each sequence; kernels of attention × the ratio of the kernel model for the queries "
            "and keys of each part"
        )
    if experts_of(step) and plan.ep * plan.expert_tp > 1:
        over = f"spread over {plan.ep} ranks" if plan.ep > 1 else ""
        split = f"each split over {plan.expert_tp}" if plan.expert_tp > 1 else ""
        lines.append(
            f"experts {', '.join(filter(None, (over, split)))}: as many rows for each rank, tokens "
            "exchanged as Megatron-LM's all-to-all dispatcher does, which sends their counts first"
        )
    if target.upload:
        lines.append("each micro-batch begins with the copy of the first layer's input over PCIe")
    if target.threads:
        lines.append(
            "torch.nn.DataParallel: threads share one interpreter, whose lock the CPU's whole work "
            "of the forward pass is taken to hold (an upper limit)"
        )
    if not step.optimizer:
        lines.append("the trace has no optimizer: none is added")
    elif plan.zero or plan.pp > 1 or plan.tp > 1:
        lines.append("the optimizer's kernels × each rank's share of the parameters")
    unknown = unknown_operators(step)
    if unknown and (plan.micro_batch != step.batch or others or plan.tp > 1):
        named = ", ".join(f"{name} ({count})" for name, count in unknown.most_common(5))
        lines.append(f"operators without a rule, scaled by the bytes of their tensors: {named}")
    return tuple(lines)
