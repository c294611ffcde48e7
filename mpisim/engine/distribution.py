"""Placement of ranks → hosted ranks, communicators and notifications of each process.

Says which process hosts a rank, which process owns a communicator, and which processes notify each
other. Made once, before any clock moves. The *k-th communication* of a communicator is the k-th
operation of every member on it. Every process numbers the communications of the communicators it
has members of, 0 and up; messages name one as (communicator, k), since the numbers differ from
process to process.

Communications of a communicator whose members are all on one process need no message. Over few
processes each notifies all others when its members have posted (peers); over more, each notifies
one, the owner, who answers. Any choice gives the same times: a communication starts at the largest
ready time of its members, and MAX does not depend on who takes it, or in which order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import IntEnum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..base.array_keys import fingerprint
from ..base.distinct import distinct, numbered
from ..base.frozen import frozen
from ..base.plain_integers import PlainInteger
from ..program import Flag, Program, Table
from ._core.by_communication import take_as_alone
from .contention import Contention, assign_domains
from .core_input import CoreInput, FlowInput, SharingInput, initial_communications
from .cost import Priced, varied
from .digest import hash_sizes
from .duration_factors import DurationFactors
from .fold import SimulatedRanks
from .lowering import LoweredTable, LoweredTables, lower
from .refine import ranges
from .tiling import Tiles, find_tiles
from .used_communicators import UsedCommunicators

__all__ = ["Distribution", "Role", "Tilings", "distribute"]

Ints = NDArray[np.int64]

_EAGER = int(Flag.EAGER)
"""As a plain integer, which numpy combines with arrays faster than a member of an IntFlag."""

Tilings = Callable[[Hashable, Callable[[], Tiles]], Tiles]
"""(key, what finds the tiles) → tiles of that key, kept from an earlier program or found."""


class Role(PlainInteger, IntEnum):
    """Role of a process in a communication, once the last of its own members has posted."""

    LOCAL = 0
    """All members are here: the communication starts."""
    PEER = 1
    """Notify the few other processes; it starts when all of them have notified this one."""
    MEMBER = 2
    """Notify the owner, and wait for its answer."""
    OWNER = 3
    """It starts when all other processes have notified this one, which then notifies them. A
    communication that may share links flows here, and they are notified when it has ended."""


MAX_PEERS = 8
"""Communicators over more processes have an owner. Without one the answer comes a round earlier,
but the number of messages is the square of that of processes: the processes of one small machine,
which often take turns on its cores, send each other a message sooner than they meet once more."""


@frozen(eq=False)
class Distribution:
    """Ranks hosted, and communicators owned, by each process, as one process needs to know them.

    Ranks and communicators are the simulated ones: where it is folded, classes of them. `n` ranks
    are simulated; `l` is the number of communicators that have a hosted member which communicates
    on them, or whose flows are run here.

    Attributes
    ----------
    program : Program
    simulated : SimulatedRanks
    placement : int32, shape (n,)
        The process of each simulated rank.
    process : int
        This process.
    hosted : int32, shape (h,)
        Numbers of the simulated ranks placed here, ascending.
    communicators : int64, shape (l,)
        Ascending.
    first_communication : int64, shape (l + 1,)
        Communicator ``communicators[i]`` has the communications ``first_communication[i]`` to
        ``first_communication[i + 1]``.
    role : uint8, shape (l,)
        A `Role`.
    owner : int32, shape (l,)
        The process that owns each.
    others_index : int64, shape (l + 1,)
    others : int32
        ``others[others_index[i]:others_index[i + 1]]``: the other processes with members.
    receivers_index : int64, shape (l + 1,)
    receivers : int32
        Likewise the processes that are notified when all hosted members have posted: a member
        notifies the owner, a peer and an owner all others.
    core_input : CoreInput
    """

    program: Program
    simulated: SimulatedRanks
    placement: NDArray[np.int32]
    process: int
    hosted: NDArray[np.int32]
    communicators: NDArray[np.int64]
    first_communication: NDArray[np.int64]
    role: NDArray[np.uint8]
    owner: NDArray[np.int32]
    others_index: NDArray[np.int64]
    others: NDArray[np.int32]
    receivers_index: NDArray[np.int64]
    receivers: NDArray[np.int32]
    core_input: CoreInput

    def locate(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Numbers of communications on this process → (index into `communicators`, k)."""
        index = np.searchsorted(self.first_communication, numbers, side="right") - 1
        return index, numbers - self.first_communication[index]


def distribute(
    simulated: SimulatedRanks,
    placement: NDArray[np.int32],
    process: int,
    priced: Priced,
    contention: Contention | None = None,
    operations: NDArray[np.int64] | None = None,
    known: LoweredTables | None = None,
    *,
    max_peers: int = MAX_PEERS,
    tilings: Tilings | None = None,
) -> Distribution:
    """Simulated ranks, their placement → `Distribution` for this process. Local.

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
        Given if there are routes and the contended core simulates the flows over them.
    operations : int64, shape (n_communicators,), optional
        How many operations each simulated communicator has. Given with `contention` if several
        processes take part.
    known : LoweredTables, optional
        Of earlier runs of the same tables; this run adds to it.
    max_peers : int
        Communicators over more processes than this have an owner.
    tilings : callable, optional
        Returns the tiles under a key, which it may have kept from other programs.
    """
    known = LoweredTables() if known is None else known
    program = simulated.program
    hosted = np.flatnonzero(placement == process).astype(np.int32)
    lowered, table = _lowered_tables(program, simulated.classes.representative[hosted], known)
    sited = None if contention is None else simulated.routes
    site = assign_domains(sited, len(simulated.sizes), int(placement.max()) + 1)
    used = UsedCommunicators.of(
        simulated, hosted, lowered, table, np.flatnonzero(site == process), operations
    )
    parties = _Parties.of(
        simulated, placement, process, used.numbers, site[used.numbers], max_peers
    )
    core_input = _core_input(
        simulated,
        hosted,
        lowered,
        table,
        priced,
        used,
        parties,
        contention,
        known,
        tilings,
        single_process=operations is None,
    )
    return Distribution(
        program=program,
        simulated=simulated,
        placement=placement,
        process=process,
        hosted=hosted,
        communicators=used.numbers,
        first_communication=used.first_communication,
        role=parties.role,
        owner=parties.owner,
        others_index=parties.others_index,
        others=parties.others,
        receivers_index=np.concatenate([[0], np.cumsum(parties.remote)]).astype(np.int64),
        receivers=parties.receivers,
        core_input=core_input,
    )


def _core_input(
    simulated: SimulatedRanks,
    hosted: NDArray[np.int32],
    lowered: list[LoweredTable],
    table: NDArray[np.int32],
    priced: Priced,
    used: UsedCommunicators,
    parties: _Parties,
    contention: Contention | None,
    known: LoweredTables,
    tilings: Tilings | None,
    *,
    single_process: bool,
) -> CoreInput:
    """Ranks and communicators of this process → input of the tiled or contended core."""
    program = simulated.program
    ranks = simulated.classes.representative[hosted]
    n_communications = int(used.first_communication[-1])
    tiles = variation = sharing = flows = None
    if contention is None:
        if simulated.routes is not None:
            sharing = _sharing(lowered, table, priced, n_communications)
        variation = DurationFactors.of(program, ranks)
        kind = priced.which if sharing is None else sharing.kind
        uses = used.slot_uses(parties.role == Role.LOCAL)
        found = partial(find_tiles, table, kind, uses)
        tiles = (
            found()
            if tilings is None
            else tilings(fingerprint(table, kind, *vars(uses).values()), found)
        )
    else:
        assert simulated.routes is not None
        priced = varied(program, ranks, priced)
        flows = FlowInput.of(
            simulated.routes,
            contention,
            lowered,
            table,
            priced,
            used.bound,
            known.views,
            single_process=single_process,
            communications=initial_communications(
                np.repeat(used.members, used.operations),
                np.repeat(parties.remote, used.operations),
                np.repeat(parties.role == Role.OWNER, used.operations),
            ),
        )
    core_input = CoreInput(
        lowered=lowered,
        table=table,
        durations=priced.durations,
        duration=priced.which,
        numbers=hosted,
        count=simulated.classes.count[hosted],
        start=program.start[ranks],
        slot_index=used.slot_index,
        slot_first=used.by_slot(used.first_communication, np.int64),
        slot_role=used.by_slot(parties.role, np.uint8),
        slot_members=used.by_slot(used.members, np.int32),
        slot_remote=used.by_slot(parties.remote, np.int32),
        slot_hash=hash_sizes(simulated.sizes[used.bound]),
        n_communications=n_communications,
        n_messages=int(used.operations[np.diff(parties.others_index) > 0].sum()),
        tiles=tiles,
        variation=variation,
        sharing=sharing,
        flows=flows,
    )
    if sharing is not None:
        take_as_alone(core_input)
    return core_input


def _lowered_tables(
    program: Program, ranks: NDArray[np.int32], known: LoweredTables
) -> tuple[list[LoweredTable], NDArray[np.int32]]:
    """Ranks of this process → tables as instructions, each once, and which of them a rank has.

    Each of these tables has a rank here, whatever others the program has.
    """
    numbers, _, entry = numbered(program.table[ranks])
    lowered = []
    for number in numbers.tolist():
        table = program.tables[number]
        assert table is not None  # held where its ranks are
        lowered.append(lower(table, known.tables))
    return lowered, entry.astype(np.int32)


def _sharing(
    lowered: list[LoweredTable], table: NDArray[np.int32], priced: Priced, n_communications: int
) -> SharingInput:
    """Prices of the hosted ranks' rows → `SharingInput`, before times to look up are known."""
    kind_of = np.zeros(len(priced.durations), np.int32)
    durations: list[NDArray[np.int64]] = []
    looked_up: list[NDArray[np.uint8]] = []
    slots: list[frozenset[int]] = []
    by_table = np.argsort(table, kind="stable")
    begins = np.searchsorted(table[by_table], np.arange(len(lowered) + 1))
    # Tables that differ in durations of kernels alone share what follows from prices.
    known: dict[tuple[Table, bytes], tuple[NDArray[np.uint8], frozenset[int]]] = {}
    for number, one in enumerate(lowered):  # each has a rank here, so an entry
        entries = distinct(priced.which[by_table[begins[number] : begins[number + 1]]]).tolist()
        rows, base, prices = priced.requested(entries[0])
        eager = (one.table.flags[rows] & _EAGER) != 0
        groups = [entries]
        varies, flows = np.zeros(len(rows), bool), prices >= 0
        for entry in entries[1:]:
            _, durations_of, prices_of = priced.requested(entry)
            varies |= durations_of != base
            flows |= prices_of >= 0
        if (varies & eager).any():  # each rank's own ready time counts: nothing to look up
            groups, varies = [[entry] for entry in entries], np.zeros(len(rows), bool)
        found = rows[(varies | flows) & ~eager]
        for some in groups:
            kind_of[some] = len(durations)
            of_kind = priced.durations[some[0]].copy()
            of_kind[found] = 0
            durations.append(of_kind)
            # Eager flows, too: who else takes part sees when they start.
            taking_part = rows[varies | flows]
            key = one.table.structure, taking_part.tobytes()
            if key not in known:
                flags = np.zeros(len(of_kind), np.uint8)
                flags[found] = 1
                known[key] = flags, frozenset(distinct(one.table.slot[taking_part]).tolist())
            looked_up.append(known[key][0])
            slots.append(known[key][1])
    return SharingInput(
        prices=priced.prices,
        kind=kind_of[priced.which],
        durations=durations,
        looked_up=looked_up,
        slots=slots,
        taken=np.zeros(n_communications + 1, np.int64),
    )


@frozen(eq=False)
class _Parties:
    """The processes that take part in the communications of each of `l` communicators.

    Attributes
    ----------
    others_index, others : int64, shape (l + 1,), int32
        As of `Distribution`.
    owner : int32, shape (l,)
        Where flows run here or elsewhere: the process that runs them.
    role : uint8, shape (l,)
        The `Role` of this process: peers tell each other, members their owner, and the owner tells
        all members the end.
    remote : int64, shape (l,)
        Number of processes that this one tells, and waits for.
    receivers : int32, shape (sum of remote,)
        These processes, communicator by communicator.
    """

    others_index: Ints
    others: NDArray[np.int32]
    owner: NDArray[np.int32]
    role: NDArray[np.uint8]
    remote: Ints
    receivers: NDArray[np.int32]

    @classmethod
    def of(
        cls,
        simulated: SimulatedRanks,
        placement: NDArray[np.int32],
        process: int,
        communicators: Ints,
        site: NDArray[np.int32],
        max_peers: int,
    ) -> _Parties:
        """Find them. Where a communicator has a site (not -1), it is one of them, and the owner."""
        at, member_of = ranges(simulated.member_index, communicators)
        members = simulated.members[at]
        n_processes = int(placement.max()) + 1
        sited = np.flatnonzero(site >= 0)
        pairs = distinct(
            np.concatenate(
                [member_of * n_processes + placement[members], sited * n_processes + site[sited]]
            )
        )
        which, processes = pairs // n_processes, (pairs % n_processes).astype(np.int32)
        count = np.bincount(which, minlength=len(communicators))
        first = np.cumsum(count) - count
        # Spread ownership: neighbouring communicators over the same processes get other owners.
        spread = (communicators * 0x9E3779B1) >> 15
        owner = processes[first + spread % np.maximum(count, 1)]
        owner = np.where(site >= 0, site, owner).astype(np.int32)
        is_other = processes != process
        others = processes[is_other]
        n_others = np.bincount(which[is_other], minlength=len(count))
        others_index = np.concatenate([[0], np.cumsum(n_others)]).astype(np.int64)

        role = np.select(
            [n_others == 0, (n_others < max_peers) & (site < 0), owner == process],
            [Role.LOCAL, Role.PEER, Role.OWNER],
            Role.MEMBER,
        ).astype(np.uint8)
        remote = np.where(role == Role.MEMBER, 1, n_others)
        of_member = np.repeat(role == Role.MEMBER, n_others)
        receivers = np.where(of_member, np.repeat(owner, n_others), others)
        notified = ~of_member
        notified[others_index[:-1][role == Role.MEMBER]] = True  # one entry, for the owner
        return cls(others_index, others, owner, role, remote, receivers[notified].astype(np.int32))
