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
from typing import NamedTuple

import numpy as np

from ..operations import BYTES
from .machine import Machine

__all__ = ["TILES", "Cut", "overlapped", "preferred", "throttled", "times"]


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
    m: np.ndarray,
    n: np.ndarray,
    k: np.ndarray,
    batch: np.ndarray,
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
    m, n, k, batch : ndarray of float64, shape (kernels,)
    gpu : Machine
    efficiency, loading, quantisation, prologue : float
        As above.

    Returns
    -------
    ndarray of float64, shape (cuts, kernels)
        Seconds.
    """
    rows, columns, parts = (np.array(each, dtype=float)[:, None] for each in zip(*cuts))
    peak = gpu.peaks[dtype]
    rate = peak / gpu.sms * efficiency / (1 + _issue(gpu, dtype))
    loads = loading * BYTES[dtype] * peak / 2 / gpu.l2_bandwidth * (1 / rows + 1 / columns)
    tiles = np.ceil(m / rows) * np.ceil(n / columns) * (batch * parts)
    w = tiles / gpu.sms
    waves = quantisation * np.ceil(w) + (1 - quantisation) * np.maximum(w, 1)
    found: np.ndarray = waves * (k / parts + prologue) * (2 * rows * columns / rate * (1 + loads))
    if parts.max() > 1:
        # Each part's sums are written in fp32 and read once more, through the L2 cache.
        found += np.where(parts > 1, 8 * parts, 0) / gpu.l2_bandwidth * (batch * m * n)
    return found


def _issue(gpu: Machine, dtype: str) -> float:
    if dtype != "fp32" or gpu.family not in ONE_ISSUE:
        return 0.0
    return ISSUE if gpu.peaks["fp32"] / (2 * gpu.sms * gpu.clock) > WIDE else 0.0


def preferred(found: np.ndarray, choice: float) -> np.ndarray:
    """Return the time of the way that a library is expected to choose.

    Libraries choose by rules that do not always find the fastest way: the mean over all ways is
    taken with weights exp(-(time / least - 1) / choice).

    Parameters
    ----------
    found : ndarray of float64, shape (ways, kernels)
    choice : float
        Relative loss of time at which a way is 1/e as likely.

    Returns
    -------
    ndarray of float64, shape (kernels,)
    """
    weights = np.exp((1 - found / found.min(axis=0)) / choice)
    mean: np.ndarray = (weights * found).sum(axis=0) / weights.sum(axis=0)
    return mean


def throttled(found: np.ndarray, burst: float, gpu: Machine) -> np.ndarray:
    """Return times with the board's power limit: short kernels end before the clock is lowered."""
    longer: np.ndarray = found * (1 + (1 / gpu.sustained - 1) * found / (found + burst))
    return longer


def overlapped(arithmetic: np.ndarray, memory: np.ndarray) -> dict[str, np.ndarray]:
    """Return the time of arithmetic and memory traffic that overlap, divided between them.

    They overlap but for their beginnings and ends: the fourth powers add up.
    """
    a, m = arithmetic**4, memory**4
    total = (a + m) ** 0.25
    return {"arithmetic": total * a / (a + m), "memory": total * m / (a + m)}
