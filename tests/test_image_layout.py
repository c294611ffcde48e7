"""Images whose channels are first or last, and convolutions on matrix units."""

from __future__ import annotations

from typing import Any

import pytest
from plans import plan_of

from mpisim.experiment.models import Cnn
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.operations import Convolution, Gemm
from mpisim.workloads.cnn import cnn_network
from mpisim.workloads.data_parallel.frameworks import frameworks
from mpisim.workloads.grid import Grid
from mpisim.workloads.operators import Compute, Layer


def layers(**keys: Any) -> tuple[Layer, ...]:
    plan = plan_of(global_batch=2, micro_batch=2, **keys)
    return cnn_network(Cnn("vgg", 11), plan, Grid.of(plan, 1)).layers


def computed(layer: Layer) -> list[Compute]:
    steps = [step for each in layer.operators for step in (*each.forward, *each.backward)]
    return [step for step in steps if isinstance(step, Compute)]


def test_matrix_units_take_channels_last() -> None:
    """Of a convolution both operands and the result are turned, three times two images."""
    pairs = zip(
        layers(precision="tf32"),
        layers(precision="tf32", image_layout="channels-first"),
        strict=True,
    )
    for last, first in pairs:
        added = [step for step in computed(first) if step.name.endswith("layout")]
        assert [step for step in computed(first) if step not in added] == computed(last)
        images = sum(
            4 * kernel.batch * kernel.height * kernel.width * (kernel.inputs + kernel.outputs)
            for kernel in (step.kernel for step in computed(last))
            if isinstance(kernel, Convolution)
            and kernel.direction == "forward"
            and kernel.inputs > 3
        )
        assert sum(step.kernel.traffic for step in added) == 3 * 2 * images
        share = frameworks().library.further_launch.value
        assert {step.launch_share for step in added} <= {share}


def test_cores_take_either() -> None:
    assert layers(precision="fp32") == layers(precision="fp32", image_layout="channels-first")


VGG_13 = [
    # Inputs, outputs, side; µs forward, of the input's gradient, of the weights'. Batch 512.
    (64, 64, 224, 8803, 8889, 18984),
    (64, 128, 112, 4859, 4259, 6216),
    (128, 128, 112, 4864, 5789, 9749),
    (128, 256, 56, 2405, 2612, 4422),
    (256, 256, 56, 4231, 4820, 10224),
    (256, 512, 28, 2110, 2188, 5493),
    (512, 512, 28, 4064, 4326, 8415),
    (512, 512, 14, 1032, 1078, 2089),
]
"""cuDNN's kernels in tf32 on an H100 (github:sarchlab/triosim, sample_trace)."""


@pytest.mark.parametrize("direction", ["forward", "input", "weight"])
def test_convolutions_on_matrix_units_take_the_time_of_products(direction: Any) -> None:
    model = Analytical(find_gpu("h100-sxm"))
    column = {"forward": 3, "input": 4, "weight": 5}[direction]
    found = measured = 0.0
    for row in VGG_13:
        inputs, outputs, side = row[:3]
        kernel = Convolution(512, inputs, outputs, side, side, 3, 1, 1, direction, "tf32")
        time = model.estimate(kernel).duration / 1e6
        assert time == pytest.approx(row[column], rel=0.6)
        found, measured = found + time, measured + row[column]
    assert found == pytest.approx(measured, rel=0.15)


def test_matrix_units_of_fp32_take_the_time_of_products() -> None:
    """CDNA has them, and no convolution was measured on it: not Winograd's on a V100's cores."""
    kernel = Convolution(64, 256, 256, 56, 56, 3, 1, 1, "forward", "fp32")
    product = Gemm(256, 64 * 56 * 56, 9 * 256, 1, "fp32")
    ratios = {}
    for name in ("mi250x-gcd", "v100-sxm2-16gb"):
        model = Analytical(find_gpu(name))
        ratios[name] = model.estimate(kernel).duration / model.estimate(product).duration
    assert ratios["mi250x-gcd"] == pytest.approx(1, rel=0.15)
    assert ratios["v100-sxm2-16gb"] < 0.6


RESNET_50 = [
    # Inputs, outputs, side, filter, stride; µs backward, of both gradients. Batch 32.
    (1024, 256, 14, 1, 1, 613),
    (256, 1024, 14, 1, 1, 623),
    (512, 128, 28, 1, 1, 661),
    (128, 512, 28, 1, 1, 653),
    (64, 256, 56, 1, 1, 754),
    (256, 512, 28, 1, 2, 1403),
    (512, 1024, 14, 1, 2, 1447),
    (128, 128, 28, 3, 2, 1712),
    (64, 64, 56, 3, 1, 1092),
    (128, 128, 28, 3, 1, 712),
    (256, 256, 14, 3, 1, 573),
]
"""cuDNN's kernels in fp32 on a V100 (github:li-plus/playground, pytorch/timeline)."""


def test_gradients_in_fp32_take_the_time_of_cudnn() -> None:
    """Of weights by Winograd's algorithm or slower products; of the input at a stride slower."""
    model = Analytical(find_gpu("v100-sxm2-32gb"))
    found = 0.0
    for inputs, outputs, side, sides, stride, measured in RESNET_50:
        time = sum(
            model.estimate(
                Convolution(32, inputs, outputs, side, side, sides, stride, 1, direction, "fp32")
            ).duration
            for direction in ("input", "weight")
        )
        assert time / 1e6 == pytest.approx(measured, rel=0.4)
        found += time / 1e6
    assert found == pytest.approx(sum(row[-1] for row in RESNET_50), rel=0.1)
