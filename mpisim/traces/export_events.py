"""Simulated rank → the events that Kineto would have recorded of it.

A program says when the CPU called and what waited for what; a trace also shows the calls in
between: events recorded and waited for, operators and annotations around communications. They are
put into the CPU time before and after the launching calls, at most `TICK` apart, and closer where
there is little. Where a program leaves no CPU time at all, launching calls begin a few ns late.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.quantity import PS_PER_NS
from ..program import Kind, Table
from .export_communications import Arguments, Communicated, Event, RankRun, kernel_name, note_name
from .export_host import batch_ends, first_of_batch, host_times, profiled_steps
from .host import is_communication_kernel

__all__ = [
    "CPU",
    "GPU",
    "THREAD",
    "rank_events",
    "stream_number",
]


TICK = 500 * PS_PER_NS
"""Distance of the small calls round a launch, where there is room."""
CPU, GPU, THREAD = 1000, 0, 1000
"""Process numbers of CPU and GPU and the thread of all calls: a rank has one of each."""


@dataclass(slots=True)
class _Item:
    """Something between two launches: a call, or the begin or end of a span around calls."""

    event: Event
    is_call: bool = True
    closes: bool = False


def rank_events(run: RankRun, old: bool) -> list[Event]:
    """Return the events of one rank, with `ts` and `dur` in ps from the begin of the run.

    Parameters
    ----------
    run : RankRun
    old : bool
        As files before 2024: event waits without their streams, communications without their
        groups, no events recorded.
    """
    return _Writer(run, old).write()


class _Writer:
    def __init__(self, run: RankRun, old: bool) -> None:
        self.run, self.old = run, old
        table = run.table
        self.kind = [Kind(k) for k in table.kind.tolist()]
        self.first = first_of_batch(table)
        self.end = batch_ends(self.first, run.end)
        self.call_begin, self.call_end = host_times(table, run.start, self.first, self.end)
        self.communications = Arguments(run)
        self.waited = {self.first[row] for row in table.wait_row.tolist()}
        self.events: list[Event] = []
        self.pending: list[_Item] = []
        self.free = run.start
        self.count = 0
        self.record_of: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.closers: dict[int, list[_Item]] = {}

    def write(self) -> list[Event]:
        """Go through the rows in order of the host."""
        table = self.run.table
        self._steps()
        if not self.old and len(table):
            self._first_calls()
        for row, kind in enumerate(self.kind):
            if kind is Kind.HOST_WAIT:
                if not self._is_blocking_copy(row - 1):
                    self._host_wait(row)
            elif kind is not Kind.HOST and self.first[row] == row:
                self._launch(row)
        self._place(self.free + TICK * (2 * len(self.pending) + 1), [])
        return self.events

    def _steps(self) -> None:
        run = self.run
        steps = profiled_steps(run.table, run.names, run.start, self.call_end)
        if not steps and run.step is not None and self.call_end:
            # From the begin of the job, not of the rank: a rank that starts late is part of it.
            steps = {f"ProfilerStep#{run.step}": (0, max(self.call_end))}
        for name, (begin, end) in steps.items():
            opened, _ = self._span("user_annotation", name, {})
            self.events.append(_timed(opened.event, begin, end))

    def _first_calls(self) -> None:
        """Wait for an event recorded before any work.

        It waits for nothing, but says when the file begins, and that event waits are on record.
        """
        record, wait = self._api("cudaEventRecord"), self._api("cudaStreamWaitEvent")
        self.record_of[-1] = record["args"]["correlation"]
        stream = int(self.run.table.stream.max(initial=0))
        sync = self._sync("Stream Wait Event", wait, stream, self.record_of[-1], stream)
        for event in (record, wait):
            self.events.append(_timed(event, self.free, self.free + PS_PER_NS))
            self.free += PS_PER_NS
        self.events.append(_timed(sync, wait["ts"], wait["ts"] + PS_PER_NS))

    # --- the CPU between calls ------------------------------------------------------------------

    def _place(self, until: int, before: list[_Item]) -> int:
        """Put what is pending, and what comes before the next call, in the CPU time up to it.

        Returns when the call can begin: at `until`, unless there is no room.
        """
        after, self.pending = self.pending, []
        ticks = 2 * (len(after) + len(before)) + 1
        tick = min(TICK, (until - self.free) // ticks // PS_PER_NS * PS_PER_NS)
        if tick < PS_PER_NS:
            tick, until = PS_PER_NS, max(until, self.free + PS_PER_NS * ticks)
        at = self.free
        for item in after:
            at = self._put(item, at + tick, tick)
        at = until - tick * (2 * len(before) + 1)
        for item in before:
            at = self._put(item, at + tick, tick)
        return until

    def _put(self, item: _Item, at: int, tick: int) -> int:
        if item.is_call:
            self.events.append(_timed(item.event, at, at + tick))
            if "sync" in item.event:
                self.events.append(_timed(item.event.pop("sync"), at, at + tick))
        elif item.closes:
            item.event["dur"] = at - item.event["ts"]
        else:
            item.event["ts"] = at
            self.events.append(item.event)
        return at + tick

    def _api(self, name: str) -> Event:
        """A runtime call with the next correlation number."""
        self.count += 1
        args = {"correlation": self.count, "External id": self.count}
        return {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": name,
            "pid": CPU,
            "tid": THREAD,
            "args": args,
        }

    def _span(self, category: str, name: str, args: Event) -> tuple[_Item, _Item]:
        """Begin and end of an operator or annotation."""
        event: Event = {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": CPU,
            "tid": THREAD,
            "ts": 0,
            "dur": 0,
            "args": args,
        }
        return _Item(event, False), _Item(event, False, True)

    # --- rows -----------------------------------------------------------------------------------

    def _launch(self, row: int) -> None:
        kind, table = self.kind[row], self.run.table
        waits = [self.first[w] for w in table.wait_row[_waits(table, row)].tolist()]
        name = self.run.names[table.name[row]]
        if kind.is_communication:
            before, after, name, args = self._communication(row, name, waits)
            category, call = "kernel", "cudaLaunchKernelExC"
        else:
            before, after, args = self._waits_of_compute(row, waits), [], {}
            category, call = _category(kind, name)
            if kind is Kind.COPY and table.bytes[row] >= 0:
                args["bytes"] = int(table.bytes[row])
        if not self.old and row in self.waited:
            after.insert(0, self._record(row))
        opened, closed = self._around(row)
        before, after = [*opened, *before], [*after, *closed]
        begin = self._place(self.call_begin[row], before)
        launching = self._api(call)
        self.free = max(begin, self.call_end[row + self._is_blocking_copy(row)])
        self.events.append(_timed(launching, begin, self.free))
        self.pending = after
        stream = int(table.stream[row])
        self._device(row, category, name, stream, launching["args"]["correlation"], args)
        self.last[stream] = row

    def _around(self, row: int) -> tuple[list[_Item], list[_Item]]:
        """Operators and modules that begin with the launch of a row, and those that end with it."""
        opened: list[_Item] = []
        behind: list[_Item] = []
        for each in self.run.around.get(row, ()):
            begin, end = self._span(each.category, each.name, each.args)
            if each.last < 0:
                behind += [begin, end]
            else:
                opened.append(begin)
                self.closers.setdefault(each.last, []).append(end)
        closed = self.closers.pop(row, [])[::-1]
        # What launches nothing lies in the outermost operator that ends here.
        return opened, [*closed[:-1], *behind, *closed[-1:]] if behind else closed

    def _is_blocking_copy(self, row: int) -> bool:
        """Whether a row is a copy whose call returns when it is done: the next row says so."""
        table = self.run.table
        return (
            row >= 0
            and row + 1 < len(table)
            and self.kind[row] is Kind.COPY
            and self.kind[row + 1] is Kind.HOST_WAIT
            and table.launch_cost[row] == table.host[row + 1] == 0
            and table.wait_row[_waits(table, row + 1)].tolist() == [row]
        )

    def _device(
        self, row: int, category: str, name: str, stream: int, correlation: int, args: Event
    ) -> None:
        """The operation on the device, and the arrow to it from its launch."""
        event = {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": GPU,
            "tid": stream_number(stream),
            "args": {
                "device": GPU,
                "context": 1,
                "stream": stream_number(stream),
                "correlation": correlation,
                **args,
                **({} if self.run.row_arguments is None else self.run.row_arguments(row)),
            },
        }
        begin = int(self.run.begin[row])
        launch = self.events[-1]
        flow = {"cat": "ac2g", "name": "ac2g", "id": correlation}
        self.events += [
            _timed(event, begin, self.end[row]),
            {"ph": "s", "pid": CPU, "tid": THREAD, "ts": launch["ts"], **flow},
            {"ph": "f", "pid": GPU, "tid": stream_number(stream), "ts": begin, "bp": "e", **flow},
        ]

    def _record(self, row: int) -> _Item:
        """Record an event behind a row that something will wait for."""
        call = self._api("cudaEventRecord")
        self.record_of[row] = call["args"]["correlation"]
        return _Item(call)

    def _stream_waits(self, row: int, source: int) -> _Item:
        """Let the stream of a row wait for another row."""
        call = self._api("cudaStreamWaitEvent")
        if not self.old:
            stream = int(self.run.table.stream[row])
            call["sync"] = self._sync("Stream Wait Event", call, stream, *self._event(source))
        return _Item(call)

    def _event(self, row: int) -> tuple[int, int]:
        """The event recorded behind a row: correlation of the call, and stream."""
        return self.record_of[row], int(self.run.table.stream[row])

    def _sync(
        self, name: str, call: Event, stream: int, record: int = -1, source: int = -1
    ) -> Event:
        """What the device side records of a wait, for an event or a stream."""
        number = stream_number(stream) if stream >= 0 else -1
        args: Event = {"cuda_sync_kind": name}
        if record >= 0:
            args |= {
                "wait_on_stream": stream_number(source),
                "wait_on_cuda_event_record_corr_id": record,
                "wait_on_cuda_event_id": record,
            }
        args |= {
            "stream": number,
            "correlation": call["args"]["correlation"],
            "device": GPU,
            "context": 1,
        }
        return {
            "ph": "X",
            "cat": "cuda_sync",
            "name": name,
            "pid": GPU,
            "tid": number,
            "args": args,
        }

    def _waits_of_compute(self, row: int, waits: list[int]) -> list[_Item]:
        """Waits before a kernel: Work.wait for communications, plain ones for the rest."""
        items: list[_Item] = []
        for source in waits:
            wait = self._stream_waits(row, source)
            if self.kind[source].is_communication:
                opened, closed = self._span(
                    "cpu_op", "record_param_comms", {} if self.old else {"Collective name": "wait"}
                )
                items += [opened, wait, closed]
            else:
                items.append(wait)
        return items

    def _host_wait(self, row: int) -> None:
        """One synchronising call; several where the row waits for single rows of streams."""
        table = self.run.table
        latest: dict[int, int] = {}
        for waited in sorted(table.wait_row[_waits(table, row)].tolist()):
            latest[int(table.stream[waited])] = self.first[waited]
        calls: list[tuple[int, Event]] = []
        whole = [source for s, source in latest.items() if self.last[s] == source]
        if len(whole) == len(self.last) and len(latest) != 1:
            call = self._api("cudaDeviceSynchronize")
            calls.append((self.call_end[row], self._blocking(call, "Context Sync", -1)))
            latest = {}
        for stream, source in latest.items():
            if source in whole:
                call = self._blocking(self._api("cudaStreamSynchronize"), "Stream Sync", stream)
            else:
                call = self._blocking(
                    self._api("cudaEventSynchronize"), "Event Sync", stream, source
                )
            calls.append((self.end[source], call))
        calls.sort(key=lambda entry: entry[0])
        at = self._place(self.call_begin[row], [])
        for position, (ended, call) in enumerate(calls):
            last = position == len(calls) - 1
            until = max(self.call_end[row] if last else ended, at + PS_PER_NS)
            sync = call.pop("sync", None)
            self.events.append(_timed(call, at, until))
            if sync is not None:
                self.events.append(_timed(sync, at, until))
            at = until
        self.free = at

    def _blocking(self, call: Event, name: str, stream: int, source: int = -1) -> Event:
        if not self.old:
            call["sync"] = self._sync(
                name, call, stream, *(self._event(source) if source >= 0 else ())
            )
        return call

    # --- communications -------------------------------------------------------------------------

    def _communication(
        self, row: int, name: str, waits: list[int]
    ) -> tuple[list[_Item], list[_Item], str, Event]:
        """What is before and after the launch of a communication; its kernel's name and args."""
        batch = self._batch(row)
        names = [self.communications.names(member) for member in batch]
        args = {} if self.old else self.communications.arguments(batch)
        width = self.communications.sizes(row)[2]
        kernel = name if is_communication_kernel(name) else kernel_name(names[0], width, self.old)
        # Old files show no events, but every communication does wait for its issuing stream.
        awaited = [self._stream_waits(row, source) for source in waits]
        if self.old:
            awaited = awaited or [self._stream_waits(row, -1)]
        if len(batch) == 1:
            operator = self._span("cpu_op", names[0].operator, self.communications.tensors(row))
            params = self._span("cpu_op", "record_param_comms", args)
            note = self._note(row, names[0])
            before = [operator[0], params[0], *awaited, note[0], *self._internal()]
            after = [*self._internal(), note[1], *self._internal(), params[1], operator[1]]
            return before, after, kernel, args
        # Coalesced: the launch lies behind all operators and before the annotation of the batch.
        before = []
        for position, (member, each) in enumerate(zip(batch, names, strict=True)):
            operator = self._span("cpu_op", each.operator, self.communications.tensors(member))
            own = {} if self.old else self.communications.arguments([member])
            params = self._span("cpu_op", "record_param_comms", own)
            note = self._note(member, each)
            first = awaited if position == 0 else []
            before += [operator[0], params[0], *first, *note, params[1], operator[1]]
        before += self._internal()
        after = [*self._internal(), *self._span("user_annotation", "nccl:coalesced", {})]
        return before, after, kernel, args

    def _internal(self) -> list[_Item]:
        """An event wait of NCCL's own, which old files show like any other."""
        return [_Item(self._api("cudaStreamWaitEvent"))] if self.old else []

    def _batch(self, row: int) -> list[int]:
        """The rows of one launch."""
        after = row + 1
        while after < len(self.first) and self.first[after] == row:
            after += 1
        return list(range(row, after))

    def _note(self, row: int, names: Communicated) -> tuple[_Item, _Item]:
        group = self.communications.group(row)
        pair = group.members if self.kind[row] is not Kind.COLLECTIVE else (-1, -1)
        name = note_name(names, pair[0], pair[1], self.old)
        return self._span("user_annotation", name, self.communications.input(row))


def _timed(event: Event, begin: int, end: int) -> Event:
    event["ts"], event["dur"] = int(begin), int(end) - int(begin)
    return event


def stream_number(stream: int) -> int:
    """Stream numbers of a device as PyTorch's start."""
    return 7 + 4 * stream


def _waits(table: Table, row: int) -> slice:
    return slice(int(table.wait_index[row]), int(table.wait_index[row + 1]))


def _category(kind: Kind, name: str) -> tuple[str, str]:
    if kind is Kind.KERNEL:
        return "kernel", "cudaLaunchKernel"
    if name.startswith("Memset"):
        return "gpu_memset", "cudaMemsetAsync"
    return "gpu_memcpy", "cudaMemcpyAsync"
