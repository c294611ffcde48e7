"""Jobs of several ranks with other micro-batches, or another sharding of their optimizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from mpi4py import MPI
from parallel_jobs import (
    GPIPE,
    GPT,
    Job,
    generated,
    recorded,
    recorded_on_stages,
    traffic,
)

from mpisim.base.errors import InputError
from mpisim.extrapolate.parallel import extrapolate_parallel
from mpisim.extrapolate.parallel_shards import sharded_rows
from mpisim.replay import TraceJob
from mpisim.topo import find_cluster


def test_kernels_of_a_sharded_optimizer(llama: Job) -> None:
    table = llama.job.program.table_of(0)
    names = {llama.job.program.names[i] for i in table.name[sharded_rows(table, [0])]}
    assert names == {"gradient norm", "clip gradients", "adam"}
    before, after = llama.grown(16).grown.sharded  # type: ignore[union-attr]
    assert after == pytest.approx(before / 2, rel=0.01)


# --- the optimizer -------------------------------------------------------------------------------


@pytest.mark.parametrize("on", [True, False])
def test_distributed_optimizer(on: bool, tmp_path: Path) -> None:
    sharded = GPT.replace("zero = 1", "zero = 1\noverlap.dp = false")
    whole = sharded.replace("zero = 1", "zero = 0")
    before, after = (whole, sharded) if on else (sharded, whole)
    (tmp_path / "before").mkdir()
    job = recorded(before, 32, tmp_path / "before").job
    # Exported kernels are all called those of fp32; Megatron-LM's layers reduce in bf16.
    names = [
        name.replace("ReduceScatter_Sum_f32", "ReduceScatter_Sum_bf16")
        for name in job.program.names
    ]
    program = job.program.replace(names=tuple(names))
    job = replace(job, traces=replace(job.traces, program=program))
    for nodes in (1, 2):
        found = extrapolate_parallel(
            job,
            MPI.COMM_SELF,
            dp=2 * nodes,
            cluster=find_cluster("dgx-h100"),
            distributed_optimizer=on,
        )
        expected = generated(after, 32, nodes, tmp_path).run
        step = float(expected.step_time) / 1e12
        assert found.step == pytest.approx(step, rel=0.01), nodes
        own = traffic(found.program)
        assert {name: size for name, size in own.items() if size} == traffic(expected.program)
    again = extrapolate_parallel(
        job, MPI.COMM_SELF, cluster=find_cluster("dgx-h100"), distributed_optimizer=not on
    )
    assert again.grown is None


def test_fsdp_is_not_switched_off(llama: Job) -> None:
    with pytest.raises(InputError, match="gathered more often than gradients are reduced"):
        extrapolate_parallel(
            llama.job,
            MPI.COMM_SELF,
            cluster=find_cluster("dgx-h100"),
            distributed_optimizer=False,
        )


def test_distributed_optimizer_of_megatron(megatron: TraceJob) -> None:
    cluster = find_cluster("a800-8gpu")
    found = extrapolate_parallel(
        megatron, MPI.COMM_SELF, cluster=cluster, distributed_optimizer=True
    )
    own, before = traffic(found.program), traffic(megatron.program)
    reduced = 4 * (409935872 + 405749760)  # fp32 gradients of both stages
    assert before["ALL_REDUCE"] - own["ALL_REDUCE"] == reduced
    assert own["REDUCE_SCATTER"] - before["REDUCE_SCATTER"] == reduced
    assert own["ALL_GATHER"] - before["ALL_GATHER"] == reduced // 2  # parameters in bf16
    assert found.step == pytest.approx(found.recorded, rel=0.02)


# --- micro-batches -------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batches", [3, 5, 16])
def test_micro_batches(gpt: Job, micro_batches: int, tmp_path: Path) -> None:
    found = extrapolate_parallel(
        gpt.job, MPI.COMM_SELF, cluster=find_cluster("dgx-h100"), micro_batches=micro_batches
    )
    expected = generated(GPT, 8 * micro_batches, 1, tmp_path).run
    assert found.step == pytest.approx(float(expected.step_time) / 1e12, rel=1e-4)
    assert traffic(found.program) == traffic(expected.program)


def test_micro_batches_without_slowdown(tmp_path: Path) -> None:
    text = f'{GPT}\n[overlap]\nmodel = "off"\n'
    (tmp_path / "before").mkdir()
    job = recorded(text, 32, tmp_path / "before").job
    found = extrapolate_parallel(
        job, MPI.COMM_SELF, cluster=find_cluster("dgx-h100"), micro_batches=5
    )
    expected = generated(text, 8 * 5, 1, tmp_path).run
    assert found.step == pytest.approx(float(expected.step_time) / 1e12, rel=1e-4)


def test_micro_batches_of_four_stages(tmp_path: Path) -> None:
    text = (
        GPT.replace("pp = 2", "pp = 4").replace("tp = 2", "tp = 1").replace("zero = 1", "zero = 0")
    )
    (tmp_path / "before").mkdir()
    job = recorded(text, 2 * 4 * 8, tmp_path / "before").job
    found = extrapolate_parallel(
        job, MPI.COMM_SELF, dp=4, cluster=find_cluster("dgx-h100"), micro_batches=12
    )
    expected = generated(text.replace("{nodes}", "2"), 4 * 4 * 12, 1, tmp_path).run
    assert found.program.n_ranks == expected.program.n_ranks == 16
    assert found.step == pytest.approx(float(expected.step_time) / 1e12, rel=0.01)
    assert traffic(found.program) == traffic(expected.program)


def test_micro_batches_that_cannot_be_told(
    gpt: Job, llama: Job, megatron: TraceJob, tmp_path: Path
) -> None:
    cases = (
        (gpt.job, 1, "fill and drain the pipeline; allowed is 3 or more"),
        (llama.job, 2, "has no pipeline"),
        (megatron, 4, "no two that follow each other do the same"),
    )
    for job, micro_batches, said in cases:
        with pytest.raises(InputError, match=said):
            extrapolate_parallel(
                job,
                MPI.COMM_SELF,
                cluster=find_cluster("a800-8gpu"),
                micro_batches=micro_batches,
            )


def test_micro_batches_of_gpipe_are_refused(tmp_path: Path) -> None:
    """Rounds of forwards alone would be added without their backwards."""
    job = recorded_on_stages(GPIPE, 2, tmp_path)
    with pytest.raises(InputError, match=r"a forward and a backward.*no two that follow"):
        extrapolate_parallel(job, MPI.COMM_SELF, cluster=find_cluster("dgx-h100"), micro_batches=8)
