"""What the host did: calls that matter, their order, and what is around them."""

from __future__ import annotations

from pathlib import Path

import pytest
from traces import NCCL, US, HandMade

from mpisim.traces.host import CallKind, communication_stem, is_communication_kernel


def test_kinds_of_calls(tmp_path: Path) -> None:
    made = HandMade()
    for at, name in enumerate(
        [
            "cudaStreamWaitEvent",
            "cudaStreamSynchronize",
            "cudaDeviceSynchronize",
            "cudaEventSynchronize",
            "cudaEventRecord",
            "cudaFree",
            "hipStreamWaitEvent",
            "cudaEventQuery",
            "cudaStreamIsCapturing",
        ]
    ):
        made.call(name, 10 * at, 10 * at + 5)
    made.launch(100, 105, 110, 120)
    _, calls = made.read(tmp_path)
    assert [call.kind.name for call in calls] == [
        "WAIT_EVENT",
        "SYNC_STREAM",
        "SYNC_DEVICE",
        "SYNC_EVENT",
        "RECORD",
        "MEMORY",
        "WAIT_EVENT",
        "LAUNCH",
    ]


def test_one_launch_of_several_operations(tmp_path: Path) -> None:
    # A CUDA graph: one correlation, many operations, in order of begin.
    made = HandMade()
    graph = made.call("cudaGraphLaunch", 10, 20)
    made.device(40, 50, correlation=graph, name="second")
    made.device(30, 35, correlation=graph, name="first")
    trace, calls = made.read(tmp_path)
    assert [[trace.device.name[op] for op in call.ops] for call in calls] == [["first", "second"]]


def test_calls_inside_calls_are_left_out(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 30, 40)
    made.call("cudaMalloc", 10, 20)
    made.call("cudaFree", 12, 18)  # inside
    made.call("cudaFree", 20, 20)  # begins when the other has ended: not inside
    _, calls = made.read(tmp_path)
    assert [call.name for call in calls] == ["cudaLaunchKernel", "cudaMalloc", "cudaFree"]


def test_only_launching_threads_count(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(10, 15, 30, 40, thread=1)
    made.launch(12, 16, 42, 50, thread=2)
    made.call("cudaStreamSynchronize", 13, 500, thread=3)
    _, calls = made.read(tmp_path)
    assert [(call.thread, call.begin // US) for call in calls] == [(0, 1), (1, 3)]


def test_context_of_a_call(tmp_path: Path) -> None:
    made = HandMade()
    made.operator("aten::linear", 0, 30)
    made.operator("aten::mm", 5, 20)
    made.launch(10, 12, 40, 50)
    made.operator("c10d::allreduce_", 60, 100)
    made.operator("record_param_comms", 62, 98)
    made.note("nccl:all_reduce", 70, 90)
    made.launch(75, 80, 110, 200, stream=20, name=NCCL)
    trace, (first, second) = made.read(tmp_path)
    assert trace.operators.name[first.operator] == "aten::mm"
    assert (first.c10d, first.params, first.nccl) == (-1, -1, -1)
    assert trace.operators.name[second.c10d] == "c10d::allreduce_"
    assert trace.operators.name[second.params] == "record_param_comms"
    assert trace.annotations.name[second.nccl] == "nccl:all_reduce"


def test_steps(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 10, 20)
    made.note("ProfilerStep#7", 10, 50)
    made.launch(20, 25, 30, 40)
    made.note("ProfilerStep#8", 50, 90)
    made.launch(60, 65, 70, 80)
    made.launch(95, 96, 97, 98)
    _, calls = made.read(tmp_path)
    assert [(call.name, call.step) for call in calls if call.kind is CallKind.MARK] == [
        ("ProfilerStep#7 begin", 7),
        ("ProfilerStep#7 end", 7),
        ("ProfilerStep#8 begin", 8),
        ("ProfilerStep#8 end", 8),
    ]
    # Before the first step: none. Behind the last: still that step.
    launches = [call.step for call in calls if call.kind is CallKind.LAUNCH]
    assert launches == [-1, 7, 8, 8]


@pytest.mark.parametrize(
    ("name", "is_one", "stem"),
    [
        (NCCL, True, "AllReduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, ...)", True, "AllReduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*)", True, "ReduceScatter"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", True, "Generic"),
        ("void dpsk::ep::internode::combine<int>(int)", True, "combine"),
        ("void dpsk::ep::internode::get_dispatch_layout<int>()", False, "get_dispatch_layout"),
        ("volta_sgemm_128x64_nt", False, "volta_sgemm_128x64_nt"),
    ],
)
def test_communication_kernels(name: str, is_one: bool, stem: str) -> None:
    assert is_communication_kernel(name) is is_one
    assert communication_stem(name) == stem
