"""Memory snapshots of PyTorch, read without it and without running what they hold, and written.

`torch.cuda.memory._dump_snapshot` pickles plain containers (torch/cuda/memory.py says which): the
segments at its end, and what the allocator did since `_record_memory_history` was called. A
pickle can call anything; here it may make containers, and nothing else. What `write_snapshot`
writes is opened by `torch.cuda._memory_viz` and https://pytorch.org/memory_viz.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..base.files import write_whole
from ..base.quantity import PS_PER_US
from ..memory.allocations import Action, Allocations, Recorded, replay
from ..memory.allocator_settings import NAME, parse_settings
from ..memory.blocks import Block
from ..memory.caching_allocator import CachingAllocator

__all__ = ["BEFORE", "Columns", "is_snapshot", "read_snapshot", "write_snapshot"]


BEFORE = "before the recording"
"""Label of what was there when the recording began."""

LIBRARIES = ("/torch/", "<frozen", "??", "/runpy.py")
"""Files that are passed over when a label is looked for."""


class _Containers(pickle.Unpickler):
    """Makes containers, numbers and texts."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which no snapshot does")


def is_snapshot(path: str | Path) -> bool:
    """Whether a file begins as a pickle does."""
    with Path(path).open("rb") as file:
        head = file.read(2)
    return len(head) == 2 and head[0] == 0x80 and head[1] <= pickle.HIGHEST_PROTOCOL


def read_snapshot(path: str | Path, device: int | None = None) -> Recorded:
    """Read the history of one GPU from a file of `torch.cuda.memory._dump_snapshot`.

    Parameters
    ----------
    path : str or Path
    device : int, optional
        Number of the GPU; by default the one with the longest history.

    Raises
    ------
    InputError
        If it is no such file, or holds no history.
    """
    try:
        with Path(path).open("rb") as file:
            snapshot = _Containers(file).load()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged pickle raises whatever its opcodes run into
        raise InputError(f"{path}: damaged, or no memory snapshot of PyTorch: {error}") from error
    traces = snapshot.get("device_traces") if isinstance(snapshot, dict) else None
    if not isinstance(traces, list) or not all(isinstance(each, list) for each in traces):
        raise InputError(
            f"{path}: no memory snapshot of PyTorch: it has no 'device_traces'; "
            "torch.cuda.memory._dump_snapshot writes them"
        )
    if device is None:
        device = max(range(len(traces)), key=lambda i: len(traces[i]), default=0)
    if not 0 <= device < len(traces) or not traces[device]:
        having = [str(i) for i, trace in enumerate(traces) if trace]
        raise InputError(
            f"{path}: no history of GPU {device}; "
            + (
                f"there is one of: {', '.join(having)}"
                if having
                else "call torch.cuda.memory._record_memory_history() before what is to be recorded"
            )
        )
    try:
        return _recorded(snapshot, traces[device], device, f"{path}: {NAME}")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(
            f"{path}: no memory snapshot of PyTorch: {type(error).__name__}: {error}"
        ) from error


def _recorded(
    snapshot: dict[str, Any], trace: list[dict[str, Any]], device: int, name: str
) -> Recorded:
    """Return the history, with what was there before it in front."""
    table = Columns()
    segments = [each for each in snapshot.get("segments", []) if each.get("device", 0) == device]
    for address, size, stream in _before(trace, segments):
        table.allocate(address, size, stream, 0, BEFORE)
    before = sum(table.bytes)
    base = sum(each["total_size"] for each in segments)
    changes = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    base -= sum(changes.get(each["action"], 0) * each["size"] for each in trace)
    reserved = peak = base
    first = next((each["time_us"] for each in trace if "time_us" in each), 0)
    waits = _waits(trace)
    for i, each in enumerate(trace):
        action, address = each["action"], each.get("addr", 0)
        time = (each.get("time_us", first) - first) * PS_PER_US
        if action in changes:
            reserved += changes[action] * each["size"]
            peak = max(peak, reserved)
            if action in ("segment_free", "segment_unmap") and _empties_cache(trace, i):
                table.add(Action.EMPTY_CACHE, time=time)
        elif action == "alloc":
            label = _label(each.get("frames") or [])
            table.allocate(address, each["size"], each.get("stream", 0), time, label)
        elif action == "free_requested":
            if i in waits and address in table.live:
                table.add(Action.USE, table.live[address], stream=-1 - i, time=time)
            table.free(address, time)
        elif action == "free_completed" and i in waits:
            table.add(Action.PASS, stream=-1 - waits[i], time=time)
    settings = snapshot.get("allocator_settings") or {}
    text = str(settings.get(NAME) or "")
    if not text and settings.get("expandable_segments"):
        text = "expandable_segments:True"
    allocations = table.finished()
    return Recorded(
        allocations,
        # Sizes of blocks are not recorded, what was asked for is.
        peak_allocated=replay(allocations, parse_settings(text, name)).peak_allocated,
        peak_reserved=peak,
        settings=text,
        device=device,
        before=before,
    )


class Columns:
    """Columns of `Allocations` that grow, by the addresses of blocks."""

    def __init__(self) -> None:
        self.action: list[int] = []
        self.block: list[int] = []
        self.bytes: list[int] = []
        self.stream: list[int] = []
        self.time: list[int] = []
        self.label: list[int] = []
        self.labels: dict[str, int] = {}
        self.live: dict[int, int] = {}
        self.blocks = 0

    def add(
        self,
        action: Action,
        block: int = -1,
        size: int = 0,
        stream: int = 0,
        time: int = 0,
        label: int = -1,
    ) -> None:
        """Add a row."""
        self.action.append(action)
        self.block.append(block)
        self.bytes.append(size)
        self.stream.append(stream)
        self.time.append(time)
        self.label.append(label)

    def allocate(self, address: int, size: int, stream: int, time: int, label: str) -> None:
        """Add an allocation; what is at the address by now goes, its free was not recorded."""
        if size < 0:
            raise ValueError(f"an allocation of {size} bytes")
        self.free(address, time)
        number = self.labels.setdefault(label, len(self.labels)) if label else -1
        self.live[address] = self.blocks
        self.add(Action.ALLOCATE, self.blocks, size, stream, time, number)
        self.blocks += 1

    def free(self, address: int, time: int) -> None:
        """Add a free, if there is something at the address."""
        if address in self.live:
            self.add(Action.FREE, self.live.pop(address), time=time)

    def finished(self) -> Allocations:
        """Return the table."""
        return Allocations(
            np.array(self.action, np.int8),
            np.array(self.block, np.int64),
            np.array(self.bytes, np.int64),
            np.array(self.stream, np.int64),
            np.array(self.time, np.int64),
            np.array(self.label, np.int32),
            tuple(self.labels),
        )


def _before(
    trace: list[dict[str, Any]], segments: list[dict[str, Any]]
) -> list[tuple[int, int, int]]:
    """Return address, bytes and stream of what was allocated when the history began."""
    made: set[int] = set()
    there: dict[int, tuple[int, int]] = {}
    for each in trace:
        if each["action"] == "alloc":
            made.add(each["addr"])
        elif each["action"] == "free_requested":
            if each["addr"] not in made and each["addr"] not in there:
                there[each["addr"]] = each["size"], each.get("stream", 0)
            made.discard(each["addr"])
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            address = block.get("address", address)
            if block["state"] == "active_allocated" and address not in made:
                size = block.get("requested_size") or block["size"]
                there.setdefault(address, (size, segment.get("stream", 0)))
            address += block["size"]
    return [(address, *there[address]) for address in sorted(there)]


def _waits(trace: list[dict[str, Any]]) -> dict[int, int]:
    """Return the rows of frees that waited for another stream, each with the row of its request."""
    requested: dict[int, int] = {}
    waits = {}
    for i, each in enumerate(trace):
        if each["action"] == "free_requested":
            requested[each["addr"]] = i
        elif each["action"] == "free_completed":
            begin = requested.pop(each["addr"], None)
            if begin is not None and i > begin + 1:
                waits[i] = begin
                waits[begin] = begin
    return {**waits, **{begin: begin for begin in requested.values()}}


def _empties_cache(trace: list[dict[str, Any]], i: int) -> bool:
    """Whether memory is given back for its own sake, as `torch.cuda.empty_cache` does.

    Where an allocation needs it, a new segment, or the lack of it, comes behind.
    """
    gives = ("segment_free", "segment_unmap", "free_completed")
    if i and trace[i - 1]["action"] in gives[:2]:
        return False  # said with the first of them
    while i < len(trace) and trace[i]["action"] in gives:
        i += 1
    return i == len(trace) or trace[i]["action"] not in ("segment_alloc", "segment_map", "oom")


def _label(frames: list[dict[str, Any]]) -> str:
    """Return the innermost frame of the program's own code."""
    for frame in frames:
        if not frame["filename"]:  # a label that `write_snapshot` has written
            return str(frame["name"])
        if not any(part in frame["filename"] for part in LIBRARIES):
            return f"{Path(frame['filename']).name}:{frame['line']} {frame['name']}"
    return str(frames[0]["name"]) if frames else ""


def write_snapshot(
    path: str | Path,
    allocations: Allocations,
    settings: str = "",
    capacity: int | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Run allocations, and write what the allocator did as a snapshot of PyTorch.

    Parameters
    ----------
    path : str or Path
    allocations : Allocations
    settings : str
        As PYTORCH_CUDA_ALLOC_CONF.
    capacity : int, optional
        Bytes that the driver can give.
    overwrite : bool
        Whether a file of that name may be replaced.
    """
    trace: list[dict[str, Any]] = []
    frames = [[{"filename": "", "line": 0, "name": label}] for label in allocations.labels]

    def record(action: str, address: int, size: int, stream: int) -> None:
        entry = {"action": action, "addr": address, "size": size, "stream": stream, "frames": []}
        if action == "oom":
            entry["device_free"] = address
        trace.append(entry)

    parsed = parse_settings(settings)
    allocator = CachingAllocator(parsed, capacity, recorder=record)
    live: dict[int, Block] = {}
    replay(allocations, live=live, allocator=allocator)
    _complete(trace, allocations, frames)
    numbers = {id(block): number for number, block in live.items()}
    label = dict(
        zip(
            allocations.block[allocations.action == Action.ALLOCATE].tolist(),
            allocations.label[allocations.action == Action.ALLOCATE].tolist(),
            strict=True,
        )
    )

    def frames_of(block: Block) -> list[dict[str, Any]]:
        at = label[numbers[id(block)]] if block.allocated else -1
        return frames[at] if at >= 0 else []

    segments = [
        _segment(blocks, frames_of) for blocks in allocator.segments_of_blocks(live.values())
    ]
    snapshot = {
        "segments": segments,
        "device_traces": [trace],
        "allocator_settings": {
            NAME: settings,
            "expandable_segments": parsed.expandable_segments,
        },
        "external_annotations": [],
    }
    with write_whole(path, overwrite=overwrite) as file:
        pickle.dump(snapshot, file, protocol=4)


def _segment(
    blocks: Sequence[Block], frames_of: Callable[[Block], list[dict[str, Any]]]
) -> dict[str, Any]:
    """Blocks of one segment in the order of addresses → its entry in a snapshot."""
    head = blocks[0]
    active = [block for block in blocks if block.allocated or block.waiting]
    return {
        "device": 0,
        "address": head.address,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": sum(block.size for block in blocks if block.allocated),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": head.stream,
        "segment_type": "small" if head.pool.small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": head.expandable is not None,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": _state(block),
                "frames": frames_of(block),
            }
            for block in blocks
        ],
    }


def _state(block: Block) -> str:
    """Block → what a snapshot calls its state."""
    if block.allocated:
        return "active_allocated"
    return "active_awaiting_free" if block.waiting else "inactive"


def _complete(
    trace: list[dict[str, Any]], allocations: Allocations, frames: list[list[dict[str, Any]]]
) -> None:
    """Give entries of a trace their times and frames: it has the allocations in their order."""
    allocates = np.flatnonzero(allocations.action == Action.ALLOCATE)
    frees = np.flatnonzero(allocations.action == Action.FREE)
    at = {"alloc": iter(allocates.tolist()), "free_requested": iter(frees.tolist())}
    where: dict[int, list[dict[str, Any]]] = {}
    row = 0
    for entry in trace:
        action = entry["action"]
        if action in at:
            row = next(at[action])
        if action == "alloc":
            number = int(allocations.label[row])
            where[entry["addr"]] = frames[number] if number >= 0 else []
        if action in ("alloc", "free_requested", "free_completed"):
            entry["frames"] = where.get(entry["addr"], [])
        entry["time_us"] = int(allocations.time[row]) // PS_PER_US
