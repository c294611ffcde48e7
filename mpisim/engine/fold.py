"""Folding: ranks with identical timelines → one representative, which alone is simulated.

*Ranks* are equivalent when they have the same table, speed and start, and bind, slot by slot,
equivalent communicators. *Communicators* are equivalent when they have the same size and cost, and
the same set of (class of a member, slot by which it binds the communicator). *Links*, where
communications share them, are equivalent when they have the same capacity and the same multiset of
(class of a communicator, communication pattern, weight); equivalent communicators then also load
equivalent links equally. `refine` finds the coarsest such classes.

Why a folded run gives the timeline of every rank, to the last bit:

- By induction over the events of a run, equivalent ranks are ready and end at the same times: a
  communication starts when the last member is ready, and equivalent communicators have members of
  the same classes that bind them by the same slots. Nothing else needs to be symmetric, neither
  rank numbers nor the order in a ring. So a simulated communicator has one member for each (class,
  slot); a class may be there twice, by two slots.
- Rates of flows are max-min fair, which is unique: equivalent links saturate at the same times, and
  equivalent flows have equal rates. So one link of each class is simulated, and the one flow of a
  class of communicators weighs on it what all communicators of the class on that link do together.
- Operations on a communicator are counted for each (rank, slot), not for the communicator: in a
  ring, the sending and the receiving slot of one class may bind one class of pairs.

With jitter each rank is a class of its own: no two have equal durations.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.array_keys import fingerprint
from ..base.distinct import dense, distinct, numbered
from ..base.frozen import frozen
from ..program import UNPRICED, Program
from ..topo import Network
from .refine import NO_LOADS, Incidences, LinkLoads, multisets, partition, ranges, refine
from .routes import Routes
from .setup_cache import SetupCache

__all__ = ["EquivalenceClasses", "SimulatedRanks", "SplitReason", "every_rank", "fold_ranks"]


class SplitReason(IntEnum):
    """Reason why a class of ranks differs from the largest class with the same table."""

    NONE = 0
    """It is the largest."""
    SPEED = 1
    START = 2
    COMMUNICATORS = 3
    """Size or cost of a communicator: placement, for the most part."""
    PARTNERS = 4
    """Differs only because a communication partner is in another class."""


@frozen(eq=False)
class EquivalenceClasses:
    """Ranks with identical timelines, one of which is simulated for all.

    In a run that is not folded every rank is a class of its own.

    Attributes
    ----------
    of_rank : int32, shape (n_ranks,)
        The class of each rank.
    representative : int32, shape (n,)
        The rank that was simulated, the lowest of each class; ascending.
    count : int64, shape (n,)
        Number of ranks.
    split_reason : uint8, shape (n,)
        A `SplitReason`.
    """

    of_rank: NDArray[np.int32]
    representative: NDArray[np.int32]
    count: NDArray[np.int64]
    split_reason: NDArray[np.uint8]

    @classmethod
    def singletons(cls, n_ranks: int) -> EquivalenceClasses:
        """Return the classes of a run that is not folded: one of each rank."""
        ranks = np.arange(n_ranks, dtype=np.int32)
        return cls(ranks, ranks, np.ones(n_ranks, np.int64), np.zeros(n_ranks, np.uint8))

    def __len__(self) -> int:
        return len(self.representative)


@frozen(eq=False)
class SimulatedRanks:
    """The ranks that a run simulates, and the communicators that they bind.

    In a folded run these are the representatives of classes, and *simulated communicators* (called
    groups) are classes of communicators; otherwise both are those of the program.

    Attributes
    ----------
    program : Program
    classes : EquivalenceClasses
        Simulated rank i is the representative of class i.
    folded : bool
    slot_index : int64, shape (n + 1,)
    slots : int64
        Simulated rank i binds slot s to group ``slots[slot_index[i] + s]``.
    member_index, members : int64, int32
        Group g has the simulated ranks ``members[member_index[g]:member_index[g + 1]]``.
    sizes : int64, shape (n_groups,)
        Number of ranks of the program in each group.
    own_signature : int64, shape (n,)
        Equal for simulated ranks whose communicators have the same sizes, costs and link loads,
        slot by slot, whatever the classes of their other members.
    routes : Routes or None
        Links that groups load and share; None where no links are shared.
    """

    program: Program
    classes: EquivalenceClasses
    folded: bool
    slot_index: NDArray[np.int64]
    slots: NDArray[np.int64]
    member_index: NDArray[np.int64]
    members: NDArray[np.int32]
    sizes: NDArray[np.int64]
    own_signature: NDArray[np.int64]
    routes: Routes | None = None

    @property
    def n(self) -> int:
        """Number of simulated ranks."""
        return len(self.slot_index) - 1

    def with_program(self, program: Program) -> SimulatedRanks:
        """Return the same ranks of another program, which has the same classes."""
        if not self.folded:
            return replace(self, program=program)
        reason = _split_reasons(program, self.classes, self.own_signature)
        return replace(self, program=program, classes=replace(self.classes, split_reason=reason))


def every_rank(program: Program, routes: Routes | None = None) -> SimulatedRanks:
    """Simulate every rank of a program, with the routes of its communicators.

    Parameters
    ----------
    program : Program
    routes : Routes, optional
        By default no communicator has any, and none shares links.
    """
    groups = program.communicators
    return SimulatedRanks(
        program=program,
        classes=EquivalenceClasses.singletons(program.n_ranks),
        folded=False,
        slot_index=program.slot_index,
        slots=program.slots.astype(np.int64),
        member_index=groups.index,
        members=groups.members,
        sizes=groups.sizes,
        own_signature=np.zeros(program.n_ranks, np.int64),
        routes=routes,
    )


def fold_ranks(
    program: Program,
    network: Network | None,
    max_classes: int | None = None,
    routes: Routes | None = None,
    known: SetupCache | None = None,
) -> SimulatedRanks | None:
    """Simulate one rank of each equivalence class. Local.

    Parameters
    ----------
    program : Program
        Whole, with communications that match.
    network : Network, optional
        Tells which communicators have the same cost.
    max_classes : int, optional
        Do not fold into more classes than this.
    routes : Routes, optional
        Of the program's communicators, where they share links.
    known : SetupCache, optional
        Of earlier programs; classes are added to it.

    Returns
    -------
    SimulatedRanks or None
        None where there would be more classes.
    """
    rank = program.table.astype(np.int64)
    columns: list[NDArray[Any]] = [program.speed, program.start]
    if program.jitter is not None:
        columns.append(np.arange(program.n_ranks))
    for column in columns:
        if (column == column[:1]).all():
            continue
        number = np.unique(column, return_inverse=True)[1].reshape(-1)
        rank = dense(rank * (number.max() + 1) + number)[0]
    rank, n_labels = dense(rank)
    if max_classes is not None and n_labels > max_classes:
        return None
    used, unpriced = _slots_in_use(program)
    group = _initial_group_labels(program, network, unpriced)

    def folding() -> _Folding | None:
        return _folding(program, rank, group, used, max_classes, routes)

    if known is None:
        found = folding()
    else:
        # All that `_folding` reads of the program; and routes, by what keeps them alive.
        bound = program.slot_index, program.slots, program.communicators.sizes
        key = fingerprint(rank, group, used, *bound), id(routes), max_classes
        found = known.get("classes", network, key, folding)
    if found is None:
        return None
    n = len(found.representative)
    classes = EquivalenceClasses(
        found.of_rank, found.representative, found.count, np.zeros(n, np.uint8)
    )
    simulated = SimulatedRanks(
        program=program,
        classes=classes,
        folded=True,
        slot_index=found.slot_index,
        slots=found.slots,
        member_index=found.member_index,
        members=found.members,
        sizes=found.sizes,
        own_signature=found.own_signature,
        routes=found.folded_routes,
    )
    return simulated.with_program(program)


@frozen(eq=False)
class _Folding:
    """Classes of the ranks of a program, and the groups that they bind.

    Attributes
    ----------
    of_rank, representative, count
        As of `EquivalenceClasses`.
    slot_index, slots, member_index, members, sizes, own_signature
        As of `SimulatedRanks`.
    routes, folded_routes : Routes or None
        Before folding, and of `SimulatedRanks`.
    """

    of_rank: NDArray[np.int32]
    representative: NDArray[np.int32]
    count: NDArray[np.int64]
    slot_index: NDArray[np.int64]
    slots: NDArray[np.int64]
    member_index: NDArray[np.int64]
    members: NDArray[np.int32]
    sizes: NDArray[np.int64]
    own_signature: NDArray[np.int64]
    routes: Routes | None
    folded_routes: Routes | None


def _folding(
    program: Program,
    rank: NDArray[np.int64],
    group: NDArray[np.int64],
    used: NDArray[np.bool_],
    max_classes: int | None,
    routes: Routes | None,
) -> _Folding | None:
    """Initial labels of ranks and groups → classes; None where there would be too many.

    Of the program only who binds which communicator is read, and the sizes of these.
    """
    owner = np.repeat(np.arange(program.n_ranks), np.diff(program.slot_index))
    at = np.flatnonzero(used)
    incidences = Incidences(
        index=np.concatenate([[0], np.cumsum(used)])[program.slot_index],
        slot=at - program.slot_index[owner[at]],
        group=program.slots[at].astype(np.int64),
        n_groups=len(program.communicators),
    )
    loads = NO_LOADS if routes is None else _link_loads(routes)
    labels = refine(rank, group, incidences, max_classes, loads)
    if labels is None:
        return None
    # Classes in the order of their lowest ranks, which represent them.
    _, first, which = numbered(labels.rank)
    count = np.bincount(which)
    order = np.argsort(first)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    representative: NDArray[np.int32] = first[order].astype(np.int32)
    # All communicators of a label have the same members, by class and slot: those of all
    # representatives that bind some communicator of the label.
    bound, binder = ranges(program.slot_index, representative.astype(np.int64))
    active, member = ranges(incidences.index, representative.astype(np.int64))
    label = labels.group[incidences.group[active]]
    n_labels = int(labels.group.max(initial=-1)) + 1
    sizes = np.zeros(n_labels, np.int64)
    sizes[labels.group] = program.communicators.sizes
    return _Folding(
        of_rank=number[labels.rank].astype(np.int32),
        representative=representative,
        count=count[order],
        slot_index=np.searchsorted(binder, np.arange(len(order) + 1)).astype(np.int64),
        slots=labels.group[program.slots[bound]],
        member_index=np.concatenate([[0], np.cumsum(np.bincount(label, minlength=n_labels))]),
        members=member[np.argsort(label, kind="stable")].astype(np.int32),
        sizes=sizes,
        own_signature=_own_signatures(group, incidences, loads, representative),
        routes=routes,
        folded_routes=None if routes is None else _folded_routes(routes, labels.group, labels.link),
    )


# --- initial labels and loads ------------------------------------------------------------------


def _slots_in_use(program: Program) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Entries of `Program.slots` by which ranks communicate, and those with unpriced operations."""
    longest = int(np.diff(program.slot_index).max(initial=0))
    used, unpriced = np.zeros((2, len(program.tables), longest), bool)
    for number in distinct(program.table).tolist():
        table = program.tables[number]
        assert table is not None  # a program that is folded is whole
        used[number, : table.n_slots] = table.operations > 0
        rows = table.communications
        unpriced[number, table.slot[rows[table.duration[rows] == UNPRICED]]] = True
    owner = np.repeat(np.arange(program.n_ranks), np.diff(program.slot_index))
    slot = np.arange(len(owner)) - program.slot_index[owner]
    number = program.table[owner]
    return used[number, slot], unpriced[number, slot]


def _initial_group_labels(
    program: Program, network: Network | None, unpriced: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Label communicators by size and, where the network prices operations on them, by cost."""
    groups = program.communicators
    label = groups.sizes
    if network is not None:
        kind, classes = network.group_classes(groups.index, groups.members, program.operation_bits)
        priced = np.zeros(len(groups), bool)
        priced[program.slots[unpriced]] = True
        label = label * (len(classes) + 1) + np.where(priced, kind + 1, 0)
    return dense(label)[0]


def _link_loads(routes: Routes) -> LinkLoads:
    """Routes → loads; the initial label of a link is its capacity."""
    route = np.repeat(np.arange(len(routes)), np.diff(routes.index))
    weight, n_weights = dense(routes.weight)
    return LinkLoads(
        group=routes.group[route],
        link=routes.link,
        kind=dense(routes.pattern[route] * n_weights + weight)[0],
        label=numbered(routes.capacity)[2],
    )


def _folded_routes(
    routes: Routes, group_label: NDArray[np.int64], link_label: NDArray[np.int64]
) -> Routes:
    """Routes of communicators → those of classes, with summed weights on one link of a class."""
    _, first, _ = numbered(link_label)
    route = np.repeat(np.arange(len(routes)), np.diff(routes.index))
    at = np.flatnonzero(first[link_label[routes.link]] == routes.link)
    group, pattern = group_label[routes.group[route[at]]], routes.pattern[route[at]]
    order = np.lexsort((link_label[routes.link[at]], pattern, group))
    keys = np.stack([group, pattern, link_label[routes.link[at]]])[:, order]
    differ = np.diff(keys, prepend=-1) != 0
    load = np.flatnonzero(differ.any(axis=0))
    begin = np.flatnonzero(differ[:2].any(axis=0))
    group, pattern, link = keys
    return Routes(
        group=group[begin],
        pattern=pattern[begin],
        index=np.append(np.searchsorted(load, begin), len(load)),
        link=link[load],
        weight=np.add.reduceat(routes.weight[at][order], load),
        capacity=routes.capacity[first],
        patterns=routes.patterns,
        names=routes.names,
        simulated_link=link_label[routes.simulated_link],
    )


# --- why classes differ ------------------------------------------------------------------------


def _split_reasons(
    program: Program, classes: EquivalenceClasses, own_signature: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Return the `SplitReason` of each class, compared with the largest of the same table."""
    representative = classes.representative
    table = program.table[representative]
    order = np.lexsort((representative, -classes.count, table))
    tables, first, _ = numbered(table[order])
    largest = order[first[np.searchsorted(tables, table)]]

    def differs(values: NDArray[Any]) -> NDArray[np.bool_]:
        return values != values[largest]

    return np.select(
        [
            largest == np.arange(len(largest)),
            differs(program.speed[representative]),
            differs(program.start[representative]),
            differs(own_signature),
        ],
        [SplitReason.NONE, SplitReason.SPEED, SplitReason.START, SplitReason.COMMUNICATORS],
        SplitReason.PARTNERS,
    ).astype(np.uint8)


def _own_signatures(
    group: NDArray[np.int64],
    incidences: Incidences,
    loads: LinkLoads,
    representative: NDArray[np.int32],
) -> NDArray[np.int64]:
    """Number representatives by the initial labels and the link loads of their communicators."""
    at, owner = ranges(incidences.index, representative.astype(np.int64))
    index = np.searchsorted(owner, np.arange(len(representative) + 1))
    label = group[incidences.group[at]]
    if len(loads.group):
        label = _labels_with_loads(label, incidences.group[at], loads)
    return partition(np.zeros(len(representative), np.int64), label, index)[0]


def _labels_with_loads(
    label: NDArray[np.int64], group: NDArray[np.int64], loads: LinkLoads
) -> NDArray[np.int64]:
    """Split labels of some groups by how heavily they load links of which capacities."""
    wanted = np.zeros(int(loads.group.max()) + 1 + int(group.max(initial=0)), bool)
    wanted[group] = True
    at = np.flatnonzero(wanted[loads.group])
    n_kinds = int(loads.kind.max()) + 1
    entries = loads.label[loads.link[at]] * n_kinds + loads.kind[at]
    owners, values, index = multisets(loads.group[at], entries)
    part, n_parts = partition(np.zeros(len(owners), np.int64), values, index)
    number = np.zeros(len(wanted), np.int64)
    number[owners] = 1 + part
    return label * (n_parts + 1) + number[group]
