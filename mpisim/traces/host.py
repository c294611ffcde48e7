"""Kineto trace → CUDA calls of the CPU in order, with the operators around them.

A rank's CPU is modelled as one clock. Calls of all launching threads (main and autograd) are put
in order of begin; what lies between the end of the latest call and the begin of the next is CPU
time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Literal

import numpy as np

from ..base.errors import TraceError
from .kineto import KinetoTrace

__all__ = [
    "Call",
    "CallKind",
    "communication_stem",
    "copy_path",
    "host_calls",
    "is_communication_kernel",
]


class CallKind(IntEnum):
    """What a host event means to the replay."""

    LAUNCH = 0
    """Launched one device operation or more."""
    WAIT_EVENT = 1
    """Told a stream to wait for an event."""
    SYNC_STREAM = 2
    SYNC_DEVICE = 3
    SYNC_EVENT = 4
    RECORD = 5
    """Recorded an event on a stream."""
    MEMORY = 6
    """Allocated or freed device or pinned memory: may block on the device."""
    MARK = 7
    """Begin or end of a profiled step: no CPU time of its own."""
    ELAPSED = 8
    """Read the time between two events: both have happened."""


_KINDS = (
    (re.compile(r"^(cuda|hip)StreamWaitEvent|^cuStreamWaitEvent"), CallKind.WAIT_EVENT),
    (re.compile(r"^(cuda|hip)StreamSynchronize|^cuStreamSynchronize"), CallKind.SYNC_STREAM),
    (re.compile(r"^(cuda|hip)DeviceSynchronize|^cuCtxSynchronize"), CallKind.SYNC_DEVICE),
    (re.compile(r"^(cuda|hip)EventSynchronize|^cuEventSynchronize"), CallKind.SYNC_EVENT),
    (re.compile(r"^(cuda|hip)EventRecord|^cuEventRecord"), CallKind.RECORD),
    (re.compile(r"^(cuda|hip)EventElapsedTime|^cuEventElapsedTime"), CallKind.ELAPSED),
    (
        re.compile(r"^(cuda|hip)(Free|Malloc|Host)|^cuMem(Alloc|Free|Create|Map|Unmap|Release)"),
        CallKind.MEMORY,
    ),
)

_COMMUNICATION = re.compile(
    r"nccl|rccl|dpsk::ep::internode::|dpsk::ep::intranode::|deep_ep::", re.I
)
_NOT_COMMUNICATION = re.compile(r"get_dispatch_layout", re.I)
_STEM = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|Broadcast|SendRecv|AllToAll|Reduce|Generic)", re.I
)


def copy_path(name: str) -> Literal["device", "fill", "host"]:
    """Name of a recorded copy or fill → between what it copies, as of `Copy.path`.

    CUPTI writes its direction into the name ("Memcpy HtoD (Pageable -> Device)"). A copy of which
    no name tells otherwise is one between the host's memory and the GPU's.

    Examples
    --------
    >>> copy_path("Memcpy HtoD (Pinned -> Device)"), copy_path("Memcpy DtoD (Device -> Device)")
    ('host', 'device')
    """
    if "Memset" in name:
        return "fill"
    return "device" if "DtoD" in name else "host"


@cache
def is_communication_kernel(name: str) -> bool:
    """Whether a kernel moves data between ranks (NCCL, RCCL, DeepEP)."""
    return bool(_COMMUNICATION.search(name)) and not _NOT_COMMUNICATION.search(name)


@cache
def communication_stem(name: str) -> str:
    """Return what a communication kernel does, without algorithm, protocol and data type.

    Examples
    --------
    >>> communication_stem("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*)")
    'ReduceScatter'
    """
    head = name.split("(")[0]
    found = _STEM.search(head)
    if found:
        return found.group(1)
    return head.split("<")[0].split("::")[-1]


@dataclass(slots=True)
class Call:
    """One host event. Times are int64 ps from the file's origin."""

    kind: CallKind
    name: str
    begin: int
    end: int
    thread: int
    ops: list[int] = field(default_factory=list)
    """Device operations launched, in order of begin."""
    c10d: int = -1
    """Operator ``c10d::*`` around the call."""
    params: int = -1
    """Operator ``record_param_comms`` around the call."""
    nccl: int = -1
    """Annotation ``nccl:*`` around the call."""
    correlation: int = -1
    operator: int = -1
    """Innermost operator around the call."""
    step: int = -1
    """Profiled step in which the call was made; marks: the step itself."""


def host_calls(trace: KinetoTrace) -> list[Call]:
    """Return the calls of all launching threads in order of begin, and marks of steps.

    Calls without a role (attribute queries and the like) are left out: their time is CPU time
    like any other. So are calls inside other calls of the same thread.
    """
    launched: dict[int, list[int]] = {}
    for op, correlation in enumerate(trace.device.correlation.tolist()):
        if correlation >= 0:
            launched.setdefault(correlation, []).append(op)
    spans = trace.calls
    calls: list[Call] = []
    open_until: dict[int, int] = {}
    taken: set[int] = set()
    for i, name in enumerate(spans.name):
        args = spans.args[i]
        correlation = -1 if args is None or args.correlation is None else args.correlation
        ops = launched.get(correlation, [])
        kind = _kind(name)
        if ops and correlation not in taken:
            kind = CallKind.LAUNCH
        elif kind is None:
            continue
        thread, begin, end = int(spans.thread[i]), int(spans.begin[i]), int(spans.end[i])
        until = open_until.get(thread, -1)
        if begin < until and end <= until and kind is not CallKind.LAUNCH:
            continue
        open_until[thread] = max(end, open_until.get(thread, -1))
        if kind is CallKind.LAUNCH:
            taken.add(correlation)
        calls.append(
            Call(
                kind,
                name,
                begin,
                end,
                thread,
                ops if kind is CallKind.LAUNCH else [],
                correlation=correlation,
            )
        )
    launching = {call.thread for call in calls if call.kind is CallKind.LAUNCH}
    calls = [call for call in calls if call.thread in launching]
    _add_context(trace, calls)
    calls.extend(_step_marks(trace))
    calls.sort(key=lambda call: (call.begin, call.kind is not CallKind.MARK))
    _number_steps(calls)
    return calls


@cache
def _kind(name: str) -> CallKind | None:
    for pattern, kind in _KINDS:
        if pattern.match(name):
            return kind
    return None


def _add_context(trace: KinetoTrace, calls: list[Call]) -> None:
    """Find the operators and annotations around each call, by one sweep a thread."""
    by_thread: dict[int, list[Call]] = {}
    for call in calls:
        by_thread.setdefault(call.thread, []).append(call)
    for thread, own in by_thread.items():
        operators = list(_on_thread(trace.operators.thread, thread))
        notes = [
            i
            for i in _on_thread(trace.annotations.thread, thread)
            if trace.annotations.name[i].startswith(("nccl:", "c10d:"))
        ]
        _sweep(own, operators, trace.operators.begin, trace.operators.end, trace.operators.name)
        stack: list[int] = []
        at = 0
        for call in own:
            while at < len(notes) and trace.annotations.begin[notes[at]] <= call.begin:
                stack.append(notes[at])
                at += 1
            stack = [i for i in stack if trace.annotations.end[i] >= call.end]
            call.nccl = stack[-1] if stack else -1


def _on_thread(threads: np.ndarray, thread: int) -> Iterator[int]:
    return iter(np.flatnonzero(threads == thread).tolist())


def _sweep(
    calls: list[Call], spans: list[int], begin: np.ndarray, end: np.ndarray, name: list[str]
) -> None:
    stack: list[int] = []
    at = 0
    for call in calls:
        while at < len(spans) and begin[spans[at]] <= call.begin:
            while stack and end[stack[-1]] < begin[spans[at]]:
                stack.pop()
            stack.append(spans[at])
            at += 1
        while stack and end[stack[-1]] < call.begin:
            stack.pop()
        call.operator = stack[-1] if stack else -1
        for i in stack:
            if name[i].startswith(("c10d::", "c10d_functional::", "_c10d_functional::")):
                call.c10d = i
            elif name[i] == "record_param_comms":
                call.params = i


def _step_marks(trace: KinetoTrace) -> list[Call]:
    """Begin and end of every profiled step, as host events without CPU time."""
    marks = []
    notes = trace.annotations
    for i, name in enumerate(notes.name):
        if not name.startswith("ProfilerStep#"):
            continue
        digits = "".join(c for c in name.split("#")[1] if c.isdecimal())
        if len(digits) > 9:
            raise TraceError(f"{trace.path}: {name!r} is no step number; at most nine digits")
        number = int(digits or 0)
        for at, text in ((int(notes.begin[i]), "begin"), (int(notes.end[i]), "end")):
            marks.append(
                Call(CallKind.MARK, f"{name} {text}", at, at, int(notes.thread[i]), step=number)
            )
    return marks


def _number_steps(calls: list[Call]) -> None:
    """Give every call the step it was made in; calls between steps belong to the one before."""
    current = -1
    for call in calls:
        if call.kind is CallKind.MARK:
            if call.name.endswith("begin"):
                current = call.step
        else:
            call.step = current
