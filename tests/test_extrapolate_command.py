"""``mpisim extrapolate`` of a trace of one GPU, its results, and experiments of a trace."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mpisim import engine
from mpisim.cli import main
from mpisim.experiment import ProgramExperiment
from mpisim.extrapolate import Target, extrapolate, read_step
from mpisim.prediction.prepared_program import prepare_captured


def test_the_command(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(shared / "traces/triosim_vgg13_h100_1gpu/kineto.json.gz")
    saved, kept = tmp_path / "step.h5", tmp_path / "run.h5"
    plan = ["--plan", "dp=2,pp=2", "--plan", "micro_batch=128"]
    assert main(["extrapolate", trace, *plan, "--save-program", str(saved), "-o", str(kept)]) == 0
    said = capsys.readouterr().out
    assert "on 4 GPUs" in said
    assert main(["run", str(saved), "--set", "cluster.preset=dgx-a100"]) == 0
    capsys.readouterr()
    times = []
    for change in ("variation.speeds.3=1.0", "variation.speeds.3=0.5"):
        changes = ["--set", "cluster.preset=dgx-h100", "--set", change]
        assert main(["run", str(saved), *changes]) == 0
        times.append(float(capsys.readouterr().out.split()[2].replace(",", "")))
    assert times[1] > 1.2 * times[0]  # one slow GPU
    assert main(["extrapolate", trace, "--plan", "dp"]) == 2
    capsys.readouterr()
    several = str(shared / "traces/megatron_gpt_tp2pp2dp2_a800_8rank")
    assert main(["extrapolate", several, "--plan", "dp=4"]) == 2
    error = capsys.readouterr().err
    assert "--plan is for traces of one GPU" in error
    assert error.endswith("is of several ranks; --dp, --pp, --vpp are for these\n")
    assert main(["extrapolate", trace, "--micro-batches", "4"]) == 2
    assert "--micro-batches is for traces of several ranks" in capsys.readouterr().err
    assert main(["extrapolate", trace, "--dp", "4"]) == 2
    assert "is of one GPU; --plan dp=… is for these" in capsys.readouterr().err


def test_results_of_the_command_are_exported(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """A results file says what it was made of, wherever it is exported from."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for name, to in (("kineto", "step"), ("et", "shapes")):
        shutil.copy(shared / f"traces/linear_2080ti_1gpu/{name}.json.gz", folder / f"{to}.json.gz")
    shapes = tmp_path / "shapes.json.gz"
    (folder / "shapes.json.gz").rename(shapes)
    monkeypatch.chdir(tmp_path)
    given = ["traces/step.json.gz", "--execution-trace", "shapes.json.gz", "--plan", "dp=2"]
    given += ["--step", "20", "--batch", "1024", "--gpu", "a100-sxm", "--cluster", "dgx-a100"]
    assert main(["extrapolate", *given, "--scaling", "li", "-o", "run.h5"]) == 0
    monkeypatch.chdir(folder)
    # Its digest is compared: each option counts.
    assert main(["export", "../run.h5", "--format", "csv", "-o", "rows.csv"]) == 0
    shapes.unlink()
    assert main(["export", "../run.h5", "--format", "csv", "-o", "again.csv"]) == 2
    assert f"{shapes.resolve()}: cannot be read" in capsys.readouterr().err


def test_an_experiment_of_a_trace(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, kept = tmp_path / "grown.toml", tmp_path / "run.h5"
    trace = shared / "traces/triosim_vgg13_h100_1gpu/kineto.json.gz"
    shutil.copy(trace, tmp_path / "trace.json.gz")
    path.write_text(
        """
        title = "VGG-13, grown"
        [workload]
        trace = "trace.json.gz"
        [plan]
        global_batch = 2048
        zero = 1
        [cluster]
        preset = "dgx-h100"
        nodes = 1
        gpus = 4
        """
    )
    assert main(["run", str(path), "-o", str(kept)]) == 0
    said = capsys.readouterr().out
    assert "VGG-13, grown" in said
    found = extrapolate(read_step(trace), Target("dgx-h100", {"dp": 4, "zero": 1}))
    experiment = ProgramExperiment("", {"cluster": {"preset": "dgx-h100"}}, source="trace")
    network = prepare_captured(experiment, found.program).network
    milliseconds = engine.simulate(found.program, network=network).step_time / 1e9
    assert f"{milliseconds:,.3f} ms" in said.splitlines()[0]
    assert main(["export", str(kept), "--format", "csv", "-o", str(tmp_path / "rows.csv")]) == 0
    assert main(["run", str(path), "--set", "plan.pp=2", "--set", "plan.zero=0"]) == 0
    capsys.readouterr()
    for change, wrong in (
        ("workload.program=x.h5", "one of 'program' and 'trace'"),
        ("plan.dq=1", "unknown key 'dq'"),
        ("plan.vpp=2", "toml: [plan] vpp is 2"),
        ("plan.dp=3", "cannot be shared"),
        ("cluster.preset=nowhere", "unknown cluster"),
        ("model.preset=gpt2", "fixes it"),
    ):
        assert main(["run", str(path), "--set", change]) == 2, change
        error = capsys.readouterr().err
        assert wrong in error
        assert error.count("\n") == 1
