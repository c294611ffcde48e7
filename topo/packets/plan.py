"""Flows on a topology → queue pairs, messages and their waits (gates), as arrays.

A flow of several steps, or of more than a chunk, is several *messages* of one *queue pair*. A
message of step s waits until all that comes to its sender in earlier steps of its channel, chunk by
chunk, has come: so chains and trees are pipelined, as NCCL does by its buffers. Such a wait is a
*gate*: it counts the messages still to come, and the gate before it.

A queue pair begins at the NIC of its sender: links before it add their latency and limit its rate.
ECMP takes a path for each queue pair, by a hash of its ends, its channel and the seed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.quantity import PICOSECONDS

from ..topology import NodeKind, Topology
from .flows import PacketFlow
from .paths import ack_path, ecmp_path, equal_paths, opposite_links, sender_part
from .settings import LOADS, PacketSettings

__all__ = ["PacketInput", "packet_input"]

MAX_MESSAGES = 4_000_000
"""Messages at most: these take 2 GB."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@frozen(eq=False)
class PacketInput:
    """Input of the compiled simulator. Rates are bytes per ps, times ps.

    Attributes
    ----------
    n_nodes : int
    rate, latency, target : arrays, shape (n_links,)
        Of each link, and the node that it leads to.
    marking : uint8, shape (n_links,)
        Whether its queue marks packets: those of switches of a fabric do.
    low, high : float64, shape (n_links,)
        Bytes in its queue above which some and all packets are marked.
    path_first : int64, shape (n_paths + 1,)
    path_link : int32
        Path p goes over ``path_link[path_first[p]:path_first[p + 1]]``.
    ack_first : int64, shape (n_paths + 1,)
        Acknowledgements of path p go over ``path_link[ack_first[p]:ack_first[p + 1]]``, behind the
        links of all paths; over none where they take latencies alone.
    ack_delay : int64, shape (n_paths,)
        What they take to reach the first of these.
    pair_first : int64, shape (n_pairs + 1,)
        Paths of each queue pair, all with one first link; ECMP has left it a single one.
    cap, pair_delay, pair_return : arrays, shape (n_pairs,)
        Highest rate of its sender, what it takes to reach the first link, and what a notification
        or an acknowledgement takes back.
    pair_trip, pair_timeout : int64, shape (n_pairs,)
        A round trip of a packet without queues, and for how long nothing new may be acknowledged
        before what is under way counts as lost.
    window : float64, shape (n_pairs,)
        Bytes that may be under way; infinite without windows.
    message_pair, message_bytes, message_start, message_flow : arrays, shape (n_messages,)
        Queue pair, bytes, earliest time and number of the flow of each message.
    message_gate, message_opens : int32, shape (n_messages,)
        The gate that it waits for, and the one that waits for it; -1 for none.
    gate_count, gate_next : int32, shape (n_gates,)
        What each gate waits for, and the gate that waits for it.
    gate_first : int64, shape (n_gates + 1,)
    gate_message : int32
        The messages behind each gate.
    spread : float64, shape (n_links,)
        Bytes over each link if those of each pair were spread evenly over all of its paths.
    chosen : float64, shape (n_links,)
        The same over the paths that were taken.
    most_paths : int
        Largest number of paths that any flow could take.
    """

    n_nodes: int
    rate: Floats
    latency: Ints
    target: NDArray[np.int32]
    marking: NDArray[np.uint8]
    low: Floats
    high: Floats
    path_first: Ints
    path_link: NDArray[np.int32]
    ack_first: Ints
    ack_delay: Ints
    pair_first: Ints
    cap: Floats
    pair_delay: Ints
    pair_return: Ints
    pair_trip: Ints
    pair_timeout: Ints
    window: Floats
    message_pair: NDArray[np.int32]
    message_bytes: Ints
    message_start: Ints
    message_flow: Ints
    message_gate: NDArray[np.int32]
    message_opens: NDArray[np.int32]
    gate_count: NDArray[np.int32]
    gate_next: NDArray[np.int32]
    gate_first: Ints
    gate_message: NDArray[np.int32]
    spread: Floats
    chosen: Floats
    most_paths: int

    @property
    def hops(self) -> int:
        """Packets times the links that they go over, for packets of one byte."""
        lengths = np.diff(self.path_first)[self.pair_first[:-1]]
        return int((self.message_bytes * lengths[self.message_pair]).sum())


_Routes = dict[tuple[int, ...], list[tuple[int, ...]]]
"""By links of a flow, the paths that they form."""


class _Pair(NamedTuple):
    """Paths of a queue pair, all by one first link, and their sender's part."""

    paths: list[tuple[int, ...]]
    before: tuple[int, ...]


def packet_input(
    topology: Topology, flows: Sequence[PacketFlow], settings: PacketSettings
) -> PacketInput:
    """Topology, flows and settings → arrays for the simulator.

    Parameters
    ----------
    topology : Topology
        Built so that routes have the links of all paths that a fabric could take
        (``ecmp = "adaptive"``).
    flows : sequence of PacketFlow
    settings : PacketSettings

    Raises
    ------
    InputError
        If links of a flow form no path, or there are more than `MAX_MESSAGES`.
    """
    chunks = _chunks(flows, settings.chunk)
    many = sum(flow.repeats * chunks[flow.channel] for flow in flows)
    if many > MAX_MESSAGES:
        raise InputError(
            f"{many:,} messages; there may be {MAX_MESSAGES:,}: fewer GPUs, or larger chunks "
            f"({settings.chunk} B)"
        )
    routes = {flow.links: equal_paths(topology, flow.links) for flow in flows}
    most_paths = max(map(len, routes.values()))
    pairs, of_flow, spread = _pairs(topology, flows, routes, settings)
    messages, chosen = _messages(topology, flows, pairs, of_flow, chunks)
    gates = messages.gates()
    paths = [path for pair in pairs for path in pair.paths]
    opposite = opposite_links(topology) if settings.ack_size else {}
    acks = [ack_path(topology, path, opposite) for path in paths]
    there = [link for path in paths for link in path]
    back = [link for _, way in acks for link in way]
    scale = topology.bandwidth / settings.reference_rate
    latency = np.rint(topology.latency * PICOSECONDS).astype(np.int64)
    trips = [max(_trip(topology, path, settings) for path in pair.paths) for pair in pairs]
    switch = topology.node_kind == NodeKind.SWITCH
    return PacketInput(
        n_nodes=topology.n_nodes,
        rate=topology.bandwidth / PICOSECONDS,
        latency=latency,
        target=topology.target.astype(np.int32),
        marking=switch[topology.source].astype(np.uint8),
        low=settings.kmin * scale,
        high=settings.kmax * scale,
        path_first=_offsets([len(path) for path in paths]),
        path_link=np.array([*there, *back], np.int32),
        ack_first=len(there) + _offsets([len(way) for _, way in acks]),
        ack_delay=np.array([int(latency[list(inside)].sum()) for inside, _ in acks], np.int64),
        pair_first=_offsets([len(pair.paths) for pair in pairs]),
        cap=np.array([_cap(topology, pair.before) for pair in pairs]) / PICOSECONDS,
        pair_delay=np.array([int(latency[list(pair.before)].sum()) for pair in pairs], np.int64),
        pair_return=np.array([int(latency[list(pair.paths[0])].sum()) for pair in pairs], np.int64),
        pair_trip=np.array([round(trip * PICOSECONDS) for trip in trips], np.int64),
        pair_timeout=np.array(
            [
                round(_timeout(topology, pair, trip, settings) * PICOSECONDS)
                for pair, trip in zip(pairs, trips, strict=True)
            ],
            np.int64,
        ),
        window=np.array([_window(topology, pair, settings) for pair in pairs]),
        message_pair=np.array(messages.pair, np.int32),
        message_bytes=np.array(messages.bytes, np.int64),
        message_start=np.array(messages.start, np.int64),
        message_flow=np.array(messages.flow, np.int64),
        message_gate=gates.gate,
        message_opens=gates.opens,
        gate_count=gates.wanted,
        gate_next=gates.following,
        gate_first=gates.first,
        gate_message=gates.message,
        spread=spread,
        chosen=chosen,
        most_paths=most_paths,
    )


def _chunks(flows: Sequence[PacketFlow], most: int) -> dict[str, int]:
    """Flows, and bytes of a chunk → parts of messages by channel: 1 where no step waits."""
    steps: dict[str, set[int]] = defaultdict(set)
    largest: dict[str, int] = defaultdict(int)
    for flow in flows:
        steps[flow.channel] |= {flow.step, flow.step + flow.repeats - 1}
        largest[flow.channel] = max(largest[flow.channel], flow.bytes)
    return {
        channel: -(-largest[channel] // most) if len(found) > 1 else 1
        for channel, found in steps.items()
    }


def _messages(
    topology: Topology,
    flows: Sequence[PacketFlow],
    pairs: Sequence[_Pair],
    of_flow: Sequence[Sequence[int]],
    chunks: Mapping[str, int],
) -> tuple[_Messages, Floats]:
    """Flows, and the queue pairs of each → their messages, and bytes by link on the paths taken."""
    messages = _Messages()
    chosen = np.zeros(topology.n_links)
    for number, flow in enumerate(flows):
        parts = of_flow[number]
        for pair, part in zip(parts, _parts(flow.bytes, len(parts)), strict=True):
            paths = pairs[pair].paths
            for path in paths:
                chosen[list(path)] += part * flow.repeats / len(paths)
            messages.add(number, flow, pair, part, chunks[flow.channel])
    return messages, chosen


def _parts(bytes: int, many: int) -> list[int]:
    """Bytes → parts of nearly equal size, without empty ones unless there are fewer bytes."""
    return [bytes * (i + 1) // many - bytes * i // many for i in range(many)]


def _pairs(
    topology: Topology, flows: Sequence[PacketFlow], routes: _Routes, settings: PacketSettings
) -> tuple[list[_Pair], list[list[int]], Floats]:
    """Flows and their paths → queue pairs, those of each flow, bytes by link if spread evenly."""
    pairs: list[_Pair] = []
    known: dict[tuple[str, str, str, tuple[int, ...]], list[int]] = {}
    channels: dict[str, int] = {}
    sent: dict[tuple[int, ...], int] = defaultdict(int)
    of_flow = []
    for flow in flows:
        paths = routes[flow.links]
        sent[flow.links] += flow.bytes * flow.repeats
        key = (flow.sender, flow.receiver, flow.channel, flow.links)
        if key not in known:
            channel = channels.setdefault(flow.channel, len(channels))
            taken = paths
            if settings.routing == "ecmp":
                taken = [paths[ecmp_path(topology, flow.links, channel, settings.seed, len(paths))]]
            by_first: dict[tuple[tuple[int, ...], int], list[tuple[int, ...]]] = defaultdict(list)
            for path in taken:
                at = sender_part(topology, path)
                by_first[path[:at], path[at]].append(path[at:])
            known[key] = list(range(len(pairs), len(pairs) + len(by_first)))
            pairs += [_Pair(each, before) for (before, _), each in by_first.items()]
        of_flow.append(known[key])
    spread = np.zeros(topology.n_links)
    for route, bytes in sent.items():
        for path in routes[route]:  # which passes a link once
            spread[list(path[sender_part(topology, path) :])] += bytes / len(routes[route])
    return pairs, of_flow, spread


def _cap(topology: Topology, before: tuple[int, ...]) -> float:
    """Links before the NIC → the rate that they leave a sender, bytes per second."""
    return float(topology.bandwidth[list(before)].min()) if before else np.inf


def _window(topology: Topology, pair: _Pair, settings: PacketSettings) -> float:
    """Queue pair → bytes that it may have under way; infinite without windows.

    HPCC's first window is a round trip at the rate of the slowest link.
    """
    bounds = [float(settings.window)] if settings.window else []
    trips = settings.window_rtts or int(settings.congestion in LOADS)
    if trips:
        each = (
            _trip(topology, path, settings) * float(topology.bandwidth[list(path)].min())
            for path in pair.paths
        )
        bounds.append(max(each) * trips)
    return min(bounds, default=np.inf)


def _trip(topology: Topology, path: tuple[int, ...], settings: PacketSettings) -> float:
    """Path → latencies there and back, and a packet's time on each link of the way there, in s."""
    links = list(path)
    takes = (settings.mtu / topology.bandwidth[links]).sum()
    return float(2 * topology.latency[links].sum() + takes)


def _timeout(topology: Topology, pair: _Pair, trip: float, settings: PacketSettings) -> float:
    """Queue pair and its round trip → after which time without news packets count as lost, in s."""
    slowest = min(float(topology.bandwidth[list(path)].min()) for path in pair.paths)
    return settings.timeout or trip + settings.buffer / slowest


def _offsets(counts: Sequence[int]) -> Ints:
    """Lengths of parts that lie one behind the other → where each begins, and the last one ends."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


class _Gates(NamedTuple):
    """Arrays of `PacketInput`: the gate of each message and the one it opens; the gates."""

    gate: NDArray[np.int32]
    opens: NDArray[np.int32]
    wanted: NDArray[np.int32]
    following: NDArray[np.int32]
    first: Ints
    message: NDArray[np.int32]


class _Messages:
    """Messages as they are added, and then the gates between them."""

    def __init__(self) -> None:
        self.pair: list[int] = []
        self.bytes: list[int] = []
        self.start: list[int] = []
        self.flow: list[int] = []
        self._sent: dict[tuple[str, int, str], list[tuple[int, int]]] = defaultdict(list)
        self._received: dict[tuple[str, int, str], list[tuple[int, int]]] = defaultdict(list)

    def add(self, number: int, flow: PacketFlow, pair: int, bytes: int, chunks: int) -> None:
        """Add the messages of a flow, or of its part over one of several first links."""
        parts = _parts(bytes, chunks)
        for step in range(flow.step, flow.step + flow.repeats):
            for chunk, part in enumerate(parts):
                if not part:
                    continue
                message = len(self.pair)
                self.pair.append(pair)
                self.bytes.append(part)
                self.start.append(flow.start)
                self.flow.append(number)
                self._sent[flow.channel, chunk, flow.sender].append((step, message))
                self._received[flow.channel, chunk, flow.receiver].append((step, message))

    def gates(self) -> _Gates:
        """Messages by channel, chunk and rank → which of them wait for which."""
        gate = np.full(len(self.pair), -1, np.int32)
        opens = np.full(len(self.pair), -1, np.int32)
        counts: list[int] = []
        following: list[int] = []
        behind: list[list[int]] = []
        for key, sent in self._sent.items():
            received = sorted(self._received.get(key, ()))
            if not received:
                continue
            first = received[0][0]
            steps = sorted({step for step, _ in sent if step > first})
            base = len(counts)
            counts += [int(i > 0) for i in range(len(steps))]
            following += [base + i + 1 if i + 1 < len(steps) else -1 for i in range(len(steps))]
            behind += [[] for _ in steps]
            for step, message in received:
                at = bisect_right(steps, step)
                if at < len(steps):
                    opens[message] = base + at
                    counts[base + at] += 1
            for step, message in sent:
                if step > first:
                    at = base + bisect_right(steps, step) - 1
                    gate[message] = at
                    behind[at].append(message)
        return _Gates(
            gate,
            opens,
            np.array(counts, np.int32),
            np.array(following, np.int32),
            _offsets([len(each) for each in behind]),
            np.array([each for some in behind for each in some], np.int32),
        )
