"""Tables of measured pairs: read, fitted, learned from. The tables are made by known laws."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpisim.base.errors import InputError
from mpisim.cli import main
from mpisim.experiment import load
from mpisim.kernels import find_gpu
from mpisim.kernels.slowdown import SlowdownConstants, packaged_constants, read_constants
from mpisim.overlap.fit import fit, predicted, written
from mpisim.overlap.pairs import Pairs, read_pairs
from mpisim.simulate import simulate

HEAD = (
    "gpu",
    "family",
    "kernel_us",
    "sm",
    "dram",
    "collective",
    "algorithm",
    "protocol",
    "bytes",
    "ranks",
    "channels",
    "comm_us",
    "kernel_slowdown",
    "comm_slowdown",
)


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, HEAD)
        writer.writeheader()
        writer.writerows(rows)
    return path


def rows(n: int, seed: int = 0) -> list[dict[str, Any]]:
    """Random pairs on an H100, whose slowdowns are still to be filled in."""
    random = np.random.default_rng(seed)
    families = {"gemm": (0.8, 0.2), "elementwise": (0.1, 0.9), "norm": (0.3, 0.7)}
    found: list[dict[str, Any]] = []
    for _ in range(n):
        family = str(random.choice(list(families)))
        sm, dram = families[family]
        bytes = int(10 ** random.uniform(6, 9))
        channels = int(random.choice([8, 16, 24]))
        found.append(
            {
                "gpu": "h100-sxm",
                "family": family,
                "kernel_us": round(float(10 ** random.uniform(1, 3)), 3),
                "sm": sm,
                "dram": dram,
                "collective": str(random.choice(["all-reduce", "all-gather"])),
                "algorithm": "ring",
                "protocol": "simple",
                "bytes": bytes,
                "ranks": 8,
                "channels": channels,
                "comm_us": bytes / (channels * 12e3),
                "kernel_slowdown": 1.0,
                "comm_slowdown": 1.0,
            }
        )
    return found


def changed(constants: SlowdownConstants, **values: float) -> SlowdownConstants:
    return dataclasses.replace(
        constants,
        **{
            name: dataclasses.replace(getattr(constants, name), value=value)
            for name, value in values.items()
        },
    )


def of_law(path: Path, n: int, law: SlowdownConstants, noise: float = 0.0, odd: int = 0) -> Pairs:
    """Pairs that follow the parametric model, but for noise and a few odd ones."""
    drawn = rows(n)
    kernel, other = predicted(read_pairs(table(path, drawn)), law)
    random = np.random.default_rng(1)
    off = np.exp(noise * random.standard_normal(n))
    off[:odd] *= 1.6
    for row, k, o, by in zip(drawn, kernel, other, off, strict=True):
        row["kernel_slowdown"], row["comm_slowdown"] = float(k * by), float(o)
    return read_pairs(table(path, drawn))


def test_fit_finds_the_law(tmp_path: Path) -> None:
    truth = {
        "gather": 1.6,
        "reduce": 2.4,
        "matrix": 0.11,
        "streaming": 0.25,
        "reducing": 0.05,
        "communication": 0.22,
    }
    law = changed(packaged_constants(), **truth)
    pairs = of_law(tmp_path / "pairs.csv", 400, law, 0.02, odd=8)
    found = fit(pairs, packaged_constants())
    for name, value in truth.items():
        number = getattr(found.constants, name)
        assert abs(number.value - value) <= 3 * number.error * number.value + 0.01, name
        assert "400 pairs" in number.source
    assert found.after < found.before
    # What counts: slowdowns of pairs that the fit did not see.
    others = read_pairs(table(tmp_path / "others.csv", rows(200, seed=7)))
    for ours, theirs in zip(predicted(others, found.constants), predicted(others, law)):
        assert ours == pytest.approx(theirs, rel=0.02)
    # Pairs of rings say nothing of multicast and of sends.
    assert "multicast" not in found.known
    assert found.constants.multicast == packaged_constants().multicast


def test_fit_is_written_and_read(tmp_path: Path) -> None:
    pairs = of_law(tmp_path / "pairs.csv", 60, changed(packaged_constants(), matrix=0.2))
    found = fit(pairs, packaged_constants()).constants
    path = tmp_path / "mine.toml"
    path.write_text(written(found))
    assert read_constants(path) == found


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_law(tmp_path / "pairs.csv", 60, changed(packaged_constants(), matrix=0.2))
    out = tmp_path / "mine.toml"
    arguments = ["calibrate", "overlap", str(tmp_path / "pairs.csv"), "-o", str(out)]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "multicast" in shown
    assert "60 pairs" in shown
    assert read_constants(out).matrix.value > packaged_constants().matrix.value
    assert main(arguments) == 2  # the file exists


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpu": "h100-smx"}, r"row 2, gpu: unknown GPU 'h100-smx'"),
        ({"family": "gem"}, r"row 2: family is 'gem'.*gemm"),
        ({"collective": "allreduce"}, r"row 2: collective is 'allreduce'.*all-reduce"),
        ({"protocol": "ll64"}, r"row 2: protocol is 'll64'"),
        ({"kernel_us": "fast"}, r"row 2: kernel_us is 'fast'; it must be a number"),
        ({"kernel_slowdown": "0"}, r"row 2: a time or a slowdown is 0"),
        ({"kernel_slowdown": "nan"}, r"row 2: kernel_slowdown is 'nan'"),
        ({"dram": "1.4"}, r"row 2: dram is '1.4'; it must be a number from 0 to 1"),
        ({"bytes": ""}, r"row 2: bytes is ''"),
        ({"ranks": "1"}, r"row 2: ranks is '1'"),
    ],
)
def test_bad_rows(tmp_path: Path, change: dict[str, str], message: str) -> None:
    path = table(tmp_path / "pairs.csv", [rows(1)[0] | change])
    with pytest.raises(InputError, match=message) as error:
        read_pairs(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "the file is empty"),
        (b"gpu,family\n", "column 'kernel_us' is missing"),
        (b"gpu,famly\na,b\n", "unknown column 'famly'.*family"),
        (b"gpu,gpu\na,b\n", "there are two columns 'gpu'"),
        (b"gpu,family\na,b\n", "column 'kernel_us' is missing"),
        (",".join(HEAD).encode() + b"\na,b\n", "line 2: has 2 cells; there are 14 headings"),
        (b"\xff\xfe\x00", "is a text in UTF-16; save it in UTF-8"),
    ],
)
def test_bad_tables(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_bytes(text)
    with pytest.raises(InputError, match=message):
        read_pairs(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_pairs(tmp_path / "none.csv")


def learnable(path: Path, n: int) -> Path:
    """Kernels take 1.1 times as long beside 8 channels, 1.2 beside 16, 1.3 beside 24.

    Elementwise ones take 1.5 times that.
    """
    drawn = rows(n)
    for row in drawn:
        factor = 1.0 + row["channels"] / 80
        row["kernel_slowdown"] = factor * (1.5 if row["family"] == "elementwise" else 1.0)
    return table(path, drawn)


def test_learning(tmp_path: Path) -> None:
    from mpisim.overlap.factors import LearnedSlowdowns, _features

    path = learnable(tmp_path / "pairs.csv", 300)
    gpu = "h100-sxm"
    learned = LearnedSlowdowns.read(path, gpu)
    assert learned.error < 0.03
    pairs = read_pairs(learnable(tmp_path / "other.csv", 40))
    features = _features(
        pairs.kind, pairs.collective, pairs.algorithm, pairs.protocol, pairs.columns
    )
    found = learned.factors(features)
    assert found == pytest.approx(pairs.columns["kernel_slowdown"], rel=0.05)
    with pytest.raises(InputError, match=r"0 pairs of 'a100-sxm-80gb'; at least 30"):
        LearnedSlowdowns(read_pairs(path), "a100-sxm-80gb")


SMALL = ("model.layers=2", "plan.global_batch=8", "model.seq_len=1024")


def test_learned_in_a_run(tmp_path: Path) -> None:
    path = learnable(tmp_path / "pairs.csv", 200)
    _, experiment = load(None, [*SMALL, f'overlap.pairs="{path}"'])
    results = simulate(experiment)
    assert results is not None
    lines = dict(line.split(": x ") for line in results.attributes["overlap_slowdowns"])
    # Reduce-scatters of 8 to 24 channels, and all-gathers: no more than the law's largest.
    assert 1.0 < float(lines["matrix kernels"].split()[0]) < 1.35
    assert "overlap_added" in results.attributes


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    path = table(tmp_path / "pairs.csv", rows(3))
    _, experiment = load(None, [*SMALL, f'overlap.pairs="{path}"'])
    with pytest.raises(InputError, match=r"\[overlap\] 'pairs' needs scikit-learn.*\[learn\]"):
        simulate(experiment)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("overlap.model='sttic'", r"key 'overlap.model' is 'sttic' \(did you mean 'static'"),
        ("overlap.modle='off'", r"unknown key 'modle' in \[overlap\]"),
        ("overlap.passes=0", r"key 'overlap.passes' is 0"),
    ],
)
def test_bad_keys(change: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(None, [change])


def test_files_that_are_of_no_use(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"pairs is given; model = 'off' has no use for it"):
        load(None, ["overlap.model=off", "overlap.pairs=pairs.csv"])
    _, experiment = load(None, [*SMALL, f'overlap.calibration="{tmp_path}/none.toml"'])
    with pytest.raises(InputError, match=r"\[overlap\] .*none.toml: cannot be read"):
        simulate(experiment)


def test_gpu_is_known() -> None:
    assert find_gpu("h100-sxm").sms == 132  # what the law of `rows` rests on
