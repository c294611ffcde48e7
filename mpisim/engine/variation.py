"""How ranks differ from each other: speeds, and jitter of single kernels, in whole numbers.

A rank has a *factor* for its kernels and copies, an integer that counts 2^-32: the inverse of its
speed. With jitter every row has a factor of its own on top, drawn from 4,096 equally likely ones by
a hash of (seed, rank, row): it is the same whoever computes it, and in whatever order. Products are
rounded half up to whole picoseconds, exactly, so numpy and the compiled core agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..program import Jitter, Program
from ._core import vary
from .digest import mix

__all__ = [
    "ONE",
    "Variation",
    "factor_of",
    "jitter_factors",
    "jitter_key",
    "jitter_table",
    "scaled",
]

ONE = 1 << 32
"""The factor of a rank of speed 1."""

_LARGEST = 1 << 62
_CHOICES = 4096
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, as in SplitMix64
_HALF, _LOW, _BITS = np.uint64(1 << 31), np.uint64(ONE - 1), np.uint64(32)


def factor_of(speed: ArrayLike) -> NDArray[np.uint64]:
    """Return the factors of speeds, of the same shape.

    Examples
    --------
    >>> (factor_of([1.0, 0.5]) // ONE).tolist()
    [1, 2]
    """
    return np.rint(np.minimum(ONE / np.asarray(speed, float), _LARGEST)).astype(np.uint64)


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
    z = np.array([normal.inv_cdf((i + 0.5) / _CHOICES) for i in range(_CHOICES)])
    factors = np.exp(spread * z)
    table = np.rint(factors / factors.mean() * ONE).astype(np.uint64)
    table.setflags(write=False)
    return table


def jitter_key(seed: int, ranks: ArrayLike) -> NDArray[np.uint64]:
    """Return what all hashes of each rank begin with; uint64, shape (n,)."""
    numbers = np.asarray(ranks, np.uint64) + np.uint64(1)
    return mix(np.uint64(seed) + numbers * np.uint64(_GOLDEN))


def jitter_factors(
    jitter: Jitter, rank: int, rows: NDArray[np.int64], factor: int = ONE
) -> NDArray[np.uint64]:
    """Return the factors of some rows of a rank.

    Parameters
    ----------
    jitter : Jitter
    rank : int
        Its number in the program.
    rows : int64, shape (n,)
    factor : int
        Of the rank.

    Returns
    -------
    uint64, shape (n,)
    """
    key = jitter_key(jitter.seed, [rank])
    hashes = mix(key + (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))
    return scaled(jitter_table(jitter.spread)[hashes >> np.uint64(64 - 12)], factor)


@dataclass(frozen=True, eq=False)
class Variation:
    """How the kernels and copies of some ranks differ from what their tables say.

    Attributes
    ----------
    factor : uint64, shape (h,)
        Of each rank.
    key : uint64, shape (h,)
        What all hashes of a rank begin with.
    table : uint64, shape (4096,), or None
        The equally likely factors of rows; None without jitter.
    """

    factor: NDArray[np.uint64]
    key: NDArray[np.uint64]
    table: NDArray[np.uint64] | None

    @classmethod
    def of(cls, program: Program, ranks: NDArray[np.int32]) -> Variation | None:
        """Return the variation of some ranks of a program; None where they do not vary."""
        speed, jitter = program.speed[ranks], program.jitter
        if jitter is None and (speed == 1).all():
            return None
        return cls(
            factor=factor_of(speed),
            key=jitter_key(0 if jitter is None else jitter.seed, ranks),
            table=None if jitter is None else jitter_table(jitter.spread),
        )

    def key_of(self, i: int) -> Hashable:
        """Return what is equal for entries that vary alike."""
        return int(self.factor[i]), None if self.table is None else int(self.key[i])

    def applied(
        self, i: int, durations: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return durations of an entry's rows, of which those of kernels and copies vary.

        Parameters
        ----------
        i : int
            Which of the h ranks.
        durations : int64, shape (n,)
            Of all rows of the rank, in ps.
        rows : int64, shape (k,)
            Kernels and copies.
        """
        found: NDArray[np.int64] = vary(
            durations, rows, int(self.factor[i]), int(self.key[i]), self.table
        )
        return found
