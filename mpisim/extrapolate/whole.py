"""Trace → refused, in one line, if it is no whole training step of one GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ..base.errors import TraceError
from ..base.presets import packaged
from ..base.quantity import Quantity
from ..base.schema import build
from ..traces import KinetoTrace, Source
from ..traces.gradients import EVALUATE, is_backward
from ..traces.host import is_communication_kernel
from ..traces.kineto import KERNEL
from .li_scaling import FILE
from .passes import ACCUMULATE, Passes, of_engine

__all__ = ["check_end", "check_whole", "nodes_without_forward"]

_MAX_UNPAIRED_SHARE = 0.02
"""Share of kernels or launches whose partner may be missing."""

_LAUNCHES = (
    *("cudaLaunchKernel", "cuLaunchKernel"),
    *("hipLaunchKernel", "hipModuleLaunchKernel", "hipExtModuleLaunchKernel", "hipExtLaunchKernel"),
    "urEnqueueKernelLaunch",
)
"""How calls begin that launch one kernel each: CUDA's, HIP's, and those of Intel's GPUs."""


def check_whole(trace: KinetoTrace, source: Source) -> None:
    """Refuse what is no whole training step of one GPU.

    Parameters
    ----------
    trace : KinetoTrace
    source : Source
        Of the trace.

    Raises
    ------
    TraceError
        For several GPUs or ranks, events that were dropped, no backward pass, or no gradients.
    """
    _check_devices(trace)
    communications = sum(is_communication_kernel(name) for name in trace.device.name)
    if communications:
        of = f" of {source.world_size}" if source.world_size > 1 else ""
        raise TraceError(
            f"{trace.path}: holds {communications} communication kernels: it is of one rank{of} of "
            "a parallel job; what is needed is a trace of a job on one GPU, or of all ranks"
        )
    _check_paired(trace)
    _check_dropped(trace)
    if not any(name.startswith(EVALUATE) or is_backward(name) for name in trace.operators.name):
        raise TraceError(
            f"{trace.path}: holds a forward pass alone (no operator of autograd::engine): of "
            "inference, or without the backward pass of a training step"
        )
    if ACCUMULATE not in trace.operators.name:
        raise TraceError(
            f"{trace.path}: holds no {ACCUMULATE}: which tensors are weights is not known; profile "
            "a whole training step on the CPU's side, too (ProfilerActivity.CPU)"
        )


def _check_devices(trace: KinetoTrace) -> None:
    """Refuse kernels of several GPUs."""
    devices = {
        str(args.device)
        for kind, args in zip(trace.device.kind.tolist(), trace.device.args, strict=True)
        if kind == KERNEL and args.device is not None
    }
    if len(devices) > 1:
        raise TraceError(
            f"{trace.path}: holds kernels of {len(devices)} GPUs ({', '.join(sorted(devices))}): "
            "of one process that uses several; what is needed is a trace of a job on one GPU"
        )


def _check_paired(trace: KinetoTrace) -> None:
    """Refuse a trace that tells of no kernel which call launched it."""
    called = {args.correlation for args in trace.calls.args if args is not None} - {None}
    if len(trace.device) and called.isdisjoint(trace.device.correlation.tolist()):
        why = "none of its calls has the number ('correlation') of a kernel"
        raise TraceError(
            f"{trace.path}: {why if called else 'records no calls that launch kernels'}: what the "
            "CPU launched is not known; profile the CPU's side, too (ProfilerActivity.CPU)"
        )


def _check_numbers(trace: KinetoTrace) -> None:
    """Refuse a trace of which operators were left out, which shows in their numbers."""
    numbers = sorted(
        {
            args.external_id
            for args in trace.operators.args
            if args is not None and isinstance(args.external_id, int)
        }
    )
    holes = sum(after - before > 1 for before, after in itertools.pairwise(numbers))
    if holes > _max_holes() * len(numbers):
        raise TraceError(
            f"{trace.path}: behind {holes:,} of {len(numbers):,} operators others are left out (by "
            "their 'External id'): events were dropped, or samples taken; a recording of every "
            "operator of a step is needed"
        )


def _max_holes() -> float:
    """Return the share of operators behind whose number others may be left out."""
    return build(Quantity, packaged(FILE)["whole"]["holes"], FILE, "whole.holes").si


def _check_dropped(trace: KinetoTrace) -> None:
    """Refuse a trace of which events were dropped, or only samples taken."""
    correlation = trace.device.correlation.tolist()
    called: dict[int, str] = {
        args.correlation: name
        for name, args in zip(trace.calls.name, trace.calls.args, strict=True)
        if args is not None and args.correlation is not None
    }
    ran = set(correlation)
    # In order of begin, but for what was launched before recording began, and ran after it ended.
    kernels = [
        each in called
        for each, kind in zip(correlation, trace.device.kind.tolist(), strict=True)
        if kind == KERNEL
    ]
    launches = [each in ran for each, name in called.items() if name.startswith(_LAUNCHES)]
    kernels = kernels[kernels.index(True) :] if True in kernels else []
    while launches and not launches[-1]:
        launches.pop()
    for found, what in (
        (kernels, "kernels have no launch"),
        (launches, "launches have no kernel"),
    ):
        number, lost = len(found), found.count(False)
        if lost > _MAX_UNPAIRED_SHARE * number:
            raise TraceError(
                f"{trace.path}: {lost:,} of {number:,} {what} in it: events were dropped, or "
                "samples taken; a recording of every event of a step is needed"
            )
    _check_numbers(trace)


def check_end(passes: Passes, ops: Iterable[int], mark: str) -> None:
    """Refuse a step whose last kernels were not recorded, since the device was behind the CPU.

    Parameters
    ----------
    passes : Passes
        Of its trace.
    ops : iterable of int
        Operations of the device of the step.
    mark : str
        Name of its mark; empty if it has none.

    Raises
    ------
    TraceError
        If the step is the last of the trace, and launches at its end have no kernel.
    """
    trace, launched = passes.trace, passes.launched
    times = [launched[op] for op in ops if op in launched]
    last = max(times, default=0)
    if any(time > last for time in launched.values()):
        return  # what comes behind it has kernels
    marks = zip(trace.annotations.name, trace.annotations.end.tolist(), strict=True)
    until = next((end for name, end in marks if name == mark), None)
    calls = zip(trace.calls.name, trace.calls.begin.tolist(), trace.calls.args, strict=True)
    ran = set(trace.device.correlation.tolist())
    lost = sum(
        name.startswith(_LAUNCHES) and begin > last and (until is None or begin < until)
        for name, begin, args in calls
        if args is not None and args.correlation not in ran
    )
    total = lost + len(times)
    if lost > _MAX_UNPAIRED_SHARE * total:
        raise TraceError(
            f"{trace.path}: the last {lost:,} of {total:,} launches have no kernel in it: the "
            "recording ended before the device did; torch.cuda.synchronize() belongs behind the "
            "step, inside of the profiler"
        )


def nodes_without_forward(passes: Passes, ops: Iterable[int]) -> int:
    """Passes → number of backward kernels whose forward operators are missing.

    Parameters
    ----------
    passes : Passes
    ops : iterable of int
        Operations of the device of the step.

    """
    trace, ops = passes.trace, list(ops)
    names, args = trace.operators.name, trace.operators.args
    times = [passes.launched[op] for op in ops if op in passes.launched]
    begin = min(times, default=0)
    backward = [op for op in ops if passes.of(op, after_backward=False) == "backward"]
    until = min((passes.launched[op] for op in backward if op in passes.launched), default=begin)
    numbers = [
        given.sequence
        for name, given, at in zip(names, args, trace.operators.begin.tolist(), strict=True)
        if given is not None and given.sequence is not None and given.sequence >= 0
        if at < until and not of_engine(name)
    ]
    # What lies before the step's first launch may be of a step before: their numbers are smaller.
    nodes = [passes.node(op) for op in backward]
    return sum(0 <= node < min(numbers, default=node + 1) for node in nodes)
