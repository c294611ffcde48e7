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

from ..operations import BYTES
from .machine import Machine
from .maths import Numbers

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
) -> np.ndarray:
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
    ndarray of float64, shape (cuts,) or (cuts, kernels)
        Seconds.
    """
    peak = gpu.peaks[dtype]
    rate = peak / gpu.sms * efficiency / (1 + _issue(gpu, dtype))
    loads = loading * BYTES[dtype] * peak / 2 / gpu.l2_bandwidth
    cut = _cut(tuple(cuts), isinstance(m, np.ndarray), rate, loads, prologue)
    # Whole numbers until the division, so that whole waves come out whole.
    w = np.ceil(m / cut.rows) * np.ceil(n / cut.columns) * (cut.parts * batch) / gpu.sms
    waves = np.ceil(w) * quantisation + np.maximum(w, 1.0) * (1 - quantisation)
    found: np.ndarray = waves * (cut.slope * k + cut.fixed)
    if cut.sums is not None:
        # Each part's sums are written in fp32 and read once more, through the L2 cache.
        found += cut.sums * (batch * m * n / gpu.l2_bandwidth)
    return found


class _Cuts(NamedTuple):
    """Ways to cut: arrays of shape (cuts,) for one kernel, (cuts, 1) for several.

    Attributes
    ----------
    rows, columns, parts : ndarray
    slope, fixed : ndarray
        Seconds of a tile a step of k, and beside.
    sums : ndarray, optional
        Bytes of the sums of parts; None where nothing is cut along k.
    """

    rows: np.ndarray
    columns: np.ndarray
    parts: np.ndarray
    slope: np.ndarray
    fixed: np.ndarray
    sums: np.ndarray | None


@lru_cache(maxsize=64)
def _cut(
    cuts: tuple[Cut, ...], several: bool, rate: float, loads: float, prologue: float
) -> _Cuts:
    """Return what of the ways to cut does not depend on the kernel: a model asks for few."""
    found = [np.array(each, dtype=float) for each in zip(*cuts)]
    rows, columns, parts = (each[:, None] for each in found) if several else found
    tile = 2 * rows * columns / rate * (1 + loads * (1 / rows + 1 / columns))
    sums = np.where(parts > 1, 8 * parts, 0.0) if parts.max() > 1 else None
    return _Cuts(rows, columns, parts, tile / parts, tile * prologue, sums)


def _issue(gpu: Machine, dtype: str) -> float:
    if dtype != "fp32" or gpu.family not in ONE_ISSUE:
        return 0.0
    return ISSUE if gpu.peaks["fp32"] / (2 * gpu.sms * gpu.clock) > WIDE else 0.0


def preferred(found: np.ndarray, choice: float) -> Any:
    """Return the time of the way that a library is expected to choose.

    Libraries choose by rules that do not always find the fastest way: the mean over all ways is
    taken with weights exp(-(time / least - 1) / choice).

    Parameters
    ----------
    found : ndarray of float64, shape (ways,) or (ways, kernels)
    choice : float
        Relative loss of time at which a way is 1/e as likely.

    Returns
    -------
    float, or ndarray of float64 of shape (kernels,)
    """
    scale = 1 / (np.minimum.reduce(found) * choice)
    weights = np.exp(1 / choice - found * scale)
    mean = np.add.reduce(weights * found) / np.add.reduce(weights)
    return mean if isinstance(mean, np.ndarray) else float(mean)


def throttled(found: Numbers, burst: float, gpu: Machine) -> Numbers:
    """Return times with the board's power limit: short kernels end before the clock is lowered."""
    return found * (1 + (1 / gpu.sustained - 1) * found / (found + burst))
