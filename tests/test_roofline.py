"""Kernel durations by roofline, and the presets they come from."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import ROUND, exact

from mpisim.data import text
from mpisim.errors import InputError
from mpisim.kernels import Gpu, attention, attention_flops, find_gpu, gemm, gemm_flops, memory_bound
from mpisim.quantity import Quantity
from mpisim.schema import parse
from mpisim.topo import Cluster, find_cluster


def test_a_large_product_is_bound_by_arithmetic() -> None:
    # 2 × 1000 × 5000 × 5000 = 5e10 FLOP at 100e12 × 0.5 FLOP/s = 1 ms, and 4 us.
    # 2 × (5e6 + 25e6 + 5e6) = 7e7 bytes at 1e12 × 0.5 B/s = 0.14 ms: less.
    estimate = gemm(ROUND, 1000, 5000, 5000)
    assert gemm_flops(1000, 5000, 5000) == 50_000_000_000
    assert estimate.duration == 1_004_000_000
    assert estimate.shares == pytest.approx(
        {"peak": 1 / 1.004, "gemm_fraction": 1 / 1.004, "gemm_floor": 0.004 / 1.004}
    )


def test_a_thin_product_is_bound_by_memory() -> None:
    # 2 × (5000 + 25e6 + 5000) = 50.02e6 bytes at 0.5e12 B/s = 100.04 us, and 4 us.
    estimate = gemm(ROUND, 1, 5000, 5000)
    assert estimate.duration == 104_040_000
    assert set(estimate.shares) == {"bandwidth", "memory_fraction", "gemm_floor"}


def test_adding_to_fp32_moves_more_memory() -> None:
    # 2 × (100 × 10 + 10 × 100) + 8 × 100 × 100 = 84,000 bytes: 0.168 us, and 4 us.
    assert gemm(ROUND, 100, 100, 10, output_bytes=8).duration == 4_168_000


def test_attention_counts_what_the_mask_leaves() -> None:
    # Two products of 2 × 1 × 8 × 1000² × 125 = 2e9 FLOP, half of them masked.
    assert attention_flops(1, 8, 1000, 125, causal=False) == 4_000_000_000
    assert attention_flops(1, 8, 1000, 125) == 2_000_000_000
    assert attention_flops(1, 8, 1000, 125, backward=True) == 5_000_000_000
    # 2e9 FLOP at 25e12 FLOP/s = 80 us, and 4 us.
    assert attention(ROUND, 1, 8, 1000, 125).duration == 84_000_000


def test_moving_memory() -> None:
    # 1e6 bytes at 0.5e12 B/s = 2 us, and 1 us.
    estimate = memory_bound(ROUND, 1_000_000)
    assert estimate.duration == 3_000_000
    assert estimate.shares == pytest.approx(
        {"bandwidth": 2 / 3, "memory_fraction": 2 / 3, "memory_floor": 1 / 3}
    )


@given(m=st.integers(1, 10_000), n=st.integers(1, 10_000), k=st.integers(1, 10_000))
def test_no_product_beats_the_machine(m: int, n: int, k: int) -> None:
    estimate = gemm(ROUND, m, n, k)
    assert estimate.duration >= gemm_flops(m, n, k) / 50e12 * 1e12
    assert estimate.duration <= gemm(ROUND, m + 1, n, k).duration


@given(m=st.integers(1, 5000), k=st.integers(1, 5000), up=st.sampled_from(["peak", "gemm_floor"]))
def test_shares_are_first_derivatives(m: int, k: int, up: str) -> None:
    # A number 0.1 % larger changes the duration by 0.1 % of its share: less time for a rate, more
    # for a time. Where the two sides of the roofline meet, the derivative jumps: left out.
    before = gemm(ROUND, m, 2000, k)
    old = getattr(ROUND, up)
    changed = dataclasses.replace(ROUND, **{up: exact(old.value * 1.001, old.unit)})
    after = gemm(changed, m, 2000, k)
    if set(after.shares) != set(before.shares):
        return
    sign = -1 if up == "peak" else 1
    expected = sign * 0.001 * before.shares.get(up, 0.0) * before.duration
    assert after.duration - before.duration == pytest.approx(expected, rel=2e-3, abs=2)


@pytest.mark.parametrize(
    "estimate",
    [
        lambda: gemm(ROUND, 0, 1, 1),
        lambda: attention(ROUND, 1, 0, 1, 1),
        lambda: memory_bound(ROUND, 0),
    ],
)
def test_kernels_without_work_are_refused(estimate) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match="must be 1 or more"):
        estimate()


@pytest.mark.parametrize("name", sorted(parse(text("gpus.toml"), "gpus.toml")))
def test_gpu_presets_are_whole(name: str) -> None:
    preset = find_gpu(name)
    for field in dataclasses.fields(Gpu):
        number = getattr(preset, field.name)
        if isinstance(number, Quantity):
            # Only datasheet values may claim to be exact.
            assert number.error > 0 or "datasheet" in number.source, field.name
    for share in (preset.gemm_fraction, preset.attention_fraction, preset.memory_fraction):
        assert 0 < share.si <= 1
    # 8192³ in bf16, between the best rate known and half of it (ml-engineering, MAMF).
    best = {"h100-sxm": 794.5e12, "a100-sxm": 271.2e12}[name]
    rate = gemm_flops(8192, 8192, 8192) / (gemm(preset, 8192, 8192, 8192).duration / 1e12)
    assert 0.5 * best < rate <= best


@pytest.mark.parametrize("name", sorted(parse(text("clusters.toml"), "clusters.toml")))
def test_cluster_presets_are_whole(name: str) -> None:
    preset = find_cluster(name)
    assert find_gpu(preset.gpu)
    for field in dataclasses.fields(Cluster):
        number = getattr(preset, field.name)
        if isinstance(number, Quantity):
            assert number.error > 0
    assert preset.network_bandwidth.si < preset.node_bandwidth.si


def test_unknown_presets_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown GPU 'h100-smx' \(did you mean 'h100-sxm'\?\)"):
        find_gpu("h100-smx")
    with pytest.raises(InputError, match=r"unknown cluster 'dgx-h10' \(did you mean"):
        find_cluster("dgx-h10")
