"""Simulations assign to processes: each once, alike work, what shares a network side by side."""

from __future__ import annotations

import dataclasses
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from mpisim.experiment import Experiment, load
from mpisim.validate.e2e.predict import MIN_PIECES, assign

EXPERIMENT = load(changes=["plan.tp=2", "plan.dp=4", "plan.zero=1", "plan.global_batch=32"])[1]


def on(nodes: int, batch: int) -> Experiment:
    plan = dataclasses.replace(EXPERIMENT.plan, global_batch=batch)
    cluster = dataclasses.replace(EXPERIMENT.cluster, nodes=nodes)
    return dataclasses.replace(EXPERIMENT, plan=plan, cluster=cluster)


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 64)), max_size=40),
    st.integers(1, 5),
)
def test_each_is_dealt_once(plans: list[tuple[int, int]], processes: int) -> None:
    shares = assign([on(*each) for each in plans], processes)
    assert len(shares) == processes
    assert sorted(i for share in shares for i in share) == list(range(len(plans)))


def test_what_shares_a_network_stays_together() -> None:
    plans = [(2 ** (i % 4), 32 + 4 * (i // 4)) for i in range(80)]
    for share in assign([on(*each) for each in plans], 2):
        assert 25 <= len(share) <= 55
        runs = [nodes for nodes, _ in groupby(plans[i][0] for i in share)]
        assert len(runs) <= 2 * MIN_PIECES < len(share)
