"""Files that were named for the wrong command: one line, with the command that takes them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from mpisim.cli import main
from mpisim.cli.other_files import kind_of
from mpisim.data import path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one file of each kind."""
    folder = tmp_path_factory.mktemp("files")
    small = ["--set", "model.layers=1"]
    step, run = str(folder / "step.h5"), str(folder / "run.h5")
    assert main(["run", *small, "--save-program", step, "-o", run]) == 0
    assert main(["program", "export", step, "-o", str(folder / "et")]) == 0
    (folder / "train.py").write_text("print()\n")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "simai.txt").write_text("HYBRID_TRANSFORMER_FWD_IN_BCKWD\n1\n")
    (folder / "aicb.csv").write_text("comm_type,comm_group,comm_group_size,msg_size,stage,count\n")
    (folder / "notes.txt").write_text("notes\n")
    shutil.copy(path("clusters/dgx-h100.toml"), folder / "cluster.toml")
    (folder / "mine.cal.toml").write_text("[mine]\nnumbers = { bandwidth_inside = 1.0 }\n")
    for name, cluster in (("one", "dgx-h100"), ("other", "dgx-a100")):
        assert main(["new", str(folder / f"{name}.toml"), "--cluster", cluster]) == 0
    return folder


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("step.h5", "mpisim-program"),
        ("run.h5", "mpisim-results"),
        ("et", "chakra"),
        ("et/step.0.et", "chakra"),
        ("train.py", "script"),
        ("config.json", "config"),
        ("simai.txt", "simai"),
        ("aicb.csv", "aicb"),
        ("one.toml", "experiment"),
        ("cluster.toml", "cluster"),
        ("mine.cal.toml", "calibration"),
        ("notes.txt", ""),
        ("missing", ""),
    ],
)
def test_kinds(files: Path, name: str, kind: str) -> None:
    assert kind_of(files / name) == kind


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["replay", "@/et"], "mpisim program import @/et -o step.h5"),
        (["replay", "@/et/step.0.et"], "mpisim program import @/et/step.0.et -o step.h5"),
        (["replay", "@/step.h5"], "mpisim run @/step.h5"),
        (["replay", "@/one.toml"], "mpisim run @/one.toml"),
        (["run", "@/run.h5"], "mpisim report @/run.h5"),
        (["run", "@/et"], "mpisim program import @/et"),
        (["run", "@/train.py"], "mpisim capture --world-size 8 -- python @/train.py"),
        (["run", "@/config.json"], "mpisim new mine.toml --config @/config.json"),
        (["search", "@/run.h5"], "mpisim report @/run.h5"),
        (["job", "@/et"], "mpisim program import @/et"),
        (["report", "@/step.h5"], "mpisim run @/step.h5"),
        (["report", "@/one.toml"], "mpisim run @/one.toml"),
        (["memory", "@/one.toml"], "mpisim run @/one.toml"),
        (["export", "@/step.h5", "--format", "csv", "-o", "@/x.csv"], "mpisim run @/step.h5"),
        (["compare", "@/run.h5", "@/step.h5"], "mpisim run @/step.h5"),
        (["program", "show", "@/run.h5"], "mpisim report @/run.h5"),
        (["program", "import", "@/one.toml", "-o", "@/x.h5"], "mpisim run @/one.toml"),
        (["trace", "show", "@/et"], "mpisim program import @/et"),
        (["extrapolate", "@/run.h5", "--plan", "dp=2"], "mpisim report @/run.h5"),
        (["run", "@/cluster.toml"], "mpisim new mine.toml --cluster @/cluster.toml"),
        (["run", "@/mine.cal.toml"], "which the key network.calibration names"),
        (["topo", "show", "@/one.toml"], "mpisim run @/one.toml"),
        (
            ["comm", "all_reduce", "--cluster", "@/one.toml", "--size", "1G"],
            "mpisim run @/one.toml",
        ),
        (["run", "@/on.toml"], "did you mean 'one.toml'?"),
    ],
)
def test_the_command_is_named(
    files: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.replace("@", str(files)) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said.replace("@", str(files)) in line


def test_own_errors_stay(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong with a file of the right kind is said, not what kind it is."""
    assert main(["run", str(files / "one.toml"), "--set", "plan.tpp=1"]) == 2
    assert "unknown key 'tpp' in [plan]" in capsys.readouterr().err
    assert main(["compare", str(files / "one.toml"), str(files / "missing.h5")]) == 2
    assert "missing.h5: there is no such file" in capsys.readouterr().err


def test_experiments_are_compared(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two experiments are simulated, and compared as their results are."""
    assert main(["compare", str(files / "one.toml"), str(files / "other.toml")]) == 0
    simulated = capsys.readouterr().out
    for name in ("one", "other"):
        words = ["run", str(files / f"{name}.toml"), "-o", str(files / f"{name}.h5")]
        assert main(words) == 0
    capsys.readouterr()
    assert main(["compare", str(files / "one.h5"), str(files / "other.h5")]) == 0
    results = capsys.readouterr().out
    assert simulated == re.sub(r"(one|other)\.h5", r"\1.toml", results)
    assert '"dgx-a100"' in simulated


def test_results_that_are_kept_are_named(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last line says what keeps a result only where nothing does."""
    assert main(["run"]) == 0
    assert "\n-o run.h5 keeps it for mpisim report" in capsys.readouterr().out
    assert main(["run", "-o", str(files / "kept.h5")]) == 0
    assert "\nkept.h5 keeps it for mpisim report" in capsys.readouterr().out
    assert main(["report", str(files / "kept.h5")]) == 0
    assert "\nkept.h5 keeps it for mpisim report" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--tp", "8"], "unknown option '--tp' (did you mean --set plan.tp=…?)"),
        (["run", "--model", "gpt2"], "(did you mean --set model.preset=…?)"),
        (["run", "--seq-len=8"], "(did you mean --set model.seq_len=…?)"),
        (["job", "x", "--tokens", "1T"], "(did you mean --set job.tokens=…?)"),
        (["extrapolate", "x", "--tp=8"], "unknown option '--tp' (did you mean --plan tp=…?)"),
        (["extrapolate", "x", "--nodes=8"], "unknown option '--nodes'"),
        (["run", "--detials"], "(did you mean '--details'?)"),
        (["compare", "--tp"], "unknown option '--tp'"),
        (["run", "llama-3-8b"], "'mpisim new mine.toml --model llama-3-8b' writes an experiment"),
        (["run", "dgx-h100"], "'mpisim new mine.toml --cluster dgx-h100' writes an experiment"),
        (["run", "--set", "framework=nemo"], "it must be a table, [framework] (did you mean 'f"),
        (["run", "--set", "variation.kernels=2%"], "write 0.02"),
        (["run", "--set", "cluster.gpus=7"], "or leave dp out: what remains"),
        (["job", "llama3-8b-8-h100", "--set", "job.restart=5"], "restart is '5'; it must be a n"),
    ],
)
def test_what_was_meant_is_named(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "job":
        words = [*words, "--set", "job.steps=10"]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_help_is_as_wide_as_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["run", "--help"]) == 0
    text = capsys.readouterr().out
    above, examples = text.split("examples:")
    assert max(map(len, above.splitlines())) <= 60
    assert "\n  mpisim run mine.toml" in examples
