"""NVTX ranges of an Nsight Systems export: operators, annotations and training steps."""

from __future__ import annotations

import re

import msgspec

from .kineto import Arguments, Spans
from .nsys_export import Export, Range, spans

__all__ = ["annotations_and_operators"]

_TABLE = "NVTX_EVENTS"
_PUSH_POP, _START_END = 59, 60
_OPERATOR = re.compile(r"^(?P<name>.*?)(?:, seq = \d+)?(?:, op_id = \d+)")
"""PyTorch's ranges: ``aten::mm, seq = 7, op_id = 12, sizes = [[2, 3], [3, 4]], …``."""
_SIZES = re.compile(r", sizes = (?P<sizes>\[.*?\])(?:, input_op_ids|$)")
_USER = re.compile(r"^(nccl:|FSDP::|Optimizer\.|DistributedDataParallel|## )")
"""Operators of PyTorch that Kineto calls annotations."""
_STEP = re.compile(
    r"^(?:ProfilerStep#|(?:train(?:ing)?[ _-]?)?(?:step|iter(?:ation)?)[ _:#=-]*)"
    r"(?P<number>\d{1,9})$",
    re.IGNORECASE,
)
_POINT_TO_POINT = {"ncclSend": "c10d::send", "ncclRecv": "c10d::recv_"}


def annotations_and_operators(export: Export, process: int, first: int) -> tuple[Spans, Spans]:
    """Return the ranges of a process as Kineto would have them.

    PyTorch's operators lose the numbers behind their names. A range that is called after a step
    (``step 3``, ``iteration_3``, ``ProfilerStep#3``) becomes a profiled step. NCCL's own ranges of
    sends and receives stand for PyTorch's where it wrote none.

    Parameters
    ----------
    export : Export
    process : int
    first : int
        Zero of the times returned, in ns.
    """
    if not export.has(_TABLE, ("start", "end", "eventType", "text", "textId", "globalTid")):
        return spans([], first), spans([], first)
    rows = export.rows(
        f"SELECT start, end, globalTid, text, textId, eventType FROM {_TABLE} WHERE "
        "globalTid >> 24 = ? AND eventType IN (?, ?) AND end IS NOT NULL",
        (process, _PUSH_POP, _START_END),
    )
    annotations: list[Range] = []
    operators: list[Range] = []
    messages: list[Range] = []
    for start, end, thread, text, number, kind in export.checked(_TABLE, rows, first):
        text = text if text is not None else export.texts.get(number, "")
        step = _STEP.match(text)
        operator = _OPERATOR.match(text) if kind == _PUSH_POP else None
        if step:
            name = f"ProfilerStep#{int(step['number'])}"
            annotations.append((start, end, thread, name, None))
        elif kind == _START_END:
            continue  # may overlap others in any way, so that it is no operator
        elif operator:
            target = annotations if _USER.match(operator["name"]) else operators
            target.append((start, end, thread, operator["name"], _arguments(text)))
        elif text in _POINT_TO_POINT:
            messages.append((start, end, thread, _POINT_TO_POINT[text], None))
        else:
            annotations.append((start, end, thread, text, None))
    if not any(name.startswith("c10d::") for _, _, _, name, _ in operators):
        operators += messages
    return spans(annotations, first), spans(operators, first)


def _arguments(text: str) -> Arguments | None:
    """Return the shapes of an operator's inputs, where they were recorded."""
    found = _SIZES.search(text)
    return Arguments(dims=msgspec.Raw(found["sizes"].encode())) if found else None
