"""Attention kernels beside closed forms, and experts of unequal loads."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from test_kernel_products import H100, seconds

from mpisim.data import path as packaged_path
from mpisim.kernels.analytical import formula_of
from mpisim.kernels.analytical.tiles import (
    expected_tiles,
)
from mpisim.kernels.fitting import fit, log_errors
from mpisim.kernels.measured import read
from mpisim.kernels.operations import (
    Attention,
    GroupedGemm,
)


class TestAttention:
    def test_masks_halve_long_sequences(self) -> None:
        full = Attention(1, 16, 16, 32768, 32768, 128, 128, causal=False)
        half = replace(full, causal=True)
        assert seconds(half) / seconds(full) == pytest.approx(0.5, abs=0.01)
        short = replace(full, batch=256, queries=128, keys=128)
        assert seconds(replace(short, causal=True)) == pytest.approx(seconds(short))

    def test_a_window_takes_whole_blocks(self) -> None:
        # Of 128 blocks 2,048 tokens see 17, but for the first: 17 - 17 x 16 / 256; 4,000 see 33.
        whole = Attention(1, 16, 16, 16384, 16384, 128, 128, causal=False)
        blocks = {2048: 17 - 17 * 16 / 256, 4000: 33 - 33 * 32 / 256, 20000: 129 / 2}
        for window, seen in blocks.items():
            kernel = replace(whole, causal=True, window=window)
            found = [seconds(each, prologue=0.0, floor=0.0) for each in (kernel, whole)]
            assert found[0] / found[1] == pytest.approx(seen / 128, rel=0.02)
        windowed = replace(whole, causal=True, window=2048)
        assert windowed.flops * 16384 == whole.flops * (2048 - 2048**2 // 32768)

    def test_small_heads_are_slower(self) -> None:
        def rate(size: int, heads: int) -> float:
            kernel = Attention(1, heads, heads, 16384, 16384, size, size)
            return kernel.flops / seconds(kernel)

        assert rate(64, 32) < 0.85 * rate(128, 16)

    def test_arithmetic_by_hand(self) -> None:
        # 132 tiles on 132 multiprocessors, without anything on top of products and exponentials.
        kernel = Attention(1, 4, 4, 33 * 128, 4096, 128, 128, causal=False)
        found = seconds(
            kernel, efficiency=1.0, softmax=1.0, prologue=0.0, quantisation=1.0, floor=0.0
        )
        products = 512 / (H100.peaks["bf16"] / 132)
        exponential = 1 / (16 * H100.clock)
        assert found == pytest.approx(128 * 4096 * (products + exponential), rel=0.02)

    def test_measured(self) -> None:
        """Published rates of FlashAttention 2 to 4 on four GPUs, then on one."""
        every = read(packaged_path("calibration/attention.csv"))[0]
        batches = [rows for rows in every if rows.family == "attention"]
        formula = formula_of("attention")
        together = fit(formula, batches)
        errors = [np.abs(np.expm1(each)) for each in log_errors(formula, batches, together)]
        assert np.concatenate(errors).mean() < 0.1
        (hopper,) = (rows for rows in batches if rows.gpu == "h100-sxm")
        (ratio,) = log_errors(formula, [hopper], fit(formula, [hopper], together.constants))
        assert np.abs(np.expm1(ratio)).mean() < 0.045


class TestRaggedExperts:
    """Rows of experts that a router without preference spreads."""

    @pytest.mark.parametrize("mean", [0.9, 1.3, 16.0, 40.7])
    @pytest.mark.parametrize("spread", [0.05, 0.2, 0.45])
    def test_whole_tiles_on_average(self, mean: float, spread: float) -> None:
        above = [0.5 * math.erfc((j - mean) / spread / math.sqrt(2)) for j in range(80)]
        assert expected_tiles(mean, spread) == pytest.approx(sum(above), abs=0.03)
        many = expected_tiles(np.array([mean, mean]), np.array([spread, 0.0]))
        assert many.tolist() == pytest.approx([expected_tiles(mean, spread), math.ceil(mean)])

    def test_half_a_tile_more_than_as_many_for_each(self) -> None:
        even = GroupedGemm(8 * 2048, 8, 2048, 4096)
        ragged = replace(even, ragged=True)
        # Of 8 to 32 tiles each half of one.
        assert 1.01 < seconds(ragged) / seconds(even) < 1.07
        assert seconds(replace(ragged, weight=True)) == seconds(replace(even, weight=True))
