"""How much of their errors the measured products of a layer share."""

from __future__ import annotations

import numpy as np
import pytest
import shared_kernel_error


@pytest.mark.parametrize("part", [0.0, 0.3, 1.0])
def test_what_sums_of_a_layer_say_of_the_part(part: float) -> None:
    draw = np.random.default_rng(1)
    layers = np.arange(40_000).reshape(10_000, 4)
    seconds = np.tile([1e-3, 2e-3, 4e-3, 1e-3], len(layers))
    common = np.repeat(draw.normal(0, 0.05, len(layers)), 4)
    errors = np.sqrt(part) * common + np.sqrt(1 - part) * draw.normal(0, 0.05, len(seconds))
    variance, _, even, found = shared_kernel_error.shared_part(seconds, errors, layers)
    assert variance == pytest.approx(0.05**2, rel=0.05)
    assert even == pytest.approx(22 / 64)  # 1, 4, 16 and 1 over the square of 8
    assert found == pytest.approx(part, abs=0.03)


def test_layers_of_short_products_are_left_out() -> None:
    layers = [np.array([0, 1]), np.array([2, 3])]
    found = shared_kernel_error.shared_part(
        np.array([1e-3, 1e-3, 1e-5, 1e-5]), np.array([0.1, 0.1, 9.0, 9.0]), layers
    )
    assert found == pytest.approx((0.01, 0.01, 0.5, 1.0))
