"""Model presets: each is a model, published sizes come out, measurements' names are found."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpisim.base.errors import InputError
from mpisim.base.schema import build, parse
from mpisim.data import text
from mpisim.experiment import FAMILIES, Model, Transformer
from mpisim.experiment.model_counts import parameters
from mpisim.experiment.model_presets import find_model, model_presets

PRESETS = model_presets()


def built(name: str) -> Model:
    table = find_model(name)
    cls, common = FAMILIES[table["family"]]
    model: Model = build(cls, {**common, **table}, "preset", name)
    return model


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_model_with_title_and_source(name: str) -> None:
    preset = PRESETS[name]
    assert preset.title
    assert preset.source
    assert re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", name)
    assert built(name).family == preset.table["family"]


def test_names_and_aliases_are_of_one_model_each() -> None:
    known = [name.casefold() for name in PRESETS]
    known += [alias.casefold() for preset in PRESETS.values() for alias in preset.aliases]
    assert sorted(set(known)) == sorted(known)


def test_a_name_stands_in_one_file() -> None:
    from mpisim.data import names

    tables = [name for file in names("models") for name in parse(text(f"models/{file}.toml"), file)]
    assert tables == list(PRESETS)


def test_the_readme_counts_them() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    assert f"which model ({len(model_presets())} transformers, " in readme


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        find_model("llama-3-8")
    assert str(caught.value) == (
        "unknown model 'llama-3-8' (did you mean 'llama-3-8b'?); 'mpisim list models' shows them"
    )


def test_a_model_found_may_be_changed() -> None:
    find_model("gpt2")["layers"] = 1
    assert find_model("gpt2")["layers"] == 12


# Numbers of parameters of the published checkpoints (safetensors index, model card), of torchvision
# for vit-*, of papers where two or three digits are given.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "tinyllama-1.1b": 1_100_048_384,
    "codellama-34b": 33_743_970_304,
    "yi-34b": 34_388_917_248,
    "internlm-7b": 7.32e9,
    "olmo-2-7b": 7.3e9,
    "olmo-2-13b": 13.7e9,
    "olmo-2-32b": 32.2e9,
    "smollm2-1.7b": 1_711_376_384,
    "smollm3-3b": 3_075_098_624,
    "qwen-1.8b": 1_836_828_672,
    "qwen-7b": 7_721_324_544,
    "qwen-14b": 14_167_290_880,
    "qwen-72b": 72.3e9,
    "pythia-1b": 1_011_781_632,
    "pythia-2.8b": 2_775_208_960,
    "gpt-j-6b": 6_050_882_784,
    "gpt3-175b": 174.6e9,
    "gpt3-22b": 22e9,
    "gpt3-530b": 529.6e9,
    "gpt3-1t": 1008e9,
    "megatron-1.7b": 1.7e9,
    "megatron-3.6b": 3.6e9,
    "megatron-7.5b": 7.5e9,
    "megatron-18.4b": 18.4e9,
    "megatron-39.1b": 39.1e9,
    "megatron-76.1b": 76.1e9,
    "megatron-145.6b": 145.6e9,
    "megatron-310.1b": 310.1e9,
    "opt-1.3b": 1_315_758_080,
    "bloom-176b": 176_247_271_424,
    "bloom-7b1": 7_069_016_064,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-6.9b": 6_857_302_016,
    "falcon-7b": 6_921_720_704,
    "nemotron-4-15b": 15.6e9,
    "nemotron-4-340b": 341e9,
    "mpt-7b": 6.6557e9,
    "mpt-30b": 29.9752e9,
    "llama-7b": 6_738_415_616,
    "llama-65b": 65_285_660_672,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "qwen2-7b": 7_615_616_512,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "phi-3-mini": 3_821_079_552,
    "phi-3-medium": 13_960_238_080,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "grok-1": 314e9,
    "dbrx": 131_596_523_520,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-57b-a14b": 57_409_130_496,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-moe-16b": 16_375_728_128,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,
    "kimi-k2": 1.026e12,
    "gpt-oss-20b": 20.9e9,
    "gpt-oss-120b": 116.8e9,
    "llama-4-scout": 107.8e9,
    "llama-4-maverick": 400.7e9,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "megatron-bert-1.3b": 1.3e9,
    "megatron-bert-3.9b": 3.9e9,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "t5-v1.1-base": 247_577_856,
    "t5-v1.1-xl": 2_849_757_184,
    "t5-v1.1-xxl": 11_135_332_352,
    "transformer-big": 210e6,
    "vit-b-16": 86_567_656,
    "vit-b-32": 88_224_232,
    "vit-l-16": 304_326_632,
    "vit-h-14": 632_045_800,
    "vit-22b": 21.7e9,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    model, published = built(name), PUBLISHED[name]
    assert isinstance(model, Transformer)
    rounded = isinstance(published, float)  # to two to four digits
    counted = parameters(replace(model, mtp_layers=0))  # cards count no second prediction
    if model.family == "bert":  # nor the heads of BERT: a matrix, norm and biases, two classes
        counted -= model.hidden * (model.hidden + 5) + model.vocab + 2
    assert counted == pytest.approx(published, rel=0.03 if rounded else 0.0015)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("ViT-B/16", "vit-b-16"),
        ("ViT-g/14", "vit-g-14"),
        ("ViT-G/14", "vit-big-g-14"),
        ("GPT-2 XL", "gpt2-xl"),
        ("GPT-2 124M", "gpt2"),
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2-7b"),
        ("bert-large-uncased", "bert-large"),
        ("Mistral-7B-v0.1", "mistral-7b"),
        ("T5-v1.1-base", "t5-v1.1-base"),
    ],
)
def test_names_as_they_are_written_elsewhere(written: str, name: str) -> None:
    assert find_model(written) == find_model(name)


def test_a_hyphen_between_digits_tells_names_apart() -> None:
    with pytest.raises(InputError, match="unknown model 'Llama-27B'"):
        find_model("Llama-27B")


NO_PRESET = re.compile(
    r"GPT$|GPT \(BLOOM sizing\)$|GPT3-XL \(24x3072\)$"  # sizes stand in their own columns
    # layers of other kinds: state spaces, adaptive softmax, convolutions
    r"|ResNe|VGG|DeepSeek-V4|Nemotron-H|Nemotron_3|Transformer-XL|Jasper|Mask R-CNN|SSD"
    r"|Stable Diffusion|Wide&Deep|NCCL|DLRM|Qwen3 MoE \(section"
)
VARIANT = re.compile(r"(-proxy\d+L| LoRA| SFT| \(r=16\)| \(LM head\)| \(packed\)|-v1\.5)")


def test_models_of_measurements_are_found(shared: Path) -> None:
    columns = {
        "layers": "layers",
        "hidden": "hidden",
        "heads": "heads",
        "kv_heads": "kv",
        "ffn_hidden": "ffn",
        "vocab": "vocab",
        "num_experts": "experts",
        "topk": "topk",
        "moe_ffn": "expert_ffn",
    }
    with open(shared / "groundtruth/e2e/all.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = 0
    for row in rows:
        if NO_PRESET.match(row["model"]):
            continue
        model: Any = built(VARIANT.sub("", row["model"]).strip())
        found += 1
        if not isinstance(model, Transformer):
            continue
        for column, attribute in columns.items():
            if not row[column] or (column == "layers" and "proxy" in row["model"]):
                continue
            ours, theirs = getattr(model, attribute), int(row[column])
            if column == "vocab" and ours != theirs:
                # Megatron pads the vocabulary; a recipe for Grok takes Llama's tokens.
                assert theirs in (51200, 128256), row["id"]
            else:
                assert ours == theirs, (row["id"], column)
    assert found > 700
