"""Communication → its price in parts, lower bounds, and the alternatives NCCL had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation
from mpisim.base.quantity import PICOSECONDS

from .bounds import Cut, cut_bound
from .nccl import Choice
from .nccl_network import NcclNetwork
from .network import RATE_BITS
from .topology import LinkKind, Topology

__all__ = ["Explanation", "explain"]


@frozen
class Explanation:
    """A communication that has the network to itself; seconds, and bytes per second.

    Attributes
    ----------
    choice : Choice
        NCCL's.
    seconds : float
    latency, route_latency : float
        NCCL's latency, and what the route adds to it, which may be below 0.
    nccl_rate : float
        Bandwidth of the full buffer that NCCL reaches where no link limits it.
    link_rate : float
        What the links of this network let through; not above `nccl_rate`.
    limit : str
        What bounds the time (`NcclNetwork.limit_of`).
    cut : Cut or None
        A bound for any algorithm, latencies aside; None where nothing crosses a cut.
    others : list of (Choice, float)
        What else NCCL could do and the seconds that takes, the fastest first.
    """

    choice: Choice
    seconds: float
    latency: float
    route_latency: float
    nccl_rate: float
    link_rate: float
    limit: str
    cut: Cut | None
    others: list[tuple[Choice, float]]


def explain(
    network: NcclNetwork, operation: Operation, bytes: int, members: Sequence[int]
) -> Explanation:
    """Network and communication → its price in parts, bounds and alternatives.

    Parameters
    ----------
    network : NcclNetwork
    operation : Operation
    bytes : int
        The full buffer.
    members : sequence of int
        Ranks, in the communicator's order; two at least.
    """
    group = network.placement(members, operation)
    plain = network.nccl_price(operation, bytes, group)
    price = network.price(operation, bytes, group)
    choices = network.choices(operation, bytes, group)
    moves = bytes > 0 and operation is not Operation.BARRIER
    return Explanation(
        choice=choices[0][0],
        seconds=price.duration / PICOSECONDS,
        latency=plain.latency / PICOSECONDS,
        route_latency=(price.latency - plain.latency) / PICOSECONDS,
        nccl_rate=_bandwidth(plain.rate),
        link_rate=_bandwidth(price.rate),
        limit=network.limit_of(operation, bytes, group),
        cut=cut_bound(_as_measured(network), operation, bytes, members) if moves else None,
        others=sorted(
            ((choice, other.duration / PICOSECONDS) for choice, other in choices[1:]),
            key=lambda each: each[1],
        ),
    )


def _as_measured(network: NcclNetwork) -> Topology:
    """Return the topology with measured bandwidths where they exceed its own numbers.

    NICs then carry up to their line rate, and links between switches as much more.
    """
    topology, nccl = network.topology, network.nccl
    if nccl is None:
        return topology
    factors, system = nccl.factors, nccl.system
    payload = min(system.nic_efficiency * factors.bandwidth_across, 1.0)
    across = max(1.0, payload / system.nic_efficiency)
    inside = max(1.0, factors.bandwidth_inside)
    reach = float(nccl.constants.raw["links"]["pcie-reach"])
    kind = topology.kind
    more = np.where(kind >= LinkKind.NIC, across, inside)
    more[kind == LinkKind.PCIE] = max(reach, inside)
    return replace(topology, bandwidth=topology.bandwidth * more)


def _bandwidth(rate: int) -> float:
    """Return an integer rate in bytes per second."""
    return rate * PICOSECONDS / (1 << RATE_BITS)
