"""What it costs to launch a kernel: the CPU's time for a call, and the GPU's least time for one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .operators import Clock

COLUMNS = ("gpu", "what", "microseconds")

COUNT = 1000


def launches(device: str) -> Iterator[dict[str, Any]]:
    """Yield rows of `COLUMNS`, without the GPU."""
    x = torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(COUNT):
            x.add_(1)

    # The GPU is faster than the CPU here, so the CPU never waits.
    yield {"what": "CPU time of a call with one kernel", "microseconds": _host(many) / COUNT}
    clock = Clock(device)
    yield {"what": "a tiny kernel, launched ahead", "microseconds": clock(lambda: x.add_(1)).median}
    if device != "cuda":
        return

    def reply() -> None:
        x.add_(1)
        torch.cuda.synchronize()

    yield {"what": "a tiny kernel, launched and waited for", "microseconds": _host(reply)}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            x.add_(1)
    each = clock(graph.replay).median / 100
    yield {"what": "a tiny kernel in a CUDA graph", "microseconds": each}
    yield {"what": "CPU time of a CUDA graph's launch", "microseconds": _host(graph.replay)}


def _host(call: Callable[[], Any]) -> float:
    """Return the CPU's microseconds for a call: the median of 21."""
    times = []
    for _ in range(21):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return sorted(times)[10]
