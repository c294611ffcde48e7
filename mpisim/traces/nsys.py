"""Nsight Systems exports (SQLite) → the arrays that Kineto traces are read into.

One file holds every process of a machine, each a rank. Kernels and calls come from CUPTI, as
in Kineto, with the same correlation numbers, which count anew in each process. Operators are NVTX
ranges, as `torch.autograd.profiler.emit_nvtx` writes them. Times are ns from the begin of the
capture. Export schema 3.x: https://docs.nvidia.com/nsight-systems, "SQLite Schema Reference".

GPU times are converted to the CPU's clock, which leaves some µs of error. It shows where the CPU
waits for a stream: the call cannot return before the stream's last operation has ended. Replay
needs that order to be right, or it would find no reason for the wait.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from ..base.errors import TraceError
from ..base.quantity import PS_PER_NS
from ..base.text import counted
from .kineto import KERNEL, MEMCPY, MEMSET, Arguments, DeviceOps, KinetoTrace, Spans, SyncRecord
from .nsys_export import CALLS, DEVICE_TABLES, GRAPHS, Export, Range, opened, spans

__all__ = ["nsys_processes", "read_nsys"]

_MAX_CLOCK_ERROR = 100_000_000
"""More than this, in ps, is no error of a clock but another operation."""


def device_lead(calls: Spans, device: DeviceOps, syncs: Sequence[SyncRecord]) -> int:
    """Return how much too late the times of device operations are, in ps, 0 or more.

    The least that lets every call that waited for a stream return after the last operation
    launched there before it; at most so much that no operation begins before its launch.

    Parameters
    ----------
    calls : Spans
    device : DeviceOps
        On the same clock but for the error.
    syncs : sequence of SyncRecord
    """
    at = {
        args.correlation: i
        for i, args in enumerate(calls.args)
        if args is not None and args.correlation is not None
    }
    launch = np.array([at.get(c, -1) for c in device.correlation.tolist()], np.int64)
    known = launch >= 0
    if not known.any():
        return 0
    launched = np.where(known, calls.begin[launch], np.iinfo(np.int64).max)
    room = int((device.begin - launched)[known].min())
    excess = 0
    for sync in syncs:
        call = at.get(sync.correlation, -1)
        if sync.source >= 0 or sync.stream < 0 or call < 0:
            continue
        before = (device.stream == sync.stream) & (launched < calls.begin[call])
        if before.any():
            late = int(device.end[before].max() - calls.end[call])
            if excess < late <= _MAX_CLOCK_ERROR:
                excess = late
    return max(0, min(excess, room))


_NVTX_TABLE = "NVTX_EVENTS"
_PUSH_POP, _START_END = 59, 60
_OPERATOR = re.compile(r"^(?P<name>.*?)(?:, seq = (?P<sequence>\d{1,18}))?(?:, op_id = \d+)")
"""PyTorch's ranges: ``aten::mm, seq = 7, op_id = 12, sizes = [[2, 3], [3, 4]], …``."""
_SIZES = re.compile(r", sizes = (?P<sizes>\[.*?\])(?:, input_op_ids|$)")
_USER = re.compile(r"^(nccl:|FSDP::|Optimizer\.|DistributedDataParallel|## )")
"""Operators of PyTorch that Kineto calls annotations."""
_STEP = re.compile(
    r"^(?:ProfilerStep#|(?:train(?:ing)?[ _-]?)?(?:step|iter(?:ation)?)[ _:#=-]*)"
    r"(?P<number>\d{1,9})$",
    re.IGNORECASE,
)
_POINT_TO_POINT = {"ncclSend": "c10d::send", "ncclRecv": "c10d::recv_"}


def annotations_and_operators(export: Export, process: int, first: int) -> tuple[Spans, Spans]:
    """Return the ranges of a process as Kineto would have them.

    PyTorch's operators lose the numbers behind their names. A range that is called after a step
    (``step 3``, ``iteration_3``, ``ProfilerStep#3``) becomes a profiled step. NCCL's own ranges of
    sends and receives represent PyTorch's where it wrote none.

    Parameters
    ----------
    export : Export
    process : int
    first : int
        Zero of the times returned, in ns.
    """
    if not export.has(_NVTX_TABLE, ("start", "end", "eventType", "text", "textId", "globalTid")):
        return spans([], first), spans([], first)
    rows = export.rows(
        f"SELECT start, end, globalTid, text, textId, eventType FROM {_NVTX_TABLE} WHERE "
        "globalTid >> 24 = ? AND eventType IN (?, ?) AND end IS NOT NULL",
        (process, _PUSH_POP, _START_END),
    )
    annotations: list[Range] = []
    operators: list[Range] = []
    messages: list[Range] = []
    for start, end, thread, text, number, kind in export.checked(_NVTX_TABLE, rows, first):
        text = text if text is not None else export.texts.get(number, "")
        step = _STEP.match(text)
        operator = _OPERATOR.match(text) if kind == _PUSH_POP else None
        if step:
            name = f"ProfilerStep#{int(step['number'])}"
            annotations.append((start, end, thread, name, None))
        elif kind == _START_END:
            continue  # may overlap others in any way, so that it is no operator
        elif operator:
            target = annotations if _USER.match(operator["name"]) else operators
            target.append((start, end, thread, operator["name"], _arguments(text, operator)))
        elif text in _POINT_TO_POINT:
            messages.append((start, end, thread, _POINT_TO_POINT[text], None))
        else:
            annotations.append((start, end, thread, text, None))
    if not any(name.startswith("c10d::") for _, _, _, name, _ in operators):
        operators += messages
    return spans(annotations, first), spans(operators, first)


def _arguments(text: str, operator: re.Match[str]) -> Arguments | None:
    """Return an operator's number of autograd and the shapes of its inputs, where recorded."""
    sizes, sequence = _SIZES.search(text), operator["sequence"]
    if sizes is None and sequence is None:
        return None
    return Arguments(
        sequence=None if sequence is None else int(sequence),
        dims=msgspec.Raw(b"" if sizes is None else sizes["sizes"].encode()),
    )


_SYNC_TABLE = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_EVENTS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_EVENT, _WAIT, _STREAM = 1, 2, 3
"""CUPTI's numbers of synchronisations: for an event, of a stream for an event, for a stream."""
_NAMES = {_EVENT: "Event Sync", _WAIT: "Stream Wait Event", _STREAM: "Stream Sync"}
"""As Kineto calls them."""


def sync_records(
    export: Export, process: int, streams: dict[tuple[int, int], int]
) -> list[SyncRecord]:
    """Return the synchronisations of a process whose both ends the export knows.

    That is the stream of a stream's synchronisation. Of an event it is known only where the events
    were recorded, too (``nsys profile --cuda-event-trace=true``), and waits of streams are left to
    inference unless all of them are known.

    Parameters
    ----------
    export : Export
    process : int
    streams : dict
        Numbers of (context, stream) among the device operations. (The table's own device is
        always 0.)
    """
    columns = ("contextId", "streamId", "correlationId", "globalPid", "syncType", "eventId")
    if not export.has(_SYNC_TABLE, columns):
        return []
    number = "eventSyncId" if "eventSyncId" in export.columns(_SYNC_TABLE) else "NULL"
    events = _recorded_events(export, process, streams)
    found: list[SyncRecord] = []
    unknown = False
    for context, stream, correlation, kind, event, sync in export.rows(
        f"SELECT contextId, streamId, correlationId, syncType, eventId, {number} "
        f"FROM {_SYNC_TABLE} WHERE globalPid >> 24 = ? ORDER BY start",
        (process,),
    ):
        own = streams.get((context, stream), -1)
        if kind == _STREAM:
            found.append(SyncRecord(_NAMES[kind], correlation, own, -1, -1))
        elif kind in (_EVENT, _WAIT):
            source, record = events.get((event, sync), (-1, -1))
            unknown |= kind == _WAIT and record < 0
            if record >= 0:
                found.append(SyncRecord(_NAMES[kind], correlation, own, source, record))
    if unknown:
        found = [sync for sync in found if sync.name != _NAMES[_WAIT]]
    return found


def _recorded_events(
    export: Export, process: int, streams: dict[tuple[int, int], int]
) -> dict[tuple[int, int | None], tuple[int, int]]:
    """Return stream and recording call of every recorded event, by its two numbers."""
    columns = ("contextId", "streamId", "correlationId", "globalPid", "eventId", "eventSyncId")
    if not export.columns(_EVENTS) or not export.has(_EVENTS, columns):
        return {}
    return {
        (event, sync): (streams.get((context, stream), -1), correlation)
        for context, stream, correlation, event, sync in export.rows(
            f"SELECT contextId, streamId, correlationId, eventId, eventSyncId FROM {_EVENTS} "
            "WHERE globalPid >> 24 = ?",
            (process,),
        )
    }


_VERSION = re.compile(r"_v\d+$")
_WAYS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "HtoD",
    12: "DtoH",
    13: "DtoD",
}
_MEMORY = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device",
    6: "Managed",
}
"""CUPTI's numbers, in the words of Kineto's names of copies."""
_GRAPH = "CUDA graph "
_WHOLE = (
    "recorded whole, whose kernels and communications are not known; "
    "nsys profile --cuda-graph-trace=node records them"
)


def nsys_processes(path: Path) -> list[int]:
    """Return the processes of an export that ran anything on a GPU, by GPU and number.

    Raises
    ------
    TraceError
        If it is no Nsight Systems export, or holds no GPU work.
    """
    with opened(path) as export:
        found: dict[int, int] = {}
        for table in (*DEVICE_TABLES.values(), GRAPHS):
            if export.has(table, ("globalPid", "deviceId")):
                for process, device in export.rows(
                    f"SELECT globalPid >> 24, min(deviceId) FROM {table} GROUP BY 1"
                ):
                    found[process] = min(device, found.get(process, device))
        if not found:
            raise TraceError(f"{path}: no GPU kernels in this export")
        return sorted(found, key=lambda process: (found[process], process))


def read_nsys(path: Path | str, process: int) -> KinetoTrace:
    """Read one process of an export (``.sqlite``, plain or gzip).

    Parameters
    ----------
    path : Path or str
    process : int
        As `nsys_processes` returns it.

    Raises
    ------
    TraceError
        If the file cannot be read, is no export, or holds impossible times.
    """
    path = Path(path)
    with opened(path) as export:
        streams: dict[tuple[int, int], int] = {}
        first = export.first_time(process)
        device = _device_ops(export, process, first, streams)
        calls = _calls(export, process, first)
        annotations, operators = annotations_and_operators(export, process, first)
        syncs = sync_records(export, process, streams)
        lead = device_lead(calls, device, syncs)
        device.begin -= lead
        device.end -= lead
        epoch = export.epoch()
        name = export.gpu_name()
        size = export.size
    graphs = sum(name.startswith(_GRAPH) for name in device.name)
    whole = [f"{counted(graphs, 'launch', 'launches')} of CUDA graphs {_WHOLE}"] if graphs else []
    # Whole µs, as the form has it; what is left goes into the times themselves.
    origin, rest = divmod(epoch + first, 1000)
    for times in (annotations, operators, calls, device):
        times.begin += rest * PS_PER_NS
        times.end += rest * PS_PER_NS
    return KinetoTrace(
        path=path,
        rank=None,
        world_size=None,
        backend="nccl",
        origin=origin,
        operators=operators,
        annotations=annotations,
        calls=calls,
        syncs=syncs,
        device=device,
        streams=[stream for _, stream in streams],
        groups={},
        device_name=name,
        size=size,
        warnings=whole,
    )


def _device_ops(
    export: Export, process: int, first: int, streams: dict[tuple[int, int], int]
) -> DeviceOps:
    """Return kernels, copies and sets of a process in order of begin.

    A CUDA graph that was recorded whole is a kernel of its length.
    """
    found: list[tuple[int, int, int, int, int | None, str, int, int, float]] = []
    common = "start, end, contextId, streamId, correlationId, deviceId"
    needed = (*common.split(", "), "globalPid")
    processors = export.multiprocessors()
    for table, kind, own in (
        (DEVICE_TABLES[KERNEL], KERNEL, "demangledName, gridX * gridY * gridZ"),
        (DEVICE_TABLES[MEMCPY], MEMCPY, "bytes, copyKind, srcKind, dstKind"),
        (DEVICE_TABLES[MEMSET], MEMSET, "bytes"),
        (GRAPHS, KERNEL, "graphId"),
    ):
        if not export.has(table, (*needed, *re.findall(r"\w+", own))):
            continue
        query = f"SELECT {common}, {own} FROM {table} WHERE globalPid >> 24 = ?"
        for row in export.checked(table, export.rows(query, (process,)), first):
            start, end, context, stream, correlation, device, *rest = row
            size, blocks = -1, 0.0
            if table == GRAPHS:
                name = f"{_GRAPH}{rest[0]}"
            elif kind == KERNEL:
                name = export.texts.get(rest[0], "unknown kernel")
                blocks = (rest[1] or 0) / processors[device] if processors.get(device) else 0.0
            elif kind == MEMCPY:
                size = rest[0]
                name = (
                    f"Memcpy {_WAYS.get(rest[1], 'Unknown')} ({_MEMORY.get(rest[2], 'Unknown')} -> "
                    f"{_MEMORY.get(rest[3], 'Unknown')})"
                )
            else:
                size, name = rest[0], "Memset (Device)"
            found.append((start, end, context, stream, correlation, name, kind, size, blocks))
    found.sort(key=lambda op: op[:2])
    begin = np.array([op[0] for op in found], np.int64)
    end = np.array([op[1] for op in found], np.int64)
    return DeviceOps(
        name=[op[5] for op in found],
        kind=np.array([op[6] for op in found], np.uint8),
        begin=(begin - first) * PS_PER_NS,
        end=(end - first) * PS_PER_NS,
        stream=np.array([streams.setdefault(op[2:4], len(streams)) for op in found], np.int32),
        correlation=np.array([-1 if op[4] is None else op[4] for op in found], np.int64),
        blocks_per_sm=np.array([op[8] for op in found]),
        bytes=np.array([op[7] for op in found], np.int64),
        args=[Arguments() for _ in found],
    )


@cache
def _call_name(name: str) -> str:
    """Return a call's name without the version of its interface, as Kineto has it."""
    return _VERSION.sub("", name)


def _calls(export: Export, process: int, first: int) -> Spans:
    """Return runtime and driver calls."""
    if not export.has(CALLS, ("start", "end", "globalTid", "correlationId", "nameId")):
        return spans([], first)
    rows = export.checked(
        CALLS,
        export.rows(
            f"SELECT start, end, globalTid, correlationId, nameId FROM {CALLS} "
            "WHERE globalTid >> 24 = ?",
            (process,),
        ),
        first,
    )
    return spans(
        [
            (
                start,
                end,
                thread,
                _call_name(export.texts.get(name, "")),
                Arguments(correlation=correlation),
            )
            for start, end, thread, correlation, name in rows
        ],
        first,
    )
