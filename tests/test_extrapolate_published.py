"""Published steps at several scales beside extrapolations of the smallest."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import extrapolate_published as published

from mpisim.validate.e2e import Row, read


def rows_of(shared: Path, source: str, model: str, framework: str) -> list[Row]:
    return [
        row
        for row in read(shared / "groundtruth" / "e2e" / "all.csv")
        if source in row.texts["source"]
        and model in row.texts["model"]
        and row.texts["framework"].startswith(framework)
    ]


@pytest.mark.parametrize(
    ("source", "framework", "count", "most"),
    [
        ("DLPerf reports", "NGC PyTorch", 5, 0.03),
        ("DeepLearningExamples PyTorch/Classification", "PyTorch DDP", 3, 0.06),
    ],
)
def test_factors_of_resnet_on_v100(
    shared: Path,
    source: str,
    framework: str,
    count: int,
    most: float,
) -> None:
    """From 1 to up to 32 GPUs, by the step of one: docs/extrapolate.md has all models."""
    found = list(published.points(rows_of(shared, source, "ResNet50", framework)))
    assert all(not isinstance(each, str) for each in found), found
    assert len(found) == count
    assert sum(abs(each.error) for each in found) / count < most


def test_series_differ_in_replicas_alone(shared: Path) -> None:
    rows = rows_of(shared, "DLPerf reports", "BERT", "NGC PyTorch")
    for each in published.series(rows):
        gpus = [row.integers["num_gpus"] for row in each]
        assert gpus == sorted(set(gpus))
        shares = {row.integers["global_batch"] / row.integers["num_gpus"] for row in each}
        assert len(shares) == 1


def test_a_part_of_a_vocabulary_does_not_tell_samples(shared: Path) -> None:
    """Adaptive embeddings: the first lookup is of the tokens in the first cluster of words."""
    rows = rows_of(shared, "DeepLearningExamples", "Transformer-XL-large", "PyTorch DDP")
    of_one_node = [row for row in rows if row.texts["gpu"] == "A100-SXM-40GB"]
    found = [each for each in published.points(of_one_node) if not isinstance(each, str)]
    assert len(found) == 5
    assert sum(abs(each.error) for each in found) / len(found) < 0.04
    assert max(abs(each.error) for each in found) < 0.04
