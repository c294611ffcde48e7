"""The tensors of an execution trace as columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..base.errors import TraceError

__all__ = ["Tensors", "Values", "tensor_columns"]

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
    """Elements from the first to the last of a view; -1 if it cannot be told."""
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
