"""Input of the compiled cores: tables, durations, slots and flows of one process's ranks.

`CoreInput` serves both cores. Where communications share links, the tiled core also takes a
`SharingInput`, the contended core a `FlowInput`. All are plain arrays, made by
`mpisim.engine.distribution`: a core reads them through pointers and checks no index.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..program import Table
from .contention import Contention
from .cost import Priced
from .duration_factors import DurationFactors
from .lowering import LoweredTable, StreamView, stream_view
from .routes import Routes
from .tiling import Tiles

__all__ = [
    "COMMUNICATION_STATE",
    "CoreInput",
    "FlowInput",
    "SharingInput",
    "initial_communications",
]

COMMUNICATION_STATE = np.dtype(
    [
        ("time", np.int64),  # latest ready time so far; once complete, the start
        ("end", np.int64),  # of the flow; before, the latest end of a flow that led to a post
        ("follow", np.int64),  # largest gap after the end of the communication before, if promised
        ("bound", np.int64),  # while the lookahead is worked out
        ("last", np.int32),  # the rank that was ready at `time`, the lowest if several
        ("follower", np.int32),  # the rank with that gap, the lowest if several
        ("missing", np.int32),  # hosted members still to post; -1 once resolved, -2 while it flows
        ("remote", np.int32),  # messages still to come from other processes
        ("waiter", np.int32),  # first stream (of all hosted ranks) that waits here, or -1
        ("route", np.int32),  # of the flow, or -1
        ("price", np.int32),  # of the flow, or -1
        ("owned", np.int32),  # whether other processes are to be notified of its end
        ("flow", np.int32),  # its number among active flows, or -1
        ("reserved", np.int32),
    ]
)
"""State of one communication in the contended core. It may be a flow."""


@frozen(eq=False)
class CoreInput:
    """Ranks hosted by one process, as arrays that a compiled core runs.

    `h` is the number of hosted ranks; `s` the number of their slots taken together.

    Attributes
    ----------
    lowered : list of LoweredTable
        The distinct tables.
    table : int32, shape (h,)
        Each rank's entry in `lowered`.
    durations : sequence of int64 arrays
        The distinct priced durations of all rows of a table, in ps, but for `variation`.
    duration : int32, shape (h,)
        Each rank's entry in `durations`.
    numbers : int32, shape (h,)
        Numbers of the ranks among all that are simulated, ascending.
    count : int64, shape (h,)
        How many ranks each represents: the digest counts it as often.
    start : int64, shape (h,)
        ps.
    slot_index : int64, shape (h + 1,)
        Slots of rank i are ``slot_index[i]`` to ``slot_index[i + 1]`` of the arrays below.
    slot_first : int64, shape (s,)
        Number of the first communication of the communicator bound to a slot.
    slot_role : uint8, shape (s,)
        A `mpisim.engine.distribution.Role`.
    slot_members, slot_remote : int32, shape (s,)
        Of the communicator bound to a slot: hosted members, counted for each of their slots, and
        messages that come from other processes for each communication.
    slot_hash : uint64, shape (s, 2)
        Hash of the communicator's size, for the digest.
    n_communications : int
        On the communicators that this process has members of.
    n_messages : int
        No more messages than this are ever sent by this process.
    tiles : Tiles, optional
        Which ranks run side by side, where communications share no links.
    variation : DurationFactors, optional
        Likewise: how durations of the ranks differ from those in `durations`.
    sharing : SharingInput, optional
        For the tiled core where communications share links: their durations are given.
    flows : FlowInput, optional
        For the contended core, which works out the sharing of links itself.
    """

    lowered: list[LoweredTable]
    table: NDArray[np.int32]
    durations: Sequence[NDArray[np.int64]]
    duration: NDArray[np.int32]
    numbers: NDArray[np.int32]
    count: NDArray[np.int64]
    start: NDArray[np.int64]
    slot_index: NDArray[np.int64]
    slot_first: NDArray[np.int64]
    slot_role: NDArray[np.uint8]
    slot_members: NDArray[np.int32]
    slot_remote: NDArray[np.int32]
    slot_hash: NDArray[np.uint64]
    n_communications: int
    n_messages: int
    tiles: Tiles | None = None
    variation: DurationFactors | None = None
    sharing: SharingInput | None = None
    flows: FlowInput | None = None

    @property
    def kind(self) -> NDArray[np.int32]:
        """Index in `kinds` of each rank's durations, shape (h,); equal for the lanes of a tile."""
        return self.duration if self.sharing is None else self.sharing.kind

    @property
    def kinds(self) -> Sequence[NDArray[np.int64]]:
        """Durations of rows as the tiled core takes them, in ps."""
        return self.durations if self.sharing is None else self.sharing.durations

    @property
    def n_rows(self) -> int:
        """Rows of all hosted ranks."""
        lengths = np.array([len(one.table) for one in self.lowered], np.int64)
        return int(lengths[self.table].sum())

    def lowered_of(self, local: int) -> LoweredTable:
        """Return the table of a hosted rank, by its local number."""
        return self.lowered[self.table[local]]

    def durations_of(self, local: int) -> NDArray[np.int64]:
        """Return the durations of the rows of a hosted rank, by its local number, in ps."""
        durations = self.durations[self.duration[local]]
        if self.variation is None:
            return durations
        return self.variation.applied(local, durations, self.lowered_of(local).kernels)

    def duration_key(self, local: int) -> Hashable:
        """Return a key that is equal for ranks of one table whose durations are equal."""
        key = None if self.variation is None else self.variation.key_of(local)
        return int(self.duration[local]), key


@frozen(eq=False)
class SharingInput:
    """Input of the tiled core for contended runs, beside `CoreInput`.

    How long communications take that may flow, or that take other times for other ranks of the
    table, is *looked up*, communication by communication. In all else ranks of one table then
    agree, as a rule, and can be lanes of one tile. Ranks that do are of one *kind*.

    Attributes
    ----------
    prices : sequence of int32 arrays
        For each of the `CoreInput.durations`, the price of each row, or -1: others do not flow.
    kind : int32, shape (h,)
        Of each rank.
    durations : list of int64 arrays
        For each kind, of all rows, in ps; 0 where it is looked up.
    looked_up : list of uint8 arrays
        For each kind, which rows are.
    slots : list of frozenset of int
        For each kind, the slots with such rows.
    taken : int64, shape (n_communications + 1,)
        How long each communication takes for which that is looked up, in ps.
    """

    prices: Sequence[NDArray[np.int32]]
    kind: NDArray[np.int32]
    durations: list[NDArray[np.int64]]
    looked_up: list[NDArray[np.uint8]]
    slots: list[frozenset[int]]
    taken: NDArray[np.int64]


@frozen(eq=False)
class FlowInput:
    """Input of the contended core, beside `CoreInput`: prices, flows and routes.

    `p` is the number of prices of which flows may be, `s` that of slots of all hosted ranks.

    Attributes
    ----------
    views : list of StreamView
        One for each of the lowered tables.
    prices : sequence of int32 arrays
        For each of the durations, the price of each row, or -1.
    latency, volume, rate, pattern : int64, shape (p,)
        See `mpisim.topo.Price`; patterns are those of the routes.
    routes : Routes
        Of the simulated ranks.
    slot_route, slot_n_routes : int32, shape (s,)
        The first route of the communicator bound to a slot, and the number of its routes.
    backwards : bool
        Some gap or launch latency is negative, so that what follows may begin before what led to
        it has ended.
    spans : list of int64 arrays
        For each of the durations, see `StreamView.spans`. Empty on a single process, which needs
        no lookahead.
    single_process : bool
        All flows are run here, and no other process takes part.
    communications : COMMUNICATION_STATE, shape (n_communications,)
        Before anything has run.
    """

    views: list[StreamView]
    prices: Sequence[NDArray[np.int32]]
    latency: NDArray[np.int64]
    volume: NDArray[np.int64]
    rate: NDArray[np.int64]
    pattern: NDArray[np.int64]
    routes: Routes
    slot_route: NDArray[np.int32]
    slot_n_routes: NDArray[np.int32]
    backwards: bool
    spans: list[NDArray[np.int64]]
    single_process: bool
    communications: NDArray[Any]

    @classmethod
    def of(
        cls,
        routes: Routes,
        contention: Contention,
        lowered: list[LoweredTable],
        table: NDArray[np.int32],
        priced: Priced,
        bound: NDArray[np.int64],
        views: dict[Table, StreamView],
        single_process: bool,
        communications: NDArray[Any],
    ) -> FlowInput:
        """Collect prices and routes of the hosted ranks.

        Parameters
        ----------
        routes : Routes
            Of the simulated ranks.
        contention : Contention
            Which communicators and links are contended.
        lowered, table
            As in `CoreInput`.
        priced : Priced
            Of the hosted ranks.
        bound : int64, shape (s,)
            The communicator that each slot is bound to.
        views : dict of Table to StreamView
            Of earlier runs, to which this one adds: see `stream_view`.
        single_process : bool
            Whether no other process takes part.
        communications : COMMUNICATION_STATE, shape (n_communications,)
            Before anything has run: see `initial_communications`.
        """
        pattern = {pattern: i for i, pattern in enumerate(routes.patterns)}
        columns = np.array(
            [(p.latency, p.volume, p.rate, pattern[p.pattern]) for p in priced.known], np.int64
        ).reshape(-1, 4)
        latency, volume, rate, number = columns.T.copy()
        streams = [stream_view(one, views) for one in lowered]
        spans = []
        if not single_process:
            entry, rank = np.unique(priced.which, return_index=True)
            of_entry = dict(zip(entry.tolist(), table[rank].tolist()))
            spans = [
                streams[of_entry[i]].spans(lowered[of_entry[i]], durations)
                for i, durations in enumerate(priced.durations)
            ]
        first = np.searchsorted(routes.group, bound)
        count = np.searchsorted(routes.group, bound, side="right") - first
        return cls(
            views=streams,
            prices=priced.prices,
            latency=latency,
            volume=volume,
            rate=rate,
            pattern=number,
            routes=routes,
            slot_route=first.astype(np.int32),
            slot_n_routes=count.astype(np.int32),
            backwards=contention.backwards,
            spans=spans,
            single_process=single_process,
            communications=communications,
        )


def initial_communications(
    members: NDArray[np.int64], remote: NDArray[np.int64], owned: NDArray[np.bool_]
) -> NDArray[Any]:
    """State of communications before anything has run.

    Parameters
    ----------
    members : int64, shape (n,)
        Hosted members that have to post to each.
    remote : int64, shape (n,)
        Messages that have to come from other processes for each.
    owned : bool, shape (n,)
        Whether this process tells others what becomes of it.

    Returns
    -------
    COMMUNICATION_STATE, shape (n,)
    """
    found = np.zeros(len(members), COMMUNICATION_STATE)
    for column in ("time", "end", "bound", "follow"):
        found[column] = np.iinfo(np.int64).min
    found["last"] = found["follower"] = np.iinfo(np.int32).max
    found["missing"], found["remote"], found["owned"] = members, remote, owned
    found["waiter"] = found["route"] = found["price"] = found["flow"] = -1
    return found
