"""Rows of measured training steps: as experiments, and what of them is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from measured_steps import BRIDGE, RESNET, TITAN, VTRAIN, mapped, read_row, table, why

from mpisim.base.errors import InputError
from mpisim.experiment import Transformer
from mpisim.experiment import read as read_experiment
from mpisim.validate.e2e import Mapped, experiment_of, read
from mpisim.validate.e2e import settings as declared
from mpisim.validate.e2e.experiments import shown
from mpisim.validate.e2e.rows import COLUMNS


@pytest.fixture
def row(tmp_path: Path) -> Any:
    return partial(read_row, tmp_path / "t.csv")


# --- rows as experiments ------------------------------------------------------------------------


def test_what_a_row_states_counts(row: Any) -> None:
    found = mapped(row(VTRAIN))
    model, plan, cluster = found.experiment.model, found.experiment.plan, found.experiment.cluster
    assert isinstance(model, Transformer)
    assert (model.layers, model.hidden, model.heads, model.seq_len) == (4, 1024, 16, 1024)
    assert (plan.tp, plan.pp, plan.dp, plan.micro_batch, plan.global_batch) == (2, 2, 2, 2, 16)
    assert (plan.sp, plan.overlap.dp, plan.recompute.granularity) == (False, False, "full")
    assert (cluster.preset, cluster.nodes, cluster.gpus) == ("a100-800g", 1, None)
    assert found.experiment.run.allow_oom


def test_what_it_leaves_open_is_filled_in_and_counted(row: Any) -> None:
    found = mapped(row(VTRAIN))
    model, plan = found.experiment.model, found.experiment.plan
    assert isinstance(model, Transformer)
    assert (model.vocab, plan.framework.kernels, plan.precision.gradients) == (
        51200,
        "eager",
        "fp16",
    )
    assert "model.vocab = 51200" in found.defaults
    assert 'framework.kernels = "eager" (profile)' in found.defaults
    assert not any("plan.recompute" in each for each in found.defaults)  # the row states it


def test_a_mixture_in_a_rack(row: Any) -> None:
    # What a source says of stages counts (dgxc-benchmarking's pretrain_deepseek_v3.py).
    dgxc = {"id": "dgxc-v25.05.05-dsv3", "source": "NVIDIA/dgxc-benchmarking", "vpp": 1}
    stages = mapped(row(BRIDGE, **dgxc, framework="NeMo")).experiment.plan.pipeline.stages
    assert stages == (15, 16, 16, 14)
    found = mapped(row(BRIDGE))
    plan = found.experiment.plan
    # 61 layers on 4 × 4 chunks: four on each, one on the last, as Megatron-Bridge lays it out.
    assert plan.pipeline.stages == (4,) * 15 + (1,)
    assert (plan.pipeline.schedule, plan.vpp, plan.ep, plan.etp) == ("interleaved", 4, 64, 1)
    assert (plan.precision.products, found.approximations) == (
        "fp8",
        ("mxfp8 is fp8 with scales of blocks",),
    )
    assert (plan.zero, plan.framework.dp_style) == (1, "megatron")  # FSDP = 0 is no word on ZeRO-1
    assert "plan.zero = 1 (profile)" in found.defaults
    # 256 GPUs in four racks of 64.
    assert found.experiment.cluster.nodes == 4
    assert "gb200-nvl72" in found.experiment.cluster.preset


def test_embedding_and_loss_take_the_place_of_layers(row: Any) -> None:
    # 126 + 2 = 128 = 8 × 8 × 2.
    changes = {
        "model": "Llama-3.1-405B",
        "layers": 126,
        "pp": 8,
        "vpp": 8,
        "num_experts": "",
        "topk": "",
        "moe_ffn": "",
        "hidden": 16384,
        "heads": 128,
        "kv_heads": 8,
        "ffn_hidden": 53248,
        "ep": 1,
        "tp": 4,
        "dp": 8,
        "global_batch": 64,
    }
    plan = mapped(row(BRIDGE, **changes)).experiment.plan
    assert plan.pipeline.account_for_embedding
    assert plan.pipeline.account_for_loss
    assert plan.overlap.tp  # NeMo's recipes
    assert plan.sequence_parallel


def test_selective_recomputation_of_torchtitan(row: Any) -> None:
    plan = mapped(row(TITAN)).experiment.plan
    assert (plan.recompute.granularity, plan.recompute.layers, plan.recompute.stops) == (
        "full",
        None,
        True,
    )
    assert plan.recompute.keeps == ("query", "value", "attention", "feed-forward gate")
    layers = mapped(row(TITAN, activation_recompute_as_printed="selective layer"))
    plan = layers.experiment.plan
    assert (plan.recompute.keeps, plan.recompute.layers) == ((), 16)  # every second of 32
    assert (plan.framework.fused, plan.framework.dp_style, plan.zero) == (False, "fsdp", 3)
    compiled = mapped(row(TITAN, notes="torch.compile; TPS read at one iteration"))
    assert compiled.experiment.plan.framework.fused
    assert compiled.experiment.cluster.preset == "hgx-h100-500w"


def test_columns_named_like_keys_of_experiments(row: Any) -> None:
    found = mapped(
        row(VTRAIN, **{"framework.fused": "false", "model.lora_rank": 8, "cluster.preset": "p4d"})
    )
    assert isinstance(found.experiment.model, Transformer)
    assert found.experiment.model.lora_rank == 8
    assert found.experiment.plan.framework.fused is False
    assert found.experiment.cluster.preset == "p4d"
    assert "lora_rnk" in why(row(VTRAIN, **{"model.lora_rnk": 8}))
    with pytest.raises(InputError, match=r"'modle.lora_rank'.*did you mean 'model'"):
        row(VTRAIN, **{"modle.lora_rank": 8})


def test_adapters_without_a_rank_are_refused(row: Any) -> None:
    llama = {"model": "Llama 2 7B LoRA", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32}
    llama |= {"ffn_hidden": 11008, "vocab": 32000}
    assert "model.lora_rank" in why(row(VTRAIN, **llama))
    ranked = mapped(row(VTRAIN, **llama, **{"model.lora_rank": 16})).experiment.model
    assert isinstance(ranked, Transformer)
    assert (ranked.lora_rank, ranked.family) == (16, "llama")
    four_bits = {**llama, "model": "Llama 2 7B QLoRA"}
    assert "model.lora_rank" in why(row(VTRAIN, **four_bits))
    four_bits |= {"model.lora_rank": 16, "precision": "bf16"}
    assert mapped(row(VTRAIN, **four_bits)).experiment.plan.precision.frozen == "nf4"


def test_deepspeed_below_another_model_is_not_megatron_deepspeed(row: Any) -> None:
    named = "DeepSpeed 0.14 (transformers)"
    found = mapped(row(VTRAIN, source="a blog", framework=named, tp=1, dp=4))
    assert found.experiment.profile is not None
    assert found.experiment.profile.name == "deepspeed"


def test_layers_from_the_number_of_parameters(row: Any) -> None:
    # (181e9 - 250,880 × 14,336) / (12 × 14,336²) = 71.9: on 12 stages 72.
    base = {
        "source": "bigscience-workshop/bigscience",
        "layers": "",
        "hidden": 14336,
        "heads": 64,
        "kv_heads": 64,
        "ffn_hidden": 57344,
        "seq_len": 2048,
        "params_b": 181,
        "tp": 8,
        "pp": 12,
        "dp": 4,
        "num_gpus": 384,
        "global_batch": 2048,
        "zero_stage": 1,
        "node_network_gbps": 400,
    }
    found = mapped(row(VTRAIN, **base))
    assert isinstance(found.experiment.model, Transformer)
    assert found.experiment.model.layers == 72
    assert "model.layers from the number of parameters" in found.defaults
    assert found.experiment.cluster.preset == "jean-zay-a100"
    assert found.experiment.plan.framework.dp_style == "deepspeed"
    # 78 layers on 12 stages: seven each, one on the last.
    uneven = mapped(row(VTRAIN, **{**base, "layers": 78}))
    assert uneven.experiment.plan.pipeline.stages == (7,) * 11 + (1,)


def test_a_shape_says_more_than_a_size(row: Any) -> None:
    """A row of a "GPT 0.6B" with its shape is a GPT, not Qwen3-0.6B, whose size is the same."""
    found = mapped(row(VTRAIN, model="GPT 0.6B")).experiment.model
    assert isinstance(found, Transformer)
    assert found.family == "gpt"


def test_parameters_stay_gathered_with_a_pipeline(row: Any) -> None:
    found = mapped(row(VTRAIN, framework="PyTorch FSDP2", pp=2, tp=1, dp=4, zero_stage=3))
    assert found.experiment.plan.zero == 2
    assert found.experiment.framework.name == "fsdp"
    assert any(line.startswith("plan.zero = 2 (instead)") for line in found.defaults)


def test_latents_of_another_size(row: Any) -> None:
    small = row(RESNET, model="Stable Diffusion v2", **{"model.image": 32})
    found = mapped(small).experiment.model
    assert getattr(found, "image", None) == 32


def test_convolutions(row: Any) -> None:
    found = mapped(row(RESNET))
    assert not found.is_transformer
    assert (found.experiment.plan.framework.dp_style, found.experiment.plan.optimizer) == (
        "ddp",
        "momentum",
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"step_time_ms": ""}, "no measured step time"),
        ({"model": "Jasper 10x5", "heads": ""}, "no such model: Jasper 10x5"),
        ({"micro_batch": ""}, "micro_batch is not stated"),
        ({"micro_batch": 0.5}, "micro_batch is not whole"),
        ({"precision": ""}, "precision is not stated"),
    ],
)
def test_reasons(row: Any, changes: dict[str, Any], reason: str) -> None:
    assert why(row(VTRAIN, **changes)) == reason


@pytest.mark.parametrize(("name", "params"), [("Foo-70M", ""), ("Foo", 0.064), ("Foo", 0.2)])
def test_a_model_of_an_unknown_name(row: Any, name: str, params: float) -> None:
    """Its printed shape counts; the rest is a published model's, and said."""
    found = mapped(row(VTRAIN, model=name, params_b=params))
    model = found.experiment.model
    assert (model.layers, model.hidden, model.heads, model.kv, model.ffn) == (4, 1024, 16, 16, 4096)
    assert any("nearest published model" in note for note in found.approximations)
    assert found.experiment.guess.error > 0


def test_the_whole_table_is_understood(shared: Path) -> None:
    file = shared / "groundtruth" / "e2e" / "all.csv"
    if not file.exists():
        pytest.skip("no table of measurements")
    rows = read(file)
    known = declared()
    assert not [row.id for row in rows if known.source(row) == "other"]
    found = [experiment_of(row, known) for row in rows]
    timed = [each for each in found if each.row.seconds is not None]
    mapped = [each for each in timed if isinstance(each, Mapped)]
    assert len(mapped) >= 0.85 * len(timed)


def test_a_row_is_shown_as_the_file_a_user_would_write(row: Any, tmp_path: Path) -> None:
    line = row(TITAN)
    found = mapped(line)
    text = shown(found)
    assert text.startswith(f"# {line.id}: ")
    again = read_experiment(text, str(tmp_path / "row.toml"))
    assert again.framework.name == "torchtitan"
    assert replace(again, source="") == replace(found.experiment, source="")


@pytest.mark.parametrize(
    ("text", "version", "name", "release"),
    [
        ("NeMo/Megatron-Core", "NeMo 25.02", "nemo", "25.02"),
        ("PyTorch FSDP", "", "fsdp", ""),
        ("somebody's trainer", "", None, ""),
    ],
)
def test_a_row_that_names_a_framework_gets_its_profile(
    row: Any, text: str, version: str, name: str | None, release: str
) -> None:
    made = mapped(
        row(
            {**TITAN, "source": "a table", "source_version": version, "zero_stage": ""},
            framework=text,
        )
    )
    assert made.experiment.framework.name == name
    assert (made.experiment.framework.version or "") == release


def test_without_profiles_nobody_says_which_framework_it_is(row: Any) -> None:
    found = experiment_of(row(TITAN), declared(), profiles=False)
    assert isinstance(found, Mapped)
    assert found.experiment.framework.name is None
    assert found.experiment.profile is None
    assert found.experiment.plan.style(transformer=True) == "fsdp"  # as zero = 3 says


# --- bad tables ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": "many"}, r"t\.csv:2: column 'layers' is 'many'; it must be a number above 0"),
        ({"layers": 2.5}, r"column 'layers' is '2.5'; it must be whole"),
        ({"sp": "yes"}, r"column 'sp' is 'yes'; allowed: true, false"),
        ({"trust": "Z"}, r"column 'trust' is 'Z'; allowed: A, B, C, F"),
        ({"step_time_ms": "-1"}, r"column 'step_time_ms' is '-1'"),
        ({"num_gpus": ""}, r"column 'num_gpus' is blank"),
    ],
)
def test_bad_cells(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(table(tmp_path / "t.csv", {**VTRAIN, **changes}))


def test_bad_tables(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    with pytest.raises(InputError, match="cannot be read"):
        read(file)
    without = tuple(name for name in COLUMNS if name != "gpu")
    with pytest.raises(InputError, match="there is no column 'gpu'"):
        read(table(file, columns=without))
    misspelt = tuple("micro_batches" if name == "micro_batch" else name for name in COLUMNS)
    with pytest.raises(InputError, match=r"'micro_batch' \(did you mean 'micro_batches'\?\)"):
        read(table(file, columns=misspelt))
    file.write_text("id,model,gpu,num_gpus,trust,step_time_ms,framework\na,b,c,8,A,9,NeMo\n")
    (row,) = read(file)
    assert row.seconds == 9e-3
    assert row.texts["source"] == ""
    assert "tp" not in row.integers
    with pytest.raises(InputError, match="no rows"):
        read(table(file))
    with pytest.raises(InputError, match=r"t\.csv:3: id 'vtrain' is also at .*:2"):
        read(table(file, VTRAIN, VTRAIN))
    file.write_text(file.read_text() + "one,two\n")
    with pytest.raises(InputError, match=r"has 2 cells; there are \d+ headings"):
        read(file)
