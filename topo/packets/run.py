"""Flows on a topology → packet-level run: end times, queues, drops, slowed senders."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import DeadlockError, InputError
from mpisim.base.frozen import frozen
from mpisim.base.quantity import PICOSECONDS

from ..topology import Topology
from ._core.simulator import Simulator
from .flows import PacketFlow
from .plan import PacketInput, packet_input
from .settings import PacketSettings

__all__ = ["MAX_HOPS", "PacketRun", "simulate_packets"]

MAX_HOPS = 500_000_000
"""Packets times links at most by default: some minutes."""

EVENTS_PER_CALL = 1 << 20
"""Events between two looks at how far it is."""

FRUITLESS = 100
"""Timeouts of a queue pair, in the mean of all, with nothing new acknowledged in between, after
which nothing will be: senders that repeat themselves. A choice, far above the 7 after which a NIC
gives its connection up (NCCL's NCCL_IB_RETRY_CNT by default; the field has 3 bits, InfiniBand
Architecture Specification, volume 1): simulated senders never do."""

Ints = NDArray[np.int64]


@frozen(eq=False)
class PacketRun:
    """Result of packets through a network; times in ps, from the begin of all.

    Attributes
    ----------
    topology : Topology
    flows : sequence of PacketFlow
    settings : PacketSettings
    plan : PacketInput
    flow_begin, flow_end : int64, shape (n_flows,)
        When the first packet of a flow was sent, and the last one arrived.
    message_begin, message_end : int64, shape (n_messages,)
    notifications : int64, shape (n_pairs,)
        Congestion notifications that each queue pair got.
    link_bytes, link_packets, link_marked : int64, shape (n_links,)
        What went over each link; of the packets, those marked in its queue.
    queue_max : int64, shape (n_links,)
    queue_mean : float64, shape (n_links,)
        Bytes in its queue, over the whole time.
    dropped : int64, shape (n_links,)
        Packets that found no room in its queue.
    resent, timeouts : int64, shape (n_pairs,)
        Packets that each queue pair sent again, and how often it did so for want of news.
    pauses, paused : int64, shape (n_links,)
        How often and how long (ps) each link was paused.
    buffer_max : int64, shape (n_nodes,)
        Bytes that waited in each node.
    events : int
        Of the simulation.
    """

    topology: Topology
    flows: Sequence[PacketFlow]
    settings: PacketSettings
    plan: PacketInput
    flow_begin: Ints
    flow_end: Ints
    message_begin: Ints
    message_end: Ints
    notifications: Ints
    link_bytes: Ints
    link_packets: Ints
    link_marked: Ints
    queue_max: Ints
    queue_mean: NDArray[np.float64]
    dropped: Ints
    resent: Ints
    timeouts: Ints
    pauses: Ints
    paused: Ints
    buffer_max: Ints
    events: int

    @property
    def duration(self) -> int:
        """From the begin of all to the arrival of the last packet, ps."""
        return int(self.flow_end.max())

    def links_alone(self, bytes: NDArray[np.float64]) -> float:
        """Bytes over each link → time of the fullest link in ps, latencies left out."""
        return float((bytes / (self.topology.bandwidth / PICOSECONDS)).max())

    @property
    def even(self) -> float:
        """Time of the fullest link if flows are spread evenly over all paths, in ps."""
        return self.links_alone(self.plan.spread)

    @property
    def collided(self) -> float:
        """Time of the fullest link on the paths that were taken, in ps."""
        return self.links_alone(self.plan.chosen)


def simulate_packets(
    topology: Topology,
    flows: Sequence[PacketFlow],
    settings: PacketSettings,
    *,
    max_hops: int = MAX_HOPS,
    progress: Callable[[float], None] | None = None,
) -> PacketRun:
    """Topology, flows and settings → the run of their packets. Local.

    Parameters
    ----------
    topology : Topology
        See `packet_input`.
    flows : sequence of PacketFlow
    settings : PacketSettings
    max_hops : int
        Packets times links at most.
    progress : callable, optional
        Called now and then with the share of messages that have arrived.

    Raises
    ------
    InputError
        If there is too much to simulate, or links of a flow form no path.
    DeadlockError
        If packets wait for each other in a circle: a deadlock of pauses. If they are lost and sent
        again without end: a livelock.
    """
    plan = packet_input(topology, flows, settings)
    hops = plan.hops // settings.mtu * (2 if settings.ack_size else 1)
    if hops > max_hops:
        raise InputError(
            f"{hops:,} packets over links are more than {max_hops:,}: fewer bytes, larger packets "
            f"(mtu is {settings.mtu} B), or a higher limit"
        )
    core = Simulator(plan, settings)
    answered, timeouts = -1, 0
    while core.run(EVENTS_PER_CALL):
        if progress is not None:
            progress(core.done / len(plan.message_pair))
        if settings.recovery == "none":
            continue
        now, late = int(core.pair_answered.sum()), int(core.pair_timeouts.sum())
        if now > answered:
            answered, timeouts = now, late
        elif late - timeouts > FRUITLESS * len(plan.cap):
            raise DeadlockError(
                f"packets are lost and sent again without end after {core.now / 1e9:.3f} ms: "
                f"{late - timeouts:,} timeouts since anything new arrived (NICs give up after "
                "some). A longer timeout, a larger buffer, a window, or congestion control helps"
            )
    end = core.message_end
    if core.done < len(end):
        first = flows[int(plan.message_flow[int(np.argmin(end))])]
        raise DeadlockError(
            f"packets wait for each other in a circle (a PFC deadlock) after {core.now / 1e9:.3f} "
            f"ms: all paths of the flow {first.sender} -> {first.receiver} are paused. A larger "
            "buffer, or no PFC, helps"
        )
    return _run_of(core, plan, topology, flows, settings)


def _run_of(
    core: Simulator,
    plan: PacketInput,
    topology: Topology,
    flows: Sequence[PacketFlow],
    settings: PacketSettings,
) -> PacketRun:
    """Finished simulator → its counters, and begin and end of each flow."""
    n = len(flows)
    flow_begin, flow_end = np.full(n, np.iinfo(np.int64).max), np.zeros(n, np.int64)
    np.minimum.at(flow_begin, plan.message_flow, core.message_begin)
    np.maximum.at(flow_end, plan.message_flow, core.message_end)
    return PacketRun(
        topology,
        flows,
        settings,
        plan,
        flow_begin,
        flow_end,
        core.message_begin,
        core.message_end,
        core.pair_cuts,
        core.link_bytes,
        core.link_packets,
        core.link_marks,
        core.link_most,
        core.link_area / max(1, int(flow_end.max())),
        core.link_drops,
        core.pair_resent,
        core.pair_timeouts,
        core.link_pauses,
        core.link_paused,
        core.node_most,
        core.happened,
    )
