"""Replay of whole jobs: hand-made ones exactly, recorded ones within the claimed bounds."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from traces import NCCL, HandMade

from mpisim.base.errors import InputError, TraceError
from mpisim.replay import read_job, replay
from mpisim.replay.what_if import WhatIf

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.mpi_calls

DIGESTS = Path(__file__).with_name("trace_digests.py")

MULTI_RANK = {
    # Ranks, and what may remain of the time when device and wire take a twentieth of theirs: much
    # where the CPU is what takes the time.
    "dlrm_v100_8rank": (8, 1.0),
    "megatron_gpt_tp2pp2dp2_a800_8rank": (8, 0.65),
    "torchrec_dlrm_fp32_v100_4rank": (4, 0.95),
}
ONE_RANK = [
    "deepseek_v3_train_h800_rank0of64",
    "eager_b200_rank0of8",
    "hta_df_index_resolver_v100_rank1of2",
    "hta_nccl_args_a100_rank0of2",
    "hta_trace_diff_control_a100_rank3of8",
    "linear_2080ti_1gpu",
    "opt1.3b_zero1_v100_rank0of8",
    "opt1.3b_zero2_v100_rank0of8",
    "owlv2_h100_1gpu",
    "resnet50_ddp_v100_rank0of8",
    "resnet50_v100_1gpu_workers0",
    "resnet_actckpt_mi300x_rank0of8",
    "triosim_vgg13_h100_1gpu",
]


@pytest.fixture
def folder(comm: Intracomm) -> Iterator[Path]:
    """A new folder that all processes share."""
    path = tempfile.mkdtemp() if comm.rank == 0 else ""
    path = comm.bcast(path, root=0)
    yield Path(path)
    comm.barrier()
    if comm.rank == 0:
        shutil.rmtree(path)


def hand_made(rank: int, world: int = 2) -> HandMade:
    """A step of a kernel, an all-reduce that waits for it, and a synchronisation.

    Rank 0 computes for 300 µs, rank 1 for 500; the wire takes 60.
    """
    made = HandMade(distributedInfo={"backend": "nccl", "rank": rank, "world_size": world})
    ready = 12 + (300 if rank == 0 else 500)
    end = 12 + 500 + 1 + 60
    made.note("ProfilerStep#0", 0, end + 50)
    made.launch(5, 10, 12, ready)
    made.operator("c10d::allreduce_", 20, 60)
    made.call("cudaStreamWaitEvent", 25, 26)
    made.note("nccl:all_reduce", 30, 50)
    made.launch(35, 40, ready + 1, end, stream=20, name=NCCL)
    made.call("cudaDeviceSynchronize", 70, end + 10)
    return made


def write(folder: Path, comm: Intracomm, world: int = 2) -> None:
    if comm.rank == 0:
        for rank in (0, 1):
            hand_made(rank, world).write(folder, f"rank{rank}.json")
    comm.barrier()


@pytest.mark.mpi
def test_a_small_job(comm: Intracomm, folder: Path) -> None:
    write(folder, comm)
    job = read_job([folder], comm)
    found = replay(job, comm)
    assert found.rank_steps == {"0": {"0": 623e-6}, "1": {"0": 623e-6}}
    for step in found.steps:
        assert step.error == 0
    # The busiest streams compute: rank 0's other one waits 573 - 313 µs for rank 1.
    assert [step.baseline for step in found.steps] == [300e-6, 500e-6]
    assert job.kernels == 4
    assert job.counts["kernels matched"] == 2
    assert job.bytes_read == sum(len(hand_made(rank).text()) for rank in (0, 1))


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (WhatIf(comm=2.0), (683, 683)),  # + 60
        (WhatIf(compute=2.0), (1123, 1123)),  # + 500: rank 1 computes longest
        (WhatIf(compute=0.1), (173, 173)),  # - 450
        # Ready at 1000 + 313: rank 1 waits, rank 0 (which counts from its own begin) no more.
        (WhatIf(delay={0: 0.001}), (1423 - 1000, 1423)),
        (WhatIf(delay={1: 0.001}), (1623, 1623 - 1000)),
    ],
)
def test_changes_of_a_small_job(
    comm: Intracomm, folder: Path, what: WhatIf, expected: tuple[float, float]
) -> None:
    """Steps of the ranks in µs."""
    write(folder, comm)
    found = replay(read_job([folder], comm), comm, what)
    steps = {step.rank: step.replayed * 1e6 for step in found.steps}
    assert (round(steps[0], 3), round(steps[1], 3)) == expected
    assert found.changes == what.describe()


@pytest.mark.mpi
def test_one_rank_alone(comm: Intracomm, folder: Path) -> None:
    """Its communications are replayed as recorded, and that is said."""
    write(folder, comm)
    job = read_job([folder / "rank0.json"], comm)
    found = replay(job, comm)
    assert job.traces.world_size == 2
    assert job.counts["kernels without a partner"] == 1
    assert [step.error for step in found.steps] == [0.0]


@pytest.mark.mpi
def test_refused_on_all_processes(comm: Intracomm, folder: Path) -> None:
    write(folder, comm, world=4)
    with pytest.raises(TraceError, match="2 of 4 ranks are here; missing: 2, 3"):
        read_job([folder], comm)
    job = read_job([folder], comm, allow_missing=True)
    with pytest.raises(InputError, match="rank 7 is not in this program"):
        replay(job, comm, WhatIf(delay={7: 1.0}))


@pytest.mark.mpi
def test_a_rank_without_gpu_work(comm: Intracomm, folder: Path) -> None:
    if comm.rank == 0:
        hand_made(0).write(folder, "rank0.json")
        idle = HandMade(distributedInfo={"rank": 1, "world_size": 2})
        idle.operator("aten::mm", 0, 5)
        idle.write(folder, "rank1.json")
    comm.barrier()
    with pytest.raises(TraceError, match=r"rank1\.json: no GPU kernels in this trace"):
        read_job([folder], comm)


@pytest.mark.mpi
def test_recordings_of_two_times(comm: Intracomm, folder: Path) -> None:
    if comm.rank == 0:
        hand_made(0).write(folder, "rank0.json")
        late = hand_made(1)
        for event in late.events:
            event["ts"] += 10_000_000
        late.write(folder, "rank1.json")
    comm.barrier()
    with pytest.raises(TraceError, match="these are traces of two jobs"):
        read_job([folder], comm)


# --- recorded traces ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MULTI_RANK)
def test_recorded_jobs(comm: Intracomm, shared: Path, name: str) -> None:
    job = read_job([shared / "traces" / name], comm)
    found = replay(job, comm)
    n_ranks, most = MULTI_RANK[name]
    assert len(job.sources) == n_ranks
    assert job.counts["kernels without a partner"] == 0
    worst = max(found.steps, key=lambda step: abs(step.error))
    assert abs(worst.error) <= 0.01, worst
    # What a replay would not show that keeps waits as they were recorded:
    late = replay(job, comm, WhatIf(delay={1: 0.05}))
    for rank in range(n_ranks):
        # the others have some slack, but must wait for most of the 50 ms;
        assert late.run.rank_end[rank] - found.run.rank_end[rank] > 20e9
    fast = replay(job, comm, WhatIf(compute=0.05, comm=0.05))
    # and no CPU time is waiting for the device.
    assert fast.run.step_time < most * found.run.step_time


@pytest.mark.parametrize("name", ONE_RANK)
def test_recorded_ranks(comm: Intracomm, shared: Path, name: str) -> None:
    found = replay(read_job([shared / "traces" / name], comm), comm)
    worst = max(found.steps, key=lambda step: abs(step.error))
    assert abs(worst.error) <= 0.015, worst


@pytest.mark.timeout(600)
@pytest.mark.parametrize("trace", MULTI_RANK)
def test_one_digest_on_any_number_of_processes(
    trace: str, shared: Path, run_mpisim: Callable[..., Any]
) -> None:
    """Of the largest real traces, wherever their ranks lie."""
    folder = shared / "traces" / trace
    if not folder.is_dir():
        pytest.skip(f"no trace at {folder}")
    done = run_mpisim([folder], 8, program=DIGESTS, timeout=500)
    assert done.rc == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == ["1", "2", "3", "3", "4", "8", "8"]
    assert len({(digest, step) for _, _, digest, step in lines}) == 1, lines
