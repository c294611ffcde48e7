"""The critical path: `Timeline` → pieces from time 0 to the last end.

From the latest end, of the lowest rank, the path goes from every instant to the one that binds it.
A piece that ends before what led to it (a negative gap or launch latency) leaves the time that both
cover to the later one.
"""

from __future__ import annotations

from typing import NamedTuple

from mpisim.engine import PieceKind

from .simulation import Node, Timeline, binding_edge

__all__ = ["Piece", "critical_path"]


class Piece(NamedTuple):
    """A piece of the path; times in ps."""

    kind: PieceKind
    rank: int
    row: int
    begin: int
    end: int
    name: str


def critical_path(timeline: Timeline) -> list[Piece]:
    """Return the pieces in the order of time, without those of no length."""
    program, at = timeline.program, timeline.at
    ends = [timeline.rank_end(rank) for rank in range(program.n_ranks)]
    time = max(ends)
    rank = ends.index(time)
    n = len(program.table_of(rank))
    on_device = [r for r in range(n) if program.table_of(rank).is_device[r]]
    last = [row for row in on_device if at["end", rank, row] == time]
    node: Node = ("end", rank, last[0]) if last else ("host", rank, n - 1)
    if last:  # of its kernel the first row that ends then
        node = "kernel", rank, next(after[2] for after in timeline.graph.succ[node])
    path: list[Piece] = []
    while time > 0:
        before, kind = _previous(timeline, node)
        begin = max(0, at[before])
        if kind is not None and begin < time:
            rank, row = (node[1], node[2])
            name = "start" if row < 0 else program.names[program.table_of(rank).name[row]]
            path.append(Piece(kind, rank, row, begin, time, name))
            time = begin
        node = before
    return path[::-1]


def _previous(timeline: Timeline, node: Node) -> tuple[Node, PieceKind | None]:
    """Return the instant that binds another, and what the time between is spent on."""
    if node[0] == "end" and any(before[0] == "flow" for before in timeline.graph.pred[node]):
        return ("wire", *node[1:]), PieceKind.COMMUNICATION
    before, _ = binding_edge(timeline, node)
    return before, timeline.graph.edges[before, node].get("piece")
