"""Flows that share links: the solver against water filling, linear programs and SimGrid."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flows import GB, UNIT, Case, played, random_case
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.max_min import NO_END, SharedLinks

from mpisim.engine._core.sharing import Sharing

MS = 10**9  # ps
BOTH = pytest.mark.parametrize("sharing", [Sharing, SharedLinks], ids=["compiled", "reference"])

Maker = Callable[..., Any]


def at_once(case: Case, sharing: Maker = Sharing) -> list[int]:
    """The rates of all flows when all have begun at time 0."""
    shared = case.shared(sharing)
    for i, (_, route, volume, cap) in enumerate(case.flows):
        shared.begin(i, route, 0, volume, cap)
    shared.solve(0)
    return [shared.rate(i) for i in range(len(case.flows))]


# --- by hand ------------------------------------------------------------------------------------


@BOTH
def test_two_flows_on_one_link(sharing: Maker) -> None:
    case = Case([50 * GB], [[(0, UNIT)]], [(0, 0, 10**8, NO_END), (0, 0, 3 * 10**8, NO_END)])
    ends, log = played(case, sharing)
    # 25 GB/s each until the smaller has ended, then 50 GB/s. GB is rounded to 2**-40 B/ps.
    assert ends == pytest.approx([4 * MS, 8 * MS], rel=1e-9)
    assert log == [
        (0, 0, 25 * GB),
        (0, 1, 25 * GB),
        (ends[0], 0, 0),
        (ends[0], 1, 50 * GB),
        (ends[1], 1, 0),
    ]


@BOTH
def test_four_nics_under_a_spine_of_four_to_one(sharing: Maker) -> None:
    case = Case(
        [50 * GB] * 5,
        [[(i, UNIT), (4, UNIT)] for i in range(4)],
        [(0, i, 10**8, 45 * GB) for i in range(4)],
    )
    assert at_once(case, sharing) == [50 * GB // 4] * 4
    # Three leave: the last has a NIC of 50 GB/s and a cap of 45.
    assert at_once(Case(case.capacity, case.routes, case.flows[:1]), sharing) == [45 * GB]


@BOTH
def test_a_slow_link_leaves_its_flows_share_to_others(sharing: Maker) -> None:
    case = Case(
        [50 * GB, 10 * GB],
        [[(0, UNIT), (1, UNIT)], [(0, UNIT)]],
        [(0, 0, 10**8, NO_END), (0, 1, 10**8, NO_END)],
    )
    assert at_once(case, sharing) == [10 * GB, 40 * GB]


@BOTH
def test_weights_are_bytes_over_the_link(sharing: Maker) -> None:
    # An all-reduce in a ring of eight sends 2 * 7/8 bytes from each NIC per byte of payload; one
    # flow beside it over one of the NICs rises with it, and both stop at 50 / (1.75 + 1).
    weight = 7 * UNIT // 4
    case = Case(
        [50 * GB] * 8,
        [[(i, weight) for i in range(8)], [(3, UNIT)]],
        [(0, 0, 10**8, NO_END), (0, 1, 10**8, NO_END)],
    )
    assert at_once(Case(case.capacity, case.routes, case.flows[:1]), sharing) == [200 * GB // 7]
    assert at_once(case, sharing) == [50 * GB * UNIT // (weight + UNIT)] * 2


@BOTH
def test_links_full_at_one_level_stop_their_flows_together(sharing: Maker) -> None:
    # Links of 7 and 6 are full at floor(7/2) = 6/2 = 3. Stopping flow 0 by the second link alone
    # would leave 7 - 3 = 4 to flow 1.
    case = Case(
        [7, 6],
        [[(0, UNIT), (1, UNIT)], [(0, UNIT)], [(1, UNIT)]],
        [(0, i, 1, NO_END) for i in range(3)],
    )
    assert at_once(case, sharing) == [3, 3, 3]


@BOTH
def test_flows_at_their_cap_stop_before_links_are_full(sharing: Maker) -> None:
    # 3 + 4 = 7: the link cannot bind, though floor(7/2) = 3.
    case = Case([7], [[(0, UNIT)]], [(0, 0, 1, 3), (0, 0, 1, 4)])
    assert at_once(case, sharing) == [3, 4]


@BOTH
def test_what_is_left_of_a_flow_bounds_its_end(sharing: Maker) -> None:
    case = Case([50 * GB], [[(0, UNIT)]], [(0, 0, 10**8, NO_END)] * 2)
    shared = case.shared(sharing)
    for flow in range(2):
        shared.begin(flow, 0, 0, 10**8, 40 * GB)
    shared.solve(0)
    assert shared.next_end() == shared.end(0) == pytest.approx(4 * MS)
    # After 2 ms at 25 GB/s, 50 MB are left, 1.25 ms at 40 GB/s.
    assert shared.bound(0, 2 * MS) == pytest.approx(3.25 * MS)
    assert shared.end(0) == pytest.approx(4 * MS)
    assert shared.pop_ended(3 * MS) == -1
    end = shared.next_end()
    assert [shared.pop_ended(end) for _ in range(3)] == [0, 1, -1]
    shared.solve(end)
    assert shared.next_end() == NO_END


@BOTH
def test_a_flow_without_payload_ends_at_once_and_loads_nothing(sharing: Maker) -> None:
    case = Case([4], [[(0, UNIT)]], [(0, 0, 1, NO_END), (5, 0, 0, 0)])
    ends, log = played(case, sharing)
    assert ends[1] == 5
    assert log == [(0, 0, 4), (ends[0], 0, 0)]


@BOTH
def test_shares_below_the_least_rate_do_not_stall(sharing: Maker) -> None:
    case = Case([1], [[(0, 1000 * UNIT)]], [(0, 0, 3, NO_END)] * 5)
    ends, _ = played(case, sharing)
    assert ends == [3 << 40] * 5


@BOTH
def test_rates_near_the_largest_int64(sharing: Maker) -> None:
    most = 2**62
    case = Case([most], [[(0, 1)], [(0, UNIT)]], [(0, 0, 10**12, most), (0, 1, 10**12, most)])
    assert at_once(case, sharing) == [most * UNIT // (UNIT + 1)] * 2
    assert played(case, sharing)[0] == played(case, SharedLinks)[0]


@BOTH
@pytest.mark.parametrize(("capacity", "weight"), [(0, UNIT), (-5, UNIT), (7, 0)])
def test_capacities_and_weights_are_positive(sharing: Maker, capacity: int, weight: int) -> None:
    with pytest.raises(ValueError, match="a capacity or a weight is below 1"):
        Case([capacity], [[(0, weight)]], []).shared(sharing)


def test_only_what_can_have_changed_is_solved_again() -> None:
    # Two links that bind, joined by none; and a wide one under both that does not.
    case = Case([10, 10, 1000], [[(0, UNIT), (2, UNIT)], [(1, UNIT), (2, UNIT)]], [])
    shared = case.shared(Sharing)
    counts = []
    for flow, route in enumerate([0, 0, 1, 1, 1]):
        shared.begin(flow, route, 0, 100, 9)
        before = shared.n_solved
        shared.solve(0)
        shared.solve(0)
        counts.append(shared.n_solved - before)
    assert counts == [1, 2, 1, 2, 3]
    assert shared.n_solves == 5
    assert [shared.rate(i) for i in range(5)] == [5, 5, 3, 3, 3]


# --- at random ----------------------------------------------------------------------------------


def test_solver_finds_what_water_filling_does_in_any_order() -> None:
    for seed in range(500):
        case = random_case(random.Random(seed))
        expected = played(case, SharedLinks)
        assert played(case, Sharing) == expected, seed
        # Slots, order within an instant, and settling at times between change nothing.
        assert played(case, Sharing, random.Random(seed)) == expected, seed


def test_ends_do_not_depend_on_numbering() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        case = random_case(rng)
        links, routes, flows = (
            rng.sample(range(len(part)), len(part))
            for part in (case.capacity, case.routes, case.flows)
        )
        renamed = {old: new for new, old in enumerate(links)}
        numbered = {old: new for new, old in enumerate(routes)}
        shuffled = Case(
            [case.capacity[i] for i in links],
            [
                rng.sample([(renamed[k], w) for k, w in case.routes[i]], len(case.routes[i]))
                for i in routes
            ],
            [(case.flows[i][0], numbered[case.flows[i][1]], *case.flows[i][2:]) for i in flows],
        )
        ends = played(case, Sharing)[0]
        assert played(shuffled, Sharing)[0] == [ends[i] for i in flows], seed


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A network that hypothesis can shrink."""
    capacity = draw(st.lists(st.integers(1, 200), min_size=1, max_size=6))
    leg = st.tuples(
        st.integers(0, len(capacity) - 1), st.sampled_from([UNIT, UNIT // 2, 3 * UNIT, 1])
    )
    routes = draw(st.lists(st.lists(leg, max_size=4), min_size=1, max_size=6))
    flow = st.tuples(
        st.integers(0, 3).map(lambda t: t << 40),
        st.integers(0, len(routes) - 1),
        st.integers(0, 50),
        st.integers(1, 100),
    )
    return Case(capacity, routes, draw(st.lists(flow, max_size=12)))


@given(case=cases(), seed=st.integers(0, 1000))
@settings(max_examples=200, deadline=None)
def test_solver_finds_what_water_filling_does(case: Case, seed: int) -> None:
    expected = played(case, SharedLinks)
    assert played(case, Sharing, random.Random(seed)) == expected


def assert_max_min_fair(case: Case, shared: Any, active: list[tuple[int, int]]) -> None:
    """Every flow is at its cap, or crosses a full link on which no flow is faster.

    That is what max-min fairness means (Bertsekas, Gallager, section 6.5.2). A link is full if
    what is left of it would not raise the flows that it stops by one unit of rate.
    """
    rates = {flow: shared.rate(slot) for flow, slot in active if case.flows[flow][2]}
    load = [0] * len(case.capacity)
    for flow, rate in rates.items():
        for link, weight in case.routes[case.flows[flow][1]]:
            load[link] += weight * rate
    fastest: dict[int, int] = {}
    stopped: dict[int, int] = {}
    for flow, rate in rates.items():
        for link, weight in case.routes[case.flows[flow][1]]:
            if rate > fastest.get(link, 0):
                fastest[link], stopped[link] = rate, 0
            if rate == fastest[link]:
                stopped[link] += weight
    left = [capacity * UNIT - used for capacity, used in zip(case.capacity, load)]
    for flow, rate in rates.items():
        legs = case.routes[case.flows[flow][1]]
        alone = [max(1, case.capacity[link] * UNIT // weight) for link, weight in legs]
        assert 1 <= rate <= min([case.flows[flow][3], *alone])
        assert rate == min([case.flows[flow][3], *alone]) or any(
            fastest[link] == rate and left[link] < stopped[link] for link, _ in legs
        )
    for link, rest in enumerate(left):
        assert rest >= 0 or 1 in {
            rate for flow, rate in rates.items() if link in dict(case.routes[case.flows[flow][1]])
        }


def test_rates_are_max_min_fair_and_all_bytes_arrive() -> None:
    for seed in range(1000, 1250):
        case = random_case(random.Random(seed))
        ends, log = played(
            case,
            Sharing,
            seen=lambda shared, _, active, case=case: assert_max_min_fair(  # type: ignore[misc]
                case, shared, active
            ),
        )
        for flow, (start, _, volume, _) in enumerate(case.flows):
            changes = [(time, rate) for time, tag, rate in log if tag == flow]
            if not volume:
                assert not changes
                assert ends[flow] == start
                continue
            assert changes[0][0] == start
            assert changes[-1] == (ends[flow], 0)
            # Of the last ps only a part was needed.
            moved = sum(rate * (b - a) for (a, rate), (b, _) in pairwise(changes))
            last = changes[-2][1]
            assert 0 <= moved - (volume << 40) < last


def lexicographic(load: np.ndarray, capacity: np.ndarray, caps: np.ndarray) -> np.ndarray:
    """Max-min fair rates by linear programs: raise the lowest as far as it goes, and again."""
    from scipy.optimize import linprog

    n = len(caps)
    fixed: dict[int, float] = {}
    while len(fixed) < n:
        # Variables: rates, and the level t that no unfixed rate is below.
        free = [i for i in range(n) if i not in fixed]
        bounds = [(fixed[i], fixed[i]) if i in fixed else (0, caps[i]) for i in range(n)]
        above = np.zeros((len(free), n + 1))
        above[range(len(free)), free], above[:, n] = -1, 1
        rows = np.vstack([np.hstack([load, np.zeros((len(load), 1))]), above])
        right = np.concatenate([capacity, np.zeros(len(free))])
        level = -linprog(-np.eye(n + 1)[n], rows, right, bounds=[*bounds, (0, None)]).fun
        for i in free:
            low = [
                (level * (1 - 1e-9), high) if j in free else (low, high)
                for j, (low, high) in enumerate(bounds)
            ]
            if -linprog(-np.eye(n)[i], load, capacity, bounds=low).fun < level * (1 + 1e-6):
                fixed[i] = level
    return np.array([fixed[i] for i in range(n)])


def test_rates_are_those_of_linear_programs() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        capacity = [rng.randint(10, 60) * GB for _ in range(rng.randint(1, 5))]
        routes = [
            [
                (link, rng.choice([UNIT, 2 * UNIT, 7 * UNIT // 4]))
                for link in rng.sample(range(len(capacity)), rng.randint(1, len(capacity)))
            ]
            for _ in range(rng.randint(2, 6))
        ]
        flows = [(0, route, 10**8, rng.randint(3, 40) * GB) for route in range(len(routes))]
        load = np.zeros((len(capacity), len(routes)))
        for route, legs in enumerate(routes):
            for link, weight in legs:
                load[link, route] = weight / UNIT
        caps = np.array([cap for *_, cap in flows]) / GB
        expected = lexicographic(load, np.array(capacity) / GB, caps)
        found = np.array(at_once(Case(capacity, routes, flows))) / GB
        assert found == pytest.approx(expected, rel=1e-5), seed


# --- another simulator --------------------------------------------------------------------------

SIMGRID = json.loads((Path(__file__).parent / "simgrid_cases.json").read_text())["cases"]


@pytest.mark.parametrize("found", SIMGRID, ids=[case["name"] for case in SIMGRID])
def test_ends_are_those_of_simgrid(found: dict[str, Any]) -> None:
    """Its fluid model finds the same ends (`run_scripts/bench/simgrid_cases.py`), to rounding."""
    bytes_per_second = 2.0**40 / 1e12
    case = Case(
        [round(bandwidth * bytes_per_second) for bandwidth in found["bandwidth"]],
        [[(link, UNIT) for link in flow["route"]] for flow in found["flows"]],
        [
            (
                round(1e12 * flow["start"]),
                i,
                flow["volume"],
                NO_END if flow["cap"] is None else round(flow["cap"] * bytes_per_second),
            )
            for i, flow in enumerate(found["flows"])
        ],
    )
    ends, _ = played(case, Sharing)
    taken = np.array(ends) / 1e12 - [flow["start"] for flow in found["flows"]]
    expected = np.array(found["ends"]) - [flow["start"] for flow in found["flows"]]
    assert taken == pytest.approx(expected, rel=1e-6)
