"""Events of ranks → a Perfetto trace, part by part.

The first part has what is about all ranks: the critical path and the use of links. Each rank has a
part of its own: a process with a track of its passes, one for the calls of its CPU, one for each
stream, and one for its memory. Parts are joined by appending them.

Invariants: the slices of a track are nested, as the format wants them: one that would outlast the
one it began in ends with that. Each part is a packet sequence of its own, so that the names it
interns are its own. Times are whole ns, rounded down, which keeps their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.quantity import PS_PER_NS
from ..program import Kind, Phase
from ..traces.export_communications import Event, RankRun
from ..traces.export_events import CPU, rank_events
from .events import Counter, Piece, RowArrows
from .perfetto_schema import ChildOrdering, CounterUnit, EventType, SequenceFlags, trace

__all__ = ["head_part", "rank_part"]

PACKETS_PER_PIECE = 4_000
"""Of one piece of a file: a few hundred kilobytes."""

HEAD_PID = 1 << 30
"""Process number of what is about all ranks; those of ranks are small."""
RANK_UUIDS = 1 << 20
"""Track numbers of a rank: of its process, and those behind it of its tracks."""
PATH_FLOWS, LAUNCH_FLOWS = 1 << 62, 1 << 32
"""First numbers of arrows of the critical path, and of arrows from launches of one rank."""

_SHOWN = ("cpu_op", "user_annotation", "cuda_runtime", "kernel", "gpu_memcpy", "gpu_memset")
"""Categories of events that become slices. Kineto's records of waits lie across the operations of
their streams."""
_PASSES, _CALLS = -2, -1
_NAMES = {_PASSES: "passes", _CALLS: "CPU"}
"""Tracks above those of streams, which have their numbers."""
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def head_part(
    pieces: Iterable[Piece], links: Sequence[Counter], numbers: Sequence[int]
) -> Iterator[bytes]:
    """Yield the part about all ranks.

    Parameters
    ----------
    pieces : iterable of Piece
        Of the critical path, in order of time.
    links : sequence of Counter
    numbers : sequence of int
        Number of each rank in its job.
    """
    part = _Part(1)
    slices: list[Event] = [
        {
            "cat": "critical_path",
            "name": piece.name,
            "ts": piece.begin,
            "dur": piece.end - piece.begin,
            "args": {"Rank": numbers[piece.rank], "Kind": piece.kind},
        }
        for piece in pieces
    ]
    if slices:
        part.process(1, HEAD_PID, "critical path", "", -2)
        part.track(2, 1, "over all ranks", 0)
        yield from part.slices(2, slices, {}, {})
    if links:
        part.process(3, HEAD_PID + 1, "links", "", -1)
        for i, counter in enumerate(links):
            yield from part.counter(4 + i, 3, counter, i)
    yield from part.rest()


def rank_part(
    of: RankRun, wire: NDArray[np.int64], memory: Counter | None, arrows: RowArrows
) -> Iterator[bytes]:
    """Yield the part of one rank.

    Parameters
    ----------
    of : RankRun
    wire : int64, shape (n_rows,)
        When the bytes of communications began to move, in ps. A communication that waited for
        others has a slice of that in its own, at which arrows of the critical path end: it came
        from the last member, which may have begun later than this one.
    memory : Counter or None
    arrows : RowArrows
        Of the critical path.
    """
    part = _Part(of.number + 2)
    own = (of.number + 1) * RANK_UUIDS
    part.process(own, of.number + 1, f"rank {of.number}", of.table.label, of.number)
    tracks: dict[int, list[Event]] = {}
    launched = set()
    for event in rank_events(of, old=False):
        if event["ph"] == "s":
            launched.add(event["id"])
        elif event["ph"] == "X" and event["cat"] in _SHOWN:
            tracks.setdefault(_CALLS if event["pid"] == CPU else event["tid"], []).append(event)
    begins: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    first = own * LAUNCH_FLOWS // RANK_UUIDS
    for events in tracks.values():
        for event in list(events):
            args = event["args"]
            if event["cat"] in _ON_DEVICE:
                ends[id(event)] = [first + args["correlation"]]
                row, on_path = args["Row"], event
                if of.table.is_communication[row] and event["ts"] < wire[row]:
                    on_path = _on_the_wire(event, int(wire[row]))
                    events.append(on_path)
                    ends[id(on_path)] = []
                ends[id(on_path)] += [PATH_FLOWS + n for n in arrows.end.get(row, ())]
                begins[id(on_path)] = [PATH_FLOWS + n for n in arrows.begin.get(row, ())]
            elif event["cat"] == "cuda_runtime" and args["correlation"] in launched:
                begins[id(event)] = [first + args["correlation"]]
    passes = _pass_events(of)
    if passes:
        tracks[_PASSES] = passes
    for position, number in enumerate(sorted(tracks)):
        uuid = own + 2 + position
        name = _NAMES.get(number) or f"stream {number}"
        part.track(uuid, own, name, 1 + position)
        yield from part.slices(uuid, tracks.pop(number), begins, ends)
    if memory is not None:
        yield from part.counter(own + 1, own, memory, 0)
    yield from part.rest()


def _on_the_wire(event: Event, wire: int) -> Event:
    """The part of a communication in which its bytes move."""
    end = event["ts"] + event["dur"]
    return {
        "cat": "wire",
        "name": "on the wire",
        "ts": min(wire, end),
        "dur": max(end - wire, 0),
        "args": {},
    }


def _pass_events(of: RankRun) -> list[Event]:
    """Rows of a rank → the passes that its GPU was in, and layers within them, as nested events.

    A pass lasts from its first kernel to its last, as far as no kernel of another is between them:
    where two overlap, as in DualPipe, they take turns. What is recomputed is part of the backward
    pass.
    """
    table = of.table
    rows = np.flatnonzero((table.kind == Kind.KERNEL) & (table.phase != Phase.NONE))
    rows = rows[np.argsort(of.begin[rows], kind="stable")]
    columns = (table.phase, table.micro_batch, table.layer, of.begin, of.end)
    kernels = list(zip(*(column[rows].tolist() for column in columns), strict=True))
    found: list[Event] = []
    for (phase, micro_batch), of_pass in groupby(kernels, _pass_of):
        inside = list(of_pass)
        name = phase.name.lower()
        whole = name if micro_batch < 0 else f"{name} of micro-batch {micro_batch}"
        found.append(_span("pass", whole, inside))
        for (layer, again), of_layer in groupby(inside, _layer_of):
            if layer >= 0:
                name = f"layer {layer}" + (", recomputed" if again else "")
                found.append(_span("layer", name, list(of_layer)))
    return found


def _pass_of(kernel: tuple[int, ...]) -> tuple[Phase, int]:
    phase = Phase(kernel[0])
    return Phase.BACKWARD if phase is Phase.RECOMPUTE else phase, kernel[1]


def _layer_of(kernel: tuple[int, ...]) -> tuple[int, bool]:
    return kernel[2], kernel[0] == Phase.RECOMPUTE


def _span(category: str, name: str, kernels: list[tuple[int, ...]]) -> Event:
    """An event from the begin of the first kernel to the end of the last."""
    begin = kernels[0][3]
    end = max(kernel[4] for kernel in kernels)
    return {"cat": category, "name": name, "ts": begin, "dur": end - begin, "args": {}}


class _Part:
    """Packets of one sequence, as they are filled."""

    def __init__(self, sequence: int) -> None:
        self._sequence = sequence
        self._trace = trace()()
        self._packet = self._trace.packet
        self._count = 0
        self._interned: dict[str, dict[str, int]] = {}

    def process(self, uuid: int, pid: int, name: str, label: str, position: int) -> None:
        """Add a process, above its tracks."""
        track = self._new().track_descriptor
        track.uuid = uuid
        track.child_ordering = ChildOrdering.EXPLICIT
        track.process.pid = pid
        track.process.process_name = name
        if label:
            track.process.process_labels.append(label)
        track.process.legacy_sort_index = position

    def track(self, uuid: int, parent: int, name: str, position: int) -> Any:
        """Add a track of a process."""
        track = self._new().track_descriptor
        track.uuid, track.parent_uuid, track.name = uuid, parent, name
        track.sibling_order_rank = position
        return track

    def counter(self, uuid: int, parent: int, counter: Counter, position: int) -> Iterator[bytes]:
        """Add a counter with its values; yield what is complete."""
        track = self.track(uuid, parent, counter.name, position)
        if counter.unit == "bytes":
            track.counter.unit = CounterUnit.SIZE_BYTES
        else:
            track.counter.unit_name = counter.unit
        for time, value in zip(counter.time.tolist(), counter.value.tolist(), strict=True):
            packet = self._new()
            packet.timestamp = max(time, 0) // PS_PER_NS
            event = packet.track_event
            event.type, event.track_uuid = EventType.COUNTER, uuid
            event.double_counter_value = value
            yield from self._complete()

    def slices(
        self,
        uuid: int,
        events: list[Event],
        begins: Mapping[int, list[int]],
        ends: Mapping[int, list[int]],
    ) -> Iterator[bytes]:
        """Add the slices of a track; yield what is complete.

        Parameters
        ----------
        uuid : int
        events : list of Event
        begins, ends : mapping of int to list of int
            Arrows that begin and end at an event, by its `id`.
        """
        events.sort(key=lambda event: (event["ts"], -event["dur"]))
        open_until: list[int] = []
        for event in events:
            begin = event["ts"]
            while open_until and open_until[-1] <= begin:
                self._end(uuid, open_until.pop())
            end = begin + event["dur"]
            open_until.append(min(end, open_until[-1]) if open_until else end)
            self._begin(uuid, event, begins.get(id(event), ()), ends.get(id(event), ()))
            yield from self._complete()
        while open_until:
            self._end(uuid, open_until.pop())

    def _begin(self, uuid: int, event: Event, begins: Sequence[int], ends: Sequence[int]) -> None:
        packet = self._new()
        packet.timestamp = max(event["ts"], 0) // PS_PER_NS
        made = packet.track_event
        made.type, made.track_uuid = EventType.SLICE_BEGIN, uuid
        made.name_iid = self._number(packet, "event_names", event["name"])
        made.category_iids.append(self._number(packet, "event_categories", event["cat"]))
        made.flow_ids.extend(begins)
        made.terminating_flow_ids.extend(ends)
        for name, value in event["args"].items():
            annotation = made.debug_annotations.add()
            annotation.name_iid = self._number(packet, "debug_annotation_names", name)
            if isinstance(value, int):
                annotation.int_value = value
            elif isinstance(value, float):
                annotation.double_value = value
            else:
                annotation.string_value_iid = self._number(
                    packet, "debug_annotation_string_values", str(value)
                )

    def _end(self, uuid: int, time: int) -> None:
        packet = self._new()
        packet.timestamp = max(time, 0) // PS_PER_NS
        packet.track_event.type, packet.track_event.track_uuid = EventType.SLICE_END, uuid

    def _number(self, packet: Any, kind: str, text: str) -> int:
        """Return the number of a text; the packet that has it first says it."""
        known = self._interned.setdefault(kind, {})
        number = known.get(text)
        if number is None:
            number = known[text] = len(known) + 1
            entry = getattr(packet.interned_data, kind).add()
            entry.iid = number
            encoded = text.encode("utf-8", "replace")
            if kind == "debug_annotation_string_values":
                entry.str = encoded
            else:
                entry.name = encoded.decode()
        return number

    def _new(self) -> Any:
        packet = self._packet.add()
        packet.trusted_packet_sequence_id = self._sequence
        packet.sequence_flags = SequenceFlags.NEEDS_INCREMENTAL_STATE
        if not self._count:
            packet.sequence_flags |= SequenceFlags.INCREMENTAL_STATE_CLEARED
        self._count += 1
        return packet

    def _complete(self) -> Iterator[bytes]:
        if len(self._packet) >= PACKETS_PER_PIECE:
            yield from self.rest()

    def rest(self) -> Iterator[bytes]:
        """Yield what has been added since."""
        if len(self._packet):
            yield self._trace.SerializeToString()
            self._trace.Clear()
            self._packet = self._trace.packet
