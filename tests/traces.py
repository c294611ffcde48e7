"""Hand-made Kineto traces: a few calls and kernels, times in µs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from mpisim.program import Operation
from mpisim.traces import KinetoTrace, read_kineto
from mpisim.traces.communications import Communication
from mpisim.traces.host import Call, host_calls

__all__ = ["NCCL", "US", "HandMade", "communication"]

US = 1_000_000
"""A µs in ps."""
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


class HandMade:
    """Collects the events of one rank. Correlations count from 1.

    Every method returns what a later one may name: a correlation, or nothing.
    """

    def __init__(self, **top: Any) -> None:
        self.top = top
        self.events: list[dict[str, Any]] = []
        self.count = 0

    def add(self, cat: str, name: str, begin: float, end: float, tid: Any, **args: Any) -> None:
        """Add any event; `pid` is 1 for the CPU, 0 for the device."""
        pid = 0 if cat in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_sync") else 1
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": begin,
                "dur": end - begin,
                "args": args,
            }
        )

    def call(self, name: str, begin: float, end: float, thread: int = 1) -> int:
        """Add a runtime call."""
        self.count += 1
        self.add("cuda_runtime", name, begin, end, thread, correlation=self.count)
        return self.count

    def launch(
        self,
        begin: float,
        end: float,
        start: float,
        stop: float,
        stream: int = 7,
        name: str = "gemm",
        *,
        call: str = "cudaLaunchKernel",
        thread: int = 1,
        **args: Any,
    ) -> int:
        """Add a launching call from `begin` to `end` and its operation from `start` to `stop`."""
        correlation = self.call(call, begin, end, thread)
        self.device(start, stop, stream, name, correlation=correlation, **args)
        return correlation

    def device(
        self, start: float, stop: float, stream: int = 7, name: str = "gemm", **args: Any
    ) -> None:
        """Add a device operation without a call."""
        cat = "kernel"
        if name.startswith("Mem"):
            cat = "gpu_memcpy" if name.startswith("Memcpy") else "gpu_memset"
        self.add(cat, name, start, stop, stream, device=0, stream=stream, **args)

    def operator(self, name: str, begin: float, end: float, thread: int = 1, **args: Any) -> None:
        """Add a CPU operator."""
        self.add("cpu_op", name, begin, end, thread, **args)

    def note(self, name: str, begin: float, end: float, thread: int = 1, **args: Any) -> None:
        """Add a user annotation."""
        self.add("user_annotation", name, begin, end, thread, **args)

    def text(self) -> bytes:
        """Return the file as JSON."""
        return json.dumps({**self.top, "traceEvents": self.events}).encode()

    def write(self, folder: Path, name: str = "kineto_rank0.json") -> Path:
        """Write the file and return its path."""
        path = folder / name
        text = self.text()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    def read(self, folder: Path) -> tuple[KinetoTrace, list[Call]]:
        """Write the file, read it, and return the trace and its calls."""
        trace = read_kineto(self.write(folder))
        return trace, host_calls(trace)


def communication(
    rank: int,
    op: int,
    begin: float,
    end: float,
    operation: Operation = Operation.ALL_REDUCE,
    *,
    stream: int = 1,
    stem: str = "",
    bytes: int = 64,
    group: tuple[int, ...] | None = None,
    group_name: str = "",
    sequence: int = -1,
    directions: str = "",
    peer: int = -1,
    part: int = 0,
) -> Communication:
    """Return one communication kernel; times in µs by the rank's own clock."""
    return Communication(
        rank=rank,
        op=op,
        stream=stream,
        stem=stem or operation.name,
        operation=operation,
        bytes=bytes,
        begin=round(begin * US),
        end=round(end * US),
        group=group,
        group_name=group_name,
        sequence=sequence,
        directions=directions,
        peer=peer,
        part=part,
    )
