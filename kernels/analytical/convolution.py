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
from .tiles import Cut, overlapped, preferred, times

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
    """Terms of each way to compute, ndarrays of shape (ways, kernels), in seconds."""

    arithmetic: list[np.ndarray]
    memory: list[np.ndarray]


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


def seconds(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> np.ndarray:
    """Return durations, float64, shape (kernels,)."""
    return sum(shares(columns, gpu, constants).values(), np.zeros(()))


def shares(
    columns: Columns, gpu: Machine, constants: Mapping[str, float]
) -> dict[str, np.ndarray]:
    """Return the durations divided into ``arithmetic``, ``memory`` and ``floor``, in seconds."""
    ways = _ways(columns, gpu, constants)
    arithmetic, memory = np.array(ways.arithmetic), np.array(ways.memory)
    time = arithmetic + memory
    mean = preferred(time, constants["choice"])
    # Which term makes the time is told of the fastest way.
    fastest = time.argmin(axis=0)[None]
    part = np.take_along_axis(arithmetic / time, fastest, axis=0)[0]
    return {
        "arithmetic": mean * part,
        "memory": mean * (1 - part),
        "floor": np.full(mean.shape, constants["floor"]),
    }


def _ways(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> _Ways:
    dtype: str = columns["dtype"]
    batch, inputs, outputs, height, width, side, stride, groups = (
        np.asarray(columns[name], dtype=float)
        for name in (
            *("batch", "inputs", "outputs", "height", "width"),
            *("kernel", "stride", "groups"),
        )
    )
    backward = np.asarray(columns["input"]) > 0
    weight = np.asarray(columns["weight"]) > 0
    size = BYTES[dtype]
    rate = gpu.bandwidth * constants["memory"]
    tiles: dict[str, Any] = {
        "efficiency": constants["efficiency"],
        "loading": LOADING,
        "quantisation": QUANTISATION,
        "prologue": constants["prologue"],
    }

    # What the result has per pixel, and what is summed over.
    given = np.where(backward, outputs, inputs)
    made = np.where(backward, inputs, outputs)
    blown = np.where(backward, stride**2, 1.0)
    pixels = batch * height * width
    images = size * pixels * (inputs * stride**2 + outputs)
    weights = inputs / groups * outputs * side**2

    m, n, k = pixels * blown, made / groups, given / groups * side**2 / blown
    product = times(CUTS, dtype, m, n, k, groups, gpu, **tiles)
    if weight.any():
        m, n, k = outputs / groups, inputs / groups * side**2, pixels
        product = _widen(product, times(WEIGHT_CUTS, dtype, m, n, k, groups, gpu, **tiles), weight)
    implicit = overlapped(product, np.broadcast_to((images + size * weights) / rate, product.shape))
    arithmetic, memory = list(implicit["arithmetic"]), list(implicit["memory"])

    grouped = groups > 1
    if grouped.any():
        flops = 2 * pixels * weights
        cores = gpu.peaks.get("fp32", gpu.peaks[dtype]) * DIRECT
        direct = overlapped(flops / cores, (images + size * weights) / rate)
        arithmetic.append(np.where(grouped, direct["arithmetic"], NEVER))
        memory.append(np.where(grouped, direct["memory"], NEVER))

    suits = (dtype == "fp32") & (side == 3) & (stride == 1) & ~grouped & ~weight
    if suits.any():
        blocks = batch * np.ceil(height / BLOCK) * np.ceil(width / BLOCK)
        points = np.full_like(blocks, POINTS)
        tiles["efficiency"] *= constants["winograd"]
        product = times(CUTS, dtype, blocks, made, given, points, gpu, **tiles)
        # Transformed images are written and read once each way, and the images themselves once.
        moved = images + 2 * size * POINTS * blocks * (inputs + outputs)
        transformed = size * (2 * POINTS + side**2) * inputs * outputs
        traffic = (
            moved * constants["transforms"] / rate
            + transformed * constants["filters"] / gpu.bandwidth
        )
        arithmetic += [np.where(suits, each, NEVER) for each in product]
        memory += [np.where(suits, traffic, NEVER)] * len(product)
    return _Ways(arithmetic, memory)


def _widen(product: np.ndarray, other: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the ways of one set where `weight` is False, of the other where it is True."""
    ways = max(len(product), len(other))
    first, second = (
        np.concatenate([each, np.full((ways - len(each), each.shape[1]), NEVER)])
        for each in (product, other)
    )
    return np.where(weight, second, first)
