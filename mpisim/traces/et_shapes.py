"""Kineto trace without shapes, execution trace of the same step → the Kineto trace with shapes.

Both record the same operators, and are joined by them (:mod:`.link`). An execution trace is mostly
of one step, a Kineto trace of several: then only the operators of that one step have shapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from ..base.errors import TraceError
from .et import is_execution_trace, read_et
from .et_model import Values
from .kineto import Arguments, KinetoTrace
from .link import Link, link_traces
from .sources import json_files

__all__ = ["execution_trace_beside", "has_shapes", "with_shapes_of"]

_TENSOR = "Tensor("
_LIST = "GenericList["


def has_shapes(trace: KinetoTrace) -> bool:
    """Whether a trace records shapes of tensors."""
    return any(args is not None and len(bytes(args.dims)) > 2 for args in trace.operators.args)


def execution_trace_beside(path: Path) -> Path | None:
    """Trace → the execution trace in its folder; None if there is none.

    Parameters
    ----------
    path : Path
        Of the Kineto trace. Of several execution traces it is the one whose name has the same
        ending: ``kineto_rank0.json.gz``, ``et_rank0.json.gz``.

    Raises
    ------
    TraceError
        If there are several, and none is named likewise.
    """
    found = [each for each in json_files(path.parent) if each != path and is_execution_trace(each)]
    if len(found) < 2:
        return found[0] if found else None
    end = path.name.rpartition("_")[2]
    same_end = [each for each in found if each.name.rpartition("_")[2] == end]
    if len(same_end) == 1:
        return same_end[0]
    raise TraceError(
        f"{path}: records no shapes of tensors, and beside it lie {len(found)} execution traces; "
        "--execution-trace names the one of the same step"
    )


def with_shapes_of(trace: KinetoTrace, path: Path) -> tuple[KinetoTrace, Link]:
    """Return a trace with the shapes of an execution trace of the same step.

    Parameters
    ----------
    trace : KinetoTrace
    path : Path
        The execution trace.

    Returns
    -------
    KinetoTrace
        Operators that the execution trace does not have are as they were.
    Link
        How the two were joined.

    Raises
    ------
    TraceError
        If it cannot be read, or is of another program.
    """
    et = read_et(path, arguments=True)
    link = link_traces(et, trace)
    args: list[Arguments | None] = []
    for given, node in zip(trace.operators.args, link.node_of_operator.tolist(), strict=True):
        if node < 0:
            args.append(given)
            continue
        inputs, _ = et.arguments[node]
        dims, types, steps, concrete = _columns(inputs)
        sequence = int(et.sequence[node])
        found = Arguments() if given is None else given
        if found.sequence is None and sequence >= 0:
            found = msgspec.structs.replace(found, sequence=sequence)
        args.append(
            msgspec.structs.replace(
                found,
                dims=_raw(dims),
                types=_raw(types),
                steps=_raw(steps),
                concrete=_raw(concrete),
            )
        )
    return replace(trace, operators=replace(trace.operators, args=args)), link


def _columns(inputs: Values) -> tuple[list[Any], list[str], list[Any], list[str]]:
    """Inputs of a node → sizes, types, strides and numbers as Kineto writes them."""
    dims: list[Any] = []
    types: list[str] = []
    steps: list[Any] = []
    concrete: list[str] = []
    for i, kind in enumerate(inputs.types):
        shape = inputs.shapes[i] if i < len(inputs.shapes) else []
        value = inputs.values[i] if i < len(inputs.values) else None
        if kind.startswith(_TENSOR):
            dims.append(shape)
            types.append(kind.removeprefix(_TENSOR).rstrip(")"))
            steps.append(inputs.strides[i] if i < len(inputs.strides) else [])
            concrete.append("")
            continue
        tensors = kind.startswith(_LIST) and _TENSOR in kind
        dims.append(shape if tensors else [])
        types.append("TensorList" if tensors else "ScalarList" if isinstance(value, list) else "")
        steps.append([])
        concrete.append("" if tensors else _text(value))
    return dims, types, steps, concrete


def _text(value: Any) -> str:
    """Return a number, or a list of numbers, as Kineto writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return "" if value is None or value == "<None>" else str(value)


def _raw(values: Iterable[Any]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(list(values)))
