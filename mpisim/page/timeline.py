"""Rows of the shown ranks → the columns of the timeline.

Each rank is a group of lanes, one for each stream; rows lie in the order of lanes and, in each, of
time. Where a step follows from two shorter ones, the rounds that repeat are inserted here: what a
row of a round does at some time, its copies do a period later each
(`mpisim.engine.periodic_window`).

The page is one file to be sent around, so there is a limit to its rows. Where there are more, whole
groups are left out, those with least of the critical path first; and of a single group that is too
long all that begins after some time.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.text import duration
from ..engine.rows import Rows
from ..mpi.parallel import collective_errors
from ..program import Flag, Kind, Phase, Program, Table
from .shown import RankGroups, ShownRun

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["MOST_ROWS", "Timeline", "communicator_family", "timeline_of", "whole_rows"]

MOST_ROWS = 600_000
"""Rows of all groups: what a browser shows without delay."""
MOST_BYTES = 3_200_000
"""Of their times, about, as they are in the file. Those of a prediction repeat and take less than a
byte a row; random factors and recordings take up to 15."""
SAMPLE = 20_000
"""Rows of a rank that tell how many bytes one takes."""

KINDS = ("kernel", "copy", "collective", "send", "recv", "host", "host wait")
"""What each `Kind` is called."""

Ints = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]


class WholeRows(NamedTuple):
    """Rows of a rank over the whole step, whether or not all of them were simulated.

    Attributes
    ----------
    row : int64, shape (n,)
        Row of the table that each is, or is a copy of.
    number : int64, shape (n,)
        Its number in the rank, over the whole step.
    begin, end, wire : int64, shape (n,)
        In ps from the begin of the run.
    micro_batch : int32, shape (n,)
    """

    row: Ints
    number: Ints
    begin: Ints
    end: Ints
    wire: Ints
    micro_batch: NDArray[np.int32]


class Part(NamedTuple):
    """What one process makes of one rank: rows in the order of lanes and time."""

    rank: int
    lanes: tuple[tuple[str, int], ...]
    """Name of each lane, and its rows."""
    columns: Columns
    names: tuple[str, ...]
    """Of rows."""
    numbers: Ints
    """Number of each row in its rank."""
    cut_at: int
    """Time from which on rows are left out; -1: none."""


class Timeline(NamedTuple):
    """The section of the page, and where the rows of each rank lie in it.

    Attributes
    ----------
    section : dict
    place : mapping of int to (int64, int64)
        Of each shown rank: numbers of its rows, ascending, and the entry in ``rows`` of each.
    """

    section: dict[str, Any]
    place: Mapping[int, tuple[Ints, Ints]]


def whole_rows(shown: ShownRun, rank: int, rows: Rows) -> WholeRows:
    """Rows of a rank as simulated → those of the whole step. Local.

    Parameters
    ----------
    shown : ShownRun
    rank : int
    rows : Rows
        Of this rank.
    """
    table = shown.run.program.table_of(rank)
    row = np.arange(len(table))
    micro_batch = table.micro_batch.astype(np.int32)
    repetition = shown.repetition
    if repetition is None:
        return WholeRows(row, row, rows.begin, rows.end, rows.wire, micro_batch)
    times, window = repetition.times, repetition.window
    # A round is inserted behind itself; all that follows is later by all of them.
    last = int(window.high[rank] + window.n_rows[rank])
    again = row[int(window.high[rank]) : last]
    later = np.arange(times + 2).clip(max=times)
    later = np.repeat(later, [last, *[len(again)] * times, len(row) - last])
    row = np.concatenate([row[:last], np.tile(again, times), row[last:]])
    shorter = repetition.shorter.program.table_of(rank).micro_batch
    more = int(micro_batch.max(initial=-1)) - int(shorter.max(initial=-1))
    time = later * window.period
    return WholeRows(
        row,
        np.arange(len(row)),
        rows.begin[row] + time,
        rows.end[row] + time,
        rows.wire[row] + time,
        np.where(micro_batch[row] < 0, -1, micro_batch[row] + later * more).astype(np.int32),
    )


# --- one rank -------------------------------------------------------------------------------------


def part_of(
    shown: ShownRun, rank: int, window: tuple[int, int], most: int, known: WholeRows | None = None
) -> Part:
    """Return what is shown of a rank that this process hosts. Local.

    Parameters
    ----------
    shown : ShownRun
    rank : int
    window : tuple of int
        Begin and end of the step, in ps from the begin of the run. Rows that reach beyond it are
        cut at its ends.
    most : int
        Rows, at most: of more those that begin first.
    known : WholeRows, optional
        Its rows.
    """
    program = shown.run.program
    table, whole = program.table_of(rank), known or rows_of(shown, rank)
    begin, end = window
    here = np.flatnonzero((whole.end >= begin) & (whole.begin <= end))
    cut_at = -1
    if len(here) > most:
        times = whole.begin[here]
        cut_at = int(np.partition(times, most)[most])
        here = here[times < cut_at]
        cut_at -= begin
    row = whole.row[here]
    lane_of, lanes = _lanes(program, rank, table)
    lane = lane_of[row]
    order = np.lexsort((whole.number[here], whole.begin[here], lane))
    here, row, lane = here[order], row[order], lane[order]
    starts, ends = (each[here].clip(begin, end) - begin for each in (whole.begin, whole.end))
    wire = whole.wire[here].clip(begin, end) - begin
    talks = table.is_communication
    group = np.append(program.slots_of(rank), -1)[np.where(talks, table.slot, -1)]
    used, name = np.unique(table.name[row], return_inverse=True)
    counts = np.bincount(lane, minlength=len(lanes)).tolist()
    return Part(
        rank,
        tuple((title, n) for title, n in zip(lanes, counts, strict=True) if n),
        {
            "begin": starts,
            "duration": ends - starts,
            "wait": np.where(talks[row], wire - starts, 0),
            "name": name.reshape(-1).astype(np.int32),
            "kind": table.kind[row],
            "phase": table.phase[row],
            "layer": table.layer[row],
            "micro_batch": whole.micro_batch[here],
            "bytes": table.bytes[row],
            "communicator": group[row].astype(np.int32),
        },
        tuple(program.names[i] for i in used.tolist()),
        whole.number[here],
        cut_at,
    )


def rows_of(shown: ShownRun, rank: int) -> WholeRows:
    """Return the rows of a rank that this process hosts. Local."""
    entry = int(np.searchsorted(shown.run.hosted, rank))
    return whole_rows(shown, rank, shown.run.rows(entry))


def _lanes(program: Program, rank: int, table: Table) -> tuple[Ints, list[str]]:
    """Return the lane of each row of a table, and what lanes are called.

    A lane is a stream of the device, or the CPU. Messages of one batch run at the same time and
    have a lane each.
    """
    joined = (table.flags & Flag.JOINED) != 0
    at = np.arange(len(table))
    place = at - np.maximum.accumulate(np.where(joined, 0, at)) if len(table) else at
    streams = table.n_streams
    key = np.where(table.stream < 0, streams, table.stream) + (streams + 1) * place
    computes = np.bincount(table.stream[table.kind == Kind.KERNEL], minlength=streams + 1) > 0
    found, lane = np.unique(key, return_inverse=True)
    found_place, found_stream = np.divmod(found, streams + 1)
    # Streams that compute come first, the CPU last; those of a batch follow each other.
    order = np.lexsort(
        (found_place, found_stream, ~computes[found_stream], found_stream == streams)
    )
    rank_of = np.argsort(order)
    titles, taken = [], dict[str, int]()
    for stream, nth in zip(found_stream[order].tolist(), found_place[order].tolist(), strict=True):
        if stream == streams:
            titles.append("CPU")
            continue
        title = _stream_title(program, rank, table, stream)
        if nth:
            titles.append(f"{title}, message {nth + 1} of a batch")
            continue
        taken[title] = taken.get(title, 0) + 1
        titles.append(title if taken[title] == 1 else f"{title} ({taken[title]})")
    return rank_of[lane.reshape(-1)], titles


def _stream_title(program: Program, rank: int, table: Table, stream: int) -> str:
    """Return what a stream of the device is called: what most of its rows do."""
    here = table.stream == stream
    kinds = np.bincount(table.kind[here], minlength=len(Kind))
    if kinds[Kind.KERNEL]:
        return "compute"
    talks = here & table.is_communication
    if not talks.any():
        return "copies"
    groups = program.slots_of(rank)[np.unique(table.slot[talks])]
    texts = (communicator_family(program.communicators.names[i]) for i in groups.tolist())
    families = sorted(set(texts))
    return ", ".join(families[:3]) + (", …" if len(families) > 3 else "")


def communicator_family(name: str) -> str:
    """Return what communicators of one kind are called, without their numbers.

    Examples
    --------
    >>> communicator_family("activation+ 12")
    'activation+'
    """
    return re.sub(r"[\s\d]+$", "", name) or name


# --- all ranks ------------------------------------------------------------------------------------


def timeline_of(
    shown: ShownRun,
    groups: RankGroups | None,
    window: tuple[int, int],
    numbers: Sequence[int],
    comm: Intracomm,
    most: int = MOST_ROWS,
) -> Timeline | None:
    """Rows of the shown ranks → the timeline of the page. **Collective.**

    Parameters
    ----------
    shown : ShownRun
    groups : RankGroups or None
        On process 0.
    window : tuple of int
        Begin and end of the step, in ps from the begin of the run; on process 0.
    numbers : sequence of int
        Number of each rank in its job; on process 0.
    comm : mpi4py.MPI.Intracomm
    most : int
        Rows of all groups, at most.

    Returns
    -------
    Timeline or None
        On process 0; None on the others.
    """
    asked = None
    if groups is not None:  # those that matter most first
        order = sorted(zip(groups.on_path, groups.shown, strict=True), key=lambda each: -each[0])
        asked = [rank for _, rank in order], window
    ranks, window = comm.bcast(asked, root=0)
    mine = [rank for rank in ranks if shown.run.placement[rank] == comm.rank]
    with collective_errors(comm):
        sizes = {rank: _size(rows_of(shown, rank), window) for rank in mine}
    everyone = {rank: size for part in comm.allgather(sizes) for rank, size in part.items()}
    kept, most = _that_fit(ranks, everyone, most)
    with collective_errors(comm):
        parts = [part_of(shown, rank, window, most) for rank in mine if rank in kept]
    found = comm.gather(parts, root=0)
    if found is None or groups is None:
        return None
    by_rank = {part.rank: part for process in found for part in process}
    return _joined(shown.run.program, groups, by_rank, numbers, window)


class _Size(NamedTuple):
    """What a rank takes of the page."""

    rows: int
    bytes_a_row: float


def _size(whole: WholeRows, window: tuple[int, int]) -> _Size:
    """Return how many rows of a rank lie in the step, and what one takes in the file. Local."""
    here = np.flatnonzero((whole.end >= window[0]) & (whole.begin <= window[1]))
    middle = max(len(here) - SAMPLE, 0) // 2
    some = here[middle : middle + SAMPLE]
    columns = (np.diff(whole.begin[some]), (whole.end - whole.begin)[some])
    packed = sum(len(zlib.compress(column.tobytes(), 1)) for column in columns)
    return _Size(len(here), packed * 4 / 3 / max(len(some), 1))  # as text


def _that_fit(
    ranks: Sequence[int], sizes: Mapping[int, _Size], most: int
) -> tuple[frozenset[int], int]:
    """Return the ranks whose rows fit together, and the rows that one may have.

    Parameters
    ----------
    ranks : sequence of int
        Shown ranks, those that matter most first.
    sizes : mapping of int to _Size
    most : int
        Rows of all.
    """
    kept = [ranks[0]]
    rows, taken = sizes[ranks[0]].rows, sizes[ranks[0]].rows * sizes[ranks[0]].bytes_a_row
    one = min(most, int(MOST_BYTES / max(sizes[ranks[0]].bytes_a_row, 1e-3)))
    for rank in ranks[1:]:
        more = sizes[rank]
        if rows + more.rows <= most and taken + more.rows * more.bytes_a_row <= MOST_BYTES:
            kept.append(rank)
            rows += more.rows
            taken += more.rows * more.bytes_a_row
    return frozenset(kept), one


def _joined(
    program: Program,
    groups: RankGroups,
    parts: Mapping[int, Part],
    numbers: Sequence[int],
    window: tuple[int, int],
) -> Timeline:
    """Return the timeline of all ranks that are shown, on process 0."""
    names: dict[str, int] = {}
    lanes: list[dict[str, Any]] = []
    columns: dict[str, list[NDArray[Any]]] = {}
    place: dict[int, tuple[Ints, Ints]] = {}
    at, sizes = 0, groups.sizes.tolist()
    for i, rank in enumerate(groups.shown):
        part = parts.get(rank)
        if part is None:
            continue
        own = np.array([names.setdefault(name, len(names)) for name in part.names], np.int32)
        streams, first = [], at
        for title, count in part.lanes:
            streams.append({"name": title, "first": at, "count": count})
            at += count
        for name, column in part.columns.items():
            columns.setdefault(name, []).append(own[column] if name == "name" else column)
        order = np.argsort(part.numbers, kind="stable")
        place[rank] = part.numbers[order], first + order
        equal = f"rank {numbers[rank]}"
        if sizes[i] > 1:
            equal += f" of {sizes[i]:,}"
        lanes.append(
            {
                "title": groups.titles[i],
                "subtitle": equal,
                "rank": numbers[rank],
                "stage": groups.stages[i],
                "streams": streams,
            }
        )
    rows = {name: np.concatenate(column) for name, column in columns.items()}
    used, communicator = np.unique(rows["communicator"], return_inverse=True)
    known = used[used >= 0]
    rows["communicator"] = (communicator.reshape(-1) - (len(used) - len(known))).astype(np.int32)
    cut = [_left_out(groups, parts, numbers)]
    begun = [part for part in parts.values() if part.cut_at >= 0]
    cut += [
        f"rank {numbers[part.rank]} is shown until {duration(part.cut_at)} of the step's "
        f"{duration(window[1] - window[0])}: it has more rows than a page holds."
        for part in begun
    ]
    section = {
        "names": list(names),
        "phases": [phase.name.lower() for phase in Phase],
        "groups": lanes,
        "rows": rows,
        "kinds": list(KINDS),
        "communicators": [program.communicators.names[i] for i in known.tolist()],
        "cut": " ".join(text for text in cut if text),
    }
    return Timeline(section, place)


def _left_out(groups: RankGroups, parts: Mapping[int, Part], numbers: Sequence[int]) -> str:
    """Say which groups have no rows in the page."""
    missing = [
        f"{title} (rank {numbers[rank]})"
        for title, rank in zip(groups.titles, groups.shown, strict=True)
        if rank not in parts
    ]
    texts = []
    if missing:
        texts.append(
            f"Left out, since they have more rows than a page holds: {', '.join(missing)}."
        )
    if groups.left_out:
        texts.append(f"{groups.left_out:,} more groups of ranks are not shown.")
    return " ".join(texts)
