"""Sensitivities in results and files, and the command, on any number of processes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Finished
from tornados import US, bars, elasticities, reducing, saved

from mpisim import open_results, sensitivity, simulate
from mpisim.base.errors import InputError
from mpisim.cli import main
from mpisim.experiment import Experiment, load, load_any, read
from mpisim.experiment.choices import ScaleChoice
from mpisim.prediction.prepared import prepare
from mpisim.prediction.quantities import NAMES, key_of, values_now
from mpisim.program import ProgramBuilder
from mpisim.report.tornado import render_tornado, tornado_figures
from mpisim.results.tornado import Bar, Effect, Tornado

pytestmark = pytest.mark.two_processes

# --- results and files ----------------------------------------------------------------------------


def test_a_saved_program_answers_as_its_experiment(tmp_path: Path) -> None:
    _, experiment = load("lin-gpt2-4-a100")
    main(["run", "lin-gpt2-4-a100", "--save-program", str(tmp_path / "step.h5")])
    for key in ("hbm_bandwidth", "matrix_rate", "link_bandwidth", "latency", "launch_time"):
        changed = replace(experiment, scale=ScaleChoice(**{key: 1.5}))
        _, again = load_any(tmp_path / "step.h5", [f"scale.{key}=1.5"])
        assert simulate(changed).digest == simulate(again).digest, key  # type: ignore[union-attr]


def test_results_keep_sensitivities(tmp_path: Path) -> None:
    _, experiment = load("qwen3-30b-a3b-16-h100")
    found = simulate(experiment, output=tmp_path / "run.h5")
    assert found is not None
    assert found.sensitivities is not None
    with open_results(tmp_path / "run.h5") as again:
        assert again.sensitivities is not None
        assert again.sensitivities[:3] == found.sensitivities[:3]
        np.testing.assert_array_equal(
            again.sensitivities.elasticity, found.sensitivities.elasticity
        )
    sizes = np.abs(found.sensitivities.elasticity)
    assert (np.diff(sizes) <= 0).all()
    assert set(found.sensitivities.keys) == {
        key_of(name) for name in values_now(prepare(experiment)) if name != "memory"
    }


def test_programs_without_a_network_have_few(tmp_path: Path) -> None:
    builder = ProgramBuilder()
    rows = builder.table("step")
    rows.kernel("gemm", stream=0, duration=100 * US)
    builder.add_rank(builder.add_table(rows.build()), slots=[])
    path = saved(tmp_path, builder.build({"source": "by hand"}))
    assert elasticities(load_any(path)[1]) == {"speeds": -1.0, "launch_time": 0.0}
    found = sensitivity(load_any(path)[1])
    assert found is not None
    assert "nic_bandwidth: no network is chosen (--set cluster.preset=NAME)" in found.not_applicable


def test_recordings_answer_to_kernels_communications_and_cpus(tmp_path: Path) -> None:
    from straggler import straggler

    path = saved(tmp_path, straggler(3))
    found = sensitivity(load_any(path)[1], factors=(0.9, 1.1))
    assert set(bars(found)) == {"speeds", "communications", "launch_time"}
    for bar in bars(found).values():
        assert bar.elasticity
        assert all(effect.agrees or effect.moved for effect in bar.effects)


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.mpi
def test_equal_on_any_number_of_processes(comm: Any) -> None:
    from mpi4py import MPI

    _, experiment = load("lin-gpt2-4-a100")
    for keys in ({"factors": (1.1, 2.0)}, {"only": ["hbm_bandwidth"], "factors": (2.0,)}):
        found = sensitivity(experiment, comm, **keys)  # type: ignore[arg-type]
        assert (found is None) == (comm.rank > 0)
        if found is not None:
            alone = sensitivity(experiment, MPI.COMM_SELF, **keys)  # type: ignore[arg-type]
            assert tornado_figures(found) == tornado_figures(alone)  # type: ignore[arg-type]


@pytest.mark.mpi
def test_results_on_any_number_of_processes(comm: Any) -> None:
    from mpi4py import MPI

    _, experiment = load("qwen3-30b-a3b-16-h100")
    found = simulate(experiment, comm)
    if found is not None:
        alone = simulate(experiment, MPI.COMM_SELF)
        assert alone is not None
        assert found.sensitivities is not None
        assert alone.sensitivities is not None
        assert found.sensitivities[:3] == alone.sensitivities[:3]
        assert (found.sensitivities.elasticity == alone.sensitivities.elasticity).all()


def test_the_command_writes_text_figures_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, picture = tmp_path / "t.json", tmp_path / "t.svg"
    words = ["sensitivity", "lin-gpt2-4-a100", "--factors", "1.1,2", "--json", str(figures)]
    pytest.importorskip("matplotlib")
    assert main([*words, "--draw", str(picture)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert picture.read_bytes().startswith(b"<?xml")
    found = json.loads(figures.read_text())
    assert {bar["quantity"] for bar in found["bars"]} <= set(NAMES)
    for bar in found["bars"]:
        assert bar["name"] in text
        assert [e["factor"] for e in bar["effects"]] in ([1.1, 2.0], [0.5, 2.0])
    assert "nic_bandwidth: one node, no NIC is used" in text


def test_a_folder_of_recordings_is_told_the_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sensitivity", str(tmp_path)]) == 2
    assert "--save-program" in capsys.readouterr().err


def test_a_result_answers_as_its_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = str(tmp_path / "run.h5")
    assert main(["run", "lin-gpt2-4-a100", "-o", kept]) == 0
    assert f"{Path(kept).name} keeps it for" in capsys.readouterr().out
    texts = []
    for what in ("lin-gpt2-4-a100", kept):
        assert main(["sensitivity", what, "--no-simulate"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert main(["sensitivity", kept, "--set", "plan.zero=1"]) == 2
    assert "whose keys are fixed" in capsys.readouterr().err


def test_derivatives_alone_take_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sensitivity", "lin-gpt2-4-a100", "--no-simulate"]) == 0
    text = capsys.readouterr().out
    assert "memory capacity" not in text
    assert "-0.831" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "nic_bandwith"], "did you mean 'nic_bandwidth'?"),
        (["--factors", "1.1,fast"], "'fast' is no number"),
        (["--factors", "1"], "the factor 1 is not allowed"),
        (["--factors", "0"], "the factor 0 is not allowed"),
        (["--factors", "nan"], "the factor nan is not allowed"),
        (["--draw", "t.txt"], "pictures end in .svg, .png or .pdf"),
        (["--set", "scale.hbm=2"], "unknown key 'hbm' in [scale]"),
        (["--set", "scale.hbm_bandwidth=0"], "scale.hbm_bandwidth"),
    ],
)
@pytest.mark.parametrize("nprocs", [1, 2])
def test_bad_words_are_one_line(
    words: list[str], said: str, nprocs: int, run_mpisim: Callable[..., Finished]
) -> None:
    done = run_mpisim(["sensitivity", "lin-gpt2-4-a100", *words], nprocs)
    assert done.rc == 2
    errors = done.errors
    assert len(errors) == 1
    assert said in errors[0]


def test_scales_without_meaning_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, reducing(2, 1 << 20))
    for change in ("scale.hbm_bandwidth=2", "scale.nic_bandwidth=2"):
        with pytest.raises(InputError, match=re.escape(change.partition("=")[0])):
            simulate(load_any(path, [change])[1])
    text = "[model]\npreset = 'gpt2-small'\n[plan]\nglobal_batch = 8\n[cluster]\npreset = '{}'\n"
    text += "[network]\nmodel = 'echo'\n[scale]\nlink_bandwidth = 2\n"
    experiment: Experiment = read(text.format("dgx-a100"), "e.toml")
    with pytest.raises(InputError, match=r"scale\.link_bandwidth"):
        prepare(experiment)


def test_text_of_an_empty_tornado() -> None:
    found = Tornado("t", 0, None, None, (Bar("latency", "latency", "k", "n", 0.0, (Effect(2.0),)),))
    assert "latency" in render_tornado(found)
