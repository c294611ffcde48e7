"""Kernels of fused attention: their published rates on an H100, and what serves elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpisim.data import path as packaged_path
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.measured import read
from mpisim.kernels.operations import ATTENTION_VARIANTS, Attention, Gemm


def attention(name: str, *sizes: Any) -> Attention:
    """Name in experiments, sizes → attention by that kernel."""
    return Attention(*sizes, variant=ATTENTION_VARIANTS[name])


@pytest.mark.parametrize(
    ("kernel", "gpu", "dtype"),
    [
        ("cudnn", "h100-sxm", "bf16"),
        ("flash-2", "h100-sxm", "bf16"),
        ("cudnn", "gb200", "bf16"),
        ("cudnn", "gb300", "bf16"),
        ("cudnn", "gb200", "fp8"),
        ("cudnn", "gb300", "fp8"),
    ],
)
def test_other_kernels(kernel: str, gpu: str, dtype: str) -> None:
    """Those of an H100, as arXiv:2407.08608 measured them, and newer ones as NVIDIA did."""
    family = f"attention_{ATTENTION_VARIANTS[kernel]}"
    files = ("calibration/attention.csv", "calibration/attention_cudnn.csv")
    every = [rows for file in files for rows in read(packaged_path(file))[0]]
    wanted = (family, gpu, dtype)
    measured = [each for each in every if (each.family, each.gpu, each.dtype) == wanted]
    assert measured
    model = Analytical(find_gpu(gpu), alone=True)
    assert model.look_up(family, dtype).name == f"{family}.{gpu}.{dtype}"
    for rows in measured:
        found = model.estimate_many(family, rows.columns)
        assert np.abs(found / rows.seconds - 1).mean() < 0.07


def test_kernels_around_the_backward_pass() -> None:
    """An element of queries: results and their gradients read, sums cleared, read and rounded."""
    gpu = find_gpu("a100")
    model = Analytical(gpu)
    share = model.look_up("attention", "bf16").constants["memory"]
    short, long = (
        model.terms(attention("newest", 16384 // n, 16, 16, n, n, 64, 64, True, True))
        for n in (1024, 2048)
    )
    moved = 16384 * 16 * 64 * ((2 + 2 + 4) + (4 + 2))
    # The loop's own traffic hides behind its arithmetic.
    least = moved / (1e9 * gpu.bandwidth.value * share)
    assert least < short["memory"] < 1.02 * least
    assert least < long["memory"] < short["memory"]
    forward = model.terms(attention("newest", 16, 16, 16, 1024, 1024, 64, 64, True, False))
    assert forward["memory"] < 0.05 * least


def test_newer_is_faster() -> None:
    """On an H100: FlashAttention-3, cuDNN, FlashAttention-2, the one in Triton."""
    model = Analytical(find_gpu("h100-sxm"))
    order: list[str] = ["newest", "cudnn", "flash-2", "triton"]
    for backward in (False, True):
        times = [
            model.estimate(
                attention(each, 1, 16, 16, 16384, 16384, 128, 128, True, backward)
            ).duration
            for each in order
        ]
        assert times == sorted(times)


def test_pytorch_on_amd_by_its_date() -> None:
    """AITER's kernels, PyTorch since 2.9, whose backward pass is AITER's, PyTorch before."""
    shape = (1, 32, 8, 8192, 8192, 128, 128, True, True)
    for gpu in ("mi300x", "mi355x"):
        model = Analytical(find_gpu(gpu))
        newest, since, before = (
            model.estimate(attention(each, *shape)) for each in ("newest", "aotriton", "flash-2")
        )
        assert newest.duration < since.duration < before.duration
        assert newest.error < since.error


def test_triton_is_a_multiple() -> None:
    """arXiv:2307.08691: FlashAttention-2 is 1.4 and 2 times as fast, on any GPU."""
    for gpu in ("a100-sxm", "h100-sxm"):
        model = Analytical(find_gpu(gpu))
        for backward, ratio in ((False, 1.4), (True, 2.0)):
            shape = (2, 16, 16, 4096, 4096, 128, 128, True, backward)
            slow, fast = (model.estimate(attention(each, *shape)) for each in ("triton", "flash-2"))
            assert slow.duration == pytest.approx(ratio * fast.duration, rel=1e-6)
            assert slow.error > fast.error


@pytest.mark.parametrize(
    ("gpu", "tokens", "forward", "backward"),
    [
        ("b200", 16384, 6.602, 20.460),
        ("b200", 32768, 24.795, 79.338),
        ("gb300", 16384, 5.167, 17.345),
        ("gb300", 32768, 19.592, 66.679),
    ],
)
def test_cudnn_of_2025(gpu: str, tokens: int, forward: float, backward: float) -> None:
    """Milliseconds of 9.13: github:NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training."""
    model = Analytical(find_gpu(gpu), alone=True)
    shape = (1, 128, 8, tokens, tokens, 128, 128, True)
    for back, measured in ((False, forward), (True, backward)):
        found = model.estimate(attention("cudnn-9.13", *shape, back)).duration
        assert found == pytest.approx(1e9 * measured, rel=0.1)
        assert found > 1.05 * model.estimate(attention("cudnn", *shape, back)).duration


@pytest.mark.parametrize(
    ("shape", "backward", "rate"),
    [
        ((8, 16, 16, 4096, 4096, 128, 128, False), False, 353.9),
        ((4, 32, 32, 4096, 4096, 64, 64, False), False, 306.9),
        ((2, 32, 32, 8192, 8192, 64, 64, False), True, 329.1),
    ],
)
def test_flash_2_on_blackwell(shape: tuple[int, ...], backward: bool, rate: float) -> None:
    """TFLOP/s on a B200: tritonbench, pull request 171, and flash-attention, issue 1589.

    It reads back the source: the ratio of the variant was taken from these rates, which differ more
    from each other than its error.
    """
    found = Analytical(find_gpu("b200"), alone=True).estimate(
        attention("flash-2", *shape, backward)
    )
    batch, heads, _, tokens, _, size = shape[:6]
    flops = (2.5 if backward else 1) * 4 * batch * heads * tokens**2 * size
    assert flops / found.duration == pytest.approx(rate, rel=0.25)


def test_cudnn_of_2025_is_todays_on_hopper() -> None:
    """What was fitted to an H100 was measured before."""
    model = Analytical(find_gpu("h100-sxm"))
    shape = (1, 32, 8, 8192, 8192, 128, 128)
    times = [model.estimate(attention(each, *shape)).duration for each in ("cudnn", "cudnn-9.13")]
    assert times[1] == times[0]


def test_substitutes() -> None:
    """A kernel that was not measured on an architecture is taken to be the newest there."""
    model = Analytical(find_gpu("a100-sxm"))
    newest, cudnn = (model.look_up(each, "bf16") for each in ("attention", "attention_cudnn"))
    assert cudnn.name == newest.name
    assert cudnn.constants == newest.constants
    assert cudnn.borrowed
    assert cudnn.largest_error == pytest.approx(np.hypot(newest.largest_error, 0.15))
    assert model.look_up("attention_triton", "fp16").name == newest.name
    # The newest on Ampere is FlashAttention-2 itself, on Blackwell it is another kernel.
    assert model.look_up("attention_flash_2", "bf16").error(1e-3) == newest.error(1e-3)
    model = Analytical(find_gpu("gb200"))
    newest, older = (model.look_up(each, "bf16") for each in ("attention", "attention_flash_2"))
    assert older.largest_error == pytest.approx(np.hypot(newest.largest_error, 0.25))


def test_what_a_substitute_shares_with_its_base_is_off_together() -> None:
    """A variant's number is its base's, and a second one holds what it is off by beside that."""
    model = Analytical(find_gpu("gb200"))
    plain, split = (
        model.estimate(Gemm(8192, 8192, 8192, dtype="fp8", variant=each))
        for each in (None, "split")
    )
    base, beside = "gemm model (fp8)", "gemm_split beside gemm (fp8)"
    assert split.shares[base] == pytest.approx(plain.shares[base])
    assert model.numbers[beside].error == 0.05
    parts = split.shares[base] * model.numbers[base].error, split.shares[beside] * 0.05
    assert split.error == pytest.approx(np.hypot(*parts))
