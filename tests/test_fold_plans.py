"""Training steps of models and plans: folded runs find what unfolded ones do, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from reference.comparison import assert_equal_runs
from test_plans import MODELS, plans, workload

from mpisim.engine import simulate
from mpisim.experiment import read
from mpisim.prediction.prepared import PreparedExperiment, prepare
from mpisim.topo.alpha_beta import AlphaBeta

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.two_processes

seldom = st.sampled_from([False, False, False, True])


@pytest.mark.mpi
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


# --- GPT-3 175B ---------------------------------------------------------------------------------

GPT3 = """
[model]
preset = "gpt3-175b"
seq_len = 2048
[plan]
tp = 8
pp = 16
micro_batch = 1
global_batch = 64
[framework]
name = "none"
[cluster]
preset = "dgx-h100"
nodes = 64
[run]
allow_oom = true
"""
NIC = 'network.changes={"links.node5.nic2->*.bandwidth"="20 %"}'


def case(*changes: str) -> PreparedExperiment:
    return prepare(read(GPT3, "gpt.toml", changes))


@pytest.mark.parametrize(
    ("changes", "contention", "most"),
    [
        ((), False, 16),
        (("variation.speeds.77=0.9",), False, 128),
        ((), True, 16),
        ((NIC,), True, 256),
        (('variation.speeds={"8-15"=0.8}', NIC), True, 256),
    ],
    ids=["alike", "slow GPU", "links", "slow NIC", "slow node and NIC"],
)
def test_gpt3_175b_on_512_gpus(changes: tuple[str, ...], contention: bool, most: int) -> None:
    made = case(*changes)
    options = {"network": made.network, "contention": contention}
    folded = simulate(made.program, fold=True, **options)  # type: ignore[arg-type]
    whole = simulate(made.program, fold=False, **options)  # type: ignore[arg-type]
    assert folded.digest == whole.digest
    assert np.array_equal(folded.rank_end, whole.rank_end)
    assert len(folded.classes) <= most
    assert len(whole.classes) == 512
