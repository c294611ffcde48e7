"""The engine against references that share nothing with it, for random programs and networks.

Every row's begin, wire time, end and binding, the ends of ranks, the critical path and the digest
are compared, to the picosecond; on one process, and under ``mpirun`` on several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from contended import Links, huge, narrow_links, random_links
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import first, shuffled
from programs import programs
from reference.comparison import assert_matches
from reference.critical_path import critical_path
from reference.digest import digest
from reference.rank_by_rank import rank_by_rank
from reference.simulation import simulate as expect

from mpisim.cli.launch import launched_size
from mpisim.engine import simulate
from mpisim.program import Flag, Jitter, Operation, Program, ProgramBuilder
from mpisim.topo.alpha_beta import AlphaBeta

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.mpi_calls

SEEDS = st.integers(0, 2**32 - 1)
FEWER = 1 if launched_size() == 1 else 2
"""How many times fewer examples where processes share the cores of a machine."""
COST = AlphaBeta(
    latency=3e-12, bandwidth=5e14, ranks_per_node=2, node_latency=1e-12, node_bandwidth=2e15
)
"""A few ps for some kB, so that costs and the small durations of random programs compete."""


def check(
    comm: Intracomm, program: Program, network: Any, seed: int, *more: dict[str, Any]
) -> None:
    """Compare runs on some of the processes with the reference: unfolded, folded, placed, more."""
    n = 1 + seed % comm.size
    with first(comm, n) as part:
        if part is None:
            return
        expected = expect(program, network)
        choices: list[dict[str, Any]] = [{"fold": False}, {"fold": True}]
        choices.append({"placement": shuffled(program, n, seed)})
        choices.extend(more)
        for options in choices:
            run = simulate(program, part, network=network, critical_path=True, **options)
            assert_matches(run, expected)
            assert part.allreduce(run.rounds) == n * run.rounds  # the same on all


@pytest.mark.mpi
@given(program=programs(unpriced=True), seed=SEEDS, jitter=st.sampled_from([None, Jitter(0.2, 7)]))
@settings(max_examples=200 // FEWER)
def test_times_are_longest_paths(
    world: Intracomm, program: Program, seed: int, jitter: Jitter | None
) -> None:
    check(world, program.replace(jitter=jitter), COST, seed)


@pytest.mark.mpi
@given(program=programs(max_replicas=4, unpriced=True, backwards=False), seed=SEEDS)
@settings(max_examples=150 // FEWER)
def test_flows_share_links(world: Intracomm, program: Program, seed: int) -> None:
    """The engine leaves out links that are never full, the reference none.

    By relaxation, and from event to event.
    """
    events = [{"fold": fold, "relax": False} for fold in (False, True)]
    check(world, program, random_links(seed, program.n_ranks), seed, *events)


@pytest.mark.mpi
@given(program=programs(max_replicas=4, unpriced=True), seed=SEEDS)
@settings(max_examples=100 // FEWER)
def test_bytes_do_not_flow_before_what_led_to_them(
    world: Intracomm, program: Program, seed: int
) -> None:
    """Negative gaps and launch latencies; only on links that the engine never leaves out."""
    check(world, program, narrow_links(seed, program.n_ranks), seed)


@pytest.mark.mpi
@pytest.mark.parametrize("gap", [-4, 0, 9])
@pytest.mark.parametrize("work", [10, 900, 4000])
@pytest.mark.parametrize("flags", [Flag.NONE, Flag.EAGER])
def test_operations_of_one_stream_follow_at_once(
    comm: Intracomm, gap: int, work: int, flags: Flag
) -> None:
    """Members elsewhere; what follows waits for nothing, or for a kernel that ends much later."""
    builder = ProgramBuilder()
    for rank in range(4):
        rows = builder.table(f"rank {rank}")
        kernel = rows.kernel("work", 0, work + 50 * rank)
        for i in range(4):
            options: dict[str, Any] = {
                "waits": [kernel] if i == 1 + rank % 2 else [],
                "gap": gap + rank,
            }
            eager = flags if i == 1 and rank % 2 == 0 else Flag.NONE
            rows.collective(Operation.ALL_REDUCE, 0, 1, 1000, flags=eager, **options)
        builder.add_table(rows.build())
        builder.add_rank(rank, [builder.communicator((0, 2) if rank % 2 == 0 else (1, 3))])
    program = builder.build()
    network = Links((1.0, 1.0), {"nic": tuple(((rank // 2, 1.0),) for rank in range(4))})
    placement = [(rank // 2) % comm.size for rank in range(4)]
    run = simulate(program, comm, network=network, placement=placement, critical_path=True)
    assert_matches(run, expect(program, network))


# --- references against each other --------------------------------------------------------------


@given(program=programs(max_replicas=4, unpriced=True))
@settings(max_examples=60)
def test_rank_by_rank_finds_longest_paths(program: Program) -> None:
    expected, times = expect(program, COST), rank_by_rank(program, COST)
    for rank in range(program.n_ranks):
        for name in ("begin", "wire", "end"):
            np.testing.assert_array_equal(getattr(times, name)[rank], expected.times(name, rank))
        assert times.rank_end[rank] == expected.rank_end(rank)


@given(program=programs(max_replicas=4, unpriced=True, backwards=False), seed=SEEDS)
@settings(max_examples=60)
def test_flows_over_links_that_are_never_full_are_longest_paths(
    program: Program, seed: int
) -> None:
    network = huge(random_links(seed, program.n_ranks))
    flowing, alone = expect(program, network), expect(program, network, contention=False)
    assert {node: at for node, at in flowing.at.items() if node[0] != "flow"} == alone.at
    assert critical_path(flowing) == critical_path(alone)
    assert digest(flowing) == digest(alone)


@given(program=programs(unpriced=True), seed=SEEDS)
@settings(max_examples=60)
def test_pieces_of_critical_paths_are_contiguous(program: Program, seed: int) -> None:
    expected = expect(program, random_links(seed, program.n_ranks))
    path = critical_path(expected)
    end = max(0, *(expected.rank_end(rank) for rank in range(program.n_ranks)))
    assert [0, *(piece.end for piece in path)] == [*(piece.begin for piece in path), end]
