"""Convolutional networks beside recorded jobs: buckets, operators and their sizes."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

from cnns import network

from mpisim.kernels.operations import (
    Convolution,
    Elementwise,
    Gemm,
    Norm,
)
from mpisim.workloads.operators import Compute


def test_buckets_of_a_recorded_job() -> None:
    # What PyTorch's DDP reduced in each step of torchvision's ResNet-50 on 8 V100 (a Kineto trace
    # of pytorch/examples' imagenet): 1 MiB, then 25 MiB at most, in the order in which backward
    # completes gradients (`compute_bucket_assignment_by_size`).
    found = network("resnet", 50)
    parameters = [p for layer in found.layers for p in layer.parameters]
    buckets, limit = [0], 2**20
    for parameter in reversed(parameters):
        if 4 * buckets[-1] >= limit:
            limit = 25 * 2**20
            buckets.append(0)
        buckets[-1] += parameter.size
    assert buckets == [2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040]
    # Before each step it sent 53,120 running means and variances, and 53 counters.
    norms = [o.statistics for layer in found.layers for o in layer.operators if o.statistics]
    assert (2 * sum(norms), len(norms)) == (53_120, 53)


def test_the_operators_of_a_recorded_resnet(shared: Path) -> None:
    path = shared / "traces/resnet50_ddp_v100_rank0of8/kineto_rank0.json.gz"
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    steps = sorted(
        (event["ts"], event["dur"])
        for event in events
        if event.get("cat") == "user_annotation" and "ProfilerStep" in event["name"]
    )
    begin, end = steps[1][0], sum(steps[1])
    calls = sorted(
        (event["ts"], event["name"], event["args"].get("Input Dims"))
        for event in events
        if event.get("cat") == "cpu_op" and begin <= event["ts"] < end
    )
    recorded = [
        (name.removeprefix("aten::"), dims[0], dims[1])
        for _, name, dims in calls
        if name in ("aten::conv2d", "aten::batch_norm", "aten::linear")
    ]
    found: list[tuple[str, list[int], list[int]]] = []
    model = network("resnet", 50, micro_batch=32)
    for layer in model.layers:
        for operator in layer.operators:
            for step in operator.forward:
                kernel = step.kernel if isinstance(step, Compute) else None
                if isinstance(kernel, Convolution):
                    side = kernel.height * kernel.stride
                    filters = [kernel.outputs, kernel.inputs, kernel.kernel, kernel.kernel]
                    found.append(("conv2d", [32, kernel.inputs, side, side], filters))
                elif isinstance(kernel, Norm):
                    side = int((kernel.rows / 32) ** 0.5)
                    image = [32, kernel.columns, side, side]
                    found.append(("batch_norm", image, [kernel.columns]))
                elif isinstance(kernel, Gemm):
                    found.append(("linear", [32, kernel.k], [kernel.n, kernel.k]))
    assert found == recorded

    # Backward: as many of each kind, and in the same order.
    kinds = {
        "CudnnBatchNormBackward0": Norm,
        "ConvolutionBackward0": Convolution,
        "AddmmBackward0": Gemm,
    }
    recorded_back = [
        kinds[name.rpartition(" ")[2]]
        for _, name, _ in calls
        if "evaluate_function" in name and name.rpartition(" ")[2] in kinds
    ]
    back = [
        type(step.kernel)
        for layer in reversed(model.layers)
        for operator in reversed(layer.operators)
        for step in operator.backward
        if isinstance(step, Compute)
        and isinstance(step.kernel, Norm | Convolution | Gemm)
        and not step.name.endswith("input gradient")
    ]
    assert back == recorded_back


def test_the_operators_of_a_recorded_vgg(shared: Path) -> None:
    # TrioSim's own trace of VGG-13, batch 128: operators with the elements of their outputs.
    path = shared / "traces/triosim_vgg13_h100_1gpu/trace.csv.gz"
    with gzip.open(path, "rt") as file:
        rows = list(csv.DictReader(file))
    kinds = {
        "aten::conv2d": "conv",
        "aten::relu_": "relu",
        "aten::max_pool2d": "maxpool",
        "aten::adaptive_avg_pool2d": "avgpool",
        "aten::linear": "fc",
        "aten::dropout": "dropout",
    }
    recorded = [
        (kinds[row["OperatorName"]], int(row["OutputSize"].strip("[]").split(";")[0]))
        for row in rows
        if row["OperatorName"] in kinds
    ]
    found = []
    for layer in network("vgg", 13, micro_batch=128).layers:
        for operator in layer.operators:
            kernel = next(s.kernel for s in operator.forward if isinstance(s, Compute))
            kind = operator.name.rstrip("123")
            match kernel:
                case Convolution():
                    size = kernel.batch * kernel.outputs * kernel.height * kernel.width
                case Gemm():
                    size = kernel.m * kernel.n
                case Elementwise() if kind == "relu":
                    size = kernel.bytes // 8
                case Elementwise() if kind == "dropout":
                    size = kernel.bytes // 9
                case Elementwise() if kind == "maxpool":
                    size = kernel.bytes // (4 * 4 + 4 + 8)
                case Elementwise() if kind == "avgpool":
                    size = kernel.bytes // 8
                case _:
                    continue
            found.append((kind, size))
    assert found == recorded
