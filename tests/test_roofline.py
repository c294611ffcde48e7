"""Kernel durations by roofline, every sum on a machine of round numbers beside the assertion.

The machine: 1 TB/s of memory of which streaming kernels reach 0.5 and reductions 0.25; bf16 at
100 TFLOP/s of which products reach 0.5 and attention 0.25; 4 us to start a product, 1 us others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import ROUND, exact

from mpisim.base.errors import InputError
from mpisim.base.quantity import Quantity
from mpisim.kernels import Estimate, Gpu, KernelModel, Roofline, find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.operations import (
    Attention,
    Convolution,
    Copy,
    CrossEntropy,
    Elementwise,
    Embedding,
    Gemm,
    GroupedGemm,
    Kernel,
    Norm,
    OptimizerStep,
    Softmax,
)


def on_round(kernel: Kernel) -> Estimate:
    return Roofline(ROUND).estimate(kernel)


def test_a_large_product_is_bound_by_arithmetic() -> None:
    # 2 × 1000 × 5000 × 5000 = 5e10 FLOP at 100e12 × 0.5 FLOP/s = 1 ms, and 4 us.
    # 2 × (5e6 + 25e6 + 5e6) = 7e7 bytes at 1e12 × 0.5 B/s = 0.14 ms: less.
    estimate = on_round(Gemm(1000, 5000, 5000))
    assert estimate.duration == 1_004_000_000
    assert estimate.shares == pytest.approx(
        {"peak_bf16": 1 / 1.004, "gemm_fraction": 1 / 1.004, "gemm_floor": 0.004 / 1.004}
    )


def test_a_thin_product_is_bound_by_memory() -> None:
    # 2 × (5000 + 25e6 + 5000) = 50.02e6 bytes at 0.5e12 B/s = 100.04 us, and 4 us.
    estimate = on_round(Gemm(1, 5000, 5000))
    assert estimate.duration == 104_040_000
    assert set(estimate.shares) == {"bandwidth", "memory_fraction", "gemm_floor"}


def test_adding_to_fp32_moves_more_memory() -> None:
    # 2 × (100 × 10 + 10 × 100) + 8 × 100 × 100 = 84,000 bytes: 0.168 us, and 4 us.
    kernel = Gemm(100, 100, 10, output="fp32", accumulate=True)
    assert on_round(kernel).duration == 4_168_000


# 5e10 FLOP, on each format's own units: fp32 10e12 × 0.8, tf32 50e12 × 0.5, fp8 200e12 × 0.25,
# nvfp4 400e12 × 0.25.
@pytest.mark.parametrize(
    ("dtype", "ms", "fraction"),
    [
        ("fp32", 6.25, "fp32_fraction"),
        ("tf32", 2.0, "gemm_fraction"),
        ("fp16", 1.0, "gemm_fraction"),
        ("fp8", 1.0, "fp8_fraction"),
        ("nvfp4", 0.5, "fp8_fraction"),
    ],
)
def test_each_format_has_its_own_rate(dtype: str, ms: float, fraction: str) -> None:
    estimate = on_round(Gemm(1000, 5000, 5000, dtype=dtype))  # type: ignore[arg-type]
    assert estimate.duration == ms * 1e9 + 4_000_000
    assert set(estimate.shares) == {f"peak_{dtype}", fraction, "gemm_floor"}


def test_grouped_products() -> None:
    # The same 5e10 FLOP at half the rate of one product: 2 ms, and 4 us.
    estimate = on_round(GroupedGemm(rows=1000, groups=4, n=5000, k=5000))
    assert estimate.duration == 2_004_000_000
    assert estimate.shares["grouped_gemm_factor"] == estimate.shares["gemm_fraction"]


# Two products of 2 × 1 × 8 × 1000² × 125 = 2e9 FLOP, half of them masked; backward five.
# At 25e12 FLOP/s 2e9 take 80 us.
@pytest.mark.parametrize(
    ("causal", "backward", "us"),
    [(True, False, 80), (False, False, 160), (True, True, 200), (False, True, 400)],
)
def test_attention(causal: bool, backward: bool, us: int) -> None:
    kernel = Attention(1, 8, 8, 1000, 1000, 125, 125, causal=causal, backward=backward)
    estimate = on_round(kernel)
    assert estimate.duration == (us + 4) * 1_000_000
    assert set(estimate.shares) == {"peak_bf16", "attention_fraction", "gemm_floor"}


# 2 × 10 × 50² pixels × 100 × 100 × 3² = 4.5e9 FLOP: in tf32 at 10e12 FLOP/s 450 us, in fp32 at
# 12.5e12 (Winograd's algorithm) 360 us.
@pytest.mark.parametrize(
    ("dtype", "us", "fraction"),
    [("tf32", 450, "convolution_fraction"), ("fp32", 360, "fp32_convolution_fraction")],
)
def test_convolution(dtype: str, us: int, fraction: str) -> None:
    kernel = Convolution(10, 100, 100, 50, 50, 3, dtype=dtype)  # type: ignore[arg-type]
    estimate = on_round(kernel)
    assert estimate.duration == (us + 4) * 1_000_000
    assert set(estimate.shares) == {f"peak_{dtype}", fraction, "gemm_floor"}


# (kernel, bytes, share of 1 TB/s): each takes bytes / (share × 1e6) us, and 1 us.
@pytest.mark.parametrize(
    ("kernel", "bytes", "fraction", "share"),
    [
        (Elementwise(1_000_000), 1_000_000, "memory_fraction", 0.5),
        (OptimizerStep(1_000_000, 30), 30_000_000, "memory_fraction", 0.5),
        (Copy(1_000_000), 2_000_000, "memory_fraction", 0.5),
        (Copy(1_000_000, path="fill"), 1_000_000, "memory_fraction", 0.5),
        (Norm(1000, 1000), 4_000_000, "reduction_fraction", 0.25),
        (Norm(1000, 1000, kind="batch", backward=True), 10_000_000, "reduction_fraction", 0.25),
        (Softmax(1000, 1000, backward=True), 6_000_000, "reduction_fraction", 0.25),
        (CrossEntropy(1000, 1000), 6_000_000, "reduction_fraction", 0.25),
        # 8-byte indices, and rows of 200 bytes: 1000 in and 100 out.
        (Embedding(1000, 100, 10**6, pooling=10), 228_000, "embedding_fraction", 0.1),
    ],
)
def test_moving_memory(kernel: Kernel, bytes: int, fraction: str, share: float) -> None:
    estimate = on_round(kernel)
    work = bytes / share  # ps: 1 TB/s is 1 byte a ps
    assert estimate.duration == pytest.approx(work + 1_000_000, abs=1)
    assert estimate.shares == pytest.approx(
        {
            "bandwidth": work / (work + 1e6),
            fraction: work / (work + 1e6),
            "memory_floor": 1e6 / (work + 1e6),
        }
    )


def test_copies_from_the_host_take_its_bus() -> None:
    # 1e6 bytes at 20e9 × 0.5 B/s = 100 us, and 2 us.
    estimate = on_round(Copy(1_000_000, path="host"))
    assert estimate.duration == 102_000_000
    assert set(estimate.shares) == {"pcie", "pcie_fraction", "copy_floor"}


@given(m=st.integers(1, 10_000), n=st.integers(1, 10_000), k=st.integers(1, 10_000))
def test_no_product_beats_the_machine(m: int, n: int, k: int) -> None:
    kernel = Gemm(m, n, k)
    estimate = on_round(kernel)
    assert estimate.duration >= kernel.flops / 50e12 * 1e12
    assert estimate.duration <= on_round(Gemm(m + 1, n, k)).duration


@given(m=st.integers(1, 5000), k=st.integers(1, 5000), up=st.sampled_from(["peak", "floor"]))
def test_shares_are_first_derivatives(m: int, k: int, up: str) -> None:
    # A number 0.1 % larger changes the duration by 0.1 % of its share: less time for a rate, more
    # for a time. Where the two sides of the roofline meet, the derivative jumps: left out.
    name = {"peak": "peak_bf16", "floor": "gemm_floor"}[up]
    kernel = Gemm(m, 2000, k)
    before = on_round(kernel)
    old = getattr(ROUND, name)
    changed = dataclasses.replace(ROUND, **{name: exact(old.value * 1.001, old.unit)})
    after = Roofline(changed).estimate(kernel)
    if set(after.shares) != set(before.shares):
        return
    sign = -1 if up == "peak" else 1
    expected = sign * 0.001 * before.shares.get(name, 0.0) * before.duration
    assert after.duration - before.duration == pytest.approx(expected, rel=2e-3, abs=2)


def test_a_kernel_is_priced_once() -> None:
    model: KernelModel = Roofline(ROUND)
    assert model.gpu is ROUND
    assert model.estimate(Gemm(10, 10, 10)) is model.estimate(Gemm(10, 10, 10))
    assert model.estimate(Gemm(10, 10, 10)) is not model.estimate(Gemm(10, 10, 10, batch=2))


def test_a_format_that_the_gpu_lacks_is_refused() -> None:
    v100 = Roofline(find_gpu("v100-sxm2-16gb"))
    with pytest.raises(InputError, match="V100 SXM2 16 GB has no bf16; it has fp32, fp16"):
        v100.estimate(Gemm(10, 10, 10))
    # Kernels that only move memory need no units for their format.
    assert v100.estimate(Norm(10, 10, dtype="bf16")).duration > 0


def test_a_kind_that_the_model_does_not_know_is_refused() -> None:
    class Fft(Kernel):
        family = "fft"
        traffic = 8

    with pytest.raises(InputError, match="no kernels of the family 'fft'"):
        on_round(Fft())


# Best bf16 rates of ml-engineering's sweeps (TFLOP/s): a large product lies between them and half
# of them.
@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("a100-sxm", 271.2),
        ("a100-pcie-80gb", 252.9),
        ("h100-sxm", 794.5),
        ("gh200-96gb", 828.6),
        ("b200", 1745.0),
        ("gb200", 1822.0),
        ("b300", 1769.0),
        ("mi300x", 668.4),
    ],
)
@pytest.mark.parametrize("model", [Roofline, Analytical])
def test_large_products_reach_what_is_measured(
    model: Callable[[Gpu], Roofline | Analytical], name: str, best: float
) -> None:
    kernel = Gemm(8192, 8192, 8192)
    estimate = model(find_gpu(name)).estimate(kernel)
    assert 0.5 * best < kernel.flops / estimate.duration <= best


def test_every_share_is_a_number_of_the_gpu() -> None:
    kernels = [Gemm(9, 9, 9), Elementwise(9), Norm(9, 9), Embedding(9, 9, 9), Copy(9, path="host")]
    for kernel in kernels:
        for name in on_round(kernel).shares:
            assert isinstance(getattr(ROUND, name), Quantity)
