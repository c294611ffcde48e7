"""Optical circuit switching: program → the same with circuit set-up times in its durations.

Where GPUs are joined by circuits (`mpisim.topo.circuits`), a communication whose circuit is not set
up yet takes longer by the set-up time. The order of the program decides which ones do: a
communication is next when all its members have issued everything before it, and of several such
the one with the fewest communications before it. A communication that waits gets a duration of its
own, the network's price plus the set-ups; the network prices all others during the run. The result
therefore does not depend on the number of processes, and equivalent ranks are folded as usual.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.quantity import PICOSECONDS
from ..program import UNPRICED, Operation, Program, Table
from ..topo import Network
from ..topo.circuits import Circuits, Pair, SetUps, rounds_of, steady_set_ups
from ..topo.nccl_network import NcclNetwork

__all__ = ["Use", "circuits_of", "set_up_notes", "uses_of", "with_set_ups"]

_WITHOUT_CIRCUITS = (Operation.NONE, Operation.UNKNOWN)


class Use(NamedTuple):
    """A communication that the network prices.

    Attributes
    ----------
    communicator, ordinal : int
        Number of earlier communications on the communicator.
    operation : Operation
    bytes : int
    """

    communicator: int
    ordinal: int
    operation: Operation
    bytes: int


def circuits_of(network: Network | None) -> Circuits | None:
    """Return the circuits of a network; None if its links are permanent."""
    return network.circuits if isinstance(network, NcclNetwork) else None


class _Plan(NamedTuple):
    """The communications of a program, and the circuits that they have to set up."""

    circuits: Circuits
    uses: list[Use]
    found: SetUps
    steady: bool


def with_set_ups(program: Program, network: Network | None) -> Program:
    """Program → the same, communications that set up circuits with their durations.

    Parameters
    ----------
    program : Program
        Whole.
    network : Network, optional
        Without circuits the program is returned as it is.

    Raises
    ------
    InputError
        If this process holds a part of the program alone.
    """
    plan = _plan(program, network)
    if plan is None:
        return program
    assert isinstance(network, NcclNetwork)
    late = {
        (use.communicator, use.ordinal): waits * plan.circuits.setup
        for use, waits in zip(plan.uses, plan.found.rounds, strict=True)
        if waits
    }
    return _delayed(program, network, late) if late else program


def set_up_notes(program: Program, network: Network | None) -> tuple[str, ...]:
    """Program → assumptions about its circuits, as lines; none without circuits.

    Parameters
    ----------
    program : Program
        As for `with_set_ups`.
    network : Network, optional
    """
    plan = _plan(program, network)
    if plan is None:
        return ()
    circuits, found = plan.circuits, plan.found
    late = sum(map(bool, found.rounds))
    which = (
        "the first step, before which none stands,"
        if circuits.first_step
        else "a step that has been repeated"
    )
    notes = [
        f"circuits: {which} sets up {found.circuits} and destroys {found.evicted} for want of "
        f"ports ({circuits.ports} a GPU); {late} of {len(plan.uses)} communications wait for them, "
        f"{circuits.setup / PICOSECONDS * 1e3:g} ms each time",
        "circuits are used in the order of the program, whatever the clock; a communication that "
        "waits for one shares no link with others",
    ]
    if not plan.steady and not circuits.first_step:
        notes.append("circuits: what a step sets up does not become the same each time")
    return tuple(notes)


def _plan(program: Program, network: Network | None) -> _Plan | None:
    circuits = circuits_of(network)
    if circuits is None:
        return None
    assert isinstance(network, NcclNetwork)
    if program.is_partial:
        raise InputError(
            "circuits are set up in the order of the whole program, and this process has a part "
            "of it: use one process"
        )
    uses = list(uses_of(program))
    rounds = _rounds(program, network, uses, circuits)
    found, steady = steady_set_ups(rounds, circuits.ports, first=circuits.first_step)
    return _Plan(circuits, uses, found, steady)


def uses_of(program: Program) -> Iterator[Use]:
    """Yield the communications that the network prices, in the order of the program.

    A communication is next when all of its members have issued what they issue before it. Of
    several the one with the fewest before it comes first, then by communicator. Where ranks issue
    communications in orders that exclude each other, as on different streams, the one that fewest
    come before is taken.

    Parameters
    ----------
    program : Program
        Whole.
    """
    groups = program.communicators
    listed: dict[int, tuple[NDArray[Any], ...]] = {}
    sequences: list[list[Use]] = []
    for rank in range(program.n_ranks):
        number = int(program.table[rank])
        table = program.table_of(rank)
        if number not in listed:
            rows = np.flatnonzero(table.is_communication)
            columns = (table.slot, table.ordinal, table.operation, table.bytes, table.duration)
            listed[number] = tuple(column[rows] for column in columns)
        slot, ordinal, operation, size, duration = listed[number]
        bound = program.slots_of(rank)[slot]
        kept = (duration == UNPRICED) & (groups.sizes[bound] > 1)
        kept &= ~np.isin(operation, _WITHOUT_CIRCUITS)
        of_uses = (bound, ordinal, operation, size)
        each = zip(*(column[kept].tolist() for column in of_uses), strict=True)
        sequences.append([Use(c, o, Operation(kind), max(b, 0)) for c, o, kind, b in each])
    yield from _in_order(sequences, {c: groups.group(c) for c in range(len(groups))})


def _in_order(sequences: list[list[Use]], members: dict[int, tuple[int, ...]]) -> Iterator[Use]:
    """Sequences of single ranks → one sequence in which each of them keeps its order."""
    at = [0] * len(sequences)
    level = [0] * len(sequences)  # communications before the next, along the longest way
    done: set[tuple[int, int]] = set()
    arrived: dict[tuple[int, int], int] = {}
    ready: list[tuple[int, Use]] = []

    def advance(rank: int) -> None:
        sequence = sequences[rank]
        while at[rank] < len(sequence) and sequence[at[rank]][:2] in done:
            at[rank] += 1
        if at[rank] == len(sequence):
            return
        use = sequence[at[rank]]
        arrived[use[:2]] = arrived.get(use[:2], 0) + 1
        if arrived[use[:2]] == len(members[use.communicator]):
            heapq.heappush(ready, (max(level[each] for each in members[use.communicator]), use))

    for rank in range(len(sequences)):
        advance(rank)
    while True:
        if ready:
            _, use = heapq.heappop(ready)
        else:
            heads = [
                (level[rank], sequence[at[rank]])
                for rank, sequence in enumerate(sequences)
                if at[rank] < len(sequence)
            ]
            if not heads:
                return
            _, use = min(heads)
        done.add(use[:2])
        yield use
        group = members[use.communicator]
        above = max(level[rank] for rank in group) + 1
        for rank in group:
            level[rank] = above
            if at[rank] < len(sequences[rank]) and sequences[rank][at[rank]][:2] == use[:2]:
                advance(rank)


def _rounds(
    program: Program, network: NcclNetwork, uses: list[Use], circuits: Circuits
) -> list[list[list[Pair]]]:
    """Return the pairs that each communication needs, in rounds."""
    known: dict[tuple[int, Operation, int], list[list[Pair]]] = {}
    found = []
    for use in uses:
        key = use.communicator, use.operation, use.bytes
        if key not in known:
            members = program.communicators.group(use.communicator)
            # A barrier is an all-reduce of nothing.
            barrier = use.operation is Operation.BARRIER
            operation = Operation.ALL_REDUCE if barrier else use.operation
            _, steps = network.steps(operation, use.bytes, members)
            known[key] = rounds_of(steps, members, circuits.ports)
        found.append(known[key])
    return found


def _delayed(program: Program, network: NcclNetwork, late: dict[tuple[int, int], int]) -> Program:
    """Return the program whose late communications take their price and the set-ups."""
    groups = program.communicators
    label, classes = network.group_classes(groups.index, groups.members, program.operation_bits)
    tables: list[Table | None] = list(program.tables)
    which = np.array(program.table, np.int64)
    waiting: dict[int, list[int]] = {}
    for communicator, ordinal in late:
        waiting.setdefault(communicator, []).append(ordinal)
    known: dict[tuple[int, bytes], int] = {}
    for rank in range(program.n_ranks):
        number, table = int(program.table[rank]), program.table_of(rank)
        duration = table.duration.copy()
        for slot, communicator in enumerate(program.slots_of(rank).tolist()):
            rows = table.rows_on(slot)
            for ordinal in waiting.get(communicator, ()):
                row = int(rows[ordinal])
                operation, size = Operation(int(table.operation[row])), int(table.bytes[row])
                price = network.price(operation, max(size, 0), classes[int(label[communicator])])
                duration[row] = price.duration + late[communicator, ordinal]
        key = number, duration.tobytes()
        if key not in known:
            same = (duration == table.duration).all()
            known[key] = number if same else len(tables)
            if not same:
                tables.append(table.replace(duration=duration))
        which[rank] = known[key]
    used, number_of = np.unique(which, return_inverse=True)
    kept = tuple(tables[number] for number in used.tolist())
    return program.replace(tables=kept, table=number_of.reshape(-1).astype(np.int32))
