"""Convolutions: the faster of the algorithms that cuDNN has.

Implicit product of matrices (arXiv:1410.0759)
    One row a pixel, one column an output channel, k over the filter: tiles as in :mod:`.tiles`,
    memory traffic overlapped.
Winograd, F(4 × 4, 3 × 3) (arXiv:1509.09308), of 3 × 3 filters at stride 1 in fp32
    36 products of a row for each block of 4 × 4 pixels: a quarter of the multiplications. Kernels
    before and after transform images, which is memory traffic, and the filters, whose 36 numbers
    land far apart.
Direct, of grouped convolutions
    Multiplications on the cores: with few channels a group, matrix units have nothing to multiply.

The library is expected to choose as in :func:`.tiles.preferred`. The gradients of the input are the
same with channels exchanged; those of the weights sum over the pixels, and the sum is cut in parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..operations import BYTES, Convolution
from .family import Columns, Constant
from .machine import Machine
from .maths import ceil, floats, like, some, where
from .overlap import PIPELINED, divided
from .tiles import Cut, preferred, times

__all__ = ["CONSTANTS", "FAMILY", "columns", "seconds", "shares"]

FAMILY = "convolution"

CONSTANTS = (
    Constant("efficiency", 0.8, 0.1, 1.3, "rate of the arithmetic alone, as a share of the peak"),
    Constant("memory", 0.7, 0.2, 1.0, "share of the memory's bandwidth"),
    Constant("winograd", 0.8, 0.3, 1.5, "efficiency of Winograd's products, relative"),
    Constant("transforms", 1.0, 0.1, 3.0, "traffic of transformed images, relative"),
    Constant("filters", 2.5, 0.0, 10.0, "traffic of transformed filters, relative"),
    Constant("prologue", 20.0, 0.0, 400.0, "starting and ending a tile, in steps of k"),
    Constant("choice", 0.1, 0.01, 1.0, "relative loss at which a way is 1/e as likely"),
    Constant("floor", 1e-5, 0.0, 5e-5, "starting the kernels of one call, s"),
)

CUTS = tuple(
    Cut(*sides)
    for sides in ((32, 128), (128, 32), (64, 64), (64, 128), (128, 64), (128, 128), (128, 256))
)

WEIGHT_CUTS = tuple(
    Cut(rows, columns, parts)
    for rows, columns in ((64, 64), (128, 64), (128, 128))
    for parts in (1, 4, 16, 64)
)

LOADING = 0.5
QUANTISATION = 0.6
"""As products of matrices have them; convolutions do not tell them from the rest."""

DIRECT = 0.25
"""Share of the cores' peak that direct convolutions reach: each operand is used once."""

BLOCK = 4
POINTS = 36
"""Winograd's pixels to a side of a block, and numbers that a block becomes."""


NEVER = 1e9
"""Seconds of a way that does not exist for a kernel: never chosen, and no infinity to divide by."""


class _Ways(NamedTuple):
    """Terms of each way to compute, in seconds: shape (ways,), or (ways, kernels) of several."""

    arithmetic: np.ndarray
    memory: np.ndarray


def columns(kernel: Convolution) -> dict[str, float | int | str]:
    """Return the numbers of one description.

    Returns
    -------
    dict
        dtype, and the attributes of `Convolution`; the direction as ``input`` and ``weight``, 0 or
        1.
    """
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


def seconds(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> Any:
    """Return the duration of each kernel, in seconds."""
    ways = _ways(columns, gpu, constants)
    return preferred(ways.arithmetic + ways.memory, constants["choice"]) + constants["floor"]


def shares(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> dict[str, Any]:
    """Return the durations divided into ``arithmetic``, ``memory`` and ``floor``, in seconds."""
    ways = _ways(columns, gpu, constants)
    time = ways.arithmetic + ways.memory
    mean = preferred(time, constants["choice"])
    # Which term makes the time is told of the fastest way.
    fastest = time.argmin(axis=0)[None]
    (part,) = np.take_along_axis(ways.arithmetic / time, fastest, axis=0)
    return {
        "arithmetic": mean * part,
        "memory": mean * (1 - part),
        "floor": like(mean, constants["floor"]),
    }


def _ways(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> _Ways:
    dtype: str = columns["dtype"]
    batch, inputs, outputs, height, width, side, stride, groups = floats(
        columns,
        *("batch", "inputs", "outputs", "height", "width"),
        *("kernel", "stride", "groups"),
    )
    backward, weight = columns["input"] != 0, columns["weight"] != 0
    size = BYTES[dtype]
    rate = gpu.bandwidth * constants["memory"]
    tiles: dict[str, Any] = {
        "efficiency": constants["efficiency"],
        "loading": LOADING,
        "quantisation": QUANTISATION,
        "prologue": constants["prologue"],
    }

    # What the result has per pixel, and what is summed over.
    given = where(backward, outputs, inputs)
    made = where(backward, inputs, outputs)
    blown = where(backward, stride * stride, 1.0)
    pixels = batch * height * width
    images = size * pixels * (inputs * stride * stride + outputs)
    weights = inputs / groups * outputs * side * side
    once = (images + size * weights) / rate

    m, n, k = pixels * blown, made / groups, given / groups * side * side / blown
    product = times(CUTS, dtype, m, n, k, groups, gpu, **tiles)
    if some(weight):
        m, n, k = outputs / groups, inputs / groups * side * side, pixels
        product = _widen(product, times(WEIGHT_CUTS, dtype, m, n, k, groups, gpu, **tiles), weight)
    ways = [_Ways(*divided(product, once, PIPELINED))]

    grouped = groups > 1
    if some(grouped):
        flops = 2 * pixels * weights
        cores = gpu.peaks.get("fp32", gpu.peaks[dtype]) * DIRECT
        direct = divided(flops / cores, once, PIPELINED)
        ways.append(_Ways(*(np.array([where(grouped, each, NEVER)]) for each in direct)))

    if dtype == "fp32":
        suits = (side == 3) & (stride == 1) & (groups == 1) & (columns["weight"] == 0)
        if some(suits):
            blocks = batch * ceil(height / BLOCK) * ceil(width / BLOCK)
            tiles["efficiency"] *= constants["winograd"]
            product = times(CUTS, dtype, blocks, made, given, POINTS, gpu, **tiles)
            # Transformed images are written and read once each way, the images themselves once.
            moved = images + 2 * size * POINTS * blocks * (inputs + outputs)
            transformed = size * (2 * POINTS + side * side) * inputs * outputs
            traffic = (
                moved * constants["transforms"] / rate
                + transformed * constants["filters"] / gpu.bandwidth
            )
            ways.append(
                _Ways(
                    where(suits, product, NEVER),
                    where(suits, traffic + np.zeros_like(product), NEVER),
                )
            )
    return ways[0] if len(ways) == 1 else _Ways(*(np.concatenate(each) for each in zip(*ways)))


def _widen(product: np.ndarray, other: np.ndarray, weight: np.ndarray | bool) -> np.ndarray:
    """Return the ways of one set where `weight` is False, of the other where it is True."""
    if not isinstance(weight, np.ndarray):
        return other if weight else product
    ways = max(len(product), len(other))
    first, second = (
        np.concatenate([each, np.full((ways - len(each), *each.shape[1:]), NEVER)])
        for each in (product, other)
    )
    return np.where(weight, second, first)
