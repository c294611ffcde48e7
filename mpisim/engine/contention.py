"""Program, network → communications that share links (contention), with their routes.

Most links of a network cannot saturate: the communications that use them, all at once and at their
highest rates, do not load them up to their capacity. A communication that uses only such links
takes as long as it does alone. The rest falls into contention *domains*: connected sets of
communicators and of links that can saturate.

On one communicator operations take turns where some member enters each of them from one and the
same stream, as NCCL requires: that member's next kernel begins when the last has ended, and a
communication starts when all members are ready. Of the patterns of such a communicator only the
heaviest counts. Where no member does (several streams, one kernel of several operations, members
that go ahead), the communicator's links always count among those that can saturate. This costs time
but changes no result, since a link below its capacity delays no flow.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.array_keys import fingerprint
from ..base.distinct import numbered
from ..base.frozen import frozen
from ..mpi.parallel import collective_errors
from ..program import Operation, Program, Table
from ..topo import Network, SharedNetwork
from ._core import full_links, joined, overlapping_slots, requested_prices
from .refine import ranges
from .routes import Routes
from .setup_cache import SetupCache

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = [
    "Contention",
    "PatternLoads",
    "assign_domains",
    "find_contention",
    "links_that_can_saturate",
    "shares_links",
]

Ints = NDArray[np.int64]

SOME_RANKS = 64
"""Ranks whose communicators are looked at first, where it is asked if any share links."""


@frozen(eq=False)
class Contention:
    """The communications of a program that share links; equal on all processes.

    Attributes
    ----------
    routes : Routes
        Of the program's communicators.
    backwards : bool
        Whether some gap or launch latency of the program is negative.
    """

    routes: Routes
    backwards: bool

    @cached_property
    def n_groups(self) -> int:
        """Number of communicators that have a route."""
        return int(np.count_nonzero(np.diff(self.routes.group))) + 1  # they are sorted

    @cached_property
    def n_domains(self) -> int:
        """Number of contention domains."""
        return int(domains_of(self.routes).max()) + 1


class _Use(NamedTuple):
    """Patterns of communications: one entry for each communicator, slot of a rank, and pattern."""

    communicator: Ints
    pattern: Ints  # of `patterns`
    rate: Ints  # the highest
    several: NDArray[np.bool_]  # this rank lets more than one of them be under way
    patterns: tuple[Hashable, ...]
    backwards: bool


def find_contention(
    program: Program,
    network: Network | None,
    comm: Intracomm,
    partial: bool = False,
    wire_delays: Sequence[NDArray[np.int64] | None] = (),
    known: SetupCache | None = None,
) -> Contention | None:
    """Find the routes of all communications that load a link which can saturate.

    **Collective** on `comm`.

    Parameters
    ----------
    program : Program
    network : Network, optional
    comm : mpi4py.MPI.Intracomm
    partial : bool
        Whether some process does not hold all tables; together they do.
    wire_delays : sequence of (int64, shape (n,), or None), optional
        As for `mpisim.engine.simulate`.
    known : SetupCache, optional
        Of earlier programs; routes are added to it.

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
    with collective_errors(comm):
        use = _use(program, network, wire_delays)
    if partial:
        use = _joined(comm.allgather(use))
    if not use.patterns:
        return None
    if known is None:
        routes = _routes(program, network, use)
    else:
        key = program.communicators.digest, fingerprint(*use[:4]), use.patterns
        routes = known.get("routes", network, key, lambda: _routes(program, network, use))
    if not len(routes):
        return None
    return Contention(routes, use.backwards)


def shares_links(program: Program, network: Network | None, first_ranks: int = SOME_RANKS) -> bool:
    """Return whether `find_contention` would find any. Local.

    Parameters
    ----------
    program : Program
        With all tables.
    network : Network, optional
    first_ranks : int
        Ranks whose communicators are looked at first; the answer does not depend on it.
    """
    if not isinstance(network, SharedNetwork):
        return False
    # As a rule links that some ranks use are shared already by their own communicators: more of
    # these load links no less.
    some = np.zeros(len(program.communicators), bool)
    some[program.slots[: program.slot_index[min(program.n_ranks, first_ranks)]]] = True
    for chosen in (some, None):
        use = _use(program, network, (), chosen)
        if use.patterns and len(_routes(program, network, use)):
            return True
    return False


# --- use ----------------------------------------------------------------------------------------


def _use(
    program: Program,
    network: SharedNetwork,
    wire_delays: Sequence[NDArray[np.int64] | None],
    chosen: NDArray[np.bool_] | None = None,
) -> _Use:
    """Collect the patterns of the ranks whose tables are held here. Local.

    On all communicators, or on those chosen.
    """
    groups = program.communicators
    label, classes = network.group_classes(groups.index, groups.members, program.operation_bits)
    owner = np.repeat(np.arange(program.n_ranks), np.diff(program.slot_index))
    slot = np.arange(len(owner)) - program.slot_index[owner]
    bound = program.slots
    if chosen is not None:
        (at,) = np.nonzero(chosen[bound])
        owner, slot, bound = owner[at], slot[at], bound[at]
    # All slots of one table, number and class of communicators see the same prices.
    keys = (label[bound], program.table[owner].astype(np.int64), slot)
    span = [int(key.max(initial=0)) + 1 for key in keys]
    key = (keys[0] * span[1] + keys[1]) * span[2] + keys[2]
    kinds, _, kind = numbered(key)
    # Most communicators are bound by many ranks in one way: one of them says it for all.
    last = np.empty(len(groups), np.int64)
    last[bound] = np.arange(len(kind))
    by = last[bound]
    (kept,) = np.nonzero((by == np.arange(len(kind))) | (kind != kind[by]))
    kind = kind[kept]

    number: dict[Hashable, int] = {}
    communications: dict[int, _TableCommunications] = {}
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
        if table_number not in communications:
            delay = wire_delays[table_number] if wire_delays else None
            communications[table_number] = _TableCommunications(table, delay)
        several[i] = communications[table_number].several(at)
        for operation, size, delay_ps in communications[table_number].unpriced(at):
            price = network.price(Operation(operation), max(size, 0), classes[which])
            price = price.longer(delay_ps)
            if price.volume and price.pattern is not None:
                pattern = number.setdefault(price.pattern, len(number))
                highest[pattern] = max(highest.get(pattern, 0), price.rate)

    index = np.concatenate([[0], np.cumsum([len(highest) for highest in found])]).astype(np.int64)
    pairs = np.array([pair for one in found for pair in one.items()], np.int64).reshape(-1, 2)
    at, entry = ranges(index, kind)
    tables = [table for table in program.tables if table is not None]
    return _Use(
        communicator=bound[kept[entry]].astype(np.int64),
        pattern=pairs[at, 0],
        rate=pairs[at, 1],
        several=several[kind[entry]],
        patterns=tuple(number),
        backwards=any(bool((t.gap < 0).any() or (t.launch < 0).any()) for t in tables),
    )


class _TableCommunications:
    """The distinct unpriced communications of a table, by slot."""

    def __init__(self, table: Table, delay: Ints | None) -> None:
        _, _, first = requested_prices(table, delay)
        delay = np.zeros(len(table), np.int64) if delay is None else delay
        columns = (table.slot, table.operation, table.bytes, delay)
        self._unpriced: dict[int, list[tuple[int, int, int]]] = {}
        for slot, operation, size, by in zip(*(column[first].tolist() for column in columns)):
            self._unpriced.setdefault(slot, []).append((operation, size, by))
        self._several = overlapping_slots(table).tolist()

    def unpriced(self, slot: int) -> list[tuple[int, int, int]]:
        """Return (operation, bytes, delay in ps) of each distinct one on a slot."""
        return self._unpriced.get(slot, [])

    def several(self, slot: int) -> bool:
        """Return whether more than one operation on a slot may be under way."""
        return slot < len(self._several) and self._several[slot]


def _joined(parts: list[_Use]) -> _Use:
    """Join the patterns that processes have found."""
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
        backwards=any(part.backwards for part in parts),
    )


# --- routes -------------------------------------------------------------------------------------


def _routes(program: Program, network: SharedNetwork, use: _Use) -> Routes:
    """Patterns → routes, without links that cannot saturate and routes that load no others."""
    groups = program.communicators
    one_by_one = np.zeros(len(groups), bool)
    one_by_one[use.communicator[~use.several]] = True
    loaded: list[PatternLoads] = []
    for p, one in enumerate(use.patterns):
        of_pattern = use.pattern == p
        rate = np.zeros(len(groups), np.int64)
        np.maximum.at(rate, use.communicator[of_pattern], use.rate[of_pattern])
        group = np.flatnonzero(rate)
        at, _ = ranges(groups.index, group)
        index = np.concatenate([[0], np.cumsum(groups.sizes[group])])
        first, links, weights = network.loads(index, groups.members[at], one)
        route = np.repeat(np.arange(len(group)), np.diff(first))
        loaded.append(PatternLoads(group, rate[group], route, links, weights))

    full = links_that_can_saturate(network.capacity, loaded, one_by_one)
    loaded = [each.only(full) for each in loaded]
    names = np.flatnonzero(full)
    number = np.cumsum(full) - 1
    # From pattern by pattern to group by group.
    count = np.concatenate([np.bincount(x.route, minlength=len(x.group)) for x in loaded])
    group = np.concatenate([each.group for each in loaded])
    pattern = np.repeat(np.arange(len(loaded)), [len(each.group) for each in loaded])
    order = np.argsort(group * len(loaded) + pattern, kind="stable")
    order = order[count[order] > 0]
    begin = np.concatenate([[0], np.cumsum(count)])
    at, _ = ranges(begin, order)
    kept, _, pattern = numbered(pattern[order])
    return Routes(
        group=group[order],
        pattern=pattern,
        index=np.concatenate([[0], np.cumsum(count[order])]),
        link=number[np.concatenate([each.link for each in loaded])[at]],
        weight=np.concatenate([each.weight for each in loaded])[at],
        capacity=network.capacity[names].astype(np.int64),
        patterns=tuple(use.patterns[p] for p in kept.tolist()),
        names=names,
        simulated_link=np.arange(len(names)),
    )


# --- links that can saturate ----------------------------------------------------------------------


class PatternLoads(NamedTuple):
    """The links that communicators with one pattern load.

    Attributes
    ----------
    group : int64, shape (g,)
        Ascending.
    rate : int64, shape (g,)
        The highest of each, in 2**-40 bytes per ps.
    route : int64, shape (e,)
        The communicator of each load, 0 to g - 1, ascending.
    link, weight : int64, shape (e,)
        Links of each communicator, ascending and distinct.
    """

    group: Ints
    rate: Ints
    route: Ints
    link: Ints
    weight: Ints

    def only(self, links: NDArray[np.bool_]) -> PatternLoads:
        """Return the loads on the links for which `links` is true."""
        kept = links[self.link]
        return self._replace(route=self.route[kept], link=self.link[kept], weight=self.weight[kept])


def links_that_can_saturate(
    capacity: Ints, patterns: list[PatternLoads], one_by_one: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Links, loads → mask of links that can saturate: overloaded with all users at highest rate.

    Parameters
    ----------
    capacity : int64, shape (n_links,)
        In 2**-40 bytes per ps.
    patterns : list of PatternLoads
    one_by_one : bool, shape (n_groups,)
        Whether the operations of a communicator take turns; links of others always count.

    Returns
    -------
    bool, shape (n_links,)
    """
    columns = [tuple(np.ascontiguousarray(each, np.int64) for each in one) for one in patterns]
    found: NDArray[np.bool_] = full_links(
        np.ascontiguousarray(capacity, np.int64), columns, one_by_one.view(np.uint8)
    )
    return found


# --- domains --------------------------------------------------------------------------------------


def domains_of(routes: Routes) -> Ints:
    """Routes → number of the contention domain of each: routes joined by links or groups share one.

    Returns
    -------
    int64, shape (r,)
        The domain of each route, 0 and up, in the order of their lowest groups.
    """
    of_route = np.cumsum(np.diff(routes.group, prepend=-1) > 0) - 1  # they are sorted by group
    group = np.repeat(of_route, np.diff(routes.index))
    number: Ints = joined(group, routes.link, int(of_route[-1]) + 1, len(routes.capacity))
    return number[of_route]


def assign_domains(routes: Routes | None, n_groups: int, n_processes: int) -> NDArray[np.int32]:
    """Assign contention domains to processes: the process of the flows of each group; -1: none.

    Parameters
    ----------
    routes : Routes or None
        Of the communicators whose flows share links; None: there are none.
    n_groups : int
        Number of communicators (folded: of their classes).
    n_processes : int
        Each gets about as many domains as the others.

    Returns
    -------
    int32, shape (n_groups,)
    """
    site = np.full(n_groups, -1, np.int32)
    if routes is not None:
        domain = domains_of(routes)
        site[routes.group] = domain * n_processes // (domain.max() + 1)
    return site
