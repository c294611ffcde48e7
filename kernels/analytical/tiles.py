"""Products of matrices as tiles on multiprocessors: what several operator families share.

The result is cut into tiles, and possibly the product along k as well; each multiprocessor works on
one tile after another (CUTLASS, github:NVIDIA/cutlass, media/docs/efficient_gemm.md). For one way
to cut, with w = tiles / multiprocessors:

    waves = (1 - quantisation) max(w, 1) + quantisation ceil(w)
    tile  = 2 rows columns (k + prologue) / (efficiency × peak of a multiprocessor)
    loads = loading × (time to read the tile's operands from L2) / (time of its arithmetic)
    time  = waves × tile × (1 + loads)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..operations import OPERAND
from .machine import Machine
from .maths import Numbers, functions

__all__ = ["TILES", "Cut", "preferred", "throttled", "times"]


class Cut(NamedTuple):
    """One way to cut a product.

    Attributes
    ----------
    rows, columns : int
        Of a tile of the result.
    parts : int
        Into which the product is cut along k; their sums are added up at the end.
    """

    rows: int
    columns: int
    parts: int = 1


TILES = {
    "fp32": (
        *(Cut(32, 32), Cut(32, 64), Cut(64, 32), Cut(64, 64), Cut(32, 128), Cut(128, 32)),
        *(Cut(64, 128), Cut(128, 64), Cut(128, 128), Cut(128, 256), Cut(256, 128)),
    ),
    "half": tuple(
        Cut(rows, columns, parts)
        for rows, columns in (
            *((64, 64), (64, 128), (128, 64), (128, 128)),
            *((64, 256), (256, 64), (128, 256), (256, 128)),
        )
        for parts in (1, 2, 4)
    ),
}
"""Cuts that cuBLAS and CUTLASS have kernels for: on cores in fp32, and on matrix units."""

ISSUE = 0.12
"""Instructions of a product in fp32 beside its multiplications, per multiplication: in the inner
loop of an 8 × 8 register tile 64 multiplications go with 4 loads from shared memory and a share of
copies, addresses and barriers. They cost time where one scheduler feeds 32 lanes and issues one
instruction a clock (GA10x, Ada, Hopper, Blackwell); Pascal issues two, and with 16 lanes a
multiplication takes two clocks and leaves a slot free."""

ONE_ISSUE = frozenset(("ampere", "ada", "hopper", "blackwell"))

WIDE = 100
"""Lanes of a multiprocessor that tell 128 from 64."""


def times(
    cuts: Sequence[Cut],
    dtype: str,
    m: Numbers,
    n: Numbers,
    k: Numbers,
    batch: Numbers,
    gpu: Machine,
    *,
    efficiency: float,
    loading: float,
    quantisation: float,
    prologue: float,
) -> list[Any]:
    """Return the time of the arithmetic for each way to cut.

    Parameters
    ----------
    cuts : sequence of Cut
    dtype : str
        Of the operands.
    m, n, k, batch : float, or ndarray of float64 of shape (kernels,)
    gpu : Machine
    efficiency, loading, quantisation, prologue : float
        As above.

    Returns
    -------
    list of float, or of ndarray of float64 of shape (kernels,)
        Seconds, one a cut.
    """
    peak = gpu.peaks[dtype]
    rate = peak / gpu.sms * efficiency / (1 + _issue(gpu, dtype))
    loads = loading * OPERAND[dtype] * peak / 2 / gpu.l2_bandwidth
    ceil, _, _, maximum, _ = functions(m)
    sums = batch * m * n / gpu.l2_bandwidth
    sms, full = gpu.sms, 1 - quantisation
    alone = not isinstance(m, np.ndarray)
    found = []
    for rows, columns, ways in _tiles(tuple(cuts), rate, loads, prologue):
        number = ceil(m / rows) * ceil(n / columns) * batch
        for parts, slope, fixed, moved in ways:
            # Whole numbers until the division, so that whole waves come out whole.
            w = number * parts / sms
            # A call takes as long as the rest of a line: most kernels by themselves need none.
            busy = w if alone and w >= 1.0 else maximum(w, 1.0)
            time = (ceil(w) * quantisation + busy * full) * (slope * k + fixed)
            found.append(time + moved * sums if moved else time)
    return found


class _Tile(NamedTuple):
    """A tile of the result, and what of its time does not depend on the kernel.

    Attributes
    ----------
    rows, columns : int
    ways : list of (parts, slope, fixed, moved)
        Parts along k; seconds of one a step of k, and beside; bytes an element of the result that
        go through the L2 cache, as each part's sums are written in fp32 and read once more.
    """

    rows: int
    columns: int
    ways: list[tuple[int, float, float, float]]


@lru_cache(maxsize=64)
def _tiles(cuts: tuple[Cut, ...], rate: float, loads: float, prologue: float) -> tuple[_Tile, ...]:
    """Return the tiles, each with its ways to cut along k: a model asks for few."""
    found: list[_Tile] = []
    for rows, columns, parts in cuts:
        if not found or found[-1][:2] != (rows, columns):
            found.append(_Tile(rows, columns, []))
        time = 2 * rows * columns / rate * (1 + loads * (1 / rows + 1 / columns))
        moved = 8.0 * parts if parts > 1 else 0.0
        found[-1].ways.append((parts, time / parts, time * prologue, moved))
    return tuple(found)


def _issue(gpu: Machine, dtype: str) -> float:
    if dtype != "fp32" or gpu.family not in ONE_ISSUE:
        return 0.0
    return ISSUE if gpu.peaks["fp32"] / (2 * gpu.sms * gpu.clock) > WIDE else 0.0


def preferred(found: Sequence[Any], choice: float) -> Any:
    """Return the time of the way that a library is expected to choose.

    Libraries choose by rules that do not always find the fastest way: the mean over all ways is
    taken with weights exp(-(time / least - 1) / choice).

    Parameters
    ----------
    found : sequence of float, or of ndarray of float64 of shape (kernels,)
        One a way.
    choice : float
        Relative loss of time at which a way is 1/e as likely.

    Returns
    -------
    float, or ndarray of float64 of shape (kernels,)
    """
    _, exp, _, _, least = functions(found[0])
    scale = 1 / (least(found) * choice)
    top = 1 / choice
    weights = [exp(top - each * scale) for each in found]
    return sum([weight * each for weight, each in zip(weights, found)]) / sum(weights)


def throttled(found: Numbers, burst: float, gpu: Machine) -> Numbers:
    """Return times with the board's power limit: short kernels end before the clock is lowered."""
    return found * (1 + (1 / gpu.sustained - 1) * found / (found + burst))
