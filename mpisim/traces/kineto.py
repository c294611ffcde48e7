"""One rank's trace, as arrays: operators, annotations, calls, operations of the device.

Every format of traces is read into this form (`.kineto_file`, `.nsys`): host operators and
annotations, CUDA or HIP calls, device operations, and the few arguments that link them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from .raw import Int64

__all__ = [
    "Arguments",
    "DeviceOps",
    "KinetoTrace",
    "Spans",
    "SyncRecord",
    "device_part",
]

MOST_RANKS = 1 << 24
KERNEL, MEMCPY, MEMSET = 0, 1, 2

_Size = Annotated[int, msgspec.Meta(ge=-1, le=2**53)]


class Arguments(
    msgspec.Struct,
    rename={
        "external_id": "External id",
        "external_id_old": "external id",
        "record_id": "Record function id",
        "sequence": "Sequence number",
        "blocks_per_sm": "blocks per SM",
        "dims": "Input Dims",
        "dims_old": "Input dims",
        "types": "Input type",
        "steps": "Input Strides",
        "concrete": "Concrete Inputs",
        "forward_thread": "Fwd thread id",
        "collective": "Collective name",
        "in_elements": "In msg nelems",
        "out_elements": "Out msg nelems",
        "group_size": "Group size",
        "group_name": "Process Group Name",
        "group_ranks": "Process Group Ranks",
        "seq": "Seq",
        "src_rank": "Src Rank",
        "dst_rank": "Dst Rank",
        "wait_on_record": "wait_on_cuda_event_record_corr_id",
    },
    gc=False,
):
    """The arguments of an event that are used here; names as Kineto writes them."""

    correlation: Int64 | None = None
    device: int | str | None = None
    stream: int | str | None = None
    external_id: int | str | None = None
    external_id_old: int | str | None = None
    record_id: int | None = None
    sequence: int | None = None
    blocks_per_sm: float | str | None = None
    dims: msgspec.Raw = msgspec.Raw(b"")
    dims_old: msgspec.Raw = msgspec.Raw(b"")
    types: msgspec.Raw = msgspec.Raw(b"")
    steps: msgspec.Raw = msgspec.Raw(b"")
    concrete: msgspec.Raw = msgspec.Raw(b"")
    forward_thread: int | None = None
    collective: str | None = None
    in_elements: _Size | None = None
    out_elements: _Size | None = None
    dtype: str | None = None
    group_size: _Size | None = None
    group_name: str | None = None
    group_ranks: str | list[int] | None = None
    seq: int | None = None
    src_rank: int | None = None
    dst_rank: int | None = None
    bytes: _Size | None = None
    wait_on_stream: int | None = None
    wait_on_record: int | None = None


@dataclass
class Spans:
    """Host intervals of one sort, in order of begin (outer before inner).

    Times are int64 ps from the origin of the file.
    """

    name: list[str]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    thread: NDArray[np.int32]
    args: list[Arguments | None]

    def __len__(self) -> int:
        return len(self.name)


@dataclass
class DeviceOps:
    """Kernels, copies and sets, in order of begin. Times are int64 ps from the file's origin.

    `kind` is 0 for kernels, 1 for copies, 2 for sets; `stream` numbers streams 0, 1, … in the
    order of `KinetoTrace.streams`; `correlation` and `bytes` (of copies and sets) are -1 where they
    are missing.
    """

    name: list[str]
    kind: NDArray[np.uint8]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    stream: NDArray[np.int32]
    correlation: NDArray[np.int64]
    blocks_per_sm: NDArray[np.float64]
    bytes: NDArray[np.int64]
    args: list[Arguments]

    def __len__(self) -> int:
        return len(self.name)


@frozen
class SyncRecord:
    """A synchronisation that a recent Kineto build recorded (category ``cuda_sync``).

    `stream` waits for what `source` held when the event was recorded by the call with the
    correlation `record`; all are -1 where the file does not say. `correlation` is that of the
    waiting call.
    """

    name: str
    correlation: int
    stream: int
    source: int
    record: int


@dataclass
class KinetoTrace:
    """One rank's trace.

    Attributes
    ----------
    path : Path
    rank, world_size : int or None
        From `distributedInfo`, where the file has it.
    origin : int
        Epoch time of the file's zero, in whole µs (by the clock of that host).
    operators, annotations, calls : Spans
        CPU operators, user annotations, runtime and driver calls.
    syncs : list of SyncRecord
    device : DeviceOps
    streams : list of int
        Stream numbers as in the file.
    groups : dict of str to tuple of int
        Process groups by name, from `pg_config`.
    device_name : str
        Of the first device that the file describes; empty if it describes none.
    size : int
        Of the file's text, in bytes.
    multiprocessors : int
        Of the same device; 0 where the file does not say.
    """

    path: Path
    rank: int | None
    world_size: int | None
    backend: str
    origin: int
    operators: Spans
    annotations: Spans
    calls: Spans
    syncs: list[SyncRecord]
    device: DeviceOps
    streams: list[int]
    groups: dict[str, tuple[int, ...]]
    device_name: str
    size: int
    warnings: list[str] = field(default_factory=list)
    multiprocessors: int = 0


def device_part(trace: KinetoTrace) -> KinetoTrace:
    """Return the trace without operators, annotations, calls and arguments.

    Those hold on to the text of the whole file; a process that reads many ranks drops them as soon
    as they have been used.
    """
    nothing = np.zeros(0, np.int64)
    empty = Spans([], nothing, nothing, nothing.astype(np.int32), [])
    return replace(
        trace,
        operators=empty,
        annotations=empty,
        calls=empty,
        device=replace(trace.device, args=[]),
    )
