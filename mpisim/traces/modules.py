"""Kineto trace → the modules of the model that were running, and when.

PyTorch's profiler records calls of ``nn.Module`` with ``with_stack=True`` (or
``with_modules=True``): events of the category ``python_function`` that are named after the class
and a number, such as ``nn.Module: Bottleneck_3``. They lie in each other as the modules do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..base.errors import TraceError
from ..base.quantity import PS_PER_US
from .kineto import KinetoTrace
from .raw import Int64, open_text

__all__ = ["module_paths"]

PREFIX = "nn.Module: "


class _Call(msgspec.Struct):
    """An event, of which only what modules need is decoded."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float | Int64 | str | None = None
    dur: float | Int64 | None = None


class _Calls(msgspec.Struct, rename="camel"):
    trace_events: list[_Call]
    base_time_nanoseconds: int = 0


def module_paths(trace: KinetoTrace, times: NDArray[np.int64]) -> list[tuple[str, ...]]:
    """Times → the modules around them, the outermost first; none where none was recorded.

    Parameters
    ----------
    trace : KinetoTrace
        Its file is read again.
    times : int64, shape (n,)
        In ps from the file's origin, in any order.

    Raises
    ------
    TraceError
        If the file cannot be read.
    """
    text = open_text(Path(trace.path))
    if PREFIX.encode() not in text:
        return [() for _ in range(len(times))]
    try:
        if text[:64].lstrip()[:1] == b"[":
            parsed = _Calls(msgspec.json.decode(text, type=list[_Call], strict=False))
        else:
            parsed = msgspec.json.decode(text, type=_Calls, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{trace.path}: not a Kineto trace: {error}") from None
    first = trace.origin - parsed.base_time_nanoseconds // 1000
    spans = []
    for event in parsed.trace_events:
        if event.cat != "python_function" or not event.name.startswith(PREFIX):
            continue
        if not isinstance(event.ts, int | float) or event.dur is None:
            continue
        begin = round((event.ts - first) * PS_PER_US)
        spans.append((begin, begin + round(event.dur * PS_PER_US), event.name[len(PREFIX) :]))
    spans.sort(key=lambda each: (each[0], -each[1]))
    return _around(spans, times)


def _around(
    spans: Sequence[tuple[int, int, str]], times: NDArray[np.int64]
) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [()] * len(times)
    stack: list[tuple[int, str]] = []
    at = 0
    for i in np.argsort(times, kind="stable").tolist():
        now = int(times[i])
        while at < len(spans) and spans[at][0] <= now:
            begin, end, name = spans[at]
            while stack and stack[-1][0] <= begin:
                stack.pop()
            stack.append((end, name))
            at += 1
        while stack and stack[-1][0] < now:
            stack.pop()
        found[i] = tuple(name for _, name in stack)
    return found
