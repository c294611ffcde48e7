"""One rank's trace → the five host overheads of Lin et al. (T1 to T5).

T1: end of a top-level operator to the begin of the next. T2: begin of an operator to its first
launch. T3: end of its last launch to its end. T4: a launching call. T5: between two launches of an
operator; for an operator without a launch, all its CPU time.

Z. Lin et al., "Building a performance model for deep learning recommendation model training on
GPUs", ISPASS 2022. Times in which a call waited for the device are left out.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left

import numpy as np

from ..base.frozen import frozen
from .host import Call, CallKind
from .kineto import KinetoTrace
from .waits import Inference

__all__ = ["HostOverheads", "host_overheads"]


@frozen
class HostOverheads:
    """Count, total and median of T1 to T5, in seconds; keys are ``"T1"`` … ``"T5"``."""

    count: dict[str, int]
    total: dict[str, float]
    median: dict[str, float]


def host_overheads(trace: KinetoTrace, calls: list[Call], inferred: Inference) -> HostOverheads:
    """Trace and CUDA calls of one rank → its five host overheads.

    Parameters
    ----------
    trace : KinetoTrace
    calls : list of Call
        Of this trace, in order of begin; its positions are what `inferred` names.
    inferred : Inference
        Which calls waited: their time is no overhead.
    """
    found: dict[str, list[int]] = {f"T{i}": [] for i in range(1, 6)}
    waited = {calls[position].begin for position in inferred.blocking}
    launches: dict[int, list[Call]] = {}
    for call in calls:
        if call.kind is CallKind.LAUNCH:
            launches.setdefault(call.thread, []).append(call)
            if call.begin not in waited:
                found["T4"].append(call.end - call.begin)
    waiting = inferred.blocking.keys() | inferred.gap_waits.keys()
    blocking = sorted(calls[position].begin for position in waiting)
    for thread, own in launches.items():
        _one_thread(trace, thread, own, blocking, found)
    return HostOverheads(
        {key: len(values) for key, values in found.items()},
        {key: sum(values) / 1e12 for key, values in found.items()},
        {key: float(np.median(values)) / 1e12 if values else 0.0 for key, values in found.items()},
    )


def _one_thread(
    trace: KinetoTrace,
    thread: int,
    launches: list[Call],
    blocking: list[int],
    found: dict[str, list[int]],
) -> None:
    """Go through the top-level operators of one thread and the launches in each."""
    spans = trace.operators

    def add(key: str, begin: int, end: int) -> None:
        # A stretch in which the CPU waited for the device is no overhead.
        if bisect_left(blocking, end) <= bisect_left(blocking, begin):
            found[key].append(max(0, end - begin))

    until, at = -1, 0
    for i in np.flatnonzero(spans.thread == thread).tolist():
        begin, end = int(spans.begin[i]), int(spans.end[i])
        if begin < until:
            continue
        if until >= 0:
            add("T1", until, begin)
        until = end
        while at < len(launches) and launches[at].begin < begin:
            at += 1
        inside = []
        while at < len(launches) and launches[at].begin < end:
            inside.append(launches[at])
            at += 1
        if not inside:
            add("T5", begin, end)
            continue
        add("T2", begin, inside[0].begin)
        add("T3", inside[-1].end, end)
        for before, now in itertools.pairwise(inside):
            add("T5", before.end, now.begin)
