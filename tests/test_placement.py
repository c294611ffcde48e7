"""Placement: ranks that meet often share a process, and processes have as much to do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import programs
from test_tiles import chain, grid

from mpisim.engine import block_placement
from mpisim.engine.placement import default_placement
from mpisim.program import Operation, Program, ProgramBuilder


@given(st.integers(1, 100), st.integers(1, 12))
def test_blocks_are_contiguous_and_even(n_ranks: int, n_processes: int) -> None:
    placement = block_placement(n_ranks, n_processes)
    sizes = np.bincount(placement, minlength=n_processes)
    assert (np.diff(placement) >= 0).all()
    assert sizes.sum() == n_ranks
    assert sizes.max() - sizes.min() <= 1


def test_peers_stay_together() -> None:
    placed = default_placement(grid(tp=4, pp=3, dp=2), 3).reshape(6, 4)
    assert (placed == placed[:, :1]).all()
    assert sorted(np.bincount(placed[:, 0]).tolist()) == [2, 2, 2]


def pipelines(dp: int, stages: int) -> Program:
    """Replicas of a pipeline with 8 messages between stages and one all-reduce over replicas."""
    builder = ProgramBuilder()
    ranks = np.arange(dp * stages).reshape(stages, dp)  # replicas are next to each other
    for stage in range(stages):
        rows = builder.table(f"stage {stage}")
        for _ in range(8):
            for slot in range(1, 1 + (stage > 0) + (stage < stages - 1)):
                rows.collective(Operation.BROADCAST, slot, 0, 8, duration=1)
        rows.collective(Operation.ALL_REDUCE, 0, 0, 8, duration=1)
        builder.add_table(rows.build())
    over = [builder.communicator(line.tolist()) for line in ranks]
    pair = [
        [builder.communicator((int(ranks[s, d]), int(ranks[s + 1, d]))) for d in range(dp)]
        for s in range(stages - 1)
    ]
    for stage, replica in np.ndindex(stages, dp):
        near = [pair[s][replica] for s in (stage - 1, stage) if 0 <= s < stages - 1]
        builder.add_rank(stage, [over[stage], *near])
    return builder.build()


def test_pipelines_stay_whole_where_there_are_replicas() -> None:
    placed = default_placement(pipelines(dp=4, stages=3), 2).reshape(3, 4)
    assert (placed == [0, 0, 1, 1]).all()


def test_one_pipeline_is_cut_between_stages() -> None:
    assert default_placement(chain(6, 3), 2).tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("n", [4, 6, 9])
def test_a_rank_for_each_process(n: int) -> None:
    assert default_placement(chain(4, 2), n).tolist() == [0, 1, 2, 3]


@given(program=programs(max_replicas=6), n=st.integers(1, 5))
def test_no_process_has_much_more_than_its_share(program: Program, n: int) -> None:
    placed = default_placement(program, n)
    assert placed.shape == (program.n_ranks,)
    work = 1 + np.array([len(program.table_of(rank)) for rank in range(program.n_ranks)])
    blocks = np.bincount(block_placement(program.n_ranks, n), work).max()
    assert np.bincount(placed, work).max() <= max(1.2 * work.sum() / n, blocks)
