"""One answer for any number of processes and any placement; errors that reach all of them."""

from __future__ import annotations

from functools import partial as bound
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import first, shuffled
from programs import partial, programs, random_program
from reference.comparison import assert_equal_runs

from mpisim.base.errors import DeadlockError, InputError, MatchError, ProgramError, UsageError
from mpisim.engine import block_placement, dataflow, simulate
from mpisim.engine.distribution import distribute
from mpisim.program import Operation, Program, ProgramBuilder
from mpisim.topo.alpha_beta import AlphaBeta

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = [pytest.mark.mpi, pytest.mark.mpi_calls]

COST = AlphaBeta(latency=3e-12, bandwidth=5e14)


@given(program=programs(unpriced=True), seed=st.integers(0, 1000))
@settings(max_examples=50)
def test_one_answer_when_groups_have_owners(world: Intracomm, program: Program, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataflow, "distribute", bound(distribute, max_peers=1))
        alone = simulate(program, network=COST, critical_path=True)
        n = 1 + seed % world.size
        with first(world, n) as part:
            if part is not None:
                placement = shuffled(program, n, seed)
                run = simulate(program, part, network=COST, placement=placement, critical_path=True)
                assert_equal_runs(run, alone)


@given(program=programs(unpriced=True), seed=st.integers(0, 1000))
@settings(max_examples=40)
def test_partial_programs(world: Intracomm, program: Program, seed: int) -> None:
    """Each process holds only the tables of its own ranks."""
    alone = simulate(program, network=COST, critical_path=True)
    placement = shuffled(program, world.size, seed)
    hosted = {rank for rank, process in enumerate(placement) if process == world.rank}
    run = simulate(
        partial(program, hosted), world, network=COST, placement=placement, critical_path=True
    )
    assert_equal_runs(run, alone)


def test_long_programs_post_in_parts(comm: Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that could go on still tells the others what it knows."""
    program = random_program(5, n_tables=3, n_replicas=4, n_events=400)
    alone = simulate(program, critical_path=True)
    monkeypatch.setattr(dataflow, "_ROWS_PER_EXCHANGE", 3)
    assert_equal_runs(simulate(program, comm, critical_path=True), alone)


def test_more_processes_than_ranks(comm: Intracomm) -> None:
    builder = ProgramBuilder()
    rows = builder.table()
    rows.kernel("a", 0, 7)
    builder.add_table(rows.build())
    builder.add_rank(0)
    run = simulate(builder.build(), comm)
    assert run.step_time == 7
    assert len(run.hosted) == (1 if comm.rank == 0 else 0)


# --- errors -----------------------------------------------------------------------------------


def crossed() -> Program:
    """Two ranks that enter two communicators in opposite orders and wait each time."""
    builder = ProgramBuilder()
    for rank in range(2):
        rows = builder.table(f"rank {rank}")
        order = (0, 1) if rank == 0 else (1, 0)
        for slot in order:
            row = rows.collective(
                Operation.ALL_REDUCE,
                slot,
                0,
                64 if slot == 0 else 8,
                duration=5,
                name=f"sum {slot}",
            )
            rows.host_wait([row], name=f"wait {slot}")
        builder.add_table(rows.build())
        builder.add_rank(rank, [builder.communicator((0, 1), n) for n in ("left", "right")])
    return builder.build()


def test_deadlock_names_ranks_rows_and_absent_members(comm: Intracomm) -> None:
    with pytest.raises(DeadlockError) as caught:
        simulate(crossed(), comm)
    assert str(caught.value) == (
        "deadlock: rank 0 waits at row 1 (wait 0) for operation 0 of communicator 0 (left), to "
        "which rank 1 never came; rank 1 waits at row 1 (wait 1) for operation 0 of "
        "communicator 1 (right), to which rank 0 never came"
    )


def test_deadlock_of_partial_program(comm: Intracomm) -> None:
    program = crossed()
    placement = block_placement(2, comm.size)
    hosted = set(np.flatnonzero(placement == comm.rank).tolist())
    with pytest.raises(DeadlockError, match="which rank 1 never came"):
        simulate(partial(program, hosted), comm)


def mismatched(operations: tuple[Operation, Operation], sizes: tuple[int, int]) -> Program:
    builder = ProgramBuilder()
    for rank in range(2):
        rows = builder.table(f"rank {rank}")
        rows.collective(Operation.BARRIER, 0, 0, 0, duration=5)
        rows.collective(operations[rank], 0, 0, sizes[rank], duration=5)
        builder.add_table(rows.build())
        builder.add_rank(rank, [builder.communicator((0, 1), "pair")])
    return builder.build()


@pytest.mark.parametrize("whole", [True, False])
def test_mismatch_is_the_same_error_everywhere(comm: Intracomm, whole: bool) -> None:
    program = mismatched((Operation.ALL_REDUCE, Operation.ALL_GATHER), (8, 8))
    hosted = set(np.flatnonzero(block_placement(2, comm.size) == comm.rank).tolist())
    with pytest.raises(MatchError) as caught:
        simulate(program if whole else partial(program, hosted), comm)
    assert str(caught.value) == (
        "communicator 0 (pair), operation 1: rank 0 has ALL_REDUCE of 8 bytes, "
        "rank 1 has ALL_GATHER of 8 bytes"
    )


@pytest.mark.parametrize("whole", [True, False])
def test_unknown_size_matches_any(comm: Intracomm, whole: bool) -> None:
    program = mismatched((Operation.ALL_REDUCE, Operation.ALL_REDUCE), (8, -1))
    hosted = set(np.flatnonzero(block_placement(2, comm.size) == comm.rank).tolist())
    run = simulate(program if whole else partial(program, hosted), comm)
    assert run.step_time == 10


def test_failure_on_one_process_reaches_all(comm: Intracomm) -> None:
    """Only the process of the last rank sees that its communication has no duration."""
    builder = ProgramBuilder()
    for rank in range(4):
        rows = builder.table(f"rank {rank}")
        rows.collective(Operation.BARRIER, 0, 0, 0, duration=-1 if rank == 3 else 5)
        builder.add_table(rows.build())
        builder.add_rank(rank, [builder.communicator(range(4))])
    with pytest.raises(InputError, match=r"rank 3, row 0 \(barrier\) of table 'rank 3': the comm"):
        simulate(builder.build(), comm)


def test_table_held_elsewhere(comm: Intracomm) -> None:
    program = partial(random_program(1, n_tables=2, n_replicas=1), {0})
    with pytest.raises(ProgramError, match="rank 1 is placed on a process that does not hold"):
        simulate(program, comm)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ([0], r"placement has shape \(1,\); 4 ranks need \(4,\)"),
        ([0, 0, 0, 99], "placement: rank 3 is on process 99; there are"),
    ],
)
def test_bad_placement(comm: Intracomm, placement: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        simulate(random_program(1), comm, placement=placement)


def test_progress_changes_nothing(
    comm: Intracomm, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPISIM_PROGRESS", "1")
    monkeypatch.setattr(dataflow, "_ROWS_PER_EXCHANGE", 3)
    monkeypatch.setattr(dataflow, "_ROWS_PER_UPDATE", 3)
    program = random_program(5, n_events=100)
    shown = simulate(program, comm, progress="simulating")
    assert shown.digest == simulate(program).digest
    assert capfd.readouterr().err == ""  # nothing is said of runs that are over at once
