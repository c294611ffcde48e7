"""What an execution trace says: nodes, tensors, process groups, communications."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .et_tensors import Tensors

__all__ = ["EtCommunication", "ExecutionTrace", "ProcessGroup"]


@dataclass(frozen=True)
class ProcessGroup:
    """A process group as PyTorch recorded it; `ranks` is empty where it was not recorded."""

    name: str
    description: str
    backend: str
    ranks: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class EtCommunication:
    """One communication.

    Attributes
    ----------
    node : int
        Its position among the nodes of the trace.
    collective : str
        ``all_reduce``, ``all_to_all``, ``send``, …; for others the name as recorded.
    recorded_name : str
        As in the file, such as ``all_to_allv``.
    dtype : str
        As in the file: ``Float`` or ``float``, depending on the schema; empty without tensors.
    in_elements, out_elements, in_bytes, out_bytes : int
        Of this rank's own buffers; 0 where there is none.
    in_split, out_split : tuple of int
        Elements to and from each rank; empty if they are even.
    group_name, group_description : str
        Empty before schema 1.0.2.
    rank : int
        This rank's place in the group; -1 if not recorded, as in operations with a root or peer.
    peer : int
        Root of a broadcast, reduce, gather or scatter, other side of a send or receive, as a place
        in the group; -1 for other operations.
    rank_start, rank_stride, group_size : int
        The group's global ranks as a range; -1 (size 0) if not recorded.
    sequence : int
        Process-wide number of the operation; -1 if not recorded.
    """

    node: int
    collective: str
    recorded_name: str
    dtype: str
    in_elements: int
    out_elements: int
    in_bytes: int
    out_bytes: int
    in_split: tuple[int, ...]
    out_split: tuple[int, ...]
    group_name: str
    group_description: str
    rank: int
    peer: int
    rank_start: int
    rank_stride: int
    group_size: int
    sequence: int

    @property
    def bytes(self) -> int:
        """The full buffer: the larger of what goes in and what comes out."""
        return max(self.in_bytes, self.out_bytes)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks of the group, where they were recorded as a range; else empty."""
        if self.group_size < 1 or self.rank_start < 0 or self.rank_stride < 0:
            return ()
        if self.rank_stride == 0:
            return (self.rank_start,) if self.group_size == 1 else ()
        end = self.rank_start + self.group_size * self.rank_stride
        return tuple(range(self.rank_start, end, self.rank_stride))


@dataclass
class ExecutionTrace:
    """One rank's execution trace; nodes in order of begin.

    Attributes
    ----------
    path : Path
    schema : str
        As in the file, such as ``1.1.1-chakra.0.0.4``.
    id : int64, shape (n_nodes,)
        Identities of the nodes, ascending: they are given out as nodes begin, on all threads.
    name : list of str
    parent : int32
        Position of the enclosing node; -1 for the process itself.
    fw_parent : int32
        Of a node of the backward pass, the position of the forward node it belongs to; else -1.
    sequence : int64
        Autograd's number, shared by forward and backward; -1 without.
    record_id : int64
        Identity of the operator call (``rf_id``); 0 for threads and the process.
    scope, thread, forward_thread : int64
        As in the file.
    op_schema : list of str
        The operator's declaration with its alias annotations; empty for what is no operator.
    backend : list of str
        ``triton`` for compiled kernels; else empty.
    inputs, outputs : Tensors
    groups : dict of str to ProcessGroup
        By name. Empty for files older than these records.
    communications : list of EtCommunication
        In order of node, without the records of waiting for one.
    """

    path: Path
    schema: str
    pid: int
    size: int
    id: NDArray[np.int64]
    name: list[str]
    parent: NDArray[np.int32]
    fw_parent: NDArray[np.int32]
    sequence: NDArray[np.int64]
    record_id: NDArray[np.int64]
    scope: NDArray[np.int64]
    thread: NDArray[np.int64]
    forward_thread: NDArray[np.int64]
    op_schema: list[str]
    backend: list[str]
    inputs: Tensors
    outputs: Tensors
    groups: dict[str, ProcessGroup] = field(default_factory=dict)
    communications: list[EtCommunication] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.name)

    @property
    def rank(self) -> int | None:
        """The process's rank as its communications show it; None if they do not agree on one.

        Where groups are not recorded (schema 1.0.1) it is the rank in the only group there is.
        """
        said = {c.ranks[c.rank] for c in self.communications if 0 <= c.rank < len(c.ranks)}
        said = said or {c.rank for c in self.communications if c.rank >= 0 and not c.ranks}
        return said.pop() if len(said) == 1 else None

    def is_structure(self, node: int) -> bool:
        """Whether a node stands for the process or a thread, not for something that ran."""
        return self.name[node].startswith("[pytorch|profiler|")
