"""Experiments whose kernel times come from measured kernels of the user's own."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from mpisim.base.errors import InputError
from mpisim.experiment import Experiment, read
from mpisim.kernels.operations import Attention, Elementwise, Kernel
from mpisim.prediction.prepared import PreparedExperiment, prepare

TEXT = """
[model]
family = "llama"
layers = 2
hidden = 512
heads = 8
seq_len = 256
vocab = 1024
[plan]
tp = 2
global_batch = 4

[framework]
name = "none"
attention = "cudnn"
[cluster]
preset = "dgx-h100"
[variation]
slowest = false
"""

Row = tuple[Kernel, float]
"""A kernel, and its time in microseconds."""


def experiment(folder: Path, keys: str = "") -> Experiment:
    return read(f"{TEXT}[kernels]\n{keys}", str(folder / "test.toml"))


def chosen(folder: Path, model: str) -> Experiment:
    return experiment(folder, f'model = "{model}"\nmeasurements = ["mine.csv"]')


def write(path: Path, gpu: str, rows: Iterable[Row]) -> None:
    """Write a table in the form of ``run_scripts/collect_gpu.py``, with a column for variants."""
    lines = []
    for kernel, time in rows:
        line = {"gpu": gpu, "family": kernel.family, "operation": "a", "median_us": time}
        for each in fields(kernel):
            value = getattr(kernel, each.name)
            if value is not None:
                line[each.name] = int(value) if isinstance(value, bool) else value
        lines.append(line | {"repeats": 20})
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, sorted({name for line in lines for name in line}))
        table.writeheader()
        table.writerows(lines)


def prices(case: PreparedExperiment) -> dict[Kernel, int]:
    """Durations of the kernels of a prepared experiment, in ps."""
    found = case.workload.pricings[0].kernels
    return {kernel: duration for (_, duration), kernel in found.items()}


@pytest.fixture(scope="module")
def analytical(tmp_path_factory: pytest.TempPathFactory) -> dict[Kernel, int]:
    """Durations by the analytical model, in ps."""
    return prices(prepare(experiment(tmp_path_factory.mktemp("plain"))))


def test_a_database_has_the_measured_times(tmp_path: Path, analytical: dict[Kernel, int]) -> None:
    times = {kernel: duration * 2e-6 for kernel, duration in analytical.items()}
    write(tmp_path / "mine.csv", "H100 SXM", times.items())
    found = prices(prepare(chosen(tmp_path, "database")))
    assert any(isinstance(kernel, Attention) and kernel.variant == "cudnn" for kernel in found)
    assert found == {kernel: 2 * duration for kernel, duration in analytical.items()}


def test_a_database_leaves_the_rest_to_the_analytical_model(
    tmp_path: Path, analytical: dict[Kernel, int]
) -> None:
    kernel = max(analytical, key=lambda each: each.flops)
    write(tmp_path / "mine.csv", "H100 SXM", [(kernel, 1000.0)])
    found = prices(prepare(chosen(tmp_path, "database")))
    assert found == analytical | {kernel: 10**9}


def test_lines_of_another_gpu(tmp_path: Path, analytical: dict[Kernel, int]) -> None:
    """Times in proportion to the traffic are carried by the ratio of the bandwidths."""
    rows = [(kernel, 1e6 * kernel.traffic / 2039e9) for kernel in analytical]
    write(tmp_path / "mine.csv", "A100 SXM", rows)
    found = prices(prepare(chosen(tmp_path, "li")))
    assert set(found) == set(analytical)
    # Of attention there are two rows: too few to tell arithmetic and traffic from a floor.
    streaming = {kernel: found[kernel] for kernel in found if isinstance(kernel, Elementwise)}
    assert len(streaming) > 3
    for kernel, duration in streaming.items():
        assert duration == pytest.approx(1e12 * kernel.traffic / 3350e9, abs=1)


def test_another_gpu_scaled(tmp_path: Path, analytical: dict[Kernel, int]) -> None:
    write(tmp_path / "mine.csv", "A100 SXM", [(kernel, 100.0) for kernel in analytical])
    found = prices(prepare(chosen(tmp_path, "simai")))
    by_arithmetic, by_memory = (1e8 * ratio for ratio in (312 / 989.4, 2039 / 3350))
    for kernel, duration in found.items():
        arithmetic = kernel.flops / 312e12 > kernel.traffic / 2039e9
        assert duration == pytest.approx(by_arithmetic if arithmetic else by_memory, abs=1)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ('model = "li"', "model = 'li' learns from measured kernels: give measurements"),
        ('measurements = ["a.csv"]', "measurements is given; model = 'analytical' has no use"),
        ('model = "roofline"\nmeasurements = ["a.csv"]', "model = 'roofline' has no use for it"),
        ('model = "database"\nmeasurements = ["a.csv"]', "a.csv: cannot be read"),
        ('model = "database"\nmeasurements = "a.csv"', "'kernels.measurements'"),
    ],
)
def test_bad_choices(tmp_path: Path, keys: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        prepare(experiment(tmp_path, keys))
    assert words in str(error.value)


def unknown_gpu(rows: list[Row]) -> tuple[str, list[Row]]:
    return "H10", rows


def without_norms(rows: list[Row]) -> tuple[str, list[Row]]:
    return "H100 SXM", [row for row in rows if row[0].family != "norm"]


def of_the_same_gpu(rows: list[Row]) -> tuple[str, list[Row]]:
    return "H100 SXM", rows


@pytest.mark.parametrize(
    ("model", "change", "words"),
    [
        ("database", unknown_gpu, "kernels.measurements has no row that can be used: GPU 'H10'"),
        ("li", without_norms, "no measured kernels of norm in bf16"),
        ("simai", of_the_same_gpu, "SimAI's rules need rows of another GPU than h100-sxm"),
    ],
)
def test_tables_that_do_not_serve(
    tmp_path: Path,
    analytical: dict[Kernel, int],
    model: str,
    change: Callable[[list[Row]], tuple[str, list[Row]]],
    words: str,
) -> None:
    write(tmp_path / "mine.csv", *change([(kernel, 10.0) for kernel in analytical]))
    with pytest.raises(InputError) as error:
        prepare(chosen(tmp_path, model))
    assert words in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "test.toml"))


def test_variants_are_apart(tmp_path: Path, analytical: dict[Kernel, int]) -> None:
    """A time of the newest attention is none of cuDNN's."""
    (kernel,) = (each for each in analytical if isinstance(each, Attention) and not each.backward)
    write(tmp_path / "mine.csv", "H100 SXM", [(replace(kernel, variant=None), 1000.0)])
    assert prices(prepare(chosen(tmp_path, "database"))) == analytical
