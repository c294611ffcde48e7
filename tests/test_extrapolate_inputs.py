"""What a step can be read from: execution traces that bring shapes, and Nsight Systems exports."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from test_extrapolate import grown, seconds
from test_nsys import KERNEL, RUNTIME, Writer

from mpisim.base.errors import InputError
from mpisim.cli import main
from mpisim.extrapolate import TracedStep, read_step
from mpisim.extrapolate.step import TracedKernel

VGG = "traces/triosim_vgg13_h100_1gpu"
SHAPES = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")


def events(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt") as file:
        content: dict[str, Any] = json.load(file)
    return content


@pytest.fixture(scope="module")
def vgg(shared: Path) -> TracedStep:
    return read_step(shared / VGG / "kineto.json.gz")


@pytest.fixture(scope="module")
def shapeless(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of VGG-13 as a profiler without ``record_shapes`` would have written it."""
    content = events(shared / VGG / "kineto.json.gz")
    for each in content["traceEvents"]:
        for key in SHAPES:
            each.get("args", {}).pop(key, None)
    path = tmp_path_factory.mktemp("shapeless") / "kineto.json"
    path.write_text(json.dumps(content))
    return path


def durations(step: TracedStep) -> list[list[int]]:
    """Kernels of each operator; without fills, which the exports of these tests lack."""
    return [
        [
            task.duration
            for task in (*one.forward, *one.backward)
            if isinstance(task, TracedKernel) and task.name != "Memset (Device)"
        ]
        for one in step.operators
    ]


# --- execution traces -----------------------------------------------------------------------------


def test_an_execution_trace_brings_shapes(
    shared: Path, shapeless: Path, vgg: TracedStep, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="record_shapes=True"):
        read_step(shapeless)
    beside = Path(shutil.copy(shapeless, tmp_path))
    shutil.copy(shared / VGG / "et.json.gz", tmp_path)
    named = read_step(shapeless, execution_trace=shared / VGG / "et.json.gz")
    for step in (read_step(beside), read_step(tmp_path), named):
        assert (step.batch, step.gpu, step.parameters) == (vgg.batch, vgg.gpu, vgg.parameters)
        assert durations(step) == durations(vgg)
        assert "joined by names" in step.notes[0]
        for plan, batch in (({}, None), ({}, 128), ({"tp": 4}, None), ({"dp": 2, "pp": 2}, 1024)):
            ours = seconds(grown(step, dict(plan), batch=batch))
            assert ours == pytest.approx(seconds(grown(vgg, dict(plan), batch=batch)), rel=1e-3)


def test_an_execution_trace_of_one_of_many_steps(shared: Path) -> None:
    """PARAM's linear layers on an RTX 2080 Ti: 40 steps, and an execution trace of one of them."""
    step = read_step(shared / "traces/linear_2080ti_1gpu")
    assert (step.gpu, step.batch) == ("rtx-2080-ti", 512)
    weights = [each.shape for each in step.parameters if len(each.shape) > 1]
    assert set(weights) == {(1024, 1024)}
    assert len(step.layers()) == len(weights) == 21
    assert seconds(grown(step, cluster="dgx-v100", gpu="rtx-2080-ti")) == pytest.approx(
        step.measured / 1e12, rel=1e-3
    )


def test_execution_traces_that_do_not_belong(
    shared: Path, shapeless: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = str(shared / "traces/linear_2080ti_1gpu/et.json.gz")
    whole = str(shared / VGG / "kineto.json.gz")
    for trace, et, said in (
        (str(shapeless), other, "does not belong to"),
        (str(shapeless), str(tmp_path / "none.json"), "none.json"),
        (whole, str(shared / VGG / "et.json.gz"), "not needed"),
    ):
        assert main(["extrapolate", trace, "--execution-trace", et]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    shutil.copy(shapeless, tmp_path)
    for name in ("et_a.json.gz", "et_b.json.gz"):
        shutil.copy(shared / VGG / "et.json.gz", tmp_path / name)
    with pytest.raises(InputError, match="2 execution traces; --execution-trace names"):
        read_step(tmp_path / "kineto.json")


# --- Nsight Systems -------------------------------------------------------------------------------


def ranges(each: dict[str, Any], number: int, sizes: bool) -> str:
    """Kineto's operator → its NVTX range, as ``emit_nvtx(record_shapes=True)`` writes it.

    See getNvtxStr in torch/csrc/profiler/util.cpp.
    """
    args = each.get("args", {})
    text = str(each["name"])
    if args.get("Sequence number", -1) >= 0:
        text += f", seq = {args['Sequence number']}"
    text += f", op_id = {number}"
    if sizes and args.get("Input Dims"):
        text += f", sizes = {json.dumps(args['Input Dims'])}"
    return text


def export(source: Path, target: Path, *, sizes: bool = True) -> Path:
    """Write a Kineto trace of one GPU as Nsight Systems would have exported the same run."""
    content = sorted(
        (each for each in events(source)["traceEvents"] if each.get("ph") == "X"),
        key=lambda each: (each["ts"], -each["dur"]),
    )
    writer, process, number = Writer(), 1, 0
    zero = content[0]["ts"]
    writer.add("TARGET_INFO_GPU", 1, "NVIDIA H100 80GB HBM3", 132)

    def ns(each: dict[str, Any]) -> tuple[int, int]:
        start = round((each["ts"] - zero) * 1000)
        return start, start + round(each["dur"] * 1000)

    correlations: dict[int, int] = {}
    for each in content:
        if each["cat"] in ("cuda_runtime", "cuda_driver"):
            thread = process << 24 | int(each["tid"]) & 0xFFFFFF
            writer.correlation += 1
            correlations[each["args"]["correlation"]] = writer.correlation
            row = (*ns(each), thread, writer.correlation, writer.text(each["name"]))
            writer.add(RUNTIME, *row)
    for each in content:
        if each["cat"] in ("cpu_op", "user_annotation"):
            number += 1
            thread = process << 24 | int(each["tid"]) & 0xFFFFFF
            writer.add("NVTX_EVENTS", *ns(each), 59, ranges(each, number, sizes), None, thread)
        elif each["cat"] == "kernel":
            known = correlations[each["args"]["correlation"]]
            name = writer.text(each["name"])
            row = (*ns(each), 1, 1, 7, known, process << 24, name, 1, 1, 1)
            writer.add(KERNEL, *row)
        elif each["cat"] == "gpu_memset":
            pass
        elif each["cat"] == "gpu_memcpy":
            known = correlations[each["args"]["correlation"]]
            way = {"HtoD": 1, "DtoH": 2, "DtoD": 8}[each["name"].split()[1]]
            row = (*ns(each), 1, 1, 7, known, process << 24, each["args"]["bytes"], way, 0, 2)
            writer.add("CUPTI_ACTIVITY_KIND_MEMCPY", *row)
    return writer.write(target)


@pytest.fixture(scope="module")
def exported(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nsys")
    return export(shared / VGG / "kineto.json.gz", folder / "step.sqlite")


def test_a_step_of_nsight_systems(exported: Path, vgg: TracedStep) -> None:
    step = read_step(exported)
    assert (step.batch, step.gpu, step.parameters) == (vgg.batch, vgg.gpu, vgg.parameters)
    assert durations(step) == durations(vgg)
    assert "taken for fp32" in step.notes[0]
    assert seconds(grown(step)) == pytest.approx(step.measured / 1e12, rel=1e-3)
    # Strides and other numbers are not in ranges: here convolutions have the usual ones.
    for plan, batch in (({"dp": 4}, None), ({}, 128), ({"tp": 4}, None)):
        ours = seconds(grown(step, dict(plan), batch=batch))
        assert ours == pytest.approx(seconds(grown(vgg, dict(plan), batch=batch)), rel=0.02)


def test_an_export_without_sizes(shared: Path, tmp_path: Path) -> None:
    path = export(shared / VGG / "kineto.json.gz", tmp_path / "step.sqlite", sizes=False)
    with pytest.raises(InputError, match=r"emit_nvtx\(record_shapes=True\)"):
        read_step(path)
