"""Program of a traced step at another scale → numbers that its times depend on, with their errors.

They go into an attribute of the program (`mpisim.kernels.counted`), of which a run makes the error
bar of its step time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ..base.presets import packaged
from ..base.quantity import Z_90, Quantity
from ..base.schema import build
from ..experiment.framework import Style
from ..kernels import KernelModel, gpu_names
from ..kernels.counted import kept_kernels
from ..kernels.gpu_parameters import GpuParameters
from ..kernels.operations import Kernel
from ..kernels.recorded import Recorded
from ..replay.error import differences
from ..workloads import Workload
from ..workloads.input_pipeline import PREPARE, InputPipeline, preparation_times
from ..workloads.pricing import Pricing
from .li_scaling import FILE
from .traced_input import input_not_modelled

__all__ = ["counted_text", "several_gpus"]

OWN_STYLES = ("ddp", "fsdp")
"""Values of `framework.dp_style` that PyTorch implements itself."""

SHARED = ("host_gap", "launch_call", "launch_latency")
"""Numbers of a GPU that launches of kernels depend on which were not traced."""

CPU = "the CPU's times, as traced"
"""Name of their error bar."""


def counted_text(
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
    """Workload, kernel models → the program's attribute of numbers, shares and their errors.

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
    """Pricings → operations of kernels, for their slowdown beside communications."""
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
    """Style of data parallelism → error of steps extrapolated from one GPU to several.

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
