"""``mpisim new``: what it writes is an experiment that lacks no key."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpisim.errors import InputError
from mpisim.experiment import Cnn, Dlrm, Plan, Transformer, read
from mpisim.experiment.example import _documented, example
from mpisim.experiment.experiment import ClusterChoice, KernelChoice, NetworkChoice, RunChoice
from mpisim.experiment.models import FAMILIES
from mpisim.experiment.presets import find_model, model_presets
from mpisim.kernels import find_gpu
from mpisim.prediction.case import prepare
from mpisim.schema import build
from mpisim.topo import find_cluster
from mpisim.workloads.closed_forms import parameters
from mpisim.workloads.grid import Grid

Run = Callable[..., Any]

SECTIONS = {
    "plan": Plan, "cluster": ClusterChoice, "kernels": KernelChoice, "network": NetworkChoice,
    "run": RunChoice,
}  # fmt: skip


def sections(text: str) -> dict[str, str]:
    parts = re.split(r"^\[(\w+)\]\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_key_stands_in_the_example_with_its_default() -> None:
    text = sections(example("llama-3-8b", "dgx-h100"))
    for name, cls in {"model": Transformer, **SECTIONS}.items():
        for field in dataclasses.fields(cls):
            pattern = rf"^(# )?{field.name} (= .+|is not set)$"
            assert re.search(pattern, text[name], re.MULTILINE), (name, field.name)


@pytest.mark.parametrize("cls", [Transformer, Cnn, Dlrm, *SECTIONS.values()])
def test_every_key_is_documented(cls: type) -> None:
    documented = [name for names, _ in _documented(cls) for name in names]
    assert sorted(documented) == sorted(field.name for field in dataclasses.fields(cls))


def test_keys_that_are_uncommented_change_nothing() -> None:
    text = example("deepseek-v3", "dgx-h800", 256)
    whole = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    assert len(tomllib.loads(whole)["plan"]) > 25
    assert dataclasses.replace(read(whole, "whole"), source="") == dataclasses.replace(
        read(text, "text"), source=""
    )


@pytest.mark.parametrize("name", model_presets())
def test_every_model_gives_an_experiment(name: str) -> None:
    experiment = read(example(name, "dgx-h100", 64), name)
    table = find_model(name)
    cls, common = FAMILIES[table["family"]]
    assert experiment.model == build(cls, {**common, **table}, "preset", name)
    plan = experiment.plan
    assert Grid.of(plan, 64).world == 64
    assert plan.global_batch % ((plan.dp or 1) * plan.micro_batch) == 0
    assert experiment.cluster.nodes == 8


@pytest.mark.parametrize(
    ("name", "cluster", "gpus"),
    [("llama-3-8b", "dgx-h100", 8), ("gpt3-175b", "dgx-a100", 96), ("gpt2", "gv100-4gpu", 4),
     ("llama-3-405b", "dgx-h100", 1024), ("qwen3-30b-a3b", "dgx-h100", 16),
     ("deepseek-v3", "dgx-h800", 2048)],
)  # fmt: skip
def test_weights_and_states_leave_room_for_activations(
    name: str, cluster: str, gpus: int
) -> None:
    experiment = read(example(name, cluster, gpus), name)
    plan, model = experiment.plan, experiment.model
    assert isinstance(model, Transformer)
    # Weights in 2 bytes and gradients in 4 on every rank of the model, 12 bytes of Adam shared.
    split = plan.pp * (plan.ep if model.experts else plan.tp)
    states = parameters(model) * (6 / split + 12 / gpus)
    memory = find_gpu(find_cluster(cluster).gpu).memory.si
    assert states < 0.6 * memory
    assert plan.tp <= find_cluster(cluster).gpus_per_node


@pytest.mark.parametrize(
    ("name", "cluster", "gpus"),
    [("llama-3-8b", "dgx-h100", 8), ("llama-3-70b", "dgx-h100", 64), ("gpt2", "gv100-4gpu", 4),
     ("qwen3-30b-a3b", "dgx-h100", 16), ("bert-large", "dgx-v100", 8), ("t5-base", "dgx-a100", 8),
     ("vit-b-16", "a40-4gpu", 4), ("resnet-50", "dgx-v100", 8), ("dlrm-default", "dgx-a100", 8)],
)  # fmt: skip
def test_examples_are_generated_and_fit(name: str, cluster: str, gpus: int) -> None:
    case = prepare(read(example(name, cluster, gpus), name))
    assert case.program.n_ranks == gpus


def test_part_of_a_node() -> None:
    experiment = read(example("gpt2", "dgx-h100", 12), "e")
    assert (experiment.cluster.nodes, experiment.cluster.gpus) == (2, 12)


def test_more_than_a_box_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        example("gpt2", "a40-4gpu", 8)
    assert str(caught.value) == "8 GPUs are more than the 4 of 'a40-4gpu', which is one box"


def test_it_is_printed_or_written_and_never_over_a_file(run_mpisim: Run, tmp_path: Path) -> None:
    printed = run_mpisim(["new", "--model", "gpt3-13b", "--gpus", "16"])
    assert (printed.rc, printed.stderr) == (0, "")
    assert read(printed.stdout, "printed").cluster.nodes == 2
    path = tmp_path / "mine.toml"
    args = ["new", str(path), "--model", "gpt3-13b", "--gpus", "16"]
    assert run_mpisim(args).rc == 0
    assert path.read_text() == printed.stdout
    again = run_mpisim(args)
    assert again.rc == 2
    assert again.errors == [
        f"mpisim: error: {path}: exists already; remove it or name another file"
    ]
    assert run_mpisim([*args, "--overwrite"], 2).rc == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model", "lama-3-8b"], "unknown model 'lama-3-8b' (did you mean 'llama-3-8b'?)"),
        (["--cluster", "dgx-h10"], "unknown cluster 'dgx-h10' (did you mean 'dgx-h100'?)"),
        (["--gpus", "0"], "--gpus is 0; it must be 1 or more"),
        (["--overwrite"], "--overwrite needs a file to write"),
    ],
)
def test_bad_arguments_are_one_line(run_mpisim: Run, args: list[str], message: str) -> None:
    done = run_mpisim(["new", *args])
    assert done.rc == 2
    assert len(done.errors) == 1
    assert message in done.errors[0]
