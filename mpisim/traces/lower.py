"""One rank's trace → a table: CPU work, device operations on streams, and their dependencies.

Every recorded start is turned into a gap or a latency behind what it followed (see `timing`); no
recorded start enters the table. Calls that waited for the device become waits, and only what they
took after the device was done remains CPU time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.quantity import PS_PER_US
from ..program import Kind, Names, Table, TableBuilder
from .host import Call, CallKind
from .kineto import KERNEL, KinetoTrace
from .timing import DeviceTiming
from .waits import Inference

__all__ = ["QUEUE_DEPTH", "Lowered", "Stall", "lower"]

QUEUE_DEPTH = 1022
"""Launches in flight on one stream before a launching call blocks (measured on V100: 1,020-1,022
in the ZeRO traces; the driver's channel has 1,024 entries)."""
_FULL_QUEUE = 1000
"""Launches in flight from which on a queue counts as full: fewer than it holds, since which of them
had ended is known to the clocks' error."""
_MIN_BLOCKED_CALL = 100 * PS_PER_US
"""A launching call that takes longer, with a full queue, has waited for room in it."""
_MIN_LISTED_STALL = 100 * PS_PER_US
"""A blocking call that returns this long after the device was done is listed."""

EmitCommunication = Callable[[TableBuilder, int, dict[str, int], list[int]], list[int]]
"""Appends the rows of one communication kernel: (rows, operation, host columns, waits)."""


class Stall(NamedTuple):
    """A call that took long without a known cause: kept as CPU time."""

    seconds: float
    name: str
    step: int
    end: int
    """When it returned, in ps from the file's origin."""


@dataclass
class Lowered:
    """A rank's table, with the recorded operation and times of each row.

    Attributes
    ----------
    table : Table
    op : int64, shape (n_rows,)
        Device operation of each row; -1 for host rows.
    begin, end : int64, shape (n_rows,)
        Recorded times of each row, in ps from the file's origin; marks of steps have both equal.
    start : int
        When the rank starts, ps from the file's origin: its first event.
    stalls : list of Stall
        Blocking calls that returned long after the device was done, and calls of the allocator
        that took long: kept as CPU time.
    """

    table: Table
    op: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    start: int
    stalls: list[Stall] = field(default_factory=list)


class _Writer:
    """Writes rows in host order, and keeps what has been recorded of each."""

    def __init__(
        self,
        trace: KinetoTrace,
        inferred: Inference,
        timing: DeviceTiming,
        names: Names,
        emit: EmitCommunication | None,
        is_comm: list[bool],
    ) -> None:
        self.trace, self.inferred, self.timing = trace, inferred, timing
        self.rows = TableBuilder(names, label=trace.path.name)
        self.emit = emit
        self.is_comm = is_comm
        self.row_of: dict[int, int] = {}
        self.op: list[int] = []
        self.recorded: list[tuple[int, int]] = []
        self.stalls: list[Stall] = []
        self.step = -1

    def note(self, first: int, op: int, begin: int, end: int) -> None:
        """Remember what the rows from `first` on represent."""
        for _ in range(first, len(self.rows)):
            self.op.append(op)
            self.recorded.append((begin, end))

    def waits_of(self, ops: list[int]) -> list[int]:
        """Rows of operations; those not launched yet cannot be waited for."""
        return sorted({self.row_of[op] for op in ops if op in self.row_of})

    def device(self, op: int, host: int, latency: int, cost: int) -> None:
        """Write the row of one device operation."""
        device, first = self.trace.device, len(self.rows)
        columns = {
            "host": host,
            "launch": latency,
            "launch_cost": cost,
            "gap": int(self.timing.gap[op]),
        }
        waits = self.waits_of(self.inferred.waits[op])
        begin, end = int(device.begin[op]), int(device.end[op])
        if self.is_comm[op] and self.emit is not None:
            self.row_of[op] = self.emit(self.rows, op, columns, waits)[-1]
        else:
            self.row_of[op] = self.rows.kernel(
                device.name[op],
                int(device.stream[op]),
                end - begin,
                waits=waits,
                kind=Kind.KERNEL if device.kind[op] == KERNEL else Kind.COPY,
                bytes=int(device.bytes[op]),
                **columns,
            )
        self.note(first, op, begin, end)

    def launch(self, call: Call, host: int, cost: int, following: dict[int, list[int]]) -> None:
        """Write the rows of a call's device operations, and of those that follow without a call.

        Parameters
        ----------
        call : Call
        host : int
            CPU time before it, ps.
        cost : int
            CPU time of the call, ps.
        following : dict of int to list of int
            Device operation → those behind it that no call has launched; written ones are removed.
        """
        for nth, op in enumerate(call.ops):
            latency = int(self.timing.latency[op]) - (cost if nth else 0)
            self.device(op, 0 if nth else host, latency, 0 if nth else cost)
            for other in following.pop(op, []):
                self.device(other, 0, 0, 0)

    def leave_out(self, call: Call, begin: int) -> None:
        """Write no row for a call: its time is CPU time before the next; a long one is listed."""
        if call.kind is CallKind.MEMORY and call.end - begin > _MIN_LISTED_STALL:
            taken = (call.end - begin) / 1e12
            self.stalls.append(Stall(taken, call.name, call.step, call.end))

    def wait(self, ops: list[int], host: int, tail: int, name: str, at: int, end: int) -> None:
        """Write a wait of the CPU for device operations."""
        if tail > _MIN_LISTED_STALL:
            self.stalls.append(Stall(tail / 1e12, name, self.step, end))
        first = len(self.rows)
        self.rows.host_wait(self.waits_of(ops), host=host, tail=max(0, tail), name=name)
        self.note(first, -1, at, end)


def _in_order(calls: Sequence[Call], inferred: Inference) -> list[int]:
    """Calls of all threads → their numbers in the order in which they take effect.

    A call that blocks one thread ends after what other threads launch meanwhile.
    """

    def time(number: int) -> int:
        blocks = number in inferred.blocking and calls[number].kind is not CallKind.LAUNCH
        return calls[number].end if blocks else calls[number].begin

    return sorted(range(len(calls)), key=time)


def lower(
    trace: KinetoTrace,
    calls: list[Call],
    inferred: Inference,
    timing: DeviceTiming,
    names: Names,
    is_comm: list[bool],
    emit: EmitCommunication | None = None,
) -> Lowered:
    """Write one rank's table.

    Parameters
    ----------
    trace, calls, inferred, timing
        The rank's trace and what was found out about it.
    names : Names
        Names of rows, shared by the ranks of a program.
    is_comm : list of bool
        Which device operations are communications.
    emit : callable, optional
        Appends the rows of a communication; without it they are kernels like any other.
    """
    writer = _Writer(trace, inferred, timing, names, emit, is_comm)
    device = trace.device
    starts = [*(call.begin for call in calls[:1]), *device.begin[:1].tolist()]
    start = min(starts, default=0)
    following = _unlaunched_after(trace, timing)
    for op in following.pop(-1, []):
        writer.device(op, host=0, latency=0, cost=0)
    in_flight = _InFlight(trace)
    usual_cost = _usual_costs(calls, inferred)
    clock = start
    for position in _in_order(calls, inferred):
        call = calls[position]
        writer.rows.tags(step=call.step)
        writer.step = call.step
        host = max(0, call.begin - clock)
        if position in inferred.gap_waits:
            ops = inferred.gap_waits[position]
            since = max(clock, inferred.gap_begin.get(position, clock))
            ended = max(since, *(int(device.end[op]) for op in ops))
            tail = call.begin - ended
            writer.wait(ops, since - clock, tail, "unseen wait", clock, call.begin)
            clock, host = max(clock, call.begin), 0
        begin = max(call.begin, clock)
        if call.kind is CallKind.MARK:
            first = len(writer.rows)
            writer.rows.host(host, name=call.name)
            writer.note(first, -1, call.begin, call.end)
        elif call.kind is CallKind.LAUNCH:
            blocking = inferred.blocking.get(position, [])
            cost = 0 if blocking else max(0, call.end - begin)
            if cost > _MIN_BLOCKED_CALL and in_flight.count(call) > _FULL_QUEUE:
                cost = min(cost, usual_cost.get(call.name, 0))
            writer.launch(call, host, cost, following)
            if blocking:
                ended = max(int(device.end[op]) for op in blocking)
                writer.wait(blocking, 0, call.end - max(begin, ended), call.name, begin, call.end)
            in_flight.add(call)
        elif position in inferred.blocking:
            ops = inferred.blocking[position]
            ended = max((int(device.end[op]) for op in ops), default=begin)
            writer.wait(ops, host, call.end - max(begin, ended), call.name, begin, call.end)
        else:
            writer.leave_out(call, begin)
            continue
        clock = max(clock, call.end)
    nvidia = any(call.name.startswith("cu") for call in calls)
    return Lowered(
        table=writer.rows.build(queue_depth=QUEUE_DEPTH if nvidia else 0),
        op=np.array(writer.op, np.int64),
        begin=np.array([b for b, _ in writer.recorded], np.int64),
        end=np.array([e for _, e in writer.recorded], np.int64),
        start=start,
        stalls=writer.stalls,
    )


def _unlaunched_after(trace: KinetoTrace, timing: DeviceTiming) -> dict[int, list[int]]:
    """Operations without a recorded launch, by the launched one they follow on their stream.

    Those that follow none were in flight when recording began and are listed under -1.
    """
    following: dict[int, list[int]] = {}
    anchor: dict[int, int] = {}
    for op, stream in enumerate(trace.device.stream.tolist()):
        if timing.call[op] >= 0:
            anchor[stream] = op
        else:
            following.setdefault(anchor.get(stream, -1), []).append(op)
    return following


def _usual_costs(calls: list[Call], inferred: Inference) -> dict[str, int]:
    """Median CPU time of each launching call, by name."""
    found: dict[str, list[int]] = {}
    for position, call in enumerate(calls):
        if call.kind is CallKind.LAUNCH and position not in inferred.blocking:
            found.setdefault(call.name, []).append(call.end - call.begin)
    return {name: int(np.median(times)) for name, times in found.items()}


class _InFlight:
    """How many operations of a stream had been launched but not ended at some time."""

    def __init__(self, trace: KinetoTrace) -> None:
        self.stream, self.end = trace.device.stream, trace.device.end
        self.ends: dict[int, list[int]] = {}

    def add(self, call: Call) -> None:
        """Count the operations of a launching call as launched."""
        for op in call.ops:
            self.ends.setdefault(int(self.stream[op]), []).append(int(self.end[op]))

    def count(self, call: Call) -> int:
        """Return how many operations of the call's stream had not ended when it returned."""
        ends = self.ends.get(int(self.stream[call.ops[0]]), [])
        return sum(end > call.end - 3 * PS_PER_US for end in ends[-2 * _FULL_QUEUE :])
