"""What each communication holds of a GPU: thread blocks, and bytes that pass its memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.slowdown import Constants
from ..program import UNPRICED, Operation, Program, Table
from ..topo import Network
from ..topo.nccl.point_to_point import SEND_OPERATIONS as SENDS
from ..topo.network import bus_factor
from .timeline import alike

if TYPE_CHECKING:
    from ..topo.nccl import Nccl

__all__ = ["Held", "Resident", "Residents"]

Ints = NDArray[np.int64]


class Resident(NamedTuple):
    """One communication on a GPU.

    Attributes
    ----------
    operation : Operation
    bytes : int
        Of the full buffer; -1 if not known.
    ranks : int
    algorithm, protocol : str
        NCCL's; empty if the network's model has none.
    channels : int
        Thread blocks.
    traffic : float
        Bytes that pass the GPU's memory.
    alone : int
        ps from the arrival of the last member to the end, with the network to itself; `UNPRICED`
        if the network's model does not say.
    """

    operation: Operation
    bytes: int
    ranks: int
    algorithm: str
    protocol: str
    channels: int
    traffic: float
    alone: int


class Held(NamedTuple):
    """What the communications of a rank hold, `m` of them.

    Attributes
    ----------
    rows : int64, shape (m,)
        Of the table.
    which : int64, shape (m,)
        Entry of `Residents.known`.
    taken : int64, shape (m,)
        Multiprocessors.
    traffic : float64, shape (m,)
        Bytes that pass the GPU's memory.
    alone : int64, shape (m,)
        ps, with the network to itself and nothing computing.
    """

    rows: Ints
    which: Ints
    taken: Ints
    traffic: NDArray[np.float64]
    alone: Ints


class Residents:
    """Looks up what communications of a program hold, each kind once.

    Parameters
    ----------
    program : Program
    network : Network
        If it has NCCL's model (`nccl`), that says which channels communications use.
    constants : Constants
    """

    def __init__(self, program: Program, network: Network, constants: Constants) -> None:
        self.program, self.network, self.constants = program, network, constants
        groups = program.communicators
        self._label: Ints
        self._class: Sequence[Hashable]
        self._label, self._class = network.group_classes(
            groups.index, groups.members, program.operation_bits
        )
        self._sizes = groups.sizes
        self.known: list[Resident] = []
        self._entry: dict[tuple[int, int, int, int], int] = {}
        self._held: dict[tuple[int, bytes], Held] = {}

    def of(self, rank: int) -> Held:
        """Return what the communications of a rank hold."""
        table = self.program.table_of(rank)
        bound = self.program.slots_of(rank)
        kinds = np.stack([self._label[bound], self._sizes[bound]])
        key = int(self.program.table[rank]), kinds.tobytes()
        if key not in self._held:
            self._held[key] = self._look_up(table, kinds)
        return self._held[key]

    def _look_up(self, table: Table, kinds: Ints) -> Held:
        rows = np.flatnonzero(table.is_communication)
        slot = table.slot[rows]
        what = (table.operation[rows], table.bytes[rows], *kinds[:, slot])
        first, entry = alike(*what)
        different = np.stack([column[first] for column in what], axis=1).astype(np.int64)
        numbers = [self._number(tuple(each)) for each in different.tolist()]
        found = [self.known[number] for number in numbers]
        given = table.duration[rows]
        alone = np.array([each.alone for each in found], np.int64)[entry]
        return Held(
            rows=rows,
            which=np.array(numbers, np.int64)[entry],
            taken=np.array([self._taken(each) for each in found], np.int64)[entry],
            traffic=np.array([each.traffic for each in found], float)[entry],
            alone=np.where(given != UNPRICED, given, alone),
        )

    def _taken(self, resident: Resident) -> int:
        return round(resident.channels * self.constants.block.si)

    def _number(self, what: tuple[int, int, int, int]) -> int:
        if what not in self._entry:
            self._entry[what] = len(self.known)
            operation, size, label, ranks = what
            self.known.append(self._resident(Operation(operation), size, self._class[label], ranks))
        return self._entry[what]

    def _resident(self, operation: Operation, size: int, group: Hashable, ranks: int) -> Resident:
        algorithm = protocol = ""
        channels = round(self.constants.channels.si)
        if ranks == 1:  # nothing runs
            return Resident(operation, size, ranks, algorithm, protocol, 0, 0.0, 0)
        nccl: Nccl | None = getattr(self.network, "nccl", None)
        if nccl is not None:
            choice = nccl.choose(operation, max(size, 0), group.shape)  # type: ignore[attr-defined]
            algorithm, protocol, channels = choice.algorithm, choice.protocol, choice.channels
            if operation in SENDS and operation is not Operation.SEND_RECV:
                # Connections to each peer, on thread blocks that peers share.
                most = nccl.constants.raw["point-to-point"]["channels"]
                channels = min(channels * (ranks - 1), most)
        price = self.network.price(operation, max(size, 0), group)
        sent = max(size, 0) * bus_factor(operation, ranks)
        traffic = sent * self.constants.traffic(operation, algorithm).si
        return Resident(
            operation, size, ranks, algorithm, protocol, channels, traffic, price.duration
        )
