"""One rank's trace → launch latencies, gaps of streams, and starts that no dependency explains.

A start is explained when it lies within `ALLOWANCE` of the latest of: the launching call plus the
launch latency, the end before it on its stream plus the usual gap, the ends of what it waits for.
The latency and the gap are medians over the operations that were plainly bound by the one or the
other, for each sort of operation. Latencies can be negative: the CPU's and the GPU's clocks differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..base.presets import packaged
from ..base.quantity import PS_PER_US, Quantity, picoseconds
from ..base.schema import build
from .host import Call
from .kineto import KERNEL, KinetoTrace
from .waits import Inference

__all__ = ["DeviceTiming", "explain_late_starts", "measure_timing"]

ALLOWANCE = 25 * PS_PER_US
"""A start later by more than this than all its known inputs is unexplained."""
_MIN_QUEUED_TIME = 20 * PS_PER_US
"""Launched this long before its stream was free, an operation was bound by the stream."""
_MAX_RELEASE_DELAY = 25 * PS_PER_US
"""An operation released by an event starts this soon after it."""
_FULL_BLOCKS_PER_SM = 4.0
"""A kernel with this many blocks a streaming multiprocessor leaves no room for another's."""
_DRAIN_SHARE = 0.2
"""Share of such a kernel's time during which its last blocks leave room already."""
_MIN_PERSISTENT_BLOCKS = 0.75
"""A long kernel with about one block a multiprocessor (persistent) can fill the device too."""
_MIN_PERSISTENT_LENGTH = 50 * PS_PER_US
"""A kernel with few blocks is taken for a persistent one only where it is longer than this."""
_LOOK_BACK = 400
"""How many operations before a late one are looked at."""
_NEVER = np.iinfo(np.int64).min // 4

FILE = "replay.toml"


@dataclass
class DeviceTiming:
    """How the device operations of one rank followed their inputs. Times in int64 ps.

    Attributes
    ----------
    call : int64, shape (n,)
        Position of the launching call; -1 where it was not recorded.
    previous : int64, shape (n,)
        The operation before it on its stream; -1 for the first.
    latency, gap : int64, shape (n,)
        Launch latency and gap of each operation: its own where it was bound by that input and
        within the allowance, else the usual one of its sort.
    excess : int64, shape (n,)
        What its known inputs do not explain of each start, beyond the allowance; 0 mostly.
    """

    call: NDArray[np.int64]
    previous: NDArray[np.int64]
    latency: NDArray[np.int64]
    gap: NDArray[np.int64]
    excess: NDArray[np.int64]


def measure_timing(trace: KinetoTrace, calls: list[Call], inferred: Inference) -> DeviceTiming:
    """Measure latencies, gaps and unexplained starts of one rank.

    Parameters
    ----------
    trace : KinetoTrace
    calls : list of Call
        Of this trace, in order of begin; its positions are what `inferred` names.
    inferred : Inference
        Its `waits` are inputs of each operation; not changed.
    """
    device = trace.device
    n = len(device)
    call = np.full(n, -1, np.int64)
    called = np.full(n, _NEVER, np.int64)
    for position, entry in enumerate(calls):
        for op in entry.ops:
            call[op], called[op] = position, entry.begin
    previous = _previous_on_stream(device.stream)
    stream_free = np.where(previous >= 0, device.end[previous], _NEVER)
    released = np.array(
        [max((int(device.end[w]) for w in waits), default=_NEVER) for waits in inferred.waits],
        np.int64,
    ).reshape(n)
    device_free = np.maximum(stream_free, released)
    launched = call >= 0
    by_host = launched & (device_free < called)
    by_device = (device_free > _NEVER) & (~launched | (called + _MIN_QUEUED_TIME < device_free))
    sort = np.where(device.kind == KERNEL, 0, 1)
    by_wait = by_device & (released > stream_free)
    gap = _default("stream_gap")
    usual_latency = _usual(device.begin - called, by_host, sort, _default("launch_latency"))
    usual_gap = _usual(device.begin - stream_free, by_device & ~by_wait, sort, gap)
    usual_release = _usual(device.begin - released, by_wait, sort * 0, gap)
    usual_gap = np.where(released > stream_free, usual_release, usual_gap)
    host_ready = np.where(launched, called + usual_latency, _NEVER)
    device_ready = np.where(device_free > _NEVER, device_free + usual_gap, _NEVER)
    expected = np.maximum(host_ready, device_ready)
    known = expected > _NEVER
    late = np.where(known, device.begin - expected, 0)
    host_bound = host_ready >= device_ready
    # Work that the call itself did first (staging a copy, loading a module) is launch latency.
    returned = np.array([entry.end for entry in calls] or [0], np.int64)[call]
    in_call = launched & host_bound & (device.begin <= returned + ALLOWANCE)
    own = np.where(in_call, late, np.clip(late, -ALLOWANCE, ALLOWANCE))
    return DeviceTiming(
        call=call,
        previous=previous,
        latency=np.where(host_bound, usual_latency + own, usual_latency),
        gap=np.where(host_bound, usual_gap, usual_gap + own),
        excess=late - own,
    )


def _previous_on_stream(stream: NDArray[np.int32]) -> NDArray[np.int64]:
    previous = np.full(len(stream), -1, np.int64)
    order = np.argsort(stream, kind="stable")
    same = stream[order][1:] == stream[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _default(name: str) -> int:
    """Name of a number of data/replay.toml → ps."""
    return picoseconds(build(Quantity, packaged(FILE)[name], FILE, name).si)


def _usual(
    values: NDArray[np.int64], chosen: NDArray[np.bool_], sort: NDArray[np.int64], default: int
) -> NDArray[np.int64]:
    """Median of the chosen values of each sort; of all sorts, or the default, where too few."""
    result = np.full(len(values), default, np.int64)
    everything = values[chosen]
    if len(everything):
        result[:] = int(np.median(everything))
    for number in np.unique(sort):
        own = values[chosen & (sort == number)]
        if len(own) >= 5:
            result[sort == number] = int(np.median(own))
    return result


def explain_late_starts(trace: KinetoTrace, calls: list[Call], inferred: Inference) -> DeviceTiming:
    """Measure the timing; then look again at the starts that it leaves unexplained.

    Three rules add waits to `inferred`, chosen by recorded times among what is possible; counted:

    ``late start: event wait``
        An event wait was called between the launch before it on its stream and its own, and the
        work of another stream that it could have meant ended just before the start.
    ``late start: launch not recorded``
        The launch, and any event wait before it, lies before the recording; another stream's work
        ended just before the start.
    ``late start: occupied device``
        Another stream's kernel with 8 blocks or more a multiprocessor was running when the
        operation became ready, and was ending when it started.

    Parameters
    ----------
    trace : KinetoTrace
    calls : list of Call
        Of this trace, in order of begin; its positions are what `inferred` names.
    inferred : Inference
        Changed in place: `waits` and `counts` grow.

    Returns
    -------
    DeviceTiming
        With the added waits as inputs.
    """
    timing = measure_timing(trace, calls, inferred)
    late = np.flatnonzero(timing.excess > 0)
    if not len(late):
        return timing
    added = False
    for op in late.tolist():
        rule, source = "late start: event wait", _from_event_waits(trace, inferred, timing, op)
        if source < 0 and timing.call[op] < 0:
            rule, source = "late start: launch not recorded", _released_by(trace, op, 0)
        if source < 0:
            rule, source = "late start: occupied device", _occupant(trace, op)
        if source >= 0:
            inferred.waits[op].append(source)
            inferred.counts[rule] += 1
            added = True
    return measure_timing(trace, calls, inferred) if added else timing


def _from_event_waits(
    trace: KinetoTrace, inferred: Inference, timing: DeviceTiming, op: int
) -> int:
    """The work that an event wait before this launch could have meant; -1 if none fits."""
    before = timing.previous[op]
    first = timing.call[before] if before >= 0 else -1
    positions = [w.position for w in inferred.event_waits if first < w.position < timing.call[op]]
    if not positions:
        return -1
    return _released_by(trace, op, max(positions), timing)


def _released_by(
    trace: KinetoTrace, op: int, position: int, timing: DeviceTiming | None = None
) -> int:
    """The work of another stream that ended just before an operation started, or -1.

    With a timing, only work launched before the call at `position`.
    """
    device = trace.device
    begin = int(device.begin[op])
    best = -1
    for other in range(op - 1, max(-1, op - _LOOK_BACK), -1):
        if device.stream[other] == device.stream[op]:
            continue
        if timing is not None and timing.call[other] >= position:
            continue
        fits = -3 * PS_PER_US <= begin - int(device.end[other]) <= _MAX_RELEASE_DELAY
        if fits and (best < 0 or device.end[other] > device.end[best]):
            best = other
    return best


def _occupant(trace: KinetoTrace, op: int) -> int:
    """The big kernel of another stream behind whose last blocks an operation started, or -1."""
    device = trace.device
    begin = int(device.begin[op])
    best = -1
    for other in range(op - 1, max(-1, op - _LOOK_BACK), -1):
        if device.stream[other] == device.stream[op]:
            continue
        length = int(device.end[other] - device.begin[other])
        early = int(device.end[other]) - begin
        if device.blocks_per_sm[other] >= _FULL_BLOCKS_PER_SM:
            drain = max(_MAX_RELEASE_DELAY, int(_DRAIN_SHARE * length))
        elif (
            device.blocks_per_sm[other] >= _MIN_PERSISTENT_BLOCKS
            and length > _MIN_PERSISTENT_LENGTH
        ):
            drain = max(_MAX_RELEASE_DELAY, int(_DRAIN_SHARE / 2 * length))
        else:
            continue
        if -_MAX_RELEASE_DELAY <= early <= drain and (
            best < 0 or device.end[other] > device.end[best]
        ):
            best = other
    return best
