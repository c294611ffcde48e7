"""Batch normalisation fused with what is around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from plans import plan_of

from mpisim.experiment.models import Cnn
from mpisim.kernels.operations import Norm
from mpisim.workloads.cnn.image_operators import ImageOperators
from mpisim.workloads.cnn.resnet import resnet
from mpisim.workloads.grid import Grid
from mpisim.workloads.operators import Compute, Layer

MODEL = Cnn(family="resnet", depth=50)


def layers(fusion: Any) -> list[Layer]:
    plan = plan_of(global_batch=2, micro_batch=2, dp=1, precision="fp16", norm_fusion=fusion)
    return resnet(ImageOperators(plan, Grid.of(plan, 1)), MODEL)


def traffic(layer: Layer, *, backward: bool) -> int:
    """Of kernels beside convolutions and what becomes of weights and their gradients."""
    return sum(step.kernel.traffic for step in _between(layer, backward=backward))


def _between(layer: Layer, *, backward: bool) -> Iterator[Compute]:
    for each in layer.operators:
        for step in each.backward if backward else each.forward:
            small = ("weight", "counter", "conv", "downsample")
            if isinstance(step, Compute) and not any(word in step.name for word in small):
                yield step


# A block without a downsample, 256 channels of 56 × 56 in and out, 64 between; 2 images in fp16.
SMALL, LARGE = 2 * 2 * 64 * 56**2, 2 * 2 * 256 * 56**2


@pytest.mark.parametrize(
    ("fusion", "forward", "backward"),
    [
        # Twice 3 passes of the norm and 2 of ReLU; then 3, 3 of the sum, 2.
        ("none", 2 * 5 * SMALL + 8 * LARGE, 2 * 8 * SMALL + (5 + 3 + 3) * LARGE),
        # ReLU for nothing; the sum reads the other way, and backward writes its gradient.
        ("activation", 2 * 3 * SMALL + 4 * LARGE, 2 * 5 * SMALL + (5 + 1 + 3) * LARGE),
        # Forward the sum alone, which reads both ways and writes.
        ("convolution", 3 * LARGE, 2 * 5 * SMALL + (5 + 1 + 3) * LARGE),
    ],
)
def test_passes_of_a_block(fusion: Any, forward: int, backward: int) -> None:
    layer = layers(fusion)[2]
    assert traffic(layer, backward=False) == forward
    assert traffic(layer, backward=True) == backward


@pytest.mark.parametrize("fusion", ["none", "activation", "convolution"])
def test_the_same_is_learnt(fusion: Any) -> None:
    plain, found = layers("none"), layers(fusion)
    for one, other in zip(plain, found, strict=True):
        assert sorted(map(str, one.parameters)) == sorted(map(str, other.parameters))
        assert _norms_backward(one) == _norms_backward(other)
        assert other.saved <= one.saved


def _norms_backward(layer: Layer) -> int:
    norms = [step for step in layer.kernels() if isinstance(step.kernel, Norm)]
    return sum("backward" in step.name for step in norms)
