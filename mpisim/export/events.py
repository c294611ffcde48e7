"""One rank of a run → its events: what Kineto would have recorded, counters, the critical path.

Kineto files and Perfetto traces are made of the same events, so that they say the same. Counters
are the memory of a rank (`mpisim.prediction.memory_course`) and the use of links (of the results
file, in hundredths of the step). A piece of the critical path without a row of its own on the
device (CPU, launch latency, gap) has no slice in a stream; arrows go from one operation on the
device to the next that is on the path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.quantity import PS_PER_NS
from ..engine.critical_path import CriticalPath, PieceKind
from ..prediction.memory_course import MemoryCourse, MemoryParts
from ..program import Program
from ..results.link_use import BINS, LinkUse
from ..traces.export import Added, rank_run
from ..traces.export_communications import Event, RankRun
from ..traces.export_events import GPU, stream_number
from ..traces.export_host import batch_ends, first_of_batch
from .captured_operators import captured_operators_around
from .operators import operators_around
from .resimulate import ResimulatedRun
from .row_arguments import Communications, RowArguments

__all__ = ["Arrow", "Counter", "EventsOfRanks", "Piece", "RowArrows"]

PATH, LINKS = 2, 3
"""Process numbers of the critical path and of links in a rank's file."""
MOST_LINKS = 16
"""Links, or sets of equally used links, that are shown: the most used ones."""
ON_DEVICE = (PieceKind.COMPUTE, PieceKind.COPY, PieceKind.COMMUNICATION)


class Counter(NamedTuple):
    """A quantity over time.

    Attributes
    ----------
    name, unit : str
    time : int64, shape (n,)
        ps, ascending.
    value : float64, shape (n,)
        From that time on.
    """

    name: str
    unit: str
    time: NDArray[np.int64]
    value: NDArray[np.float64]


def memory_counter(found: MemoryParts) -> Counter:
    """Memory of a rank by part → the counter of all of it."""
    return Counter("GPU memory", "bytes", found.time, found.total.astype(np.float64))


def link_counters(links: LinkUse, step_time_ps: int) -> list[Counter]:
    """Use of links → a counter each, in percent of its capacity; the most used first.

    Parameters
    ----------
    links : LinkUse
    step_time_ps : int
    """
    edges = np.arange(BINS + 1) * step_time_ps // BINS
    return [
        Counter(
            links.links["name"][i] + (f" and {count - 1} alike" if count > 1 else ""),
            "%",
            edges,
            np.append(100 * links.utilisation[i], 0.0),
        )
        for i, count in enumerate(links.links["count"][:MOST_LINKS].tolist())
    ]


class Piece(NamedTuple):
    """A piece of the critical path: begin and end in ps."""

    kind: str
    rank: int
    name: str
    begin: int
    end: int


class Arrow(NamedTuple):
    """From an operation on the device to the next one of the path, by rank and row.

    Its number is that of the piece it goes to: the same on every process.
    """

    number: int
    source: tuple[int, int]
    target: tuple[int, int]


class PathOnRanks:
    """The critical path of a run, and its arrows between some ranks.

    Parameters
    ----------
    path : CriticalPath or None
        None: nothing is on it.
    program : Program
        Arrows of ranks whose tables other processes hold begin and end at rows rather than at the
        first row of their launch.
    """

    def __init__(self, path: CriticalPath | None, program: Program) -> None:
        self._path, self._program = path, program
        self._first: dict[int, list[int]] = {}

    def pieces(self, rank: int | None = None) -> Iterator[Piece]:
        """Yield the pieces in order of time; those of one rank if given."""
        path = self._path
        if path is None:
            return
        which = np.arange(len(path.kind)) if rank is None else np.flatnonzero(path.rank == rank)
        columns = (path.kind, path.rank, path.name, path.begin, path.end)
        for kind, on, name, begin, end in zip(
            *(column[which].tolist() for column in columns), strict=True
        ):
            words = PieceKind(kind).name.lower()
            yield Piece(words, on, path.names[name] if name >= 0 else words, begin, end)

    def arrows(self) -> list[Arrow]:
        """Return the arrows in order of time, of all ranks; numbers are the same everywhere."""
        path = self._path
        if path is None:
            return []
        device = np.flatnonzero(np.isin(path.kind, ON_DEVICE) & (path.row >= 0))
        found: list[Arrow] = []
        last: tuple[int, int] | None = None
        for piece, rank, row in zip(
            device.tolist(), path.rank[device].tolist(), path.row[device].tolist(), strict=True
        ):
            stop = rank, self._launch(rank, row)
            if last is not None and last != stop:
                found.append(Arrow(piece, last, stop))
            last = stop
        return found

    def _launch(self, rank: int, row: int) -> int:
        """The first row of a row's launch, which alone is an operation on the device."""
        number = int(self._program.table[rank])
        table = self._program.tables[number]
        if table is None:
            return row
        if number not in self._first:
            self._first[number] = first_of_batch(table)
        return self._first[number][row]


class RowArrows(NamedTuple):
    """Numbers of the critical path's arrows that begin and end at rows, by row."""

    begin: dict[int, list[int]]
    end: dict[int, list[int]]


class EventsOfRanks:
    """Events of the ranks that this process hosts. Local.

    Parameters
    ----------
    source : ResimulatedRun
    chosen : sequence of int
        Ranks of the program that are exported; the first of them also shows the use of links.
    """

    def __init__(self, source: ResimulatedRun, chosen: Sequence[int]) -> None:
        self._source, self._chosen = source, chosen
        self.program: Program = source.run.program
        self.communications = Communications(self.program, source.network)
        self.path = PathOnRanks(source.kept.critical_path, self.program)
        self.links = link_counters(source.kept.links, source.kept.step_time_ps)
        self._memory = None if source.prepared is None else MemoryCourse(source.prepared)
        self._arrows = self.path.arrows()

    def hosted(self) -> Iterator[tuple[int, int]]:
        """Yield the chosen ranks hosted here: entry of `Run.hosted`, and rank of the program."""
        chosen = set(self._chosen)
        for i, rank in enumerate(self._source.run.hosted.tolist()):
            if rank in chosen:
                yield i, rank

    def rank(self, i: int) -> RankRun:
        """Return the i-th rank hosted here, with the arguments of its rows."""
        source = self._source
        return rank_run(self.program, source.run, i, source.kept.numbers, self._added(i))

    def _added(self, i: int) -> Added:
        rank = int(self._source.run.hosted[i])
        rows = self._source.run.rows(i)
        arguments = RowArguments(self.program, rank, rows, self.communications)
        # A prediction is one step; recordings name their own.
        if self._source.recorded:
            return Added(arguments)
        if self._source.prepared is None:
            return Added(arguments, 0, around=captured_operators_around(self._source.program))
        around = operators_around(self._source.prepared, rank)
        return Added(arguments, 0, around=around)

    def memory(self, i: int) -> Counter | None:
        """Return the memory of the i-th rank hosted here, where it is known."""
        if self._memory is None:
            return None
        rank = int(self._source.run.hosted[i])
        found = self._memory.of(rank, self.program.table_of(rank), self._source.run.rows(i))
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
        table, rows = self.program.table_of(rank), self._source.run.rows(i)
        ends = batch_ends(first_of_batch(table), rows.end)
        for arrow in self._arrows:
            if arrow.source[0] == arrow.target[0] == rank:
                source, target = arrow.source[1], arrow.target[1]
                flow = {"cat": "critical_path", "name": "critical path", "id": arrow.number}
                # Within the slice that it begins at, whose end is not part of it.
                begin = max(int(rows.begin[source]), ends[source] - PS_PER_NS)
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
