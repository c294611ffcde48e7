"""Convolutions: shapes, GPU → seconds, by the fastest of cuDNN's algorithms.

Implicit product of matrices (arXiv:1410.0759)
    One row a pixel, one column an output channel, k over the filter: tiles as in :mod:`.tiles`,
    memory traffic overlapped.
Winograd, F(4 × 4, 3 × 3) (arXiv:1509.09308), of 3 × 3 filters at stride 1 in fp32
    36 products of a row for each block of 4 × 4 pixels: a quarter of the multiplications. Kernels
    before and after transform images, which is memory traffic, and the filters, whose 36 numbers
    land far apart.
Direct, of grouped convolutions
    Multiplications on the cores: with few channels a group, matrix units have nothing to multiply.

Only fp32 on cores was measured. On matrix units the constants are those of matrix products
(:mod:`.lookup`), with the power limit, of images whose channels are last; the change of layout is a
kernel of its own. On CDNA these units work in fp32, too, and Winograd's algorithm is left out:
MIOpen's runs on vector units (github:ROCm/MIOpen src/kernels, Conv_Winograd files of f2x3 and
f3x2), at half of their peak and with less than half of the multiplications.

The library is expected to choose as in :func:`.tiles.expected_time`. The gradients of the input are
the same with channels exchanged; those of the weights sum over the pixels, and the sum is cut in
parts. By Winograd's algorithm, F(3 × 3, 4 × 4) (cuDNN's winogradWgradData4x4), they sum over the
blocks. Measured tables have forward passes alone; on cores, implicit products of weights' gradients
and of the input's at a stride are slower by factors of recorded kernels (`numbers`).
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from ..gpu_parameters import GpuParameters
from ..numbers import number
from ..operations import BYTES, Convolution
from .formula import (
    PIPELINED,
    Columns,
    Constant,
    Constants,
    Formula,
    any_of,
    ceil,
    columns_as_floats,
    divided_overlap,
    filled_like,
    overlapped_with_each,
    where,
)
from .tiles import LONGEST_BURST, Tiling, expected_time, power_throttled, tiled_times

__all__ = ["CONVOLUTION"]

CONSTANTS = (
    Constant("efficiency", 0.8, 0.1, 1.3, "rate of the arithmetic alone, as a share of the peak"),
    Constant("memory", 0.7, 0.2, 1.0, "share of the memory's bandwidth"),
    Constant("winograd", 0.8, 0.3, 1.5, "efficiency of Winograd's products, relative"),
    Constant("transforms", 1.0, 0.1, 3.0, "traffic of transformed images, relative"),
    Constant("filters", 2.5, 0.0, 10.0, "traffic of transformed filters, relative"),
    Constant("prologue", 20.0, 0.0, 400.0, "starting and ending a tile, in steps of k"),
    Constant("choice", 0.1, 0.01, 1.0, "relative loss at which an algorithm is 1/e as likely"),
    Constant(
        "burst", 1e-3, 1e-4, LONGEST_BURST, "duration at which half of the power limit holds, s"
    ),
    Constant("floor", 1e-5, 0.0, 5e-5, "starting the kernels of one call, s"),
)

TILINGS = tuple(
    Tiling(*sides)
    for sides in ((32, 128), (128, 32), (64, 64), (64, 128), (128, 64), (128, 128), (128, 256))
)

WEIGHT_GRADIENT_TILINGS = tuple(
    Tiling(rows, columns, split_k)
    for rows, columns in ((64, 64), (128, 64), (128, 128))
    for split_k in (1, 4, 16, 64)
)

LOADING = number("convolution_loading")
QUANTISATION = number("convolution_quantisation")
DIRECT_EFFICIENCY = number("direct_convolution_efficiency")
WEIGHT_GRADIENT_RATES = {
    "fp32": number("fp32_weight_gradient_rate"),
    "tf32": number("tf32_weight_gradient_rate"),
}
SCATTERING_RATE = number("scattering_input_gradient_rate")

WINOGRAD_TILE = 4
WINOGRAD_POINTS = 36
"""Pixels to a side of a block of Winograd's algorithm, and numbers that a block becomes."""

WINOGRAD_TEXTBOOK = {
    each.name: each.start
    for each in CONSTANTS
    if each.name in ("winograd", "transforms", "filters")
}
"""Of Winograd's kernels, where the constants are those of matrix products, which have none."""

UNAVAILABLE = 1e9
"""Seconds of an algorithm that does not exist for a kernel: never chosen, and no infinity to divide
by."""


class _Algorithms(NamedTuple):
    """Seconds of each algorithm, numbers or arrays of shape (kernels,).

    Attributes
    ----------
    products : list
        Arithmetic of each tiling of an implicit product, and of a direct convolution; it overlaps
        with `memory`.
    memory : float or ndarray
        Traffic of each operand once.
    winograd : list
        Arithmetic of each tiling of Winograd's products; `transforms` come before and after.
    transforms : float or ndarray
    """

    products: list[Any]
    memory: Any
    winograd: list[Any]
    transforms: Any


def _columns(kernel: Convolution) -> dict[str, float | int | str]:
    """Return dtype and sizes; the direction as ``input`` and ``weight``, 0 or 1."""
    return {
        "dtype": kernel.dtype,
        "batch": kernel.batch,
        "inputs": kernel.inputs,
        "outputs": kernel.outputs,
        "height": kernel.height,
        "width": kernel.width,
        "kernel": kernel.kernel,
        "stride": kernel.stride,
        "groups": kernel.groups,
        "input": int(kernel.direction == "input"),
        "weight": int(kernel.direction == "weight"),
    }


def _seconds(columns: Columns, gpu: GpuParameters, constants: Constants) -> Any:
    """Return the duration of each kernel, in seconds."""
    algorithms = _algorithms(columns, gpu, constants)
    return _expected(algorithms, constants) + constants["floor"]


def _shares(columns: Columns, gpu: GpuParameters, constants: Constants) -> dict[str, Any]:
    """Return the durations divided into ``arithmetic``, ``memory`` and ``floor``, in seconds."""
    algorithms = _algorithms(columns, gpu, constants)
    terms = [divided_overlap(each, algorithms.memory, PIPELINED) for each in algorithms.products]
    terms += [(each, algorithms.transforms) for each in algorithms.winograd]
    arithmetic, memory = (np.array(each) for each in zip(*terms))
    time = arithmetic + memory
    # The division is that of the fastest algorithm.
    fastest = time.argmin(axis=0)[None]
    (part,) = np.take_along_axis(arithmetic / time, fastest, axis=0)
    mean = _expected(algorithms, constants)
    return {
        "arithmetic": mean * part,
        "memory": mean * (1 - part),
        "floor": filled_like(mean, constants["floor"]),
    }


def _expected(algorithms: _Algorithms, constants: Constants) -> Any:
    """Return the time of the algorithm that the library is expected to choose."""
    times = overlapped_with_each(algorithms.products, algorithms.memory)
    times += [each + algorithms.transforms for each in algorithms.winograd]
    return expected_time(times, constants["choice"])


def _algorithms(columns: Columns, gpu: GpuParameters, constants: Constants) -> _Algorithms:
    dtype: str = columns["dtype"]
    batch, inputs, outputs, height, width, side, stride, groups = columns_as_floats(
        columns,
        *("batch", "inputs", "outputs", "height", "width"),
        *("kernel", "stride", "groups"),
    )
    backward, weight = columns["input"] != 0, columns["weight"] != 0
    size = BYTES[dtype]
    rate = gpu.bandwidth * constants["memory"]
    tiles: dict[str, Any] = {
        "efficiency": constants["efficiency"],
        "loading": constants.get("loading", LOADING),
        "quantisation": constants.get("quantisation", QUANTISATION),
        "prologue": constants["prologue"],
    }

    # Channels that are summed over, channels of the result, and pixels of the result for one.
    summed = where(backward, outputs, inputs)
    made = where(backward, inputs, outputs)
    scattered = where(backward, stride * stride, 1.0)
    pixels = batch * height * width
    images = size * pixels * (inputs * stride * stride + outputs)
    weights = inputs / groups * outputs * side * side
    memory = (images + size * weights) / rate

    m, n, k = pixels * scattered, made / groups, summed / groups * side * side / scattered
    products = tiled_times(TILINGS, dtype, m, n, k, groups, gpu, **tiles)
    on_cores = dtype == "fp32" and gpu.fp32_on_cores
    scatters = backward & (stride > 1)
    if on_cores and any_of(scatters):
        products = [where(scatters, each / SCATTERING_RATE, each) for each in products]
    if any_of(weight):
        m, n, k = outputs / groups, inputs / groups * side * side, pixels
        gradients = tiled_times(WEIGHT_GRADIENT_TILINGS, dtype, m, n, k, groups, gpu, **tiles)
        both = zip_longest(gradients, products, fillvalue=filled_like(m, UNAVAILABLE))
        weight_rate = WEIGHT_GRADIENT_RATES.get(dtype, 1.0) if on_cores or dtype == "tf32" else 1.0
        products = [where(weight, each / weight_rate, other) for each, other in both]
    burst = constants["burst"]
    share = gpu.sustained if dtype == "fp32" else gpu.product_clock
    products = [power_throttled(each, burst, share) for each in products]

    grouped = groups > 1
    if any_of(grouped):
        cores = gpu.peaks.get("fp32", gpu.peaks[dtype]) * DIRECT_EFFICIENCY
        products.append(where(grouped, 2 * pixels * weights / cores, UNAVAILABLE))

    winograd, transforms = [], 0.0
    suits = (side == 3) & (stride == 1) & (groups == 1)
    if on_cores and any_of(suits):
        constants = {**WINOGRAD_TEXTBOOK, **constants}
        blocks = batch * ceil(height / WINOGRAD_TILE) * ceil(width / WINOGRAD_TILE)
        tiles["efficiency"] *= constants["winograd"]
        # Those of weights sum over the blocks.
        m, k = where(weight, outputs, blocks), where(weight, blocks, summed)
        times = tiled_times(TILINGS, dtype, m, made, k, WINOGRAD_POINTS, gpu, **tiles)
        times = [power_throttled(each, burst, share) for each in times]
        winograd = [where(suits, each, UNAVAILABLE) for each in times]
        # Transformed images are written and read once each way, the images themselves once.
        moved = images + 2 * size * WINOGRAD_POINTS * blocks * (inputs + outputs)
        transformed = size * (2 * WINOGRAD_POINTS + side * side) * inputs * outputs
        transforms = (
            moved * constants["transforms"] / rate
            + transformed * constants["filters"] / gpu.bandwidth
        )
    return _Algorithms(products, memory, winograd, transforms)


CONVOLUTION = Formula("convolution", CONSTANTS, _columns, _seconds, _shares, power_limited=True)
