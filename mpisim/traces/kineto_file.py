"""PyTorch Kineto (Chrome) trace file → `KinetoTrace`.

Only what replay needs is decoded. Old and new files differ in many details (see the fields of
`.kineto.Arguments`); everything above this module sees one form.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..base.errors import TraceError
from ..base.quantity import PS_PER_US
from .kineto import (
    KERNEL,
    MEMCPY,
    MEMSET,
    MOST_RANKS,
    Arguments,
    DeviceOps,
    KinetoTrace,
    Spans,
    SyncRecord,
)
from .raw import Int64, not_json, open_text

__all__ = ["read_kineto"]

_MOST_US = 1_000_000_000_000
"""Longest time (11 days) and largest span of a file: picoseconds and their sums fit 64 bits."""

_OPERATOR = {"cpu_op", "Operator"}
_ANNOTATION = {"user_annotation"}
_CALL = {
    "cuda_runtime",
    "cuda_driver",
    "Runtime",
    "mtia_runtime",
    "xpu_runtime",
    "xpu_driver",
    "privateuse1_runtime",
    "privateuse1_driver",
}
"""Names of Kineto's activity types (``libkineto/include/ActivityType.h`` of pytorch/kineto)."""
_DEVICE = {
    "kernel": KERNEL,
    "Kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "Memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "Memset": MEMSET,
}


class _Event(msgspec.Struct, gc=False):
    """One trace event. Flow, instant and metadata events carry no `dur` and are dropped."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float | Int64 | str | None = None
    dur: float | Int64 | None = None
    pid: int | str = 0
    tid: int | str = 0
    args: Arguments | None = None


class _File(msgspec.Struct, rename="camel"):
    """The top level of a trace file."""

    trace_events: list[_Event]
    distributed_info: dict[str, Any] | None = None
    device_properties: list[dict[str, Any]] = []
    base_time_nanoseconds: int = 0


_NUMBERS = (int, float)
_FILE = msgspec.json.Decoder(_File, strict=False)
_LIST = msgspec.json.Decoder(list[_Event], strict=False)


def read_kineto(path: Path | str) -> KinetoTrace:
    """Read one Kineto trace file (``.json`` or ``.json.gz``).

    Raises
    ------
    TraceError
        If the file cannot be read, is not a Kineto trace, or holds impossible times.
    """
    path = Path(path)
    text = open_text(path)
    with _no_collection():
        parsed = _parse(path, text)
        return _columns(path, parsed, len(text))


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from walking a million new objects that all stay alive."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _parse(path: Path, text: bytes) -> _File:
    try:
        if text[:64].lstrip()[:1] == b"[":
            return _File(trace_events=_LIST.decode(text))
        return _FILE.decode(text)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path}: not a Kineto trace: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: not valid JSON: {not_json(text) or error}") from None
    except RecursionError:
        raise TraceError(f"{path}: not a Kineto trace: nested too deeply") from None


def _columns(path: Path, parsed: _File, size: int) -> KinetoTrace:
    operators: list[_Event] = []
    annotations: list[_Event] = []
    calls: list[_Event] = []
    device: list[tuple[_Event, int]] = []
    syncs: list[_Event] = []
    for event in parsed.trace_events:
        if event.ph != "X":
            continue
        category = event.cat
        if category in _OPERATOR:
            target = annotations if event.name.startswith("ProfilerStep") else operators
            if category == "Operator" and event.args is not None and not bytes(event.args.dims):
                event.args.dims = event.args.dims_old  # of PyTorch 1.8 and 1.9
            target.append(event)
        elif category in _CALL:
            calls.append(event)
        elif category in _DEVICE:
            device.append((event, _DEVICE[category]))
        elif category in _ANNOTATION:
            annotations.append(event)
        elif category == "cuda_sync":
            syncs.append(event)
    kept = [*operators, *annotations, *calls, *(event for event, _ in device)]
    if not kept:
        raise TraceError(f"{path}: not a Kineto trace: no operators, calls or kernels in it")
    # Whole µs, so that subtracting it from a float64 time loses nothing.
    first = int(_first_time(path, parsed, kept)) - 1
    threads: dict[tuple[int | str, int | str], int] = {}

    def spans(found: list[_Event]) -> Spans:
        times, lengths = _times(found)
        order = np.lexsort((-lengths, times))
        events = [found[i] for i in order.tolist()]
        begin = _ps(times[order] - first)
        return Spans(
            name=[e.name for e in events],
            begin=begin,
            end=begin + _ps(lengths[order]),
            thread=np.array(
                [threads.setdefault((e.pid, e.tid), len(threads)) for e in events], np.int32
            ),
            args=[e.args for e in events],
        )

    info = parsed.distributed_info or {}
    streams: dict[tuple[int, int], int] = {}
    ops = _device_ops(path, device, first, streams)
    described = next(iter(parsed.device_properties), {})
    return KinetoTrace(
        path=path,
        rank=_whole(info.get("rank")),
        world_size=_whole(info.get("world_size")),
        backend=str(info.get("backend", "")),
        origin=first + parsed.base_time_nanoseconds // 1000,
        operators=spans(operators),
        annotations=spans(annotations),
        calls=spans(calls),
        syncs=_syncs(syncs, streams),
        device=ops,
        streams=[stream for _, stream in streams],
        groups=_groups(path, info),
        device_name=str(described.get("name", "")),
        size=size,
        multiprocessors=_whole(described.get("numSms")) or 0,
    )


def _times(events: list[_Event]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Events → when they begin, and how long they take, in µs."""
    begins = np.array([each.ts for each in events], np.float64)
    return begins, np.array([each.dur for each in events], np.float64)


def _ps(times: NDArray[np.float64]) -> NDArray[np.int64]:
    """Times in µs → in ps."""
    return np.rint(times * PS_PER_US).astype(np.int64)


def _first_time(path: Path, parsed: _File, kept: list[_Event]) -> float:
    """Return the earliest time in µs, after refusing times that cannot be."""
    begins: list[Any] = [each.ts for each in kept]
    lengths: list[Any] = [each.dur for each in kept]
    numbers = {*map(type, begins), *map(type, lengths)} <= set(_NUMBERS)
    # The sum is no number if a NaN, whose comparisons all fail, is among them.
    whole = numbers and not math.isnan(sum(begins) + sum(lengths))
    if not (whole and min(lengths) >= 0 and max(lengths) <= _MOST_US):
        for event in kept:
            _check_time(path, parsed, event)
    first, last = min(begins), max(begins)
    if not last - first <= _MOST_US:
        late = next(event for event in kept if event.ts == last)
        raise TraceError(
            f"{_where(path, parsed, late)}: begins {(last - first) / 1e6:.3g} s after the first "
            f"event; at most {_MOST_US / 1e6:.0g} s are read"
        )
    return first


def _check_time(path: Path, parsed: _File, event: _Event) -> None:
    """Refuse an event whose times cannot be."""
    times: tuple[Any, ...] = event.ts, event.dur
    numbers = all(type(value) in _NUMBERS and value == value for value in times)
    if not numbers or not 0 <= times[1] <= _MOST_US:
        raise TraceError(f"{_where(path, parsed, event)}: {_strange_time(event)}")


def _where(path: Path, parsed: _File, event: _Event) -> str:
    """Name the file and an event of it."""
    row = next(i for i, other in enumerate(parsed.trace_events) if other is event)
    return f"{path}: event {row} ({event.name!r})"


def _strange_time(event: _Event) -> str:
    """Say what is wrong with the times of an event."""
    for key in ("ts", "dur"):
        value = getattr(event, key)
        if type(value) not in _NUMBERS or value != value:
            return f"{key!r} is {value!r}; it must be a number of µs"
    if event.dur < 0:  # type: ignore[operator]
        return f"the duration is negative ('dur' is {event.dur})"
    return f"'dur' is {event.dur} µs; at most {_MOST_US:.0e} are read"


def _device_ops(
    path: Path,
    device: list[tuple[_Event, int]],
    first: int,
    streams: dict[tuple[int, int], int],
) -> DeviceOps:
    """Columns of the device operations of one GPU, streams numbered as they appear."""
    device.sort(key=lambda item: (item[0].ts, item[0].dur))
    args = [event.args or Arguments() for event, _ in device]
    raw = [
        (_stream(e.pid), _stream(a.stream if a.stream is not None else e.tid))
        for a, (e, _) in zip(args, device, strict=True)
    ]
    times, lengths = _times([event for event, _ in device])
    begin = _ps(times - first)
    return DeviceOps(
        name=[event.name for event, _ in device],
        kind=np.array([kind for _, kind in device], np.uint8),
        begin=begin,
        end=begin + _ps(lengths),
        stream=np.array([streams.setdefault(s, len(streams)) for s in raw], np.int32),
        correlation=np.array(
            [-1 if a.correlation is None else a.correlation for a in args], np.int64
        ),
        blocks_per_sm=np.array([_number(a.blocks_per_sm) for a in args]),
        bytes=np.array([-1 if a.bytes is None else a.bytes for a in args], np.int64),
        args=args,
    )


def _syncs(events: list[_Event], streams: dict[tuple[int, int], int]) -> list[SyncRecord]:
    """Synchronisation records, with streams numbered as those of the device operations."""

    def number(device: int | str | None, stream: int | str | None) -> int:
        return -1 if stream is None else streams.get((_stream(device), _stream(stream)), -1)

    return [
        SyncRecord(
            event.name,
            -1 if args.correlation is None else args.correlation,
            number(args.device, args.stream),
            number(args.device, args.wait_on_stream),
            -1 if args.wait_on_record is None else args.wait_on_record,
        )
        for event in events
        if (args := event.args) is not None
    ]


def _groups(path: Path, info: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Process groups by name; an empty list of ranks means the whole world."""
    groups: dict[str, tuple[int, ...]] = {}
    world = _whole(info.get("world_size")) or 0
    if world > MOST_RANKS:
        raise TraceError(f"{path}: 'world_size' is {world}; at most {MOST_RANKS} are read")
    config = info.get("pg_config")
    for entry in config if isinstance(config, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("ranks"), list):
            bad = [r for r in entry["ranks"] if _whole(r) is None]
            if bad:
                raise TraceError(
                    f"{path}: 'pg_config' has the rank {bad[0]!r}; ranks are whole numbers"
                )
            groups[str(entry.get("pg_name", ""))] = tuple(entry["ranks"]) or tuple(range(world))
    return groups


def _stream(value: int | str | None) -> int:
    """Stream number of an event; old files write ``"stream 7"``."""
    if isinstance(value, int):
        return value
    digits = "".join(c for c in str(value) if c.isdecimal())
    return int(digits) if digits else -1


def _number(value: float | str | None) -> float:
    try:
        return float(value) if value is not None else 0.0
    except ValueError:
        return 0.0


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
