"""How often a batch looks up rows, and what caches miss: the paper's example, draws, an LRU."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.analytical.embedding import CACHED_SHARE
from mpisim.kernels.operations import CACHE_BYTES, EmbeddingTables
from mpisim.workloads.dlrm import Reuse, reuse_factors, zipf_lookups
from mpisim.workloads.dlrm.reuse import BINS, fitted_skew, missed_of_cache


def lru_misses(lookups: list[int], capacity: int) -> int:
    """Simulate a cache that evicts what was used least recently."""
    cache: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for row in lookups:
        if row in cache:
            cache.move_to_end(row)
            continue
        misses += 1
        cache[row] = None
        if len(cache) > capacity:
            cache.popitem(last=False)
    return misses


def test_the_worked_example() -> None:
    # Lin et al.: 4 samples, 14 lookups of 8 rows, which are looked up 2, 3, 1, 1, 1, 2, 2, 2 times.
    lookups = np.repeat(np.arange(8), [2, 3, 1, 1, 1, 2, 2, 2])
    factors = reuse_factors(lookups)
    assert factors.tolist() == [3 / 8, 4 / 8, 1 / 8] + [0.0] * 14
    assert len(factors) == BINS == 17


def test_bins_are_powers_of_two() -> None:
    counts = [1, 2, 3, 4, 5, 8, 9, 32768, 32769, 70000]
    factors = reuse_factors(np.repeat(np.arange(len(counts)), counts))
    expected = np.zeros(17)
    for number in (0, 1, 2, 2, 3, 3, 4, 15, 16, 16):
        expected[number] += 0.1
    assert factors == pytest.approx(expected)
    assert reuse_factors(np.zeros(0, np.int64)).tolist() == [0.0] * 17


@pytest.mark.parametrize(
    ("entries", "lookups", "skew"),
    [(100_000, 200_000, 1.05), (200_000, 60_000, 0.0), (200_000, 60_000, 0.8), (400, 5000, 1.2)],
)
def test_distinct_rows_and_misses_are_those_of_a_draw(
    entries: int, lookups: int, skew: float
) -> None:
    drawn = zipf_lookups(entries, lookups, skew, np.random.default_rng(1))
    reuse = Reuse.of_skew(entries, lookups, skew)
    assert reuse.lookups == pytest.approx(lookups, rel=1e-6)
    assert reuse.distinct == pytest.approx(len(np.unique(drawn)), rel=0.02)
    capacities = [max(1, entries // 200), max(1, entries // 20), entries]
    missed = reuse.missed(np.array(capacities, float))
    measured = [lru_misses(drawn.tolist(), capacity) for capacity in capacities]
    assert missed == pytest.approx(measured, rel=0.06)
    # By its 17 numbers alone the batch is known less well.
    from_factors = Reuse.of_factors(tuple(reuse_factors(drawn)), lookups, entries)
    assert from_factors.lookups == pytest.approx(lookups, rel=1e-6)
    assert from_factors.distinct == pytest.approx(reuse.distinct, rel=0.15)
    assert from_factors.missed(np.array(capacities, float)) == pytest.approx(measured, rel=0.16)


@given(
    entries=st.integers(1, 10**8),
    lookups=st.integers(1, 10**7),
    skew=st.floats(0, 3),
    capacities=st.lists(st.floats(1, 10**8), min_size=2, max_size=4),
)
def test_what_holds_of_every_batch(
    entries: int, lookups: int, skew: float, capacities: list[float]
) -> None:
    reuse = Reuse.of_skew(entries, float(lookups), skew)
    assert reuse.distinct <= min(entries, lookups) * (1 + 1e-9)
    assert all(count >= 1 - 1e-9 for count in reuse.counts)
    missed = reuse.missed(np.array(sorted(capacities)))
    slack = 1e-6 * lookups
    assert (np.diff(missed) <= slack).all()  # a larger cache misses no more
    assert (missed >= reuse.distinct - slack).all()
    assert (missed <= lookups + slack).all()
    half = reuse.of_samples(0.5)
    assert half.lookups == pytest.approx(lookups / 2, rel=1e-6)
    assert half.distinct <= reuse.distinct * (1 + 1e-9)
    assert reuse.of_rows(0.25).distinct == pytest.approx(reuse.distinct / 4)


def test_half_of_the_samples_is_a_smaller_batch() -> None:
    whole, half = (Reuse.of_skew(10**6, float(n), 1.0) for n in (200_000, 100_000))
    assert whole.of_samples(0.5).distinct == pytest.approx(half.distinct, rel=0.04)


@given(entries=st.integers(100, 10**7), skew=st.floats(0.1, 2), share=st.floats(0.01, 1))
def test_the_skew_is_found_again(entries: int, skew: float, share: float) -> None:
    lookups = max(10.0, share * entries)
    distinct = Reuse.of_skew(entries, lookups, skew).distinct
    found = fitted_skew(entries, lookups, distinct)
    assert Reuse.of_skew(entries, lookups, found).distinct == pytest.approx(distinct, rel=0.01)


def test_a_cache_of_host_memory_meets_batch_after_batch() -> None:
    entries, lookups, held = 20_000, 4_000, 4_000
    generator = np.random.default_rng(2)
    cache: OrderedDict[int, None] = OrderedDict()
    fetched = []
    for _ in range(30):
        rows = np.unique(zipf_lookups(entries, lookups, 0.9, generator)).tolist()
        fetched.append(sum(row not in cache for row in rows))
        for row in rows:
            cache[row] = None
            cache.move_to_end(row)
        while len(cache) > held:
            cache.popitem(last=False)
    expected = missed_of_cache(entries, float(lookups), 0.9, float(held))
    assert np.mean(fetched[10:]) == pytest.approx(expected, rel=0.05)
    assert missed_of_cache(entries, float(lookups), 0.9, float(entries)) == 0


def test_the_time_of_a_lookup_is_what_its_cache_misses() -> None:
    model = Analytical(find_gpu("a100-sxm"))

    def seconds(missed: tuple[int, ...], backward: bool = False) -> float:
        kernel = EmbeddingTables(10**6, 512 * 10**6, 10**8, 10**6, missed, backward)
        return model.estimate(kernel).duration * 1e-12

    even = (512 * 10**6,) * 8
    constants = model.look_up("embedding", "fp32").constants
    rate = model.parameters.bandwidth * constants["share"]
    traffic = 512 * 10**6 + 10**6 + 8 * 10**6
    assert seconds(even) == pytest.approx(constants["floor"] + traffic / rate, rel=1e-6)
    # Backward rows are read and written once each, and indices are sorted.
    back = 10**6 + 2 * 10**8 + (8 + 256) * 10**6
    assert seconds(even, True) == pytest.approx(constants["floor"] + back / rate, rel=1e-6)
    # Of caches of 1 to 128 MiB those count that are next to the GPU's share of its L2.
    cache = constants["capacity"] * model.parameters.l2
    low = max(i for i, size in enumerate(CACHE_BYTES) if size <= cache)

    def around(size: int) -> tuple[int, ...]:
        return tuple(size if i in (low, low + 1) else 10**9 for i in range(8))

    missed = 4 * 10**8
    assert seconds(around(missed)) == pytest.approx(
        constants["floor"] + (missed + 9 * 10**6) / rate, rel=1e-6
    )
    # Rows that hit come from the L2 cache, whose rate binds where few are missed.
    cached = (512 * 10**6 + 10**6) / (model.parameters.l2_bandwidth * CACHED_SHARE)
    assert seconds(around(10**8)) == pytest.approx(constants["floor"] + cached, rel=1e-6)
