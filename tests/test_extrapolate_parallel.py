"""Jobs of several ranks at another scale: the grid found, the grown job beside the generated."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from parallel_jobs import (
    GPIPE,
    GPT,
    LLAMA,
    MEGATRON,
    Job,
    generated,
    recorded,
    recorded_on_stages,
    traffic,
)

from mpisim.base.errors import InputError, UsageError
from mpisim.base.toml import toml_value
from mpisim.experiment import load
from mpisim.extrapolate.parallel import extrapolate_parallel
from mpisim.extrapolate.parallel_growth import grow
from mpisim.extrapolate.parallel_overlap import KernelSlowdown
from mpisim.extrapolate.parallel_shards import sharded_rows
from mpisim.extrapolate.parallel_slowest import SlowestOfMore
from mpisim.extrapolate.parallel_structure import find_structure, parse_layout
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


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A pipeline with a distributed optimizer."""
    return recorded(GPT, 32, tmp_path_factory.mktemp("gpt"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A recorded job of Llama with FSDP over 8 ranks."""
    return recorded(LLAMA, 8, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def megatron(shared: Path) -> TraceJob:
    """Megatron-LM's GPT on 8 A800, recorded on all ranks; its groups are not on record."""
    return read_job([shared / "traces" / MEGATRON], MPI.COMM_SELF)


# --- the grid ------------------------------------------------------------------------------------

MEGATRON_PLAN = ("framework.dp_style=megatron",)

PLANS = {
    "tp=2,dp=8,pp=2": ("plan.tp=2", "plan.pp=2", "plan.dp=8", "plan.zero=1", *MEGATRON_PLAN),
    "tp=2,pp=2,dp=8": (
        *("plan.tp=2", "plan.pp=2", "plan.dp=8", "plan.zero=1", "plan.order=tp-cp-ep-pp-dp"),
        *MEGATRON_PLAN,
    ),
    "tp=4,dp=8": ("plan.tp=4", "plan.dp=8", "plan.zero=0", "plan.sp=false", *MEGATRON_PLAN),
    "dp=8,pp=4": ("plan.pp=4", "plan.dp=8", "plan.zero=0", *MEGATRON_PLAN),
    "dp=16,pp=2": (
        *("plan.pp=2", "plan.vpp=2", "plan.dp=16", "plan.zero=1"),
        *("plan.pipeline.schedule=interleaved", *MEGATRON_PLAN),
    ),
    "dp=32": ("plan.dp=32", "plan.zero=3"),
    "tp=2,dp=16": ("plan.tp=2", "plan.dp=16", "plan.zero=3"),
    "shard=4,dp=8": ("plan.dp=32", "plan.zero=3", "plan.zero_group=4"),
    "ep=4,dp=8": (
        *("model.preset=mixtral-8x7b", "plan.dp=32", "plan.ep=4", "plan.zero=1"),
        *MEGATRON_PLAN,
    ),
}


@pytest.mark.parametrize("layout", PLANS)
def test_the_grid_of_a_generated_job_is_found(layout: str) -> None:
    changes = ("cluster.nodes=4", "model.layers=8", "plan.global_batch=32", *PLANS[layout])
    program = prepare(load(changes=changes)[1]).program
    ranks = range(program.n_ranks)
    found = find_structure(program, ranks, program.n_ranks, named=True)
    assert found.text == layout
    given = find_structure(program, ranks, program.n_ranks, named=True, layout=parse_layout(layout))
    assert given.axes == found.axes
    assert (given.spans == found.spans).all()


def job_of(groups: list[tuple[int, ...]], size: int = 1 << 24) -> Program:
    """Groups of ranks, each of which reduces once → a program."""
    builder = ProgramBuilder()
    for rank in range(1 + max(max(group) for group in groups)):
        rows, slots = builder.table(), []
        for group in groups:
            if rank in group:
                slots.append(builder.communicator(group))
                row = rows.kernel("work", 0, 1_000_000)
                rows.collective(
                    Operation.ALL_REDUCE, len(slots) - 1, 1, size, duration=1, waits=[row]
                )
        builder.add_rank(builder.add_table(rows.build()), slots)
    return builder.build()


@pytest.mark.parametrize(
    ("groups", "size", "said"),
    [
        ([(0, 1), (2, 3), (0, 2), (1, 3), (0, 3)], 64, "the group of ranks 0, 3 (dp) and that of"),
        ([(0, 1), (2, 3), (0, 2), (1, 3), (0, 1, 3)], 64, "ranks 0, 1, 3 are one group, but no"),
        ([(0, 1), (1, 2)], 64, "3 ranks are no whole number of groups of 2"),
        ([(0, 1), (2, 3)], 64, "ranks 0 and 2 should be in one group"),
        ([(0, 1, 2, 3), (0, 2), (1, 3)], 64, "the group of ranks 0, 2 (dp) and that of ranks 0, 1"),
        ([(0, 1)], -1, "ranks 0, 1: the sizes of their communications (all-reduce)"),
    ],
)
def test_groups_that_form_no_grid_are_named(
    groups: list[tuple[int, ...]], size: int, said: str
) -> None:
    program = job_of(groups, size)
    with pytest.raises(InputError) as error:
        find_structure(program, range(program.n_ranks), program.n_ranks, named=True)
    assert said in str(error.value)


@pytest.mark.parametrize("text", ["tp=2,dp", "xp=2", "tp=0", "tp=2,tp=2", "dp=2 pp=2"])
def test_bad_layouts_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--layout"):
        parse_layout(text)


def test_a_layout_must_have_as_many_ranks() -> None:
    with pytest.raises(InputError, match="are 4 ranks, but the job has 2"):
        find_structure(job_of([(0, 1)]), range(2), 2, named=True, layout=[("tp", 4)])


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


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("nodes", [2, 8])
def test_other_plans(name: str, nodes: int, tmp_path: Path) -> None:
    """Communications that overlap slow kernels down otherwise than in the recording."""
    text, batch, replicas = OTHERS[name]
    (tmp_path / "one").mkdir()
    job = recorded(text, batch, tmp_path / "one")
    found = job.grown(nodes * replicas)
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


def test_kernels_of_a_sharded_optimizer(llama: Job) -> None:
    table = llama.job.program.table_of(0)
    names = {llama.job.program.names[i] for i in table.name[sharded_rows(table, [0])]}
    assert names == {"gradient norm", "clip gradients", "adam"}
    before, after = llama.grown(16).grown.sharded  # type: ignore[union-attr]
    assert after == pytest.approx(before / 2, rel=0.01)


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


def test_unknown_sizes_are_refused_where_they_matter() -> None:
    program = job_of([(0, 1)], -1)
    told = find_structure(program, range(2), 2, named=True, layout=[("dp", 2)])
    network = network_of(find_cluster("dgx-h100"), 1)
    with pytest.raises(InputError, match="ranks 0, 1: the size of their all-reduce is not on"):
        grow(program, told, 4, network, network, 0)  # type: ignore[arg-type]
    same = grow(program, told, 2, network, network, 0)  # type: ignore[arg-type]
    assert same.repriced == {}


def test_experts_over_replicas_are_refused() -> None:
    builder = ProgramBuilder()
    for _ in range(2):
        rows = builder.table()
        rows.kernel("work", 0, 1_000_000)
        rows.collective(Operation.ALL_TO_ALL, 0, 1, 1 << 24, duration=1)
        builder.add_rank(builder.add_table(rows.build()), [builder.communicator((0, 1))])
    program = builder.build()
    assert find_structure(program, range(2), 2, named=True).text == "ep=2"
    told = find_structure(program, range(2), 2, named=True, layout=[("dp", 2)])
    network = network_of(find_cluster("dgx-h100"), 1)
    with pytest.raises(InputError, match="an all-to-all runs along dp=2"):
        grow(program, told, 4, network, network, 0)  # type: ignore[arg-type]


def test_replicas_that_are_no_multiple(gpt: Job) -> None:
    two, three, four = (gpt.grown(replicas) for replicas in (2, 3, 4))
    assert three.program.n_ranks == 12
    sums = [traffic(each.program)["SEND_RECV"] for each in (two, three, four)]
    assert sums[1] * 2 == sums[0] + sums[2]
    assert two.step < three.step


@given(
    order=st.permutations(["tp", "dp", "pp"]),
    sizes=st.tuples(*3 * [st.integers(2, 3)]),
    replicas=st.integers(1, 5),
)
@settings(max_examples=15, deadline=None)
def test_groups_are_those_of_the_definition(
    order: list[str], sizes: tuple[int, ...], replicas: int
) -> None:
    """The recorded and the grown job of any grid have the groups that its axes define."""
    program = job_on_grid(dict(zip(order, sizes, strict=True)))
    structure = find_structure(program, range(program.n_ranks), program.n_ranks, named=True)
    grid = dict(zip(order, sizes, strict=True))
    assert structure.text == ",".join(f"{name}={size}" for name, size in grid.items())
    network = network_of(find_cluster("dgx-h100"), 8)
    grown = grow(program, structure, replicas, network, network, 0)  # type: ignore[arg-type]
    expected = job_on_grid(grid | {"dp": replicas})
    assert grown.program.n_ranks == expected.n_ranks
    for rank in range(expected.n_ranks):
        own, other = (
            sorted(each.communicators.group(c) for c in each.slots_of(rank).tolist())
            for each in (grown.program, expected)
        )
        assert own == other
    found = simulate(grown.program, network=grown.network)
    assert found is not None


def job_on_grid(grid: dict[str, int]) -> Program:
    """Axes, the innermost first → a job whose ranks do what each of them is for."""
    strides, stride = {}, 1
    for name, size in grid.items():
        strides[name] = stride
        stride *= size
    builder = ProgramBuilder()
    for rank in range(stride):
        rows, slots = builder.table(), []
        at = {name: rank // strides[name] % grid[name] for name in grid}

        def along(name: str, rank: int = rank, at: dict[str, int] = at) -> list[int]:
            first = rank - at[name] * strides[name]
            return [first + i * strides[name] for i in range(grid[name])]

        slots.append(builder.communicator(along("tp"), "tp"))
        ahead, behind = at["pp"] + 1 < grid["pp"], at["pp"] > 0
        step = strides["pp"]
        slots.append(builder.communicator(along("dp"), "dp"))
        for there, pair in ((behind, (rank - step, rank)), (ahead, (rank, rank + step))):
            if there:
                slots.append(builder.communicator(pair, "pp"))
        if behind:
            rows.point_to_point(Kind.RECV, 2, 2, 1 << 20, duration=1_000_000)
        for _ in range(8):
            rows.kernel("work", 0, 1_000_000)
            rows.collective(Operation.ALL_GATHER, 0, 1, 1 << 20, duration=1_000_000)
            rows.collective(Operation.REDUCE_SCATTER, 0, 1, 1 << 20, duration=1_000_000)
        if ahead:
            rows.point_to_point(Kind.SEND, len(slots) - 1, 2, 1 << 20, duration=1_000_000)
        rows.collective(Operation.ALL_REDUCE, 1, 3, 1 << 24, duration=1_000_000)
        builder.add_rank(builder.add_table(rows.build()), slots)
    return builder.build()


# --- the optimizer -------------------------------------------------------------------------------


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("nodes", [1, 2])
def test_distributed_optimizer(on: bool, nodes: int, tmp_path: Path) -> None:
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
    found = extrapolate_parallel(
        job,
        MPI.COMM_SELF,
        dp=2 * nodes,
        cluster=find_cluster("dgx-h100"),
        distributed_optimizer=on,
    )
    expected = generated(after, 32, nodes, tmp_path).run
    assert found.step == pytest.approx(float(expected.step_time) / 1e12, rel=0.01)
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


# --- growing what was recorded -------------------------------------------------------------------


def test_structure_of_megatron(megatron: TraceJob) -> None:
    found = extrapolate_parallel(megatron, MPI.COMM_SELF)
    assert found.structure.text == "tp=2,dp=2,pp=2"
    carried = {each.axes: each for each in reversed(found.structure.traffic)}
    assert carried["tp"].operation is Operation.ALL_GATHER
    assert (carried["dp"].operation, carried["dp"].bytes) == (Operation.ALL_REDUCE, 409935872)
    replayed = replay(megatron, MPI.COMM_SELF)
    assert found.step == pytest.approx(max(s.replayed for s in replayed.steps), rel=1e-3)
    assert "tied embeddings" in found.structure.notes[0]


def test_half_of_the_ranks_give_the_whole(shared: Path, megatron: TraceJob) -> None:
    folder = shared / "traces" / MEGATRON
    half = read_job(
        [folder / f"kineto_rank{rank}.json.gz" for rank in (0, 1, 4, 5)],
        MPI.COMM_SELF,
        allow_missing=True,
    )
    found = extrapolate_parallel(half, MPI.COMM_SELF, cluster=find_cluster("a800-8gpu"))
    whole = extrapolate_parallel(megatron, MPI.COMM_SELF)
    assert found.program.n_ranks == 8
    assert found.step == pytest.approx(whole.step, rel=0.02)
    assert abs(found.step / whole.step - 1) < found.uncertainty


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


def test_a_pipeline_without_its_other_stages_is_refused(shared: Path) -> None:
    paths = [shared / "traces" / MEGATRON / f"kineto_rank{rank}.json.gz" for rank in (0, 1)]
    job = read_job(paths, MPI.COMM_SELF, allow_missing=True)
    with pytest.raises(UsageError, match="further stages of their pipelines"):
        extrapolate_parallel(job, MPI.COMM_SELF, dp=4, cluster=find_cluster("a800-8gpu"))


def test_a_cluster_that_the_job_was_not_recorded_on_is_refused(megatron: TraceJob) -> None:
    with pytest.raises(UsageError, match="--traced-cluster says on which cluster"):
        extrapolate_parallel(megatron, MPI.COMM_SELF, cluster=find_cluster("dgx-h100"))


def test_one_rank_of_ddp_gives_the_whole(shared: Path) -> None:
    job = read_job(
        [shared / "traces" / "resnet50_ddp_v100_rank0of8"], MPI.COMM_SELF, allow_missing=True
    )
    steps = [
        extrapolate_parallel(job, MPI.COMM_SELF, dp=dp, cluster=find_cluster("dgx-v100"))
        for dp in (8, 16, 32)
    ]
    assert [each.program.n_ranks for each in steps] == [8, 16, 32]
    assert steps[0].step == pytest.approx(steps[0].recorded, rel=0.03)
    assert steps[0].step <= steps[1].step <= steps[2].step


# --- another GPU ---------------------------------------------------------------------------------


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


def test_jobs_of_several_ranks_are_told_apart(gpt: Job, shared: Path) -> None:
    assert of_several_ranks([gpt.folder / "traces"])
    assert of_several_ranks([gpt.folder / "traces" / "kineto_rank5.json.gz"])
    assert not of_several_ranks([shared / "traces" / "linear_2080ti_1gpu"])


# --- the command ---------------------------------------------------------------------------------


def test_command(gpt: Job, run_mpisim: Callable[..., Finished], tmp_path: Path) -> None:
    traces, figures = str(gpt.folder / "traces"), tmp_path / "f.json"
    saved = tmp_path / "p.h5"
    options = ["--dp", "4", "--cluster", "dgx-h100", "--json", str(figures), "--details"]
    options += ["--calibration", str(calibration_file(tmp_path))]
    done = run_mpisim(["extrapolate", traces, *options, "--save-program", str(saved)])
    assert done.rc == 0, done.stderr
    assert "parallel structure  tp=2,dp=2,pp=2" in done.stdout
    assert "tp=2,dp=4,pp=2, 16 ranks" in done.stdout
    assert "measured over modelled time" in " ".join(done.stdout.split())
    found = json.loads(figures.read_text())
    assert found["new_axes"] == {"tp": 2, "dp": 4, "pp": 2}
    assert found["repriced"]["dp"] > 0
    again = run_mpisim(["run", str(saved)])
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
        (("--layout", "tp=3"), "are 3 ranks, but the job has 8"),
        (
            ("--dp", "4", "--cluster", "dgx-h100", "--layout", "tp=4,dp=2"),
            "send to one another, though they are replicas",
        ),
        (("--dp", "4", "--cluster", "dgx-h10"), "dgx-h100"),
    ],
)
def test_command_refuses(
    options: tuple[str, ...], said: str, gpt: Job, run_mpisim: Callable[..., Finished]
) -> None:
    done = run_mpisim(["extrapolate", str(gpt.folder / "traces"), *options])
    assert done.rc == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
