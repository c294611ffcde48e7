"""``mpisim run``, through the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpisim

Run = Callable[..., Any]

SMALL = """
[model]
family = "gpt"
layers = 2
hidden = 1024
heads = 8
vocab = 32000
seq_len = 512
[plan]
tp = 4
dp = 2
micro_batch = 1
global_batch = 4
[cluster]
preset = "dgx-h100"
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def digest(report: str) -> str:
    found = re.search(r"^digest +([0-9a-f]{32})$", report, re.MULTILINE)
    assert found, report
    return found[1]


def test_no_command_runs_the_default_experiment(run_mpisim: Run) -> None:
    done = run_mpisim([])
    assert done.rc == 0, done.stderr
    assert re.search(r"^step time +[0-9.]+ ms +± [0-9.]+ %  \(", done.stdout, re.MULTILINE)
    detailed = run_mpisim(["run", "--details"])
    assert re.search(r"^step time +[0-9.]+ ms +± [0-9.]+ %$", detailed.stdout, re.MULTILINE)
    for text in (done.stdout, detailed.stdout):
        assert re.search(r"^ranks +8 on 1 process", text, re.MULTILINE)
    for heading in ("uncertainty sources:", "assumptions:", "not modelled:", "Critical path"):
        assert heading in detailed.stdout
    assert done.stderr == ""


def test_one_digest_for_any_number_of_processes(run_mpisim: Run, small: Path) -> None:
    reports = {n: run_mpisim(["run", str(small)], nprocs=n, timeout=120) for n in (1, 2, 3, 4, 8)}
    assert all(done.rc == 0 for done in reports.values()), reports
    assert len({digest(done.stdout) for done in reports.values()}) == 1
    # The report differs in the line that names the number of processes, and in nothing else.
    bodies = {
        "\n".join(line for line in done.stdout.splitlines() if not line.startswith("ranks "))
        for done in reports.values()
    }
    assert len(bodies) == 1
    assert reports[8].stdout.count("step time   ") == 1


@pytest.mark.parametrize("nprocs", [1, 2])
def test_results_file_and_json(run_mpisim: Run, small: Path, tmp_path: Path, nprocs: int) -> None:
    options = ["run", str(small), "-o", "run.h5", "--timeline", "--json", "run.json"]
    done = run_mpisim(options, nprocs=nprocs)
    assert done.rc == 0, done.stderr
    figures = json.loads((tmp_path / "run.json").read_text())
    assert figures["digest"] == digest(done.stdout)
    with mpisim.open_results(tmp_path / "run.h5") as results:
        assert results.digest == figures["digest"]
        assert results.step_time == pytest.approx(figures["step_time"], rel=1e-12)
        assert results.experiment == SMALL
        assert results.timeline is not None
        assert int(results.timeline["end"].max()) == results.step_time_ps
    again = run_mpisim(["report", "run.h5"])
    assert again.stdout == done.stdout

    kept = run_mpisim(options, nprocs=nprocs)
    assert kept.rc == 2
    assert len(kept.errors) == 1
    assert "exists already" in kept.errors[0]
    assert run_mpisim([*options, "--overwrite"], nprocs=nprocs).rc == 0


def test_keys_can_be_set_on_the_command_line(run_mpisim: Run, small: Path) -> None:
    plain, changed, again = (
        run_mpisim(["run", str(small), *changes])
        for changes in ([], ["--set", "plan.tp=2", "--set", "plan.sp=false"], ["--set=plan.tp=4"])
    )
    assert changed.rc == 0, changed.stderr
    assert digest(plain.stdout) == digest(again.stdout) != digest(changed.stdout)
    assert re.search(r"^ranks +4 on 1 process", changed.stdout, re.MULTILINE)


@pytest.mark.parametrize("nprocs", [1, 2])
def test_what_the_command_line_sets_is_no_default(
    run_mpisim: Run, small: Path, tmp_path: Path, nprocs: int
) -> None:
    keys = {"network.contention": "true", "plan.overlap.dp": "true", "kernels.model": "analytical"}
    plain = run_mpisim(["run", str(small), "-o", "plain.h5", "--details"], nprocs=nprocs)
    assert plain.rc == 0, plain.stderr
    for key, value in keys.items():
        assert f"  - {key} = {value} (default)\n" in plain.stdout
    changes = [
        "--set",
        "network.contention=false",
        "--set",
        "plan.overlap.dp=true",
        "--set",
        "kernels.model=roofline",
    ]
    done = run_mpisim(["run", str(small), *changes, "-o", "set.h5", "--details"], nprocs=nprocs)
    assert done.rc == 0, done.stderr
    with mpisim.open_results(tmp_path / "set.h5") as results:
        said = results.attributes["assumptions"]
        assert results.experiment.startswith("# --set network.contention=false\n")
    for key in keys:
        assert f"{key} =" not in done.stdout
        assert not any(line.startswith(f"{key} =") for line in said)
    assert "network.model = nccl (default)" in said
    # A default that is stated is the value used, and no default was lost.
    with mpisim.open_results(tmp_path / "plain.h5") as results:
        before = results.attributes["assumptions"]
    assert set(before) - set(said) >= {f"{key} = {value} (default)" for key, value in keys.items()}
    assert all(line in before for line in said if line.endswith("(default)"))


def test_experiments_of_ours_have_names(run_mpisim: Run) -> None:
    named = run_mpisim(["run", "llama3-8b-8-h100"])
    assert digest(named.stdout) == digest(run_mpisim([]).stdout)


def test_memory_is_judged_before_the_simulation(run_mpisim: Run) -> None:
    options = ["run", "llama3-8b-8-h100", "--set", "plan.zero=0"]
    refused = run_mpisim(options, nprocs=2)
    assert refused.rc == 2
    assert len(refused.errors) == 1
    assert "does not fit into NVIDIA H100 SXM5 80 GB" in refused.errors[0]
    assert 'dp_style = "fsdp", zero = 3 (' in refused.errors[0]
    assert refused.stdout == ""
    allowed = run_mpisim([*options, "--allow-oom", "--details"])
    assert allowed.rc == 0
    assert "does not fit" in allowed.stdout
    assert "Any of these makes it fit:" in allowed.stdout


def test_a_program_can_be_kept(run_mpisim: Run, small: Path) -> None:
    done = run_mpisim(["run", str(small), "--save-program", "step.h5"])
    assert done.rc == 0, done.stderr
    shown = run_mpisim(["program", "show", "step.h5"])
    assert shown.stdout.startswith("ranks          8\n")


@pytest.mark.parametrize("nprocs", [1, 2])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--timeline"], "--timeline needs a file to write: -o FILE"),
        (["--top", "0"], "--top is 0; it must be 1 or more"),
        (["run", "missing.toml"], "missing.toml: cannot be read: No such file"),
        (["run", "echo-gpt"], "nor an experiment of that name (did you mean 'echo-gpt"),
        (["run", "bad.toml"], "bad.toml: unknown key 'layesr' in [model] (did you mean"),
        (["run", "many.toml"], "many.toml: the plan needs 16 GPUs (dp = 4, tp × cp × pp = 4"),
        (["run", "good.toml", "--set", "plan.tp"], "--set plan.tp: not of the form TABLE.KEY"),
        (["run", "good.toml", "--set", "plan.ordr=2"], "unknown key 'ordr' in [plan] (did you"),
        (["-o", "no/run.h5"], "no/run.h5: there is no folder"),
        (["--json", "no/run.json"], "no/run.json: there is no folder"),
        (["--timline"], "unknown option '--timline' (did you mean '--timeline'?)"),
    ],
)
def test_bad_input_is_one_line(
    run_mpisim: Run, tmp_path: Path, nprocs: int, options: list[str], message: str
) -> None:
    (tmp_path / "bad.toml").write_text(SMALL.replace("layers", "layesr"))
    (tmp_path / "many.toml").write_text(SMALL.replace("dp = 2", "dp = 4"))
    (tmp_path / "good.toml").write_text(SMALL)
    before = sorted(tmp_path.iterdir())
    done = run_mpisim(options, nprocs=nprocs)
    assert done.rc == 2
    assert len(done.errors) == 1
    assert message in done.errors[0]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(tmp_path.iterdir()) == before
