"""Which links can be full, and how loads are summed up: against plain sums of Python's integers."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpisim.engine.contention import PatternLoads, links_that_can_saturate
from mpisim.topo.traffic.link_loads import link_weights
from mpisim.topo.traffic.transfers import Transfers

N_LINKS, N_GROUPS = 6, 5

LOADS = st.dictionaries(
    st.integers(0, N_GROUPS - 1),
    st.tuples(
        st.integers(1, 2**42),
        st.dictionaries(st.integers(0, N_LINKS - 1), st.integers(1, 2**21), max_size=4),
    ),
    max_size=N_GROUPS,
)
"""Of one pattern: for each group its rate, and the weight of each link."""


def loaded(pattern: dict[int, tuple[int, dict[int, int]]]) -> PatternLoads:
    groups = sorted(pattern)
    entries = [
        (i, link, pattern[group][1][link])
        for i, group in enumerate(groups)
        for link in sorted(pattern[group][1])
    ]
    route, link, weight = np.array(entries, np.int64).reshape(-1, 3).T
    rate = [pattern[group][0] for group in groups]
    return PatternLoads(np.array(groups, np.int64), np.array(rate, np.int64), route, link, weight)


@given(
    patterns=st.lists(LOADS, min_size=1, max_size=3),
    capacity=st.lists(st.integers(1, 2**43), min_size=N_LINKS, max_size=N_LINKS),
    one_by_one=st.lists(st.booleans(), min_size=N_GROUPS, max_size=N_GROUPS),
)
def test_links_that_can_be_full(
    patterns: list[dict[int, tuple[int, dict[int, int]]]],
    capacity: list[int],
    one_by_one: list[bool],
) -> None:
    found = links_that_can_saturate(
        np.array(capacity), [loaded(one) for one in patterns], np.array(one_by_one)
    )
    heaviest: dict[int, dict[int, int]] = defaultdict(dict)
    for pattern in patterns:
        for group, (rate, weights) in pattern.items():
            for link, weight in weights.items():
                before = heaviest[link].get(group, 0)
                heaviest[link][group] = max(before, rate * weight)
    for link in range(N_LINKS):
        users = heaviest[link]
        over = sum(users.values()) > capacity[link] << 20
        assert found[link] == (over or any(not one_by_one[group] for group in users))


def test_weights_are_sums_rounded_up() -> None:
    """Twice four GPUs on a line, link i from GPU i to the next; links 1 and 6 do not count."""

    def paths(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b, hops = a[:, None], b[:, None], np.arange(3)
        return np.where((hops >= a % 4) & (hops < b % 4), hops + a // 4 * 4, -1)

    third = 1 / 3
    sent = Transfers(
        np.array([0, 0, 1, 2]), np.array([1, 3, 3, 3]), np.array([1, third, third, third])
    )
    seen = ~np.isin(np.arange(8), [1, 6])
    share = np.ones(8)
    group, link, weight = link_weights(paths, share, np.array([0, 4]), sent, seen)
    one = 1 << 20
    # Link 0 of each: 1 and 1/3; link 2: three thirds, which are 1 whatever rounding adds.
    assert group.tolist() == [0, 0, 1, 1]
    assert link.tolist() == [0, 2, 4, 5]
    assert weight[:2].tolist() == [-(-4 * one // 3), one]
    assert weight[2:].tolist() == [-(-4 * one // 3), -(-2 * one // 3)]


def test_transfers_of_one_pair_are_added_up_in_any_communicator() -> None:
    """Ranks may lie before the first node of their group: -1 to 2 is neither 0 to 1 nor -2 to 5."""

    def paths(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.stack([a, b + 4], axis=1)

    sent = Transfers(
        np.array([-1, 0, -1, -2]), np.array([2, 1, 2, 0]), np.array([0.5, 1.0, 0.25, 1.0])
    )
    found = link_weights(paths, np.ones(12), np.array([4]), sent, np.ones(12, bool))
    one = 1 << 20
    assert [each.tolist() for each in found] == [
        [0, 0, 0, 0, 0, 0],
        [2, 3, 4, 8, 9, 10],
        [one, 3 * one // 4, one, one, one, 3 * one // 4],
    ]
