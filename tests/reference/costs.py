"""Durations of rows, and communications that are flows: program and network → `Costs`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mpisim.engine.duration_factors import jitter_factors, scaled, speed_factor
from mpisim.program import UNPRICED, Kind, Operation, Program
from mpisim.topo import Price, SharedNetwork, class_of

__all__ = ["Costs", "Flow", "costs_of", "operations_of"]

Match = tuple[int, int]
"""A communicator, and how many operations on it come before: the operations of its members with
equal numbers are one communication."""


class Flow(NamedTuple):
    """A communication whose bytes flow over links that others may use."""

    latency: int
    """ps from the arrival of the last member until bytes flow."""
    volume: int
    """Bytes of payload."""
    rate: int
    """The highest, in 2**-40 bytes per ps."""
    links: tuple[tuple[int, int], ...]
    """(link, weight): bytes over the link per byte of payload, in units of 2**-20."""


class Costs(NamedTuple):
    """What the rows of a program take.

    Attributes
    ----------
    duration : list of lists of int
        ps, by rank and row. Of a flow: with the network to itself.
    flows : dict
        The communications that are flows, by `Match`.
    """

    duration: list[list[int]]
    flows: dict[Match, Flow]


def operations_of(program: Program, rank: int) -> dict[int, Match]:
    """Return which communication each communication row of a rank belongs to, by row."""
    table, bound = program.table_of(rank), program.slots_of(rank).tolist()
    found: dict[int, Match] = {}
    count: dict[int, int] = {}
    for row in range(len(table)):
        if Kind(int(table.kind[row])).is_communication:
            slot = int(table.slot[row])
            found[row] = bound[slot], count.get(slot, 0)
            count[slot] = count.get(slot, 0) + 1
    return found


def costs_of(program: Program, network: Any = None, contention: bool = True) -> Costs:
    """Price the rows of all ranks.

    Parameters
    ----------
    program : Program
        Whole: with all its tables.
    network : Network, optional
        Prices communications without a duration of their own.
    contention : bool
        Whether communications of a `SharedNetwork` that load links are flows.
    """
    flows: dict[Match, Flow] = {}
    classes: dict[int, Any] = {}
    durations = []
    for rank in range(program.n_ranks):
        table = program.table_of(rank)
        own = _kernels(program, rank)
        for row, (communicator, k) in operations_of(program, rank).items():
            if table.duration[row] != UNPRICED:
                continue
            if communicator not in classes:
                members = program.communicators.group(communicator)
                classes[communicator] = class_of(network, members)
            operation, size = Operation(int(table.operation[row])), max(0, int(table.bytes[row]))
            price = network.price(operation, size, classes[communicator])
            own[row] = price.duration
            if contention and isinstance(network, SharedNetwork) and price.volume:
                links = _links(network, program.communicators.group(communicator), price)
                if links:
                    flow = Flow(price.latency, price.volume, price.rate, links)
                    assert flows.setdefault((communicator, k), flow) == flow
        durations.append(own)
    return Costs(durations, flows)


def _kernels(program: Program, rank: int) -> list[int]:
    """Durations of a rank's rows; those of kernels and copies at its speed and with its jitter."""
    table = program.table_of(rank)
    durations = table.duration.astype(np.int64)
    rows = np.flatnonzero(table.kind <= Kind.COPY)
    factor: Any = speed_factor(program.speed[rank])
    if program.jitter is not None:
        factor = jitter_factors(program.jitter, rank, rows, int(factor))
    durations[rows] = scaled(durations[rows].astype(np.uint64), factor)
    return durations.tolist()


def _links(
    network: SharedNetwork, members: tuple[int, ...], price: Price
) -> tuple[tuple[int, int], ...]:
    if price.pattern is None:
        return ()
    index, group = np.array([0, len(members)], np.int64), np.array(members, np.int32)
    _, links, weights = network.loads(index, group, price.pattern)
    return tuple(zip(links.tolist(), weights.tolist(), strict=True))
