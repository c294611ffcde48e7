"""Flows of known starts: those that are simulated, and those that are found to be alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpisim.engine._core.flow_schedule import FlowSchedule
from mpisim.engine._core.flow_timeline import Timeline
from mpisim.engine._core.sharing import Sharing

WEIGHT_ONE, RATE_BITS = 1 << 20, 40
NEVER = np.iinfo(np.int64).max


class Case:
    """Random flows: groups whose flows take turns or overlap, over random links."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        n_groups, n_links = int(random.integers(1, 6)), int(random.integers(1, 5))
        size = random.integers(0, 9, n_groups)
        self.first = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
        # One or two patterns, and so routes, for each group.
        self.route_group = np.repeat(np.arange(n_groups), random.integers(1, 3, n_groups))
        loads = [
            np.sort(random.choice(n_links, random.integers(1, n_links + 1), replace=False))
            for _ in self.route_group
        ]
        self.route_index = np.concatenate([[0], np.cumsum([len(x) for x in loads])])
        self.route_link = np.concatenate(loads).astype(np.int64)
        self.route_weight = random.integers(1, 4, len(self.route_link)) * WEIGHT_ONE // 2
        self.capacity = random.integers(1, 12, n_links) << (RATE_BITS - 2)
        self.latency = random.integers(0, 50, 4)
        self.volume = random.integers(1, 2000, 4)
        self.rate = random.integers(1, 9, 4) << (RATE_BITS - 3)
        n = int(self.first[-1])
        group = np.repeat(np.arange(n_groups), size)
        routes = [np.flatnonzero(self.route_group == g) for g in range(n_groups)]
        self.route = np.array([random.choice(routes[g]) for g in group], np.int32)
        self.price = random.integers(-1, 4, n).astype(np.int32)
        self.start = random.integers(0, 30_000, n)
        for g in np.flatnonzero(random.random(n_groups) < 0.7):
            self.start[self.first[g] : self.first[g + 1]].sort()
        self.random = random

    def schedule(self) -> FlowSchedule:
        """Return the schedule of these flows."""
        return FlowSchedule(
            self.first,
            self.price,
            self.route,
            self.latency,
            self.volume,
            self.rate,
            self.route_group,
            self.route_index,
            self.route_link,
            self.route_weight,
            self.capacity,
        )

    def sharing(self) -> Sharing:
        """Return the links without flows."""
        return Sharing(self.capacity, self.route_index, self.route_link, self.route_weight)

    def ends(self) -> NDArray[Any]:
        """Return when flows end, all of them simulated; -1: no flow."""
        sharing, found = self.sharing(), np.full(len(self.start), -1)
        begin = self.start + self.latency[self.price]
        waiting = sorted(np.flatnonzero(self.price >= 0).tolist(), key=lambda i: begin[i])
        n_active = 0
        while waiting or n_active:
            now = min(sharing.next_end(), begin[waiting[0]] if waiting else NEVER)
            while (flow := sharing.pop_ended(now)) >= 0:
                found[flow] = now
                n_active -= 1
            while waiting and begin[waiting[0]] == now:
                flow = waiting.pop(0)
                price = self.price[flow]
                sharing.begin(flow, self.route[flow], now, self.volume[price], self.rate[price])
                n_active += 1
            sharing.solve(now)
        return found


def settle(case: Case, schedule: FlowSchedule, timeline: Timeline, n_parts: int) -> set[int]:
    """Simulate contended flows until no others are; return those."""
    groups, found, sharing = np.arange(len(case.first) - 1), set[int](), case.sharing()
    while True:
        assert schedule.simulate(timeline, sharing, groups)
        parts = [schedule.sweep(part, n_parts)[0] for part in range(n_parts)]
        flows = np.unique(np.concatenate(parts))
        schedule.swept()
        schedule.contend(flows)
        if not len(flows):
            return found
        found.update(flows.tolist())


@given(seed=st.integers(0, 2**32 - 1), n_parts=st.integers(1, 3))
@settings(max_examples=400)
def test_flows_end_as_if_all_were_simulated(seed: int, n_parts: int) -> None:
    """Again and again, while some of their starts change; flows that are late are contended."""
    case = Case(seed)
    schedule, timeline, contended = case.schedule(), Timeline(), set[int]()
    for _ in range(3):
        schedule.update(case.start)
        contended |= settle(case, schedule, timeline, n_parts)
        expected, flows = case.ends(), case.price >= 0
        np.testing.assert_array_equal(schedule.end[:-1][flows], expected[flows])
        begin = case.start + case.latency[case.price]
        alone = -(-(case.volume << RATE_BITS) // case.rate)[case.price]
        late = np.flatnonzero(flows & (expected - begin > alone))
        assert set(late.tolist()) <= contended
        changed = case.random.random(len(case.start)) < 0.3
        case.start = np.where(changed, case.start + 700, case.start)


class Crowd(Case):
    """More flows, one after another on each group, so that many snapshots lie between changes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        random, n_groups, each = self.random, len(self.first) - 1, 60
        self.first = np.arange(n_groups + 1) * each
        routes = [np.flatnonzero(self.route_group == g) for g in range(n_groups)]
        chosen = [random.choice(routes[g], each) for g in range(n_groups)]
        self.route = np.concatenate(chosen).astype(np.int32)
        self.price = random.integers(-1, 4, n_groups * each).astype(np.int32)
        pauses = random.integers(0, 6_000, (n_groups, each))
        self.start = np.cumsum(pauses, axis=1).ravel()

    def change(self) -> None:
        """Let some flows start at other times: here and there, or all from one of them on."""
        n, random = len(self.start), self.random
        some = random.integers(0, n, random.integers(0, 4))
        self.start[some] += random.integers(0, 3_000, len(some))
        if random.random() < 0.3:
            later = self.start >= self.start[random.integers(0, n)]
            self.start[later] += random.integers(1, 3_000)


@given(seed=st.integers(0, 2**32 - 1), between=st.integers(1, 40))
@settings(max_examples=200)
def test_only_what_a_change_reaches_is_simulated_again(seed: int, between: int) -> None:
    """From snapshot to snapshot, with the ends of a simulation of everything."""
    case = Crowd(seed)
    schedule, timeline = case.schedule(), Timeline(between)
    flows = case.price >= 0
    for _ in range(6):
        schedule.update(case.start)
        settle(case, schedule, timeline, 1)
        np.testing.assert_array_equal(schedule.end[:-1][flows], case.ends()[flows])
        begun = timeline.n_begun
        settle(case, schedule, timeline, 1)
        assert timeline.n_begun == begun
        case.change()


def test_a_late_change_leaves_what_was_before() -> None:
    """And an early one what comes long after."""
    case = Crowd(1)
    schedule, timeline = case.schedule(), Timeline(8)
    schedule.update(case.start)
    schedule.contend(np.flatnonzero(case.price >= 0))
    settle(case, schedule, timeline, 1)
    n = timeline.n_begun
    for flow in (case.start.argmin(), case.start.argmax()):
        case.start[flow] += 1
        schedule.update(case.start)
        settle(case, schedule, timeline, 1)
    assert n < timeline.n_begun < 1.5 * n


def test_flows_from_the_horizon_on_stay_where_they_were() -> None:
    """So do those whose start is not known."""
    case = Crowd(2)
    schedule, flows = case.schedule(), case.price >= 0
    assert schedule.update(case.start) == flows.sum()
    begin = np.array(schedule.begin[:-1])
    horizon = int(np.median(case.start))
    later, unknown = case.start + 5, case.start % 7 == 0
    later[unknown] = np.iinfo(np.int64).min
    moves = flows & (later < horizon) & ~unknown
    assert schedule.update(later, horizon) == moves.sum()
    np.testing.assert_array_equal(schedule.begin[:-1][flows], (begin + 5 * moves)[flows])


@pytest.mark.parametrize(("second", "late"), [(99, True), (100, False), (101, False)])
def test_flows_that_follow_each_other_at_once_do_not_meet(second: int, late: bool) -> None:
    """The first ends at 100: at one instant ends come before begins."""
    schedule = FlowSchedule(
        np.array([0, 1, 2]),
        np.zeros(2, np.int32),
        np.array([0, 1], np.int32),
        np.array([0]),
        np.array([100]),
        np.array([1 << RATE_BITS]),
        np.array([0, 1]),
        np.array([0, 1, 2]),
        np.array([0, 0]),
        np.array([WEIGHT_ONE, WEIGHT_ONE]),
        np.array([1 << RATE_BITS]),
    )
    schedule.update(np.array([0, second]))
    flows, links = schedule.sweep(0, 1)
    assert (sorted(flows), links.tolist()) == (([0, 1], [0]) if late else ([], []))


def test_what_comes_back_to_the_communications_of_a_process() -> None:
    """Groups of other processes are left alone; flows that never met others are as they were."""
    case = Case(3)
    schedule = case.schedule()
    schedule.update(case.start)
    contended = settle(case, schedule, Timeline(), 1)
    here = np.where(np.arange(len(case.first) - 1) % 2, case.first[:-1] + 1, -1)
    taken = np.zeros(len(case.start) + 2, np.int64)
    earliest = schedule.scatter(here, taken)
    met = np.isin(np.arange(len(case.start)), sorted(contended))
    expected = np.where(met, case.ends() - case.start, 0)
    for g, first in enumerate(here.tolist()):
        if first >= 0:
            part = slice(case.first[g], case.first[g + 1])
            np.testing.assert_array_equal(
                taken[first : first + len(expected[part])], expected[part]
            )
    assert (earliest < NEVER) == bool(taken.any())
    assert schedule.scatter(here, taken) == NEVER
    starts = np.full(len(case.start), -1)
    times = np.concatenate([[7], case.start, [7]])
    posted = np.where(np.arange(len(times)) % 3, -1, 2).astype(np.int32)
    schedule.gather(here, times, posted, False, starts)
    first = np.repeat(here - case.first[:-1], np.diff(case.first))
    started = posted[(np.arange(len(starts)) + first).clip(0)] == -1
    group = np.repeat(np.arange(len(case.first) - 1), np.diff(case.first))
    known = (group % 2 == 1) & started
    np.testing.assert_array_equal(starts, np.where(known, case.start, -1))
    schedule.gather(here, times, posted, True, starts)
    group = np.repeat(np.arange(len(case.first) - 1), np.diff(case.first))
    np.testing.assert_array_equal(starts, np.where(group % 2, case.start, -1))
