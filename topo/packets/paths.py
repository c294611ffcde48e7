"""Links of a route → paths: one after the other, or all that are equally short."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from mpisim.base.errors import InputError

from ..topology import LinkKind, Topology

__all__ = ["equal_paths", "sender_part"]

MAX_PATHS = 4096
"""Paths of a pair at most."""


def equal_paths(topology: Topology, links: Sequence[int]) -> list[tuple[int, ...]]:
    """Links of a route, in order → its paths, each from the first node to the last.

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


def sender_part(topology: Topology, path: Sequence[int]) -> int:
    """Path → how many of its links are inside the sender's node; 0 if it stays inside it.

    A NIC takes its data over these as it sends, so that nothing waits behind them.
    """
    nic = int(LinkKind.NIC)
    outside = (i for i, link in enumerate(path) if topology.kind.item(link) >= nic)
    return next(outside, 0)
