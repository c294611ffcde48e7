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

Only fp32 was measured. On matrix units the constants are those of products of matrices
(`.stand_ins.ELSEWHERE`), with the power limit, of images whose channels are last; what lays them
out so is a kernel of its own.

The library is expected to choose as in :func:`.tiles.preferred`. The gradients of the input are the
same with channels exchanged; those of the weights sum over the pixels, and the sum is cut in parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from ..operations import BYTES, Convolution
from .family import Columns, Constant
from .machine import Machine
from .maths import ceil, floats, like, some, where
from .overlap import PIPELINED, divided, each_with
from .tiles import Cut, preferred, throttled, times
from .transposed import turned_rate

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
"""As products of matrices have them; convolutions do not tell them from the rest in fp32."""

DIRECT = 0.25
"""Share of the cores' peak that direct convolutions reach: each operand is used once."""

BLOCK = 4
POINTS = 36
"""Winograd's pixels to a side of a block, and numbers that a block becomes."""


NEVER = 1e9
"""Seconds of a way that does not exist for a kernel: never chosen, and no infinity to divide by."""


class _Ways(NamedTuple):
    """Seconds of each way to compute, numbers or arrays of shape (kernels,).

    Attributes
    ----------
    overlapped : list
        Arithmetic, that of one way each, which overlaps with `once`.
    once : float or ndarray
        Memory traffic of each operand once.
    added : list
        Arithmetic of one way each, after and before which come `transforms`.
    transforms : float or ndarray
    """

    overlapped: list[Any]
    once: Any
    added: list[Any]
    transforms: Any


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
    return _expected(ways, constants) + constants["floor"]


def shares(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> dict[str, Any]:
    """Return the durations divided into ``arithmetic``, ``memory`` and ``floor``, in seconds."""
    ways = _ways(columns, gpu, constants)
    terms = [divided(each, ways.once, PIPELINED) for each in ways.overlapped]
    terms += [(each, ways.transforms) for each in ways.added]
    arithmetic, memory = (np.array(each) for each in zip(*terms))
    time = arithmetic + memory
    # Which term makes the time is told of the fastest way.
    fastest = time.argmin(axis=0)[None]
    (part,) = np.take_along_axis(arithmetic / time, fastest, axis=0)
    mean = _expected(ways, constants)
    return {
        "arithmetic": mean * part,
        "memory": mean * (1 - part),
        "floor": like(mean, constants["floor"]),
    }


def _expected(ways: _Ways, constants: Mapping[str, float]) -> Any:
    """Return the time of the way that the library is expected to choose."""
    found = each_with(ways.overlapped, ways.once)
    found += [each + ways.transforms for each in ways.added]
    return preferred(found, constants["choice"])


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
        "loading": constants.get("loading", LOADING),
        "quantisation": constants.get("quantisation", QUANTISATION),
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
    overlapped = times(CUTS, dtype, m, n, k, groups, gpu, **tiles)
    if some(weight):
        m, n, k = outputs / groups, inputs / groups * side * side, pixels
        summed = times(WEIGHT_CUTS, dtype, m, n, k, groups, gpu, **tiles)
        both = zip_longest(summed, overlapped, fillvalue=like(m, NEVER))
        turned = turned_rate("weight_gradients") if dtype == "tf32" else 1.0
        overlapped = [where(weight, each / turned, other) for each, other in both]
    if "burst" in constants:
        overlapped = [throttled(each, constants["burst"], gpu) for each in overlapped]

    grouped = groups > 1
    if some(grouped):
        cores = gpu.peaks.get("fp32", gpu.peaks[dtype]) * DIRECT
        overlapped.append(where(grouped, 2 * pixels * weights / cores, NEVER))

    added, transforms = [], 0.0
    suits = (side == 3) & (stride == 1) & (groups == 1) & (columns["weight"] == 0)
    if dtype == "fp32" and some(suits):
        blocks = batch * ceil(height / BLOCK) * ceil(width / BLOCK)
        tiles["efficiency"] *= constants["winograd"]
        found = times(CUTS, dtype, blocks, made, given, POINTS, gpu, **tiles)
        added = [where(suits, each, NEVER) for each in found]
        # Transformed images are written and read once each way, the images themselves once.
        moved = images + 2 * size * POINTS * blocks * (inputs + outputs)
        transformed = size * (2 * POINTS + side * side) * inputs * outputs
        transforms = (
            moved * constants["transforms"] / rate
            + transformed * constants["filters"] / gpu.bandwidth
        )
    return _Ways(overlapped, once, added, transforms)
