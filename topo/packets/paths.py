"""Links of a flow → its shortest paths, the one that ECMP takes, and that of acknowledgements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from mpisim.base.errors import InputError

from ..fabrics.fabric_graph import ecmp_hash
from ..topology import LinkKind, Topology

__all__ = ["ack_path", "ecmp_path", "equal_paths", "opposite_links", "sender_part"]

MAX_PATHS = 4096
"""Paths of a pair at most."""


def equal_paths(topology: Topology, links: Sequence[int]) -> list[tuple[int, ...]]:
    """Links of a route between two nodes → its shortest paths, as tuples of links in order.

    Where a flow is spread over parallel links, a route has the links of all of them; of the paths
    that these form the shortest are taken.

    Parameters
    ----------
    topology : Topology
    links : sequence of int
        At least one.

    Raises
    ------
    InputError
        If they do not lead from the first link's begin to the last one's end, or there are more
        than `MAX_PATHS`.
    """
    begin, end = int(topology.source[links[0]]), int(topology.target[links[-1]])
    leaving: dict[int, list[int]] = defaultdict(list)
    for link in dict.fromkeys(links):
        leaving[topology.source.item(link)].append(link)
    level: dict[int, list[tuple[int, ...]]] = {begin: [()]}
    seen = {begin}
    while level and end not in level:
        following: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        for node, paths in level.items():
            for link in leaving[node]:
                target = topology.target.item(link)
                if target not in seen:
                    following[target] += [(*path, link) for path in paths]
        seen.update(following)
        if sum(map(len, following.values())) > MAX_PATHS:
            raise InputError(
                f"{topology.title}: from {topology.names[begin]} to {topology.names[end]} there "
                f"are more than {MAX_PATHS} paths"
            )
        level = following
    if end not in level:
        names = " ".join(map(topology.link_name, links))
        raise InputError(
            f"{topology.title}: the links {names} do not lead from {topology.names[begin]} to "
            f"{topology.names[end]}"
        )
    return level[end]


def ecmp_path(
    topology: Topology, links: tuple[int, ...], channel: int, seed: int, many: int
) -> int:
    """Ends of a queue pair, channel and seed → which of so many paths ECMP takes."""
    sender, receiver = topology.source[[links[0]]], topology.target[[links[-1]]]
    whole = 2**32
    first = ecmp_hash(sender.astype(np.int64), receiver.astype(np.int64), whole)
    second = ecmp_hash(np.array([channel]), np.array([seed % whole]), whole)
    return int(ecmp_hash(first, second, many)[0])


def sender_part(topology: Topology, path: Sequence[int]) -> int:
    """Path → number of its links inside the sender's node; 0 if it stays inside it.

    A NIC takes its data over these as it sends, so that nothing waits behind them.
    """
    nic = int(LinkKind.NIC)
    outside = (i for i, link in enumerate(path) if topology.kind.item(link) >= nic)
    return next(outside, 0)


def opposite_links(topology: Topology) -> dict[int, int]:
    """Topology → the link that leads back beside each; of parallel links the one in its place."""
    between: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    ends = (topology.source.tolist(), topology.target.tolist(), topology.kind.tolist())
    for link, (source, target, kind) in enumerate(zip(*ends, strict=True)):
        between[source, target, kind].append(link)
    return {
        link: back
        for (source, target, kind), links in between.items()
        for link, back in zip(links, between.get((target, source, kind), ()), strict=False)
    }


def ack_path(
    topology: Topology, path: tuple[int, ...], opposite: Mapping[int, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Path of data from its sender's NIC on → links of its acknowledgements: to the NIC, and on.

    A NIC answers: the links between it and its GPU cost their latency alone. Inside a node nothing
    is answered by packets, and without `opposite` nothing anywhere: both are empty.

    Parameters
    ----------
    topology : Topology
    path : tuple of int
    opposite : mapping of int to int
        Link → the one that leads back.

    Raises
    ------
    InputError
        If a link has none that leads back.
    """
    inside = all(topology.kind.item(link) < LinkKind.NIC for link in path)
    if inside or not opposite:
        return (), ()
    for link in path:
        if topology.bandwidth.item(opposite.get(link, link)) == 0 or link not in opposite:
            raise InputError(
                f"{topology.title}: no link leads back beside {topology.link_name(link)}, for "
                "acknowledgements of ack_size bytes"
            )
    back = tuple(opposite[link] for link in reversed(path))
    at = sender_part(topology, back)
    return back[:at], back[at:]
