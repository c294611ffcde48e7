"""A communication as a Kineto event: its operator, annotation, kernel name, group, sizes and peers.

Names are those of PyTorch 2.1 to 2.6; `mpisim.traces.communications` reads them back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..program import Kind, Operation, Table

__all__ = [
    "NAMES",
    "Arguments",
    "Communicated",
    "Communicator",
    "Event",
    "RankRun",
    "kernel_name",
    "note_name",
    "sizes",
]


@frozen
class Communicated:
    """The names of one kind of communication.

    Attributes
    ----------
    operator : str
        CPU operator ``c10d::…`` that issues it.
    note : str
        User annotation around the launch.
    collective : str
        Argument ``Collective name``; empty where there is none.
    kernel : str
        Middle part of the kernel's name.
    reduces : bool
        Whether the kernel's name says what is reduced and in which type.
    """

    operator: str
    note: str
    collective: str
    kernel: str
    reduces: bool = False


NAMES: dict[Operation, Communicated] = {
    Operation.ALL_REDUCE: Communicated(
        "c10d::allreduce_", "nccl:all_reduce", "allreduce", "AllReduce", True
    ),
    Operation.ALL_GATHER: Communicated(
        "c10d::_allgather_base_", "nccl:_all_gather_base", "_allgather_base", "AllGather"
    ),
    Operation.REDUCE_SCATTER: Communicated(
        "c10d::_reduce_scatter_base_",
        "nccl:_reduce_scatter_base",
        "_reduce_scatter_base",
        "ReduceScatter",
        True,
    ),
    Operation.BROADCAST: Communicated(
        "c10d::broadcast_", "nccl:broadcast", "broadcast", "Broadcast"
    ),
    Operation.REDUCE: Communicated("c10d::reduce_", "nccl:reduce", "reduce", "Reduce", True),
    Operation.ALL_TO_ALL: Communicated(
        "c10d::alltoall_base_", "nccl:all_to_all", "all_to_allv", "SendRecv"
    ),
    Operation.GATHER: Communicated("c10d::gather_", "nccl:gather", "gather", "SendRecv"),
    Operation.SCATTER: Communicated("c10d::scatter_", "nccl:scatter", "scatter", "SendRecv"),
    Operation.BARRIER: Communicated(
        "c10d::barrier", "nccl:all_reduce_barrier", "barrier", "AllReduce", True
    ),
    Operation.UNKNOWN: Communicated("c10d::unknown", "nccl:unknown", "", "Generic"),
}

SEND = Communicated("c10d::send", "nccl:send", "send", "SendRecv")
RECV = Communicated("c10d::recv_", "nccl:recv", "recv", "SendRecv")


def names_of(kind: Kind, operation: Operation) -> Communicated:
    """Return the names of a communication row.

    Parameters
    ----------
    kind : Kind
        A collective, a send or a receive.
    operation : Operation
        Counts for a collective only.
    """
    if kind is Kind.COLLECTIVE:
        return NAMES[operation]
    return SEND if kind is Kind.SEND else RECV


def note_name(names: Communicated, source: int, target: int, old: bool) -> str:
    """Return the annotation's name; recent files say between which ranks a message goes.

    Parameters
    ----------
    names : Communicated
    source, target : int
        Ranks that send and receive; -1 for a collective.
    old : bool
        Whether the file is to look like one of an older PyTorch, which names no ranks.
    """
    if old or source < 0:
        return names.note
    return (
        f"{names.note} {source}->{target}" if names is SEND else f"{names.note} {target}<-{source}"
    )


def kernel_name(names: Communicated, width: int, old: bool) -> str:
    """Return the kernel's name; `width` is the size of an element in bytes, 4 or 1.

    Parameters
    ----------
    names : Communicated
    width : {4, 1}
        Bytes an element.
    old : bool
        Whether the kernel has the arguments of older NCCL.
    """
    middle = (
        f"{names.kernel}_Sum_{'f32' if width == 4 else 'u8'}" if names.reduces else names.kernel
    )
    ring = "" if names.kernel in ("SendRecv", "Generic") else "_RING_LL"
    arguments = (
        "ncclDevComm*, unsigned long, ncclWork*" if old else ("ncclDevKernelArgsStorage<4096ul>")
    )
    return f"ncclDevKernel_{middle}{ring}({arguments})"


def sizes(operation: Operation, total: int, members: int) -> tuple[int, int, int]:
    """Return elements in, elements out and bytes an element of a buffer of `total` bytes.

    An all-gather's input and a reduce-scatter's output are one member's share.

    Parameters
    ----------
    operation : Operation
    total : int
        Bytes of the whole buffer, 0 or more.
    members : int
        Number of ranks of the group, 1 or more.

    Examples
    --------
    >>> sizes(Operation.ALL_GATHER, 4096, 8)
    (128, 1024, 4)
    >>> sizes(Operation.ALL_REDUCE, 7, 2)
    (7, 7, 1)
    """
    shares = operation in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
    width = 4 if total % (4 * members if shares else 4) == 0 else 1
    whole = total // width
    share = whole // members if shares else whole
    if operation is Operation.ALL_GATHER:
        return share, whole, width
    return whole, share, width


MAX_RANKS_SHOWN = 30
"""The profiler cuts longer lists of ranks."""

Event = dict[str, Any]
"""An event, or the arguments of one, as in the file."""


@frozen
class Communicator:
    """A communicator as a file shows it: its name, and its members by global rank."""

    name: str
    members: tuple[int, ...]


class Around(NamedTuple):
    """A span of the CPU around launches: an operator, or a module.

    Attributes
    ----------
    category : str
        Of its event: ``cpu_op``, ``user_annotation``, ``python_function``.
    name : str
    args : dict
    last : int
        First row of the last launch inside; -1: it launches nothing, and comes behind the launch of
        the row under which it is listed.
    """

    category: str
    name: str
    args: Event
    last: int


@frozen
class RankRun:
    """One rank of a run.

    Attributes
    ----------
    number : int
        Global rank.
    table : Table
    names : sequence of str
        Names of rows.
    groups : list of Communicator
        Of each communicator slot.
    start : int
        When the rank's host started, in ps.
    begin, end : int64, shape (n_rows,)
        As in `mpisim.engine.rows.Rows`, in ps.
    row_arguments : callable, optional
        Launch of a row, by its first row → further arguments of its operation on the device.
    step : int, optional
        Number of the profiled step that all rows are, where the table knows of no steps.
    around : mapping of int to sequence of Around, optional
        Operators and modules around launches, by the first row of the first; the outermost first.
    """

    number: int
    table: Table
    names: Sequence[str]
    groups: list[Communicator]
    start: int
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    row_arguments: Callable[[int], Event] | None = None
    step: int | None = None
    around: Mapping[int, Sequence[Around]] = field(default_factory=dict)


class Arguments:
    """Describes the communications of one rank."""

    def __init__(self, run: RankRun) -> None:
        self.run = run
        self.ordinal = run.table.ordinal.tolist()

    def names(self, row: int) -> Communicated:
        """Row → names of its operator, annotation and kernel."""
        return names_of(
            Kind(int(self.run.table.kind[row])), Operation(int(self.run.table.operation[row]))
        )

    def group(self, row: int) -> Communicator:
        """Row of a communication → its process group."""
        return self.run.groups[int(self.run.table.slot[row])]

    def sizes(self, row: int) -> tuple[int, int, int]:
        """Elements in, elements out and bytes an element; -1 elements where unknown."""
        table = self.run.table
        total = int(table.bytes[row])
        members = len(self.group(row).members)
        operation = Operation(int(table.operation[row]))
        return sizes(operation, total, members) if total >= 0 else (-1, -1, 4)

    def input(self, row: int) -> Event:
        """Shape of what a communication takes."""
        taken, _, width = self.sizes(row)
        return _shapes([taken], width)

    def tensors(self, row: int) -> Event:
        """Shapes of an operator's tensors: output first, as the ``_base`` operators have them."""
        if self.run.table.operation[row] == Operation.ALL_GATHER:
            taken, given, width = self.sizes(row)
            return _shapes([given, taken], width)
        return self.input(row)

    def arguments(self, batch: list[int]) -> Event:
        """What recent files tell of a launch, on its operator and on its kernel."""
        row, group = batch[0], self.group(batch[0])
        collective = self.names(row).collective if len(batch) == 1 else "coalesced"
        taken, given, width = self.sizes(row)
        members = group.members
        shown = list(map(str, members))
        if len(shown) > MAX_RANKS_SHOWN:
            shown = [*shown[: MAX_RANKS_SHOWN // 2], "...", *shown[-MAX_RANKS_SHOWN // 2 :]]
        args: Event = {"Collective name": collective} if collective else {}
        if taken >= 0:
            args |= {
                "In msg nelems": taken,
                "Out msg nelems": given,
                "dtype": "Float" if width == 4 else "Byte",
            }
        args |= {
            "Group size": len(members),
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": group.name,
            "Process Group Description": group.name,
            "Process Group Ranks": f"[{', '.join(shown)}]",
            "Seq": int(self.ordinal[row]),
        }
        if self.run.table.kind[row] != Kind.COLLECTIVE and len(batch) == 1:
            args |= {"Src Rank": members[0], "Dst Rank": members[1]}
        return args


def _shapes(elements: list[int], width: int) -> Event:
    if min(elements) < 0:
        return {}
    kind = "float" if width == 4 else "unsigned char"
    return {"Input Dims": [[n] for n in elements], "Input type": [kind] * len(elements)}
