"""Which communications of a program can share links, and by which routes.

Most links of a network can never be full: the communications that use them, all at once and at
their highest rates, do not load them that heavily. What uses only such links takes as long as it
does alone. The rest falls into *domains*: communicators, and links that can be full, that are
joined by each other.

On one communicator at most one operation is under way where some member enters each of them from
one and the same stream, as NCCL wants it: that member's next kernel begins when the last has
ended, and the group starts when all are ready. Where no member does (several streams, one kernel of
several operations, members that go ahead) the links of the communicator always count as such that
can be full; this costs time but changes nothing, for a link that is not full holds nobody back.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..mpi.parallel import agreed
from ..program import Operation, Program, Table
from ..topo import Network, Price, SharedNetwork
from ._core import joined, overlapping_slots, requested_prices
from .refine import dense, ranges
from .routes import Routes
from .saturation import Loaded, can_be_full

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Contention", "domains", "find", "sites"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Contention:
    """What can share links in a program; equal on all processes.

    Attributes
    ----------
    routes : Routes
        Of the program's communicators.
    prices : tuple of Price
        All that communications with routes may cost.
    backwards : bool
        Some gap or launch latency of the program is negative.
    """

    routes: Routes
    prices: tuple[Price, ...]
    backwards: bool

    @cached_property
    def n_groups(self) -> int:
        """Number of communicators that have a route."""
        return int(np.count_nonzero(np.diff(self.routes.group))) + 1  # they are sorted

    @cached_property
    def n_domains(self) -> int:
        """Number of sets of communicators and links that are joined by each other."""
        return int(domains(self.routes).max()) + 1


class _Use(NamedTuple):
    """Which patterns the communications of some ranks have: one entry for each communicator, slot
    of a rank, and pattern."""

    communicator: Ints
    pattern: Ints  # of `patterns`
    rate: Ints  # the highest
    several: NDArray[np.bool_]  # more than one of them may be under way, as far as this rank goes
    patterns: tuple[Hashable, ...]
    prices: tuple[Price, ...]
    backwards: bool


def find(
    program: Program, network: Network | None, comm: Intracomm, partial: bool = False
) -> Contention | None:
    """Find the routes of all communications that can share a link which can be full.

    **Collective** on `comm`.

    Parameters
    ----------
    program : Program
    network : Network, optional
    comm : mpi4py.MPI.Intracomm
    partial : bool
        Some process does not hold all tables; together they do.

    Returns
    -------
    Contention or None
        None if there are no such communications.

    Raises
    ------
    InputError
        On all processes, if the network knows no price of some communication.
    """
    if not isinstance(network, SharedNetwork):
        return None
    with agreed(comm):
        use = _use(program, network)
    if partial:
        use = _joined(comm.allgather(use))
    if not use.patterns:
        return None
    routes = _routes(program, network, use)
    if not len(routes):
        return None
    flowing = set(routes.patterns)
    prices = tuple(price for price in use.prices if price.pattern in flowing)
    return Contention(routes, prices, use.backwards)


# --- use ----------------------------------------------------------------------------------------


def _use(program: Program, network: SharedNetwork) -> _Use:
    """Find out what the ranks whose tables are held here do. Local."""
    groups = program.communicators
    label, classes = network.group_classes(groups.index, groups.members, program.operation_bits)
    owner = np.repeat(np.arange(program.n_ranks), np.diff(program.slot_index))
    slot = np.arange(len(owner)) - program.slot_index[owner]
    # All slots of one table, number and class of communicators see the same prices.
    keys = (label[program.slots], program.table[owner].astype(np.int64), slot)
    span = [int(key.max(initial=0)) + 1 for key in keys]
    key = (keys[0] * span[1] + keys[1]) * span[2] + keys[2]
    kinds, kind = _numbered(key)

    number: dict[Hashable, int] = {}
    prices: dict[Price, None] = {}
    rows: dict[int, _Rows] = {}
    found: list[dict[int, int]] = []
    several = np.zeros(len(kinds), bool)
    for i, one in enumerate(kinds.tolist()):
        one, at = divmod(one, span[2])
        which, table_number = divmod(one, span[1])
        highest: dict[int, int] = {}
        found.append(highest)
        table = program.tables[table_number]
        if table is None:
            continue
        if table_number not in rows:
            rows[table_number] = _Rows(table)
        several[i] = rows[table_number].several(at)
        for operation, size, longer in rows[table_number].unpriced(at):
            price = network.price(Operation(operation), max(size, 0), classes[which])
            price = price.longer(longer)
            if price.volume and price.pattern is not None:
                prices[price] = None
                pattern = number.setdefault(price.pattern, len(number))
                highest[pattern] = max(highest.get(pattern, 0), price.rate)

    index = np.concatenate([[0], np.cumsum([len(highest) for highest in found])]).astype(np.int64)
    pairs = np.array([pair for one in found for pair in one.items()], np.int64).reshape(-1, 2)
    at, entry = ranges(index, kind)
    tables = [table for table in program.tables if table is not None]
    return _Use(
        communicator=program.slots[entry].astype(np.int64),
        pattern=pairs[at, 0],
        rate=pairs[at, 1],
        several=several[kind[entry]],
        patterns=tuple(number),
        prices=tuple(prices),
        backwards=any(bool((t.gap < 0).any() or (t.launch < 0).any()) for t in tables),
    )


class _Rows:
    """The communications of a table, by slot."""

    def __init__(self, table: Table) -> None:
        _, _, first = requested_prices(table)
        longer = np.zeros(len(table), np.int64) if table.longer is None else table.longer
        columns = (table.slot, table.operation, table.bytes, longer)
        self._unpriced: dict[int, list[tuple[int, int, int]]] = {}
        for slot, operation, size, by in zip(*(column[first].tolist() for column in columns)):
            self._unpriced.setdefault(slot, []).append((operation, size, by))
        self._several = overlapping_slots(table).tolist()

    def unpriced(self, slot: int) -> list[tuple[int, int, int]]:
        """Return (operation, bytes, ps beside the price) of all that is to be priced on a slot."""
        return self._unpriced.get(slot, [])

    def several(self, slot: int) -> bool:
        """Say whether more than one operation on a slot may be under way."""
        return slot < len(self._several) and self._several[slot]


def _joined(parts: list[_Use]) -> _Use:
    """Join what processes have found."""
    number: dict[Hashable, int] = {}
    for part in parts:
        for pattern in part.patterns:
            number.setdefault(pattern, len(number))
    of_part = [np.array([number[p] for p in part.patterns], np.int64) for part in parts]
    return _Use(
        communicator=np.concatenate([part.communicator for part in parts]),
        pattern=np.concatenate([new[part.pattern] for new, part in zip(of_part, parts)]),
        rate=np.concatenate([part.rate for part in parts]),
        several=np.concatenate([part.several for part in parts]),
        patterns=tuple(number),
        prices=tuple(dict.fromkeys(price for part in parts for price in part.prices)),
        backwards=any(part.backwards for part in parts),
    )


# --- routes -------------------------------------------------------------------------------------


def _routes(program: Program, network: SharedNetwork, use: _Use) -> Routes:
    """Find the routes, without links that cannot be full and without routes that have no others."""
    groups = program.communicators
    one_by_one = np.zeros(len(groups), bool)
    one_by_one[use.communicator[~use.several]] = True
    loaded: list[Loaded] = []
    for p, one in enumerate(use.patterns):
        of_pattern = use.pattern == p
        rate = np.zeros(len(groups), np.int64)
        np.maximum.at(rate, use.communicator[of_pattern], use.rate[of_pattern])
        group = np.flatnonzero(rate)
        at, _ = ranges(groups.index, group)
        index = np.concatenate([[0], np.cumsum(groups.sizes[group])])
        first, links, weights = network.loads(index, groups.members[at], one)
        route = np.repeat(np.arange(len(group)), np.diff(first))
        loaded.append(Loaded(group, rate[group], route, links, weights))

    full = can_be_full(network.capacity, loaded, one_by_one)
    loaded = [each.only(full) for each in loaded]
    names = np.flatnonzero(full)
    number = np.cumsum(full) - 1
    # Routes and what they load lie pattern by pattern; they are to lie group by group.
    count = np.concatenate([np.bincount(x.route, minlength=len(x.group)) for x in loaded])
    group = np.concatenate([each.group for each in loaded])
    pattern = np.repeat(np.arange(len(loaded)), [len(each.group) for each in loaded])
    order = np.argsort(group * len(loaded) + pattern, kind="stable")
    order = order[count[order] > 0]
    begin = np.concatenate([[0], np.cumsum(count)])
    at, _ = ranges(begin, order)
    kept, pattern = _numbered(pattern[order])
    return Routes(
        group=group[order],
        pattern=pattern,
        index=np.concatenate([[0], np.cumsum(count[order])]),
        link=number[np.concatenate([each.link for each in loaded])[at]],
        weight=np.concatenate([each.weight for each in loaded])[at],
        capacity=network.capacity[names].astype(np.int64),
        patterns=tuple(use.patterns[p] for p in kept.tolist()),
        names=names,
        stand_in=np.arange(len(names)),
    )


def _numbered(keys: Ints) -> tuple[Ints, Ints]:
    """Return the distinct keys, ascending, and the place of each key among them."""
    number, n = dense(keys)
    distinct = np.empty(n, np.int64)
    distinct[number] = keys
    return distinct, number


def domains(routes: Routes) -> Ints:
    """Number the domains of routes: those joined by links and groups have one number.

    Returns
    -------
    int64, shape (r,)
        The domain of each route, 0 and up, in the order of their lowest groups.
    """
    of_route = np.cumsum(np.diff(routes.group, prepend=-1) > 0) - 1  # they are sorted by group
    group = np.repeat(of_route, np.diff(routes.index))
    number: Ints = joined(group, routes.link, int(of_route[-1]) + 1, len(routes.capacity))
    return number[of_route]


def sites(routes: Routes | None, n_groups: int, n_processes: int) -> NDArray[np.int32]:
    """Deal domains out to processes: which one runs the flows of each group, -1 if it has none.

    Returns
    -------
    int32, shape (n_groups,)
    """
    site = np.full(n_groups, -1, np.int32)
    if routes is not None:
        domain = domains(routes)
        site[routes.group] = domain * n_processes // (domain.max() + 1)
    return site
