"""Megatron-LM's buckets in jobs of more replicas: the grown job beside the generated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI
from parallel_jobs import GPT, LLAMA, Job, recorded, traffic

from mpisim.base.errors import InputError, UsageError
from mpisim.extrapolate.parallel import Extrapolated, extrapolate_parallel
from mpisim.extrapolate.parallel_buckets import ALREADY_MEGATRON
from mpisim.extrapolate.parallel_changes import Changes, check_changes
from mpisim.program import Operation, Program
from mpisim.topo import find_cluster

MEGATRON = LLAMA.replace('"llama-7b"', '"llama-7b"\nlayers = 8').replace("zero = 3", "zero = 1")
MEGATRON = MEGATRON.replace('"fsdp"', '"megatron"')

JOBS = {
    "distributed optimizer": (MEGATRON, 8, 128),
    "all-reduced": (MEGATRON.replace("zero = 1", "zero = 0"), 8, 128),
    "TP 2": (MEGATRON.replace("tp = 1", "tp = 2"), 4, 64),
    "tied embeddings on two stages": (
        *(GPT.replace('"gpt3-350m"', '"gpt3-13b"\nlayers = 8'), 32, 128),
    ),
}
"""Text, batch and replicas at which larger buckets end where recorded ones do."""


def buckets(program: Program) -> list[tuple[int, int]]:
    """Return what rank 0 reduces and gathers, the smallest aside: operations and bytes in order."""
    table = program.table_of(0)
    kinds = (Operation.REDUCE_SCATTER, Operation.ALL_GATHER, Operation.ALL_REDUCE)
    rows = zip(table.operation.tolist(), table.bytes.tolist(), strict=True)
    return [(kind, size) for kind, size in rows if kind in kinds and size > 1 << 20]


def recorded_replicas(job: Job) -> int:
    """Return the replicas of a node."""
    found = job.grown(32)
    return int(32 * job.job.program.n_ranks / found.program.n_ranks)


@pytest.fixture(scope="module", params=JOBS)
def megatron(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Job, int]:
    """A recorded job with Megatron-LM's buckets, and more replicas."""
    text, batch, replicas = JOBS[request.param]
    return recorded(text, batch, tmp_path_factory.mktemp("megatron")), replicas


def test_buckets_grow(megatron: tuple[Job, int]) -> None:
    """Recorded buckets of these models end where larger ones do: the generated job is equal."""
    job, replicas = megatron
    found = job.grown(replicas, buckets="fp32")
    expected = job.generated(replicas // recorded_replicas(job)).run
    assert buckets(found.program) == buckets(expected.program)
    assert traffic(found.program) == traffic(expected.program)
    step = float(expected.step_time) / 1e12
    assert found.step == pytest.approx(step, rel=0.03)
    kept = job.grown(replicas)
    assert len(buckets(found.program)) < len(buckets(kept.program))
    assert abs(found.step / step - 1) < abs(kept.step / step - 1)
    assert any(f"{replicas},000,000 parameters" in line for line in found.attributes["assumptions"])


def test_few_replicas_keep_them(megatron: tuple[Job, int]) -> None:
    """Up to 40 replicas buckets are of 40 million parameters."""
    job, _ = megatron
    found, kept = job.grown(32, buckets="fp32"), job.grown(32)
    assert buckets(found.program) == buckets(kept.program)
    assert found.step == kept.step
    assert [said(each) for each in (found, kept)] == [True, False]
    assert others(found) == others(kept)


def said(found: Extrapolated) -> bool:
    """Whether it is said that Megatron-LM would merge none of the buckets."""
    return any(ALREADY_MEGATRON in line for line in found.attributes["assumptions"])


def others(found: Extrapolated) -> dict[str, Any]:
    """Return what is said of a job, but of its buckets."""
    lines = [each for each in found.attributes["assumptions"] if "buckets" not in each]
    return {**found.attributes, "assumptions": lines}


def test_replicas_as_recorded_keep_them(megatron: tuple[Job, int]) -> None:
    job, _ = megatron
    found = extrapolate_parallel(
        job.job, MPI.COMM_SELF, cluster=find_cluster("dgx-h100"), buckets="fp32"
    )
    assert found.network is None
    assert said(found)


OTHERS = {
    "fewer": (LLAMA.replace("zero = 3", "zero = 0").replace("fsdp", "ddp"), 8, "closes none"),
    "FSDP": (LLAMA, 8, "gathers as many as it reduces"),
    "interleaved": (
        GPT.replace('"gpt3-350m"', '"gpt3-13b"\nlayers = 8').replace(
            "pp = 2", 'pp = 2\nvpp = 2\npipeline.schedule = "interleaved"'
        ),
        *(32, "interleaved schedules"),
    ),
}
"""Text, batch, and what is said of buckets that are not those of one chunk of Megatron-LM."""


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_refused(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    text, batch, said = OTHERS[name]
    text = text.replace('"llama-7b"', '"llama-7b"\nlayers = 4')
    job = recorded(text, batch, tmp_path_factory.mktemp("other"))
    with pytest.raises(InputError, match=f"--megatron-buckets: .*{said}"):
        job.grown(128, buckets="fp32")


def test_needs_a_network() -> None:
    with pytest.raises(UsageError, match="--megatron-buckets is a change: --cluster says"):
        check_changes(None, "", Changes(buckets="fp32"))


def test_formats_are_two() -> None:
    with pytest.raises(
        UsageError, match=r"is 'fp3'; allowed are fp32 and bf16 \(did you mean 'fp32"
    ):
        check_changes(find_cluster("dgx-h100"), "", Changes(buckets="fp3"))


def test_buckets_of_one_group_grow_beside_more_of_another(tmp_path: Path) -> None:
    """Dense gradients have 6 buckets, small ones, experts 8, of 117 million parameters and more."""
    text = MEGATRON.replace('"llama-7b"\nlayers = 8', '"mixtral-8x7b"\nlayers = 4')
    job = recorded(text.replace("tp = 1", "tp = 1\nep = 4"), 8, tmp_path)
    found, kept = job.grown(12, buckets="fp32"), job.grown(12)
    assert traffic(found.program) == pytest.approx(traffic(kept.program), rel=1e-6)  # padding
    before, after = (
        [size for kind, size in buckets(each.program) if kind == Operation.REDUCE_SCATTER]
        for each in (kept, found)
    )
    assert (len(before), len(after)) == (8 + 6, 8 + 4)
    assert any(
        "48,000,000 parameters or more: 6 recorded buckets become 4" in line
        for line in found.attributes["assumptions"]
    )
