"""Use of links: bytes, utilisation and sharing, by hand and by adding up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.engine._core import carried, depths, flows_by_link, pair_depths
from mpisim.engine.flows import Flows, SharedLinks
from mpisim.engine.routes import Routes
from mpisim.results.link_use import BINS, use_of_links
from mpisim.topo.network import WEIGHT_ONE, rate_of

GB = 10**9


def two_links(*communicators: int) -> SharedLinks:
    """Route 0 uses link 0; route 1 both, half of its bytes on link 1; link 1 stands for two."""
    routes = Routes(
        group=np.array([0, 1]),
        pattern=np.array([0, 0]),
        index=np.array([0, 1, 3]),
        link=np.array([0, 0, 1]),
        weight=np.array([WEIGHT_ONE, WEIGHT_ONE, WEIGHT_ONE // 2]),
        capacity=np.array([rate_of(GB), rate_of(GB)]),
        patterns=("a",),
        names=np.array([4, 7, 9]),
        simulated_link=np.array([0, 1, 1]),
    )
    names = {4: "one", 7: "two", 9: "three"}
    return SharedLinks(routes, np.array(communicators), flows(), names.__getitem__)


def flows(*entries: tuple[int, int, int, int]) -> Flows:
    return Flows(*np.array(entries, np.int64).reshape(-1, 4).T.copy())


def test_two_flows_that_overlap() -> None:
    # Route 0 from 0 to 600 ms, route 1 from 400 to 1000 ms; half a second of the capacity each.
    ms = 10**9
    found = use_of_links(
        two_links(5, 6),
        flows((0, 0, 600 * ms, GB // 2), (1, 400 * ms, 1000 * ms, GB // 2)),
        1000 * ms,
    )
    assert found.links["name"].tolist() == ["one", "two"]
    assert found.links["count"].tolist() == [1, 2]
    assert found.links["bytes"].tolist() == [GB, GB // 4]
    assert found.links["busy"].tolist() == [1000 * ms, 600 * ms]
    assert found.links["shared"].tolist() == [200 * ms, 0]
    # Each flows at 0.5 GB in 0.6 s: 5/6 of the link, twice that while both do.
    assert found.utilisation[0, :40] == pytest.approx(np.full(40, 5 / 6))
    assert found.utilisation[0, 40:60] == pytest.approx(np.full(20, 10 / 6))
    assert found.utilisation[1, :40] == pytest.approx(np.zeros(40), abs=1e-9)
    assert found.utilisation[1, 60:] == pytest.approx(np.full(40, 5 / 12))
    rows = {column: values.tolist() for column, values in found.sharing.items()}
    assert rows == {"link": [0], "communicator": [5], "other": [6], "time": [200 * ms]}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6)
        ),
        max_size=20,
    )
)
def test_what_is_spread_over_the_step_adds_up(entries: list[tuple[int, int, int, int]]) -> None:
    until = 2 * 10**6 + 1
    found = use_of_links(
        two_links(0, 1),
        flows(*((route, begin, begin + length, size) for route, begin, length, size in entries)),
        until,
    )
    carried = found.utilisation.sum(axis=1) / BINS * until * 1e-12 * found.links["capacity"]
    assert carried == pytest.approx(found.links["bytes"].astype(float), rel=1e-6, abs=1)
    assert (found.links["shared"] <= found.links["busy"]).all()
    assert (found.utilisation >= -1e-3).all()


def test_nothing_flowed() -> None:
    found = use_of_links(two_links(0, 1), flows(), 100)
    # Links that were used alike are one entry.
    assert (found.links["bytes"].tolist(), found.links["count"].tolist()) == ([0], [3])
    assert not found.utilisation.any()
    assert not len(found.sharing["link"])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, 6)), max_size=14))
def test_every_moment_of_one_or_more_is_counted(entries: list[tuple[int, int, int]]) -> None:
    place, begin, length = np.array(entries, np.int64).reshape(-1, 3).T.copy()
    index = np.concatenate([[0], np.cumsum(np.bincount(place, minlength=4))])
    found = depths(begin, begin + length, np.lexsort((begin, place)), index)
    here = (begin <= np.arange(20)[:, None]) & (np.arange(20)[:, None] < begin + length)
    for p in range(4):
        depth = here[:, place == p].sum(axis=1)
        assert found[:, p].tolist() == [(depth >= 1).sum(), (depth >= 2).sum()]


ROUTES = np.array([0, 2, 3, 5]), np.array([0, 2, 1, 0, 1])
"""Index and links of three routes over three links."""

drawn_flows = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 6), st.integers(0, 9)),
    max_size=14,
)


@given(drawn_flows)
def test_flows_of_a_link_keep_their_order(entries: list[tuple[int, ...]]) -> None:
    route, begin, *_ = np.array(entries, np.int64).reshape(-1, 4).T.copy()
    order = np.argsort(begin, kind="stable")
    of_link, index = flows_by_link(*ROUTES, route, order, 3)
    for link, routes in enumerate(([0, 2], [1, 2], [0])):
        expected = [flow for flow in order.tolist() if route[flow] in routes]
        assert of_link[index[link] : index[link + 1]].tolist() == expected


@given(drawn_flows)
def test_bytes_of_a_bin_are_those_of_its_moments(entries: list[tuple[int, ...]]) -> None:
    route, begin, length, volume = np.array(entries, np.int64).reshape(-1, 4).T.copy()
    weight = np.array([1.0, 0.5, 2.0, 1.0, 0.25])
    moved, value, slope = carried(*ROUTES, weight, route, begin, begin + length, volume, 3, 3.0, 8)
    slope = np.cumsum(slope.sum(axis=0), axis=1)
    bins = value.sum(axis=0)[:, 1:] + slope[:, :-1] * 3.0
    expected = np.zeros((3, 24))
    for r, first, time, size in zip(route, begin, np.maximum(length, 1), volume):
        for at in range(ROUTES[0][r], ROUTES[0][r + 1]):
            expected[ROUTES[1][at], first : first + time] += weight[at] * size / time
    np.testing.assert_allclose(bins, expected.reshape(3, 8, 3).sum(axis=2), atol=1e-9)
    np.testing.assert_allclose(moved, expected.sum(axis=1), atol=1e-9)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), st.integers(0, 6)), max_size=14),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 5),
)
def test_how_long_two_are_there_at_once(
    places: list[list[tuple[int, int, int]]], most: int
) -> None:
    """Tick by tick: two or more of either, less two or more of each by itself."""
    places = [sorted(place, key=lambda each: each[1]) for place in places]
    rows = np.array([row for place in places for row in place], np.int64).reshape(-1, 3)
    user, begin, length = rows.T.copy()
    index = np.cumsum([0, *map(len, places)])
    found = pair_depths(begin, begin + length, user, np.arange(len(rows)), index, most)
    expected = []
    for p, place in enumerate(places):
        users = sorted({each for each, _, _ in place})
        for a in users if len(users) <= most else []:
            for b in users[users.index(a) + 1 :]:
                time = 0
                for tick in range(20):
                    on = [u for u, first, n in place if first <= tick < first + n]
                    n_a, n_b = on.count(a), on.count(b)
                    time += (n_a + n_b > 1) - (n_a > 1) - (n_b > 1)
                if time:
                    expected.append([p, a, b, time])
    assert found.tolist() == expected
