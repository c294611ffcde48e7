"""Echo's white box: collectives as hops and bytes of NCCL's rings and trees.

With N ranks on M nodes, K a node, a ring all-gather of S bytes takes alpha + gamma eta (N - 1),
where eta = S / N is what moves in a hop; a ring all-reduce makes twice as many hops and reduces all
bytes once, delta S; a tree passes K - 1 hops in a node and 2 log2 M across. (Feng et al., "Echo:
simulating distributed training at scale", arXiv:2412.12487, equations 2 to 5.) The parameters are
profiled: here, fitted per platform.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.kinds import Operation

from ..nccl import Shape, System
from .form import Settings

__all__ = ["Echo"]


class Echo:
    """Echo's formulas.

    The numbers: `alpha`, of any collective, in seconds; `hop_inside` and `hop_across`, of a hop
    whatever its size; `byte_inside`, seconds a byte of what one GPU sends inside its node, and
    `byte_across`, of what leaves a node through one GPU's share of its NICs; `reduce`, seconds a
    byte of the buffer, where it is reduced.
    """

    name = "echo"
    start: Mapping[str, float] = {
        "alpha": 15e-6,
        "hop_inside": 1e-6,
        "hop_across": 5e-6,
        "byte_inside": 1 / 250e9,
        "byte_across": 1 / 25e9,
        "reduce": 1 / 2000e9,
    }
    firm: Mapping[str, float] = {}
    kindred: Mapping[str, float] = {}

    def seconds(
        self,
        numbers: Mapping[str, float],
        system: System,
        operation: Operation,
        bytes: NDArray[np.float64],
        shape: Shape,
        settings: Settings,
    ) -> NDArray[np.float64]:
        """Return durations; see `Form`."""
        n, nodes, per_node = shape.ranks, shape.nodes, shape.most
        inside, across = numbers["byte_inside"], numbers["byte_across"]
        alpha, reduce = numbers["alpha"], numbers["reduce"]
        # A ring passes every node's boundary once a round, on as many channels as GPUs.
        ring = inside if nodes == 1 else max(inside, across / per_node)
        crossings = nodes if nodes > 1 else 0
        round_trip = (n - crossings) * numbers["hop_inside"] + crossings * numbers["hop_across"]
        share = (n - 1) / n
        if operation is Operation.ALL_REDUCE:
            by_ring = 2 * round_trip + 2 * share * bytes * ring
            hops = (per_node - 1) * numbers["hop_inside"] + log2(nodes) * numbers["hop_across"]
            # Up and down each byte crosses a GPU's links once each way; a node's boundary too, and
            # of two nodes only half as often, since either is the root of one of the two trees.
            tree = max(inside, across / per_node * (nodes - 1) / nodes)
            by_tree = 2 * hops + 2 * bytes * tree
            found: NDArray[np.float64] = alpha + np.minimum(by_ring, by_tree) + reduce * bytes
            return found
        if operation in (Operation.ALL_GATHER, Operation.GATHER, Operation.SCATTER):
            return alpha + round_trip + share * bytes * ring
        if operation is Operation.REDUCE_SCATTER:
            return alpha + round_trip + share * bytes * ring + reduce * bytes
        if operation in (Operation.BROADCAST, Operation.REDUCE):
            return alpha + round_trip + bytes * ring
        if operation is Operation.ALL_TO_ALL:
            stay, leave = (per_node - 1) / n, (n - per_node) / n
            return alpha + round_trip + bytes * max(stay * inside, leave * across)
        if operation is Operation.SEND_RECV:
            hop = numbers["hop_inside" if nodes == 1 else "hop_across"]
            return alpha + hop + bytes * (inside if nodes == 1 else across)
        raise InputError(f"Echo's formulas do not cover {operation.name.lower()}")
