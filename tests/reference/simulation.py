"""Program and network → `Timeline`: the begin and end of every row, in ps.

Without contention every instant is the longest path to it in the graph of dependencies. With it the
ends of flows are not known beforehand: an event loop takes the earliest arrival or end of a flow,
solves the rates of all flows anew, and then works out all instants that have become known. At one
instant ends come before arrivals.

Gaps and launch latencies of traces may be negative, so that a row begins before what it follows has
ended. Bytes never flow before the events that led to them: a flow arrives neither before its last
member is ready and the latency has passed, nor before the end of any flow that it depends on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from mpisim.engine import Binding
from mpisim.program import Flag, Kind, Program

from .costs import Costs, Match, costs_of
from .dependencies import dependency_graph
from .max_min import NO_END, SharedLinks

__all__ = ["Timeline", "binding_edge", "simulate"]

Node = tuple[Any, ...]


@dataclass(frozen=True)
class Timeline:
    """What all ranks of a program did.

    Attributes
    ----------
    program : Program
    graph : nx.DiGraph
        Of `dependencies.dependency_graph`.
    at : dict
        The time of each of its nodes, in ps.
    n_flows : int
    """

    program: Program
    graph: nx.DiGraph
    at: dict[Node, int]
    n_flows: int

    def times(self, instant: str, rank: int) -> np.ndarray:
        """Return when ``begin``, ``wire`` or ``end`` of every row of a rank was; int64, ps."""
        n = len(self.program.table_of(rank))
        return np.array([self.at[instant, rank, row] for row in range(n)], np.int64)

    def host_end(self, rank: int) -> int:
        """Return when the CPU of a rank was done with its last row."""
        return self.at["host", rank, len(self.program.table_of(rank)) - 1]

    def rank_end(self, rank: int) -> int:
        """Return when the last row of a rank ended, on the CPU or on the device."""
        return max([self.host_end(rank), *self.times("end", rank).tolist()])

    def binding(self, rank: int) -> np.ndarray:
        """Return the `Binding` of every row of a rank; uint8."""
        table, found, of_kernel = self.program.table_of(rank), [], 0
        for row in range(len(table)):
            kind, queue = Kind(int(table.kind[row])), 0
            if kind is Kind.HOST_WAIT:
                _, of_kernel = binding_edge(self, ("call", rank, row))
            elif not table.flags[row] & Flag.JOINED:
                _, of_kernel = binding_edge(self, ("begin", rank, row))
                if kind is not Kind.HOST:
                    _, queue = binding_edge(self, ("call", rank, row))
            found.append(of_kernel | queue)
        return np.array(found, np.uint8)


def binding_edge(timeline: Timeline, node: Node) -> tuple[Node, int]:
    """Return the node that binds another (of several the preferred one), and the binding."""
    for before, edge in timeline.graph.pred[node].items():
        if timeline.at[before] + edge["weight"] == timeline.at[node]:
            return before, int(edge.get("binding", Binding.HOST))
    raise AssertionError(f"nothing binds {node}")


def simulate(program: Program, network: Any = None, contention: bool = True) -> Timeline:
    """Simulate a whole program.

    Parameters
    ----------
    program : Program
    network : Network, optional
        Prices communications without a duration of their own.
    contention : bool
        Whether communications share the links of a `SharedNetwork`.
    """
    costs = costs_of(program, network, contention)
    graph = dependency_graph(program, costs)
    if costs.flows:
        at = _EventLoop(graph, costs, network).run()
    else:
        at = _longest_paths(graph)
    return Timeline(program, graph, at, len(costs.flows))


def _longest_paths(graph: nx.DiGraph) -> dict[Node, int]:
    at: dict[Node, int] = {}
    for node in nx.topological_sort(graph):
        edges = graph.pred[node].items()
        at[node] = max((at[before] + edge["weight"] for before, edge in edges), default=0)
    return at


class _EventLoop:
    """Events of flows, one after the other. All state is plain: nothing is bounded or predicted."""

    def __init__(self, graph: nx.DiGraph, costs: Costs, network: Any) -> None:
        self.graph, self.flows = graph, costs.flows
        self.at: dict[Node, int] = {}
        self.caused: dict[Node, int] = {}  # the latest end of a flow that an instant depends on
        self.unknown = {node: len(before) for node, before in graph.pred.items()}
        self.matches = list(costs.flows)
        self.arrivals: dict[int, int] = {}  # the time at which each flow will arrive
        links = [costs.flows[match].links for match in self.matches]
        self.shared = SharedLinks(
            network.capacity,
            np.cumsum([0, *map(len, links)]),
            [link for each in links for link, _ in each],
            [weight for each in links for _, weight in each],
        )

    def run(self) -> dict[Node, int]:
        self.find_out([("zero",)])
        while True:
            time = min([self.shared.next_end(), *self.arrivals.values()])
            if time == NO_END:
                break
            ended = []
            while (number := self.shared.pop_ended(time)) >= 0:
                ended.append(("flow", *self.matches[number]))
                self.at[ended[-1]] = self.caused[ended[-1]] = time
            for number in [n for n, arrival in self.arrivals.items() if arrival == time]:
                del self.arrivals[number]
                flow = self.flows[self.matches[number]]
                self.shared.begin(number, number, time, flow.volume, flow.rate)
            self.shared.solve(time)
            self.find_out(ended)
        assert not any(self.unknown.values()), "ranks wait for each other"
        return self.at

    def find_out(self, known: list[Node]) -> None:
        """Work out all instants that depend on nothing unknown, beginning with some."""
        known = list(known)
        while known:
            node = known.pop()
            if node[0] != "flow":
                edges = self.graph.pred[node].items()
                self.at[node] = max((self.at[a] + edge["weight"] for a, edge in edges), default=0)
                self.caused[node] = max((self.caused[a] for a, _ in edges), default=-NO_END)
            if node[0] == "meeting" and node[1:] in self.flows:
                self.arrive(node[1:])
            for after in self.graph.succ[node]:
                self.unknown[after] -= 1
                if not self.unknown[after]:
                    known.append(after)

    def arrive(self, match: Match) -> None:
        meeting = ("meeting", *match)
        time = self.at[meeting] + self.flows[match].latency
        self.arrivals[self.matches.index(match)] = max(time, self.caused[meeting])
