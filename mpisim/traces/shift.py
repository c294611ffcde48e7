"""Kineto trace → the same with half of its events recorded later, to test what a replay uses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .kineto import KinetoTrace, Spans

__all__ = ["shift_second_half"]


def shift_second_half(trace: KinetoTrace, by: int) -> KinetoTrace:
    """Trace → the same as if all that began after its middle had been recorded `by` ps later.

    For tests of honesty: a replay may change by the one gap that this opens, and by nothing else.
    The gap is one of the CPU, behind a call that launches: were it in a wait for the device, the
    device would be what was late, without a cause, and nothing would change.

    Parameters
    ----------
    trace : KinetoTrace
        Not changed.
    by : int
        In ps.
    """
    device = trace.device
    middle = _behind_a_launch(trace, (int(device.begin[0]) + int(device.end.max())) // 2)

    def later(times: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(times > middle, times + by, times)

    def moved(spans: Spans) -> Spans:
        # Operators and annotations around the gap take longer.
        return replace(spans, begin=later(spans.begin), end=later(spans.end))

    late = np.where(device.begin > middle, by, 0)
    return replace(
        trace,
        operators=moved(trace.operators),
        annotations=moved(trace.annotations),
        calls=moved(trace.calls),
        device=replace(device, begin=device.begin + late, end=device.end + late),
    )


def _behind_a_launch(trace: KinetoTrace, at: int) -> int:
    """Return the first end of a launching call from some time on at which no call is under way.

    The time itself where there is none.
    """
    calls, launched = trace.calls, set(trace.device.correlation.tolist())
    launching = [
        i
        for i, args in enumerate(calls.args)
        if args is not None and args.correlation in launched and calls.end[i] >= at
    ]
    for end in sorted(int(calls.end[i]) for i in launching):
        if not ((calls.begin <= end) & (calls.end > end)).any():
            return end
    return at
