"""Calls of one rank → dependencies of device operations, and CPU waits for the device.

Recent Kineto builds can record both ends of an event wait. Most files do not: they show that
`cudaStreamWaitEvent` was called, but neither the waiting stream nor the event. The rules below
infer them from where the call was made; each use is counted in `Inference.counts`, so that a
report can say how much of a replay depends on inference. Recorded device times serve only to drop a
candidate that cannot be the one (it ended after its waiter began); never to place anything.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from ..base.quantity import PS_PER_US
from .host import Call, CallKind, is_communication_kernel
from .inferred_waits import call_waits, inferred_wait, is_free
from .kineto import KinetoTrace

__all__ = ["EventWait", "Inference", "infer_waits"]

_NOTIFY = re.compile(r"notify_dispatch|get_dispatch_layout")

_TOLERANCE = 3 * PS_PER_US
"""Clock granularity: old files have whole µs, at both ends of an interval."""
_MAX_RETURN_DELAY = 100 * PS_PER_US
"""A blocking call returns this soon after the device operation it waited for."""
_MIN_WAIT = 50 * PS_PER_US
"""A call shorter than this is taken as CPU time, whatever it could have waited for."""
_MAX_NCCL_WAIT_DISTANCE = 60 * PS_PER_US
"""NCCL's own event waits lie this close to the launch of its kernel."""


@dataclass
class EventWait:
    """One event wait whose stream and event the file does not name.

    `position` is that of the call; `last` the latest operation of each stream at that time.
    """

    position: int
    is_work: bool
    last: dict[int, int]
    issued: int
    """The collective this thread had just issued, with no compute launch since; or -1."""


@dataclass
class Inference:
    """What was inferred about one rank.

    Attributes
    ----------
    waits : list of list of int
        Of each device operation, the operations it waits for.
    blocking : dict of int to list of int
        Of each blocking call (position in the list of calls), the operations it waits for.
    gap_waits : dict of int to list of int
        Of each call, the operations that the CPU waited for unseen just before it.
    gap_begin : dict of int to int
        When such a wait began, in ps, where it was not at the end of the row before.
    event_waits : list of EventWait
        Those that are no part of a communication, for a second look at starts left unexplained.
    counts : Counter
        How often each rule was used, and what stayed unknown.
    """

    waits: list[list[int]]
    blocking: dict[int, list[int]] = field(default_factory=dict)
    gap_waits: dict[int, list[int]] = field(default_factory=dict)
    gap_begin: dict[int, int] = field(default_factory=dict)
    event_waits: list[EventWait] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class _State:
    """What the host had launched so far, while its calls are gone through in order."""

    def __init__(self, trace: KinetoTrace, calls: list[Call]) -> None:
        device = trace.device
        self.trace = trace
        self.begin: list[int] = device.begin.tolist()
        self.end: list[int] = device.end.tolist()
        self.stream: list[int] = device.stream.tolist()
        self.is_comm = [is_communication_kernel(name) for name in device.name]
        self.result = Inference([[] for _ in self.begin])
        self.last: dict[int, int] = {}
        self.current: dict[int, int] = {}
        self.unwaited: list[int] = []
        self.tokens: dict[int, list[EventWait]] = {}
        self.before: dict[int, dict[int, int]] = {}
        self.recorded: list[int] = []
        self.comm_launch: dict[int, int] = {}
        self.issued: dict[int, int] = {}
        self.at_record: dict[int, dict[int, int]] = {}
        self.recorded_syncs: dict[int, int] = {}
        self.previous: dict[int, Call] = {}
        self.launched: list[int] = []
        self.launching_params = {
            call.params
            for call in calls
            if call.kind is CallKind.LAUNCH
            and call.params >= 0
            and any(self.is_comm[op] for op in call.ops)
        }

    def feasible(self, source: int, at: int) -> bool:
        """Whether an operation had ended when something that waited for it went on."""
        return self.end[source] <= at + _TOLERANCE


def infer_waits(trace: KinetoTrace, calls: list[Call]) -> Inference:
    """Infer device-side waits and CPU waits of one rank.

    Rules, in the order of REPLAY's importance; each is counted under its name:

    ``sync``
        Synchronising calls wait: for a stream, the one the thread launched on last; for the
        device, all streams; for an event, the last one recorded whose work had ended.
    ``copy-wait``
        A copy to pageable memory, or any copy call that returns with or after its copy's end,
        waits for that copy.
    ``collective-after-current``
        A communication kernel waits for the stream that was current when it was issued.
    ``work-wait``
        `record_param_comms` without a launch is Work.wait: the thread's next compute launch waits
        for the collective just issued, else for the latest one that fits.
    ``stream-wait``
        Any other event wait: the thread's next launch waits for the latest-ended work of another
        stream.
    ``free-wait``, ``malloc-wait``
        Freeing device memory waits for the device, and allocating where the trace shows it (see
        `allocator`).
    ``allocator-wait``, ``timer-wait``
        Between an allocation that failed and the first free, and before the time between two events
        is read, the CPU waited for events that are not recorded (see `inferred_waits`).
    ``polled-wait``
        A host gap that ends with DeepEP's notify kernel is a wait for it.

    Parameters
    ----------
    trace : KinetoTrace
    calls : list of Call
        Of this trace, in order of begin; the result names them by position.
    """
    state = _State(trace, calls)
    _place_unlaunched(state, calls)
    infer = not any("Wait Event" in sync.name for sync in trace.syncs)
    if trace.syncs:
        _recorded_waits(state, calls)
    previous: Call | None = None
    for position, call in enumerate(calls):
        if call.kind is CallKind.MARK:
            continue
        _polled(state, position, call, previous)
        if call.kind is CallKind.LAUNCH:
            _launch(state, position, call, infer=infer)
        elif call.kind is CallKind.WAIT_EVENT:
            if infer:
                _event_wait(state, position, call)
        elif call.kind is CallKind.RECORD:
            if call.thread in state.current:
                state.recorded.append(state.last[state.current[call.thread]])
        elif call.kind is CallKind.MEMORY:
            _inferred(state, position, call)
            _memory(state, position, call)
        elif call.kind is CallKind.ELAPSED:
            _inferred(state, position, call)
        else:
            _synchronise(state, position, call)
        previous = call
        state.previous[call.thread] = call
    unused = sum(len(tokens) for tokens in state.tokens.values())
    if unused:
        state.result.counts["event waits without a later launch"] += unused
    return state.result


def _place_unlaunched(state: _State, calls: list[Call]) -> None:
    """Operations already launched when recording began are in flight from the start."""
    launched = {op for call in calls for op in call.ops}
    for op in range(len(state.begin)):
        if op not in launched:
            state.result.counts["operations without a recorded launch"] += 1
            if state.begin[op] < (calls[0].begin if calls else 0):
                state.last[state.stream[op]] = op
                state.launched.append(op)


def _launch(state: _State, position: int, call: Call, infer: bool) -> None:
    thread, first = call.thread, call.ops[0]
    if state.is_comm[first]:
        if infer:
            _communication_launch(state, call)
    else:
        if infer:
            # Autograd's thread may end on a wait: then the next launch on its stream, by the main
            # thread, is the one that waits.
            own = state.stream[first]
            for other in [t for t in state.tokens if t == thread or state.current.get(t) == own]:
                for token in state.tokens.pop(other):
                    _resolve(state, token, first)
        state.current[thread] = state.stream[first]
        state.issued.pop(thread, None)
        _copy_wait(state, position, call)
    for op in call.ops:
        state.last[state.stream[op]] = op
    state.launched += call.ops


def _communication_launch(state: _State, call: Call) -> None:
    """A communication kernel waits for what its issuing stream had to do."""
    thread, first = call.thread, call.ops[0]
    tokens = state.tokens.get(thread, [])
    if tokens and not tokens[-1].is_work and call.c10d < 0 and call.params < 0:
        # Just before a coalesced launch: NCCL's own wait for its internal stream.
        tokens.pop()
        state.result.counts["internal to NCCL"] += 1
    snapshot = state.before.pop(thread, state.last)
    current = state.current.get(thread, -1)
    source = snapshot.get(current, -1)
    counts = state.result.counts
    if source >= 0 and state.feasible(source, state.begin[first]):
        counts["collective-after-current"] += 1
    else:
        options = [
            op
            for s, op in snapshot.items()
            if s != state.stream[first]
            and not state.is_comm[op]
            and state.feasible(op, state.begin[first])
        ]
        if source >= 0:
            counts["collective-after-current: another stream fits"] += bool(options)
        source = max(options, key=lambda op: state.end[op], default=-1)
    if source >= 0:
        state.result.waits[first].append(source)
    else:
        counts["collective without a known predecessor"] += 1
    state.unwaited.append(first)
    state.issued[thread] = first
    state.comm_launch[thread] = call.end


def _event_wait(state: _State, position: int, call: Call) -> None:
    """Sort one event wait by where it was called."""
    notes, thread = state.trace.annotations, call.thread
    note = notes.name[call.nccl] if call.nccl >= 0 else ""
    in_operation = call.c10d >= 0 and "wait_tensor" not in state.trace.operators.name[call.c10d]
    just_launched = state.comm_launch.pop(thread, None)
    inside = note.startswith("nccl:") and note != "nccl:coalesced"
    launching = call.params >= 0 and call.params in state.launching_params
    if inside:
        state.result.counts["internal to NCCL"] += 1
        if just_launched is not None:
            state.comm_launch[thread] = just_launched
    elif in_operation or launching:
        if just_launched is not None:
            # Behind the launch, still in the operator: NCCL's own.
            state.result.counts["internal to NCCL"] += 1
        else:
            state.before[thread] = dict(state.last)
    elif (
        just_launched is not None
        and call.begin - just_launched < _MAX_NCCL_WAIT_DISTANCE
        and call.params < 0
    ):
        state.result.counts["internal to NCCL"] += 1
    else:
        is_work = call.params >= 0 or call.c10d >= 0
        wait = EventWait(position, is_work, dict(state.last), state.issued.get(thread, -1))
        state.tokens.setdefault(thread, []).append(wait)
        if not is_work:
            state.result.event_waits.append(wait)


def _resolve(state: _State, token: EventWait, target: int) -> None:
    """Find what an event wait waits for, now that the operation behind it is known."""
    counts, at = state.result.counts, state.begin[target]
    issued = [op for op in state.unwaited if op <= token.last.get(state.stream[op], -1)]
    pending = [op for op in issued if state.feasible(op, at)]
    if token.is_work:
        if pending:
            # A collective waited for at once is its own wait's. Otherwise the latest that fits: it
            # covers those before it on its stream, while an earlier one would lose a wait.
            latest = max(pending, key=lambda op: state.end[op])
            _wait_for(state, token.issued if token.issued in pending else latest, target)
            counts["work-wait"] += 1
            return
        if issued:
            counts["work-wait without a fitting collective"] += 1
            return
    own = state.stream[target]
    last = [op for s, op in token.last.items() if s != own]
    if pending and all(state.is_comm[op] for op in last):
        # No other stream computes or copies: it is Work.wait without its operator (DDP's reducer).
        _wait_for(state, pending[0], target)
        counts["work-wait"] += 1
        return
    options = [op for op in last if state.feasible(op, at)]
    if len(options) < len(last):
        counts["candidates dropped by recorded times"] += len(last) - len(options)
    pending = [op for op in pending if op not in options]
    source = max(options + pending, key=lambda op: state.end[op], default=-1)
    if source >= 0:
        _wait_for(state, source, target)
        counts["stream-wait"] += 1
    elif last:
        counts["event waits of unknown source"] += 1


def _wait_for(state: _State, source: int, target: int) -> None:
    if source not in state.result.waits[target]:
        state.result.waits[target].append(source)
    if source in state.unwaited:
        # What lies before it on the stream has ended too.
        done = state.stream[source]
        state.unwaited = [op for op in state.unwaited if op > source or state.stream[op] != done]


def _recorded_waits(state: _State, calls: list[Call]) -> None:
    """Take the waits that the file records itself (category ``cuda_sync``).

    Event waits become waits of the next operation on the waiting stream; what a recorded event
    stood for, or was on a stream, is kept in `recorded_syncs` for calls that synchronise with it.
    """
    of_call = {sync.correlation: sync for sync in state.trace.syncs if sync.correlation >= 0}
    last: dict[int, int] = {}
    following: dict[int, list[int]] = {}
    for call in calls:
        if call.kind is CallKind.RECORD:
            state.at_record[call.correlation] = dict(last)
        sync = of_call.get(call.correlation)
        if sync is not None and call.kind is CallKind.WAIT_EVENT:
            source = state.at_record.get(sync.record, last).get(sync.source, -1)
            if source >= 0 and sync.stream >= 0:
                following.setdefault(sync.stream, []).append(source)
        elif sync is not None and call.kind is CallKind.SYNC_EVENT:
            source = state.at_record.get(sync.record, last).get(sync.source, -1)
            if source >= 0:
                state.recorded_syncs[call.correlation] = source
        elif sync is not None and call.kind is CallKind.SYNC_STREAM and sync.stream >= 0:
            state.recorded_syncs[call.correlation] = last.get(sync.stream, -1)
        for op in call.ops:
            for source in following.pop(state.stream[op], []):
                state.result.waits[op].append(source)
                state.result.counts["recorded event waits"] += 1
            last[state.stream[op]] = op


def _copy_wait(state: _State, position: int, call: Call) -> None:
    """A copy call that returns with or after its copy has waited for it."""
    op = call.ops[-1]
    name = state.trace.device.name[op]
    if "Memcpy" not in call.name and "Memcpy" not in name:
        return
    pageable = "DtoH" in name and "Pageable" in name
    if pageable or (len(call.ops) == 1 and call.end >= state.end[op] - _TOLERANCE):
        if state.feasible(op, call.end):
            state.result.blocking[position] = [op]
            state.result.counts["copy-wait"] += 1
        elif pageable:
            state.result.counts["copies to the host that end after their call"] += 1


def _synchronise(state: _State, position: int, call: Call) -> None:
    """Find what a synchronising call waited for."""
    counts = state.result.counts
    last = state.last
    options = [op for op in last.values() if state.feasible(op, call.end)]
    if call.kind is CallKind.SYNC_DEVICE:
        chosen = options
        if len(options) < len(last):
            counts["sync: streams dropped by recorded times"] += len(last) - len(options)
    elif call.correlation in state.recorded_syncs:
        source = state.recorded_syncs[call.correlation]
        chosen = [source] if source >= 0 and state.feasible(source, call.end) else []
    elif call.kind is CallKind.SYNC_STREAM:
        own = last.get(state.current.get(call.thread, -1), -1)
        chosen = [own] if own in options else []
        late = call.end - max(call.begin, state.end[own] if chosen else 0)
        if not chosen or late > _MAX_RETURN_DELAY:
            latest = max(options, key=lambda op: state.end[op], default=-1)
            if latest >= 0 and state.end[latest] > call.begin:
                chosen = [latest]
                counts["sync: another stream fits"] += latest != own
    else:
        events = [op for op in state.recorded if state.feasible(op, call.end)]
        latest = max(events, key=lambda op: state.end[op], default=-1)
        chosen = [latest] if latest >= 0 else []
    counts["sync"] += 1
    state.result.blocking[position] = chosen
    if call.end - max([call.begin, *(state.end[op] for op in chosen)]) > _MAX_RETURN_DELAY:
        counts["sync: long after the device"] += 1


def _polled(state: _State, position: int, call: Call, previous: Call | None) -> None:
    """DeepEP's host polls a counter until its notify kernel has told how many tokens come."""
    if previous is None or not previous.ops or call.begin - previous.end < _MIN_WAIT:
        return
    op = previous.ops[-1]
    if _NOTIFY.search(state.trace.device.name[op]) and (
        previous.end < state.end[op] <= call.begin < state.end[op] + _MAX_RETURN_DELAY
    ):
        state.result.gap_waits[position] = [op]
        state.result.counts["polled-wait"] += 1


def _memory(state: _State, position: int, call: Call) -> None:
    """Calls of the allocator wait for the device."""
    waits = call_waits(call, state.last, state.trace.device.end)
    if waits:
        state.result.blocking[position] = waits
        state.result.counts["free-wait" if is_free(call) else "malloc-wait"] += 1


def _inferred(state: _State, position: int, call: Call) -> None:
    """Find a wait for an event that is not recorded, just before a call."""
    before = state.previous.get(call.thread)
    source, rule = inferred_wait(call, before, state.launched, state.trace.device.end)
    if source >= 0 and before is not None:
        state.result.gap_waits[position] = [source]
        state.result.gap_begin[position] = before.end
        state.result.counts[rule] += 1
