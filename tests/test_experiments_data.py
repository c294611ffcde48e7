"""The experiments that come with mpisim: each is read, laid out, and run to its report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpisim.data import names, path
from mpisim.experiment import Cnn, Experiment, load
from mpisim.prediction.prepared import prepare
from mpisim.report import render
from mpisim.simulate import simulate
from mpisim.topo import find_cluster
from mpisim.workloads import lay_out
from mpisim.workloads.grid import Grid

NAMES = names("experiments")
EXPERIMENTS = {name: load(path(f"experiments/{name}.toml"))[1] for name in NAMES}

OURS = ("llama3-8b-8-h100", "qwen3-30b-a3b-16-h100")
"""No published runs."""

PAPERS = {
    "jubench": "arXiv:2408.17211",
    "echo": "arXiv:2412.12487",
    "distsim": "arXiv:2306.08423",
    "triosim": "doi:10.1145/3695053.3731082",
    "lin": "arXiv:2404.12674",
    "simai": "NSDI 2025",
    "megatron": "arXiv:2104.04473|Megatron-LM README",
    "korthikanti": "arXiv:2205.05198",
    "llama3": "arXiv:2407.21783",
    "deepseek": "arXiv:2412.19437",
    "bloom": "arXiv:2211.05100",
    "opt": "arXiv:2205.01068",
    "nemotron": "technical report",
    "mt": "arXiv:2201.11990",
    "fms": "foundation-model-stack/fms-fsdp",
    "automodel": "NVIDIA-NeMo/Automodel",
}


def gpus(experiment: Experiment) -> int:
    """GPUs of the cluster that an experiment has."""
    choice = experiment.cluster
    return choice.gpus or choice.nodes * find_cluster(choice.preset).gpus_per_node


def world(experiment: Experiment) -> int:
    return Grid.of(experiment.plan, gpus(experiment)).world


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_uses_the_gpus_of_its_name(name: str) -> None:
    experiment = EXPERIMENTS[name]
    count = world(experiment)
    assert count == gpus(experiment)
    found = re.search(r"-(\d+)-(?:a10|a40|a100|gv100|h100|h800)$", name)
    if found:
        assert count == int(found[1])
    laid = lay_out(experiment, gpus(experiment))
    assert laid.grid.world == count


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OURS])
def test_every_published_run_says_where_it_comes_from(name: str) -> None:
    text = Path(path(f"experiments/{name}.toml")).read_text(encoding="utf-8")
    head = " ".join(line.lstrip("# ") for line in text.partition("\ntitle")[0].splitlines())
    assert re.search(PAPERS[name.partition("-")[0]], head)
    assert "Assumptions: " in head
    assert EXPERIMENTS[name].run.allow_oom == ("hence allow_oom" in head)
    assert len(EXPERIMENTS[name].title) <= 80


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("echo-gpt-70b-96-h800", (12, 4, 2)),
        ("echo-gpt3-175b-96-h800", (12, 8, 1)),
        ("echo-gpt3-13b-64-h800", (8, 4, 2)),
    ],
)
def test_runs_have_the_degrees_that_their_paper_prints(
    name: str, degrees: tuple[int, int, int]
) -> None:
    plan = EXPERIMENTS[name].plan
    assert (plan.pp, plan.tp, plan.dp) == degrees


def test_titles_are_of_one_experiment_each() -> None:
    titles = [experiment.title for experiment in EXPERIMENTS.values()]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_runs(name: str) -> None:
    # Up to 16,384 GPUs: ranks that do the same are simulated once.
    case = prepare(EXPERIMENTS[name])
    results = simulate(case)
    assert results is not None
    assert results.n_ranks == world(EXPERIMENTS[name])
    assert 0.001 < results.step_time < 200
    # No GPU does more than its peak; but Winograd's convolutions do less than is counted.
    most = 2.0 if isinstance(case.experiment.model, Cnn) else 0.9
    assert 0.001 < results.attributes["utilisation"] < most
    assert results.attributes["memory_peak"] > 0
    assert str(results.n_ranks) in render(results).replace(",", "")


def test_the_sets_of_the_papers_are_there() -> None:
    def found(*words: str) -> int:
        return sum(all(word in name for word in words) for name in NAMES)

    assert found("echo", "h800") == 9
    assert found("echo", "128-a100") == 4
    assert found("distsim", "a10") >= 6
    for box in ("p1", "p2", "p3"):
        assert found("triosim", box, "ddp") >= 3
    for way in ("ddp", "tp", "pp"):
        for family in ("resnet", "vgg", "gpt2|bert|llama"):
            of_way = [name for name in NAMES if name.endswith(way)]
            assert any(re.search(family, name) for name in of_way), (way, family)
    assert found("lin", "dlrm") == 8
    assert found("lin-bert") == found("lin-gpt2") == 2
    for model in ("gpt3-13b", "gpt3-175b", "llama-65b"):
        for count in (128, 512, 1024):
            for gpu in ("a100", "h100"):
                assert f"simai-{model}-{count}-{gpu}" in NAMES
