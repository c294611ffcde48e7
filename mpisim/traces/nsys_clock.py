"""The clocks of CPU and GPU in an Nsight Systems export, and how far they are apart.

GPU times are converted to the CPU's clock, which leaves some µs of error. It shows where the CPU
waits for a stream: the call cannot return before the stream's last operation has ended. Replay
needs that order to be right, or it would find no reason for the wait.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .kineto import DeviceOps, Spans, SyncRecord

__all__ = ["device_lead"]

_MOST = 100_000_000
"""More than this, in ps, is no error of a clock but another operation."""


def device_lead(calls: Spans, device: DeviceOps, syncs: Sequence[SyncRecord]) -> int:
    """Return how much too late the times of device operations are, in ps, 0 or more.

    The least that lets every call that waited for a stream return after the last operation
    launched there before it; at most so much that no operation begins before its launch.

    Parameters
    ----------
    calls : Spans
    device : DeviceOps
        On the same clock but for the error.
    syncs : sequence of SyncRecord
    """
    at = {
        args.correlation: i
        for i, args in enumerate(calls.args)
        if args is not None and args.correlation is not None
    }
    launch = np.array([at.get(c, -1) for c in device.correlation.tolist()], np.int64)
    known = launch >= 0
    if not known.any():
        return 0
    launched = np.where(known, calls.begin[launch], np.iinfo(np.int64).max)
    room = int((device.begin - launched)[known].min())
    excess = 0
    for sync in syncs:
        call = at.get(sync.correlation, -1)
        if sync.source >= 0 or sync.stream < 0 or call < 0:
            continue
        before = (device.stream == sync.stream) & (launched < calls.begin[call])
        if before.any():
            late = int(device.end[before].max() - calls.end[call])
            if excess < late <= _MOST:
                excess = late
    return max(0, min(excess, room))
