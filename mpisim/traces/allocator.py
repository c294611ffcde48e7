"""Which device operations a call that allocates or frees memory waited for.

CUDA's `cudaFree` returns when the device has done all that was launched before it ("Managing
memory allocations using cudaMalloc and cudaFree causes the GPU to synchronize across all executing
CUDA streams", CUDA Programming Guide, Stream-Ordered Memory Allocator). Whether `cudaMalloc` waits
depends on the driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .host import Call, CallKind
from .kineto import PS_PER_US

__all__ = ["call_waits", "is_free"]

_FREE = re.compile(r"Free|cuMem(Unmap|Release)")
_STREAM_ORDERED = re.compile(r"Async$")
_TOLERANCE = 3 * PS_PER_US
"""Clock granularity: old files have whole µs, at both ends of an interval."""
_PROMPT = 100 * PS_PER_US
"""A call that allocates returns this soon after what it waited for."""
_LONG = 50 * PS_PER_US
"""What ended less than this after the call began may have ended by itself."""


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
    shown = call.begin + _LONG < max(ended) and call.end - max(ended) < _PROMPT
    return ops if shown else []
