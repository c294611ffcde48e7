"""Duration factors: the speed of each rank and the jitter of each kernel, in integers.

The *factor* of a rank scales its kernels and copies: the inverse of its speed, in units of 2^-32.
With jitter every row has a further factor, one of 4,096 equally likely ones, chosen by a hash of
(seed, rank, row): it is the same on every process and in any order. Products are rounded half up to
whole picoseconds in integer arithmetic, so numpy and the compiled core agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..base.frozen import frozen
from ..program import Jitter, Program
from ._core import vary
from .digest import mix

__all__ = [
    "ONE",
    "DurationFactors",
    "jitter_factors",
    "jitter_key",
    "jitter_table",
    "scaled",
    "speed_factor",
]

ONE = 1 << 32
"""The factor of a rank of speed 1."""

_MAX_FACTOR = 1 << 62
"""Of a rank whose speed is almost 0: what an int64 holds."""

_N_JITTER_FACTORS = 4096
"""Quantiles of the distribution of jitter, one of which each draw takes."""

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, as in SplitMix64
_HALF, _LOW, _BITS = np.uint64(1 << 31), np.uint64(ONE - 1), np.uint64(32)


def speed_factor(speed: ArrayLike) -> NDArray[np.uint64]:
    """Speeds → factors, of the same shape; uint64.

    Examples
    --------
    >>> (speed_factor([1.0, 0.5]) // ONE).tolist()
    [1, 2]
    """
    return np.rint(np.minimum(ONE / np.asarray(speed, float), _MAX_FACTOR)).astype(np.uint64)


def scaled(values: ArrayLike, factor: ArrayLike) -> NDArray[np.uint64]:
    """Multiply values by factors, rounded half up: ``(values * factor + 2^31) >> 32``.

    Parameters
    ----------
    values, factor : uint64
        Arrays that broadcast. The result must fit into 64 bits.
    """
    values, factor = np.asarray(values, np.uint64), np.asarray(factor, np.uint64)
    high, low = values >> _BITS, values & _LOW
    whole, part = factor >> _BITS, factor & _LOW
    return values * whole + high * part + ((low * part + _HALF) >> _BITS)


@cache
def jitter_table(spread: float) -> NDArray[np.uint64]:
    """Return the equally likely factors: lognormal, of mean 1; uint64, shape (4096,)."""
    from statistics import NormalDist  # and with it fractions, decimals

    normal = NormalDist()
    z = np.array([normal.inv_cdf((i + 0.5) / _N_JITTER_FACTORS) for i in range(_N_JITTER_FACTORS)])
    factors = np.exp(spread * z)
    table = np.rint(factors / factors.mean() * ONE).astype(np.uint64)
    table.setflags(write=False)
    return table


def jitter_key(seed: int, ranks: ArrayLike) -> NDArray[np.uint64]:
    """Return the key with which the hashes of each rank begin; uint64, shape (n,).

    Parameters
    ----------
    seed : int
        Of the program's `Jitter`; 0 to 2^64 - 1.
    ranks : array_like of int, shape (n,)
        Their numbers in the program.
    """
    numbers = np.asarray(ranks, np.uint64) + np.uint64(1)
    return mix(np.uint64(seed) + numbers * np.uint64(_GOLDEN))


def jitter_factors(
    jitter: Jitter, rank: int, rows: NDArray[np.int64], factor: int = ONE
) -> NDArray[np.uint64]:
    """Return the duration factors of some rows of a rank.

    Parameters
    ----------
    jitter : Jitter
    rank : int
        Its number in the program.
    rows : int64, shape (n,)
    factor : int
        The factor of the rank, in units of 2^-32.

    Returns
    -------
    uint64, shape (n,)
    """
    key = jitter_key(jitter.seed, [rank])
    hashes = mix(key + (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))
    return scaled(jitter_table(jitter.spread)[hashes >> np.uint64(64 - 12)], factor)


@frozen(eq=False)
class DurationFactors:
    """Factors of some ranks: durations of kernels and copies over those in their tables.

    Attributes
    ----------
    factor : uint64, shape (h,)
        Of each rank.
    key : uint64, shape (h,)
        See `jitter_key`.
    table : uint64, shape (4096,), or None
        The equally likely factors of rows; None without jitter.
    """

    factor: NDArray[np.uint64]
    key: NDArray[np.uint64]
    table: NDArray[np.uint64] | None

    @classmethod
    def of(cls, program: Program, ranks: NDArray[np.int32]) -> DurationFactors | None:
        """Return the factors of some ranks of a program; None where all are 1.

        Parameters
        ----------
        program : Program
        ranks : int32, shape (h,)
            Their numbers in the program.
        """
        speed, jitter = program.speed[ranks], program.jitter
        if jitter is None and (speed == 1).all():
            return None
        return cls(
            factor=speed_factor(speed),
            key=jitter_key(0 if jitter is None else jitter.seed, ranks),
            table=None if jitter is None else jitter_table(jitter.spread),
        )

    def key_of(self, i: int) -> Hashable:
        """Return a key that is equal for ranks with equal factors."""
        return int(self.factor[i]), None if self.table is None else int(self.key[i])

    def applied(
        self, i: int, durations: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the durations of a rank's rows, with its factors on kernels and copies.

        Parameters
        ----------
        i : int
            Index of the rank, 0 to h - 1.
        durations : int64, shape (n,)
            Of all rows of the rank, in ps.
        rows : int64, shape (k,)
            Kernels and copies.
        """
        found: NDArray[np.int64] = vary(
            durations, rows, int(self.factor[i]), int(self.key[i]), self.table
        )
        return found
