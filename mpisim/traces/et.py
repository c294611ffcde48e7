"""PyTorch Execution Trace (ET) file → nodes with their tensors, in order of execution.

An ET holds no times and no GPU kernels; :mod:`mpisim.traces.link` joins it to the Kineto trace of
the same rank, which does. Two layouts are in use: up to schema 1.0.1 every fact is a key of the
node; from 1.0.2 on ``inputs`` and ``outputs`` are objects and the rest is a list of attributes.
Everything above this module sees one form.
"""

from __future__ import annotations

import gc
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..base.errors import TraceError
from .et_communications import communications, process_groups
from .et_model import ExecutionTrace, Values, tensor_columns
from .raw import not_json, open_text, read_head

__all__ = ["is_execution_trace", "read_et"]

_SCHEMA = re.compile(r"^1\.\d+(\.\d+)*(-chakra\.\d+(\.\d+)*)?$")
_WHOLE = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid")


class _Attribute(msgspec.Struct):
    name: str
    value: Any = None


class _Node(msgspec.Struct):
    """A node of either layout."""

    id: int
    name: str
    inputs: list[Any] | Values
    outputs: list[Any] | Values
    ctrl_deps: int | None = None
    attrs: list[_Attribute] | None = None
    parent: int | None = None
    rf_id: int | None = None
    fw_parent: int | None = None
    seq_id: int | None = None
    scope: int | None = None
    tid: int | None = None
    fw_tid: int | None = None
    op_schema: str | None = None
    input_shapes: list[Any] = []
    input_types: list[str] = []
    output_shapes: list[Any] = []
    output_types: list[str] = []


class _File(msgspec.Struct):
    schema: str
    nodes: list[_Node]
    pid: int = 0


_DECODER = msgspec.json.Decoder(_File)


def is_execution_trace(path: Path | str) -> bool:
    """Whether the head of a file looks like a PyTorch execution trace.

    Raises
    ------
    TraceError
        If the file cannot be read.
    """
    head = read_head(Path(path))
    return (
        head.lstrip()[:1] == b"{"
        and b'"schema"' in head
        and b'"nodes"' in head
        and b'"traceEvents"' not in head
    )


def read_et(path: Path | str, *, arguments: bool = False) -> ExecutionTrace:
    """Read one execution trace (``.json`` or ``.json.gz``), schemas 1.0.1 to 1.1.1.

    Parameters
    ----------
    path : Path or str
    arguments : bool
        Whether to keep what each node was given and returned.

    Raises
    ------
    TraceError
        If the file cannot be read, is no execution trace, has another schema, or contradicts
        itself: missing keys, an identity twice, a parent that began later.
    """
    path = Path(path)
    text = open_text(path)
    # Everything made here stays: looking for garbage would take a third of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _columns(path, _parse(path, text), len(text), arguments)
    except OverflowError:
        raise TraceError(f"{path}: holds a number of more than 64 bits") from None
    finally:
        if collects:
            gc.enable()


def _columns(path: Path, parsed: _File, size: int, arguments: bool) -> ExecutionTrace:
    nodes = parsed.nodes
    if not _SCHEMA.match(parsed.schema):
        raise TraceError(
            f"{path}: unknown execution trace schema {parsed.schema!r}; versions 1.x are read "
            "(1.0.1 to 1.1.1-chakra.0.0.4 are known)"
        )
    nodes.sort(key=lambda node: node.id)
    facts = [_facts(path, node) for node in nodes]
    position = {node.id: i for i, node in enumerate(nodes)}
    _check(path, nodes, facts, position)
    values = [(_values(n.inputs, n, "input"), _values(n.outputs, n, "output")) for n in nodes]
    labels = [f"{path}: node {node.id} ({node.name!r})" for node in nodes]
    columns = {key: np.array([f[key] for f in facts], np.int64) for key in _WHOLE}
    et = ExecutionTrace(
        path=path,
        schema=parsed.schema,
        pid=parsed.pid,
        size=size,
        id=np.array([node.id for node in nodes], np.int64),
        name=[node.name for node in nodes],
        parent=np.array(
            [
                -1 if f["parent"] == n.id else position.get(f["parent"], -1)
                for n, f in zip(nodes, facts)
            ],
            np.int32,
        ),
        fw_parent=np.array(
            [position.get(f["fw_parent"], -1) if f["fw_parent"] else -1 for f in facts], np.int32
        ),
        sequence=columns["seq_id"],
        record_id=columns["rf_id"],
        scope=columns["scope"],
        thread=columns["tid"],
        forward_thread=columns["fw_tid"],
        op_schema=[f["op_schema"] for f in facts],
        backend=[f.get("kernel_backend") or "" for f in facts],
        inputs=tensor_columns(labels, [pair[0] for pair in values]),
        outputs=tensor_columns(labels, [pair[1] for pair in values]),
    )
    et.n_orphans = sum(f["parent"] not in position for f in facts)
    raw_inputs = [pair[0] for pair in values]
    et.groups = process_groups(
        path,
        (
            v.values[0]
            for v, name in zip(raw_inputs, et.name)
            if "process_group:init" in name and v.values
        ),
    )
    et.communications = communications(et, facts, raw_inputs)
    if arguments:
        et.arguments = values
    return et


def _parse(path: Path, text: bytes) -> _File:
    try:
        parsed = _DECODER.decode(text)
    except msgspec.ValidationError as error:
        if b'"traceEvents"' in text[: 1 << 20]:
            raise TraceError(f"{path}: this is a Kineto trace, not an execution trace") from None
        raise TraceError(f"{path}: not a PyTorch execution trace: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: not valid JSON: {not_json(text) or error}") from None
    except RecursionError:
        raise TraceError(f"{path}: not an execution trace: nested too deeply") from None
    if not parsed.nodes:
        raise TraceError(f"{path}: an execution trace without nodes")
    return parsed


def _facts(path: Path, node: _Node) -> dict[str, Any]:
    """Return what either layout says of a node, under the names of schema 1.0.1."""
    where = f"{path}: node {node.id} ({node.name!r})"
    if node.attrs is None:
        facts: dict[str, Any] = {key: getattr(node, key) for key in _WHOLE}
        facts["op_schema"], facts["parent"], parent = node.op_schema, node.parent, "parent"
    else:
        facts = {attribute.name: attribute.value for attribute in node.attrs}
        facts["parent"], parent = node.ctrl_deps, "ctrl_deps"
    for key in ("parent", *_WHOLE):
        value = facts.get(key)
        if value is None:
            raise TraceError(f"{where} has no {(parent if key == 'parent' else key)!r}")
        if not isinstance(value, int):
            raise TraceError(f"{where}: {key!r} is {value!r}; it must be a whole number")
    if not isinstance(facts.get("op_schema"), str):
        raise TraceError(f"{where} has no 'op_schema'")
    return facts


def _check(
    path: Path, nodes: list[_Node], facts: list[dict[str, Any]], position: dict[int, int]
) -> None:
    """Refuse identities given twice, and parents that began later.

    A parent that began before and is not in the file is no contradiction: PyTorch writes a node
    when it ends, so none that is open when the observer stops, and none whose arguments it fails
    to convert (it warns, and goes on); those inside are written all the same. chakra meets them
    too: https://github.com/mlcommons/chakra/pull/190.
    """
    for before, now in pairwise(nodes):
        if before.id == now.id:
            raise TraceError(
                f"{path}: two nodes have the id {now.id}: {before.name!r} and {now.name!r}"
            )
    for node, fact in zip(nodes, facts):
        parent = fact["parent"]
        if parent not in position and parent > node.id:
            raise TraceError(
                f"{path}: node {node.id} ({node.name!r}) has the parent {parent}, "
                "which is not in the file"
            )
        if parent > node.id:
            raise TraceError(
                f"{path}: node {node.id} ({node.name!r}) has the parent {parent}, which began "
                "after it (ids are given out as nodes begin)"
            )


def _values(given: list[Any] | Values, node: _Node, side: str) -> Values:
    if isinstance(given, Values):
        return given
    return Values(given, getattr(node, f"{side}_shapes"), getattr(node, f"{side}_types"))
