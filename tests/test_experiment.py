"""Experiments: reading, defaults, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpisim.errors import InputError
from mpisim.experiment import Model, load, read

SMALL = """
title = "small"
[cluster]
preset = "dgx-h100"
[model]
layers = 2
hidden = 64
heads = 4
feed_forward = 256
vocabulary = 1000
sequence = 32
[plan]
tensor = 2
data = 2
micro_batch = 3
global_batch = 12
"""


def test_the_default_experiment_uses_eight_gpus() -> None:
    text, experiment = load()
    assert experiment.plan.gpus == 8
    assert experiment == read(text, "again")
    # 12 × 16 × 4096² of the layers' matrices, 51,200 × 4096 of the vocabulary: 3.43e9; and biases.
    assert experiment.model.parameters == pytest.approx(3.43e9, rel=0.01)


def test_a_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text(SMALL)
    text, experiment = load(path)
    assert text == SMALL
    assert experiment.cluster.nodes == 1
    assert experiment.plan.sequence_parallel
    assert experiment.plan.micro_batches == 2  # 12 / (2 × 3)
    assert experiment.tokens == 12 * 32


def test_parameters_of_published_models() -> None:
    # GPT-3's "6.7B" (arXiv:2005.14165, table 2.1) has 32 layers of width 4096.
    assert Model(32, 4096, 32, 16384, 50257, 2048).parameters == pytest.approx(6.7e9, rel=0.01)
    # GPT-2 (124 M): 12 layers of width 768, 50,257 words, 1,024 positions: 124,439,808.
    model = Model(12, 768, 12, 3072, 50257, 1024)
    assert model.parameters == 124_439_808


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hidden = 64", "hiden = 64", "unknown key 'hiden' in [model] (did you mean 'hidden'?)"),
        ("[plan]", "[plans]", "unknown key 'plans' at the top level (did you mean 'plan'?)"),
        ("tensor = 2", 'tensor = "2"', "key 'plan.tensor' is '2'; it must be an integer"),
        ("tensor = 2", "tensor = 0", "key 'plan.tensor' is 0; it must be an integer from 1 to"),
        ("heads = 4", "heads = 5", "[model] hidden is 64, which is not a multiple of heads = 5"),
        ("tensor = 2", "tensor = 3", "model.heads is 4, which is not a multiple of plan.tensor"),
        ("vocabulary = 1000", "vocabulary = 1001", "model.vocabulary is 1001, which is not a"),
        ("sequence = 32", "sequence = 33", "model.sequence is 33, which is not a multiple"),
        ("global_batch = 12", "global_batch = 13", "global_batch is 13, which is not a multiple"),
        ("layers = 2", "layers = 30000\n", None),
        ("layers = 2", "layers = 30001", "key 'model.layers' is 30001; it must be an integer from"),
        ("global_batch = 12", "global_batch = 1200000", "are too many to write down"),
        ("title", "title = ", "not valid TOML"),
    ],
)
def test_bad_experiments_name_file_and_key(
    tmp_path: Path, old: str, new: str, message: str | None
) -> None:
    path = tmp_path / "e.toml"
    path.write_text(SMALL.replace(old, new, 1))
    if message is None:
        load(path)
        return
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load(tmp_path / "missing.toml")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        load(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"title = '\xff'")
    with pytest.raises(InputError, match=r"not a text file in UTF-8 \(byte 9\)"):
        load(binary)
