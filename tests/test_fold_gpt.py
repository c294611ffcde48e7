"""GPT-3 175B on 512 GPUs: folded and with every rank simulated, bit for bit the same."""

from __future__ import annotations

import numpy as np
import pytest

from mpisim.engine import simulate
from mpisim.experiment import read
from mpisim.prediction.prepared import PreparedExperiment, prepare

TEXT = """
[model]
preset = "gpt3-175b"
seq_len = 2048
[plan]
tp = 8
pp = 16
micro_batch = 1
global_batch = 64
[cluster]
preset = "dgx-h100"
nodes = 64
[run]
allow_oom = true
"""
NIC = 'network.changes={"links.node5.nic2->*.bandwidth"="20 %"}'


def case(*changes: str) -> PreparedExperiment:
    return prepare(read(TEXT, "gpt.toml", changes))


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
def test_folded_is_whole(changes: tuple[str, ...], contention: bool, most: int) -> None:
    made = case(*changes)
    options = {"network": made.network, "contention": contention}
    folded = simulate(made.program, fold=True, **options)  # type: ignore[arg-type]
    whole = simulate(made.program, fold=False, **options)  # type: ignore[arg-type]
    assert folded.digest == whole.digest
    assert np.array_equal(folded.rank_end, whole.rank_end)
    assert len(folded.classes) <= most
    assert len(whole.classes) == 512
