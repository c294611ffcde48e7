"""The plan of a run: which process hosts which rank, and where groups meet.

Made once, before any clock moves. A *group* is one operation of a communicator: the k-th. Every
process numbers the groups of the communicators it has members of; messages name a group by
(communicator, k), since the numbers differ from process to process.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..program import Program
from .actors import FLOW_GROUP, LoweredTables, Traffic
from .contention import Contention, assign_domains
from .cost import Priced, varied
from .digest import hash_sizes
from .duration_factors import DurationFactors
from .fold import SimulatedRanks
from .lowering import Code, lower
from .refine import ranges
from .tiling import Meetings, Tiles, find_tiles

__all__ = [
    "Layout",
    "Plan",
    "Role",
    "make_plan",
]


class Role(IntEnum):
    """What a process does when the last of its own members has posted to a group."""

    LOCAL = 0
    """All members are here: the group starts."""
    PEER = 1
    """Tell the few other processes; the group starts when all of them have told this one."""
    MEMBER = 2
    """Tell the owner, and wait for its answer."""
    OWNER = 3
    """When all other processes have told this one, the group starts; tell them. Of a group that may
    share links: it flows here, and they are told when it has ended."""


_MOST_PEERS = 4
"""Groups over more processes have an owner. Without one the answer comes a round earlier, but the
number of messages is the square of that of processes."""


@dataclass(frozen=True, eq=False)
class Layout:
    """All that a core needs to run the hosted ranks of one process.

    `h` is the number of hosted ranks; `s` the number of their slots taken together.

    Attributes
    ----------
    codes : list of Code
        The distinct tables.
    code : int32, shape (h,)
        Each rank's entry in `codes`.
    durations : list of int64 arrays
        The distinct priced durations of all rows of a table, in ps, but for `variation`.
    duration : int32, shape (h,)
        Each rank's entry in `durations`.
    numbers : int32, shape (h,)
        Numbers of the ranks among all that are simulated, ascending.
    count : int64, shape (h,)
        How many ranks each stands for: the digest counts it as often.
    start : int64, shape (h,)
        ps.
    slot_index : int64, shape (h + 1,)
        Slots of rank i are ``slot_index[i]`` to ``slot_index[i + 1]`` of the arrays below.
    slot_group : int64, shape (s,)
        Number of the first group of the communicator bound to a slot.
    slot_role : uint8, shape (s,)
        A `Role`.
    slot_members, slot_away : int32, shape (s,)
        Of the communicator bound to a slot: hosted members, counted for each of their slots, and
        messages that come from other processes for each group.
    slot_hash : uint64, shape (s, 2)
        What the digest takes from the group's size.
    n_groups : int
    n_messages : int
        No more messages than this are ever sent by this process.
    tiles : Tiles, optional
        Which ranks run side by side, where communications share no links.
    variation : DurationFactors, optional
        Likewise: how durations of the ranks differ from those in `durations`.
    traffic : Traffic, optional
        Where communications share links.
    groups : FLOW_GROUP, shape (n_groups,), optional
        Likewise: the groups before anything has run.
    """

    codes: list[Code]
    code: NDArray[np.int32]
    durations: list[NDArray[np.int64]]
    duration: NDArray[np.int32]
    numbers: NDArray[np.int32]
    count: NDArray[np.int64]
    start: NDArray[np.int64]
    slot_index: NDArray[np.int64]
    slot_group: NDArray[np.int64]
    slot_role: NDArray[np.uint8]
    slot_members: NDArray[np.int32]
    slot_away: NDArray[np.int32]
    slot_hash: NDArray[np.uint64]
    n_groups: int
    n_messages: int
    tiles: Tiles | None = None
    variation: DurationFactors | None = None
    traffic: Traffic | None = None
    groups: NDArray[Any] | None = None

    @property
    def n_rows(self) -> int:
        """Rows of all hosted ranks."""
        lengths = np.array([len(code.table) for code in self.codes], np.int64)
        return int(lengths[self.code].sum())

    def durations_of(self, local: int) -> NDArray[np.int64]:
        """Return the durations of the rows of a hosted rank, by its local number, in ps."""
        durations = self.durations[self.duration[local]]
        if self.variation is None:
            return durations
        return self.variation.applied(local, durations, self.codes[self.code[local]].kernels)

    def duration_key(self, local: int) -> Hashable:
        """Return what is equal for ranks of one table whose durations are equal."""
        key = None if self.variation is None else self.variation.key_of(local)
        return int(self.duration[local]), key


@dataclass(frozen=True, eq=False)
class Plan:
    """Who meets whom, seen from one process.

    Ranks and communicators are the simulated ones: in a folded run, classes of them. `n` ranks
    are simulated; `l` is the number of communicators that have a hosted member which communicates
    on them, or whose flows are run here.

    Attributes
    ----------
    program : Program
    simulated : SimulatedRanks
    placement : int32, shape (n,)
    process : int
        This process.
    hosted : int32, shape (h,)
    communicators : int64, shape (l,)
        Ascending.
    first_group : int64, shape (l + 1,)
        Communicator ``communicators[i]`` has the groups ``first_group[i]`` to
        ``first_group[i + 1]``.
    role : uint8, shape (l,)
        A `Role`.
    owner : int32, shape (l,)
    others_index : int64, shape (l + 1,)
    others : int32
        ``others[others_index[i]:others_index[i + 1]]``: the other processes with members.
    receivers_index : int64, shape (l + 1,)
    receivers : int32
        Likewise those that are told when all hosted members have posted: a member writes to the
        owner, a peer and an owner to all others.
    layout : Layout
    """

    program: Program
    simulated: SimulatedRanks
    placement: NDArray[np.int32]
    process: int
    hosted: NDArray[np.int32]
    communicators: NDArray[np.int64]
    first_group: NDArray[np.int64]
    role: NDArray[np.uint8]
    owner: NDArray[np.int32]
    others_index: NDArray[np.int64]
    others: NDArray[np.int32]
    receivers_index: NDArray[np.int64]
    receivers: NDArray[np.int32]
    layout: Layout

    def locate(self, groups: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (index into `communicators`, k) of groups numbered as on this process."""
        index = np.searchsorted(self.first_group, groups, side="right") - 1
        return index, groups - self.first_group[index]

    def group_of(self, rank: int, row: int) -> int:
        """Return the group that a communication row of a hosted simulated rank posts to."""
        layout = self.layout
        local = int(np.searchsorted(self.hosted, rank))
        instruction = layout.codes[layout.code[local]].instructions[row]
        slot = layout.slot_index[local] + instruction["slot"]
        return int(layout.slot_group[slot] + instruction["ordinal"])


def make_plan(
    simulated: SimulatedRanks,
    placement: NDArray[np.int32],
    process: int,
    priced: Priced,
    contention: Contention | None = None,
    operations: NDArray[np.int64] | None = None,
    lowered: LoweredTables | None = None,
) -> Plan:
    """Make one process's plan. Local.

    Parameters
    ----------
    simulated : SimulatedRanks
        Of a program with the tables of all ranks that `placement` puts here.
    placement : int32, shape (n,)
    process : int
        This process.
    priced : Priced
        Of the simulated ranks hosted here, with the prices of `contention`.
    contention : Contention, optional
        Given if there are routes.
    operations : int64, shape (n_groups,), optional
        How many operations each simulated group has. Given if there are routes and several
        processes take part.
    lowered : LoweredTables, optional
        Of earlier runs of the same tables; this run adds to it.
    """
    lowered = lowered or LoweredTables()
    program = simulated.program
    hosted = np.flatnonzero(placement == process).astype(np.int32)
    ranks = simulated.classes.representative[hosted]
    at, rank_of_slot = ranges(simulated.slot_index, hosted.astype(np.int64))
    slot_index = np.searchsorted(rank_of_slot, np.arange(len(hosted) + 1)).astype(np.int64)
    bound = simulated.slots[at]

    numbers, entry = np.unique(program.table[ranks], return_inverse=True)
    code = entry.astype(np.int32)
    held = [table for n in numbers if (table := program.tables[n]) is not None]
    codes = [lower(table, lowered.codes) for table in held]
    on_slot = _operations(codes, code, slot_index)
    active = on_slot > 0
    site = assign_domains(simulated.routes, len(simulated.sizes), int(placement.max()) + 1)
    owned = np.flatnonzero(site == process)
    communicators = np.union1d(bound[active], owned)
    where = np.searchsorted(communicators, bound).clip(max=max(len(communicators) - 1, 0))
    members = np.bincount(where[active], minlength=len(communicators))
    n_operations = np.zeros(len(communicators), np.int64)
    n_operations[where[active]] = on_slot[active]
    if operations is not None:
        n_operations = operations[communicators]
    first_group = np.concatenate([[0], np.cumsum(n_operations)])

    site = site[communicators]
    others, others_index, owner = _meeting_points(
        simulated, placement, process, communicators, site
    )
    n_others = np.diff(others_index)
    role = np.select(
        [n_others == 0, (n_others < _MOST_PEERS) & (site < 0), owner == process],
        [Role.LOCAL, Role.PEER, Role.OWNER],
        Role.MEMBER,
    ).astype(np.uint8)
    away = np.where(role == Role.MEMBER, 1, n_others)
    of_member = np.repeat(role == Role.MEMBER, n_others)
    receivers = np.where(of_member, np.repeat(owner, n_others), others)
    told = ~of_member
    told[others_index[:-1][role == Role.MEMBER]] = True  # one entry, for the owner

    tiles = variation = groups = traffic = None
    if contention is None:
        variation = DurationFactors.of(program, ranks)
        owner_of_slot = np.repeat(np.arange(len(hosted)), np.diff(slot_index))[active]
        met = Meetings(
            rank=owner_of_slot,
            slot=np.flatnonzero(active) - slot_index[owner_of_slot],
            group=where[active],
            operations=on_slot[active],
            inside=role == Role.LOCAL,
        )
        tiles = find_tiles(code, priced.which, met)
    else:
        priced = varied(program, ranks, priced)
        groups = np.zeros(first_group[-1], FLOW_GROUP)
        for column in ("time", "end", "bound", "follow"):
            groups[column] = np.iinfo(np.int64).min
        groups["last"] = groups["follower"] = np.iinfo(np.int32).max
        groups["missing"] = np.repeat(members, n_operations)
        groups["away"] = np.repeat(away, n_operations)
        groups["waiter"] = groups["route"] = groups["price"] = groups["flow"] = -1
        groups["owned"] = np.repeat(role == Role.OWNER, n_operations)
        assert simulated.routes is not None
        alone = operations is None
        traffic = Traffic.of(
            simulated.routes, contention, codes, code, priced, bound, alone, lowered.scripts
        )

    def of_slot(values: NDArray[Any], dtype: type) -> NDArray[Any]:
        found: NDArray[Any] = np.zeros(len(bound), dtype)
        found[active] = values[where[active]]
        return found

    layout = Layout(
        codes=codes,
        code=code,
        durations=priced.durations,
        duration=priced.which,
        numbers=hosted,
        count=simulated.classes.count[hosted],
        start=program.start[ranks],
        slot_index=slot_index,
        slot_group=of_slot(first_group, np.int64),
        slot_role=of_slot(role, np.uint8),
        slot_members=of_slot(members, np.int32),
        slot_away=of_slot(away, np.int32),
        slot_hash=hash_sizes(simulated.sizes[bound]),
        n_groups=int(first_group[-1]),
        n_messages=int(n_operations[n_others > 0].sum()),
        tiles=tiles,
        variation=variation,
        traffic=traffic,
        groups=groups,
    )
    return Plan(
        program=program,
        simulated=simulated,
        placement=placement,
        process=process,
        hosted=hosted,
        communicators=communicators,
        first_group=first_group,
        role=role,
        owner=owner,
        others_index=others_index,
        others=others,
        receivers_index=np.concatenate([[0], np.cumsum(away)]).astype(np.int64),
        receivers=receivers[told].astype(np.int32),
        layout=layout,
    )


def _operations(
    codes: list[Code], code: NDArray[np.int32], slot_index: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return how many operations a rank does on each of its slots, for all slots of all ranks."""
    operations = np.zeros(slot_index[-1], np.int64)
    for i, one in enumerate(codes):
        on_slot = one.table.operations
        first = slot_index[:-1][code == i]
        operations[first[:, None] + np.arange(len(on_slot))] = on_slot
    return operations


def _meeting_points(
    simulated: SimulatedRanks,
    placement: NDArray[np.int32],
    process: int,
    communicators: NDArray[np.int64],
    site: NDArray[np.int32],
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """Return the other processes of each communicator (values and index) and its owner.

    Where there is a site, it is one of the processes and the owner.
    """
    at, member_of = ranges(simulated.member_index, communicators)
    members = simulated.members[at]
    n_processes = int(placement.max()) + 1
    sited = np.flatnonzero(site >= 0)
    pairs = np.concatenate(
        [member_of * n_processes + placement[members], sited * n_processes + site[sited]]
    )
    pairs = np.unique(pairs)
    which, processes = pairs // n_processes, (pairs % n_processes).astype(np.int32)
    count = np.bincount(which, minlength=len(communicators))
    first = np.cumsum(count) - count
    # Spread ownership: neighbouring communicators over the same processes get different owners.
    spread = (communicators * 0x9E3779B1) >> 15
    owner = processes[first + spread % np.maximum(count, 1)]
    owner = np.where(site >= 0, site, owner)
    away = processes != process
    index = np.concatenate([[0], np.cumsum(np.bincount(which[away], minlength=len(count)))])
    return processes[away], index.astype(np.int64), owner.astype(np.int32)
