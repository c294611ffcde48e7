"""A trace recorded otherwise: for tests of what a replay rests on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .kineto import KinetoTrace, Spans

__all__ = ["shift_second_half"]


def shift_second_half(trace: KinetoTrace, by: int) -> KinetoTrace:
    """Return the trace as if all that began after its middle had been recorded `by` ps later.

    For tests of honesty: a replay may change by the one gap that this opens, and by nothing else.
    """
    device = trace.device
    middle = (int(device.begin[0]) + int(device.end.max())) // 2

    def later(times: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(times > middle, times + by, times)

    def moved(spans: Spans) -> Spans:
        # What spans the middle takes longer: a call may be waiting for what comes later.
        return replace(spans, begin=later(spans.begin), end=later(spans.end))

    late = np.where(device.begin > middle, by, 0)
    return replace(
        trace,
        operators=moved(trace.operators),
        annotations=moved(trace.annotations),
        calls=moved(trace.calls),
        device=replace(device, begin=device.begin + late, end=device.end + late),
    )
