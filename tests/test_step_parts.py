"""Parts of the step: every moment of every rank counts once, for what is documented."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import programs
from reference.step_parts import KINDS, parts_of_rank
from test_fold import COST, late_starts, odd_speeds, symmetric

import mpisim
from mpisim.engine import Run, simulate
from mpisim.experiment import load
from mpisim.program import Communicators, Kind, Operation, Phase, Program, ProgramBuilder
from mpisim.results import PartKind, Results, StepParts, collect, write_results
from mpisim.results.step_parts import MOST_KINDS, PartLayout, kind_name

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.two_processes

COLUMNS = {
    PartKind.COMPUTE: "compute",
    PartKind.WIRE: "exposed_wire",
    PartKind.WAITING: "exposed_waiting",
    PartKind.IDLE: "idle",
}

NAMES = st.sampled_from(("dp", "tp 0", "tp 1", "pair 0->1", "pair 2->3", "x7y 12", "3"))


def named(program: Program, names: list[str]) -> Program:
    """A program whose communicators have names, one after another."""
    groups = program.communicators
    given = tuple(names[i % len(names)] for i in range(len(groups)))
    return program.replace(communicators=Communicators(groups.index, groups.members, given))


def check_columns(results: Results) -> StepParts:
    """The parts of each rank add up to its columns, and to the step."""
    parts = results.parts
    assert parts is not None
    assert (parts.times.sum(axis=1) == results.shown_ps).all()
    assert (parts.times >= 0).all()
    of_class = results.ranks["class"]
    for kind, column in COLUMNS.items():
        kinds = (kind, PartKind.INPUT) if kind == PartKind.IDLE else (kind,)
        sums = parts.times[:, np.isin(parts.kinds, kinds)].sum(axis=1)
        np.testing.assert_array_equal(sums[of_class], results.ranks[column], column)
    return parts


def check_against_reference(run: Run, results: Results, begin: int, end: int) -> None:
    parts = check_columns(results)
    for i in range(len(run.hosted)):
        expected = parts_of_rank(run, i, begin, end)
        times = parts.times[results.ranks["class"][run.hosted[i]]].tolist()
        columns = zip(parts.kinds.tolist(), parts.names, times, strict=True)
        found = {(KINDS[kind], name): time for kind, name, time in columns if time}
        assert found == {part: time for part, time in expected.items() if time}


@pytest.mark.mpi
@given(
    program=programs(max_tables=3, max_replicas=4, unpriced=True),
    odd=odd_speeds,
    late=late_starts,
    names=st.lists(NAMES, min_size=1, max_size=6),
    fold=st.booleans(),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_moment_of_random_programs(
    comm: Intracomm,
    program: Program,
    odd: dict[int, float],
    late: dict[int, int],
    names: list[str],
    fold: bool,
) -> None:
    program = named(symmetric(program, odd, late), names)
    run = simulate(program, comm, network=COST, fold=fold)
    found = collect(run, comm=comm)
    shared = None if found is None else (found.parts, found.ranks, found.shown_ps)
    parts, ranks, shown = comm.bcast(shared, root=0)
    results: Any = SimpleNamespace(parts=parts, ranks=ranks, shown_ps=shown)
    check_against_reference(run, results, 0, run.step_time)


def overlapping() -> Program:
    """A rank on which much runs at once."""
    builder = ProgramBuilder()
    groups = [builder.communicator([0], name) for name in ("dp 0", "tp 3")]
    table = builder.table()
    table.tags(phase=Phase.BACKWARD)
    table.kernel("b", 0, 100)
    table.tags(phase=Phase.FORWARD)
    table.kernel("f", 1, 40)
    table.collective(Operation.ALL_REDUCE, 0, 2, 8, duration=150)
    table.collective(Operation.ALL_GATHER, 1, 3, 8, duration=130)
    builder.add_rank(builder.add_table(table.build()), groups)
    return builder.build()


def test_what_counts_of_several(comm: Intracomm) -> None:
    if comm.size > 1:
        pytest.skip("in one process")
    results = collect(simulate(overlapping()), comm=comm)
    assert results is not None
    parts = check_columns(results)
    assert parts.names == ("forward", "backward", "dp")
    assert parts.kinds.tolist() == [PartKind.COMPUTE, PartKind.COMPUTE, PartKind.WIRE]
    assert parts.times.tolist() == [[40, 60, 50]]  # the all-gather ends before the all-reduce
    assert parts.mean(np.array([1])).tolist() == [40, 60, 50]


def test_an_optimizer_on_the_cpu_is_the_optimizer(comm: Intracomm) -> None:
    """Of copies those count for it that its phase has, among them what the CPU updates."""
    if comm.size > 1:
        pytest.skip("in one process")
    builder = ProgramBuilder()
    table = builder.table()
    table.tags(phase=Phase.FORWARD)
    waits = [table.kernel("f", 0, 50)]
    table.tags(phase=Phase.BACKWARD)
    waits = [table.kernel("gradients to host", 1, 20, kind=Kind.COPY, waits=waits)]
    table.tags(phase=Phase.OPTIMIZER)
    waits = [table.kernel("optimizer on CPU", 2, 200, kind=Kind.COPY, waits=waits)]
    table.kernel("adam", 0, 10, waits=waits)
    builder.add_rank(builder.add_table(table.build()), [])
    results = collect(simulate(builder.build()), comm=comm)
    assert results is not None
    parts = check_columns(results)
    assert parts.names == ("forward", "optimizer", "copies")
    assert parts.times.tolist() == [[50, 210, 20]]


def test_the_host_alone(comm: Intracomm) -> None:
    """What prepares the next batch counts where neither kernels nor communications are."""
    if comm.size > 1:
        pytest.skip("in one process")
    builder = ProgramBuilder()
    group = builder.communicator([0], "dp 0")
    table = builder.table()
    table.tags(phase=Phase.INPUT)
    table.kernel("prepare", 3, 200, kind=Kind.COPY)
    table.tags(phase=Phase.FORWARD)
    last = table.kernel("f", 0, 50)
    table.tags(phase=Phase.NONE)
    table.collective(Operation.ALL_REDUCE, 0, 1, 8, duration=30, waits=[last])
    builder.add_rank(builder.add_table(table.build()), [group])
    results = collect(simulate(builder.build()), comm=comm)
    assert results is not None
    parts = check_columns(results)
    assert parts.names == ("forward", "dp", "input")
    assert parts.times.tolist() == [[50, 30, 120]]
    assert results.ranks["communication"].tolist() == [30]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("dp 0", "dp"),
        ("dp-cp 12", "dp-cp"),
        ("ep2dp_3", "ep2dp"),
        ("pair 0->1", "pair"),
        ("default_pg", "default_pg"),
        ("", "communication"),
        ("12", "communication"),
        ("ranks 0-7, 9", "ranks"),
    ],
)
def test_names_without_numbers(name: str, kind: str) -> None:
    assert kind_name(name) == kind


def test_kinds_beyond_the_most_used_are_other(comm: Intracomm) -> None:
    if comm.size > 1:
        pytest.skip("in one process")
    builder = ProgramBuilder()
    n = MOST_KINDS + 3
    groups = [builder.communicator([0, 1] if i else [0], chr(97 + i)) for i in range(n)]
    for rank in (0, 1):
        own = groups if rank == 0 else groups[1:]
        table = builder.table()
        for slot in range(len(own)):
            table.collective(Operation.ALL_REDUCE, slot, 0, 8, duration=5)
        builder.add_rank(builder.add_table(table.build()), own)
    program = builder.build()
    layout = PartLayout.of(program)
    assert layout.kinds == (*(chr(98 + i) for i in range(MOST_KINDS)), "other")
    run = simulate(program)
    results = collect(run, comm=comm)
    assert results is not None
    check_against_reference(run, results, 0, run.step_time)


@pytest.mark.mpi
def test_the_same_in_a_file(comm: Intracomm, shared_folder: Path) -> None:
    run = simulate(overlapping(), comm)
    written = write_results(run, shared_folder / "run.h5", comm=comm)
    with mpisim.open_results(shared_folder / "run.h5") as again:
        parts = check_columns(again)
    if written is not None:
        assert written.parts is not None
        assert parts.names == written.parts.names
        np.testing.assert_array_equal(parts.kinds, written.parts.kinds)
        np.testing.assert_array_equal(parts.times, written.parts.times)


@pytest.mark.parametrize("name", ["llama3-8b-8-h100", "triosim-p2-gpt2-pp"])
def test_predictions(comm: Intracomm, name: str) -> None:
    if comm.size > 1:
        pytest.skip("in one process")
    _, experiment = load(name, ["run.allow_oom=true"])
    found = [mpisim.simulate(experiment, fold=fold) for fold in (None, False)]
    for results in found:
        assert results is not None
        check_columns(results)
    folded, whole = (results.parts for results in found if results is not None)
    assert folded is not None
    assert whole is not None
    assert folded.names == whole.names
    assert found[0] is not None
    np.testing.assert_array_equal(folded.times[found[0].ranks["class"]], whole.times)
