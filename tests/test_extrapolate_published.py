"""Published steps at several scales beside extrapolations of the smallest."""

from __future__ import annotations

from collections.abc import Sequence
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


def points_of(rows: Sequence[Row]) -> list[published.Point]:
    """Return the factors of all series, none of which is left out."""
    found = []
    for each in published.series(rows):
        own = published.points(each, images=False, most=published.MOST_ROWS)
        assert not isinstance(own, str), own
        found += own
    return found


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
    found = points_of(rows_of(shared, source, "ResNet50", framework))
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
    found = points_of(of_one_node)
    assert len(found) == 5
    assert sum(abs(each.error) for each in found) / len(found) < 0.04
    assert max(abs(each.error) for each in found) < 0.04


@pytest.mark.parametrize("model", ["MPT-1b", "MPT-13b"])
def test_one_replica_of_a_job_stands_for_all(
    shared: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """Its files alone give the factors that files of all 16 ranks give."""
    rows = [
        row
        for row in rows_of(shared, "llm-foundry", model, "Composer")
        if row.integers["num_gpus"] <= 64
    ]
    alone = points_of(rows)
    monkeypatch.setattr(published, "first_replica", lambda base: range(base.program.n_ranks))
    together = points_of(rows)
    assert [each.gpus for each in alone] == [32, 64]
    for one, every in zip(alone, together, strict=True):
        assert one.extrapolated == pytest.approx(every.extrapolated, rel=1e-3)


def test_a_job_of_many_rows_is_not_recorded(shared: Path) -> None:
    rows = rows_of(shared, "llama3.1/README.md (tag v25.04.02)", "Llama-3.1-405B", "NeMo")
    found = [published.points(each, images=False, most=1000) for each in published.series(rows)]
    assert found
    assert all("more than 1,000" in str(each) for each in found)
