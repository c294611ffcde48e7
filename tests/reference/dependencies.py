"""The graph of dependencies: program and costs → a networkx graph of instants.

Nodes are instants, named by tuples:

- ``("zero",)``: time 0;
- ``("host", rank, row)``: the CPU is done with a row; row -1: the rank starts;
- ``("call", rank, row)``: the CPU calls a kernel, or is through with what a HOST_WAIT waits for;
- ``("begin", rank, row)``: the row begins (on the device, or its own work on the CPU);
- ``("wire", rank, row)``: the wire time of a communication begins; of other rows as ``begin``;
- ``("end", rank, row)``: the row ends;
- ``("kernel", rank, row)``: all rows have ended that were launched together with `row`, the first;
- ``("meeting", communicator, k)``: all members of a communication are ready;
- ``("flow", communicator, k)``: its bytes are through, where it is a flow.

An edge a → b with a weight says that b is not before a plus the weight, in ps. A node's incoming
edges stand in the order of preference: of several that bind, the first is the one that a binding
names and that the critical path follows. Edges carry

- ``piece``: what the time between is spent on, if anything;
- ``binding``: the `Binding` of the row where this edge binds, at ``begin`` and ``call``.
"""

from __future__ import annotations

from typing import Any

import networkx as nx

from mpisim.engine import Binding, PieceKind
from mpisim.program import Flag, Kind, Program, Table

from .costs import Costs, operations_of

__all__ = ["batches_of", "dependency_graph"]

LAST_WAIT = 125
"""A binding has one number for this wait and all later ones."""

WORK = {Kind.KERNEL: PieceKind.COMPUTE, Kind.COPY: PieceKind.COPY}


def dependency_graph(program: Program, costs: Costs) -> nx.DiGraph:
    """Return the graph of a whole program. Flows have no edge from their meetings."""
    graph = nx.DiGraph()
    graph.add_nodes_from(("flow", *match) for match in costs.flows)
    for rank in range(program.n_ranks):
        _Rank(graph, program, rank, costs).add()
    return graph


def batches_of(table: Table) -> list[list[int]]:
    """Return the rows launched together with each row, itself included."""
    batches: list[list[int]] = []
    for row in range(len(table)):
        if table.flags[row] & Flag.JOINED:
            batches[-1].append(row)
            batches.append(batches[-1])
        else:
            batches.append([row])
    return batches


class _Rank:
    """Adds the instants of one rank."""

    def __init__(self, graph: nx.DiGraph, program: Program, rank: int, costs: Costs) -> None:
        self.graph, self.program, self.rank, self.costs = graph, program, rank, costs
        self.table = program.table_of(rank)
        self.batches = batches_of(self.table)
        self.operations = operations_of(program, rank)
        self.launched: dict[int, list[int]] = {}  # by stream: the kernels so far

    def edge(self, before: Any, after: Any, weight: int = 0, **labels: int) -> None:
        if not self.graph.has_edge(before, after):  # else the same, of lower preference
            self.graph.add_edge(before, after, weight=int(weight), **labels)

    def add(self) -> None:
        rank, table = self.rank, self.table
        start = int(self.program.start[rank])
        self.edge(("zero",), ("host", rank, -1), start, piece=PieceKind.START)
        for row in range(len(table)):
            kind = Kind(int(table.kind[row]))
            if kind is Kind.HOST:
                self.host(row)
            elif kind is Kind.HOST_WAIT:
                self.host_wait(row)
            else:
                if not table.flags[row] & Flag.JOINED:
                    self.launch(row)
                self.on_device(row, kind)

    def kernels(self, row: int) -> list[tuple[str, int, int]]:
        """The kernels that a row waits for, in its order."""
        waits = self.table.wait_row[self.table.wait_index[row] : self.table.wait_index[row + 1]]
        return [("kernel", self.rank, self.batches[wait][0]) for wait in waits.tolist()]

    def host(self, row: int) -> None:
        rank, before = self.rank, ("host", self.rank, row - 1)
        self.edge(before, ("begin", rank, row), binding=Binding.HOST)
        self.edge(before, ("host", rank, row), self.table.host[row], piece=PieceKind.HOST)
        self.edge(("begin", rank, row), ("wire", rank, row))
        self.edge(("host", rank, row), ("end", rank, row))

    def host_wait(self, row: int) -> None:
        rank, before = self.rank, ("host", self.rank, row - 1)
        over = "call", rank, row
        self.edge(before, ("begin", rank, row))
        self.edge(("begin", rank, row), ("wire", rank, row))
        for i, kernel in enumerate(self.kernels(row)):
            self.edge(kernel, over, binding=Binding.WAIT + min(i, LAST_WAIT))
        host = self.table.host[row]
        self.edge(before, over, host, binding=Binding.HOST, piece=PieceKind.HOST)
        self.edge(over, ("host", rank, row), self.table.launch_cost[row], piece=PieceKind.HOST)
        self.edge(("host", rank, row), ("end", rank, row))

    def launch(self, row: int) -> None:
        """The CPU's call of a kernel, and what the kernel follows."""
        rank, table = self.rank, self.table
        call, begin = ("call", rank, row), ("begin", rank, row)
        launched = self.launched.setdefault(int(table.stream[row]), [])
        self.edge(("host", rank, row - 1), call, table.host[row], piece=PieceKind.HOST, binding=0)
        if 0 < table.queue_depth <= len(launched):  # the queue is full until this one has ended
            full = "kernel", rank, launched[-table.queue_depth]
            self.edge(full, call, binding=Binding.QUEUE)
        self.edge(call, ("host", rank, row), table.launch_cost[row], piece=PieceKind.HOST)
        gap = {"weight": table.gap[row], "piece": PieceKind.GAP}
        if launched:
            self.edge(("kernel", rank, launched[-1]), begin, binding=Binding.STREAM, **gap)
        for i, kernel in enumerate(self.kernels(row)):
            self.edge(kernel, begin, binding=Binding.WAIT + min(i, LAST_WAIT), **gap)
        launch = table.launch[row]
        self.edge(call, begin, launch, piece=PieceKind.LAUNCH, binding=Binding.HOST)
        launched.append(row)

    def on_device(self, row: int, kind: Kind) -> None:
        """A row of a kernel: when it begins and ends."""
        rank, first = self.rank, self.batches[row][0]
        begin, wire, end = (("begin", rank, row), ("wire", rank, row), ("end", rank, row))
        if first < row:
            self.edge(("host", rank, row - 1), ("host", rank, row))
            self.edge(("begin", rank, first), begin)
        duration = self.costs.duration[rank][row]
        piece, flow = WORK.get(kind, PieceKind.COMMUNICATION), None
        if kind.is_communication:
            match = self.operations[row]
            self.edge(begin, ("meeting", *match))
            eager = bool(self.table.flags[row] & Flag.EAGER)
            self.edge(begin if eager else ("meeting", *match), wire)
            flow = None if eager else self.costs.flows.get(match)
        else:
            self.edge(begin, wire)
        if flow is None:
            self.edge(wire, end, duration, piece=piece)
        else:
            self.edge(("flow", *self.operations[row]), end)
        self.edge(end, ("kernel", rank, first))
