"""Data dependencies between the operators of an execution trace.

**The level.** Operators nest: ``aten::linear`` calls ``aten::addmm``, both name the same tensors,
one kernel runs. A dependency is given once, on the innermost level that accounts for it. An
operator *computes* a storage if its record says that it writes it and no operator inside it does.
So ``aten::addmm`` computes here and ``aten::linear`` does not; ``aten::cudnn_convolution``, which
calls nothing but ``aten::empty``, does. A computing operator owns all that it reads; one that
computes nothing owns the reads that no operator inside it accounts for. Views, allocations and
changes of a tensor's description neither read nor write.

**The parts.** Dependencies are by parts of a storage where the trace tells them apart (its strides,
from schema 1.1.1 on, or one dimension), else by whole storages: then more operators seem to depend
on each other than do. What an operator hides is missing: a fused optimizer inside a backward
operator, or the statistics of a batch normalisation, are declared nowhere.

**Order.** Nodes are taken in order of begin. An operator reads when it begins and has written when
the last operator inside it has begun. Numbers of freed storages come back: an allocation forgets
what was written under its number before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .et_effects import Access, Effects, State, node_effects
from .et_model import ExecutionTrace

__all__ = ["DataDependencies", "data_dependencies"]


@dataclass(frozen=True)
class DataDependencies:
    """For every node, the earlier nodes that wrote what it reads.

    Those of node i are ``source[index[i] : index[i + 1]]``, ascending.

    Attributes
    ----------
    index : int64, shape (n_nodes + 1,)
    source : int32
        Positions of nodes in the execution trace.
    computes : bool, shape (n_nodes,)
        Whether a node reads or writes data by itself; others have no dependencies.
    """

    index: NDArray[np.int64]
    source: NDArray[np.int32]
    computes: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.source)

    def of(self, node: int) -> NDArray[np.int32]:
        """Return the nodes that a node depends on."""
        return self.source[self.index[node] : self.index[node + 1]]


def data_dependencies(et: ExecutionTrace) -> DataDependencies:
    """Find for every operator the earlier operators whose written data it reads.

    Parameters
    ----------
    et : ExecutionTrace

    Returns
    -------
    DataDependencies
        On the level described at the top of this module.
    """
    last = _last_inside(et)
    own = _own(et, _all_effects(et, last))
    found: list[set[int]] = [set() for _ in own]
    storages = _Storages()
    for node, begins in _timeline(et, last):
        effects = own[node]
        if begins:
            for part in effects.reads:
                found[node].update(storages.writers(part))
            continue
        for part in effects.allocates:
            storages.allocate(part)
        for part in effects.writes:
            storages.write(part, node)
    lengths = np.array([len(sources) for sources in found], np.int64)
    return DataDependencies(
        index=np.concatenate([[0], np.cumsum(lengths)]),
        source=np.array([s for sources in found for s in sorted(sources)], np.int32),
        computes=np.array([bool(e.reads or e.writes) for e in own], np.bool_),
    )


class _Storages:
    """Who wrote what is in each storage now."""

    def __init__(self) -> None:
        self._parts: dict[int, list[tuple[int, Access]]] = {}
        self._size: dict[int, int] = {}

    def allocate(self, part: Access) -> None:
        self._parts[part.storage] = []
        self._size[part.storage] = part.begin + part.size

    def write(self, part: Access, node: int) -> None:
        size = max(self._size.get(part.storage, 0), part.begin + part.size)
        self._size[part.storage] = size
        parts = self._parts.get(part.storage, [])
        if part.begin == 0 and part.size >= size:
            parts = []
        self._parts[part.storage] = [p for p in parts if not _covers(part, p[1])] + [(node, part)]

    def writers(self, part: Access) -> Iterator[int]:
        size = max(self._size.get(part.storage, 0), part.begin + part.size)
        self._size[part.storage] = size
        for node, written in self._parts.get(part.storage, ()):
            if not _apart(part, written):
                yield node


def _covers(new: Access, old: Access) -> bool:
    """Whether nothing is left of an earlier write."""
    if new.tensor == old.tensor and (new.begin, new.size) == (old.begin, old.size):
        return True
    return new.is_dense and new.begin <= old.begin and 0 <= old.end <= new.end


def _apart(a: Access, b: Access) -> bool:
    """Whether two parts of a storage surely have no byte in common."""
    return 0 <= a.end <= b.begin or 0 <= b.end <= a.begin


def _last_inside(et: ExecutionTrace) -> list[int]:
    """Return for every node the last node inside it, or itself."""
    last = list(range(len(et)))
    for node in range(len(et) - 1, 0, -1):
        parent = int(et.parent[node])
        if parent >= 0:
            last[parent] = max(last[parent], last[node])
    return last


def _timeline(et: ExecutionTrace, last: list[int]) -> Iterator[tuple[int, bool]]:
    """Yield every node twice, when it begins (True) and when it has ended (False)."""
    ending: dict[int, list[int]] = {}
    for node, end in enumerate(last):
        ending.setdefault(end, []).append(node)
    for node in range(len(et)):
        yield node, True
        for done in reversed(ending.get(node, ())):
            yield done, False


def _all_effects(et: ExecutionTrace, last: list[int]) -> list[Effects]:
    """Return what every node does by its own record."""
    state: dict[int, State] = {}
    effects: list[Effects] = [Effects([], [], []) for _ in range(len(et))]
    for node, begins in _timeline(et, last):
        if begins:
            effects[node] = node_effects(et, node, state)
            for part in effects[node].reads:
                state.setdefault(part.storage, State.GIVEN)
            continue
        for part in effects[node].allocates:
            if last[node] == node:
                state[part.storage] = State.ALLOCATED
        for part in effects[node].writes:
            state[part.storage] = State.WRITTEN
    return effects


def _own(et: ExecutionTrace, effects: list[Effects]) -> list[Effects]:
    """Leave each effect to the innermost node that accounts for it."""
    read: list[set[int]] = [set() for _ in effects]
    written: list[set[int]] = [set() for _ in effects]
    made: list[set[int]] = [set() for _ in effects]
    own: list[Effects] = [Effects([], [], []) for _ in effects]
    for node in range(len(effects) - 1, -1, -1):
        e = effects[node]
        writes = [part for part in e.writes if part.storage not in written[node]]
        allocates = [part for part in e.allocates if part.storage not in made[node] | written[node]]
        reads = e.reads if writes else [p for p in e.reads if p.storage not in read[node]]
        own[node] = Effects(reads, writes, allocates)
        parent = int(et.parent[node])
        if parent >= 0:
            read[parent] |= read[node] | {part.storage for part in reads}
            written[parent] |= written[node] | {part.storage for part in writes}
            made[parent] |= made[node] | {part.storage for part in allocates}
        read[node] = written[node] = made[node] = set()
    return own
