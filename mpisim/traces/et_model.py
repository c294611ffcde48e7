"""Contents of an execution trace: nodes, tensors, process groups, communications."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..base.errors import TraceError
from ..base.frozen import frozen

__all__ = [
    "EtCommunication",
    "ExecutionTrace",
    "ProcessGroup",
    "Tensors",
    "Values",
    "tensor_columns",
]

_DTYPE = re.compile(r"Tensor\(((?:[^()]|\([^()]*\))*)\)")


class Values(msgspec.Struct):
    """Inputs or outputs of a node, in the layout of schema 1.0.2 and later."""

    values: list[Any]
    shapes: list[Any] = []
    types: list[str] = []
    strides: list[Any] = []


@dataclass
class Tensors:
    """The tensors that the nodes were given, or returned, in order of node and argument.

    Those of node i are the entries ``index[i]`` to ``index[i + 1]``. Undefined tensors are left
    out; a list of tensors counts as one argument with several entries.

    Attributes
    ----------
    index : int64, shape (n_nodes + 1,)
    argument : int32
        Position in the operator's arguments (or results).
    tensor, storage : int64
        Identities in the trace. Views share a storage; numbers of freed storages come back.
    offset, elements : int64
        First element in the storage and number of elements of the view.
    extent : int64
        Elements from the first to the last of the view, both included; -1 where the trace does
        not tell (several dimensions and no strides, that is before schema 1.1.1).
    element_size : int64
        Bytes.
    dtype, device : int32
        Positions in `dtypes` and `devices`.
    """

    index: NDArray[np.int64]
    argument: NDArray[np.int32]
    tensor: NDArray[np.int64]
    storage: NDArray[np.int64]
    offset: NDArray[np.int64]
    elements: NDArray[np.int64]
    extent: NDArray[np.int64]
    element_size: NDArray[np.int64]
    dtype: NDArray[np.int32]
    device: NDArray[np.int32]
    dtypes: list[str]
    devices: list[str]

    def __len__(self) -> int:
        return len(self.tensor)

    def of(self, node: int) -> slice:
        """Return the entries of a node."""
        return slice(int(self.index[node]), int(self.index[node + 1]))


def tensor_columns(labels: Sequence[str], sides: Sequence[Values]) -> Tensors:
    """Return the columns of all tensors on one side of the nodes.

    Parameters
    ----------
    labels : sequence of str
        What an error message calls each node.
    sides : sequence of Values
        Inputs, or outputs, of each node.

    Raises
    ------
    TraceError
        If a tensor has a negative identity or size.
    """
    rows: list[tuple[int, ...]] = []
    dtypes: dict[str, int] = {}
    devices: dict[str, int] = {}
    index = [0]
    for label, side in zip(labels, sides):
        for argument, kind in enumerate(side.types):
            if "Tensor(" not in kind or argument >= len(side.values):
                continue
            shape, stride = _at(side.shapes, argument), _at(side.strides, argument)
            found = list(_walk(side.values[argument], shape, stride))
            # `zip_longest`: a list may name the type of its elements once.
            names = _dtypes(kind)
            for (value, shape, stride), name in zip_longest(found, names[: len(found)]):
                if value[1] == 0:
                    continue
                if min(value[:5]) < 0:
                    raise TraceError(f"{label}: impossible tensor {value}")
                dtype = dtypes.setdefault(name or names[-1], len(dtypes))
                device = devices.setdefault(value[5], len(devices))
                extent = _extent(value[3], shape, stride)
                rows.append((argument, *value[:4], extent, value[4], dtype, device))
        index.append(len(rows))
    columns = np.array(rows, np.int64).reshape(-1, 9).T.copy()
    return Tensors(
        index=np.array(index, np.int64),
        argument=columns[0].astype(np.int32),
        tensor=columns[1],
        storage=columns[2],
        offset=columns[3],
        elements=columns[4],
        extent=columns[5],
        element_size=columns[6],
        dtype=columns[7].astype(np.int32),
        device=columns[8].astype(np.int32),
        dtypes=list(dtypes),
        devices=list(devices),
    )


@lru_cache(maxsize=4096)
def _dtypes(kind: str) -> list[str]:
    return _DTYPE.findall(kind)


def _at(values: Any, i: int) -> Any:
    return values[i] if isinstance(values, list) and i < len(values) else None


def _walk(value: Any, shape: Any, stride: Any) -> Iterator[tuple[list[Any], Any, Any]]:
    if not isinstance(value, list):
        return
    if len(value) == 6 and isinstance(value[5], str) and all(type(v) is int for v in value[:5]):
        yield value, shape, stride
        return
    for i, part in enumerate(value):
        yield from _walk(part, _at(shape, i), _at(stride, i))


def _extent(elements: int, shape: Any, stride: Any) -> int:
    """Elements from the first to the last of a view; -1 if it is unknown."""
    if elements == 0:
        return 0
    if not isinstance(shape, list) or (len(shape) <= 1 and not stride):
        # One dimension is taken to be dense: strided vectors are rare.
        return elements
    if isinstance(stride, list) and len(stride) == len(shape):
        if not all(isinstance(value, int) for value in (*shape, *stride)):
            return -1
        return 1 + sum((n - 1) * step for n, step in zip(shape, stride))
    return -1


@frozen
class ProcessGroup:
    """A process group as PyTorch recorded it; `ranks` is empty where it was not recorded."""

    name: str
    description: str
    backend: str
    ranks: tuple[int, ...]
    size: int


@frozen
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
        Position of the enclosing node; -1 for the process itself, and where the file lacks it.
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
    arguments : list of (Values, Values)
        Inputs and outputs of each node as recorded, if they were asked for.
    n_orphans : int
        Nodes whose enclosing node is not in the file.
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
    arguments: list[tuple[Values, Values]] = field(default_factory=list)
    n_orphans: int = 0

    def __len__(self) -> int:
        return len(self.name)

    @property
    def rank(self) -> int | None:
        """The process's rank as its communications show it; None if they do not agree on one.

        Where groups are not recorded (schema 1.0.1) it is the rank in the only group there is.
        """
        ranks = {c.ranks[c.rank] for c in self.communications if 0 <= c.rank < len(c.ranks)}
        ranks = ranks or {c.rank for c in self.communications if c.rank >= 0 and not c.ranks}
        return ranks.pop() if len(ranks) == 1 else None

    def is_structure(self, node: int) -> bool:
        """Whether a node represents the process or a thread, not for something that ran."""
        return self.name[node].startswith("[pytorch|profiler|")
