"""How long a rank's rows take: kernels at the speed of its GPU, communications by the network."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..program import UNPRICED, Kind, Operation, Program, Table
from ..topo import Network, Price

__all__ = ["LONGEST", "Priced", "price"]

LONGEST = 1 << 60
"""No rank may need more time than this by itself, in ps (13 days): sums must fit into int64."""


class Priced(NamedTuple):
    """What the rows of some ranks cost.

    Attributes
    ----------
    durations : list of int64 arrays
        The distinct ones, each of shape (rows of the table,), in ps.
    which : int32, shape (h,)
        The entry of each rank.
    prices : list of int32 arrays
        Beside each of the durations: the entry of each row among the prices that were asked for,
        or -1.
    """

    durations: list[NDArray[np.int64]]
    which: NDArray[np.int32]
    prices: list[NDArray[np.int32]]


def price(
    program: Program,
    hosted: NDArray[np.int32],
    network: Network | None = None,
    prices: Sequence[Price] = (),
) -> Priced:
    """Return the duration of every row of the hosted ranks. Local.

    Kernels and copies are divided by the rank's speed and rounded to whole ps; communications
    keep the duration they have, or get that of the network. Ranks that agree in table, speed
    and classes of communicators share one array.

    Parameters
    ----------
    program : Program
    hosted : int32, shape (h,)
        Global ranks whose tables are held here.
    network : Network, optional
    prices : sequence of Price, optional
        Those to be told of the rows that have them.

    Returns
    -------
    Priced

    Raises
    ------
    InputError
        For a communication that has no duration and cannot be given one, and for ranks that would
        need more time than clocks can count.
    """
    pricing = _Pricing(program, network, prices)
    known: dict[Hashable, int] = {}
    found: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = []
    which = np.zeros(len(hosted), np.int32)
    for i, rank in enumerate(hosted.tolist()):
        number, speed = int(program.table[rank]), float(program.speed[rank])
        classes = pricing.classes(rank)
        key = (number, speed, tuple(classes.items()))
        if key not in known:
            known[key] = len(found)
            found.append(pricing.durations(rank, classes))
        which[i] = known[key]
        if not -LONGEST < program.start[rank] < LONGEST:
            raise InputError(
                f"rank {rank}: it starts at {program.start[rank]} ps; at most {LONGEST} is possible"
            )
    return Priced([one for one, _ in found], which, [one for _, one in found])


class _Pricing:
    """Prices rows, and remembers the classes and costs it has asked the model for."""

    def __init__(
        self, program: Program, network: Network | None, prices: Sequence[Price]
    ) -> None:
        self.program = program
        self.network = network
        self._number = {one: i for i, one in enumerate(prices)}
        groups = program.communicators
        self._label: NDArray[np.int64]
        self._class: Sequence[Hashable]
        if network is not None:
            self._label, self._class = network.group_classes(groups.index, groups.members)
        self._unpriced: dict[int, NDArray[np.intp]] = {}
        self._costs: dict[tuple[int, int, Hashable], tuple[int, int]] = {}

    def classes(self, rank: int) -> dict[int, Hashable]:
        """Return the class of each slot of a rank on which something is to be priced."""
        number = int(self.program.table[rank])
        table = self.program.table_of(rank)
        if number not in self._unpriced:
            self._unpriced[number] = np.flatnonzero(
                table.is_communication & (table.duration == UNPRICED)
            )
        rows = self._unpriced[number]
        if not len(rows):
            return {}
        if self.network is None:
            raise InputError(
                f"{self._where(rank, int(rows[0]))}: the communication has no duration; "
                "give one, or a network"
            )
        bound = self.program.slots_of(rank)
        classes = {}
        for slot in np.unique(table.slot[rows]).tolist():
            classes[slot] = self._class[int(self._label[bound[slot]])]
        return classes

    def durations(
        self, rank: int, classes: dict[int, Hashable]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the duration and the price of every row of a rank, shape (n,) each."""
        table = self.program.table_of(rank)
        speed = float(self.program.speed[rank])
        durations = table.duration.astype(np.int64)
        prices = np.full(len(table) if self._number else 0, -1, np.int32)
        if speed != 1:
            scaled = table.kind <= Kind.COPY
            with np.errstate(over="ignore"):
                longer = np.rint(durations[scaled] / speed)
            self._check_length(rank, float(longer.sum()))
            durations[scaled] = longer.astype(np.int64)
        for row in self._unpriced[int(self.program.table[rank])].tolist():
            size = int(table.bytes[row])
            operation = Operation(int(table.operation[row]))
            if size < 0 and operation is not Operation.BARRIER:
                raise InputError(
                    f"{self._where(rank, row)}: the communication has neither a duration nor a "
                    "number of bytes to price it by"
                )
            group = classes[int(table.slot[row])]
            key = (operation, size, group)
            if key not in self._costs:
                assert self.network is not None  # or `classes` had raised
                cost = self.network.price(operation, max(size, 0), group)
                self._costs[key] = cost.duration, self._number.get(cost, -1)
            durations[row], number = self._costs[key]
            if number >= 0:
                prices[row] = number
        columns = (durations, table.host, table.launch_cost, table.launch, table.gap)
        self._check_length(rank, sum(float(np.abs(c).sum(dtype=np.float64)) for c in columns))
        return durations, prices

    def _where(self, rank: int, row: int) -> str:
        table: Table = self.program.table_of(rank)
        name = self.program.names[table.name[row]]
        return f"rank {rank}, row {row} ({name}) of table {table.label!r}"

    def _check_length(self, rank: int, total: float) -> None:
        if not total < LONGEST:
            raise InputError(
                f"rank {rank}: its rows take {total * 1e-12:.3g} s, more than the "
                f"{LONGEST * 1e-12:.3g} s that a run can count (speed {self.program.speed[rank]})"
            )
