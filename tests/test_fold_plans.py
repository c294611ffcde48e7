"""Training steps of all kinds of models and plans, folded: bit for bit what they are whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from reference.comparison import assert_equal_runs
from test_plans import MODELS, plans, workload

from mpisim.engine import simulate
from mpisim.topo.alpha_beta import AlphaBeta

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.mpi

seldom = st.sampled_from([False, False, False, True])


@pytest.mark.parametrize("name", list(MODELS))
@settings(deadline=None, max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_plans(world: Intracomm, name: str, data: st.DataObject) -> None:
    micro_batches = 1 if name == "dlrm" else data.draw(st.sampled_from([2, 4]))
    program = workload(name, data.draw(plans(name)), micro_batches).program
    speed, start = np.ones(program.n_ranks), np.zeros(program.n_ranks, np.int64)
    if data.draw(seldom, "odd"):
        speed[data.draw(st.integers(0, program.n_ranks - 1))] = 0.7
    if data.draw(seldom, "late"):
        start[data.draw(st.integers(0, program.n_ranks - 1))] = 12_345
    program = program.replace(speed=speed, start=start)
    node = data.draw(st.sampled_from([2, 3, 8]))
    network = AlphaBeta(
        latency=9e-6, bandwidth=2e10, node_latency=1e-6, node_bandwidth=9e10, ranks_per_node=node
    )
    whole = simulate(program, network=network, critical_path=True, fold=False)
    folded = simulate(program, world, network=network, critical_path=True, fold=True)
    assert_equal_runs(folded, whole)
    event(f"{10 * len(folded.classes) // program.n_ranks * 10} % of the ranks are simulated")
