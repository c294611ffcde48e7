"""What waits for what: every rule of inference on a small trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from traces import NCCL, HandMade

from mpisim.traces.host import CallKind
from mpisim.traces.kineto import KinetoTrace
from mpisim.traces.waits import Inference, infer_waits


def inferred(made: HandMade, folder: Path) -> tuple[KinetoTrace, Inference]:
    trace, calls = made.read(folder)
    return trace, infer_waits(trace, calls)


def waits_of(trace: KinetoTrace, found: Inference, name: str) -> list[str]:
    """Names of what the one operation of a name waits for."""
    return [trace.device.name[op] for op in found.waits[trace.device.name.index(name)]]


def blocking(made: HandMade, folder: Path, call: str) -> list[str]:
    """Names of what the one call of a name blocks on."""
    trace, calls = made.read(folder)
    found = infer_waits(trace, calls)
    position = next(i for i, c in enumerate(calls) if c.name == call)
    return [trace.device.name[op] for op in found.blocking[position]]


def all_reduce(made: HandMade, at: float, start: float, stop: float, stream: int = 20) -> None:
    """An all-reduce as old files show it: its operators, and NCCL's own event waits."""
    made.operator("c10d::allreduce_", at, at + 60)
    made.operator("record_param_comms", at + 2, at + 58)
    made.call("cudaStreamWaitEvent", at + 5, at + 6)
    made.note("nccl:all_reduce", at + 10, at + 50)
    made.call("cudaStreamWaitEvent", at + 15, at + 16)
    made.launch(at + 20, at + 25, start, stop, stream=stream, name=NCCL)
    made.call("cudaStreamWaitEvent", at + 30, at + 31)
    made.call("cudaStreamWaitEvent", at + 52, at + 53)


def work_wait(made: HandMade, at: float) -> None:
    """Work.wait: an operator with an event wait and no launch."""
    made.operator("record_param_comms", at, at + 6)
    made.call("cudaStreamWaitEvent", at + 2, at + 3)


# --- on the device ------------------------------------------------------------------------------


def test_collective_waits_for_the_stream_it_was_issued_on(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 10, 200, name="loss")
    all_reduce(made, 10, 201, 300)
    made.launch(80, 85, 201, 220, name="next")
    trace, found = inferred(made, tmp_path)
    assert waits_of(trace, found, NCCL) == ["loss"]
    assert waits_of(trace, found, "next") == []
    assert found.counts["collective-after-current"] == 1
    assert found.counts["internal to NCCL"] == 3


def test_work_wait_is_first_in_first_out(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 10, 100, name="a")
    all_reduce(made, 10, 101, 200)
    made.launch(80, 85, 101, 150, name="b")
    all_reduce(made, 90, 201, 300)
    made.launch(155, 160, 165, 180, name="c")
    work_wait(made, 170)
    made.launch(180, 185, 205, 210, name="d")
    work_wait(made, 190)
    made.launch(200, 205, 302, 310, name="e")
    trace, found = inferred(made, tmp_path)
    first, second = (op for op, name in enumerate(trace.device.name) if name == NCCL)
    assert found.waits[trace.device.name.index("d")] == [first]
    assert found.waits[trace.device.name.index("e")] == [second]
    assert found.counts["work-wait"] == 2


def test_a_collective_waited_for_at_once(tmp_path: Path) -> None:
    # The first is still running when the wait comes: it is not the one.
    made = HandMade()
    made.launch(0, 5, 10, 20, name="a")
    all_reduce(made, 10, 21, 900, stream=20)
    made.launch(80, 85, 90, 95, name="b")
    all_reduce(made, 90, 111, 200, stream=24)
    work_wait(made, 160)
    made.launch(170, 175, 202, 210, name="c")
    trace, found = inferred(made, tmp_path)
    (op,) = found.waits[trace.device.name.index("c")]
    assert trace.streams[trace.device.stream[op]] == 24


def test_plain_event_wait_is_for_another_stream(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 10, 100, stream=7, name="compute")
    made.launch(
        10, 15, 20, 150, stream=13, name="Memcpy HtoD (Pinned -> Device)", call="cudaMemcpyAsync"
    )
    made.call("cudaStreamWaitEvent", 20, 21)
    made.launch(30, 35, 151, 160, stream=7, name="uses the copy")
    trace, found = inferred(made, tmp_path)
    assert waits_of(trace, found, "uses the copy") == ["Memcpy HtoD (Pinned -> Device)"]
    assert found.counts["stream-wait"] == 1


def test_a_source_that_ended_later_is_dropped(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 10, 100, stream=7, name="compute")
    made.launch(10, 15, 20, 500, stream=13, name="side a")
    made.launch(20, 25, 30, 120, stream=17, name="side b")
    made.call("cudaStreamWaitEvent", 30, 31)
    made.launch(40, 45, 121, 160, stream=7, name="target")
    trace, found = inferred(made, tmp_path)
    assert waits_of(trace, found, "target") == ["side b"]
    assert found.counts["candidates dropped by recorded times"] == 1


def test_coalesced_pair(tmp_path: Path) -> None:
    """The launch lies outside the operators, the wait for it inside ``nccl:coalesced``."""
    send_recv = "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)"
    made = HandMade()
    made.launch(0, 5, 10, 100, name="a")
    made.operator("c10d::send", 10, 40)
    made.call("cudaStreamWaitEvent", 15, 16)
    made.note("nccl:send", 20, 35)
    made.call("cudaStreamWaitEvent", 45, 46)
    made.launch(50, 55, 101, 200, stream=20, name=send_recv)
    made.call("cudaStreamWaitEvent", 57, 58)
    made.note("nccl:coalesced", 60, 120)
    made.operator("record_param_comms", 70, 80)
    made.call("cudaStreamWaitEvent", 72, 73)
    made.launch(130, 135, 201, 210, name="b")
    trace, found = inferred(made, tmp_path)
    assert waits_of(trace, found, send_recv) == ["a"]
    assert waits_of(trace, found, "b") == [send_recv]


def test_recorded_event_waits_are_taken(tmp_path: Path) -> None:
    """A file that names streams and events is believed, whatever the rules would say."""
    made = HandMade()
    made.launch(0, 5, 10, 100, stream=7, name="first")
    record = made.call("cudaEventRecord", 6, 7)
    made.launch(10, 15, 101, 150, stream=7, name="second")
    wait = made.call("cudaStreamWaitEvent", 20, 21)
    made.add(
        "cuda_sync",
        "Stream Wait Event",
        20,
        21,
        20,
        device=0,
        stream=20,
        wait_on_stream=7,
        wait_on_cuda_event_record_corr_id=record,
        correlation=wait,
    )
    made.launch(30, 35, 101, 200, stream=20, name=NCCL)
    trace, found = inferred(made, tmp_path)
    assert waits_of(trace, found, NCCL) == ["first"]
    assert found.counts["recorded event waits"] == 1
    assert found.counts["collective-after-current"] == 0


# --- on the host --------------------------------------------------------------------------------


def two_streams() -> HandMade:
    made = HandMade()
    made.launch(0, 5, 10, 300, stream=20, name="side")
    made.launch(10, 15, 20, 200, stream=7, name="main")
    return made


@pytest.mark.parametrize(
    ("call", "end", "expected"),
    [
        # The stream of the last launch, though the other one ended later.
        ("cudaStreamSynchronize", 210, {"main"}),
        # It returned when the other stream was done: that one it must have been.
        ("cudaStreamSynchronize", 405, {"side"}),
        ("cudaDeviceSynchronize", 405, {"main", "side"}),
        # One stream was still running: it cannot have waited for all.
        ("cudaDeviceSynchronize", 210, {"main"}),
    ],
)
def test_synchronising_calls(tmp_path: Path, call: str, end: float, expected: set[str]) -> None:
    made = two_streams()
    if end == 405:
        made.events[1]["dur"] = 390  # "side" ends at 400
    made.call(call, 20, end)
    assert set(blocking(made, tmp_path, call)) == expected


def test_event_synchronisation(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 10, 100, name="before")
    made.call("cudaEventRecord", 6, 7)
    made.launch(10, 15, 101, 500, name="behind")
    made.call("cudaEventSynchronize", 20, 110)
    assert blocking(made, tmp_path, "cudaEventSynchronize") == ["before"]


@pytest.mark.parametrize(("name", "kind"), [("Event Sync", "Event"), ("Stream Sync", "Stream")])
def test_recorded_synchronisation(tmp_path: Path, name: str, kind: str) -> None:
    """The call names its event or stream; the rules would say the current stream."""
    made = HandMade()
    made.launch(0, 5, 10, 60, stream=20, name="side")
    record = made.call("cudaEventRecord", 6, 7)
    made.launch(10, 15, 20, 90, stream=7, name="main")
    call = made.call(f"cuda{kind}Synchronize", 20, 110)
    made.add(
        "cuda_sync",
        name,
        20,
        110,
        20,
        device=0,
        stream=20,
        wait_on_stream=20,
        wait_on_cuda_event_record_corr_id=record,
        correlation=call,
    )
    assert blocking(made, tmp_path, f"cuda{kind}Synchronize") == ["side"]


def test_copies_block(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 10, 100)
    # To pageable memory: always. From pinned memory: only if the call ends with its copy.
    made.launch(10, 120, 101, 110, name="Memcpy DtoH (Device -> Pageable)", call="cudaMemcpyAsync")
    made.launch(130, 150, 140, 149, name="Memcpy HtoD (Pinned -> Device)", call="cudaMemcpyAsync")
    made.launch(160, 165, 170, 190, name="Memcpy DtoD (Device -> Device)", call="cudaMemcpyAsync")
    trace, calls = made.read(tmp_path)
    found = infer_waits(trace, calls)
    assert {calls[p].begin // 1_000_000 - 1 for p in found.blocking} == {10, 130}
    assert found.counts["copy-wait"] == 2


def test_freeing_memory_waits(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 10, 500, name="long")
    made.call("cudaFree", 20, 510)
    assert blocking(made, tmp_path, "cudaFree") == ["long"]


def test_allocator_waits_unseen(tmp_path: Path) -> None:
    """Between an allocation that failed and a free, the allocator waits for a communication."""
    made = HandMade()
    made.launch(0, 5, 10, 20, name="a")
    all_reduce(made, 10, 21, 900)
    made.call("cudaMalloc", 100, 110)
    made.call("cudaFree", 950, 960)
    trace, calls = made.read(tmp_path)
    found = infer_waits(trace, calls)
    (position,) = found.gap_waits
    assert calls[position].name == "cudaFree"
    assert [trace.device.name[op] for op in found.gap_waits[position]] == [NCCL]


def test_polling_for_tokens(tmp_path: Path) -> None:
    notify = "void dpsk::ep::internode::notify_dispatch<false, 1>(int const*)"
    made = HandMade()
    made.launch(0, 5, 10, 300, stream=20, name=notify)
    made.launch(310, 315, 320, 400, name="after")
    trace, calls = made.read(tmp_path)
    found = infer_waits(trace, calls)
    assert {calls[p].kind for p in found.gap_waits} == {CallKind.LAUNCH}
    assert found.counts["polled-wait"] == 1


def test_operations_launched_before_the_recording(tmp_path: Path) -> None:
    made = HandMade()
    made.device(0, 100, stream=7, name="in flight")
    made.launch(10, 15, 101, 120, stream=20, name="other")
    made.call("cudaDeviceSynchronize", 20, 125)
    assert set(blocking(made, tmp_path, "cudaDeviceSynchronize")) == {"in flight", "other"}
