"""Li's regression lines over the kernels of a trace, as a choice for scaling."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from test_extrapolate import grown, seconds

from mpisim.cli import main
from mpisim.extrapolate import TracedStep, read_step
from mpisim.extrapolate.li_scaling import LiScaling, lines_of
from mpisim.extrapolate.step import TracedKernel, TracedOperator
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import analytical_model
from mpisim.kernels.operations import Elementwise, Gemm, Kernel

H100, A100 = find_gpu("h100-sxm"), find_gpu("a100-sxm")
FLOOR, ARITHMETIC, MEMORY = 4e-6, 1.6, 1.3


def line(kernel: Kernel) -> float:
    """Seconds of a kernel on the H100, by a line that is known."""
    peak, bandwidth = H100.peak("bf16").si, H100.bandwidth.si
    return FLOOR + ARITHMETIC * kernel.flops / peak + MEMORY * kernel.traffic / bandwidth


def step_of(kernels: list[Kernel]) -> TracedStep:
    tasks = [
        TracedKernel("kernel", "aten::mm", call, round(line(each) * 1e12), (each,))
        for call, each in enumerate(kernels)
    ]
    operator = TracedOperator("aten::mm", "layer 1", tuple(tasks))
    return TracedStep("x.json", "h100-sxm", 8, (operator,), (), 10**9)


def products() -> list[Kernel]:
    rng = np.random.default_rng(1)
    sizes = (2 ** rng.uniform(7, 13, (12, 3))).astype(int).tolist()
    return [Gemm(m, n, k, dtype="bf16", output="bf16") for m, n, k in sizes]


def test_a_known_line_is_found() -> None:
    lines = lines_of(step_of(products()), H100)
    ((key, found),) = [each for each in lines.regression.items() if each[0][1] != "any"]
    assert key == ("gemm", "h100-sxm", "bf16")
    assert (found.floor, found.arithmetic, found.memory) == pytest.approx(
        (FLOOR, ARITHMETIC, MEMORY), rel=1e-3
    )
    assert found.error < 1e-3
    assert lines.share == 1
    new = Gemm(3000, 5000, 700, dtype="bf16", output="bf16")
    model = LiScaling(analytical_model(H100), lines)
    assert model.estimate(new).duration == pytest.approx(line(new) * 1e12, rel=1e-3)
    # On another GPU slopes go with the datasheet, and Li's error of new GPUs counts.
    other = LiScaling(analytical_model(A100), lines).estimate(new)
    peak, bandwidth = A100.peak("bf16").si, A100.bandwidth.si
    by_hand = FLOOR + ARITHMETIC * new.flops / peak + MEMORY * new.traffic / bandwidth
    assert other.duration == pytest.approx(by_hand * 1e12, rel=1e-3)
    assert other.error == pytest.approx(0.152, rel=0.01)


def test_kinds_without_enough_calls_keep_the_kernel_model() -> None:
    few = lines_of(step_of([*products()[:5], Elementwise(10**6)]), H100)
    alike = lines_of(step_of([products()[0]] * 20), H100)
    for lines in (few, alike):
        assert not lines.regression
        assert "none has enough calls" in lines.notes[0]
        assert "100 % of the kernels' time, by the kernel model" in lines.notes[0]
        plain = analytical_model(H100)
        kernel = products()[7]
        assert LiScaling(plain, lines).estimate(kernel) == plain.estimate(kernel)


def test_vgg13_beside_another_measured_batch(shared: Path, tmp_path: Path) -> None:
    """TrioSim's own way, on its own trace: 128 samples scaled to 512, which are measured, too."""
    for name in ("trace.csv.gz", "tensor.csv.gz"):
        shutil.copy(shared / "traces/triosim_vgg13_h100_1gpu" / name, tmp_path)
    tables = read_step(tmp_path, gpu="h100")
    kineto = read_step(shared / "traces/triosim_vgg13_h100_1gpu/kineto.json.gz")
    assert seconds(grown(tables, scaling="li")) == pytest.approx(tables.measured / 1e12, rel=1e-4)
    more = seconds(grown(tables, batch=512, scaling="li"))
    assert more == pytest.approx(kineto.kernel_time / 1e12, rel=0.06)
    notes = grown(tables, batch=512, scaling="li").assumptions[-1]
    assert "convolution in tf32 (20 calls" in notes


def test_the_option(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(shared / "traces/triosim_vgg13_h100_1gpu/kineto.json.gz")
    assert main(["extrapolate", trace, "--batch", "256", "--scaling", "li", "--details"]) == 0
    assert "Li's lines over the trace's own kernels" in capsys.readouterr().out
    several = str(shared / "traces/megatron_gpt_tp2pp2dp2_a800_8rank")
    assert main(["extrapolate", several, "--scaling", "li"]) == 2
    assert "--scaling is for traces of one GPU" in capsys.readouterr().err
