"""Read Nsight Systems exports (SQLite) into the form that Kineto traces are read into.

One file holds every process of a machine, each a rank. Kernels and calls come from CUPTI, as
in Kineto, with the same correlation numbers, which count anew in each process. Operators are NVTX
ranges, as `torch.autograd.profiler.emit_nvtx` writes them. Times are ns from the begin of the
capture. Export schema 3.x: https://docs.nvidia.com/nsight-systems, "SQLite Schema Reference".
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np

from ..base.errors import TraceError
from .kineto import KERNEL, MEMCPY, MEMSET, Arguments, DeviceOps, KinetoTrace, Spans
from .nsys_clock import device_lead
from .nsys_export import CALLS, DEVICE_TABLES, PS_PER_NS, Export, opened, spans
from .nsys_ranges import annotations_and_operators
from .nsys_waits import sync_records

__all__ = ["nsys_processes", "read_nsys"]

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


def nsys_processes(path: Path) -> list[int]:
    """Return the processes of an export that ran anything on a GPU, by GPU and number.

    Raises
    ------
    TraceError
        If it is no Nsight Systems export, or holds no GPU work.
    """
    with opened(path) as export:
        found: dict[int, int] = {}
        for table in DEVICE_TABLES.values():
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
    )


def _device_ops(
    export: Export, process: int, first: int, streams: dict[tuple[int, int], int]
) -> DeviceOps:
    """Return kernels, copies and sets of a process in order of begin."""
    found: list[tuple[int, int, int, int, int | None, str, int, int, float]] = []
    common = "start, end, contextId, streamId, correlationId, deviceId"
    needed = (*common.split(", "), "globalPid")
    processors = export.multiprocessors()
    for kind, own in (
        (KERNEL, "demangledName, gridX * gridY * gridZ"),
        (MEMCPY, "bytes, copyKind, srcKind, dstKind"),
        (MEMSET, "bytes"),
    ):
        table = DEVICE_TABLES[kind]
        if not export.has(table, (*needed, *re.findall(r"\w+", own))):
            continue
        query = f"SELECT {common}, {own} FROM {table} WHERE globalPid >> 24 = ?"
        for row in export.checked(table, export.rows(query, (process,)), first):
            start, end, context, stream, correlation, device, *rest = row
            size, blocks = -1, 0.0
            if kind == KERNEL:
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
