"""A job's program with other numbers of micro-batches: rounds of its pipeline repeated or left out.

In the steady state of 1F1B every stage does one forward and one backward a round, and sends and
receives one message each way. A round is what a rank does from one message of a kind to the next.
Of rounds that do the same (kernels, communications, sizes, in one order) any number can follow each
other; the first and the last of the step, in which the pipeline fills and drains, stay as they
are. Rounds that are added take the median times of those recorded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..program import COLUMNS, Kind, Program, Table, check_matching
from .parallel_structure import ParallelStructure

__all__ = ["with_micro_batches"]

SAME = ("kind", "stream", "flags", "operation", "slot", "bytes", "name")
"""Columns in which rounds must agree."""

TIMES = ("host", "launch", "launch_cost", "gap", "duration")


@frozen(eq=False)
class _Rounds:
    """Equal rounds of one rank in one step.

    Attributes
    ----------
    first : int
        The row at which the first of them begins.
    length : int
        Rows of each.
    count : int
    micro_batches : float
        Of the step: a message each way to every neighbour.
    """

    first: int
    length: int
    count: int
    micro_batches: float


def with_micro_batches(
    program: Program, structure: ParallelStructure, micro_batches: int
) -> tuple[Program, str, int]:
    """Give every step of a job so many micro-batches. Local.

    Parameters
    ----------
    program : Program
        Whole, as recorded.
    structure : ParallelStructure
        Of this program.
    micro_batches : int

    Returns
    -------
    Program
        The same if it has as many.
    str
        What was assumed.
    int
        How many it had.

    Raises
    ------
    InputError
        If the job is no pipeline, or its rounds do not repeat.
    """
    pp = structure.axis("pp")
    if pp is None:
        raise InputError(
            f"--micro-batches: the grid {structure.text} has no pipeline, whose messages would "
            "tell where a micro-batch ends"
        )
    found = {rank: _rounds_of(program, structure, pp, rank) for rank in range(program.n_ranks)}
    before = _recorded(found)
    if micro_batches == before:
        return program, "", before
    fewest = before - min(each.count for own in found.values() for each in own)
    if micro_batches <= fewest:
        raise InputError(
            f"--micro-batches {micro_batches}: {fewest} of the {before} recorded fill and drain "
            f"the pipeline; allowed is {fewest + 1} or more"
        )
    tables = []
    for rank in range(program.n_ranks):
        table = program.table_of(rank)
        for rounds in reversed(found[rank]):  # rows of earlier steps keep their numbers
            table = _with_rounds(table, rounds, micro_batches - before)
        tables.append(table)
    changed = program.replace(
        tables=tuple(tables), table=np.arange(program.n_ranks, dtype=np.int32)
    )
    check_matching(changed)
    how = "added with the median times of" if micro_batches > before else "left out of"
    said = (
        f"{micro_batches} micro-batches in place of {before}: rounds of one forward and one "
        f"backward {how} those recorded"
    )
    return changed, said, before


def _rounds_of(program: Program, structure: ParallelStructure, pp: int, rank: int) -> list[_Rounds]:
    """Return the rounds of a rank's steps; `pp` is the axis of the pipeline."""
    table = program.table_of(rank)
    pairs = [
        slot
        for slot, c in enumerate(program.slots_of(rank).tolist())
        if structure.spans[c, pp] and _is_pair(table, slot)
    ]
    own = program.slots_of(rank)[pairs].tolist()
    neighbours = {r for c in own for r in program.communicators.group(c)} - {rank}
    return [
        _rounds(table, pairs, len(neighbours), step, structure.ranks[rank])
        for step in _steps(table, pairs)
    ]


def _recorded(found: dict[int, list[_Rounds]]) -> int:
    """Rounds of all ranks → the micro-batches of a recorded step."""
    counts = {each.micro_batches for own in found.values() for each in own}
    if len(counts) != 1:
        raise InputError(
            f"--micro-batches: ranks exchange {', '.join(f'{n:g}' for n in sorted(counts))} "
            "messages each way in a step, so micro-batches cannot be counted"
        )
    before = counts.pop()
    if before % 1:
        raise InputError(
            "--micro-batches: ranks send more messages one way than the other, so micro-batches "
            "cannot be counted"
        )
    return int(before)


def _is_pair(table: Table, slot: int) -> bool:
    rows = table.rows_on(slot)
    return bool(len(rows)) and int(table.kind[rows[0]]) in (Kind.SEND, Kind.RECV)


def _steps(table: Table, pairs: list[int]) -> list[int]:
    """Steps in which a rank exchanges messages."""
    return np.unique(table.step[np.isin(table.slot, pairs)]).tolist()


def _rounds(table: Table, pairs: list[int], neighbours: int, step: int, rank: int) -> _Rounds:
    """Find the equal rounds of one rank in one step, by one of its kinds of message."""
    same = np.stack([getattr(table, name).astype(np.int64) for name in SAME])
    best: _Rounds | None = None
    messages = int((np.isin(table.slot, pairs) & (table.step == step)).sum())
    micro_batches = messages / (2 * neighbours)
    for slot in pairs:
        at = table.rows_on(slot)
        at = at[table.step[at] == step]
        for i in range(len(at) - 2):
            length = int(at[i + 1] - at[i])
            if np.isin(table.slot[at[i] : at[i + 1]], pairs).sum() != 2 * neighbours:
                continue  # no message each way: several forwards, then several backwards
            count = 1
            while i + count + 1 < len(at) and at[i + count + 1] - at[i + count] == length:
                now, then = (slice(at[k], at[k] + length) for k in (i, i + count))
                if not (same[:, now] == same[:, then]).all():
                    break
                count += 1
            if count > 1 and (best is None or count > best.count):
                best = _Rounds(int(at[i]), length, count, micro_batches)
    if best is None:
        raise InputError(
            f"--micro-batches: of the {micro_batches:g} rounds (a forward and a backward) of rank "
            f"{rank} no two that follow each other do the same, so what more of them would do "
            "cannot be told; record more micro-batches"
        )
    return best


def _with_rounds(table: Table, rounds: _Rounds, more: int) -> Table:
    """Repeat the last of some equal rounds, or leave out the last of them.

    Rows wait for what lay as far before them as it did in the recording, if that was in a round;
    for the same rows if it was before all rounds.
    """
    length, n = rounds.length, len(table)
    end = rounds.first + rounds.count * length
    kept = np.arange(min(end, end + more * length))
    last = np.arange(end - length, end)
    added = np.tile(last, max(more, 0))
    rows = np.concatenate([kept, added, np.arange(end, n)])
    # By how many rows each lies behind its place in the recording.
    shift = np.concatenate(
        [
            np.zeros(len(kept), np.int64),
            np.repeat(np.arange(1, max(more, 0) + 1) * length, length),
            np.full(n - end, more * length),
        ]
    )
    columns: dict[str, Any] = {name: getattr(table, name)[rows] for name in COLUMNS}
    if more > 0:
        every = rounds.first + np.arange(rounds.count * length).reshape(rounds.count, length)
        put_in = slice(len(kept), len(kept) + len(added))
        for name in TIMES:
            usual = np.median(getattr(table, name)[every], axis=0)
            columns[name][put_in] = np.tile(np.rint(usual).astype(np.int64), more)
    counts = np.diff(table.wait_index)[rows]
    waits: list[NDArray[np.int64]] = []
    for row, by in zip(rows.tolist(), shift.tolist(), strict=True):
        own = table.wait_row[table.wait_index[row] : table.wait_index[row + 1]].astype(np.int64)
        waits.append(np.where(own >= rounds.first, np.maximum(own + by, rounds.first), own))
    return Table(
        **columns,
        wait_index=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        wait_row=np.concatenate(waits).astype(np.int32),
        queue_depth=table.queue_depth,
        label=table.label,
    )
