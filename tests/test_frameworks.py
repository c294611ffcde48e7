"""Profiles of frameworks: what they fill in, when, and that every file holds keys there are."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

from mpisim.base.errors import InputError
from mpisim.base.schema import check_value, field_of
from mpisim.cli import main
from mpisim.data import names
from mpisim.experiment import Experiment, Transformer, load, read
from mpisim.experiment.profiles import chosen_profile, find_profile, named_in, profiles
from mpisim.experiment.tables import TABLES
from mpisim.kernels.numbers import quantity
from mpisim.prediction.execution import execute
from mpisim.prediction.framework_lines import dispatcher_lines
from mpisim.prediction.path_shares import OWN_KERNELS
from mpisim.prediction.prepared import prepare
from mpisim.prediction.uncertainty import Uncertainty, error_bar
from mpisim.report import summarise
from mpisim.simulate import simulate

ROW = """\
model = { preset = "llama-3-8b", layers = 4, seq_len = 1024 }
plan = { global_batch = 16, tp = 2, precision = "fp8" }
cluster = { preset = "dgx-h100" }
"""

MINE = """\
title = "Mine"
versions = "1.0 to 2.0"
url = "https://example.org"

[[defaults]]
set = { "plan.zero" = 1, "plan.precision.gradients" = "bf16", "model.dropout" = true }
source = "its manual"

[[defaults]]
set = { "plan.precision.gradients" = "fp32" }
versions = ">=1.5,<2"
source = "its notes of 1.5"

[[defaults]]
set = { "framework.attention" = "cudnn" }
where = { gpu = "hopper", zero = "1", tp = ">1" }
source = "its code"
analogy = true

[[defaults]]
set = { "framework.attention" = "flash-2" }
where = { gpu = "ampere" }
source = "its code"

[[defaults]]
set = { "framework.cuda_graphs" = true }
recipe = true
source = "its recipes"
"""


def experiment(tmp_path: Path, *changes: str, mine: str = MINE, text: str = ROW) -> Experiment:
    """The experiment with a framework of one's own."""
    (tmp_path / "mine.toml").write_text(mine)
    framework = 'framework = { name = "mine.toml" }\n'
    return read(text + framework, str(tmp_path / "e.toml"), changes)


@pytest.mark.parametrize("name", names("frameworks"))
def test_every_entry_sets_keys_that_there_are(name: str) -> None:
    for entry, values in find_profile(name).entries:
        assert entry.source, values
        for key, value in values.items():
            table, _, rest = key.partition(".")
            cls = Transformer if table == "model" else TABLES[table]
            if rest.startswith("nccl."):  # a table of any of NCCL's variables
                rest, value = "nccl", {rest.removeprefix("nccl."): value}
            assert field_of(cls, rest) is not None, key
            check_value(cls, rest, value, name, key)


def test_names_and_aliases_are_each_one_profile() -> None:
    every = [word for each in profiles() for word in (each.name, *each.aliases, *each.programs)]
    assert len(every) == len(set(every))
    assert {"megatron-lm", "megatron-bridge", "nemo", "torchtitan", "deepspeed"} <= set(every)
    # Models of the repository Megatron-LM are Megatron-Core's since 2024.
    assert find_profile("megatron").name == "megatron-core"
    assert {"megatron-deepspeed", "llm-foundry", "maxtext", "paxml", "t5x", "ddp"} <= set(every)


def test_programs_have_the_profile_of_what_they_train_with() -> None:
    tables = {"framework": {"name": "LLaMA Factory", "version": "4.51"}}
    profile, version = chosen_profile(tables["framework"], "mine.toml")
    assert (profile.name, version) == ("hf-transformers", (4, 51))
    with pytest.raises(InputError, match="axolotl trains with Hugging Face transformers, whose"):
        chosen_profile({"name": "axolotl", "version": "0.8"}, "mine.toml")


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("NeMo/Megatron-Core", "nemo", ""),
        ("Axolotl 0.8", "hf-transformers", ""),
        ("torchtune (PyTorch FSDP)", "fsdp", ""),
        ("LitGPT on Lightning Fabric", "fsdp", ""),
        ("TRL with torchtune", "hf-transformers", ""),
        ("torchtune with TRL", "fsdp", ""),
        ("PyTorch-Lightning 2.1", "ddp", ""),
        ("DeepSpeed (LLaMA-Factory)", "deepspeed", ""),
        ("Megatron-Bridge/Megatron-Core", "megatron-bridge", ""),
        ("NeMo AutoModel", "nemo-automodel", ""),
        ("NeMo 25.04", "nemo", "25.04"),
        ("DeepSpeed 0.19.2, torch 2.13", "deepspeed", "0.19.2"),
        ("PyTorch FSDP", "fsdp", ""),
        ("PyTorch FSDP2", "fsdp", ""),
        ("PyTorch 2.4 (FSDP)", "fsdp", "2.4"),
        ("PyTorch 2.5 DDP", "ddp", "2.5"),
        ("PyTorch 2.0 + DeepSpeed 0.9.1", "deepspeed", "0.9.1"),
        ("PyTorch", "ddp", ""),
        ("HuggingFace transformers 4.25 (Lightning)", "hf-transformers", "4.25"),
        ("Primus (Megatron-LM)", "primus", ""),
        ("Primus-torchtitan", "torchtitan", ""),
        ("Composer/PyTorch FSDP + FlashAttention", "llm-foundry", ""),
    ],
)
def test_texts_name_frameworks(text: str, name: str, version: str) -> None:
    found = named_in(text)
    assert found is not None
    assert (found[0].name, found[1]) == (name, version)


def test_texts_that_name_no_framework() -> None:
    assert named_in("") is None
    assert named_in("our own trainer, nemotronic") is None
    assert named_in("Lightning attention kernel benchmark") is None
    assert find_profile("lightning").name == "ddp"


def test_entries_for_models_take_a_name_with_a_size_for_the_model_it_stands_for(
    tmp_path: Path,
) -> None:
    entry = (
        '[[defaults]]\nset = { "plan.clip" = true }\nwhere = { model = "qwen3" }\nsource = "x"\n'
    )
    mine = f"{MINE}\n{entry}"
    for preset, clips in (("Qwen3 32B chat", True), ("Foo-7B", False)):
        made = experiment(tmp_path, f"model.preset={preset!r}", mine=mine)
        assert ("plan.clip" in made.set_by_profile) == clips


def test_what_is_blank_is_filled_in(tmp_path: Path) -> None:
    found = experiment(tmp_path)
    plan = found.plan
    assert (plan.zero, plan.precision.gradients, plan.precision.products) == (1, "bf16", "fp8")
    assert isinstance(found.model, Transformer)
    assert found.model.dropout
    assert (plan.framework.attention, plan.framework.cuda_graphs) == ("cudnn", False)
    assert found.set_by_profile["framework.attention"].analogy
    assert "plan.zero" not in found.left_to_defaults()
    assert "framework.fused" in found.left_to_defaults()


def test_what_is_given_stays(tmp_path: Path) -> None:
    changes = ("plan.zero=0", "model.dropout=false", "plan.precision.gradients=fp16")
    found = experiment(tmp_path, *changes)
    assert found.plan.zero == 0
    assert found.plan.precision.gradients == "fp16"
    assert isinstance(found.model, Transformer)
    assert not found.model.dropout
    # An entry looks at what is given.
    assert found.plan.framework.attention == "newest"
    assert not {"plan.zero", "model.dropout"} & set(found.set_by_profile)


@pytest.mark.parametrize(
    ("version", "gradients"),
    [("1.4.9", "bf16"), ("1.5", "fp32"), ("1.10", "fp32"), ("2.0", "bf16"), (None, "bf16")],
)
def test_entries_hold_for_versions(tmp_path: Path, version: str | None, gradients: str) -> None:
    changes = [] if version is None else [f"framework.version={version}"]
    assert experiment(tmp_path, *changes).plan.precision.gradients == gradients


def test_recipes_count_where_asked_for(tmp_path: Path) -> None:
    assert experiment(tmp_path, "framework.recipe=performance").plan.framework.cuda_graphs


def test_other_gpus_have_other_entries(tmp_path: Path) -> None:
    for cluster, attention in (("dgx-a100", "flash-2"), ("dgx-v100", "newest")):
        text = ROW.replace("dgx-h100", cluster).replace("fp8", "fp16")
        assert experiment(tmp_path, text=text).plan.framework.attention == attention


def test_the_report_says_what_the_profile_set(tmp_path: Path) -> None:
    results = simulate(experiment(tmp_path, "framework.version=3.1"))
    assert results is not None
    said = "\n".join(results.attributes["assumptions"])
    assert "Mine 3.1 is outside of what is known: the profile ends at 2.0, whose beh" in said
    assert "Mine 3.1 is outside of what is known" in summarise(results)
    assert "plan.zero = 1 (Mine 3.1: its manual)" in said
    assert "framework.attention = cudnn (Mine 3.1, by analogy: its code)" in said
    assert "plan.zero = 0 (default)" not in said


def test_versions_before_the_first_are_said(tmp_path: Path) -> None:
    profile = find_profile("nemo")
    versions = ("22", "22.11", "23", "23.09", "25.04")
    assert [profile.is_older(each) for each in versions] == [True, True, False, False, False]
    results = simulate(experiment(tmp_path, "framework.version=0.9"))
    assert results is not None
    said = "\n".join(results.attributes["assumptions"])
    assert "Mine 0.9 is outside of what is known: the profile begins with 1.0, whose beh" in said


@pytest.mark.parametrize(
    ("name", "version", "stands_for"),
    [
        ("nemo", "99", "25.11"),
        ("nemo", "25.04", ""),
        ("nemo", "23.01", "23.09"),
        ("torchtitan", "2031-01", "2026-09"),
        ("megatron-core", "99", "0.17"),
    ],
)
def test_versions_outside_are_taken_for_the_nearest(
    name: str, version: str, stands_for: str
) -> None:
    assert find_profile(name).stands_for(version) == stands_for


def test_a_date_has_a_month() -> None:
    with pytest.raises(InputError, match=r"'25\.13'; versions of NeMo are dates here, with m"):
        find_profile("nemo").version_of("25.13")


def test_what_a_framework_does_not_have_is_said(tmp_path: Path) -> None:
    mine = MINE.replace("url =", 'models = ["dlrm"]\nparallel = ["dp"]\nurl =')
    results = simulate(experiment(tmp_path, mine=mine))
    assert results is not None
    said = "\n".join(results.attributes["assumptions"])
    assert "Mine is for dlrm models; of a transformer its profile says nothing" in said
    assert "Mine has no such parallelism of its own: tp = 2 is as Megatron-LM's" in said


@pytest.mark.parametrize(
    ("cluster", "ep", "dispatcher", "said"),
    [
        ("rtx-4090-8gpu", 8, "flex", True),
        ("rtx-4090-8gpu", 8, "all-to-all", False),
        ("rtx-4090-8gpu", 1, "hybrid-ep", False),
        ("dgx-h100", 8, "hybrid-ep", False),
    ],
)
def test_what_is_left_out_of_a_dispatcher_is_said(
    tmp_path: Path, cluster: str, ep: int, dispatcher: str, said: bool
) -> None:
    path = tmp_path / "mixture.toml"
    path.write_text(
        'model = { preset = "qwen3-30b-a3b", layers = 1, seq_len = 128 }\n'
        f'cluster = {{ preset = "{cluster}" }}\n'
        f"plan = {{ global_batch = 8, dp = 8, ep = {ep} }}\n"
        f'framework = {{ moe_dispatcher = "{dispatcher}" }}\n'
    )
    _, mixture = load(str(path))
    found = dispatcher_lines(mixture, prepare(mixture).workload.layout.grid)
    assert [each.endswith("the cluster has no link_bandwidth") for each in found] == [True] * said


def test_no_version_is_the_newest_and_said(tmp_path: Path) -> None:
    results = simulate(experiment(tmp_path))
    assert results is not None
    assert any("no version is given" in each for each in results.attributes["assumptions"])


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (
            '"2.5"',
            "lightning trains with PyTorch DistributedDataParallel 2.5 (the framework's version, "
            "not that of lightning); the profile covers",
        ),
        (
            '"9.1"',
            "lightning trains with PyTorch DistributedDataParallel 9.1 (the framework's version, "
            "not that of lightning) is outside of what is known",
        ),
        ("", "lightning trains with PyTorch DistributedDataParallel; the profile covers"),
    ],
)
def test_the_report_says_whose_version_that_of_a_program_is(
    tmp_path: Path, version: str, said: str
) -> None:
    changes = ["framework.name=lightning", f"framework.version={version}"]
    results = simulate(experiment(tmp_path, *changes[: 2 if version else 1]))
    assert results is not None
    assert any(each.startswith(f"framework: {said}") for each in results.attributes["assumptions"])


BAD = [
    ('title = "Mine"\n', "", "key 'title' is missing"),
    ('versions = ">=1.5,<2"', 'versions = "1.5"', "[defaults[1]] versions is '1.5'"),
    ('tp = ">1"', 'tp = "many"', "where: 'many' is no number"),
    ('gpu = "hopper"', 'gpus = "x"', "'x' is no number"),
    ('source = "its code"', 'source = "its code"\nsauce = 1', "unknown key 'sauce'"),
    ('{ "framework.cuda_graphs" = true }', "3", "'defaults[4].set' must be a table of keys"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD)
def test_bad_files_are_told(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in MINE
    with pytest.raises(InputError, match=re.escape(message)) as error:
        experiment(tmp_path, mine=MINE.replace(old, new, 1))
    assert "mine.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_new_writes_an_experiment_of_a_framework(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "e.toml"
    given = ["--framework", "nemo", "--framework-version", "25.04", "--recipe", "performance"]
    assert main(["new", str(path), *given]) == 0
    written: dict[str, Any] = tomllib.loads(path.read_text())
    assert written["framework"] == {
        "name": "nemo", "version": "25.04", "recipe": "performance",
    }  # fmt: skip
    assert len(path.read_text().splitlines()) < 45
    _, found = load(str(path))
    assert found.plan.framework.compiled_loss
    assert main(["new", "--recipe", "performance"]) == 2
    assert "--recipe is given without --framework" in capsys.readouterr().err


def test_old_names_of_keys_are_told_with_the_new(capsys: pytest.CaptureFixture[str]) -> None:
    for old, new in (
        ("fused=true", "framework.fused"),
        ("grad_precision=fp32", "plan.precision.gradients"),
        ("dp_overlap=false", "plan.overlap.dp"),
    ):
        assert main(["run", "--set", f"plan.{old}"]) == 2
        assert f"has a new name: '{new}'" in capsys.readouterr().err
    assert main(["run", "--set", "calibration.framework=nemo"]) == 2
    assert "has a new name: 'framework.name'" in capsys.readouterr().err


def test_a_value_for_a_sub_table_is_its_main_key() -> None:
    short = read(ROW + 'framework = { name = "nemo" }', "e", ["plan.recompute=full"])
    long = read(ROW, "e", ["plan.recompute.granularity=full", "framework.name=nemo"])
    assert short.plan == long.plan
    both = read(ROW, "e", ["plan.recompute=full", "plan.recompute.layers=2"])
    assert (both.plan.recompute.granularity, both.plan.recompute.layers) == ("full", 2)


@pytest.mark.parametrize(
    ("name", "version", "numbers"),
    [
        ("nemo", "25.04", (25, 4)),
        ("nemo", "2025-04", (25, 4)),
        ("nemo", "2.1.0", (24, 12)),
        ("torchtitan", "0.2", (2025, 10)),
        ("torchtitan", "25-06-01", (2025, 6, 1)),
        ("megatron-core", "0.12.1", (0, 12, 1)),
        ("hugectr", "24.04", (24, 4)),
    ],
)
def test_releases_and_dates_are_one_version(
    name: str, version: str, numbers: tuple[int, ...]
) -> None:
    assert find_profile(name).version_of(version) == numbers


@pytest.mark.parametrize("name", ["nemo", "torchtitan", "megatron-lm"])
def test_a_release_without_a_date_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"framework.version is '1\.9'; versions of .* are dates"):
        find_profile(name).version_of("1.9")


def test_kernels_of_its_own_widen_the_error_bar(tmp_path: Path) -> None:
    """By their error, over what is neither products nor attention on the critical path."""
    text = (Path(__file__).parents[1] / "data" / "frameworks" / "maxtext.toml").read_text("utf-8")
    (tmp_path / "theirs.toml").write_text(text.replace("own_kernels = true\n", ""), "utf-8")

    def bar(name: str) -> Uncertainty:
        prepared = prepare(experiment(tmp_path, f"framework.name={name}", "cluster.nodes=1"))
        return error_bar(prepared, execute(prepared, MPI.COMM_SELF, critical_path=True)[0])

    own, theirs = bar("maxtext"), bar("theirs.toml")
    added = {each.name: each for each in own.effects}[OWN_KERNELS]
    assert added.error == quantity("own_kernels").error
    assert 0.03 < added.share < 0.4
    assert OWN_KERNELS not in {each.name for each in theirs.effects}
    assert own.relative == pytest.approx(math.hypot(theirs.relative, added.effect), rel=1e-3)


@pytest.mark.parametrize(("version", "fused"), [("0.2", False), ("0.3", True)])
def test_torchtitan_has_one_matrix_for_queries_keys_and_values(version: str, fused: bool) -> None:
    keys = ["framework.name=torchtitan", f"framework.version={version}", "model.layers=1"]
    program = prepare(load(None, keys)[1]).workload.program
    found = {program.names[number] for number in program.table_of(0).name.tolist()}
    assert {"qkv", "query copy", "key copy", "value copy"} <= found if fused else "qkv" not in found
    assert ("query" in found) is not fused
    assert ("gradient cast" in found) is fused  # of the head, whose loss is computed in parts


@pytest.mark.parametrize(("version", "style"), [("1.8", "ddp"), ("2.6", "deepspeed")])
def test_paddle_shards_since_paddlenlp(version: str, style: str) -> None:
    keys = ["framework.name=paddlepaddle", f"framework.version={version}"]
    keys.append(f"plan.zero={0 if style == 'ddp' else 2}")
    assert load(None, keys)[1].plan.style(transformer=True) == style


@pytest.mark.parametrize(
    ("version", "attention"), [("2.0", "triton"), ("2.1", "triton"), ("2.2", "newest")]
)
@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_attention_of_pytorch(name: str, version: str, attention: str) -> None:
    keys = [f"framework.name={name}", f"framework.version={version}", "cluster.preset=dgx-a100"]
    keys.append(f"plan.zero={0 if name == 'ddp' else 3}")
    assert load(None, keys)[1].framework.attention == attention


@pytest.mark.parametrize(
    ("preset", "version", "kernels"),
    [
        ("llama-2-7b", "4.35", "eager"),
        ("llama-2-7b", "4.36", "flash"),
        ("bert-large", "4.40", "eager"),
        ("bert-large", "4.41", "flash"),
        ("gpt2-xl", "4.41", "eager"),
        ("gpt2-xl", "4.42", "flash"),
    ],
)
def test_attention_of_transformers(preset: str, version: str, kernels: str) -> None:
    keys = ["framework.name=hf-transformers", f"framework.version={version}"]
    found = load(None, [*keys, f"model.preset={preset}"])[1]
    assert found.framework.kernels == kernels


@pytest.mark.parametrize(("name", "zero"), [("fsdp", 3), ("ddp", 0), ("hf-transformers", 0)])
def test_moments_have_the_format_of_the_parameters(name: str, zero: int) -> None:
    keys = [f"framework.name={name}", f"plan.zero={zero}", "plan.precision.products=bf16"]
    for parameters, moments in (("fp32", "fp32"), ("bf16", "bf16")):
        given = f"plan.precision.main_parameters={parameters}"
        precision = load(None, [*keys, given])[1].plan.precision
        assert precision.moments == moments
        assert parameters == "fp32" or precision.gradients == "bf16"


def test_experts_with_tensor_parallelism_split_sequences() -> None:
    keys = ["framework.name=megatron-core", "plan.tp=2"]
    assert not load(None, [*keys, "model.preset=llama-3-8b"])[1].plan.sp
    assert load(None, [*keys, "model.preset=mixtral-8x7b", "plan.ep=4"])[1].plan.sp


@pytest.mark.parametrize(
    ("gpus", "tp", "group"), [(72, 2, None), (144, 2, None), (256, 2, 32), (256, 1, 64)]
)
def test_domains_of_shards_are_of_their_recipes_size(gpus: int, tp: int, group: int | None) -> None:
    """Recipes of Nemotron 3 Ultra in domains of 64 GPUs are for 256 alone."""
    keys = ["framework.name=megatron-bridge", "framework.recipe=performance", "plan.ep=8"]
    keys += ["model.preset=nemotron-3-ultra", "cluster.preset=gb200-nvl72", f"plan.tp={tp}"]
    cluster = [f"cluster.nodes={-(-gpus // 72)}", f"cluster.gpus={gpus}"]
    found = load(None, [*keys, *cluster, "plan.global_batch=2304", "run.allow_oom=true"])[1]
    assert found.plan.zero_group == group
    assert prepare(found) is not None


def test_flags_of_xla() -> None:
    """Loops unrolled by two copy nothing they gather; all-reduces are combined up to a size."""
    for name, double_buffered in (("maxtext", True), ("paxml", False)):
        framework = load(None, [f"framework.name={name}", "plan.recompute=full"])[1].plan.framework
        assert framework.flat_shards is double_buffered
        assert framework.stacked_layers
    framework = load(None, ["framework.name=t5x", "plan.zero=0"])[1].plan.framework
    assert framework.bucket == 136_314_880  # --xla_gpu_all_reduce_combine_threshold_bytes
    assert not framework.stacked_layers


@pytest.mark.parametrize(("zero", "style"), [(0, "ddp"), (1, "megatron")])
def test_llm_c_reduces_gradients_in_bf16(zero: int, style: str) -> None:
    keys = ["framework.name=llm.c", "model.preset=gpt2", "plan.precision=bf16", f"plan.zero={zero}"]
    experiment = load(None, keys)[1]
    plan, model = experiment.plan, experiment.model
    assert (plan.framework.dp_style, plan.precision.gradients) == (style, "bf16")
    assert plan.framework.fused_loss
    assert plan.framework.loss_gradient == "forward"
    assert plan.framework.residual_norms
    assert plan.framework.packed_attention
    assert isinstance(model, Transformer)
    assert not model.dropout
