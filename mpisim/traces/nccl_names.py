"""How PyTorch and NCCL call a communication: operator, annotation, collective and kernel.

As in the files of PyTorch 2.1 to 2.6; `mpisim.traces.communications` reads these names back.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..program import Kind, Operation

__all__ = ["NAMES", "Communicated", "kernel_name", "note_name", "sizes"]


@dataclass(frozen=True)
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
    """Return the names of a communication row."""
    if kind is Kind.COLLECTIVE:
        return NAMES[operation]
    return SEND if kind is Kind.SEND else RECV


def note_name(names: Communicated, source: int, target: int, old: bool) -> str:
    """Return the annotation's name; recent files say between which ranks a message goes."""
    if old or source < 0:
        return names.note
    return (
        f"{names.note} {source}->{target}" if names is SEND else f"{names.note} {target}<-{source}"
    )


def kernel_name(names: Communicated, width: int, old: bool) -> str:
    """Return the kernel's name; `width` is the size of an element in bytes, 4 or 1."""
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
