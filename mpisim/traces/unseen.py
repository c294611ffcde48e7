"""Waits of the CPU for events that the trace does not show.

Kineto left out `cudaEventSynchronize` in its first years; so do filters of calls. The trace then
shows a stretch between two calls in which the CPU seems to work. Two callers are known by what
stands around the stretch:

- PyTorch's CUDACachingAllocator, when `cudaMalloc` fails, waits for the events of all blocks that
  other streams used (`synchronize_and_free_events`), frees every cached block with a row of
  `cudaFree`, and tries again (`release_cached_blocks`).
- `cudaEventElapsedTime` needs events that have happened. DistributedDataParallel, which logs the
  times of its own phases in the first ten iterations and every hundredth, waits for both events
  before every call (`CudaTimer::measureDifference`).

The stretch is a wait only if work of the device ended just before the second call. Which work is
not recorded: it is taken to be what ended last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .allocator import is_free
from .host import Call, CallKind
from .kineto import PS_PER_US

__all__ = ["unseen_wait"]

_TOLERANCE = 3 * PS_PER_US
"""Clock granularity: old files have whole µs, at both ends of an interval."""
_PROMPT = 100 * PS_PER_US
"""A wait for an event ends this soon after the work before the event."""
_LONG = 50 * PS_PER_US
"""Less between two calls is work of the CPU."""
_PLAIN = 1000 * PS_PER_US
"""So is less than this where the first call says nothing of a wait."""


def unseen_wait(
    call: Call, before: Call | None, launched: Sequence[int], end: NDArray[np.int64]
) -> tuple[int, str]:
    """Return the operation that the CPU waited for unseen before a call, and the rule's name.

    Parameters
    ----------
    call : Call
    before : Call or None
        The call before it on its thread.
    launched : sequence of int
        Operations launched so far.
    end : int64, shape (n,)
        Recorded end of every device operation, in ps.

    Returns
    -------
    int
        -1 if there is none.
    str
        ``allocator-wait`` or ``timer-wait``.
    """
    if before is None:
        return -1, ""
    if is_free(call) and before.kind is CallKind.MEMORY and not is_free(before):
        rule, least = "allocator-wait", _LONG
    elif call.kind is CallKind.ELAPSED:
        rule, least = "timer-wait", _LONG if before.kind is CallKind.ELAPSED else _PLAIN
    else:
        return -1, ""
    if call.begin - before.end <= least:
        return -1, rule
    earliest = max(before.end, call.begin - _PROMPT)
    fits = [op for op in launched if earliest < end[op] <= call.begin + _TOLERANCE]
    return max(fits, key=lambda op: int(end[op]), default=-1), rule
