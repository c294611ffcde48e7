"""Jobs of several ranks with more or fewer replicas: the grown job beside the generated."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from mpi4py import MPI
from parallel_jobs import (
    GPT,
    LLAMA,
    Job,
    generated,
    recorded,
    traffic,
)

from mpisim.base.errors import InputError, UsageError
from mpisim.base.toml import toml_value
from mpisim.experiment import load
from mpisim.extrapolate import parallel_origin
from mpisim.extrapolate.parallel import extrapolate_parallel
from mpisim.extrapolate.parallel_growth import grow
from mpisim.extrapolate.parallel_slowest import SlowestOfMore
from mpisim.extrapolate.parallel_structure import find_structure
from mpisim.extrapolate.prepare import of_several_ranks
from mpisim.kernels.operations import Elementwise, Gemm
from mpisim.prediction.network import network_of
from mpisim.prediction.prepared import prepare
from mpisim.prediction.variation import slowest_factor
from mpisim.program import Kind, Operation, Program, ProgramBuilder
from mpisim.replay import TraceJob, read_job, replay
from mpisim.results import open_results
from mpisim.simulate import simulate
from mpisim.topo import find_cluster
from mpisim.topo.collectives.calibration import packaged_calibration
from mpisim.traces.export import export_kineto

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Finished


# --- growing what was generated ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_unchanged_is_the_replay(name: str, request: pytest.FixtureRequest) -> None:
    job: Job = request.getfixturevalue(name)
    found = job.grown(8 if name == "llama" else 2)
    assert found.grown is None
    assert found.program is job.job.program
    expected = simulate(job.job.program)
    assert expected is not None
    assert found.step == expected.step_time


@pytest.mark.parametrize("nodes", [2, 8, 1024])
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_grown_is_as_generated(name: str, nodes: int, request: pytest.FixtureRequest) -> None:
    job: Job = request.getfixturevalue(name)
    begin = time.process_time()
    found = job.grown(nodes * (8 if name == "llama" else 2))
    assert time.process_time() - begin < 5
    if (name, nodes) == ("gpt", 1024):
        # From 40 replicas on Megatron-LM's buckets grow with their number; a recording keeps its
        # own, of 40 million numbers in fp32.
        job = replace(job, text=f"{job.text}[framework]\nbucket = 160000000\n")
    expected = job.generated(nodes)
    assert found.program.n_ranks == 8 * nodes
    assert found.step == pytest.approx(float(expected.run.step_time) / 1e12, rel=0.03)
    own, others = traffic(found.program), traffic(expected.run.program)
    if (name, nodes) == ("llama", 1024):
        # FSDP pads each parameter to whole shares, of which a trace shows the sum alone: norms of
        # 4,096 numbers become 8,192.
        for operation, size in others.items():
            assert own[operation] == pytest.approx(size, rel=1e-4)
    else:
        assert own == others


OTHERS = {
    "hybrid sharding": (LLAMA.replace("zero = 3", "zero = 3\nzero_group = 4"), 8, 2),
    "DDP": (
        LLAMA.replace("zero = 3", "zero = 0")
        .replace("fsdp", "ddp")
        .replace("llama-7b", "gpt3-1.3b"),
        *(8, 8),
    ),
    "ZeRO-1 of DeepSpeed": (
        LLAMA.replace("zero = 3", "zero = 1")
        .replace("fsdp", "deepspeed")
        .replace("llama-7b", "gpt3-1.3b"),
        *(8, 8),
    ),
    "ZeRO-3 of DeepSpeed": (
        LLAMA.replace("fsdp", "deepspeed").replace("llama-7b", "gpt3-1.3b"),
        *(8, 8),
    ),
    "experts": (
        GPT.replace('"gpt3-350m"', '"mixtral-8x7b"\nlayers = 4').replace(
            "tp = 2\npp = 2", "tp = 1\npp = 1\nep = 4"
        ),
        *(32, 2),
    ),
}
"""Text, batch and replicas of a node."""


class Other(NamedTuple):
    """A recorded job of another plan, and its replicas on each node."""

    job: Job
    replicas: int


@pytest.fixture(scope="module", params=OTHERS)
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Other:
    """One of the other plans, recorded once for all numbers of nodes."""
    text, batch, replicas = OTHERS[request.param]
    return Other(recorded(text, batch, tmp_path_factory.mktemp("other")), replicas)


@pytest.mark.parametrize("nodes", [2, 8])
def test_other_plans(other: Other, nodes: int) -> None:
    """Communications that overlap slow kernels down otherwise than in the recording."""
    job = other.job
    found = job.grown(nodes * other.replicas)
    expected = job.generated(nodes).run
    assert traffic(found.program) == traffic(expected.program)
    step = float(expected.step_time) / 1e12
    assert found.step == pytest.approx(step, rel=0.03)
    assert abs(found.step / step - 1) < found.uncertainty


def test_fewer_replicas(gpt: Job, tmp_path: Path) -> None:
    two = gpt.generated(2)
    export_kineto(two.run.program, two.run, tmp_path / "traces")
    job = read_job([tmp_path / "traces"], MPI.COMM_SELF)
    found = extrapolate_parallel(job, MPI.COMM_SELF, dp=2, cluster=find_cluster("dgx-h100"))
    expected = gpt.generated(1)
    assert found.step == pytest.approx(float(expected.run.step_time) / 1e12, rel=0.01)
    assert traffic(found.program) == traffic(expected.run.program)


def test_missing_replicas_are_filled_in(gpt: Job) -> None:
    paths = [gpt.folder / "traces" / f"kineto_rank{rank}.json.gz" for rank in (0, 1, 4, 5)]
    job = read_job(paths, MPI.COMM_SELF, allow_missing=True)
    found = extrapolate_parallel(job, MPI.COMM_SELF, cluster=find_cluster("dgx-h100"))
    assert found.structure.text == "tp=2,dp=2,pp=2"
    assert found.program.n_ranks == 8
    whole = simulate(gpt.job.program)
    assert whole is not None
    assert found.step == pytest.approx(whole.step_time, rel=0.01)
    assert traffic(found.program) == traffic(gpt.job.program)
    # Groups over replicas and something else, of which two or more members are at hand.
    complete = extrapolate_parallel(gpt.job, MPI.COMM_SELF).structure
    assert found.structure.traffic == complete.traffic


def test_another_network(gpt: Job, tmp_path: Path) -> None:
    found = extrapolate_parallel(
        gpt.job,
        MPI.COMM_SELF,
        cluster=find_cluster("dgx-h800"),
        traced_cluster=find_cluster("dgx-h100"),
    )
    slower = tmp_path / "h800.toml"
    text = GPT.format(batch=32, nodes=1).replace("dgx-h100", "dgx-h800")
    slower.write_text(text)
    expected = simulate(prepare(load(str(slower))[1]))
    assert expected is not None
    assert found.step > found.recorded
    assert found.step == pytest.approx(expected.step_time, rel=0.03)


def calibration_file(folder: Path, **factors: float) -> Path:
    """A folder → a calibration in it: that of DGX H100, with some of its numbers multiplied."""
    table = packaged_calibration().tables["dgx-h100"]
    numbers = {key: value * factors.get(key, 1) for key, value in table.numbers.items()}
    path = folder / "mine.cal.toml"
    errors = '{ decade = 9, rows = 9, bias = 0.0, median = 0.05, p90 = 0.1, regime = "across" }'
    path.write_text(
        f'[mine]\nform = "nccl"\nnumbers = {toml_value(numbers)}\nsource = "a test"\n'
        f'files = ["a.log"]\nsplit = "all"\ncurves = 1\nrows = 9\nheld_out = "wider"\n'
        f'behind = ["dgx-h100", "hopper", "any"]\nerrors = [{errors}]\n'
    )
    return path


def test_measured_collectives_of_the_new_network(gpt: Job, tmp_path: Path) -> None:
    """As the job generated with the same calibration, which tells nothing new of one node."""
    cluster = find_cluster("dgx-h100")
    steps = {}
    for share in (1.0, 0.1):
        path = calibration_file(tmp_path, bandwidth_across=share)
        found = extrapolate_parallel(
            gpt.job, MPI.COMM_SELF, dp=16, cluster=cluster, calibration=str(path)
        )
        assert f"network.calibration = {path}" in found.attributes["assumptions"]
        text = f'{gpt.text}[network]\ncalibration = "{path}"\n'
        expected = generated(text, gpt.batch, 8, tmp_path)
        assert found.step == pytest.approx(float(expected.run.step_time) / 1e12, rel=0.03)
        steps[share] = found.step
    assert steps[1.0] == gpt.grown(16).step
    assert steps[0.1] > 1.1 * steps[1.0]


def test_a_calibration_needs_a_cluster(gpt: Job, tmp_path: Path) -> None:
    path = str(calibration_file(tmp_path))
    with pytest.raises(UsageError, match=r"--calibration .*--cluster says on which network"):
        extrapolate_parallel(gpt.job, MPI.COMM_SELF, calibration=path)


def test_measured_times_are_carried_over(gpt: Job) -> None:
    """Twice as long as the model says before: twice as long after, where NVLink stays NVLink."""
    program = gpt.job.program
    structure = find_structure(program, range(8), 8, named=True)
    rack = find_cluster("gb200-nvl72")
    network = network_of(rack, 1)

    def doubled(times: int) -> Program:
        tables = []
        for rank in range(program.n_ranks):
            table = program.table_of(rank)
            along = [
                slot
                for slot, c in enumerate(program.slots_of(rank).tolist())
                if structure.spans[c].tolist() == [False, True, False]
            ]
            over = np.isin(table.slot, along)
            assert over.any()
            tables.append(table.replace(duration=np.where(over, times, 1) * table.duration))
        return program.replace(tables=tuple(tables), table=np.arange(8))

    prices = []
    for times in (1, 2):
        grown = grow(doubled(times), structure, 8, network, network, 0)  # type: ignore[arg-type]
        groups = grown.program.communicators
        dp = next(c for c, each in enumerate(groups.names) if each.startswith("dp "))
        label, classes = grown.network.group_classes(
            groups.index, groups.members, grown.program.operation_bits
        )
        group = classes[int(label[dp])]
        prices.append(grown.network.price(Operation.ALL_GATHER, 151232512, group).duration)
    assert prices[1] == pytest.approx(2 * prices[0], rel=1e-3)


# --- the slowest GPU ------------------------------------------------------------------------------


def test_the_slowest_of_more_gpus() -> None:
    """Of N normal numbers the largest is z(N) beyond the mean: 8 that were recorded hold z(8)."""
    factor = SlowestOfMore(8, 64).factor
    assert factor.value == pytest.approx(slowest_factor(64).value / slowest_factor(8).value)
    further = SlowestOfMore(64, 4096).factor.value
    assert SlowestOfMore(8, 4096).factor.value == pytest.approx(factor.value * further)
    assert 0 < factor.error < slowest_factor(64).error
    for fewer in (4, 8):
        assert SlowestOfMore(8, fewer).factor.value == 1
        assert not SlowestOfMore(8, fewer).text


def test_products_alone_are_slower() -> None:
    builder = ProgramBuilder()
    names = ("sgemm_128x128", "elementwise", "product of a compiler", "fmha_norm")
    rows = builder.table()
    for name in names:
        rows.kernel(name, 0, 1_000_000)
    builder.add_rank(builder.add_table(rows.build()), [])
    program = builder.build()
    kernels = {
        "product of a compiler": [(1_000_000, Gemm(64, 64, 64))],
        "fmha_norm": [(1_000_000, Elementwise(64))],  # shapes say more than names
    }
    slowest = SlowestOfMore(1, 8)
    longer = round(1_000_000 * slowest_factor(8).value)
    found = slowest.put_in(program, kernels).table_of(0).duration
    assert found.tolist() == [longer, 1_000_000, longer, 1_000_000]
    assert program.table_of(0).duration.tolist() == [1_000_000] * 4
    assert SlowestOfMore(8, 8).put_in(program, kernels) is program


def test_megatron_grows_as_the_generated_job(megatron: TraceJob, tmp_path: Path) -> None:
    text = GPT.replace("dgx-h100", "a800-8gpu").replace("zero = 1", "zero = 0\noverlap.dp = false")
    text = text.replace('"gpt3-350m"', '"gpt3-350m"\nseq_len = 1024')
    text = text.replace("micro_batch = 4", "micro_batch = 32")
    plan = {nodes: generated(text, 128, nodes, tmp_path) for nodes in (1, 2, 4)}
    cluster = find_cluster("a800-8gpu")
    steps = [extrapolate_parallel(megatron, MPI.COMM_SELF).step]
    for nodes in (2, 4):
        found = extrapolate_parallel(megatron, MPI.COMM_SELF, dp=2 * nodes, cluster=cluster)
        steps.append(found.step)
        # The recorded kernels with what the generated job becomes longer by.
        longer = (float(plan[nodes].run.step_time) - float(plan[1].run.step_time)) / 1e12
        assert found.step == pytest.approx(steps[0] + longer, rel=0.05)
        assert found.step - steps[0] == pytest.approx(longer, rel=0.1)
    assert steps == sorted(steps)
    # The gradients and the messages between stages are the plan's.
    sizes = {each.bytes for each in found.structure.traffic if each.axes == "dp"}
    table = plan[1].run.program.table_of(0)
    assert int(table.bytes[table.operation == Operation.ALL_REDUCE].max()) in sizes
    sent = int(table.bytes[table.kind == Kind.SEND].max())
    assert f"taken as {sent / 2**20:.1f} MiB" in " ".join(found.attributes["assumptions"])


def test_a_cluster_that_the_job_was_not_recorded_on_is_refused(megatron: TraceJob) -> None:
    with pytest.raises(UsageError, match="--traced-cluster says on which cluster"):
        extrapolate_parallel(megatron, MPI.COMM_SELF, cluster=find_cluster("dgx-h100"))


def test_jobs_of_several_ranks_are_told_apart(gpt: Job, shared: Path) -> None:
    assert of_several_ranks([gpt.folder / "traces"])
    assert of_several_ranks([gpt.folder / "traces" / "kineto_rank5.json.gz"])
    assert not of_several_ranks([shared / "traces" / "linear_2080ti_1gpu"])


# --- the command ---------------------------------------------------------------------------------


def test_command(gpt: Job, call_mpisim: Callable[..., Finished], tmp_path: Path) -> None:
    traces, figures = str(gpt.folder / "traces"), tmp_path / "f.json"
    saved = tmp_path / "p.h5"
    options = ["--dp", "4", "--cluster", "dgx-h100", "--json", str(figures), "--details"]
    options += ["--calibration", str(calibration_file(tmp_path))]
    done = call_mpisim(["extrapolate", traces, *options, "--save-program", str(saved)])
    assert done.rc == 0, done.stderr
    assert "parallel structure  tp=2,dp=2,pp=2" in done.stdout
    assert "tp=2,dp=4,pp=2, 16 ranks" in done.stdout
    assert "measured over modelled time" in " ".join(done.stdout.split())
    found = json.loads(figures.read_text())
    assert found["new_axes"] == {"tp": 2, "dp": 4, "pp": 2}
    assert found["repriced"]["dp"] > 0
    again = call_mpisim(["run", str(saved)])
    assert again.rc == 0, again.stderr


def test_a_grown_job_is_exported(
    gpt: Job, run_mpisim: Callable[..., Finished], tmp_path: Path
) -> None:
    traces, kept, out = gpt.folder / "traces", tmp_path / "run.h5", tmp_path / "traces"
    changes: list[Any] = ["--dp", "4", "--pp", "4", "--cluster", "dgx-h100"]
    done = run_mpisim(["extrapolate", traces, *changes, "-o", kept])
    assert done.rc == 0, done.stderr
    export: list[Any] = ["export", kept, "--format", "chrome", "--ranks", "all", "-o"]
    done = run_mpisim([*export, out], 2, timeout=120)
    assert done.rc == 0, done.stderr
    again = replay(read_job([out], MPI.COMM_SELF), MPI.COMM_SELF)
    with open_results(kept) as results:
        assert results.n_ranks == 32
        assert again.run.step_time / 1e12 == pytest.approx(results.step_time_ps / 1e12, rel=1e-4)
    done = run_mpisim([*export, traces / "out"])
    assert done.rc == 2
    assert "would write over what" in done.stderr


def test_processes_agree(gpt: Job, run_mpisim: Callable[..., Finished]) -> None:
    options = ["--dp", "4", "--cluster", "dgx-h100", "--gpu", "h200", "--micro-batches", "6"]
    digests = set()
    for nprocs in (1, 2):
        done = run_mpisim(["extrapolate", str(gpt.folder / "traces"), *options], nprocs)
        assert done.rc == 0, done.stderr
        digests.add(next(line for line in done.stdout.splitlines() if "digest" in line))
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dp", "4"), "--cluster says on which network"),
        (("--dp", "0", "--cluster", "dgx-h100"), "--dp is 0; allowed is 1 or more"),
        (("--micro-batches", "0", "--cluster", "dgx-h100"), "--micro-batches is 0; allowed is 1"),
        (("--layout", "tp=3"), "are 3 ranks, but the job has 8"),
        (
            ("--dp", "4", "--cluster", "dgx-h100", "--layout", "tp=4,dp=2"),
            "send to one another, though they are replicas",
        ),
        (("--dp", "4", "--cluster", "dgx-h10"), "dgx-h100"),
    ],
)
def test_command_refuses(
    options: tuple[str, ...], said: str, gpt: Job, call_mpisim: Callable[..., Finished]
) -> None:
    done = call_mpisim(["extrapolate", str(gpt.folder / "traces"), *options])
    assert done.rc == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def begin_files(folder: Path) -> None:
    """Write files that begin as traces of two ranks, and end there."""
    for rank in range(2):
        info = {"backend": "nccl", "rank": rank, "world_size": 2}
        text = json.dumps({"distributedInfo": info})
        (folder / f"kineto_rank{rank}.json").write_text(text[:-1] + ', "traceEvents": [')


def test_options_are_the_changes(
    call_mpisim: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What each change does, the others show; docs/extrapolate_parallel.md has all, nightly."""
    taken: dict[str, Any] = {}

    def grown(job: TraceJob | None, comm: MPI.Intracomm, **changes: Any) -> None:
        taken.update(changes)
        raise InputError("taken")

    monkeypatch.setattr(parallel_origin, "read_job", lambda *paths, **how: None)
    monkeypatch.setattr(parallel_origin, "extrapolate_parallel", grown)
    begin_files(tmp_path)
    options = "--dp 4 --pp 4 --schedule interleaved --vpp 2 --gpu h100 --cluster dgx-h100"
    options += " --traced-cluster a800-8gpu --distributed-optimizer on --micro-batches 6"
    done = call_mpisim(["extrapolate", str(tmp_path), *options.split(), "--layout", "tp=2,dp=1"])
    assert (done.rc, done.stderr) == (2, "mpisim: error: taken\n")
    clusters = {"cluster": "dgx-h100", "traced_cluster": "a800-8gpu"}
    assert taken == {
        **{key: find_cluster(name) for key, name in clusters.items()},
        "dp": 4,
        "stages": 4,
        "schedule": "interleaved",
        "chunks": 2,
        "gpu": "h100",
        "distributed_optimizer": True,
        "micro_batches": 6,
        "buckets": None,
        "layout": "tp=2,dp=1",
        "calibration": None,
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--micro-batches", "4"), "--micro-batches is a change: --cluster says on which network"),
        (("--pp", "1", "--cluster", "dgx-h100"), "--pp is 1; allowed is 2 or more"),
        (("--layout", "q=2"), "is not AXIS=RANKS"),
        (("--gpu", "h10", "--cluster", "dgx-h100"), "'h10'"),
    ],
)
def test_command_refuses_before_it_reads(
    options: tuple[str, ...], said: str, call_mpisim: Callable[..., Finished], tmp_path: Path
) -> None:
    begin_files(tmp_path)
    done = call_mpisim(["extrapolate", str(tmp_path), *options])
    assert done.rc == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
