"""A program whose tables lie on several processes, made whole again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from programs import partial, random_program

from mpisim.engine import simulate
from mpisim.program import gather

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.mpi_calls


@pytest.mark.mpi
@pytest.mark.parametrize("seed", range(5))
def test_gathered_program_runs_alike(comm: Intracomm, seed: int) -> None:
    program = random_program(seed)
    hosted = [r for r in range(program.n_ranks) if r % comm.size == comm.rank]
    whole = gather(partial(program, hosted), comm)
    assert (whole is None) == (comm.rank != 0)
    if whole is not None:
        assert not whole.is_partial
        for rank in range(program.n_ranks):
            a, b = program.table_of(rank), whole.table_of(rank)
            assert [program.names[n] for n in a.name] == [whole.names[n] for n in b.name]
            np.testing.assert_array_equal(a.duration, b.duration)
        unpriced = any((t.duration < 0).any() for t in whole.tables if t is not None)
        if not unpriced:
            assert simulate(whole).digest == simulate(program).digest
