"""One rank of a run → its events: what Kineto would have recorded, counters, the critical path.

Kineto files and Perfetto traces are made of the same events, so that they say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..prediction.memory_course import MemoryCourse
from ..program import Program
from ..traces.export import Added, rank_run
from ..traces.export_communications import Event, RankRun
from ..traces.export_events import GPU, batch_ends, first_of_batch, stream_number
from .again import RunAgain
from .counters import Counter, link_counters, memory_counter
from .notes import Communications, RowNotes
from .operators import operators_around
from .path import PathOnRanks

__all__ = ["EventsOfRanks", "RowArrows"]

PATH, LINKS = 2, 3
"""Process numbers of the critical path and of links in a rank's file."""
NS = 1_000
"""In ps."""


class RowArrows(NamedTuple):
    """Numbers of the critical path's arrows that begin and end at rows, by row."""

    begin: dict[int, list[int]]
    end: dict[int, list[int]]


class EventsOfRanks:
    """Events of the ranks that this process hosts. Local.

    Parameters
    ----------
    again : RunAgain
    chosen : sequence of int
        Ranks of the program that are exported; the first of them also shows the use of links.
    """

    def __init__(self, again: RunAgain, chosen: Sequence[int]) -> None:
        self._again, self._chosen = again, chosen
        self.program: Program = again.run.program
        self.communications = Communications(self.program, again.network)
        self.path = PathOnRanks(again.kept.critical_path, self.program)
        self.links = link_counters(again.kept.links, again.kept.step_time_ps)
        self._memory = None if again.prepared is None else MemoryCourse(again.prepared)
        self._arrows = self.path.arrows()

    def hosted(self) -> Iterator[tuple[int, int]]:
        """Yield the chosen ranks hosted here: entry of `Run.hosted`, and rank of the program."""
        chosen = set(self._chosen)
        for i, rank in enumerate(self._again.run.hosted.tolist()):
            if rank in chosen:
                yield i, rank

    def rank(self, i: int) -> RankRun:
        """Return the i-th rank hosted here, with the notes of its rows."""
        again = self._again
        return rank_run(self.program, again.run, i, again.kept.numbers, self._added(i))

    def _added(self, i: int) -> Added:
        rank = int(self._again.run.hosted[i])
        notes = RowNotes(self.program, rank, self._again.run.rows(i), self.communications)
        # A prediction is one step; recordings name their own.
        if self._again.recorded:
            return Added(notes)
        around = (
            {} if self._again.prepared is None else operators_around(self._again.prepared, rank)
        )
        return Added(notes, 0, around=around)

    def memory(self, i: int) -> Counter | None:
        """Return the memory of the i-th rank hosted here, where it is known."""
        if self._memory is None:
            return None
        rank = int(self._again.run.hosted[i])
        found = self._memory.of(rank, self.program.table_of(rank), self._again.run.rows(i))
        return None if found is None else memory_counter(found)

    def arrows(self, rank: int) -> RowArrows:
        """Return the arrows of the critical path from and to rows of a rank that is exported.

        Only arrows between ranks that are exported.
        """
        chosen = set(self._chosen)
        found = RowArrows({}, {})
        for arrow in self._arrows:
            if {arrow.source[0], arrow.target[0]} <= chosen:
                for (on, row), rows in ((arrow.source, found.begin), (arrow.target, found.end)):
                    if on == rank:
                        rows.setdefault(row, []).append(arrow.number)
        return found

    # --- a rank's own file ------------------------------------------------------------------------

    def added(self, i: int, rank: int) -> Added:
        """Return what a rank's Kineto file has besides its rows.

        Parameters
        ----------
        i : int
            Entry of `Run.hosted`.
        rank : int
            Rank of the program.
        """
        memory = self.memory(i)
        events = [
            *(_counter_events(memory, GPU) if memory is not None else []),
            *(
                e
                for c in (self.links if rank == self._chosen[0] else [])
                for e in _counter_events(c, LINKS)
            ),
            *self._path_events(i, rank),
        ]
        return self._added(i)._replace(events=events)

    def _path_events(self, i: int, rank: int) -> Iterator[Event]:
        """Yield the pieces of the critical path on a rank, and arrows between its own rows."""
        for piece in self.path.pieces(rank):
            yield {
                "ph": "X",
                "cat": "critical_path",
                "name": piece.name,
                "pid": PATH,
                "tid": 0,
                "ts": piece.begin,
                "dur": piece.end - piece.begin,
                "args": {"Kind": piece.kind},
            }
        table, rows = self.program.table_of(rank), self._again.run.rows(i)
        ends = batch_ends(first_of_batch(table), rows.end)
        for arrow in self._arrows:
            if arrow.source[0] == arrow.target[0] == rank:
                source, target = arrow.source[1], arrow.target[1]
                flow = {"cat": "critical_path", "name": "critical path", "id": arrow.number}
                # Within the slice that it begins at, whose end is not part of it.
                begin = max(int(rows.begin[source]), ends[source] - NS)
                yield {
                    "ph": "s",
                    "pid": GPU,
                    "tid": stream_number(int(table.stream[source])),
                    "ts": begin,
                    **flow,
                }
                yield {
                    "ph": "f",
                    "pid": GPU,
                    "tid": stream_number(int(table.stream[target])),
                    "ts": int(rows.begin[target]),
                    "bp": "e",
                    **flow,
                }


def _counter_events(counter: Counter, process: int) -> Iterator[Event]:
    for time, value in zip(counter.time.tolist(), counter.value.tolist(), strict=True):
        yield {
            "ph": "C",
            "name": counter.name,
            "pid": process,
            "ts": time,
            "args": {counter.unit: value},
        }
