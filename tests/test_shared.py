"""What plans of one process share: each has the times that it has alone, to the last bit."""

from __future__ import annotations

import random
from itertools import product

import pytest
from mpi4py import MPI

from mpisim.base.errors import InputError
from mpisim.experiment import Experiment, Transformer, read
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import analytical_model
from mpisim.prediction.execution import execute
from mpisim.prediction.network import NetworkCache
from mpisim.prediction.prepared import prepare
from mpisim.prediction.statements import statements
from mpisim.workloads.grid import Grid
from mpisim.workloads.layout import networks_of
from mpisim.workloads.transformer import transformer_network

TEXT = """
[model]
{model}
[plan]
tp = {tp}
pp = {pp}
zero = {zero}
micro_batch = {micro_batch}
global_batch = 16
[cluster]
preset = "{cluster}"
nodes = 2
[run]
allow_oom = true
"""

GPT = 'family = "gpt"\nlayers = 4\nhidden = 1024\nheads = 16\nseq_len = 512\nvocab = 8192'
EXPERTS = f"{GPT}\nexperts = 4\ntopk = 2"


def experiments() -> list[Experiment]:
    """Plans that have much in common, and some that have less."""
    each = product((GPT, EXPERTS), ((2, 2), (4, 1), (1, 4)), (0, 1), (1, 2), ("h100", "a100"))
    return [
        read(
            TEXT.format(
                model=model, tp=tp, pp=pp, zero=zero, micro_batch=micro_batch, cluster=f"dgx-{gpu}"
            ),
            "test.toml",
        )
        for model, (tp, pp), zero, micro_batch, gpu in random.Random(1).sample(list(each), 12)
    ]


def predicted(experiment: Experiment, networks: NetworkCache | None = None) -> tuple[object, ...]:
    """Everything that a prediction says; plans with the same `networks` share them."""
    case = prepare(experiment, networks=networks)
    run, overlap = execute(case, MPI.COMM_SELF, critical_path=True)
    assert overlap is not None
    spent, terms = overlap.outcome.kernel_time.tolist(), overlap.outcome.terms.tolist()
    return run.digest, run.step_time, spent, terms, statements(case, run, {}, overlap)


def forget() -> None:
    """No kernel that was known is known any longer."""
    analytical_model.cache_clear()


@pytest.fixture(scope="module")
def alone() -> list[tuple[object, ...]]:
    """Each experiment by itself."""
    found = []
    for each in experiments():
        forget()
        found.append(predicted(each))
    return found


@pytest.mark.parametrize("seed", range(2))
def test_in_any_order_each_is_as_alone(alone: list[tuple[object, ...]], seed: int) -> None:
    every = experiments()
    order = random.Random(seed).sample(range(len(every)), len(every))
    forget()
    networks = NetworkCache()
    for i in order:
        assert predicted(every[i], networks) == alone[i]


def test_what_is_known_is_bounded(
    alone: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for next to nothing, the same."""
    monkeypatch.setattr("mpisim.kernels.analytical.model.MAX_CACHED_KERNELS", 3)
    monkeypatch.setattr("mpisim.topo.nccl.model.MAX_CHOICES_CACHED", 3)
    monkeypatch.setattr("mpisim.topo.nccl_network.MAX_CACHE_BYTES", 3)
    monkeypatch.setattr("mpisim.topo.traffic.link_model.MAX_CACHE_BYTES", 3)
    forget()
    networks = NetworkCache()
    for each, expected in zip(experiments()[:4], alone):
        assert predicted(each, networks) == expected


def test_models_are_one_for_all_who_ask() -> None:
    forget()
    model = analytical_model(find_gpu("h100-sxm"))
    assert analytical_model(find_gpu("h100-sxm")) is model
    assert analytical_model(find_gpu("a100-sxm-40gb")) is not model
    assert analytical_model.cache_info().currsize == 2


@pytest.mark.parametrize("seed", range(3))
def test_layers_that_plans_share_are_those_of_each(seed: int) -> None:
    """Of plans that differ in stages, batches and ZeRO alone, and in more."""
    draw, compared = random.Random(seed), 0
    while compared < 40:
        keys = {
            "tp": draw.choice([1, 2, 4]),
            "pp": draw.choice([1, 2]),
            "zero": draw.choice([0, 1, 2, 3]),
            "micro_batch": draw.choice([1, 2]),
            "global_batch": draw.choice([16, 32, 64]),
            "recompute": draw.choice(['"none"', '"selective"', '"full"']),
            **draw.choice([{}, {"pipeline": '"interleaved"', "vpp": 2}]),
            **draw.choice([{}, {}, {"overlap.ep": "true"}, {"zero_group": 2}]),
        }
        preset = draw.choice(["gpt3-1.3b", "llama3-8b", "mixtral-8x7b", "bert-large", "t5-large"])
        if preset == "mixtral-8x7b":
            keys["ep"] = draw.choice([1, 2])
        text = (
            f"model.preset = '{preset}'\nplan.global_batch = 16\ncluster.preset = 'dgx-h100'\n"
            "cluster.nodes = 2\n"
        )
        try:
            changes = [f"plan.{key}={value}" for key, value in keys.items()]
            one = read(text, "test.toml", changes)
            (network,) = networks_of(one, 16)
        except InputError:
            continue
        assert isinstance(one.model, Transformer)
        assert network == transformer_network(one.model, one.plan, Grid.of(one.plan, 16))
        compared += 1
