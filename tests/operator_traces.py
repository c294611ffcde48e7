"""Kineto traces with operators and their kernels, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["BF16", "Recording", "linear_layer"]

BF16 = "c10::BFloat16"


class Recording:
    """A Kineto trace written operator by operator; each is told its begin and end in µs."""

    def __init__(self, gpu: str = "NVIDIA A100-SXM4-80GB") -> None:
        self.gpu = gpu
        self.events: list[dict[str, Any]] = []

    def operator(
        self, name: str, begin: float, end: float, dims: Any = (), types: Any = (), **more: Any
    ) -> None:
        args = {"Input Dims": list(dims), "Input type": list(types), **more}
        self._add("cpu_op", name, begin, end, 1, args)

    def kernel(self, name: str, call: float, begin: float, end: float, stream: int = 7) -> None:
        """A launch at `call`, and its kernel."""
        number = len(self.events) + 1
        self._add("cuda_runtime", "cudaLaunchKernel", call, call + 1, 1, {"correlation": number})
        place = {"correlation": number, "device": 0, "stream": stream}
        self._add("kernel", name, begin, end, stream, place)

    def _add(
        self, cat: str, name: str, begin: float, end: float, tid: int, args: dict[str, Any]
    ) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, "args": args}
        self.events.append({**event, "ts": begin, "dur": end - begin})

    def write(self, path: Path) -> Path:
        properties = [{"id": 0, "name": self.gpu}]
        path.write_text(json.dumps({"deviceProperties": properties, "traceEvents": self.events}))
        return path


def linear_layer() -> Recording:
    """A linear layer with a product and a bias inside, and an operator that nobody knows."""
    found = Recording()
    sizes, types = [[64, 32], [16, 32], [16]], [BF16] * 3
    found.operator("aten::linear", 10, 40, sizes, types)
    found.operator("aten::t", 11, 14, [[16, 32]], [BF16])
    found.operator("aten::addmm", 15, 38, [[16], [64, 32], [32, 16]], types)
    found.kernel("gemm", 20, 50, 57)
    found.operator("my::operator", 60, 80, [[8, 4]], ["float"])
    found.kernel("mine", 65, 90, 92)
    found.operator("aten::conv1d", 100, 130)  # only holds what launches
    found.operator("aten::add_", 105, 125, [[8, 4], [8, 4], []], ["float", "float", "Scalar"])
    found.kernel("add", 110, 140, 143)
    found.kernel("alone", 150, 160, 161)
    return found
