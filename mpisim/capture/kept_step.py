"""Recording of a job of one rank → a text that a program file keeps, and back.

A program has durations; for another plan, batch or GPU ``mpisim extrapolate`` needs the calls with
their shapes, and where each is from. Streams, memory and names of files are left out.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from ..base.errors import InputError
from ..operators import OperatorCall, TensorSpec
from .recording import Completed, Item, ItemKind, Origin, Recording

__all__ = ["CAPTURED", "kept_step", "recording_of"]

CAPTURED = "captured"
"""Attribute of a program: how many ranks of how many were captured."""

VERSION = 2
"""Of the text. Version 1 knows launches by CUDA graphs alone, and none by the reducer."""

READ = (1, VERSION)

GRAPH, REDUCER = 1, 2
"""Bits: what launches an item, if not the script's Python."""


def kept_step(recording: Recording) -> str:
    """Recording of a one-rank job → JSON text of its steps, for `mpisim.extrapolate`.

    Parameters
    ----------
    recording : Recording
    """
    return json.dumps(
        {
            "version": VERSION,
            "torch": recording.torch,
            "steps": recording.steps,
            "warm_up": recording.warm_up,
            "modules": recording.modules,
            "parameters": [[each.dtype, each.shape] for each in recording.parameters],
            "completed": recording.completed,
            "calls": [_written((each.name, each.inputs, each.outputs)) for each in recording.calls],
            "items": [
                [
                    *(int(item.kind), item.number, item.stream, item.bytes, item.group),
                    *(item.phase, item.layer, item.name, item.step, _launched_by(item)),
                    *(item.origin.node, int(item.origin.engine), item.origin.module),
                    *item.origin.parameters,
                ]
                for item in recording.items
            ],
            "groups": [len(each) for each in recording.groups],
            "values": dict(recording.values),
            "replaced": dict(recording.replaced),
        },
        separators=(",", ":"),
    )


def recording_of(text: str, source: str) -> Recording:
    """Text of `kept_step` → the recording.

    Parameters
    ----------
    text : str
    source : str
        The file, for messages.

    Raises
    ------
    InputError
        If it is damaged, or of another version.
    """
    try:
        found = json.loads(text)
        if found["version"] not in READ:
            raise InputError(
                f"{source}: keeps a captured step of version {found['version']}, and this mpisim "
                f"reads {READ[0]} to {READ[-1]}; capture it again"
            )
        return Recording(
            rank=0,
            world=1,
            calls=[OperatorCall(*_read(each)) for each in found["calls"]],
            items=[_item(each) for each in found["items"]],
            groups=[tuple(range(size)) for size in found["groups"]],
            steps=found["steps"],
            warm_up=found["warm_up"],
            values=Counter(found["values"]),
            replaced=Counter(found["replaced"]),
            torch=found["torch"],
            modules=[tuple(each) for each in found["modules"]],
            parameters=[TensorSpec(dtype, tuple(shape)) for dtype, shape in found["parameters"]],
            completed=[Completed(*each) for each in found["completed"]],
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{source}: the captured step in it is damaged") from error


def _launched_by(item: Item) -> int:
    return (item.graph and GRAPH) | (item.by_reducer and REDUCER)


def _item(row: list[Any]) -> Item:
    kind, number, stream, size, group, phase, layer, name, step, by, *origin = row
    node, engine, module, *parameters = origin
    return Item(
        *(ItemKind(kind), number, stream, (), size, group, -1, False),
        *(phase, layer, name, step, bool(by & GRAPH)),
        origin=Origin(node, bool(engine), module, tuple(parameters)),
        by_reducer=bool(by & REDUCER),
    )


def _written(value: Any) -> Any:
    """Argument of a call → JSON: tensors and lists are objects, all else is as it is."""
    if isinstance(value, TensorSpec):
        strides = () if value.strides is None else (value.strides,)
        return {"t": [value.dtype, value.shape, *strides]}
    if isinstance(value, tuple):
        return [_written(each) for each in value]
    return value


def _read(value: Any) -> Any:
    """What `_written` made → the argument."""
    if isinstance(value, dict):
        dtype, shape, *strides = value["t"]
        return TensorSpec(dtype, tuple(shape), tuple(strides[0]) if strides else None)
    if isinstance(value, list):
        return tuple(map(_read, value))
    return value
