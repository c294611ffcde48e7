"""CPU waits that a trace does not record, inferred from calls and the ends of device work.

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

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..base.quantity import PS_PER_US
from .host import Call, CallKind

__all__ = ["call_waits", "inferred_wait", "is_free"]

_TOLERANCE = 3 * PS_PER_US
"""Clock granularity: old files have whole µs, at both ends of an interval."""
_MAX_DELAY = 100 * PS_PER_US
"""A call that waited returns at most this long after the device work it waited for."""
_MIN_WAIT = 50 * PS_PER_US
"""Shorter stretches are CPU work: between two calls, or from a call to the end of device work."""
_MIN_WAIT_UNKNOWN_CALLER = 1000 * PS_PER_US
"""The same where the call before the stretch does not suggest a wait."""


def inferred_wait(
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
        rule, least = "allocator-wait", _MIN_WAIT
    elif call.kind is CallKind.ELAPSED:
        rule, least = (
            "timer-wait",
            (_MIN_WAIT if before.kind is CallKind.ELAPSED else _MIN_WAIT_UNKNOWN_CALLER),
        )
    else:
        return -1, ""
    if call.begin - before.end <= least:
        return -1, rule
    earliest = max(before.end, call.begin - _MAX_DELAY)
    fits = [op for op in launched if earliest < end[op] <= call.begin + _TOLERANCE]
    return max(fits, key=lambda op: int(end[op]), default=-1), rule


_FREE = re.compile(r"Free|cuMem(Unmap|Release)")
_STREAM_ORDERED = re.compile(r"Async$")


def is_free(call: Call) -> bool:
    """Tell whether a call frees memory, and not in the order of a stream."""
    return (
        call.kind is CallKind.MEMORY
        and bool(_FREE.search(call.name))
        and not _STREAM_ORDERED.search(call.name)
    )


def call_waits(call: Call, last: Mapping[int, int], end: NDArray[np.int64]) -> list[int]:
    """Return the operations that a call of the allocator waited for.

    A call that frees waited for the latest operation of every stream, unless one of them ended
    after it: then it did not wait. A call that allocates did so only where the trace shows it: the
    device had something to do when it began, nothing any more when it returned, and it returned
    promptly.

    Parameters
    ----------
    call : Call
        Of the kind MEMORY.
    last : mapping of int to int
        The latest operation launched on each stream.
    end : int64, shape (n,)
        Recorded end of every device operation, in ps.
    """
    if _STREAM_ORDERED.search(call.name) or not last:
        return []
    ops = list(last.values())
    ended = [int(end[op]) for op in ops]
    if max(ended) > call.end + _TOLERANCE:
        return []
    if is_free(call):
        return ops
    shown = call.begin + _MIN_WAIT < max(ended) and call.end - max(ended) < _MAX_DELAY
    return ops if shown else []
