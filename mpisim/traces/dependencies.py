"""Execution trace → what operators read and write → data dependencies between them.

**Accesses.** PyTorch declares for each operator which arguments it changes: ``Tensor(a!) self`` is
written, ``Tensor(a) self`` is returned as a view, a plain ``Tensor`` is read. These declarations,
and a few rules for operators without one, become one record per tensor of each node.

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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from .et_model import ExecutionTrace, Tensors

__all__ = ["Access", "DataDependencies", "Effects", "State", "access", "data_dependencies"]

_T = TypeVar("_T")


@frozen(slots=True)
class Access:
    """A part of a storage, in bytes.

    Attributes
    ----------
    storage, tensor : int
    begin, end : int
        Where the part lies; `end` is -1 where the trace does not tell.
    size : int
        Bytes of the elements themselves.
    """

    storage: int
    tensor: int
    begin: int
    end: int
    size: int

    @property
    def is_dense(self) -> bool:
        """Whether every byte between begin and end belongs to it."""
        return self.end == self.begin + self.size


@dataclass(slots=True)
class Effects:
    """What a node does to storages, by its own record.

    `reads` and `writes` are existing data; `allocates` are storages that came into being, filled
    by the operator (then also in `writes`) or not.
    """

    reads: list[Access]
    writes: list[Access]
    allocates: list[Access]


class State(Enum):
    """What the trace has shown of a storage so far."""

    GIVEN = 0
    """Named as an argument only: it was filled before the trace began."""
    ALLOCATED = 1
    """Came into being, nothing written yet."""
    WRITTEN = 2


class _Role(Enum):
    READ = 0
    WRITE = 1
    UPDATE = 2
    """Read and written."""
    IGNORE = 3
    """Only sizes, types and the like are used."""


# Declared as writing their argument, but only to its description.
_DESCRIBE = {
    "as_strided_",
    "detach_",
    "record_stream",
    "rename_",
    "requires_grad_",
    "resize_",
    "resize_as_",
    "set_",
    "squeeze_",
    "swapaxes_",
    "swapdims_",
    "t_",
    "transpose_",
    "unsqueeze_",
}
# Overwrite their argument without a look at it.
_OVERWRITE = {
    "_foreach_copy_",
    "_foreach_zero_",
    "bernoulli_",
    "cauchy_",
    "copy_",
    "exponential_",
    "eye_",
    "fill_",
    "geometric_",
    "log_normal_",
    "normal_",
    "random_",
    "uniform_",
    "zero_",
}
# Return memory that nothing has been written to.
_ALLOCATE = {
    "_empty_affine_quantized",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}


@frozen
class _Declaration:
    """An operator's declaration: the role of each argument; of each result whether it is new."""

    arguments: tuple[_Role, ...]
    results_new: tuple[bool, ...]
    fills_results: bool


def node_effects(et: ExecutionTrace, node: int, state: Mapping[int, State]) -> Effects:
    """Return what a node reads, writes and allocates.

    Views read and write nothing. A result that lies in the storage of an argument is a view (or the
    argument itself), whatever its declaration says. Of nodes without a declaration:
    communications write their results; others (autograd's nodes, annotations) only read. A compiled
    (Triton) kernel does not say which buffers it fills: it is taken to write those that nothing has
    been written to, to read those that existed before the trace (parameters), and to do both to
    those in between.

    Parameters
    ----------
    et : ExecutionTrace
    node : int
    state : mapping of int to State
        Storages named earlier in the trace.
    """
    effects = Effects([], [], [])
    name, schema = et.name[node], et.op_schema[node]
    inputs = [(int(et.inputs.argument[i]), access(et.inputs, i)) for i in _span(et.inputs, node)]
    results = [
        (int(et.outputs.argument[i]), access(et.outputs, i)) for i in _span(et.outputs, node)
    ]
    if name == "record_param_comms":
        effects.reads = [a for _, a in inputs]
        effects.writes = [a for _, a in results]
    elif et.backend[node] == "triton":
        for _, part in inputs:
            known = state.get(part.storage, State.ALLOCATED)
            if known is not State.ALLOCATED:
                effects.reads.append(part)
            if known is not State.GIVEN:
                effects.writes.append(part)
    elif not schema:
        effects.reads = [a for _, a in inputs]
    else:
        declared = _declaration(schema)
        for position, part in inputs:
            role = _at(declared.arguments, position, _Role.READ)
            if role in (_Role.READ, _Role.UPDATE):
                effects.reads.append(part)
            if role in (_Role.WRITE, _Role.UPDATE):
                effects.writes.append(part)
        given = {part.storage for _, part in inputs}
        for position, part in results:
            if part.storage in given or not _at(declared.results_new, position, True):
                continue
            effects.allocates.append(part)
            if declared.fills_results:
                effects.writes.append(part)
    effects.reads = [part for part in effects.reads if part.size]
    effects.writes = [part for part in effects.writes if part.size]
    return effects


def access(tensors: Tensors, i: int) -> Access:
    """Return the part of storage behind entry i.

    Parameters
    ----------
    tensors : Tensors
    i : int
        Position in its columns, from 0.
    """
    width = int(tensors.element_size[i])
    begin = int(tensors.offset[i]) * width
    extent = int(tensors.extent[i])
    return Access(
        storage=int(tensors.storage[i]),
        tensor=int(tensors.tensor[i]),
        begin=begin,
        end=-1 if extent < 0 else begin + extent * width,
        size=int(tensors.elements[i]) * width,
    )


def _span(tensors: Tensors, node: int) -> range:
    span = tensors.of(node)
    return range(span.start, span.stop)


def _at(values: Sequence[_T], i: int, default: _T) -> _T:
    return values[i] if i < len(values) else default


@lru_cache(maxsize=8192)
def _declaration(schema: str) -> _Declaration:
    """Parse ``namespace::name.overload(arguments) -> results``."""
    head, _, rest = schema.partition("(")
    name = head.partition("::")[2].partition(".")[0]
    inside, after = _closed(rest)
    arguments: list[_Role] = []
    keyword_only = False
    for text in _split(inside):
        if text == "*":
            keyword_only = True
            continue
        arguments.append(_role(head, name, text, keyword_only))
    results = after.partition("->")[2].strip()
    if results.startswith("("):
        results = _closed(results[1:])[0]
    return _Declaration(
        arguments=tuple(arguments),
        results_new=tuple("(" not in text.split(" ")[0] for text in _split(results)),
        fills_results=name not in _ALLOCATE,
    )


def _role(head: str, name: str, text: str, keyword_only: bool) -> _Role:
    kind, _, label = text.partition("=")[0].rpartition(" ")
    if not kind.startswith("Tensor"):
        return _Role.IGNORE
    if name in _ALLOCATE or name in _DESCRIBE:
        return _Role.IGNORE
    if head.startswith("c10d::"):
        # Not annotated. Some fill an output they are given, the others work in place.
        if label.startswith("output"):
            return _Role.WRITE
        in_place = name.endswith("_") and label == "tensors"
        return _Role.UPDATE if in_place else _Role.READ
    if "!" not in kind:
        # An argument that is returned as a view is not looked at.
        return _Role.IGNORE if "(" in kind else _Role.READ
    if (keyword_only and "out" in label) or name in _OVERWRITE:
        return _Role.WRITE
    return _Role.UPDATE


def _closed(text: str) -> tuple[str, str]:
    """Split behind the bracket that closes the one before the text."""
    depth = 1
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[:i], text[i + 1 :]
    return text, ""


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    parts, depth, begin = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(text[begin:i].strip())
            begin = i + 1
    parts.append(text[begin:].strip())
    return [part for part in parts if part]


@frozen
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
            if not _surely_disjoint(part, written):
                yield node


def _covers(new: Access, old: Access) -> bool:
    """Whether nothing is left of an earlier write."""
    if new.tensor == old.tensor and (new.begin, new.size) == (old.begin, old.size):
        return True
    return new.is_dense and new.begin <= old.begin and 0 <= old.end <= new.end


def _surely_disjoint(a: Access, b: Access) -> bool:
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
