"""A trace of each GPU of a mixed job: beside the generated job, and what does not fit together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import extrapolate_mixed as mixed
import pytest

from mpisim.base.errors import InputError
from mpisim.cli import main
from mpisim.extrapolate import Target, TracedStep, extrapolate
from mpisim.extrapolate.step import TracedKernel, TracedOperator

A100, H100 = "a100-sxm-80gb", "h100-sxm"


@pytest.fixture(scope="module", params=["resnet-50", "llama"])
def traced(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, TracedStep, TracedStep, Path]:
    """A model, its steps on both GPUs, and the folder of their traces."""
    folder = tmp_path_factory.mktemp("traces")
    steps = [
        mixed.traced(mixed.MODELS[request.param], folder / each[1], each)
        for each in (mixed.H100, mixed.A100)
    ]
    return request.param, steps[0], steps[1], folder


def test_a_mixed_job_is_the_generated_one(
    traced: tuple[str, TracedStep, TracedStep, Path],
) -> None:
    name, h100, a100, _ = traced
    for keys in mixed.PLANS:
        found = mixed.compare(mixed.MODELS[name], h100, a100, keys)
        assert found.equal, keys
        assert abs(found.error) < 0.03, (keys, found)


def test_each_rank_has_the_kernels_of_its_own_gpu(
    traced: tuple[str, TracedStep, TracedStep, Path],
) -> None:
    _, h100, a100, _ = traced
    slower = replace(
        a100,
        operators=tuple(_twice(each, "forward", "backward") for each in a100.operators),
        **_doubled(a100, "optimizer"),
    )
    found, twice = (
        extrapolate(
            h100, Target("dgx-h100", {"dp": 16}, other_gpus={"1": A100}, traces={A100: each})
        ).program
        for each in (a100, slower)
    )
    for rank, factor in ((0, 1), (15, 2)):
        tables = [each.table_of(rank) for each in (found, twice)]
        longest = [int(table.duration[table.is_device].max()) for table in tables]
        assert longest[1] == pytest.approx(factor * longest[0], rel=1e-6)


def _twice(operator: TracedOperator, *sides: str) -> TracedOperator:
    """An operator whose kernels take twice as long."""
    return replace(operator, **_doubled(operator, *sides))


def _doubled(of: object, *sides: str) -> dict[str, Any]:
    """Tasks, by the name of their tuple, with kernels that take twice as long."""
    return {
        side: tuple(
            replace(task, duration=2 * task.duration) if isinstance(task, TracedKernel) else task
            for task in getattr(of, side)
        )
        for side in sides
    }


def test_traces_of_other_models_are_refused(
    traced: tuple[str, TracedStep, TracedStep, Path],
) -> None:
    _, h100, a100, _ = traced
    first = next(i for i, each in enumerate(a100.operators) if each.parameters)
    operators = list(a100.operators)
    operators[first] = replace(operators[first], parameters=())
    target = Target("dgx-h100", {"dp": 16}, other_gpus={"1": A100})
    for other, said in (
        (replace(a100, operators=a100.operators[: first + 1]), "layers and"),
        (replace(a100, operators=tuple(operators)), "layer '.*' has"),
        (replace(a100, sequence=7), "samples of 7 tokens"),
        (replace(a100, batch=2 * a100.batch), "bytes a sample"),
    ):
        with pytest.raises(InputError, match=f"are of different steps: .*{said}"):
            extrapolate(h100, replace(target, traces={A100: other}))
    with pytest.raises(InputError, match="no rank has that GPU"):
        extrapolate(h100, replace(target, traces={"v100-sxm2-32gb": a100}))
    with pytest.raises(InputError, match="lines to one trace"):
        extrapolate(h100, replace(target, traces={A100: a100}, scaling="li"))


def test_the_command_and_an_experiment_say_the_same(
    traced: tuple[str, TracedStep, TracedStep, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = traced[3]
    words = ["--cluster", "dgx-h100", "--plan", "dp=16", "--other-gpus", f"1={A100}"]
    paths = ["--traced-gpu", H100, "--trace-of", f"{A100}={folder / A100}", "--details"]
    assert main(["extrapolate", str(folder / H100), *words, *paths]) == 0
    told = capsys.readouterr().out
    assert "ranks on NVIDIA A100" in told
    toml = tmp_path / "mixed.toml"
    toml.write_text(f"""
[workload]
trace = "{folder / H100}"
traced_gpu = "{H100}"
trace_of = {{ {A100} = "{folder / A100}" }}
[cluster]
preset = "dgx-h100"
nodes = 2
other_gpus = {{ 1 = "{A100}" }}
""")
    assert main(["run", str(toml)]) == 0
    assert capsys.readouterr().out.split()[2] == told.split()[2]
    assert main(["extrapolate", str(folder / H100), *words, "--trace-of", A100]) == 2
    assert "not of the form GPU=TRACE" in capsys.readouterr().err


def test_a_trace_of_another_gpu_than_is_said_is_refused(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vgg = str(shared / "traces" / "triosim_vgg13_h100_1gpu" / "kineto.json.gz")
    words = ["--plan", "dp=16", "--other-gpus", f"1={A100}", "--trace-of", f"{A100}={vgg}"]
    assert main(["extrapolate", vgg, *words]) == 2
    assert "which is h100-sxm, and is said to be of a100-sxm" in capsys.readouterr().err
    assert main(["extrapolate", vgg, "--traced-gpu", "h100-pcie"]) == 2
    assert "'NVIDIA H100 80GB HBM3', which is h100-sxm" in capsys.readouterr().err
    # A GPU that is not in the list, but has as many multiprocessors: said.
    dgx = str(shared / "traces" / "resnet50_v100_1gpu_workers0" / "kineto.json.gz")
    assert main(["extrapolate", dgx, "--step", "6", "--traced-gpu", A100]) == 2
    assert "with 80 multiprocessors" in capsys.readouterr().err
    assert main(["extrapolate", dgx, "--step", "6", "--traced-gpu", "V100", "--details"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "recorded on 'Tesla V100-DGXS-32GB': as on v100-sxm2-16gb" in out
    # A description of one's own is of the GPU that one says.
    own = tmp_path / "mine.toml"
    own.write_text(
        '[ours]\ntitle = "Ours"\nfamily = "hopper"\nsms = 132\n'
        + "\n".join(
            f'{key} = {{ value = {value}, unit = "{unit}", error = 0, source = "measured" }}'
            for key, value, unit in (
                ("memory", 80, "GB"),
                ("bandwidth", 3.2, "TB/s"),
                ("peak_bf16", 900, "TFLOP/s"),
                ("peak_fp32", 60, "TFLOP/s"),
            )
        )
    )
    assert main(["extrapolate", vgg, "--traced-gpu", str(own)]) == 0
