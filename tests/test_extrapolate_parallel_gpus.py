"""Jobs of several ranks on GPUs of another kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI
from parallel_jobs import (
    GPT,
    Job,
    generated,
)

from mpisim.base.errors import InputError
from mpisim.extrapolate.parallel import extrapolate_parallel
from mpisim.extrapolate.parallel_overlap import KernelSlowdown
from mpisim.program import Kind, Program
from mpisim.replay import TraceJob, read_job
from mpisim.topo import find_cluster
from mpisim.traces.export import export_kineto


def test_the_same_gpu_changes_nothing(megatron: TraceJob) -> None:
    found = extrapolate_parallel(
        megatron, MPI.COMM_SELF, cluster=find_cluster("a800-8gpu"), gpu="a800-sxm"
    )
    assert found.grown is None
    assert found.step == found.recorded


def test_shapes_carry_kernels_to_another_gpu(
    megatron: TraceJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    put_in = KernelSlowdown.put_in

    def noted(self: KernelSlowdown, *args: Any) -> Program:
        program = put_in(self, *args)
        said.append(self.text)
        return program

    monkeypatch.setattr(KernelSlowdown, "put_in", noted)
    found = extrapolate_parallel(
        megatron,
        MPI.COMM_SELF,
        cluster=find_cluster("dgx-h100"),
        traced_cluster=find_cluster("a800-8gpu"),
        gpu="h100-sxm",
    )
    assert found.kernels is not None
    assert found.kernels.share("scaled") > 0.9
    # The slowdown told is that of the step, not of the one with kernels their error bar longer.
    first, late = said
    assert first != late
    assert first in found.attributes["assumptions"]
    kernels = []
    for cluster in ("a800-8gpu", "dgx-h100"):
        text = GPT.replace("dgx-h100", cluster).replace(
            '"gpt3-350m"', '"gpt3-350m"\nseq_len = 1024'
        )
        text = text.replace("micro_batch = 4", "micro_batch = 32")
        table = generated(text, 128, 1, tmp_path).run.program.table_of(0)
        kernels.append(int(table.duration[table.kind == Kind.KERNEL].sum()))
    ratio = found.kernels.after / found.kernels.before
    interval = 1.645 * found.kernels.error  # 90 %, as reports state it; the error is one sigma
    assert ratio == pytest.approx(kernels[1] / kernels[0], rel=interval)


def test_without_shapes_kernels_go_with_rates(gpt: Job, tmp_path: Path) -> None:
    one = gpt.generated(1)
    export_kineto(one.run.program, one.run, tmp_path / "traces")
    found = extrapolate_parallel(
        read_job([tmp_path / "traces"], MPI.COMM_SELF),
        MPI.COMM_SELF,
        cluster=find_cluster("dgx-a100"),
        traced_cluster=find_cluster("dgx-h100"),
        gpu="a100-sxm",
    )
    assert found.kernels is not None
    assert found.kernels.share("by name") == pytest.approx(1)
    expected = generated(GPT.replace("dgx-h100", "dgx-a100"), 32, 1, tmp_path)
    step = float(expected.run.step_time) / 1e12
    assert abs(found.step / step - 1) < found.uncertainty
    assert found.uncertainty > 0.3


def test_a_gpu_that_lacks_a_format_is_refused(megatron: TraceJob) -> None:
    with pytest.raises(InputError, match=r"cannot run .* as it was recorded"):
        extrapolate_parallel(
            megatron, MPI.COMM_SELF, cluster=find_cluster("a800-8gpu"), gpu="v100-sxm2-32gb"
        )
