"""``mpisim list``: every listing, filters, and what is not there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from mpisim.cli import main
from mpisim.cli.list import LISTINGS, _billions
from mpisim.data import names

Run = Callable[..., Any]


def lines(text: str) -> dict[str, str]:
    """The lines of a listing by the name they begin with."""
    table = text.partition("\n\n")[0].splitlines()[1:]
    return {line.split()[0]: line for line in table}


@pytest.mark.parametrize("what", LISTINGS)
def test_every_listing_is_printed(call_mpisim: Run, what: str) -> None:
    done = call_mpisim(["list", what])
    assert (done.rc, done.stderr) == (0, "")
    assert len(lines(done.stdout)) == len(LISTINGS[what].make().rows)


def test_what_there_is_to_list(call_mpisim: Run) -> None:
    done = call_mpisim(["list"])
    assert (done.rc, done.stderr, list(lines(done.stdout))) == (0, "", list(LISTINGS))


@pytest.mark.parametrize("what", [what for what in LISTINGS if what != "experiments"])
def test_the_key_that_takes_a_name(capsys: pytest.CaptureFixture[str], what: str) -> None:
    """The key that a listing names is one that experiments have, and takes such names alone."""
    key = re.match(r"\[(\w+)\] (\w+)", LISTINGS[what].key)
    assert key is not None
    named = f"[{key[1]}] {key[2]}"
    note = LISTINGS[what].make().note
    assert named in note, f"the note of {what} must show how {named} is written; it is {note!r}"
    assert main(["job", "llama3-405b-16384-h100", "--set", f"{key[1]}.{key[2]}=nothing"]) == 2
    refusal = capsys.readouterr().err
    assert "'nothing'" in refusal
    assert "unknown key" not in refusal


def test_models_by_word(call_mpisim: Run) -> None:
    done = call_mpisim(["list", "models", "llama", "8b"])
    assert lines(done.stdout) == {
        "llama-3-8b": "llama-3-8b  dense      8.03 B      32 × 4,096  8,192 tokens  Llama 3 8B"
    }


def test_models_of_other_kinds(call_mpisim: Run) -> None:
    listed = lines(call_mpisim(["list", "models", "resnet-50"]).stdout)
    # torchvision: 25,557,032 parameters.
    assert " ".join(listed["resnet-50"].split()[1:]) == "cnn 25.6 M depth 50 224 × 224 ResNet-50"
    listed = lines(call_mpisim(["list", "models", "dlrm-default"]).stdout)
    # 8 tables of a million rows of 64, and 2.5 million in the layers.
    assert listed["dlrm-default"].split()[1:4] == ["dlrm", "514", "M"]


def test_models_of_a_kind(call_mpisim: Run) -> None:
    """Whatever they are called: Mixtral has experts, and nothing but such a model is listed."""
    listed = lines(call_mpisim(["list", "models", "moe"]).stdout)
    assert {"mixtral-8x7b", "deepseek-v3", "qwen1.5-moe-a2.7b"} <= listed.keys()
    assert {line.split()[1] for line in listed.values()} == {"moe"}


def test_hybrids_are_found_with_and_without_experts(call_mpisim: Run) -> None:
    listed = lines(call_mpisim(["list", "models", "hybrid"]).stdout)
    kinds = {name: listed[name].split()[1] for name in ("nemotron-h-8b", "qwen3-next-80b-a3b")}
    assert kinds == {"nemotron-h-8b": "hybrid", "qwen3-next-80b-a3b": "moe"}
    assert "llama-3-8b" not in listed


def test_other_names_are_found(call_mpisim: Run) -> None:
    assert list(lines(call_mpisim(["list", "models", "mt-nlg"]).stdout)) == ["gpt3-530b"]


def test_under_a_launcher_one_process_prints(run_mpisim: Run) -> None:
    assert run_mpisim(["list", "schedules"], 2).stdout.count("zb-h1") == 1


def test_the_experiments_are_the_files(call_mpisim: Run) -> None:
    assert sorted(lines(call_mpisim(["list", "experiments"]).stdout)) == names("experiments")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["models", "lama", "19b"], "models has 'lama' and '19b' in its name or title"),
        (["modls"], "'modls' is not one of models, clusters, gpus, frameworks, schedules, "),
    ],
)
def test_nothing_found_is_one_line(call_mpisim: Run, args: list[str], message: str) -> None:
    done = call_mpisim(["list", *args])
    assert done.rc == 2
    assert len(done.errors) == 1
    assert message in done.errors[0]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (8_030_261_248, "8.03 B"),
        (405_853_388_800, "406 B"),
        (1_008e9, "1.01 T"),
        (999.7e9, "1 T"),
        (124_439_808, "124 M"),
        (512, "512 "),
    ],
)
def test_parameters_have_three_digits(number: int, text: str) -> None:
    assert _billions(number) == text
