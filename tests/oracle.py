"""What a program takes, computed another way: the longest paths of its graph of dependencies.

Nodes are instants: a CPU clock after a row, the begin and the end of a row, the moment a group
meets. Edges say "not before, plus so much". Nothing is shared with the engine but the program.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import networkx as nx
import numpy as np

from mpisim.program import UNPRICED, Flag, Kind, Operation, Program, Table
from mpisim.topo import class_of

__all__ = ["Times", "longest_paths"]


class Times(NamedTuple):
    """Lists over ranks of arrays over rows, in ps; `call` is when the CPU made the call."""

    begin: list[np.ndarray]
    end: list[np.ndarray]
    wire: list[np.ndarray]
    call: list[np.ndarray]
    rank_end: np.ndarray


def longest_paths(program: Program, network: Any = None) -> Times:
    """Return when every row of every rank begins and ends."""
    graph = nx.DiGraph()
    for rank in range(program.n_ranks):
        _add_rank(graph, program, rank, network)
    at: dict[Any, int] = {"zero": 0}
    for node in nx.topological_sort(graph):
        if node != "zero":
            edges = graph.in_edges(node, data="weight")
            at[node] = max(at[before] + weight for before, _, weight in edges)

    found = Times([], [], [], [], np.zeros(program.n_ranks, np.int64))
    for rank in range(program.n_ranks):
        n = len(program.table_of(rank))
        for name in ("begin", "end", "wire", "call"):
            getattr(found, name).append(np.array([at[rank, i, name] for i in range(n)], np.int64))
        own = [at[rank, -1, "host"]]
        for i in range(n):
            own += [at[rank, i, "host"], at[rank, i, "end"]]
        found.rank_end[rank] = max(own)
    return found


def _batches(table: Table) -> list[list[int]]:
    """Return the rows launched together with each row, itself included."""
    batches: list[list[int]] = []
    for row in range(len(table)):
        if table.flags[row] & Flag.JOINED:
            batches[-1].append(row)
            batches.append(batches[-1])
        else:
            batches.append([row])
    return batches


def _duration(program: Program, rank: int, row: int, network: Any) -> int:
    table = program.table_of(rank)
    duration = int(table.duration[row])
    if table.kind[row] in (Kind.KERNEL, Kind.COPY):
        return int(np.rint(duration / program.speed[rank]))
    if duration == UNPRICED:
        members = program.communicators.group(int(program.slots_of(rank)[table.slot[row]]))
        operation, size = Operation(int(table.operation[row])), int(table.bytes[row])
        return network.price(operation, size, class_of(network, members)).duration
    return duration


def _add_rank(graph: nx.DiGraph, program: Program, rank: int, network: Any) -> None:
    table = program.table_of(rank)
    batches = _batches(table)
    counts: dict[int, int] = {}
    on_stream: dict[int, list[int]] = {}  # first rows of launches

    def after(node: Any, before: Any, weight: int = 0) -> None:
        # Two edges between one pair of nodes: the longer counts.
        if graph.has_edge(before, node):
            weight = max(weight, graph.edges[before, node]["weight"])
        graph.add_edge(before, node, weight=int(weight))

    after((rank, -1, "host"), "zero", int(program.start[rank]))
    for row in range(len(table)):
        kind, flags = Kind(int(table.kind[row])), int(table.flags[row])
        host_before, host = (rank, row - 1, "host"), (rank, row, "host")
        begin, end, call = (rank, row, "begin"), (rank, row, "end"), (rank, row, "call")
        wire = (rank, row, "wire")
        waits = table.wait_row[table.wait_index[row] : table.wait_index[row + 1]].tolist()
        awaited = [(rank, other, "end") for wait in waits for other in batches[wait]]
        duration = _duration(program, rank, row, network)
        if kind is Kind.HOST:
            after(begin, host_before)
            after(call, host_before)
            after(host, host_before, table.host[row])
            after(end, host)
            after(wire, begin)
            continue
        if kind is Kind.HOST_WAIT:
            after(begin, host_before)
            after(wire, begin)
            after(call, host_before, table.host[row])
            for node in awaited:
                after(call, node)
            after(host, call, table.launch_cost[row])
            after(end, host)
            continue
        if flags & Flag.JOINED:
            first = batches[row][0]
            after(host, host_before)
            after(begin, (rank, first, "begin"))
            after(call, (rank, first, "call"))
        else:
            launched = on_stream.setdefault(int(table.stream[row]), [])
            after(call, host_before, table.host[row])
            if table.queue_depth and len(launched) >= table.queue_depth:
                for other in batches[launched[-table.queue_depth]]:
                    after(call, (rank, other, "end"))
            after(host, call, table.launch_cost[row])
            after(begin, call, table.launch[row])
            previous = batches[launched[-1]] if launched else []
            for node in [(rank, other, "end") for other in previous] + awaited:
                after(begin, node, table.gap[row])
            launched.append(row)
        if kind.is_communication:
            slot = int(table.slot[row])
            k = counts.get(slot, 0)
            counts[slot] = k + 1
            meeting = ("meeting", int(program.slots_of(rank)[slot]), k)
            after(meeting, begin)
            after(wire, begin if flags & Flag.EAGER else meeting)
        else:
            after(wire, begin)
        after(end, wire, duration)
