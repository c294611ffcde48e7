"""Embedding lookups of a batch: how often each row is looked up, and cache misses.

**Reuse factors** (Lin et al., arXiv:2404.12674, section on embedding lookups): rows of a batch are
sorted by the number of their lookups into 17 bins, (0, 1], (1, 2], (2, 4], … (16384, 32768] and
above, and counted; the counts are divided by their sum. The paper prints the bins as [1, 2),
[2, 4), …; its example (counts 2, 3, 1, 1, 1, 2, 2, 2: shares 3/8, 4/8, 1/8), the statistics of
github:facebookresearch/dlrm_datasets and its code (github:owensgroup/ml_perf_model,
``generate_el_table_configs_from_datasets.py``) have them as here.

**Skew.** Where no lookups are at hand, the row of rank i is looked up with probability ∝ i^-s
(Zipf); s = 0 is an even draw. The mean table of the data set of 2021 (887,017,990 lookups and
128,435,723 distinct rows in 856 tables, 65,536 samples: its ``embedding_bag/locality_stats.txt``)
has its 6.9 lookups a distinct row at s = 0.91 over 200,000 rows and 1.03 over 400,000, and in
between the share of rows looked up once that it states, 0.473; that of 2022 (12.7) at 1.04 and
1.13.

**Caches.** A cache that evicts what was used least recently holds the distinct rows of the last T
lookups. Of n lookups, in random order, a row that has m of them is among those of a window of n τ
with probability 1 - (1 - τ)^m, and of its m - 1 repetitions, each finds the row if it follows
within the window: the gaps between m random places in a batch exceed τ with probability
(1 - τ)^m. So a cache of C rows reaches back by the τ at which Σ (1 - (1 - τ)^m) = C, and misses

    Σ 1 + (m - 1) (1 - τ)^m

lookups (Denning's working set, doi:10.1145/363095.363141; Che et al., doi:10.1109/JSAC.2002.801752,
for a stream without end). What fits is missed once a row; without a cache every lookup misses.
Rows that stay in host memory with a cache in the GPU's memory meet it batch after batch: there the
stream has no end.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mpisim.kernels.operations import CACHE_BYTES

from ...base.frozen import frozen

__all__ = ["BINS", "Reuse", "fitted_skew", "missed_of_cache", "reuse_factors", "zipf_lookups"]

BINS = 17
"""Bins of reuse factors."""

EXACT_RANKS = 32
CLASSES_OF_AN_OCTAVE = 4
"""Ranks of a Zipf distribution: the first one by one, the others in classes."""

Floats = NDArray[np.float64]

BIN_LOOKUPS = np.array(
    [1.0, *((2 ** (b - 1) + 1 + 2**b) / 2 for b in range(1, BINS - 1)), 1.5 * 2 ** (BINS - 2)]
)
"""Mean lookups of a row of each bin, where only its share is known: the middle of the bin."""

ITERATIONS = 60
"""Halvings of an interval, to the last digit."""

MAX_SKEW = 4.0
"""Largest exponent that is looked for: with it 92 % of lookups go to one row (1 / zeta(4))."""


def reuse_factors(lookups: NDArray[np.integer]) -> Floats:
    """Rows that a batch looks up → shares of the distinct ones by how often each is.

    Parameters
    ----------
    lookups : int, shape (lookups,)
        Numbers of rows of one table.

    Returns
    -------
    float64, shape (17,)
        Shares of rows with 1, 2, 3 to 4, 5 to 8, … lookups; they add up to 1, or 0 of no lookups.

    Examples
    --------
    >>> reuse_factors(np.array([0, 0, 1, 1, 1, 2, 3, 4, 5, 5, 6, 6, 7, 7]))[:4].tolist()
    [0.375, 0.5, 0.125, 0.0]
    """
    _, counts = np.unique(lookups, return_counts=True)
    if not len(counts):
        return np.zeros(BINS)
    number = np.minimum(np.ceil(np.log2(counts)).astype(np.int64), BINS - 1)
    return np.bincount(number, minlength=BINS) / len(counts)


@frozen
class Reuse:
    """Lookups of a batch in a table, or in a shard of one.

    Attributes
    ----------
    rows : tuple of float
        Distinct rows that are looked up, by class.
    counts : tuple of float
        Lookups of a row of each class, 1 or more.
    """

    rows: tuple[float, ...]
    counts: tuple[float, ...]

    @classmethod
    def of_factors(cls, factors: tuple[float, ...], lookups: float, entries: int) -> Reuse:
        """Reuse factors of a batch → its lookups; the middle of each bin stands for its rows.

        Parameters
        ----------
        factors : tuple of float
            17 shares.
        lookups : float
            Of the batch.
        entries : int
            Rows of the table, which no batch exceeds.
        """
        shares = np.array(factors) / sum(factors)
        distinct = min(lookups / float(shares @ BIN_LOOKUPS), entries)
        scale = max(1.0, lookups / (distinct * float(shares @ BIN_LOOKUPS)))
        used = shares > 0
        return cls(tuple(distinct * shares[used]), tuple(scale * BIN_LOOKUPS[used]))

    @classmethod
    def of_skew(cls, entries: int, lookups: float, skew: float) -> Reuse:
        """Rows of a table, lookups drawn with a skew → average reuse of rows in a batch.

        Parameters
        ----------
        entries : int
        lookups : float
            Of the batch.
        skew : float
            Exponent of the Zipf distribution; 0 is even.
        """
        return _of_skew(entries, lookups, skew)

    @property
    def lookups(self) -> float:
        """Lookups of the batch."""
        return math.fsum(r * m for r, m in zip(self.rows, self.counts, strict=True))

    @property
    def distinct(self) -> float:
        """Rows without repetition."""
        return math.fsum(self.rows)

    def of_samples(self, share: float) -> Reuse:
        """Return the reuse in a share of the samples."""
        seen = [1 - (1 - share) ** count for count in self.counts]
        return Reuse(
            tuple(r * s for r, s in zip(self.rows, seen, strict=True)),
            tuple(share * m / s for m, s in zip(self.counts, seen, strict=True)),
        )

    def of_rows(self, share: float) -> Reuse:
        """Return the reuse in a share of the rows, drawn evenly."""
        return Reuse(tuple(share * r for r in self.rows), self.counts)

    def missed(self, capacity: Floats) -> Floats:
        """Return the lookups that caches miss.

        Parameters
        ----------
        capacity : float64, shape (caches,)
            Rows that each cache holds.

        Returns
        -------
        float64, shape (caches,)
        """
        rows, counts = np.array(self.rows), np.array(self.counts)
        low, high = np.zeros(len(capacity)), np.ones(len(capacity))
        for _ in range(ITERATIONS):
            middle = (low + high) / 2
            held = (1 - (1 - middle[:, None]) ** counts) @ rows
            low = np.where(held <= capacity, middle, low)
            high = np.where(held <= capacity, high, middle)
        reach = np.where(capacity >= self.distinct, 1.0, low)
        found: Floats = (1 + (counts - 1) * (1 - reach[:, None]) ** counts) @ rows
        return found

    def missed_bytes(self, row: int) -> Floats:
        """Row size in bytes → bytes that miss caches of `CACHE_BYTES`."""
        return _missed_bytes(self, row)


@lru_cache(1 << 14)
def _missed_bytes(reuse: Reuse, row: int) -> Floats:
    return row * reuse.missed(np.array(CACHE_BYTES) / row)


@lru_cache(1 << 14)
def _of_skew(entries: int, lookups: float, skew: float) -> Reuse:
    rows, chances = _classes(entries, skew)
    mean = lookups * chances
    seen = -np.expm1(-mean)  # Poisson: at least one lookup
    return Reuse(tuple((rows * seen).tolist()), tuple((mean / seen).tolist()))


def _classes(entries: int, skew: float) -> tuple[Floats, Floats]:
    """Return rows of each class of ranks, and the chance of one of them in a lookup."""
    if not skew:
        return np.array([float(entries)]), np.array([1 / entries])
    octaves = max(0.0, math.log2(entries / EXACT_RANKS))
    steps = np.arange(1, int(octaves * CLASSES_OF_AN_OCTAVE) + 1) / CLASSES_OF_AN_OCTAVE
    last = np.unique(
        [*range(1, min(EXACT_RANKS, entries) + 1), *np.floor(EXACT_RANKS * 2**steps), entries]
    )
    edges = np.concatenate([[0.5], last + 0.5])
    rows = np.diff(edges)
    power = 1 - skew
    area = np.log(edges) if abs(power) < 1e-9 else edges**power / power
    weight = np.diff(area)
    weight[:EXACT_RANKS] = last[:EXACT_RANKS] ** -skew
    return rows, weight / weight.sum() / rows


def zipf_lookups(
    entries: int, lookups: int, skew: float, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Draw lookups: row i, from 0, with probability ∝ (i + 1)^-skew.

    Parameters
    ----------
    entries, lookups : int
    skew : float
    generator : numpy.random.Generator

    Returns
    -------
    int64, shape (lookups,)
    """
    chances = np.cumsum(np.arange(1, entries + 1, dtype=np.float64) ** -skew)
    drawn = np.searchsorted(chances, generator.random(lookups) * chances[-1])
    return np.minimum(drawn, entries - 1)


def fitted_skew(entries: int, lookups: float, distinct: float) -> float:
    """Lookups and distinct rows of a batch → skew at which that many are distinct on average.

    Parameters
    ----------
    entries : int
    lookups, distinct : float

    Returns
    -------
    float
        From 0, where an even draw has no more distinct rows, to 4.
    """
    if Reuse.of_skew(entries, lookups, 0.0).distinct <= distinct:
        return 0.0
    low, high = 0.0, MAX_SKEW
    for _ in range(24):
        middle = (low + high) / 2
        if Reuse.of_skew(entries, lookups, middle).distinct > distinct:
            low = middle
        else:
            high = middle
    return round((low + high) / 2, 4)


@lru_cache(1 << 14)
def missed_of_cache(entries: int, lookups: float, skew: float, held: float) -> float:
    """Table in host memory, rows that a cache holds → distinct rows a batch has to fetch.

    The stream of batches has no end (Che et al.).

    Parameters
    ----------
    entries : int
    lookups : float
        Of a batch.
    skew : float
    held : float
        Rows.
    """
    if held >= entries:
        return 0.0
    rows, chances = _classes(entries, skew)
    low, high = 0.0, 1.0
    while rows @ -np.expm1(-chances * high) < held:
        high *= 2
    for _ in range(ITERATIONS):
        middle = (low + high) / 2
        if rows @ -np.expm1(-chances * middle) < held:
            low = middle
        else:
            high = middle
    return float((rows * -np.expm1(-lookups * chances)) @ np.exp(-chances * high))
