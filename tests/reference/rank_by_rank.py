"""Runs without contention, one rank at a time: program and network → times of every row.

Each rank executes its rows in order. A communication tells its meeting when this rank is ready and
goes on; only a row that follows the communication needs its end. If that is not known, because some
member has not come, the rank stops there and another takes its turn.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mpisim.program import Flag, Kind, Program

from .costs import Match, costs_of, operations_of
from .dependencies import batches_of

__all__ = ["Times", "rank_by_rank"]


class Times(NamedTuple):
    """Lists over ranks of int64 arrays over rows, and the ends of ranks; ps."""

    begin: list[np.ndarray]
    end: list[np.ndarray]
    wire: list[np.ndarray]
    rank_end: np.ndarray


class _UnknownEndError(Exception):
    """A row needs the end of a communication to which not all members have come."""


class _Rank:
    """State of one rank: the row it has come to, and what it knows of the rows before."""

    def __init__(self, program: Program, rank: int, duration: list[int]) -> None:
        self.table, self.duration = program.table_of(rank), duration
        self.batches = batches_of(self.table)
        self.operations = operations_of(program, rank)
        self.row, self.host = 0, int(program.start[rank])
        self.launched: dict[int, list[int]] = {}  # by stream: first rows of kernels
        n = len(self.table)
        self.begin, self.end, self.wire = [0] * n, [0] * n, [0] * n

    def advance(self, meetings: dict[Match, list[int]], size: dict[int, int]) -> bool:
        """Execute rows until one needs what is not known; return whether all are done."""
        self.meetings, self.size = meetings, size
        try:
            while self.row < len(self.table):
                self.execute(self.row)
                self.row += 1
            for row in range(len(self.table)):
                self.finish(row)
        except _UnknownEndError:
            return False
        return True

    def execute(self, row: int) -> None:
        table = self.table
        kind, host = Kind(int(table.kind[row])), self.host + int(table.host[row])
        waits = table.wait_row[table.wait_index[row] : table.wait_index[row + 1]].tolist()
        ends = [self.kernel_end(wait) for wait in waits]
        if kind in (Kind.HOST, Kind.HOST_WAIT):
            self.begin[row] = self.wire[row] = self.host
            tail = 0 if kind is Kind.HOST else int(table.launch_cost[row])
            self.host = self.end[row] = max([host, *ends]) + tail
            return
        if table.flags[row] & Flag.JOINED:
            ready = self.begin[self.batches[row][0]]
        else:
            launched = self.launched.setdefault(int(table.stream[row]), [])
            if launched:
                ends.append(self.kernel_end(launched[-1]))
            if 0 < table.queue_depth <= len(launched):
                host = max(host, self.kernel_end(launched[-table.queue_depth]))
            ready = max([host + int(table.launch[row]), *(e + int(table.gap[row]) for e in ends)])
            self.host = host + int(table.launch_cost[row])
            launched.append(row)
        self.begin[row] = self.wire[row] = ready
        self.end[row] = ready + self.duration[row]
        if kind.is_communication:
            self.meetings.setdefault(self.operations[row], []).append(ready)

    def kernel_end(self, row: int) -> int:
        """When all rows have ended that were launched together with a row."""
        return max(self.finish(one) for one in self.batches[row])

    def finish(self, row: int) -> int:
        """Find out when a row ends."""
        match = self.operations.get(row)
        if match is not None and not self.table.flags[row] & Flag.EAGER:
            ready = self.meetings[match]
            if len(ready) < self.size[match[0]]:
                raise _UnknownEndError
            self.wire[row] = max(ready)
            self.end[row] = self.wire[row] + self.duration[row]
        return self.end[row]


def rank_by_rank(program: Program, network: Any = None) -> Times:
    """Simulate a whole program without contention.

    Raises
    ------
    AssertionError
        If ranks wait for each other.
    """
    duration = costs_of(program, network, contention=False).duration
    ranks = [_Rank(program, rank, duration[rank]) for rank in range(program.n_ranks)]
    meetings: dict[Match, list[int]] = {}
    size = dict(enumerate(program.communicators.sizes.tolist()))
    waiting = ranks
    while waiting:
        before = sum(map(len, meetings.values()))
        still = [rank for rank in waiting if not rank.advance(meetings, size)]
        moved = len(still) < len(waiting) or sum(map(len, meetings.values())) > before
        assert moved, "ranks wait for each other"
        waiting = still
    return Times(
        [np.array(rank.begin, np.int64) for rank in ranks],
        [np.array(rank.end, np.int64) for rank in ranks],
        [np.array(rank.wire, np.int64) for rank in ranks],
        np.array([max([rank.host, *rank.end]) for rank in ranks], np.int64),
    )
