"""Boards whose power holds their clock down: kernels by themselves, and one after another."""

from __future__ import annotations

import pytest

from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.gpu_parameters import GpuParameters
from mpisim.kernels.operations import Attention, Elementwise, Gemm

SHORT, LONG = Gemm(2048, 2048, 2048), Gemm(32768, 32768, 32768)


def ratio(gpu: str, kernel: Attention | Gemm | Elementwise) -> float:
    """Return a kernel's time in a step over its time alone."""
    found = find_gpu(gpu)
    in_step, alone = (Analytical(found, alone=alone) for alone in (False, True))
    return in_step.estimate(kernel).duration / alone.estimate(kernel).duration


def test_short_kernels_alone_keep_the_boost_clock() -> None:
    """An H100 limited to 500 W: all kernels of a step run at the clock that the power sustains.

    That is 0.9 of what its power allows beside an H100 of 700 W, which does not sustain its clock.
    """
    machine = GpuParameters.of(find_gpu("h100-sxm-96gb-500w"))
    assert machine.sustained == pytest.approx(0.855, abs=0.001)
    assert machine.steady == pytest.approx(0.9 * 0.855, abs=0.001)
    assert 0.93 / machine.steady < ratio("h100-sxm-96gb-500w", SHORT) < 1 / machine.steady
    assert 1 / 0.9 < ratio("h100-sxm-96gb-500w", LONG) < 1.02 / 0.9


def test_the_reference_of_an_architecture_may_not_sustain_its_clock() -> None:
    assert 0.95 / 0.9 < ratio("h100-sxm", SHORT) < 1 / 0.9
    attention = Attention(1, 32, 32, 8192, 8192, 128, 128)
    assert 1.0 < ratio("h100-sxm", attention) < 1 / 0.9  # exponentials run at the boost clock
    # More watts a FLOP/s than a B200 has: 1.2 / 2.5 to 1 / 2.25; 1.4 / 2.5 to the same.
    steady = [GpuParameters.of(find_gpu(name)).steady for name in ("b200", "gb200", "gb300")]
    assert steady == pytest.approx([0.87, 0.90, 0.962], abs=0.002)


def test_others_are_as_measured() -> None:
    assert ratio("a100-sxm", SHORT) == 1.0
    assert ratio("h100-sxm-96gb-500w", Elementwise(10**8)) == 1.0
