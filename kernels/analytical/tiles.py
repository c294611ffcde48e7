"""Matrix product, tiling, GPU → seconds of its arithmetic, in waves of tiles.

Shared by products, convolutions and attention. The result is cut into tiles, and possibly the
product along k as well (split-k); each multiprocessor works on one tile after another (CUTLASS,
github:NVIDIA/cutlass, media/docs/efficient_gemm.md). For one tiling, with w = tiles /
multiprocessors:

    waves = (1 - quantisation) max(w, 1) + quantisation ceil(w)
    tile  = 2 rows columns (k + prologue) / (efficiency × peak of a multiprocessor)
    loads = loading × (time to read the tile's operands from L2) / (time of its arithmetic)
    time  = waves × tile × (1 + loads)

**As many parts as fill the GPU.** Where even the finest of a table of tilings leaves more than half
of the multiprocessors idle, a library divides a long k into as many parts as there is room for,
each at least `LEAST_DEPTH` deep. A second kernel then adds up their sums, whose threads load one
part after another (splitKreduce_kernel of cuBLAS), and costs another start:

    parts = min(multiprocessors / tiles, k / LEAST_DEPTH)
    time  = tile(k / parts) × (1 + loads) + sums through L2 + parts / 4 × reduction_step + floor

**Waves beside a communication.** A library tiles a product for all multiprocessors of the GPU; it
does not know that a communication occupies some of them. With S multiprocessors and n of them
occupied, tiles that needed ceil(tiles / S) waves need ceil(tiles / (S - n)): 132 tiles on an H100
(S = 132) with 24 occupied need two in place of one. Work whose tiles are not known is taken to
divide freely: S / (S - n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..gpu_parameters import GpuParameters
from ..numbers import number
from ..operations import OPERAND_BYTES
from .formula import Constants, Numbers, any_of, filled_like, functions, where

__all__ = [
    "LONGEST_BURST",
    "Tiling",
    "expected_tiles",
    "expected_time",
    "filling_times",
    "free_stretch",
    "library_tilings",
    "power_throttled",
    "product_stretch",
    "tiled_times",
    "tiling_constants",
    "wave_stretch",
]


class Tiling(NamedTuple):
    """One way to divide a product into tiles.

    Attributes
    ----------
    rows, columns : int
        Of a tile of the result.
    split_k : int
        Parts into which the product is divided along k; their sums are added up at the end.
    """

    rows: int
    columns: int
    split_k: int = 1


LIBRARY_TILINGS = {
    "fp32": (
        *(
            Tiling(32, 32),
            Tiling(32, 64),
            Tiling(64, 32),
            Tiling(64, 64),
            Tiling(32, 128),
            Tiling(128, 32),
        ),
        *(Tiling(64, 128), Tiling(128, 64), Tiling(128, 128), Tiling(128, 256), Tiling(256, 128)),
    ),
    "half": tuple(
        Tiling(rows, columns, split_k)
        for rows, columns in (
            *((64, 64), (64, 128), (128, 64), (128, 128)),
            *((64, 256), (256, 64), (128, 256), (256, 128)),
        )
        for split_k in (1, 2, 4)
    ),
}
"""Cuts that cuBLAS and CUTLASS have kernels for: on cores in fp32, and on matrix units."""

ISSUE_OVERHEAD = number("fp32_issue_overhead")

SINGLE_ISSUE = frozenset(("ampere", "ada", "hopper", "blackwell", "blackwell-rtx"))
"""Architectures whose schedulers issue one instruction a clock."""

MAX_SPREAD = 0.5
"""Upper bound of the standard deviation in `expected_tiles`, in tiles."""
NORMAL_AS_TANH = 0.851
"""P(x > 0) = (1 + tanh(0.851 x / s)) / 2 of a normal x with standard deviation s, to 0.01: quicker
than the error function, and no other factor has a smaller largest difference."""

LEAST_DEPTH = number("split_depth")
"""Least depth of a part, in elements along k, where a product is divided to fill the GPU."""
LEAST_GAIN = number("split_gain")
"""A product is divided to fill the GPU if that gives this many times the parts of a tiling."""
SUM_STEP = number("reduction_step")
SUMS_AT_ONCE = number("split_sums_at_once")
"""Parts that a thread of the adding kernel loads at once."""
UNAVAILABLE = 1e9
"""Seconds of a choice that a kernel does not have: finite, so that ratios of times stay finite."""

MIN_SM_SHARE = number("least_sm_share")
LONGEST_BURST = number("longest_burst")


def library_tilings(dtype: str) -> tuple[Tiling, ...]:
    """Return the tilings that libraries have kernels for in a format."""
    return LIBRARY_TILINGS["fp32" if dtype == "fp32" else "half"]


def tiling_constants(constants: Constants) -> dict[str, float]:
    """Return those of a formula's constants that `tiled_times` takes."""
    return {
        "efficiency": constants["efficiency"],
        "loading": constants["loading"],
        "quantisation": constants["quantisation"],
        "prologue": constants["prologue"],
    }


def tiled_times(
    tilings: Sequence[Tiling],
    dtype: str,
    m: Numbers,
    n: Numbers,
    k: Numbers,
    batch: Numbers,
    gpu: GpuParameters,
    *,
    efficiency: float,
    loading: float,
    quantisation: float,
    prologue: float,
    spread: Numbers | None = None,
) -> list[Any]:
    """Return the time of a product's arithmetic for each tiling.

    Parameters
    ----------
    tilings : sequence of Tiling
    dtype : str
        Of the operands.
    m, n, k, batch : float, or ndarray of float64 of shape (kernels,)
    gpu : GpuParameters
    efficiency, loading, quantisation, prologue : float
        As above.
    spread : float, or ndarray of float64 of shape (kernels,), optional
        Standard deviation of `m` over the products of a batch, of which `m` is the mean.

    Returns
    -------
    list of float, or of ndarray of float64 of shape (kernels,)
        Seconds, one for each tiling.
    """
    rate, loads = _rates(dtype, gpu, efficiency, loading)
    ceil, _, _, maximum, _ = functions(m)
    sums = batch * m * n / gpu.l2_bandwidth
    sms, full = gpu.sms, 1 - quantisation
    single = not isinstance(m, np.ndarray)
    found = []
    for rows, columns, variants in _tiles(tuple(tilings), rate, loads, prologue):
        down = ceil(m / rows) if spread is None else expected_tiles(m / rows, spread / rows)
        tiles = down * ceil(n / columns) * batch
        for split_k, slope, fixed, moved in variants:
            # Whole numbers until the division, so that whole waves come out whole.
            w = tiles * split_k / sms
            # A function call costs as much as the rest of the line; most single kernels need none.
            busy = w if single and w >= 1.0 else maximum(w, 1.0)
            time = (ceil(w) * quantisation + busy * full) * (slope * k + fixed)
            found.append(time + moved * sums if moved else time)
    return found


def filling_times(
    tilings: Sequence[Tiling],
    dtype: str,
    m: Numbers,
    n: Numbers,
    k: Numbers,
    batch: Numbers,
    gpu: GpuParameters,
    constants: Constants,
) -> list[tuple[Any, Any]]:
    """Sizes of a product → its times if split along k into as many parts as there are free SMs.

    Parameters
    ----------
    tilings, dtype, m, n, k, batch, gpu
        As for `tiled_times`.
    constants : mapping of str to float
        Of the formula: ``efficiency``, ``loading`` and ``prologue`` as for `tiled_times`, and
        ``floor``, the seconds that starting the kernel takes which adds up the parts.

    Returns
    -------
    list of two floats each, or of two ndarrays of float64 of shape (kernels,)
        Seconds and thread blocks, for each tile; `UNAVAILABLE` seconds where the parts in `tilings`
        fill the GPU, and empty if they do for all kernels.
    """
    ceil, _exp, _sqrt, maximum, _least = functions(m)
    rates = _rates(dtype, gpu, constants["efficiency"], constants["loading"])
    tiles = _tiles(tuple(tilings), *rates, constants["prologue"])
    finest = min(tiles, key=lambda tile: tile.rows * tile.columns)
    idle = _filling_parts(finest, m, n, k, batch, gpu) >= LEAST_GAIN * finest.variants[-1][0]
    found: list[tuple[Any, Any]] = []
    if not any_of(idle):
        return found
    for tile in tiles:
        parts = _filling_parts(tile, m, n, k, batch, gpu)
        more = idle & (parts > tile.variants[-1][0])
        parts = maximum(parts, 1.0)
        _split, slope, fixed, _moved = tile.variants[0]
        sums = 8.0 * parts * batch * m * n / gpu.l2_bandwidth
        adding = sums + ceil(parts / SUMS_AT_ONCE) * SUM_STEP + constants["floor"]
        time = slope * (k / parts) + fixed + adding
        blocks = parts * ceil(m / tile.rows) * ceil(n / tile.columns) * batch
        found.append((where(more, time, filled_like(time, UNAVAILABLE)), blocks))
    return found


def _filling_parts(
    tile: _Tile, m: Numbers, n: Numbers, k: Numbers, batch: Numbers, gpu: GpuParameters
) -> Numbers:
    """Return how many parts along k fill the GPU; 0 where k is too short for one."""
    ceil = functions(m).ceil
    room = gpu.sms / (ceil(m / tile.rows) * ceil(n / tile.columns) * batch)
    deep = k / LEAST_DEPTH
    return np.floor(np.minimum(room, deep)) if isinstance(m, np.ndarray) else min(room, deep) // 1


def _rates(
    dtype: str, gpu: GpuParameters, efficiency: float, loading: float
) -> tuple[float, float]:
    """Return a multiprocessor's FLOP/s, and seconds of loads for those of a tile of side 1."""
    peak = gpu.peaks[dtype]
    rate = peak / gpu.sms * _reached(gpu, dtype, efficiency) / (1 + _issue_overhead(gpu, dtype))
    # Of a GPU that is scaled products keep their efficiency: caches keep up with matrix units.
    return rate, loading * OPERAND_BYTES[dtype] * gpu.chip_peaks[dtype] / 2 / gpu.l2_bandwidth


def expected_tiles(mean: Numbers, spread: Numbers) -> Numbers:
    """Numbers of rows that differ, in tiles → whole tiles that cover them, on average.

    The number of rows is normal: the mean of ceil(x) is the sum over whole j of P(x > j). From a
    spread of half a tile on that is mean + 1/2 to a hundredth of a tile, whatever the spread.

    Parameters
    ----------
    mean, spread : float, or ndarray of float64 of shape (kernels,)
        Mean and standard deviation, in tiles.

    Returns
    -------
    float, or ndarray of float64 of shape (kernels,)

    Examples
    --------
    >>> expected_tiles(16.0, 0.0), round(expected_tiles(16.0, 0.4), 2)
    (16.0, 16.5)
    """
    if isinstance(mean, np.ndarray) or isinstance(spread, np.ndarray):
        width = np.clip(spread, 1e-9, MAX_SPREAD)
        first = np.maximum(np.ceil(mean) - 3, 0.0)
        above = [np.tanh(NORMAL_AS_TANH * (mean - first - i) / width) for i in range(6)]
        return np.where(spread > 0, first + 3 + np.sum(above, axis=0) / 2, np.ceil(mean))
    if spread <= 0:
        return float(math.ceil(mean))
    start = max(math.ceil(mean) - 3.0, 0.0)
    scale = NORMAL_AS_TANH / min(spread, MAX_SPREAD)
    return start + 3 + sum(math.tanh(scale * (mean - start - i)) for i in range(6)) / 2


class _Tile(NamedTuple):
    """A tile of the result, and the coefficients of its time that do not depend on the kernel.

    Attributes
    ----------
    rows, columns : int
    variants : list of (split_k, slope, fixed, moved)
        Parts along k; seconds for each step of k, and fixed ones; bytes for each element of the
        result that go through the L2 cache, as each part's sums are written in fp32 and read again.
    """

    rows: int
    columns: int
    variants: list[tuple[int, float, float, float]]


@lru_cache(maxsize=64)
def _tiles(
    tilings: tuple[Tiling, ...], rate: float, loads: float, prologue: float
) -> tuple[_Tile, ...]:
    """Return the tiles with their split-k variants; a model needs few, hence the small cache."""
    found: list[_Tile] = []
    for rows, columns, split_k in tilings:
        if not found or found[-1][:2] != (rows, columns):
            found.append(_Tile(rows, columns, []))
        time = 2 * rows * columns / rate * (1 + loads * (1 / rows + 1 / columns))
        moved = 8.0 * split_k if split_k > 1 else 0.0
        found[-1].variants.append((split_k, time / split_k, time * prologue, moved))
    return tuple(found)


def _issue_overhead(gpu: GpuParameters, dtype: str) -> float:
    """Return the instructions beside each multiplication that cost time."""
    if dtype != "fp32" or gpu.family not in SINGLE_ISSUE:
        return 0.0
    _, many_lanes = gpu.design
    return ISSUE_OVERHEAD if many_lanes else 0.0


def _reached(gpu: GpuParameters, dtype: str, efficiency: float) -> float:
    """Return the share of the peak that arithmetic alone reaches on this GPU.

    What matrix units wait for (operands from shared memory, instructions) is a time of the chip.
    On a board whose units accumulate in fp32 at half of the chip's rate (GeForce, A10G, L40) it is
    half as large a part: of 1/e - 1 beside each second of the units is left (1/e - 1) / 2.
    """
    if dtype == "fp32" or not gpu.half_rate or efficiency >= 1:
        return efficiency
    return 1 / (1 + (1 / efficiency - 1) / 2)


def expected_time(times: Sequence[Any], choice: float) -> Any:
    """Return the time of the alternative that a library is expected to choose.

    Libraries choose by rules that do not always find the fastest: the mean over all alternatives is
    taken with weights exp(-(time / least - 1) / choice).

    Parameters
    ----------
    times : sequence of float, or of ndarray of float64 of shape (kernels,)
        Seconds, one for each alternative.
    choice : float
        Relative loss of time at which an alternative is 1/e as likely.

    Returns
    -------
    float, or ndarray of float64 of shape (kernels,)
    """
    _, exp, _, _, least = functions(times[0])
    scale = 1 / (least(times) * choice)
    top = 1 / choice
    weights = [exp(top - each * scale) for each in times]
    return sum([weight * each for weight, each in zip(weights, times)]) / sum(weights)


def power_throttled(time: Numbers, burst: float, share: float) -> Numbers:
    """Return times under the board's power limit: short kernels end before the clock is lowered.

    Parameters
    ----------
    time : float, or ndarray of float64 of shape (kernels,)
        Seconds at the clock of short kernels.
    burst : float
        Duration at which half of the limit holds, in seconds.
    share : float
        Of the clock that the power allows (`GpuParameters.product_clock`).
    """
    return time * (1 + (1 / share - 1) * time / (time + burst))


# --- multiprocessors occupied by a communication --------------------------------------------------


def _free_sms(gpu: GpuParameters, occupied: int) -> float:
    return max(gpu.sms - occupied, MIN_SM_SHARE * gpu.sms)


def free_stretch(gpu: GpuParameters, occupied: int) -> float:
    """Return the slowdown of freely divisible work with some multiprocessors occupied.

    Parameters
    ----------
    gpu : GpuParameters
    occupied : int
        Multiprocessors that communications hold.
    """
    return gpu.sms / _free_sms(gpu, occupied)


def wave_stretch(tiles: Any, gpu: GpuParameters, occupied: int) -> Any:
    """Return the waves of tiles with multiprocessors occupied, over those without.

    Parameters
    ----------
    tiles : float, or ndarray
    gpu : GpuParameters
    occupied : int
        Multiprocessors that communications hold.

    Examples
    --------
    >>> from mpisim.kernels.gpu_parameters import gpu_parameters
    >>> float(wave_stretch(132, gpu_parameters("h100-sxm"), 24))
    2.0
    """
    return np.ceil(tiles / _free_sms(gpu, occupied)) / np.maximum(np.ceil(tiles / gpu.sms), 1)


def product_stretch(
    dtype: str,
    m: Any,
    n: Any,
    k: Any,
    batch: Any,
    gpu: GpuParameters,
    constants: Constants,
    choice: float,
    occupied: int,
    *,
    fills: bool = True,
) -> Any:
    """Return the slowdown of matrix products with some multiprocessors occupied.

    The mean over the tilings, each as likely and as long as with the GPU to itself.

    Parameters
    ----------
    dtype : str
    m, n, k, batch : ndarray of shape (kernels,)
    gpu : GpuParameters
    constants : mapping of str to float
        With those of `tiling_constants`.
    choice : float
        As for `expected_time`.
    occupied : int
    fills : bool
        Whether they are divided into as many parts as fill the GPU (`filling_times`).

    Returns
    -------
    ndarray of float64, shape (kernels,)
    """
    tilings = library_tilings(dtype)
    m, n, k, batch = (np.asarray(each, float) for each in (m, n, k, batch))
    times = tiled_times(tilings, dtype, m, n, k, batch, gpu, **tiling_constants(constants))
    fillings = filling_times(tilings, dtype, m, n, k, batch, gpu, constants) if fills else []
    alone = np.array([*times, *(time for time, _ in fillings)])
    weights = np.exp((1 - alone / alone.min(axis=0)) / choice) * alone
    tiles = [
        np.ceil(m / tiling.rows) * np.ceil(n / tiling.columns) * batch * tiling.split_k
        for tiling in tilings
    ] + [blocks for _, blocks in fillings]
    stretched = (weights * wave_stretch(np.array(tiles), gpu, occupied)).sum(axis=0)
    return stretched / weights.sum(axis=0)
