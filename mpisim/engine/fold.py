"""Folding: ranks that provably do the same at the same times are simulated once.

Two ranks are alike when they have the same table, speed and start, and meet, slot by slot, groups
that are alike; two groups when they have the same size and cost and their members are alike and
bind them by the same slots. A group starts when the last of its members is ready. By induction over
the events of a run, ranks that are alike are then ready, and end, at the same times: one of each
class is enough, and so is one member of a group for each (class, slot). Nothing else needs to be
symmetric: neither rank numbers nor the order in a ring matters.

Where communications share links, groups that are alike also load, pattern by pattern, as many links
that are alike as heavily, and links that are alike carry the same, are loaded by as many groups of
each class as heavily, and so fill at the same times. One link of each class is enough, if the one
flow that stands for a class of groups weighs on it what all groups of the class on that link do.

Operations of a communicator are counted for each rank and slot, not for the group: in a ring the
sending and the receiving slot of one class may meet in one class of pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..program import UNPRICED, Program
from ..topo import Network
from .refine import NO_LOADS, Incidences, Loads, dense, multisets, partition, ranges, refine
from .routes import Routes
from .run import Apart, Classes

__all__ = ["Cast", "quotient", "whole"]


@dataclass(frozen=True, eq=False)
class Cast:
    """The ranks that are simulated, and the groups they meet in: a program, or its quotient.

    `n` simulated ranks stand for all. In a quotient a group may have one simulated rank twice, by
    two slots.

    Attributes
    ----------
    program : Program
    classes : Classes
        Class i is simulated by its representative, as simulated rank i.
    folded : bool
    slot_index : int64, shape (n + 1,)
    slots : int64
        Simulated rank i binds slot s to group ``slots[slot_index[i] + s]``.
    member_index, members : int64, int32
        Group g has the simulated ranks ``members[member_index[g]:member_index[g + 1]]``.
    sizes : int64, shape (n_groups,)
        How many ranks of the program are in each group.
    own : int64, shape (n,)
        Equal for simulated ranks whose groups have the same sizes and costs, slot by slot.
    routes : Routes or None
        What the groups load of links that they share; None where nothing is shared.
    """

    program: Program
    classes: Classes
    folded: bool
    slot_index: NDArray[np.int64]
    slots: NDArray[np.int64]
    member_index: NDArray[np.int64]
    members: NDArray[np.int32]
    sizes: NDArray[np.int64]
    own: NDArray[np.int64]
    routes: Routes | None = None

    @property
    def n(self) -> int:
        """Number of simulated ranks."""
        return len(self.slot_index) - 1

    def of(self, program: Program) -> Cast:
        """Return the cast of a program with the same classes."""
        if not self.folded:
            return replace(self, program=program)
        classes = replace(self.classes, apart=_apart(program, self.classes, self.own))
        return replace(self, program=program, classes=classes)


def whole(program: Program, routes: Routes | None = None) -> Cast:
    """Simulate every rank, with the routes of the program's communicators."""
    groups = program.communicators
    return Cast(
        program=program,
        classes=Classes.of_one(program.n_ranks),
        folded=False,
        slot_index=program.slot_index,
        slots=program.slots.astype(np.int64),
        member_index=groups.index,
        members=groups.members,
        sizes=groups.sizes,
        own=np.zeros(program.n_ranks, np.int64),
        routes=routes,
    )


def quotient(
    program: Program,
    network: Network | None,
    most: int | None = None,
    routes: Routes | None = None,
) -> Cast | None:
    """Find the classes of ranks that are alike, and simulate one of each. Local.

    Parameters
    ----------
    program : Program
        Whole, and its communications match.
    network : Network, optional
        Says which groups cost the same.
    most : int, optional
        Do not fold into more classes than this.
    routes : Routes, optional
        Of the program's communicators, where they share links.

    Returns
    -------
    Cast or None
        None where there would be more classes.
    """
    alike = program.table.astype(np.int64)
    differing: list[NDArray[Any]] = [program.speed, program.start]
    if program.jitter is not None:
        differing.append(np.arange(program.n_ranks))  # no two of them take the same times
    for column in differing:
        number = np.unique(column, return_inverse=True)[1].reshape(-1)
        alike, n_alike = dense(alike * (number.max() + 1) + number)
    if most is not None and n_alike > most:
        return None
    used, unpriced = _slots_in_use(program)
    group = _groups_alike(program, network, unpriced)
    owner = np.repeat(np.arange(program.n_ranks), np.diff(program.slot_index))
    at = np.flatnonzero(used)
    met = Incidences(
        index=np.concatenate([[0], np.cumsum(used)])[program.slot_index],
        slot=at - program.slot_index[owner[at]],
        group=program.slots[at].astype(np.int64),
        n_groups=len(program.communicators),
    )
    loads = NO_LOADS if routes is None else _loads(routes)
    found = refine(alike, group, met, most, loads)
    if found is None:
        return None
    ranks, groups, links = found
    _, first, count = np.unique(ranks, return_index=True, return_counts=True)
    order = np.argsort(first)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    representative: NDArray[np.int32] = first[order].astype(np.int32)
    own = _own(group, met, loads, representative)
    classes = Classes(
        of_rank=number[ranks].astype(np.int32),
        representative=representative,
        count=count[order],
        apart=np.zeros(len(order), np.uint8),
    )
    classes = replace(classes, apart=_apart(program, classes, own))
    folded = None if routes is None else _folded(routes, groups, links)
    return _cast_of(program, classes, groups, met, own, folded)


def _cast_of(
    program: Program,
    classes: Classes,
    groups: NDArray[np.int64],
    met: Incidences,
    own: NDArray[np.int64],
    routes: Routes | None,
) -> Cast:
    """Make the cast of one rank a class, given the labels of all groups."""
    at, owner = ranges(program.slot_index, classes.representative.astype(np.int64))
    slot_index = np.searchsorted(owner, np.arange(len(classes.representative) + 1))
    n_labels = int(groups.max(initial=-1)) + 1
    # Every group of a label has the same members, by class and slot: those of all
    # representatives that bind some group of it.
    active, member = ranges(met.index, classes.representative.astype(np.int64))
    label = groups[met.group[active]]
    sizes = np.zeros(n_labels, np.int64)
    sizes[groups] = program.communicators.sizes
    return Cast(
        program=program,
        classes=classes,
        folded=True,
        slot_index=slot_index.astype(np.int64),
        slots=groups[program.slots[at]],
        member_index=np.concatenate([[0], np.cumsum(np.bincount(label, minlength=n_labels))]),
        members=member[np.argsort(label, kind="stable")].astype(np.int32),
        sizes=sizes,
        own=own,
        routes=routes,
    )


def _loads(routes: Routes) -> Loads:
    """Return the loads of all routes; links begin with their capacity."""
    route = np.repeat(np.arange(len(routes)), np.diff(routes.index))
    weight, n_weights = dense(routes.weight)
    return Loads(
        group=routes.group[route],
        link=routes.link,
        way=dense(routes.pattern[route] * n_weights + weight)[0],
        label=np.unique(routes.capacity, return_inverse=True)[1].reshape(-1),
    )


def _folded(routes: Routes, groups: NDArray[np.int64], links: NDArray[np.int64]) -> Routes:
    """Return the routes of classes of groups, given the labels of all groups and links."""
    _, first = np.unique(links, return_index=True)
    route = np.repeat(np.arange(len(routes)), np.diff(routes.index))
    at = np.flatnonzero(first[links[routes.link]] == routes.link)  # loads on one link of a class
    group, pattern = groups[routes.group[route[at]]], routes.pattern[route[at]]
    order = np.lexsort((links[routes.link[at]], pattern, group))
    keys = np.stack([group, pattern, links[routes.link[at]]])[:, order]
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
        stand_in=links[routes.stand_in],
    )


def _slots_in_use(program: Program) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Say of each entry of `Program.slots` whether its rank communicates by it, and unpriced."""
    longest = int(np.diff(program.slot_index).max(initial=0))
    used, unpriced = np.zeros((2, len(program.tables), longest), bool)
    for number in np.unique(program.table).tolist():
        table = program.tables[number]
        assert table is not None  # a program that is folded is whole
        rows = np.flatnonzero(table.slot >= 0)
        used[number, table.slot[rows]] = True
        unpriced[number, table.slot[rows[table.duration[rows] == UNPRICED]]] = True
    owner = np.repeat(np.arange(program.n_ranks), np.diff(program.slot_index))
    slot = np.arange(len(owner)) - program.slot_index[owner]
    number = program.table[owner]
    return used[number, slot], unpriced[number, slot]


def _groups_alike(
    program: Program, network: Network | None, unpriced: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Number the groups by size and, where the model prices something on them, its class."""
    groups = program.communicators
    label = groups.sizes
    if network is not None:
        kind, classes = network.group_classes(groups.index, groups.members, program.operation_bits)
        priced = np.zeros(len(groups), bool)
        priced[program.slots[unpriced]] = True
        label = label * (len(classes) + 1) + np.where(priced, kind + 1, 0)
    return dense(label)[0]


def _own(
    group: NDArray[np.int64],
    met: Incidences,
    loads: Loads,
    representative: NDArray[np.int32],
) -> NDArray[np.int64]:
    """Number ranks by what their groups were like before anybody was told apart."""
    at, owner = ranges(met.index, representative.astype(np.int64))
    index = np.searchsorted(owner, np.arange(len(representative) + 1))
    own = group[met.group[at]]
    if len(loads.group):
        own = _with_loads(own, met.group[at], loads)
    return partition(np.zeros(len(representative), np.int64), own, index)[0]


def _apart(program: Program, classes: Classes, own: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Say what tells each class from the largest class of the same table; an `Apart` each."""
    representative = classes.representative
    table = program.table[representative]
    order = np.lexsort((representative, -classes.count, table))
    tables, first = np.unique(table[order], return_index=True)
    usual = order[first[np.searchsorted(tables, table)]]

    def differs(values: NDArray[Any]) -> NDArray[np.bool_]:
        return values != values[usual]

    return np.select(
        [
            usual == np.arange(len(usual)),
            differs(program.speed[representative]),
            differs(program.start[representative]),
            differs(own),
        ],
        [Apart.NOT, Apart.SPEED, Apart.START, Apart.GROUPS],
        Apart.NEIGHBOURS,
    ).astype(np.uint8)


def _with_loads(
    label: NDArray[np.int64], group: NDArray[np.int64], loads: Loads
) -> NDArray[np.int64]:
    """Tell labels of some groups apart by how heavily these load links of which capacities, too."""
    asked = np.zeros(int(loads.group.max()) + 1 + int(group.max(initial=0)), bool)
    asked[group] = True
    at = np.flatnonzero(asked[loads.group])
    n_ways = int(loads.way.max()) + 1
    entries = loads.label[loads.link[at]] * n_ways + loads.way[at]
    owners, values, index = multisets(loads.group[at], entries)
    part, n_parts = partition(np.zeros(len(owners), np.int64), values, index)
    number = np.zeros(len(asked), np.int64)
    number[owners] = 1 + part
    return label * (n_parts + 1) + number[group]
