"""Kineto trace with memory events → allocations.

`torch.profiler.profile(profile_memory=True)` writes an instant event ``[memory]`` for every
allocation and free: bytes of the block (what was asked for, rounded), its address, and the totals
of the device. What was there before is known by its sum alone, but for the blocks freed meanwhile.
Streams are not recorded: all is taken to be on one, and what waited for another stream not to have
waited.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..base.errors import InputError, TraceError
from ..base.quantity import PS_PER_US
from ..memory.allocations import Recorded
from ..traces.raw import Int64, open_text
from .torch_snapshot import BEFORE, Columns

__all__ = ["read_kineto_memory"]

CUDA = 1
"""`Device Type` of GPUs (c10::DeviceType)."""

NOWHERE = -1
"""Address of what was there before and stays."""


_Bytes = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
_MOST_US = 1e12
"""Longest recording that is read: 11 days, whose picoseconds fit 64 bits."""


class _Arguments(
    msgspec.Struct,
    rename={
        "kind": "Device Type",
        "device": "Device Id",
        "address": "Addr",
        "size": "Bytes",
        "allocated": "Total Allocated",
        "reserved": "Total Reserved",
    },
):
    kind: int = -1
    device: int = -1
    address: int | None = None
    size: _Bytes = 0
    allocated: _Bytes | None = None
    reserved: _Bytes | None = None


class _Event(msgspec.Struct):
    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float | Int64 | str | None = None
    dur: float | Int64 | None = None
    pid: int | str = 0
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw(b"")


class _File(msgspec.Struct, rename="camel"):
    trace_events: list[_Event]


_FILE = msgspec.json.Decoder(_File, strict=False)
_LIST = msgspec.json.Decoder(list[_Event], strict=False)
_ARGUMENTS = msgspec.json.Decoder(_Arguments, strict=False)

MODULE = "nn.Module: "
"""Begin of the names of modules, recorded with ``with_stack`` or ``with_modules``."""


def read_kineto_memory(path: str | Path, device: int | None = None) -> Recorded:
    """Read the allocations of one GPU from a Kineto trace (``.json``, ``.json.gz``).

    Labels are the innermost module around an allocation where modules were recorded, else the
    outermost operator.

    Parameters
    ----------
    path : str or Path
    device : int, optional
        Number of the GPU; by default the one with most events.

    Raises
    ------
    TraceError
        If it is no such trace, or has no memory events.
    """
    path = Path(path)
    events = _events(path)
    memory = _memory(path, events)
    devices = sorted({each.device for _, each, _ in memory})
    if device is None:
        device = max(devices, key=lambda d: sum(each.device == d for _, each, _ in memory))
    chosen = [each for each in memory if each[1].device == device]
    if not chosen:
        having = ", ".join(map(str, devices))
        raise InputError(f"{path}: no memory events of GPU {device}; there are some of: {having}")
    return _recorded(chosen, _labels(events, chosen), device)


def _events(path: Path) -> list[_Event]:
    text = open_text(path)
    try:
        if text[:64].lstrip()[:1] == b"[":
            return _LIST.decode(text)
        return _FILE.decode(text).trace_events
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path}: no Kineto trace, nor a memory snapshot: {error}") from None


Entry = tuple[float, _Arguments, _Event]


def _memory(path: Path, events: list[_Event]) -> list[Entry]:
    """Return the memory events of GPUs, in order."""
    found: list[Entry] = []
    for event in events:
        if event.name != "[memory]" or event.ph not in ("i", "I"):
            continue
        try:
            arguments = _ARGUMENTS.decode(event.args)
            when = float(event.ts)  # type: ignore[arg-type]
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            raise TraceError(f"{path}: a [memory] event that is not understood: {error}") from None
        if not math.isfinite(when):
            raise TraceError(f"{path}: a [memory] event at {event.ts!r}, which is no time")
        if arguments.kind == CUDA and arguments.size:
            found.append((when, arguments, event))
    if not found:
        raise TraceError(
            f"{path}: no [memory] events of a GPU; record with "
            "torch.profiler.profile(profile_memory=True), or a snapshot with "
            "torch.cuda.memory._record_memory_history"
        )
    if any(each.address is None or each.allocated is None for _, each, _ in found):
        raise TraceError(
            f"{path}: its [memory] events have no addresses or totals; PyTorch 1.12 and later "
            "write them"
        )
    found.sort(key=lambda each: each[0])  # stable: events at one time stay in their order
    if found[-1][0] - found[0][0] > _MOST_US:
        raise TraceError(
            f"{path}: its [memory] events span {(found[-1][0] - found[0][0]) / 1e6:.3g} s; at most "
            f"{_MOST_US / 1e6:.0g} s are read"
        )
    return found


def _recorded(entries: list[Entry], labels: list[str], device: int) -> Recorded:
    """Return the table: first what was there, then the events."""
    made: set[int] = set()
    there: dict[int, int] = {}
    for _, each, _ in entries:
        assert each.address is not None
        if each.size > 0:
            made.add(each.address)
        elif each.address in made:
            made.discard(each.address)
        else:
            there.setdefault(each.address, -each.size)
    first = entries[0][1]
    # No less than what is freed without having been allocated, whatever the totals say.
    before = max((first.allocated or 0) - first.size, sum(there.values()))
    rest = before - sum(there.values())
    table = Columns()
    if rest > 0:
        table.allocate(NOWHERE, rest, 0, 0, BEFORE)
    for address in sorted(there):
        table.allocate(address, there[address], 0, 0, BEFORE)
    for (when, each, _), label in zip(entries, labels, strict=True):
        assert each.address is not None
        time = round((when - entries[0][0]) * PS_PER_US)
        if each.size > 0:
            table.allocate(each.address, each.size, 0, time, label)
        else:
            table.free(each.address, time)
    reserved = [each.reserved for _, each, _ in entries if each.reserved]
    return Recorded(
        table.finished(),
        peak_allocated=max(before, *(each.allocated or 0 for _, each, _ in entries)),
        peak_reserved=max(reserved) if reserved else None,
        device=device,
        before=before,
    )


def _labels(events: list[_Event], entries: list[Entry]) -> list[str]:
    """Return, for each entry, the module or operator that it happens in."""
    spans: dict[Any, list[tuple[float, float, str, bool]]] = {}
    threads = {(event.pid, event.tid) for _, _, event in entries}
    for event in events:
        module = event.name.startswith(MODULE)
        if event.ph != "X" or (event.pid, event.tid) not in threads:
            continue
        if not module and event.cat not in ("cpu_op", "Operator"):
            continue
        if isinstance(event.ts, int | float) and isinstance(event.dur, int | float):
            name = event.name.removeprefix(MODULE)
            key = event.pid, event.tid
            spans.setdefault(key, []).append((event.ts, event.ts + event.dur, name, module))
    labels = [""] * len(entries)
    for key, inside in spans.items():
        inside.sort(key=lambda each: (each[0], -each[1]))
        open_: list[tuple[float, float, str, bool]] = []
        at = 0
        for i, (when, _, event) in enumerate(entries):
            if (event.pid, event.tid) != key:
                continue
            while at < len(inside) and inside[at][0] <= when:
                while open_ and open_[-1][1] < inside[at][0]:
                    open_.pop()
                open_.append(inside[at])
                at += 1
            while open_ and open_[-1][1] < when:
                open_.pop()
            modules = [each[2] for each in open_ if each[3]]
            labels[i] = modules[-1] if modules else open_[0][2] if open_ else ""
    return labels
