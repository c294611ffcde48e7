"""A traced step, a plan and a cluster → the program of all ranks, and what it rests on.

    traced step ─► network (.network) ─► layout, blocks, tables (mpisim.workloads) ─► program

The plan's keys are those of ``[plan]`` and ``[framework]`` of an experiment, and mean the same.
What they leave open follows from the trace: the format of weights, the micro-batch, and the layers
of each pipeline stage, which are balanced by their measured times.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import Z_90, Quantity, picoseconds
from ..base.schema import build
from ..experiment import ClusterChoice, DataChoice, Experiment, Plan, with_keys
from ..experiment.framework import Style
from ..experiment.load import plan_of
from ..experiment.plan_keys import nested, with_sub_tables
from ..experiment.traced import Traced
from ..kernels import KernelModel, find_gpu, gpu_name, gpu_names
from ..kernels.analytical import analytical_model
from ..kernels.counted import COUNTED, kept_kernels
from ..kernels.gpu_parameters import GpuParameters
from ..kernels.operations import Kernel
from ..kernels.recorded import Recorded, RecordedKernels
from ..kernels.scaled import rated_gpu
from ..prediction.hardware import gpu_kinds
from ..prediction.program_statements import SAMPLES, TOKENS
from ..prediction.variation import FACTOR_NAME, slowest_factor
from ..program import Program
from ..replay.error import differences
from ..topo import find_cluster
from ..workloads import Workload, lay_out, training_step
from ..workloads.grid import Grid
from ..workloads.input_pipeline import (
    PREPARE,
    InputPipeline,
    input_pipeline,
    preparation_times,
)
from ..workloads.operators import LayerStack
from ..workloads.pricing import Pricing
from .assumptions import assumptions_of
from .captured_step import priced_for
from .context_parallel import check_context
from .expert_parallel import check_experts, experts_of
from .gpu_traces import steps_by_gpu
from .layers import balanced
from .li_scaling import FILE, Lines, LiScaling, lines_of
from .network import growth_of, traced_network
from .scans import context_not_modelled
from .split import Split
from .step import TracedOperator, TracedStep
from .target import Target
from .tensor_parallel import splits_of
from .threads import SCHEDULE, as_pipe, as_threads, check_threads, last_is_kept
from .traced_input import (
    check_data,
    input_lines,
    input_not_modelled,
    shows_upload,
    side_of_images,
)

__all__ = ["Extrapolated", "Target", "extrapolate", "several_gpus"]

OWN_STYLES = ("ddp", "fsdp")
"""Values of `framework.dp_style` that PyTorch implements itself."""

SHARED = ("host_gap", "launch_call", "launch_latency")
"""Numbers of a GPU that launches of kernels depend on which were not traced."""

CPU = "the CPU's times, as traced"
"""Name of their error bar."""


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
    step = _checked(step, target, target.gpu or cluster.gpu)
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
    gpus = dict(zip(named, steps_by_gpu(step, target.traces, tuple(named)), strict=True))
    lines = lines_of(step, find_gpu(step.gpu)) if target.scaling == "li" else None
    models = _models(gpus, lines, world)
    experiment = Experiment(
        model=_traced(step, target, plan, tuple(gpus.values()), kinds),
        plan=plan,
        cluster=choice,
        data=target.data or DataChoice(),
        title=f"{step.source} on {world} GPU{'s' if world > 1 else ''}",
        source=step.source,
    )
    workload = training_step(lay_out(experiment, world, kinds), *models)
    pipeline = input_pipeline(experiment, world // plan.pp)
    assumptions = (
        *assumptions_of(step, target, plan, world, gpus),
        *input_lines(step, target, pipeline, world),
        *(() if lines is None else lines.notes),
    )
    unchanged = world == 1 and plan.micro_batch == plan.global_batch == step.batch
    unchanged = (
        unchanged
        and not (target.upload or target.data)
        and target.sequence in (None, step.sequence)
    )
    unchanged = unchanged and gpu_name(named_gpu) == step.gpu
    text = _counted(
        workload,
        models,
        assumptions,
        priced=step.priced,
        splits_used=plan.tp > 1,
        context=context_not_modelled(step, plan),
        unchanged=unchanged,
        alone=world == 1,
        pipeline=pipeline,
        elsewhere=any(gpu_name(name) != each.gpu for name, each in gpus.items()),
    )
    added = {COUNTED: text, "extrapolated": step.source, SAMPLES: str(plan.global_batch)}
    if step.sequence:
        added[TOKENS] = str(workload.tokens)
    program = workload.program.replace(attributes={**workload.program.attributes, **added})
    if target.threads and plan.pp > 1 and plan.recompute.granularity != "none":
        program = last_is_kept(program)
    return Extrapolated(step, target, workload, program, nodes, assumptions)


def _checked(step: TracedStep, target: Target, gpu: str) -> TracedStep:
    """Return a step priced for a GPU if it was captured; refuse what it lacks for the target."""
    if target.sequence is not None and step.sequence is None:
        raise InputError(
            f"--seq-len is {target.sequence}, but how many tokens a sample of {step.source} has is "
            "not known: its first layer looks up no embeddings"
        )
    step = priced_for(step, gpu)
    if step.priced and target.scaling == "li":
        raise InputError(
            f"{step.source}: --scaling li fits lines to measured times, and a captured program has "
            "none"
        )
    if target.traces and target.scaling == "li":
        raise InputError("--scaling li fits lines to one trace; traces of several GPUs are given")
    if target.upload:
        _check_upload(step, target)
    check_data(step, target.data)
    return step


def _models(
    gpus: Mapping[str, TracedStep], lines: Lines | None, world: int
) -> list[RecordedKernels]:
    """Return the kernel model of each GPU of a job, by the step that its ranks do as."""

    def model_of(name: str) -> KernelModel:
        found = analytical_model(rated_gpu(find_gpu(name)))
        return found if lines is None else LiScaling(found, lines)

    traced = {each.gpu: model_of(each.gpu) for each in gpus.values()}
    slowest = (FACTOR_NAME, slowest_factor(world)) if world > 1 else None
    return [
        RecordedKernels(
            traced[each.gpu] if gpu_name(name) == each.gpu else model_of(name),
            traced[each.gpu],
            slowest,
        )
        for name, each in gpus.items()
    ]


def _traced(
    step: TracedStep,
    target: Target,
    plan: Plan,
    steps: Sequence[TracedStep],
    kinds: NDArray[np.int64] | None,
) -> Traced:
    """Return the model of an experiment: a network for each step that ranks do as."""
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
    return Traced(
        step.source,
        step.batch,
        step.format,
        first,
        tuple(others),
        None if kinds is None else of_kind[kinds],
        side_of_images(step),
        target.upload or (target.threads and plan.pp == 1) or bool(shows_upload(step)),
    )


def _check_upload(step: TracedStep, target: Target) -> None:
    """Refuse to add an upload of the input where there is one."""
    copied = shows_upload(step)
    if copied:
        raise InputError(
            f"--upload is given, but {step.source} has a copy of {copied:,} bytes from the "
            "host in its forward pass: the input is uploaded already"
        )
    if target.threads and target.plan.get("pp", 1) == 1:
        raise InputError("--upload is given; --threads scatters the input from the first GPU")


def _network(
    step: TracedStep, target: Target, splits: Mapping[int, Split], plan: Plan, grid: Grid
) -> LayerStack:
    found = traced_network(
        step,
        plan,
        grid,
        sequence=target.sequence,
        splits=splits,
        upload=target.upload,
        loads=target.data is None,
    )
    if not target.threads:
        return found
    if plan.pp > 1:
        return as_pipe(found, plan.pp, plan.global_batch // plan.micro_batch)
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
    offloads = sorted(key for key in keys if key.startswith("offload."))
    if offloads:
        raise InputError(
            f"{target.source}: {offloads[0]} is given; states and activations of a trace stay on "
            "the GPU"
        )
    if target.threads:
        check_threads(keys, target.source)
        if keys.get("pp", 1) != 1:
            keys.setdefault("pipeline.schedule", SCHEDULE)
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
        share = plan.micro_batch / step.batch
        plan = with_keys(plan, {"pipeline.stages": _stages(step, parts, share)})
    return plan


def _of_framework(key: str) -> bool:
    return key.startswith("framework.")


def _micro_batch(batch: int, pp: int) -> int:
    """Return the micro-batch of a replica: its samples, in a pipeline about 1/(4 pp) of them."""
    if pp == 1:
        return batch
    counts = [n for n in range(pp, 4 * pp + 1) if batch % n == 0]
    counts = counts or [n for n in range(1, batch + 1) if batch % n == 0]
    return batch // max(each for each in counts if each <= 4 * pp)


def _stages(step: TracedStep, parts: int, share: float) -> tuple[int, ...]:
    """Return the blocks of each part of a pipeline, so that the longest part is shortest.

    Kernels of a micro-batch take its `share` of their measured time, and the CPU launches all of
    them for each: a part takes the longer of both. Cuts that balance either, or the longer of both
    layer by layer, are compared.
    """
    layers = step.layers()
    outside = {*step.embedding, *step.head}
    count = sum(name not in outside for name, _ in layers)
    if count < parts:
        raise InputError(
            f"pp × vpp is {parts}, but {step.source} has {count} layers that a pipeline can be cut "
            "between"
        )

    def blocks(time: Callable[[TracedOperator], float]) -> list[int]:
        times = {name: round(sum(map(time, ops))) for name, ops in layers}
        found = [times[name] for name, _ in layers if name not in outside]
        found[0] += sum(times[name] for name in step.embedding)
        found[-1] += sum(times[name] for name in step.head)
        return found

    launch = 0
    if step.priced:  # nobody measured its launches, which are those of the GPU's machine
        gpu = find_gpu(step.gpu)
        launch = picoseconds(gpu.host_gap.si + gpu.launch_call.si)
    kernels = blocks(lambda one: share * one.duration)
    cpu = blocks(lambda one: one.cpu + launch * one.launches)
    longer = [max(both) for both in zip(kernels, cpu, strict=True)]

    def longest(counts: tuple[int, ...]) -> int:
        ends = np.cumsum((0, *counts)).tolist()
        return max(sum(own[a:b]) for a, b in pairwise(ends) for own in (kernels, cpu))

    return min((tuple(balanced(own, parts)) for own in (kernels, cpu, longer)), key=longest)


# --- what it rests on -----------------------------------------------------------------------------


def _counted(
    workload: Workload,
    models: Sequence[KernelModel],
    assumptions: tuple[str, ...],
    *,
    priced: bool,
    splits_used: bool,
    context: list[str],
    unchanged: bool,
    alone: bool,
    elsewhere: bool,
    pipeline: InputPipeline | None,
) -> str:
    """Return the attribute that says what the program's times depend on.

    The CPU's times are those of one step. In another one they differ, as recorded steps do; those
    of a captured job, and gaps between kernels that a plan adds, are the GPU's. Another GPU is in
    another machine, whose CPU is not known: machines differ by the error bar of such gaps. On
    several GPUs the step is off by what no part of it stands for, as published factors have shown.
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
        if elsewhere:
            numbers[CPU] = math.hypot(numbers[CPU], models[0].gpu.host_gap.error)
    if priced:
        host = dict(workload.pricings[0].host_shares)
    if priced or not unchanged:
        for name in ("graph_gap", "kernel_gap"):
            numbers[name] = max(getattr(model.gpu, name).error for model in models)
        for pricing in workload.pricings:
            gaps += [(pricing.graph_gap, {"graph_gap": 1.0}), (pricing.gap, {"kernel_gap": 1.0})]
    if pipeline is not None:
        numbers |= {name: quantity.error for name, quantity in pipeline.numbers.items()}
        depends = dict.fromkeys(pipeline.numbers, 1.0)
        shares |= {(PREPARE, time): depends for time in preparation_times(workload.program)}
    grown = workload.layout.experiment
    framework = grown.plan.framework
    others = framework.cycle_time is not None or (
        grown.profile is not None and grown.profile.own_kernels
    )
    missing = [
        "the CPU's work for what the plan adds, but for launches; the Python of the traced step is "
        "kept as recorded",
        "memory: whether the plan fits is not checked",
    ]
    if priced:
        loading = "data loading, " if pipeline is None else ""
        missing[0] = f"the CPU's own work: {loading}the script's Python beside launches"
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
            "not_modelled": [
                *missing,
                *context,
                *input_not_modelled(workload.layout.experiment.data),
            ],
            "left_out": 0.0 if alone else several_gpus(framework.dp_style, others).error,
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
def several_gpus(style: Style | None, others: bool = False) -> Quantity:
    """Return how far steps are off that were extrapolated from one GPU to several, as a factor.

    Parameters
    ----------
    style : Style or None
        Whose rules data parallelism follows; None where that is not known.
    others : bool
        Whether the framework is none that is built on PyTorch: Horovod reduces its gradients, or it
        has kernels of its own.
    """
    name = "pytorch" if style in OWN_STYLES and not others else "other"
    return build(Quantity, packaged(FILE)["several_gpus"][name], FILE, f"several_gpus.{name}")
