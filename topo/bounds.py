"""What no algorithm can beat: the bytes that must cross a cut, over what its links carry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.kinds import Operation

from .measure import max_flow
from .topology import Topology

__all__ = ["Cut", "crossing", "cut_bound", "partition_bound", "prefixes"]


class Cut(NamedTuple):
    """A lower bound of the time of a communication.

    Attributes
    ----------
    seconds : float
        Bytes over capacity; latencies come on top.
    bytes : float
        That must go from one side to the other.
    capacity : float
        The largest flow between the sides, bytes per second, over all links and by whatever ways.
    side : tuple of int
        Ranks on the sending side.
    """

    seconds: float
    bytes: float
    capacity: float
    side: tuple[int, ...]


def crossing(operation: Operation, bytes: float, side: int, ranks: int) -> float:
    """Return the bytes that must leave `side` of the ranks of a group for the others.

    Parameters
    ----------
    operation : Operation
    bytes : float
        The full buffer, as `Network.price` has it.
    side : int
        Members of the group on the sending side, 1 to `ranks` - 1. Where one member sends to all it
        is among them, where one receives from all it is not.
    ranks : int
        Members of the group.

    Raises
    ------
    InputError
        For an operation without bytes of its own.

    Examples
    --------
    >>> crossing(Operation.ALL_GATHER, 8.0, 1, 4)
    2.0
    """
    others = ranks - side
    shares = {
        Operation.ALL_REDUCE: 1.0,  # the sum over this side, whatever it is made of
        Operation.ALL_GATHER: side / ranks,
        Operation.REDUCE_SCATTER: others / ranks,
        Operation.BROADCAST: 1.0,
        Operation.REDUCE: 1.0,
        Operation.ALL_TO_ALL: side * others / ranks,
        Operation.GATHER: side / ranks,
        Operation.SCATTER: others / ranks,
        Operation.SEND_RECV: 1.0,
    }
    if operation not in shares:
        raise InputError(f"a communication of kind {operation.name} has no bytes to cross a cut")
    return bytes * shares[operation]


def cut_bound(
    topology: Topology,
    operation: Operation,
    bytes: float,
    members: Sequence[int],
    sides: Iterable[Sequence[int]] | None = None,
) -> Cut:
    """Return the tightest lower bound of the time of a communication among some cuts.

    Parameters
    ----------
    topology : Topology
    operation : Operation
    bytes : float
        The full buffer.
    members : sequence of int
        Ranks, in the communicator's order.
    sides : iterable of sequences of int, optional
        Members on the sending side of each cut; by default `prefixes`, and all others. Where an
        operation has a root, cuts count that it sends or receives over.

    Raises
    ------
    InputError
        For an operation without bytes of its own, and if no cut separates sender and receiver.
    """
    everyone = np.asarray(members, np.int64)
    found: Cut | None = None
    chosen = [
        np.isin(everyone, np.asarray(side, np.int64))
        for side in (prefixes(members) if sides is None else sides)
    ]
    if sides is None:
        chosen += [~here for here in chosen]
    for here in chosen:
        if not 0 < here.sum() < len(here) or not _separates(operation, here):
            continue
        need = crossing(operation, bytes, int(here.sum()), len(here))
        capacity = max_flow(topology, topology.gpu[everyone[here]], topology.gpu[everyone[~here]])
        cut = Cut(need / capacity, need, capacity, tuple(everyone[here].tolist()))
        if found is None or cut.seconds > found.seconds:
            found = cut
    if found is None:
        raise InputError(f"{operation.name.lower()}: no cut separates who sends from who receives")
    return found


def partition_bound(
    operation: Operation,
    bytes: float,
    ranks: int,
    parts: int,
    capacity: float,
    *,
    reduced_in_network: bool = False,
) -> float:
    """Return a lower bound of a time, where a group falls into equal parts, in seconds.

    Without reductions in switches the parts of an all-reduce send 2 (p - 1) buffers together, p of
    them: p - 1 to be summed up, p - 1 to be told the sum (Patarasuk, Yuan 2009). The links out of
    all parts carry p times `capacity`.

    Parameters
    ----------
    operation : Operation
        One in which all ranks do the same.
    bytes : float
        The full buffer.
    ranks, parts : int
        Of the group; parts of `ranks` / `parts` ranks each.
    capacity : float
        What one part can send to the others, bytes per second.
    reduced_in_network : bool
        Whether switches sum up.

    Examples
    --------
    >>> partition_bound(Operation.ALL_REDUCE, 8e9, 4, 4, 1e9)
    12.0
    """
    if operation is Operation.ALL_REDUCE and not reduced_in_network:
        return 2 * (parts - 1) * bytes / (parts * capacity)
    if operation in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER):  # what must come in, or go
        return (parts - 1) * bytes / (parts * capacity)
    return crossing(operation, bytes, ranks // parts, ranks) / capacity


def prefixes(members: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the first 1, 2, 4, … and the first half of a group's ranks, ascending.

    On regular networks these are a GPU, nodes, leaves, pods, and the bisection.
    """
    ordered = sorted(members)
    size = 1
    while size < len(ordered) / 2:
        yield tuple(ordered[:size])
        size *= 2
    yield tuple(ordered[: len(ordered) // 2])


def _separates(operation: Operation, here: NDArray[np.bool_]) -> bool:
    """Say whether bytes must go from this side to the other, by who is on it."""
    if operation in (Operation.BROADCAST, Operation.SCATTER):
        return bool(here[0])
    if operation in (Operation.REDUCE, Operation.GATHER):
        return not here[0]
    if operation is Operation.SEND_RECV and len(here) == 2:
        return bool(here[0])
    return True
