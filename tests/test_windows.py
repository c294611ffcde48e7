"""Communications that share links, on several processes: what one process finds, bit for bit."""

from __future__ import annotations

import random
from functools import partial as bound
from typing import TYPE_CHECKING

import pytest
from contended import random_links
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import shuffled
from programs import partial, programs, random_program
from reference.comparison import assert_equal_runs

from mpisim.engine import dataflow, simulate
from mpisim.engine.exchange import open_window
from mpisim.program import Program

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = [pytest.mark.mpi, pytest.mark.mpi_calls]

SEEDS = st.integers(0, 2**32 - 1)


@given(program=programs(max_replicas=4, unpriced=True), seed=SEEDS)
@settings(max_examples=40)
def test_windows_of_any_length(world: Intracomm, program: Program, seed: int) -> None:
    """A window may be shorter than it could be, but never shorter than to its first event."""
    network = random_links(seed, program.n_ranks)
    alone = simulate(program, network=network, fold=False, critical_path=True)
    rng = random.Random(seed)  # the same on all processes

    def shortened(earliest: int, until: int) -> int:
        return rng.choice([earliest, rng.randint(earliest, min(until, earliest + 500))])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataflow, "open_window", bound(open_window, window=shortened))
        run = simulate(
            program,
            world,
            network=network,
            placement=shuffled(program, world.size, seed),
            critical_path=True,
        )
    assert_equal_runs(run, alone)


@given(program=programs(max_replicas=4, unpriced=True), seed=SEEDS)
@settings(max_examples=20)
def test_partial_programs(world: Intracomm, program: Program, seed: int) -> None:
    """Each process holds only the tables of its own ranks."""
    network = random_links(seed, program.n_ranks)
    alone = simulate(program, network=network, fold=False, critical_path=True)
    placement = shuffled(program, world.size, seed)
    hosted = {rank for rank, process in enumerate(placement) if process == world.rank}
    run = simulate(
        partial(program, hosted), world, network=network, placement=placement, critical_path=True
    )
    assert_equal_runs(run, alone)


@pytest.mark.parametrize("seed", range(4))
def test_all_processes_at_once(world: Intracomm, seed: int) -> None:
    """Few programs, but on as many processes as there are: eight of them on two cores are slow."""
    program = random_program(seed, n_tables=3, n_replicas=4, unpriced=True)
    network = random_links(seed, program.n_ranks)
    alone = simulate(program, network=network, fold=False, critical_path=True)
    run = simulate(
        program,
        world,
        network=network,
        placement=shuffled(program, world.size, seed),
        critical_path=True,
    )
    assert_equal_runs(run, alone)
