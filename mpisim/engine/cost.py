"""Rows of ranks → durations: kernels by the GPU's speed, communications priced by the network.

A communication without a duration of its own is priced by the network: (operation, bytes, class of
its communicator) → `Price`. Each distinct triple is priced once, and ranks that agree in table and
communicator classes share one array of durations.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import dense, numbered
from ..base.errors import InputError
from ..program import UNPRICED, Kind, Operation, Program, Table
from ..topo import Network, Price
from ._core import filled, requested_prices
from .duration_factors import ONE, DurationFactors, jitter_table

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["MAX_DURATION", "Priced", "agreed", "price", "varied"]

MAX_DURATION = 1 << 60
"""No rank may need more time than this by itself, in ps (13 days): sums must fit into int64."""


MAX_KEPT_BYTES = 1 << 26
"""Of durations, and of prices of rows: more are made anew whenever they are asked for."""


class Priced(NamedTuple):
    """Durations and prices of the rows of some ranks.

    Attributes
    ----------
    durations : sequence of int64 arrays
        The distinct arrays, each of shape (rows of the table,), in ps.
    which : int32, shape (h,)
        The entry of each rank.
    prices : sequence of int32 arrays
        Beside each of the durations: the entry of each row in `known`, or -1.
    known : tuple of Price
        Prices with one of the requested patterns, by number.
    """

    durations: Sequence[NDArray[np.int64]]
    which: NDArray[np.int32]
    prices: Sequence[NDArray[np.int32]]
    known: tuple[Price, ...] = ()

    def requested(
        self, entry: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
        """Return the communications without a duration: rows, durations and prices.

        Parameters
        ----------
        entry : int
            Of `durations`, from `price` for some patterns.
        """
        assert isinstance(self.durations, RowValues)
        assert isinstance(self.prices, RowValues)
        rows, durations = self.durations.requested(entry)
        return rows, durations, self.prices.requested(entry)[1]


class RowValues(Sequence[NDArray[Any]]):
    """Arrays with a value for each row of a table, some of which are given by few numbers.

    Where there are many arrays they are made anew whenever one is asked for: where every NIC has a
    bandwidth of its own, every rank has prices of its own, and most of its rows have none.

    Parameters
    ----------
    parts : sequence of (array, _Requests, array)
        For each array: all rows, where those that request a price have any value; what its table
        requests; and the value of each request, or none at all.
    kept_bytes : int
        Arrays of together no more are made at once and kept.
    """

    def __init__(self, parts: Sequence[_RowParts], kept_bytes: int) -> None:
        self._parts, self._kept_bytes = parts, kept_bytes
        self._kept: list[NDArray[Any]] | None = None
        if sum(base.nbytes for base, _, _ in parts) <= kept_bytes:
            self._kept = [self._made(i) for i in range(len(parts))]

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        return self._made(at) if self._kept is None else self._kept[at]

    def _made(self, at: int) -> NDArray[Any]:
        base, requests, values = self._parts[at]
        if not len(values):
            return base.copy()
        return np.asarray(filled(base, requests.rows, requests.which, values))

    def mapped(self, of: NDArray[Any]) -> RowValues:
        """Return the arrays with ``of[value]`` in place of every value that is requested."""
        parts = [(base, requests, of[values]) for base, requests, values in self._parts]
        return RowValues(parts, self._kept_bytes)

    def requested(self, at: int) -> tuple[NDArray[np.int32], NDArray[Any]]:
        """Return the rows of an array that request a price, and their values."""
        _, requests, values = self._parts[at]
        return requests.rows, values[requests.which]


_RowParts = tuple[NDArray[Any], "_Requests", NDArray[Any]]


def price(
    program: Program,
    hosted: NDArray[np.int32],
    network: Network | None = None,
    patterns: Collection[Hashable] = (),
    wire_delays: Sequence[NDArray[np.int64] | None] = (),
    kept_bytes: int = MAX_KEPT_BYTES,
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
    kept_bytes : int
        Where durations or prices need more, they are made anew whenever they are asked for.

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
    durations: list[_RowParts] = []
    numbers: list[_RowParts] = []
    for ranks, requests, labels in pricing.equally_priced(hosted):
        found, priced = pricing.requested(int(hosted[ranks[0]]), requests, labels)
        slowest = ranks[np.argmin(program.speed[hosted[ranks]])]
        pricing.check_length(int(hosted[slowest]), requests, found)
        which[ranks] = len(durations)
        durations.append((requests.duration, requests, found))
        numbers.append((requests.no_price, requests, priced))
    made = RowValues(durations, kept_bytes), RowValues(numbers, kept_bytes)
    return Priced(made[0], which, made[1], tuple(pricing.known))


def agreed(priced: Priced, comm: Intracomm | None) -> Priced:
    """Number prices, the same on all processes. **Collective** on `comm` (None: one process).

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
    prices = priced.prices
    renumbered = prices.mapped(own) if isinstance(prices, RowValues) else [own[i] for i in prices]
    return priced._replace(prices=renumbered, known=tuple(every))


def varied(program: Program, hosted: NDArray[np.int32], priced: Priced) -> Priced:
    """Apply speed and jitter of the hosted ranks to the durations of their rows.

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
    """Prices that the rows of a table request of the network; see `requested_prices`.

    Attributes
    ----------
    duration : int64, shape (n,)
        Of all rows, -1 of those that request a price.
    no_price : int32, shape (n,)
        -1 for all; empty if no patterns are asked for.
    rows, which : int32, shape (m,)
        Rows that request a price, and the request of each.
    first, operation, bytes, longer : lists, one entry a request
        Its first row, what it is, and how much longer it takes, in ps.
    slots : int64, shape (s,)
        On which anything is requested.
    slot : int64, shape (n_requests,)
        The entry of `slots` of each request.
    n_rows : int64, shape (n_requests,)
        Rows that request it.
    given_time : float
        ps of all other rows together.
    """

    duration: NDArray[np.int64]
    no_price: NDArray[np.int32]
    rows: NDArray[np.int32]
    which: NDArray[np.int32]
    first: list[int]
    operation: list[int]
    bytes: list[int]
    slots: NDArray[np.int64]
    slot: NDArray[np.int64]
    longer: list[int]
    n_rows: NDArray[np.int64]
    given_time: float


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
        self._prices: dict[tuple[int, int, int], Price] = {}
        self._costs: dict[tuple[int, int, int, int], tuple[int, int]] = {}
        # Tables that differ in durations of kernels alone request the same.
        self._requests: dict[tuple[Table, bytes, int], _Requests] = {}

    def equally_priced(
        self, hosted: NDArray[np.int32]
    ) -> Iterator[tuple[NDArray[np.int64], _Requests, NDArray[np.int64]]]:
        """Split the hosted ranks into groups whose communications cost the same, row by row.

        Yields
        ------
        ranks : int64
            Entries of `hosted`.
        requests : _Requests
            Of their table.
        labels : int64, shape (n_requests,)
            The class of the communicator of each request.
        """
        program = self.program
        table = program.table[hosted]
        for ranks in _split(np.arange(len(hosted)), table.astype(np.int64)):
            first_rank = int(hosted[ranks[0]])
            requests = self._requests_of(first_rank)
            if len(requests.rows) and self.network is None:
                raise InputError(
                    f"{self._where(first_rank, int(requests.rows[0]))}: the communication has no "
                    "duration; give one, or a network (mpisim run --set cluster.preset=NAME)"
                )
            bound = program.slots[program.slot_index[hosted[ranks]][:, None] + requests.slots]
            labels = self._label[bound]
            if len(ranks) == 1:
                yield ranks, requests, labels[0][requests.slot]
                continue
            kind = np.zeros(len(ranks), np.int64)
            differ = (labels != labels[:1]).any(axis=0)
            for column in labels.T[differ]:
                kind, _ = dense(kind * (len(self._class) + 1) + column)
            for part in _split(np.arange(len(ranks)), kind):
                yield ranks[part], requests, labels[part[0]][requests.slot]

    def _requests_of(self, rank: int) -> _Requests:
        """Return what the table of a rank requests of the network."""
        number = int(self.program.table[rank])
        table = self.program.table_of(rank)
        delay = self._wire_delays[number] if self._wire_delays else None
        unpriced = table.duration == UNPRICED
        key = table.structure, unpriced.tobytes(), id(delay)  # kept alive by `self`
        if key not in self._requests:
            self._requests[key] = self._requested(table, delay)
        done = np.abs(table.duration).sum(dtype=np.float64)
        done -= len(self._requests[key].rows) * abs(UNPRICED)
        return self._requests[key]._replace(duration=table.duration, given_time=float(done))

    def _requested(self, table: Table, delay: NDArray[np.int64] | None) -> _Requests:
        """Work out what a table requests, all but `given_time`."""
        rows, which, first = requested_prices(table, delay)
        slots, _, slot = numbered(table.slot[first])
        return _Requests(
            duration=table.duration,
            no_price=np.full(len(table) if self._patterns else 0, -1, np.int32),
            rows=rows,
            which=which,
            first=first.tolist(),
            operation=table.operation[first].tolist(),
            bytes=table.bytes[first].tolist(),
            slots=slots,
            slot=slot,
            longer=[0] * len(first) if delay is None else delay[first].tolist(),
            n_rows=np.bincount(which, minlength=len(first)),
            given_time=0.0,
        )

    def requested(
        self, rank: int, requests: _Requests, labels: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the duration at speed 1 and the price of every request, shape (n_requests,) each.

        No prices where no patterns are asked for.
        """
        durations, prices = [], []
        keys = zip(
            requests.operation, requests.bytes, labels.tolist(), requests.longer, strict=True
        )
        for i, key in enumerate(keys):
            if key not in self._costs:
                self._costs[key] = self._cost(rank, requests.first[i], *key)
            duration, number = self._costs[key]
            durations.append(duration)
            prices.append(number)
        return np.array(durations, np.int64), np.array(prices if self._patterns else [], np.int32)

    def _cost(
        self, rank: int, row: int, operation: int, size: int, label: int, longer: int
    ) -> tuple[int, int]:
        """Return the duration of a row of a rank, in ps, and the number of its price."""
        key = operation, size, label
        if key not in self._prices:
            self._prices[key] = self._price(rank, row, operation, size, self._class[label])
        cost = self._prices[key].longer(longer)
        duration = cost.duration
        if duration >= MAX_DURATION:
            raise InputError(
                f"{self._where(rank, row)}: the communication takes "
                f"{duration * 1e-12:.3g} s, more than the "
                f"{MAX_DURATION * 1e-12:.3g} s that a run can count"
            )
        return duration, self._number(cost)

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

    def check_length(self, rank: int, requests: _Requests, durations: NDArray[np.int64]) -> None:
        """Raise if the rows of a rank, one after the other, take more than clocks can count.

        Parameters
        ----------
        rank : int
        requests : _Requests
            Of its table.
        durations : int64, shape (n_requests,)
            Of each, in ps.
        """
        table, jitter = self.program.table_of(rank), self.program.jitter
        speed = float(self.program.speed[rank])
        longest = 1.0 if jitter is None else float(jitter_table(jitter.spread)[-1]) / ONE
        total = requests.given_time + table.launch_time
        total += float(durations.astype(np.float64) @ requests.n_rows)
        if longest != speed:
            own = float(table.duration[table.kind <= Kind.COPY].sum(dtype=np.float64))
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
