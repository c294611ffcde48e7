"""Machines of round numbers, for tests that work out their sums by hand."""

from __future__ import annotations

from mpisim.kernels import Gpu
from mpisim.quantity import Quantity


def exact(value: float, unit: str) -> Quantity:
    return Quantity(value, unit, 0.0, "made up")


ROUND = Gpu(
    title="a GPU of round numbers",
    peak=exact(100, "TFLOP/s"),
    bandwidth=exact(1, "TB/s"),
    gemm_fraction=exact(0.5, "1"),
    attention_fraction=exact(0.25, "1"),
    memory_fraction=exact(0.5, "1"),
    gemm_floor=exact(4, "us"),
    memory_floor=exact(1, "us"),
    launch_call=exact(2, "us"),
    launch_latency=exact(3, "us"),
    host_gap=exact(5, "us"),
)
