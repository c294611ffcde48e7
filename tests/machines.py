"""Machines of round numbers, for tests that work out their sums by hand."""

from __future__ import annotations

from mpisim.base.quantity import Quantity
from mpisim.kernels import Gpu
from mpisim.topo import cluster_names, find_cluster


def exact(value: float, unit: str) -> Quantity:
    return Quantity(value, unit, 0.0, "made up")


ROUND = Gpu(
    title="a GPU of round numbers",
    family="ampere",
    memory=exact(80, "GB"),
    bandwidth=exact(1, "TB/s"),
    pcie=exact(20, "GB/s"),
    sm_threads=exact(2048, "1"),
    warp_size=exact(32, "1"),
    gemm_fraction=exact(0.5, "1"),
    fp32_fraction=exact(0.8, "1"),
    fp8_fraction=exact(0.25, "1"),
    grouped_gemm_factor=exact(0.5, "1"),
    attention_fraction=exact(0.25, "1"),
    convolution_fraction=exact(0.2, "1"),
    fp32_convolution_fraction=exact(1.25, "1"),
    memory_fraction=exact(0.5, "1"),
    reduction_fraction=exact(0.25, "1"),
    embedding_fraction=exact(0.1, "1"),
    pcie_fraction=exact(0.5, "1"),
    gemm_floor=exact(4, "us"),
    memory_floor=exact(1, "us"),
    copy_floor=exact(2, "us"),
    launch_call=exact(2, "us"),
    launch_latency=exact(3, "us"),
    host_gap=exact(5, "us"),
    kernel_gap=exact(0, "us"),
    graph_gap=exact(0, "us"),
    peak_fp32=exact(10, "TFLOP/s"),
    peak_tf32=exact(50, "TFLOP/s"),
    peak_fp16=exact(100, "TFLOP/s"),
    peak_bf16=exact(100, "TFLOP/s"),
    peak_fp8=exact(200, "TFLOP/s"),
    peak_nvfp4=exact(400, "TFLOP/s"),
)


NODES_OF_GPUS = [name for name in cluster_names() if find_cluster(name).node.kind != "direct"]
"""Names of clusters with an inside of nodes, of which NCCL and measurements know; no wafers."""
