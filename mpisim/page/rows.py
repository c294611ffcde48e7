"""Rows of one rank → columns of the timeline, lane after lane.

A lane is a stream of the device, or the CPU. Where a step follows from two shorter ones, the rounds
that repeat are inserted here: what a row of a round does at some time, its copies do a period later
each (`mpisim.engine.periodic_window`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import numbered
from ..program import Flag, Kind, Program, Table
from ..results.step_parts import kind_name
from .shown import ShownRun

__all__ = ["Gap", "RankRows", "begun_before", "rank_rows"]

Ints = NDArray[np.int64]


class Gap(NamedTuple):
    """Rows that begin in it are left out, the end excluded; in ps from the begin of the run."""

    begin: int
    end: int


class WholeRows(NamedTuple):
    """Rows of a rank over the whole step, whether or not all of them were simulated.

    Attributes
    ----------
    row : int64, shape (n,)
        Row of the table that each is, or is a copy of.
    number : int64, shape (n,)
        Its number in the rank, over the whole step; ascending.
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


class RankRows(NamedTuple):
    """What is shown of a rank: rows in the order of lanes and time.

    Attributes
    ----------
    rank : int
    lanes : tuple of (str, int)
        Name of each lane, and its rows.
    columns : dict of str to array, shape (n,)
        Of the timeline; times from the begin of the step, names as entries of `names`,
        communicators as those of the program.
    names : tuple of str
    numbers : int64, shape (n,)
        Number of each row in its rank.
    """

    rank: int
    lanes: tuple[tuple[str, int], ...]
    columns: dict[str, NDArray[Any]]
    names: tuple[str, ...]
    numbers: Ints


# --- the whole step -------------------------------------------------------------------------------


def whole_rows(shown: ShownRun, rank: int, gap: Gap | None = None) -> WholeRows:
    """Rows of a rank that this process hosts → those of the whole step. Local.

    Parameters
    ----------
    shown : ShownRun
    rank : int
    gap : Gap, optional
        What is left out.
    """
    run, repetition = shown.run, shown.repetition
    rows = run.rows(int(np.searchsorted(run.hosted, rank)))
    table = run.program.table_of(rank)
    micro_batch = table.micro_batch.astype(np.int32)
    row = number = np.arange(len(table))
    later = np.zeros(len(table), np.int64)
    period = more = 0
    if repetition is not None:
        times, window = repetition.times, repetition.window
        n, period = int(window.n_rows[rank]), window.period
        last = int(window.high[rank]) + n
        # A round is inserted behind itself; all that follows is later by all of them.
        again = row[last - n : last]
        copies = np.arange(1, times + 1)
        if gap is not None and n:
            first, end = int(rows.begin[again].min()), int(rows.begin[again].max())
            in_gap = (first + copies * period >= gap.begin) & (end + copies * period < gap.end)
            copies = copies[~in_gap]
        later = np.concatenate(
            [later[:last], np.repeat(copies, n), np.full(len(row) - last, times)]
        )
        row = np.concatenate([row[:last], np.tile(again, len(copies)), row[last:]])
        number = row + later * n
        shorter = repetition.shorter.program.table_of(rank).micro_batch
        more = int(micro_batch.max(initial=-1)) - int(shorter.max(initial=-1))
    begin = rows.begin[row] + later * period
    if gap is not None:
        kept = (begin < gap.begin) | (begin >= gap.end)
        row, number, later, begin = row[kept], number[kept], later[kept], begin[kept]
    own = micro_batch[row]
    return WholeRows(
        row,
        number,
        begin,
        rows.end[row] + later * period,
        rows.wire[row] + later * period,
        np.where(own < 0, -1, own + later * more).astype(np.int32),
    )


def begun_before(shown: ShownRun, rank: int, times: Ints) -> Ints:
    """Return how many rows of the whole step have begun before each of some times. Local.

    Parameters
    ----------
    shown : ShownRun
    rank : int
        That this process hosts.
    times : int64, shape (n,)
        In ps from the begin of the run.
    """
    run, repetition = shown.run, shown.repetition
    begin = run.rows(int(np.searchsorted(run.hosted, rank))).begin
    if repetition is None:
        return np.searchsorted(np.sort(begin), times).astype(np.int64)
    period, copies = repetition.window.period, repetition.times
    n = int(repetition.window.n_rows[rank])
    last = int(repetition.window.high[rank]) + n
    found = np.searchsorted(np.sort(begin[:last]), times)
    found = found + np.searchsorted(np.sort(begin[last:] + copies * period), times)
    # Copy k of a row begins k periods later.
    begun = (times - 1 - begin[last - n : last, None]) // period
    found = found + np.clip(begun, 0, copies).sum(axis=0)
    return found.astype(np.int64)


# --- one rank -------------------------------------------------------------------------------------


def rank_rows(
    shown: ShownRun, rank: int, window: tuple[int, int], gap: Gap | None = None
) -> RankRows:
    """Return what is shown of a rank that this process hosts. Local.

    Parameters
    ----------
    shown : ShownRun
    rank : int
    window : tuple of int
        Begin and end of the step, in ps from the begin of the run. Rows that reach beyond it are
        cut at its ends.
    gap : Gap, optional
        What is left out.
    """
    program = shown.run.program
    table, whole = program.table_of(rank), whole_rows(shown, rank, gap)
    begin, end = window
    here = np.flatnonzero((whole.end >= begin) & (whole.begin <= end))
    lane_of, lanes = _lanes(program, rank, table)
    lane = lane_of[whole.row[here]]
    here = here[np.lexsort((whole.number[here], whole.begin[here], lane))]
    row = whole.row[here]
    starts, ends, wire = (
        each[here].clip(begin, end) - begin for each in (whole.begin, whole.end, whole.wire)
    )
    slot = np.where(table.is_communication, table.slot, -1)
    group = np.append(program.slots_of(rank), -1)[slot]
    used, _, name = numbered(table.name[row])
    counts = np.bincount(lane, minlength=len(lanes)).tolist()
    return RankRows(
        rank,
        tuple((title, n) for title, n in zip(lanes, counts, strict=True) if n),
        {
            "begin": starts,
            "duration": ends - starts,
            "wait": np.where(table.is_communication[row], wire - starts, 0),
            "name": name.astype(np.int32),
            "kind": table.kind[row],
            "phase": table.phase[row],
            "layer": table.layer[row],
            "micro_batch": whole.micro_batch[here],
            "bytes": table.bytes[row],
            "communicator": group[row].astype(np.int32),
        },
        tuple(program.names[i] for i in used.tolist()),
        whole.number[here],
    )


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
    found, _, lane = numbered(key)
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
    return rank_of[lane], titles


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
    texts = (kind_name(program.communicators.names[i]) for i in groups.tolist())
    families = sorted(set(texts))
    return ", ".join(families[:3]) + (", …" if len(families) > 3 else "")
