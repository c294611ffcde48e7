"""What each operator of an execution trace reads and writes, from its declaration.

PyTorch declares for each operator which arguments it changes: ``Tensor(a!) self`` is written,
``Tensor(a) self`` is returned as a view, a plain ``Tensor`` is read. Here these declarations, and a
few rules for what has none, become one record per tensor of each node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TypeVar

from .et_model import ExecutionTrace
from .et_tensors import Tensors

__all__ = ["Access", "Effects", "State", "access", "node_effects"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True)
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
    """Return the part of storage behind entry i."""
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
