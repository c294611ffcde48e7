"""Communication → its flows: sender, receiver, bytes and route, by channel.

`SimCCL` of SimAI gets this list from a modified NCCL; here it follows from the model that prices
communications: the algorithm, protocol and channels are `NcclNetwork.choices`' first, the flows are
those whose bytes load the links (`mpisim.topo.traffic.steps`), the routes are the topology's. A
simulator of packets or flows can run the list.

A transfer whose route leads through another GPU, as with PXN, is as many flows as it has legs: with
rank 1 sending to rank 8 by the NIC of GPU 0 these are 1 → 0 and 0 → 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation

from .nccl import Choice
from .nccl_network import NcclNetwork
from .topology import NodeKind, Topology
from .traffic.steps import Part

__all__ = ["Flow", "FlowList", "flow_list"]


class Flow(NamedTuple):
    """Bytes from a GPU, or a switch that reduces, to the next.

    Attributes
    ----------
    step : int
        The first step in which it is sent: a level of dependencies within the channel.
    repeats : int
        Steps in a row in which the same bytes are sent, of other places of the buffer.
    channel : int
    sender, receiver : str
        The number of a rank, or the name of a switch.
    bytes : float
        Of each step; not whole where a buffer does not divide evenly.
    origin, destination : str
        Ends of the transfer that it is a leg of: its own where nothing relays it.
    links : tuple of int
        Of the topology, in order; where flows are spread over parallel links all of these.
    """

    step: int
    repeats: int
    channel: int
    sender: str
    receiver: str
    bytes: float
    origin: str
    destination: str
    links: tuple[int, ...]


@frozen(eq=False)
class FlowList:
    """The flows of one communication.

    Attributes
    ----------
    choice : Choice
        Algorithm, protocol and channels.
    ways : int
        Rings, trees or chains that the network's model distinguishes. Channels follow them in turn;
        if there are more ways than channels, a channel has several.
    flows : list of Flow
        By channel, step, sender and receiver.
    topology : Topology
        The topology of the links.
    """

    choice: Choice
    ways: int
    flows: list[Flow]
    topology: Topology

    @property
    def transfers(self) -> int:
        """Number of flows, each step counted."""
        return sum(flow.repeats for flow in self.flows)

    def link_bytes(self) -> NDArray[np.float64]:
        """Return the bytes over each link, shape (n_links,)."""
        found = np.zeros(self.topology.n_links)
        for flow in self.flows:
            links = np.array(flow.links, np.int64)
            np.add.at(found, links, flow.bytes * flow.repeats * self.topology.share[links])
        return found


def flow_list(
    network: NcclNetwork, operation: Operation, bytes: int, members: Sequence[int]
) -> FlowList:
    """Network and communication → its flows.

    Parameters
    ----------
    network : NcclNetwork
    operation : Operation
    bytes : int
        The full buffer; see `Network.price`.
    members : sequence of int
        Ranks, in the communicator's order; two at least.

    Raises
    ------
    InputError
        For an operation of unknown kind.
    """
    choice, steps = network.steps(operation, bytes, members)
    topology = network.topology
    ways = steps.ways
    channels = choice.channels or ways
    turns = max(ways, channels)  # channel i follows way i, and again from the first on
    of_way = np.bincount(np.arange(turns) % max(ways, 1), minlength=ways)
    index, links = topology.routes(steps.source, steps.target)
    columns = (steps.source, steps.target, steps.bytes, steps.way, steps.first, steps.count)
    rows = zip(*(column.tolist() for column in (*columns, steps.part)), strict=True)
    found = []
    for i, (source, target, amount, way, first, count, part) in enumerate(rows):
        legs = list(_legs(topology, source, target, links[index[i] : index[i + 1]].tolist(), part))
        sent = amount * bytes / int(of_way[way])
        for channel in (turn % channels for turn in range(way, turns, ways)):
            for sender, receiver, route in legs:
                ends = (sender, receiver, sent, legs[0][0], legs[-1][1])
                found.append(Flow(first, count, channel, *ends, route))
    found.sort(key=lambda flow: (flow.channel, flow.step))
    return FlowList(choice, ways, found, topology)


def _legs(
    topology: Topology, source: int, target: int, route: list[int], part: int
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield sender, receiver and links of each leg of a route."""
    ends = topology.target[route].tolist()
    kinds = topology.node_kind[ends].tolist()
    if part != Part.WHOLE:
        at = next((i for i, kind in enumerate(kinds) if kind == NodeKind.NVSWITCH), None)
        if at is not None:
            switch = topology.names[ends[at]]
            if part == Part.UP:
                yield str(source), switch, tuple(route[: at + 1])
            else:
                yield switch, str(target), tuple(route[at + 1 :])
            return
        # No switch that reduces: what goes up goes all the way, and nothing comes down besides.
        if part == Part.UP:
            yield str(source), str(target), tuple(route)
        return
    relays = [i + 1 for i, kind in enumerate(kinds[:-1]) if kind == NodeKind.GPU]
    rank_of = {int(topology.gpu[rank]): rank for rank in (source, target)}
    for begin, end in pairwise([0, *relays, len(route)]):
        nodes = (int(topology.source[route[begin]]), ends[end - 1])
        sender, receiver = (rank_of.get(node, _rank_of(topology, node)) for node in nodes)
        yield str(sender), str(receiver), tuple(route[begin:end])


def _rank_of(topology: Topology, node: int) -> int:
    """Return the GPU that a node of the graph is."""
    return int(np.flatnonzero(topology.gpu == node)[0])
