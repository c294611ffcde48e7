"""Models that are not described in full: what is guessed of them, and what that is worth."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mpisim.base.errors import InputError
from mpisim.base.toml import toml_value
from mpisim.experiment import FAMILIES, Transformer, read
from mpisim.experiment.likely_models import complete, like_named, parameters_of, size_in_name
from mpisim.experiment.model_counts import parameters
from mpisim.experiment.model_presets import model_presets
from mpisim.experiment.model_table import model_of
from mpisim.simulate import simulate

NAMED = {
    name: dict(preset.table)
    for name, preset in model_presets().items()
    if preset.table["family"] in ("gpt", "llama", "moe")
    and not {"pattern", "memory"} & preset.table.keys()
}

EXPERIMENT = """
[model]
{model}
[plan]
global_batch = 8
micro_batch = 1
[cluster]
preset = "dgx-h100"
[run]
allow_oom = true
"""


def count(keys: dict[str, Any]) -> int:
    """Keys → parameters."""
    return parameters(Transformer(**{**FAMILIES[keys["family"]][1], **keys}))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("Foo-7B", 7e9),
        ("foo_350m", 350e6),
        ("Foo-1.5T", 1.5e12),
        ("Mixtral-like-8x7B", 56e9),
        ("Foo-30B-A3B", 30e9),
        ("GPT3-6.7b", 6.7e9),
        ("Wide&Deep", None),
        ("SSD300 R50", None),
        ("bert-large", None),
        ("x12b3", None),
    ],
)
def test_sizes_in_names(text: str, size: float | None) -> None:
    assert size_in_name(text) == size


@pytest.mark.parametrize("value", ["7B", "7e9", 7e9, 7_000_000_000, "7 b", "7000M"])
def test_numbers_of_parameters(value: object) -> None:
    assert parameters_of(value) == 7e9


@pytest.mark.parametrize("value", ["seven", "", -7e9, 0, True, "7", "7e99", None, [7e9]])
def test_what_is_no_number_of_parameters(value: object) -> None:
    with pytest.raises(InputError, match="it must be a number of parameters"):
        parameters_of(value)


@pytest.mark.parametrize("name", NAMED)
def test_a_published_model_is_found_again_by_its_shape_and_size(name: str) -> None:
    """Layers, hidden size, heads and the number of parameters: what it computes is within 6 %."""
    keys = NAMED[name]
    stated = {key: keys[key] for key in ("layers", "hidden", "heads")}
    if keys.get("experts"):
        stated |= {key: keys[key] for key in ("experts", "topk")}
    found, guess = complete(stated, count(keys))
    assert count(found) == pytest.approx(count(keys), rel=0.03)
    assert guess.notes
    assert 0 < guess.error < 1
    assert {key: found[key] for key in stated} == stated


def test_without_the_model_itself_the_guess_is_near() -> None:
    """Leave each published shape out (another width): parameters are met, and what is said kept."""
    for keys in NAMED.values():
        if keys.get("experts"):
            continue
        wider = {"layers": keys["layers"], "hidden": keys["hidden"] // 128 * 128 + 256}
        found, guess = complete(wider, None)
        assert found["hidden"] == wider["hidden"]
        assert found["hidden"] % found["heads"] == 0
        assert math.isfinite(guess.error)


@given(
    layers=st.integers(1, 200),
    heads=st.sampled_from([1, 4, 12, 32, 40, 64, 128]),
    size=st.sampled_from([32, 64, 80, 128, 256]),
    family=st.sampled_from([None, "gpt", "llama", "moe", "bert"]),
)
def test_any_shape_becomes_a_model(layers: int, heads: int, size: int, family: str | None) -> None:
    stated = {"layers": layers, "hidden": heads * size, "heads": heads}
    if family is not None:
        stated["family"] = family  # type: ignore[assignment]
    found, guess = complete(stated, None)
    assert {key: found[key] for key in stated} == stated
    assert count(found) > 0
    assert guess.error > 0


@given(st.floats(2e8, 2e12))
def test_any_number_of_parameters_becomes_a_model(size: float) -> None:
    found, guess = complete({}, size)
    off = abs(math.log(count(found) / size))
    assert off < 0.16
    assume(size < 1e12)  # beyond there is nothing published to compare with
    assert guess.error < 0.31


def test_names_with_a_size() -> None:
    assert like_named("Llama-Foo-70B", {})[1].like.startswith("llama")  # type: ignore[index]
    assert like_named("Foo-30B-A3B", {})[1].like == "qwen3-30b-a3b"  # type: ignore[index]
    assert like_named("Mixtral-like-8x7B", {})[1].like == "mixtral-8x7b"  # type: ignore[index]
    assert like_named("DeepSeek V3 671B", {})[1].like == "deepseek-v3"  # type: ignore[index]
    assert like_named("Qwen3 MoE 30B", {})[1].like == "qwen3-30b-a3b"  # type: ignore[index]
    assert like_named("Qwen3 32B chat", {})[1].like == "qwen3-32b"  # type: ignore[index]
    assert like_named("Foo", {}) is None
    shape = {"layers": 30, "hidden": 4096, "heads": 32}
    found, guess = like_named("Foo-7B", shape)  # type: ignore[misc]
    assert {key: found[key] for key in shape} == shape
    assert guess.notes[0].startswith("'Foo-7B': ")


@pytest.mark.parametrize("name", ["OLMo-7B", "CodeLlama-7B", "Gemma 3 27B"])
def test_other_versions_and_sizes_are_no_slips(name: str) -> None:
    """Published with mpisim are olmo-2-7b, codellama-34b and gemma-2-27b."""
    assert like_named(name, {}) is not None


@pytest.mark.parametrize("slip", ["lama-3-8b", "gpt3-174b", "mistal-7b"])
def test_slips_are_no_models(slip: str) -> None:
    assert like_named(slip, {}) is None


@pytest.mark.parametrize(
    "model",
    [
        'family = "gpt"\nlayers = 4\nhidden = 512\nheads = 8',
        "layers = 4\nhidden = 512\nheads = 8",
        'parameters = "350M"',
        'preset = "Foo-350M"',
    ],
)
def test_what_was_guessed_is_an_assumption_and_widens_the_error_bar(model: str) -> None:
    experiment = read(EXPERIMENT.format(model=model), "e.toml")
    assert experiment.guess is not None
    full = "\n".join(
        f"{key} = {toml_value(value)}"
        for key, value in vars(experiment.model).items()
        if value is not None
    )
    known = read(EXPERIMENT.format(model=full), "e.toml")
    assert known.guess is None
    assert known.model == experiment.model
    guessed, exact = simulate(experiment).attributes, simulate(known).attributes
    assert guessed["model_flops"] == exact["model_flops"]
    assert set(experiment.guess.notes) <= set(guessed["assumptions"])
    error = math.hypot(exact["uncertainty"], experiment.guess.error)
    assert guessed["uncertainty"] == pytest.approx(error)
    assert any("what is not said of the model" in line for line in guessed["uncertainty_sources"])


@pytest.mark.parametrize("key", ["layers", "hidden", "heads"])
@pytest.mark.parametrize("value", [0, -1, "many", 1e3])
@pytest.mark.parametrize("named", [{}, {"parameters": "13B"}, {"preset": "Foo-7B"}])
def test_sizes_that_no_model_has_are_named(
    key: str, value: object, named: dict[str, object]
) -> None:
    keys = {"layers": 40, "hidden": 5120, "heads": 40, **named, key: value}
    with pytest.raises(InputError, match=rf"^x\.toml: key 'model\.{key}' is {value!r}; it must be"):
        model_of(keys, "x.toml")


@pytest.mark.parametrize("name", ["Foo-0B", "Foo-8x0B", "Foo-9999999T"])
def test_names_with_a_size_that_no_model_has_are_unknown(name: str) -> None:
    assert size_in_name(name) is None
    with pytest.raises(InputError, match=f"key 'model.preset': unknown model '{name}'"):
        model_of({"preset": name}, "x.toml")


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [("kv_heads", 7, "not a multiple of kv_heads = 7"), ("pattern", "MX", "'X' is none of its")],
)
def test_what_does_not_go_together_is_said(key: str, value: object, why: str) -> None:
    keys = {"layers": 40, "hidden": 5120, "heads": 40, key: value}
    with pytest.raises(InputError, match=f"fitted to these sizes: .*{why}"):
        model_of(keys, "x.toml")


def test_packed_examples_may_be_longer_than_the_sequences_of_the_comparison() -> None:
    keys = {"layers": 40, "hidden": 5120, "heads": 40, "seq_len": 16384, "example_length": 8192}
    assert model_of(keys, "x.toml").example_length == 8192  # type: ignore[union-attr]
