"""Traces that are no whole training step of one GPU: one line says what is missing."""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_extrapolate_inputs import VGG, events

from mpisim.base.errors import InputError
from mpisim.cli import main
from mpisim.extrapolate import read_step

Events = list[dict[str, Any]]


def begin(each: dict[str, Any]) -> float:
    return float(each.get("ts", 0.0))


def is_forward(each: dict[str, Any]) -> bool:
    return each.get("cat") == "cpu_op" and "ackward" not in each["name"]


def of_two_gpus(content: Events) -> Events:
    """Half of the kernels on another device, as ``DataParallel`` has them."""
    for i, each in enumerate(each for each in content if each.get("cat") == "kernel"):
        each["args"]["device"] = i % 2
    return content


def begun_late(content: Events) -> Events:
    """Recording begins behind the first convolutions."""
    convolutions = sorted(
        begin(each) for each in content if is_forward(each) and each["name"] == "aten::conv2d"
    )
    return [each for each in content if "ts" not in each or begin(each) >= convolutions[3]]


def without_backward(content: Events) -> Events:
    starts = [begin(each) for each in content if "evaluate_function" in each.get("name", "")]
    return [each for each in content if "ts" not in each or begin(each) < min(starts)]


def backward_alone(content: Events) -> Events:
    starts = [begin(each) for each in content if "evaluate_function" in each.get("name", "")]
    return [each for each in content if "ts" not in each or begin(each) >= min(starts)]


def without_kernels(content: Events) -> Events:
    """A third of the kernels dropped, as from a full buffer."""
    rng = random.Random(1)
    return [each for each in content if each.get("cat") != "kernel" or rng.random() > 1 / 3]


def without_launches(content: Events) -> Events:
    rng = random.Random(1)
    return [each for each in content if each.get("cat") != "cuda_runtime" or rng.random() > 1 / 3]


def without_operators(content: Events) -> Events:
    rng = random.Random(1)
    return [each for each in content if each.get("cat") != "cpu_op" or rng.random() > 1 / 3]


def without_calls(content: Events) -> Events:
    return [each for each in content if each.get("cat") not in ("cuda_runtime", "cuda_driver")]


def without_pairs(content: Events) -> Events:
    """Kernels have numbers that no call has."""
    found = copy.deepcopy(content)
    for each in found:
        if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            each["args"]["correlation"] += 10**6
    return found


def ended_early(content: Events) -> Events:
    """Recording ends with the CPU's part of the step, which is ahead of the device."""
    ends = [begin(each) + each["dur"] for each in content if each.get("cat") == "cuda_runtime"
            if each["name"] == "cudaLaunchKernel"]  # fmt: skip
    return [each for each in content if "ts" not in each or begin(each) <= max(ends)]


def of_cpu_alone(content: Events) -> Events:
    return [
        each for each in content if each.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset")
    ]


def of_gpu_alone(content: Events) -> Events:
    return [each for each in content if each.get("cat") not in ("cpu_op", "user_annotation")]


def repeated(content: Events, keep: Callable[[dict[str, Any]], bool], mark: bool) -> Events:
    """The step, and behind it one of another model: of the layers that are kept."""
    left_out = {
        each["args"]["correlation"]
        for each in content
        if each.get("cat") == "kernel" and not keep(each)
    }
    times = [begin(each) for each in content if each.get("ph") == "X"]
    span = max(times) - min(times) + 1e6
    second = []
    for each in copy.deepcopy(content):
        args = each.get("args", {})
        if each.get("ph") != "X" or args.get("correlation") in left_out:
            continue
        each["ts"] += span
        for key in ("correlation", "External id"):
            if key in args:
                args[key] = int(args[key]) + 10**6
        if args.get("Sequence number", -1) >= 0:
            args["Sequence number"] += 10**5
        second.append(each)
    found = [*content, *second]
    if mark:
        first = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#5", "pid": 1, "tid": 1}
        found.append({**first, "ts": min(times) - 1, "dur": 2 * span})
    return found


def kept(each: dict[str, Any]) -> bool:
    """Whether an event is of a second, smaller model: without gradients of biases."""
    return "reduce_kernel" not in each["name"]


BROKEN: dict[str, tuple[Callable[[Events], Events], str]] = {
    "two GPUs": (of_two_gpus, "kernels of 2 GPUs (0, 1)"),
    "begun late": (begun_late, "layers are missing"),
    "no backward pass": (without_backward, "forward pass alone"),
    "backward alone": (backward_alone, "layers are missing"),
    "kernels dropped": (without_kernels, "launches have no kernel"),
    "launches dropped": (without_launches, "kernels have no launch"),
    "operators dropped": (without_operators, "operators others are left out"),
    "no calls": (without_calls, "records no calls that launch kernels"),
    "no pairs": (without_pairs, "none of its calls has the number"),
    "ended early": (ended_early, "recording ended before the device did"),
    "CPU alone": (of_cpu_alone, "no GPU kernels"),
    "GPU alone": (of_gpu_alone, "forward pass alone"),
    "two models": (lambda content: repeated(content, kept, False), "of two models"),
    "two models in one step": (lambda content: repeated(content, kept, True), "take turns"),
    "accumulated": (lambda content: repeated(content, lambda each: True, True), "take turns"),
}


def broken(shared: Path, folder: Path, name: str) -> Path:
    content = events(shared / VGG / "kineto.json.gz")
    content["traceEvents"] = BROKEN[name][0](content["traceEvents"])
    path = folder / "broken.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_missing_is_said(shared: Path, tmp_path: Path, name: str) -> None:
    path = broken(shared, tmp_path, name)
    with pytest.raises(InputError) as error:
        read_step(path)
    assert BROKEN[name][1] in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_shapes_of_older_recorders_are_read(shared: Path, tmp_path: Path) -> None:
    """PyTorch 1.8 writes other categories, and ``Input dims`` (pytorch/kineto, tb_plugin)."""
    content = events(shared / VGG / "kineto.json.gz")
    names = {"cpu_op": "Operator", "kernel": "Kernel", "cuda_runtime": "Runtime",
             "gpu_memcpy": "Memcpy", "gpu_memset": "Memset"}  # fmt: skip
    for each in content["traceEvents"]:
        if "cat" in each:
            each["cat"] = names.get(each["cat"], each["cat"])
        if "Input Dims" in each.get("args", {}):
            each["args"]["Input dims"] = each["args"].pop("Input Dims")
    path = tmp_path / "old.json"
    path.write_text(json.dumps(content))
    found, today = read_step(path), read_step(shared / VGG / "kineto.json.gz")
    assert found.measured == today.measured
    assert found.parameters == today.parameters


@pytest.mark.parametrize(
    ("sizes", "said"), [([-1, 3], "sizes -1 × 3"), ([2**40, 2**40], "elements at most")]
)
def test_sizes_that_no_tensor_has(
    shared: Path, tmp_path: Path, sizes: list[int], said: str
) -> None:
    content = events(shared / VGG / "kineto.json.gz")
    for each in content["traceEvents"]:
        if each.get("name") == "aten::relu_":
            each["args"]["Input Dims"] = [sizes]
    path = tmp_path / "sizes.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"sizes.json: operator 'aten::relu_': .*{said}"):
        read_step(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [("version https://git-lfs.github.com/spec/v1\n", "git lfs pull"), ("<html>", "page of HTML")],
)
def test_what_is_no_trace_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "step.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_step(path)


def test_two_equal_steps_are_one_model(shared: Path, tmp_path: Path) -> None:
    content = events(shared / VGG / "kineto.json.gz")
    content["traceEvents"] = repeated(content["traceEvents"], lambda each: True, False)
    path = tmp_path / "twice.json"
    path.write_text(json.dumps(content))
    step = read_step(path)
    assert step.batch == 512
    assert "2 steps without marks" in step.notes[0]


def test_a_program_is_no_trace(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, program = str(shared / VGG / "kineto.json.gz"), str(tmp_path / "step.h5")
    assert main(["extrapolate", trace, "--save-program", program]) == 0
    capsys.readouterr()
    assert main(["extrapolate", program, "--plan", "dp=2"]) == 2
    error = capsys.readouterr().err
    assert "holds no shapes of tensors" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["two GPUs", "begun late"])
def test_the_command_on_several_processes(
    shared: Path, tmp_path: Path, name: str, run_mpisim: Any
) -> None:
    path = broken(shared, tmp_path, name)
    alone, together = (run_mpisim(["extrapolate", path], nprocs=n) for n in (1, 2))
    assert alone.rc == together.rc == 2
    assert alone.errors == together.errors
    assert len(alone.errors) == 1
    assert BROKEN[name][1] in alone.errors[0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("torchrec_dlrm_fp32_v100_4rank/kineto_rank0.json.gz", "communication kernels"),
        ("resnet50_v100_1gpu_workers0/kineto.json.gz", "--traced-gpu"),
        ("owlv2_h100_1gpu/kineto.json.gz", "forward pass alone"),
        ("resnet50_ddp_v100_rank0of8/kineto_rank0.json.gz", "communication kernels"),
    ],
)
def test_what_other_recordings_lack_is_said(shared: Path, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        read_step(shared / "traces" / name)
    assert "\n" not in str(error.value)


def cut_trace(shared: Path, target: Path, change: Any) -> Path:
    path = shared / "traces/triosim_vgg13_h100_1gpu/kineto.json.gz"
    with gzip.open(path, "rt") as file:
        content = json.load(file)
    content["traceEvents"] = change(content["traceEvents"])
    with gzip.open(target, "wt") as file:
        json.dump(content, file)
    return target


def test_steps_without_marks(shared: Path, tmp_path: Path) -> None:
    marked = shared / "traces/resnet50_v100_1gpu_workers0/kineto.json.gz"
    with gzip.open(marked, "rt") as file:
        content = json.load(file)
    events = content["traceEvents"]
    content["traceEvents"] = [
        each for each in events if not str(each.get("name", "")).startswith("ProfilerStep")
    ]
    path = tmp_path / "unmarked.json"
    path.write_text(json.dumps(content))
    step = read_step(path, gpu="v100-sxm2-32gb")
    assert "6 steps without marks" in step.notes[0]
    assert sum(each.elements for each in step.parameters) == 25_557_032
    assert 0.09 < step.measured / 1e12 < 0.2


def test_a_trace_without_gradients(shared: Path, tmp_path: Path) -> None:
    def without(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [each for each in events if "AccumulateGrad" not in each.get("name", "")]

    path = cut_trace(shared, tmp_path / "cut.json.gz", without)
    with pytest.raises(InputError, match="which tensors are weights"):
        read_step(path)
