"""Products at the pace of the slowest of many GPUs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mpisim.base.errors import InputError
from mpisim.experiment import VariationChoice
from mpisim.kernels import find_gpu
from mpisim.kernels.operations import Attention, Convolution, Elementwise, Gemm, Norm
from mpisim.kernels.roofline import Roofline
from mpisim.prediction.variation import SlowestKernels, slowest_factor


def test_the_largest_of_normal_numbers() -> None:
    assert (slowest_factor(1).value, slowest_factor(1).error) == (1.0, 0.0)
    spread = math.log(slowest_factor(2).value) / 0.5895  # of a probability of 1.625 / 2.25
    drawn = np.random.default_rng(1).normal(size=(20_000, 64)).max(axis=1).mean()
    assert math.log(slowest_factor(64).value) == pytest.approx(spread * drawn, rel=0.01)
    factors = [slowest_factor(gpus).value for gpus in (1, 2, 8, 64, 1024, 16384)]
    assert factors == sorted(factors)


def test_the_error_bar_is_the_spreads() -> None:
    found = slowest_factor(512)
    # exp(s z): a spread that is half as large again changes the logarithm by a half.
    assert found.error == pytest.approx(0.5 * math.log(found.value))


def test_what_draws_power_is_slower() -> None:
    gpu = Roofline(find_gpu("a100-sxm"))
    model, factor = SlowestKernels(gpu, 64), slowest_factor(64).value
    for kernel in (
        Gemm(4096, 4096, 4096),
        Convolution(8, 64, 64, 56, 56, 3),
        Attention(1, 8, 8, 512, 512, 64, 64),
    ):
        plain, found = gpu.estimate(kernel), model.estimate(kernel)
        assert found.duration == round(factor * plain.duration)
        assert found.shares == {**plain.shares, "slowest GPU": 1.0}
    for other in (Elementwise(10**8), Norm(4096, 4096)):
        assert model.estimate(other) == gpu.estimate(other)
    assert model.numbers["slowest GPU"].value == factor
    assert model.gpu is gpu.gpu


def test_one_gpu_is_slow_for_one_reason() -> None:
    with pytest.raises(InputError, match="slowest is true and gpus is above 0"):
        VariationChoice(slowest=True, gpus=0.01)
