"""Kernels of communications: the multiprocessors and memory traffic that each takes of a GPU."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.slowdown import SlowdownConstants
from ..program import UNPRICED, Flag, Kind, Operation, Program, Table
from ..topo import Network
from ..topo.nccl.point_to_point import SEND_OPERATIONS as SENDS
from ..topo.network import bus_factor
from ._core.rows import distinct_communications
from .timeline import Orders

if TYPE_CHECKING:
    from ..topo.nccl import Nccl

__all__ = ["CommunicationKernel", "CommunicationKernels", "RankCommunications"]

Ints = NDArray[np.int64]

_COPY_ENGINE, _SEND = int(Flag.COPY_ENGINE), int(Kind.SEND)
"""As plain integers, which numpy combines with arrays faster than members of an IntEnum."""


class CommunicationKernel(NamedTuple):
    """The kernel of one communication on a GPU.

    Attributes
    ----------
    operation : Operation
    bytes : int
        Of the full buffer; -1 if unknown.
    ranks : int
    algorithm, protocol : str
        NCCL's; empty if the network's model has none.
    channels : int
        Thread blocks, one a channel; where a copy engine moves the data, the one that waits.
    traffic : float
        Bytes read from and written to the GPU's memory.
    alone : int
        Network price in ps: from the arrival of the last member to the end.
    fits_buffers : bool
        Whether a send ends without its receiver (`Nccl.fits_buffers`).
    """

    operation: Operation
    bytes: int
    ranks: int
    algorithm: str
    protocol: str
    channels: int
    traffic: float
    alone: int
    fits_buffers: bool = False


class RankCommunications(NamedTuple):
    """The communications of a rank, `m` of them.

    Attributes
    ----------
    rows : int64, shape (m,)
        Of the table.
    which : int64, shape (m,)
        Entry of `CommunicationKernels.distinct`.
    taken : int64, shape (m,)
        Multiprocessors that each occupies.
    traffic : float64, shape (m,)
        Bytes read from and written to the GPU's memory.
    alone : int64, shape (m,)
        Wire time in ps without slowdown.
    orders : Orders
    is_given : bool, shape (m,)
        Whether the table says how long each takes, and not the network.
    is_buffered : bool, shape (m,)
        Sends that end without their receiver.
    """

    rows: Ints
    which: Ints
    taken: Ints
    traffic: NDArray[np.float64]
    alone: Ints
    orders: Orders
    is_given: NDArray[np.bool_]
    is_buffered: NDArray[np.bool_]

    def occupied(self, begin: Ints, wire: Ints, end: Ints) -> tuple[Ints, Ints]:
        """When data moved, and when the communications ended → the same of their kernels.

        The kernel of a send that fits into buffers moves its data at once, and is gone while they
        wait for the receiver.

        Parameters
        ----------
        begin, wire, end : int64, shape (m,)
            When each began, when data moved for all of its members, and when it ended, in ps.
        """
        if not self.is_buffered.any():
            return wire, end
        return (
            np.where(self.is_buffered, begin, wire),
            np.where(self.is_buffered, begin + (end - wire), end),
        )


class CommunicationKernels:
    """Looks up the kernels of a program's communications, each distinct one once.

    Parameters
    ----------
    program : Program
    network : Network
        Prices communications; NCCL's model (`nccl`), if it has one, gives their channels.
    constants : SlowdownConstants
        Of the slowdown model.
    """

    def __init__(self, program: Program, network: Network, constants: SlowdownConstants) -> None:
        self.program, self.network, self.constants = program, network, constants
        groups = program.communicators
        self._label: Ints
        self._class: Sequence[Hashable]
        self._label, self._class = network.group_classes(
            groups.index, groups.members, program.operation_bits
        )
        self._sizes = groups.sizes
        self.distinct: list[CommunicationKernel] = []
        self._entry: dict[tuple[int, int, int, int, int], int] = {}
        self._of_key: dict[tuple[int, bytes, bytes], RankCommunications] = {}
        self._key_of_rank: dict[int, tuple[int, bytes, bytes]] = {}

    def of(self, rank: int) -> RankCommunications:
        """Return the communications of a rank."""
        key = self.key_of(rank)
        if key not in self._of_key:
            self._of_key[key] = self._look_up(self.program.table_of(rank), *self._kinds(rank))
        return self._of_key[key]

    def key_of(self, rank: int) -> tuple[int, bytes, bytes]:
        """Return a key that is equal for ranks with equal communications."""
        if rank not in self._key_of_rank:
            label, sizes = self._kinds(rank)
            key = int(self.program.table[rank]), label.tobytes(), sizes.tobytes()
            self._key_of_rank[rank] = key
        return self._key_of_rank[rank]

    def _kinds(self, rank: int) -> tuple[Ints, Ints]:
        """Return cost class and size of the communicator of each slot, shape (n_slots,) each."""
        bound = self.program.slots_of(rank)
        return self._label[bound], self._sizes[bound]

    def _look_up(self, table: Table, label: Ints, sizes: Ints) -> RankCommunications:
        rows = table.communications
        columns = table.operation, table.bytes, table.slot, table.flags
        first, entry = distinct_communications(rows, *columns, _COPY_ENGINE)
        distinct = zip(*(column[first].tolist() for column in columns), strict=True)
        label_of, size_of = label.tolist(), sizes.tolist()
        numbers = [
            self._number((operation, size, label_of[slot], size_of[slot], flags & _COPY_ENGINE))
            for operation, size, slot, flags in distinct
        ]
        found = [self.distinct[number] for number in numbers]
        given = table.duration[rows]
        is_given = given != UNPRICED
        alone = np.array([each.alone for each in found], np.int64)[entry]
        taken = np.array([self._taken(each) for each in found], np.int64)[entry]
        return RankCommunications(
            rows=rows,
            which=np.array(numbers, np.int64)[entry],
            taken=taken,
            traffic=np.array([each.traffic for each in found], float)[entry],
            alone=np.where(is_given, given, alone),
            orders=Orders.of(taken, table.stream[rows]),
            is_given=is_given,
            is_buffered=np.array([each.fits_buffers for each in found], bool)[entry]
            & (table.kind[rows] == _SEND),
        )

    def _taken(self, kernel: CommunicationKernel) -> int:
        return round(kernel.channels * self.constants.block.si)

    def _number(self, key: tuple[int, int, int, int, int]) -> int:
        if key not in self._entry:
            self._entry[key] = len(self.distinct)
            operation, size, label, ranks, is_copied = key
            kernel = self._kernel(Operation(operation), size, self._class[label], ranks)
            if is_copied:
                kernel = kernel._replace(channels=1)
            self.distinct.append(kernel)
        return self._entry[key]

    def _kernel(
        self, operation: Operation, size: int, group: Hashable, ranks: int
    ) -> CommunicationKernel:
        algorithm = protocol = ""
        channels = round(self.constants.channels.si)
        if ranks == 1:  # nothing runs
            return CommunicationKernel(operation, size, ranks, algorithm, protocol, 0, 0.0, 0)
        if operation is Operation.UNKNOWN:  # recorded, so that its time is given
            return CommunicationKernel(
                operation, size, ranks, algorithm, protocol, channels, 0.0, 0
            )
        fits_buffers = False
        nccl: Nccl | None = getattr(self.network, "nccl", None)
        if nccl is not None:
            choice = nccl.choose(operation, max(size, 0), group.shape)  # type: ignore[attr-defined]
            algorithm, protocol, channels = choice.algorithm, choice.protocol, choice.channels
            if operation in SENDS and operation is not Operation.SEND_RECV:
                # Connections to each peer, on thread blocks that peers share.
                max_channels = nccl.constants.raw["point-to-point"]["channels"]
                channels = min(channels * (ranks - 1), max_channels)
            elif operation is Operation.SEND_RECV:
                shape = group.shape  # type: ignore[attr-defined]
                fits_buffers = nccl.fits_buffers(max(size, 0), shape)
        price = self.network.price(operation, max(size, 0), group)
        sent = max(size, 0) * bus_factor(operation, ranks)
        traffic = sent * self.constants.traffic(operation, algorithm).si
        return CommunicationKernel(
            *(operation, size, ranks, algorithm, protocol, channels, traffic, price.duration),
            fits_buffers,
        )
