"""Slowdown of DeepEP and HybridEP relative to NCCL's all-to-all, from ``data/dispatchers.toml``."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Literal

from ...base.frozen import frozen
from ...base.presets import packaged
from ...base.schema import build

__all__ = ["Direction", "slowdown"]

FILE = "dispatchers.toml"

Direction = Literal["dispatch", "combine"]
"""Which of the two kernels sends: the one to the experts, or the one back, which adds up."""


@frozen
class Measured:
    """Times over those of NCCL's all-to-all of as many bytes, at some sizes of the group.

    Attributes
    ----------
    places : tuple of float
        Ranks inside a node, or nodes; growing.
    dispatch, combine : tuple of float
        As many factors.
    error : float
        Relative, one standard deviation.
    source : str
        What they were measured on.
    """

    places: tuple[float, ...]
    dispatch: tuple[float, ...]
    combine: tuple[float, ...]
    error: float
    source: str


@frozen
class Dispatcher:
    """Measured slowdowns of one dispatcher.

    Attributes
    ----------
    node, network : Measured, optional
        Of groups inside a node, and across nodes; NCCL's time counts where nothing was measured.
    """

    node: Measured | None = None
    network: Measured | None = None


@cache
def _dispatchers() -> dict[str, Dispatcher]:
    return {name: build(Dispatcher, table, FILE, name) for name, table in packaged(FILE).items()}


def slowdown(dispatcher: str, direction: Direction, ranks: int, nodes: int) -> float:
    """Dispatcher and its group → its time over that of NCCL's all-to-all of as many bytes.

    Parameters
    ----------
    dispatcher : str
        ``framework.moe_dispatcher``.
    direction : {"dispatch", "combine"}
    ranks, nodes : int
        Of the group.

    Examples
    --------
    >>> slowdown("hybrid-ep", "combine", 64, 1)
    1.28
    >>> slowdown("flex", "dispatch", 8, 1)
    1.0
    """
    found = _dispatchers().get(dispatcher, Dispatcher())
    measured, place = (found.node, ranks) if nodes == 1 else (found.network, nodes)
    if measured is None:
        return 1.0
    factors = measured.dispatch if direction == "dispatch" else measured.combine
    points = list(zip(measured.places, factors, strict=True))
    if place <= points[0][0]:
        return points[0][1]
    for (before, low), (after, high) in itertools.pairwise(points):
        if place <= after:
            share = math.log(place / before) / math.log(after / before)
            return low + share * (high - low)
    return points[-1][1]
