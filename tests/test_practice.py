"""What is filled in where an experiment names no framework (data/practice.toml)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpisim.base.errors import InputError
from mpisim.base.schema import check_value, field_of
from mpisim.data import names
from mpisim.experiment import Experiment, load, read
from mpisim.experiment.profiles import NO_FRAMEWORK, common_practice
from mpisim.experiment.tables import TABLES
from mpisim.prediction.framework_lines import PRACTICE
from mpisim.prediction.prepared import prepare
from mpisim.simulate import simulate

ROW = """\
model = { preset = "llama-3-8b", layers = 4, seq_len = 1024 }
plan = { global_batch = 16 }
cluster = { preset = "dgx-h100" }
"""

SMALL, LARGE = "model.preset=gpt2", "model.preset=llama-3-70b"


def made(*changes: str) -> Experiment:
    """The experiment with changes."""
    return read(ROW, "e.toml", changes)


def test_every_entry_has_a_source_and_keys_of_the_plan_that_there_are() -> None:
    for entry, values in common_practice().entries:
        assert entry.source
        assert not entry.recipe
        assert not entry.analogy
        for key, value in values.items():
            table, _, rest = key.partition(".")
            assert table in ("plan", "framework"), "searches share the model among their candidates"
            assert field_of(TABLES[table], rest) is not None, key
            check_value(TABLES[table], rest, value, "practice.toml", key)


@pytest.mark.parametrize(
    ("changes", "style", "zero", "fused"),
    [
        (("plan.tp=8",), "megatron", 1, True),
        (("plan.pp=2",), "megatron", 1, True),
        ((LARGE,), "megatron", 1, True),  # 70B × 18 bytes are more than a GPU has
        (("model.layers=8",), "megatron", 1, True),  # 2.8B: there would be no room to work
        ((SMALL,), "ddp", 0, False),
        ((SMALL, "plan.zero=1"), "megatron", 1, True),
        ((SMALL, "plan.zero=3"), "fsdp", 3, False),
        ((LARGE, "plan.zero=3", "plan.tp=8"), "fsdp", 3, False),
        ((LARGE, "plan.zero=3", "plan.precision=fp8"), "fsdp", 3, True),
        ((SMALL, "framework.dp_style=deepspeed"), "deepspeed", 0, False),
    ],
)
def test_the_plan_tells_whose_it_is(
    changes: tuple[str, ...], style: str, zero: int, fused: bool
) -> None:
    plan = made(*changes).plan
    assert plan.style(transformer=True) == style
    assert (plan.zero, plan.framework.fused) == (zero, fused)


@pytest.mark.parametrize(
    ("cluster", "changes", "kernels", "attention"),
    [
        ("dgx-v100", ("plan.tp=2",), "eager", "newest"),
        ("dgx-a100", ("plan.tp=2",), "flash", "newest"),
        ("dgx-h100", ("plan.tp=2",), "flash", "cudnn"),
        ("dgx-h100", ("plan.zero=3",), "flash", "flash-2"),
        ("dgx-b200", ("plan.zero=3",), "flash", "cudnn"),
    ],
)
def test_the_gpu_tells_which_attention(
    cluster: str, changes: tuple[str, ...], kernels: str, attention: str
) -> None:
    chosen = (f"cluster.preset={cluster}", "plan.precision=fp16", *changes)
    framework = made(*chosen).plan.framework
    assert (framework.kernels, framework.attention) == (kernels, attention)


def test_a_gpu_of_ones_own_counts(tmp_path: Path) -> None:
    with_v100 = made("plan.tp=2", "kernels.gpu=v100-sxm2-32gb", "plan.precision=fp16")
    assert with_v100.plan.framework.kernels == "eager"


def test_experts_are_not_split_unless_that_is_said() -> None:
    mixed = ("model.preset=mixtral-8x7b", "model.layers=4", "plan.tp=2", "plan.ep=4")
    assert made(*mixed).plan.expert_tp == 1
    assert made(*mixed, "plan.etp=2", "plan.ep=2").plan.expert_tp == 2


@pytest.mark.parametrize(
    ("cluster", "changes", "captured"),
    [
        ("gb200-nvl72", (), True),
        ("gb300-nvl72", (), True),
        ("dgx-b200", (), False),
        ("gb200-nvl72", ("plan.zero=3",), False),  # of PyTorch
        ("gb200-nvl72", ("model.experts=0", "model.family=llama", "plan.ep=1"), False),
        ("gb200-nvl72", ("framework.cuda_graph_modules=[]",), False),
    ],
)
def test_experts_of_racks_are_launched_from_graphs(
    cluster: str, changes: tuple[str, ...], captured: bool
) -> None:
    mixed = ("model.preset=qwen3-30b-a3b", "plan.tp=1", "plan.ep=4")
    found = made(f"cluster.preset={cluster}", *mixed, *changes).plan.framework.cuda_graph_modules
    assert ("moe_router" in found) == captured


def test_other_models_have_their_usual_optimizers() -> None:
    image = made("model={preset='resnet50'}", "plan.precision=fp16")
    tables = made("model={preset='dlrm-mlperf'}", "plan.precision=fp16")
    assert (image.plan.optimizer, tables.plan.optimizer) == ("momentum", "sgd")
    assert (image.plan.zero, image.plan.framework.fused) == (0, True)


def test_shifted_scores_have_no_fused_kernel() -> None:
    assert made("model={preset='transformer-xl-base'}").plan.framework.kernels == "eager"


def test_what_is_given_stays() -> None:
    plan = made("plan.tp=2", "plan.zero=0", "framework.attention=newest").plan
    assert (plan.zero, plan.framework.attention) == (0, "newest")
    assert not made("plan.tp=2", "framework.name=none").set_by_profile
    assert made("plan.tp=2", "framework.name=none").plan.zero == 0


def test_a_named_framework_takes_its_place() -> None:
    assert made("framework.name=megatron-core", "plan.tp=2").plan.zero == 0


def test_it_tells_no_framework() -> None:
    small = made(SMALL)  # elementary kernels, which nobody has said
    assert not small.plan.framework.fused
    assert not small.says_framework
    assert not made("framework.name=none").says_framework
    assert made(SMALL, "framework.name=nemo").says_framework
    assert made(SMALL, "framework.name=none", "framework.kernels=eager").says_framework
    both = ("framework.fused=true", "framework.kernels=eager")
    assert made(SMALL, *both).says_framework
    for change in both:  # of attention or of all else nothing is known
        assert not made(SMALL, change).says_framework, change


def test_the_report_says_what_was_filled_in() -> None:
    results = simulate(made("plan.tp=2"))
    assert results is not None
    said = results.attributes["assumptions"]
    assert any(each.startswith(f"plan.zero = 1 ({PRACTICE}: ") for each in said)
    assert any(each.startswith("framework: none is named") for each in said)


def test_bad_tables_are_refused_where_they_are_read() -> None:
    for change, message in (
        ("cluster.preset=nowhere", "unknown cluster 'nowhere'"),
        ("kernels.gpu=nothing", "unknown GPU 'nothing'"),
        ("plan=1", "'plan' is 1; it must be a table"),
        ("framework=1", "'framework' is 1; it must be a table"),
        ("plan.tp=two", "'plan.tp' is 'two'"),
    ):
        with pytest.raises(Exception, match=message):
            prepare(made(change))


def test_an_error_about_what_was_filled_in_says_so() -> None:
    with pytest.raises(InputError, match="dp_style is common practice where no") as error:
        made(SMALL, "plan.zero=0", "plan.offload.optimizer=1")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", names("experiments"))
def test_published_runs_say_what_they_are(name: str) -> None:
    """What is taken for common practice tomorrow must not change what they were."""
    experiment = load(name)[1]
    named = experiment.profile is not None or experiment.framework.name == NO_FRAMEWORK
    assert named or not experiment.set_by_profile


def test_nothing_overlaps_launches_that_block() -> None:
    assert made("plan.tp=2").plan.overlap.dp
    assert not made("plan.tp=2", "framework.launch_blocking=true").plan.overlap.dp
