"""Durations of rows: kernels at the speed of the rank's GPU, communications by the network.

A communication without a duration of its own is priced by the network: (operation, bytes, class of
its communicator) → `Price`. Each distinct triple is priced once, and ranks that agree in table and
communicator classes share one array of durations.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..program import UNPRICED, Kind, Operation, Program, Table
from ..topo import Network, Price
from ._core import requested_prices
from .duration_factors import ONE, DurationFactors, jitter_table
from .refine import dense

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["MAX_DURATION", "Priced", "agreed", "price", "varied"]

MAX_DURATION = 1 << 60
"""No rank may need more time than this by itself, in ps (13 days): sums must fit into int64."""


class Priced(NamedTuple):
    """Durations and prices of the rows of some ranks.

    Attributes
    ----------
    durations : list of int64 arrays
        The distinct arrays, each of shape (rows of the table,), in ps.
    which : int32, shape (h,)
        The entry of each rank.
    prices : list of int32 arrays
        Beside each of the durations: the entry of each row in `known`, or -1.
    known : tuple of Price
        Prices with one of the requested patterns, by number.
    """

    durations: list[NDArray[np.int64]]
    which: NDArray[np.int32]
    prices: list[NDArray[np.int32]]
    known: tuple[Price, ...] = ()


def price(
    program: Program,
    hosted: NDArray[np.int32],
    network: Network | None = None,
    patterns: Collection[Hashable] = (),
    wire_delays: Sequence[NDArray[np.int64] | None] = (),
) -> Priced:
    """Price every row of the hosted ranks, at speed 1 and without jitter. Local.

    Communications keep the duration they have, or get that of the network.

    Parameters
    ----------
    program : Program
        Whole, or with the tables of the hosted ranks.
    hosted : int32, shape (h,)
        Global ranks whose tables are held here.
    network : Network, optional
    patterns : collection of hashable, optional
        Numbers are returned for prices of these patterns.
    wire_delays : sequence of (int64, shape (n,), or None), optional
        As for `mpisim.engine.simulate`.

    Returns
    -------
    Priced

    Raises
    ------
    InputError
        For a communication that has no duration and cannot be given one, and for ranks that would
        need more time than clocks can count.
    """
    late = np.abs(program.start[hosted]) >= MAX_DURATION
    if late.any():
        rank = int(hosted[np.argmax(late)])
        raise InputError(
            f"rank {rank}: it starts at {program.start[rank]} ps; at most "
            f"{MAX_DURATION} is possible"
        )
    pricing = _Pricing(program, network, patterns, wire_delays)
    which = np.zeros(len(hosted), np.int32)
    durations: list[NDArray[np.int64]] = []
    numbers: list[NDArray[np.int32]] = []
    for ranks, labels in pricing.equally_priced(hosted):
        found, priced = pricing.durations(int(hosted[ranks[0]]), labels)
        slowest = ranks[np.argmin(program.speed[hosted[ranks]])]
        pricing.check_length(int(hosted[slowest]), found)
        which[ranks] = len(durations)
        durations.append(found)
        numbers.append(priced)
    return Priced(durations, which, numbers, tuple(pricing.known))


def agreed(priced: Priced, comm: Intracomm | None) -> Priced:
    """Number prices alike on all processes. **Collective** on `comm` (None: one process).

    Parameters
    ----------
    priced : Priced
    comm : mpi4py.MPI.Intracomm or None
    """
    if comm is None:
        return priced
    every = {one: None for part in comm.allgather(priced.known) for one in part}
    number = {one: i for i, one in enumerate(every)}
    own = np.array([number[one] for one in priced.known] + [-1], np.int32)
    renumbered: dict[int, NDArray[np.int32]] = {}  # arrays that are shared stay so
    for one in priced.prices:
        if id(one) not in renumbered:
            renumbered[id(one)] = own[one]
    return priced._replace(
        prices=[renumbered[id(one)] for one in priced.prices], known=tuple(every)
    )


def varied(program: Program, hosted: NDArray[np.int32], priced: Priced) -> Priced:
    """Apply what makes the hosted ranks differ from each other: speed and jitter.

    Kernels and copies are divided by the rank's speed, varied where there is jitter, and rounded to
    whole ps. Ranks that agree in both share one array.

    Parameters
    ----------
    program : Program
    hosted : int32, shape (h,)
        Global ranks.
    priced : Priced
        Of these ranks.

    Returns
    -------
    Priced
        With a duration for each distinct pair of durations and variation.
    """
    variation = DurationFactors.of(program, hosted)
    if variation is None:
        return priced
    found: dict[Hashable, int] = {}
    which = np.zeros(len(hosted), np.int32)
    durations: list[NDArray[np.int64]] = []
    prices: list[NDArray[np.int32]] = []
    for i, number in enumerate(priced.which.tolist()):
        key = number, variation.key_of(i)
        if key not in found:
            found[key] = len(durations)
            rows = np.flatnonzero(program.table_of(int(hosted[i])).kind <= Kind.COPY)
            durations.append(variation.applied(i, priced.durations[number], rows))
            prices.append(priced.prices[number])
        which[i] = found[key]
    return Priced(durations, which, prices, priced.known)


def _split(values: NDArray[np.int64], label: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split an array into the parts of equal labels."""
    if not len(values):
        return []
    order = np.argsort(label, kind="stable")
    return np.split(values[order], np.flatnonzero(np.diff(label[order])) + 1)


class _Requests(NamedTuple):
    """Communications of a table that are to be priced.

    Attributes
    ----------
    rows : int64, shape (m,)
        Ascending.
    slots : int64, shape (s,)
        Theirs, ascending.
    """

    rows: NDArray[np.int64]
    slots: NDArray[np.int64]


class _Pricing:
    """Prices rows, and caches the prices of the network."""

    def __init__(
        self,
        program: Program,
        network: Network | None,
        patterns: Collection[Hashable],
        wire_delays: Sequence[NDArray[np.int64] | None],
    ) -> None:
        self.program = program
        self.network = network
        self._wire_delays = wire_delays
        self.known: dict[Price, int] = {}
        self._patterns = frozenset(patterns)
        groups = program.communicators
        self._label: NDArray[np.int64] = np.zeros(len(groups), np.int64)
        self._class: Sequence[Hashable] = ()
        if network is not None:
            self._label, self._class = network.group_classes(
                groups.index, groups.members, program.operation_bits
            )
        self._prices: dict[tuple[int, int, Hashable], Price] = {}
        # Tables that differ in durations of kernels alone are priced once.
        self._rows: dict[Table, NDArray[np.int64]] = {}
        self._requests: dict[tuple[Table, bytes], _Requests] = {}
        self._priced: dict[Hashable, tuple[NDArray[np.int64], NDArray[np.int32]]] = {}

    def _requests_of(self, table: Table) -> _Requests:
        """Return which communications of a table are to be priced."""
        structure = table.structure
        if structure not in self._rows:
            self._rows[structure] = np.flatnonzero(table.is_communication)
        every = self._rows[structure]
        unpriced = table.duration[every] == UNPRICED
        key = structure, unpriced.tobytes()
        if key not in self._requests:
            rows = every[unpriced]
            slots = np.flatnonzero(np.bincount(table.slot[rows], minlength=1))
            self._requests[key] = _Requests(rows, slots)
        return self._requests[key]

    def equally_priced(
        self, hosted: NDArray[np.int32]
    ) -> Iterator[tuple[NDArray[np.int64], tuple[int, ...]]]:
        """Split the hosted ranks into those whose communications cost the same, row by row.

        Yields
        ------
        ranks : int64
            Entries of `hosted`.
        labels : tuple of int
            Classes of the communicators on whose slots something is to be priced.
        """
        program = self.program
        table = program.table[hosted]
        for ranks in _split(np.arange(len(hosted)), table.astype(np.int64)):
            requests = self._requests_of(program.table_of(int(hosted[ranks[0]])))
            if len(requests.rows) and self.network is None:
                raise InputError(
                    f"{self._where(int(hosted[ranks[0]]), int(requests.rows[0]))}: the "
                    "communication has no duration; give one, or a network"
                )
            bound = program.slots[program.slot_index[hosted[ranks]][:, None] + requests.slots]
            labels = self._label[bound]
            if len(ranks) == 1:
                yield ranks, tuple(labels[0].tolist())
                continue
            kind = np.zeros(len(ranks), np.int64)
            for column in labels.T[
                (labels != labels[:1]).any(axis=0)
            ]:  # the others are the same for all
                kind, _ = dense(kind * (len(self._class) + 1) + column)
            for part in _split(np.arange(len(ranks)), kind):
                yield ranks[part], tuple(labels[part[0]].tolist())

    def durations(
        self, rank: int, labels: tuple[int, ...]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the duration at speed 1 and the price of every row of a rank, shape (n,) each."""
        table = self.program.table_of(rank)
        requests = self._requests_of(table)
        delays = self._wire_delays
        delay = delays[int(self.program.table[rank])] if delays else None
        key = table.structure, id(requests), id(delay), labels  # `self` keeps both alive
        if key not in self._priced:
            self._priced[key] = self._priced_rows(rank, requests, labels, delay)
        priced, prices = self._priced[key]
        durations = table.duration.copy()
        durations[requests.rows] = priced
        return durations, prices

    def _priced_rows(
        self,
        rank: int,
        requests: _Requests,
        labels: tuple[int, ...],
        delay: NDArray[np.int64] | None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the durations of the rows that are to be priced, and the price of every row."""
        table = self.program.table_of(rank)
        prices = np.full(len(table) if self._patterns else 0, -1, np.int32)
        of_slot = {s: self._class[i] for s, i in zip(requests.slots.tolist(), labels, strict=True)}
        unpriced, which, first = requested_prices(table, delay)
        extra = [0] * len(first) if delay is None else delay[first].tolist()
        columns = (table.operation, table.bytes, table.slot)
        found = np.empty((len(first), 2), np.int64)
        for i, (row, operation, size, slot, by) in enumerate(
            zip(first.tolist(), *(column[first].tolist() for column in columns), extra)
        ):
            key = (operation, size, of_slot[slot])
            if key not in self._prices:
                self._prices[key] = self._price(rank, row, *key)
            cost = self._prices[key].longer(by)
            if cost.duration >= MAX_DURATION:
                raise InputError(
                    f"{self._where(rank, row)}: the communication takes "
                    f"{cost.duration * 1e-12:.3g} s, more than the "
                    f"{MAX_DURATION * 1e-12:.3g} s that a run can count"
                )
            found[i] = cost.duration, self._number(cost)
        if self._patterns:
            prices[unpriced] = found[which, 1]
        return found[which, 0], prices

    def _price(self, rank: int, row: int, operation: int, size: int, group: Hashable) -> Price:
        """Price a row of a rank by the network."""
        assert self.network is not None  # or `equally_priced` had raised
        if size < 0 and operation != Operation.BARRIER:
            raise InputError(
                f"{self._where(rank, row)}: the communication has neither a duration nor a "
                "number of bytes to price it by"
            )
        return self.network.price(Operation(operation), max(size, 0), group)

    def _number(self, price: Price) -> int:
        """Return the number of a price, or -1 if its pattern was not requested."""
        if not price.volume or price.pattern not in self._patterns:
            return -1
        return self.known.setdefault(price, len(self.known))

    def check_length(self, rank: int, durations: NDArray[np.int64]) -> None:
        """Raise if the rows of a rank, one after the other, take more than clocks can count."""
        table, jitter = self.program.table_of(rank), self.program.jitter
        speed = float(self.program.speed[rank])
        longest = 1.0 if jitter is None else float(jitter_table(jitter.spread)[-1]) / ONE
        largest = max(int(durations.max(initial=0)), -int(durations.min(initial=0)))
        most = float(largest) * len(durations) * max(1, longest / speed)
        if most + table.launch_time < MAX_DURATION / 2:  # nearly all: no need to add up
            return
        total = float(np.abs(durations).sum(dtype=np.float64)) + table.launch_time
        if longest != speed:
            own = float(durations[table.kind <= Kind.COPY].sum(dtype=np.float64))
            total += own * (longest / speed - 1)
        if not total < MAX_DURATION:
            raise InputError(
                f"rank {rank}: its rows take {total * 1e-12:.3g} s, more than the "
                f"{MAX_DURATION * 1e-12:.3g} s that a run can count (speed {speed})"
            )

    def _where(self, rank: int, row: int) -> str:
        table: Table = self.program.table_of(rank)
        name = self.program.names[table.name[row]]
        return f"rank {rank}, row {row} ({name}) of table {table.label!r}"
