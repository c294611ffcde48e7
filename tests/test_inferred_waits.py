"""Waits of the CPU that a trace does not show: the allocator's, and those of timers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from traces import US, HandMade

from mpisim.replay import read_job, replay
from mpisim.replay.what_if import WhatIf
from mpisim.traces.waits import Inference, infer_waits

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from mpisim.traces.kineto import KinetoTrace


def inferred(made: HandMade, folder: Path) -> tuple[KinetoTrace, list[str], Inference]:
    trace, calls = made.read(folder)
    return trace, [call.name for call in calls], infer_waits(trace, calls)


def retrying() -> HandMade:
    """An allocation that fails behind a long kernel, a row of frees, and a second try (µs)."""
    made = HandMade()
    made.launch(0, 5, 10, 5000, stream=20, name="side")
    made.call("cudaMalloc", 20, 120)
    made.launch(5, 8, 10, 5600, stream=7, name="current")
    # Here the allocator waits for the event on the side stream: nothing is recorded.
    made.call("cudaFree", 5040, 6600)  # waits for "current", then unmaps for 1 ms
    made.call("cudaFree", 6605, 7605)
    made.call("cudaMalloc", 7610, 8610)
    made.launch(8700, 8705, 8710, 9000, stream=7, name="next")
    made.call("cudaDeviceSynchronize", 8720, 9010)
    return made


def test_a_retry_waits_for_the_device(tmp_path: Path) -> None:
    trace, calls, found = inferred(retrying(), tmp_path)
    ((at, sources),) = found.gap_waits.items()
    assert calls[at] == "cudaFree"
    assert [trace.device.name[op] for op in sources] == ["side"]
    frees = [ops for position, ops in found.blocking.items() if calls[position] == "cudaFree"]
    assert [{trace.device.name[op] for op in ops} for ops in frees] == 2 * [{"side", "current"}]
    assert found.counts["allocator-wait"] == 1
    assert found.counts["free-wait"] == 2


@pytest.mark.parametrize(("factor", "step"), [(1.0, 9010), (0.1, 3718), (2.0, 14890)])
def test_what_a_retry_waited_for_is_no_cpu_time(
    comm: Intracomm, tmp_path: Path, factor: float, step: int
) -> None:
    """Kernels that take a tenth free the CPU; the work of the calls themselves stays (µs)."""
    made = retrying()
    made.note("ProfilerStep#0", 0, 9010)
    job = read_job([made.write(tmp_path)], comm)
    (found,) = replay(job, comm, WhatIf(compute=factor)).steps
    assert found.measured * 1e6 == pytest.approx(9010)
    assert found.replayed * 1e6 == pytest.approx(step, abs=30)


def test_calls_that_did_not_wait(tmp_path: Path) -> None:
    """A free that returned while the device worked, one in a stream's order, a plain malloc."""
    made = HandMade()
    made.launch(0, 5, 10, 5000, name="long")
    made.call("cudaFree", 20, 400)
    made.call("cudaFreeAsync", 410, 800)
    made.call("cudaMalloc", 900, 1900)
    made.call("cudaMalloc", 4000, 6000)  # ends 1 ms after the device was done: its own work
    _, _, found = inferred(made, tmp_path)
    assert not found.blocking
    assert not found.gap_waits


def test_an_allocation_that_waited(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 10, 5000, name="long")
    made.call("cudaMalloc", 100, 5040)
    _, calls, found = inferred(made, tmp_path)
    assert [calls[p] for p in found.blocking] == ["cudaMalloc"]
    assert found.counts["malloc-wait"] == 1


def test_a_time_between_events_waits_for_them(tmp_path: Path) -> None:
    """DDP's logger synchronises with both events, unseen, before it reads the time."""
    made = HandMade()
    made.launch(0, 5, 10, 3000, stream=20, name="all-reduce")
    made.launch(6, 8, 10, 1000, stream=7, name="backward")
    made.call("cudaEventElapsedTime", 20, 22)
    made.call("cudaEventElapsedTime", 1030, 1032)
    made.call("cudaEventElapsedTime", 3030, 3032)
    made.call("cudaEventElapsedTime", 3040, 3042)
    made.launch(4000, 4005, 4010, 4100, stream=7, name="forward")
    trace, _, found = inferred(made, tmp_path)
    waits = [trace.device.name[op] for ops in found.gap_waits.values() for op in ops]
    assert waits == ["backward", "all-reduce"]
    assert found.counts["timer-wait"] == 2


@settings(max_examples=30, deadline=None)
@given(length=st.integers(200, 20_000), work=st.integers(0, 3_000), tail=st.integers(0, 90))
def test_a_wait_is_counted_once(
    tmp_path_factory: pytest.TempPathFactory, length: int, work: int, tail: int
) -> None:
    """However long it was, the replay ends when the recording did: nothing is counted twice."""
    made = HandMade()
    made.launch(0, 5, 10, 10 + length, name="long")
    made.call("cudaEventElapsedTime", 20, 21)
    read = 10 + length + tail
    made.call("cudaEventElapsedTime", read, read + 1)
    made.launch(read + 1 + work, read + 6 + work, read + 11 + work, read + 100 + work)
    job = read_job([made.write(tmp_path_factory.mktemp("made"))], MPI.COMM_SELF)
    (found,) = replay(job, MPI.COMM_SELF).steps
    assert found.replayed == found.measured
    host = int(job.program.table_of(0).host.sum())
    assert host < (work + 200) * US


def test_a_stall_is_paid_in_every_step(comm: Intracomm, shared: Path) -> None:
    """TorchRec's rank 2 makes the others wait in each step: without its stalls each is shorter.

    The first step ends with DDP's timers, in which the other ranks wait unseen; it also retries
    an allocation.
    """
    folder = shared / "traces" / "torchrec_dlrm_fp32_v100_4rank"
    job = read_job([folder], comm)
    assert job.counts["allocator-wait"] == 4
    plain = replay(job, comm)
    assert all(abs(step.error) < 0.002 for step in plain.steps)
    changed = replay(job, comm, WhatIf(cap_rank_gap={2: 0.001}))
    change = {
        (after.rank, after.step): after.replayed / before.replayed - 1
        for before, after in zip(plain.steps, changed.steps, strict=True)
    }
    assert len(change) == 8
    assert all(-0.08 < each < -0.06 for each in change.values())
