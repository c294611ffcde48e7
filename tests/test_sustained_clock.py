"""Boards whose power holds their clock down: kernels by themselves, and one after another."""

from __future__ import annotations

import pytest

from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical, Machine
from mpisim.kernels.operations import Elementwise, Gemm

SHORT, LONG = Gemm(2048, 2048, 2048), Gemm(32768, 32768, 32768)


def ratio(gpu: str, kernel: Gemm | Elementwise) -> float:
    """Return a kernel's time in a step over its time alone."""
    found = find_gpu(gpu)
    in_step, alone = (Analytical(found, alone=alone) for alone in (False, True))
    return in_step.estimate(kernel).duration / alone.estimate(kernel).duration


def test_short_kernels_alone_keep_the_boost_clock() -> None:
    """An H100 limited to 500 W: all kernels of a step run at the clock that the power sustains."""
    sustained = Machine.of(find_gpu("h100-sxm-96gb-500w")).sustained
    assert sustained == pytest.approx(0.855, abs=0.001)
    assert 1 / sustained * 0.93 < ratio("h100-sxm-96gb-500w", SHORT) < 1 / sustained
    assert 1.0 < ratio("h100-sxm-96gb-500w", LONG) < 1.02


def test_others_are_as_measured() -> None:
    assert ratio("h100-sxm", SHORT) == 1.0
    assert ratio("h100-sxm-96gb-500w", Elementwise(10**8)) == 1.0
