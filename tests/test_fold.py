"""Folding changes nothing: a folded run is the whole run, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from programs import partial, programs, random_program
from reference.comparison import assert_equal_runs

from mpisim.base.errors import DeadlockError, UsageError
from mpisim.engine import Run, SplitReason, simulate
from mpisim.program import Kind, Operation, Program, ProgramBuilder
from mpisim.topo.alpha_beta import AlphaBeta

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.mpi

COST = AlphaBeta(latency=3e-12, bandwidth=5e14)


def check(program: Program, comm: Intracomm, network: AlphaBeta | None = None) -> Run:
    whole = simulate(program, network=network, critical_path=True, fold=False)
    assert len(whole.classes) == program.n_ranks
    folded = simulate(program, comm, network=network, critical_path=True, fold=True)
    assert_equal_runs(folded, whole)
    counts = np.bincount(folded.classes.of_rank)
    np.testing.assert_array_equal(counts, folded.classes.count)
    hosted = comm.allgather(folded.hosted.tolist())
    assert sorted(rank for part in hosted for rank in part) == list(range(program.n_ranks))
    return folded


def symmetric(program: Program, odd: dict[int, float], late: dict[int, int]) -> Program:
    """The program with all ranks of one speed and start but for some."""
    speed, start = np.ones(program.n_ranks), np.zeros(program.n_ranks, np.int64)
    for rank, value in odd.items():
        speed[rank % program.n_ranks] = value
    for rank, time in late.items():
        start[rank % program.n_ranks] = time
    return program.replace(speed=speed, start=start)


odd_speeds = st.dictionaries(st.integers(0, 50), st.sampled_from([0.5, 1.3, 3.0]), max_size=2)
late_starts = st.dictionaries(st.integers(0, 50), st.sampled_from([1, 7, 40]), max_size=2)


@given(
    program=programs(max_tables=4, max_replicas=6, unpriced=True),
    odd=odd_speeds,
    late=late_starts,
    node=st.sampled_from([1, 2, 3, 8]),
)
@settings(max_examples=200)
def test_random_programs(
    world: Intracomm, program: Program, odd: dict[int, float], late: dict[int, int], node: int
) -> None:
    """Few odd ranks; communicators cost more across nodes, whose borders break symmetries."""
    network = AlphaBeta(
        latency=9e-12, bandwidth=2e14, node_latency=1e-12, node_bandwidth=9e14, ranks_per_node=node
    )
    folded = check(symmetric(program, odd, late), world, network)
    event(f"{10 * len(folded.classes) // program.n_ranks * 10} % of the ranks are simulated")


@given(program=programs(max_replicas=5, unpriced=True))
@settings(max_examples=40)
def test_random_speeds_and_starts(world: Intracomm, program: Program) -> None:
    check(program, world, COST)


def ring(n: int, odd: dict[int, float] | None = None) -> Program:
    """Ranks of one table, each sending to the next and receiving from the one before."""
    builder = ProgramBuilder()
    rows = builder.table("ring")
    for i in range(3):
        rows.kernel("work", 0, 10 + i)
        rows.point_to_point(Kind.SEND, 0, 1, 8, duration=4)
        rows.point_to_point(Kind.RECV, 1, 2, 8, duration=4)
        rows.kernel("more work", 0, 5, waits=rows.device_rows[-2:])
    builder.add_table(rows.build())
    for rank in range(n):
        pairs = [(rank, (rank + 1) % n), ((rank - 1) % n, rank)]
        slots = [builder.communicator(pair, "ring") for pair in pairs]
        builder.add_rank(0, slots, speed=(odd or {}).get(rank, 1.0))
    return builder.build()


@pytest.mark.parametrize("n", [2, 3, 4, 5, 12, 64])
def test_rings(comm: Intracomm, n: int) -> None:
    """All of a ring are alike; its sending and receiving slots meet in one class of pairs."""
    run = check(ring(n), comm)
    assert len(run.classes) == 1
    assert run.classes.count.tolist() == [n]
    assert set(run.placement.tolist()) == {0}


@pytest.mark.parametrize("n", [3, 4, 9])
def test_ring_with_an_odd_rank(comm: Intracomm, n: int) -> None:
    """A rank matters to others by its distance and direction: no two are alike."""
    run = check(ring(n, {1: 0.5}), comm)
    assert len(run.classes) == n
    assert run.classes.split_reason.tolist().count(SplitReason.SPEED) == 1


def rings(*sizes: int) -> Program:
    """Rings of several lengths of ranks of one table."""
    builder = ProgramBuilder()
    rows = builder.table("ring")
    rows.point_to_point(Kind.SEND, 0, 1, 8, duration=4)
    rows.point_to_point(Kind.RECV, 1, 2, 8, duration=4)
    builder.add_table(rows.build())
    base = 0
    for n in sizes:
        for i in range(n):
            pairs = [(base + i, base + (i + 1) % n), (base + (i - 1) % n, base + i)]
            builder.add_rank(0, [builder.communicator(pair, "ring") for pair in pairs])
        base += n
    return builder.build()


def test_ranks_of_rings_of_different_lengths_are_equivalent(comm: Intracomm) -> None:
    """No automorphism takes a rank of one to the other, yet both do the same."""
    assert len(check(rings(6, 3, 3), comm).classes) == 1


def grid(tp: int, dp: int, odd: dict[int, float] | None = None, late: int = -1) -> Program:
    """Ranks of one table with a sum over rows and one over columns."""
    builder = ProgramBuilder()
    rows = builder.table("layer")
    for _ in range(3):
        rows.kernel("work", 0, 50)
        rows.collective(Operation.ALL_REDUCE, 0, 0, 4000)
    rows.collective(Operation.REDUCE_SCATTER, 1, 1, 9000, waits=rows.device_rows[-1:])
    builder.add_table(rows.build())
    for rank in range(tp * dp):
        row, column = divmod(rank, tp)
        groups = [range(row * tp, row * tp + tp), range(column, tp * dp, tp)]
        slots = [builder.communicator(group, "sum") for group in groups]
        speed, start = (odd or {}).get(rank, 1.0), 33 if rank == late else 0
        builder.add_rank(0, slots, speed=speed, start=start)
    return builder.build()


def test_reasons_for_separate_classes(comm: Intracomm) -> None:
    alike = check(grid(4, 6), comm, COST)
    assert alike.classes.split_reason.tolist() == [SplitReason.NONE]

    slow = check(grid(4, 6, {5: 0.5}), comm, COST).classes
    # Itself, its row, its column, and all others.
    assert sorted(slow.count.tolist()) == [1, 3, 5, 15]
    reasons = dict(zip(slow.count.tolist(), slow.split_reason.tolist(), strict=True))
    assert reasons == {
        15: SplitReason.NONE,
        1: SplitReason.SPEED,
        3: SplitReason.PARTNERS,
        5: SplitReason.PARTNERS,
    }
    assert slow.representative.tolist() == [0, 1, 4, 5]

    late = check(grid(4, 6, late=0), comm, COST).classes
    assert late.split_reason.tolist().count(SplitReason.START) == 1

    # Nodes of six: every other sum over a row goes across two of them.
    nodes = AlphaBeta(latency=9e-12, bandwidth=2e14, ranks_per_node=6)
    placed = check(grid(4, 6), comm, nodes).classes
    assert placed.split_reason.tolist() == [SplitReason.NONE, SplitReason.COMMUNICATORS]
    assert placed.count.tolist() == [16, 8]


def test_fold_by_default_where_half_the_ranks_suffice(comm: Intracomm) -> None:
    program = grid(4, 6)
    assert len(simulate(program, comm, network=COST).classes) == 1
    assert len(simulate(program, comm, network=COST, fold=False).classes) == 24
    # Each rank has a class of its own, or a process of its own, or a place of its own.
    speeds = {rank: 1 + rank / 10 for rank in range(24)}
    assert len(simulate(grid(4, 6, speeds), comm, network=COST).classes) == 24
    if comm.size > 1:
        assert len(simulate(ring(comm.size), comm).classes) == comm.size
    assert len(simulate(program, comm, network=COST, placement=[0] * 24).classes) == 24


def test_what_cannot_be_folded(comm: Intracomm) -> None:
    program = random_program(1)
    with pytest.raises(UsageError, match="partial or placed cannot be folded"):
        simulate(program, comm, fold=True, placement=[0] * program.n_ranks)
    with pytest.raises(UsageError, match="partial or placed cannot be folded"):
        simulate(partial(program, {0}), comm, fold=True)


def test_rows_are_shared_not_copied() -> None:
    run = simulate(grid(4, 6), network=COST)
    assert run.hosted.tolist() == list(range(24))
    assert all(run.rows(i) is run.rows(0) for i in range(len(run.hosted)))


def test_a_deadlock_names_all_ranks(comm: Intracomm) -> None:
    """Also where one rank was simulated for them."""
    builder = ProgramBuilder()
    for order in ((0, 1), (1, 0)):
        rows = builder.table()
        for slot in order:
            row = rows.collective(Operation.ALL_REDUCE, slot, 0, 8, duration=5, name=f"sum {slot}")
            rows.host_wait([row], name=f"wait {slot}")
        builder.add_table(rows.build())
    for rank in range(8):
        pair = (rank - rank % 2, rank - rank % 2 + 1)
        slots = [builder.communicator(pair, name) for name in ("left", "right")]
        builder.add_rank(rank % 2, slots)
    program = builder.build()
    messages = []
    for fold in (True, False):
        with pytest.raises(DeadlockError) as caught:
            simulate(program, comm, fold=fold)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "and 4 more ranks wait" in messages[0]
