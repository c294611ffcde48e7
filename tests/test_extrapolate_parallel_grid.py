"""The parallel grid of a recorded job: found from its groups, given by a layout, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from parallel_jobs import (
    MEGATRON,
    Job,
    traffic,
)

from mpisim.base.errors import InputError, UsageError
from mpisim.experiment import load
from mpisim.extrapolate.parallel import extrapolate_parallel
from mpisim.extrapolate.parallel_axes import parse_layout
from mpisim.extrapolate.parallel_growth import grow
from mpisim.extrapolate.parallel_structure import find_structure
from mpisim.prediction.network import network_of
from mpisim.prediction.prepared import prepare
from mpisim.program import Kind, Operation, Program, ProgramBuilder
from mpisim.replay import TraceJob, read_job, replay
from mpisim.simulate import simulate
from mpisim.topo import find_cluster

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


def test_a_group_with_members_that_are_missing_runs_over_replicas() -> None:
    builder = ProgramBuilder()
    for _ in range(2):
        rows = builder.table()
        rows.kernel("work", 0, 1_000_000)
        for slot in range(2):
            rows.collective(Operation.ALL_REDUCE, slot, 1, 1 << 24, duration=1)
        both = [builder.communicator((0, 1), name) for name in ("tp", "all")]
        builder.add_rank(builder.add_table(rows.build()), both)
    program, groups = builder.build(), [(0, 1), (0, 1, 2, 3)]
    layout = [("tp", 2), ("dp", 2)]
    found = find_structure(program, range(2), 4, named=True, layout=layout, recorded=groups)
    assert found.spans.tolist() == [[True, False], [True, True]]
    assert found.lone.tolist() == [False, True]


def test_messages_on_a_group_with_missing_members_stay_between_their_ranks() -> None:
    """As PyTorch's ``send`` without a group: the files name all ranks for each pair."""
    builder = ProgramBuilder()
    for kind in (Kind.SEND, Kind.RECV):
        rows = builder.table()
        rows.kernel("work", 0, 1_000_000)
        rows.point_to_point(kind, 0, 1, 1 << 24, duration=1)
        rows.collective(Operation.ALL_REDUCE, 1, 1, 1 << 24, duration=1)
        both = [builder.communicator((0, 1), name) for name in ("pair", "all")]
        builder.add_rank(builder.add_table(rows.build()), both)
    every = (0, 1, 2, 3)
    found = find_structure(
        builder.build(),
        range(2),
        4,
        named=True,
        layout=[("pp", 2), ("dp", 2)],
        recorded=[every, every],
    )
    assert found.spans.tolist() == [[True, False], [True, True]]
    assert found.lone.tolist() == [False, True]


@pytest.mark.parametrize("text", ["tp=2,dp", "xp=2", "tp=0", "tp=2,tp=2", "dp=2 pp=2"])
def test_bad_layouts_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--layout"):
        parse_layout(text)


def test_a_layout_must_have_as_many_ranks() -> None:
    with pytest.raises(InputError, match="are 4 ranks, but the job has 2"):
        find_structure(job_of([(0, 1)]), range(2), 2, named=True, layout=[("tp", 4)])


def test_unknown_sizes_are_refused_where_they_matter() -> None:
    program = job_of([(0, 1)], -1)
    told = find_structure(program, range(2), 2, named=True, layout=[("dp", 2)])
    network = network_of(find_cluster("dgx-h100"), 1)
    with pytest.raises(InputError, match="ranks 0, 1: the size of their all-reduce is not on"):
        grow(program, told, 4, network, network, 0)  # type: ignore[arg-type]
    same = grow(program, told, 2, network, network, 0)  # type: ignore[arg-type]
    assert same.repriced == {}


def test_replicas_without_gradients_are_refused() -> None:
    builder = ProgramBuilder()
    for _ in range(2):
        rows = builder.table()
        rows.kernel("work", 0, 1_000_000)
        rows.collective(Operation.ALL_GATHER, 0, 1, 1 << 24, duration=1)
        builder.add_rank(builder.add_table(rows.build()), [builder.communicator((0, 1))])
    program = builder.build()
    told = find_structure(program, range(2), 2, named=True, layout=[("dp", 2)])
    network = network_of(find_cluster("dgx-h100"), 1)
    with pytest.raises(InputError, match=r"nothing is reduced along dp=2 \(all-gather\)"):
        grow(program, told, 4, network, network, 0)  # type: ignore[arg-type]


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


def test_a_pipeline_without_its_other_stages_is_refused(shared: Path) -> None:
    paths = [shared / "traces" / MEGATRON / f"kineto_rank{rank}.json.gz" for rank in (0, 1)]
    job = read_job(paths, MPI.COMM_SELF, allow_missing=True)
    with pytest.raises(UsageError, match="further stages of their pipelines"):
        extrapolate_parallel(job, MPI.COMM_SELF, dp=4, cluster=find_cluster("a800-8gpu"))


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
    # 18 ms of gradients are exposed in 4 steps; NCCL's kernels waited for the other ranks.
    assert "left out: communications with ranks that have no file took 68.548 ms" in steps[0].text
    assert steps[0].step <= steps[1].step <= steps[2].step
