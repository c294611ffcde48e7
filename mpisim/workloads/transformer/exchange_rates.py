"""Times of DeepEP and HybridEP relative to NCCL's all-to-all, from ``data/dispatchers.toml``.

A kernel of theirs takes a constant time, and beside it the longer of two: what the links take, as
a factor of NCCL's all-to-all; and what the few multiprocessors take that it runs on, which move
one token after the other, each in a constant time and its bytes over a rate.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Literal

from ...base.frozen import frozen
from ...base.presets import packaged
from ...base.quantity import Quantity
from ...base.schema import build

__all__ = ["Direction", "ExchangeGroup", "priced_bytes"]

FILE = "dispatchers.toml"

Direction = Literal["dispatch", "combine"]
"""Which of the two kernels sends: the one to the experts, or the one back, which adds up."""


@frozen
class Kernel:
    """One direction, inside a node or across nodes.

    Attributes
    ----------
    factors : tuple of float
        What links take over NCCL's time, at the places of `Measured`.
    token : Quantity
        Time of a multiprocessor for each token that arrives at a rank.
    copy_rate : Quantity
        Bytes per second of a multiprocessor, beside that.
    """

    factors: tuple[float, ...]
    token: Quantity
    copy_rate: Quantity


@frozen
class Measured:
    """Both directions, inside a node or across nodes.

    Attributes
    ----------
    places : tuple of float
        Ranks inside a node, or nodes; growing.
    reach : Quantity
        Share of the links' rate that NCCL's all-to-all reaches.
    latency : Quantity
        What a kernel takes beyond the latency of NCCL's all-to-all.
    dispatch, combine : Kernel
    error : float
        Of the factors, relative, one standard deviation.
    source : str
        What they were measured on.
    """

    places: tuple[float, ...]
    reach: Quantity
    latency: Quantity
    dispatch: Kernel
    combine: Kernel
    error: float
    source: str


@frozen
class Dispatcher:
    """What was measured of one dispatcher.

    Attributes
    ----------
    multiprocessors : Quantity
        On which its kernels run.
    node, network : Measured
        Of groups inside a node, and across nodes.
    """

    multiprocessors: Quantity
    node: Measured
    network: Measured


@frozen
class ExchangeGroup:
    """Ranks among which tokens are exchanged.

    Attributes
    ----------
    ranks, nodes : int
    rate : float, optional
        Bytes per second that one rank sends to others: inside a node if that is where all are, else
        over the network. Without it factors alone count.
    """

    ranks: int
    nodes: int
    rate: float | None = None


@cache
def _dispatchers() -> dict[str, Dispatcher]:
    return {name: build(Dispatcher, table, FILE, name) for name, table in packaged(FILE).items()}


def priced_bytes(
    dispatcher: str,
    direction: Direction,
    group: ExchangeGroup,
    size: float,
    arrived: int,
    row: int,
    multiprocessors: int | None = None,
) -> int:
    """Tokens that a dispatcher sends → bytes for which NCCL's all-to-all takes as long.

    Parameters
    ----------
    dispatcher : str
        ``framework.moe_dispatcher``.
    direction : {"dispatch", "combine"}
    group : ExchangeGroup
    size : float
        Bytes that a rank sends, its own share included: to ranks of its node, or else to nodes.
    arrived : int
        Tokens that arrive at a rank, from all ranks of the group.
    row : int
        Bytes of a token.
    multiprocessors : int, optional
        On which its kernels run; by default those of ``data/dispatchers.toml``.

    Examples
    --------
    >>> priced_bytes("hybrid-ep", "combine", ExchangeGroup(64, 1), 100, 1, 100)
    123
    >>> priced_bytes("all-to-all", "combine", ExchangeGroup(64, 1), 100, 1, 100)
    100
    >>> priced_bytes("flex", "combine", ExchangeGroup(1, 1, 370e9), 100, 1, 100)
    100
    """
    found = _dispatchers().get(dispatcher)
    if found is None or group.ranks == 1:  # to itself alone: no link carries anything
        return math.ceil(size)
    measured, places = (
        (found.node, group.ranks) if group.nodes == 1 else (found.network, group.nodes)
    )
    kernel = measured.dispatch if direction == "dispatch" else measured.combine
    by_links = _between(measured.places, kernel.factors, places) * size
    if group.rate is None:
        return math.ceil(by_links)
    each = kernel.token.si + row / kernel.copy_rate.si
    seconds = each * arrived / (multiprocessors or found.multiprocessors.value)
    # A place's own share counts in the bytes, but no link carries it.
    rate = measured.reach.value * group.rate / (1 - 1 / places)
    return math.ceil(max(by_links, rate * seconds) + rate * measured.latency.si)


def _between(places: tuple[float, ...], factors: tuple[float, ...], place: int) -> float:
    """Factor at a place: between those of two by the logarithm, beyond them as at the last."""
    points = list(zip(places, factors, strict=True))
    if place <= points[0][0]:
        return points[0][1]
    for (before, low), (after, high) in itertools.pairwise(points):
        if place <= after:
            share = math.log(place / before) / math.log(after / before)
            return low + share * (high - low)
    return points[-1][1]
