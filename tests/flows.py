"""Small networks with flows, and the plainest event loop over them, for tests of sharing."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from reference.max_min import NO_END

UNIT = 1 << 20  # the weight of a link that every byte of payload passes once
GB = 1_099_511_628  # 1 GB/s in 2**-40 bytes per ps


@dataclass(frozen=True)
class Case:
    """Links with capacities, routes as (link, weight), flows as (start, route, volume, cap)."""

    capacity: list[int]
    routes: list[list[tuple[int, int]]]
    flows: list[tuple[int, int, int, int]]

    def shared(self, sharing: Callable[..., Any], record: bool = False) -> Any:
        """A solver for the links and routes."""
        legs = [leg for route in self.routes for leg in route]
        return sharing(
            np.array(self.capacity, np.int64),
            np.cumsum([0, *map(len, self.routes)]).astype(np.int64),
            np.array([link for link, _ in legs], np.int64),
            np.array([weight for _, weight in legs], np.int64),
            record,
        )


def played(
    case: Case,
    sharing: Callable[..., Any],
    rng: random.Random | None = None,
    seen: Callable[[Any, int, list[tuple[int, int]]], None] | None = None,
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Play all flows; return their ends and the sorted log of rates.

    With `rng`, flows get slots and begin within one instant in random order, and are looked at
    at random times between events. `seen` is called after every solve with the solver, the time,
    and the (flow, slot) that are active.
    """
    shared = case.shared(sharing, record=True)
    arrivals = [(start, i) for i, (start, *_) in enumerate(case.flows)]
    heapq.heapify(arrivals)
    free = list(range(len(case.flows) + 3 if rng else len(case.flows)))[::-1]
    slot_of: dict[int, int] = {}
    flow_in: dict[int, int] = {}
    ends = [NO_END] * len(case.flows)
    last = 0
    while arrivals or flow_in:
        time = min(shared.next_end(), arrivals[0][0] if arrivals else NO_END)
        assert time < NO_END
        if rng and flow_in and rng.random() < 0.5:
            for number in rng.sample(sorted(flow_in), rng.randint(1, len(flow_in))):
                assert shared.bound(number, rng.randint(last, time)) <= shared.end(number)
        while (number := shared.pop_ended(time)) >= 0:
            ends[flow_in[number]] = time
            del slot_of[flow_in.pop(number)]
            free.append(number)
        begun = []
        while arrivals and arrivals[0][0] == time:
            begun.append(heapq.heappop(arrivals)[1])
        if rng:
            rng.shuffle(begun)
            rng.shuffle(free)
        for flow in begun:
            number = free.pop()
            _, route, volume, cap = case.flows[flow]
            shared.begin(number, route, time, volume, cap, flow)
            slot_of[flow], flow_in[number] = number, flow
        shared.solve(time)
        if seen:
            seen(shared, time, sorted(slot_of.items()))
        last = time
    return ends, sorted(map(tuple, shared.changes().tolist()))


def random_case(rng: random.Random) -> Case:
    """A network of up to 12 links and 30 flows, with extremes more often than in life."""
    n_links = rng.randint(1, 12)
    scale = rng.choice([1, 50, 1000 * GB // 7, 20 * GB, 50 * GB, 10**5 * GB])
    alike = rng.random() < 0.3
    capacity = [scale if alike else rng.randint(max(1, scale // 4), scale) for _ in range(n_links)]
    weights = [UNIT] if rng.random() < 0.4 else [UNIT, 2 * UNIT, UNIT // 3, 1, 1_835_008, 40 * UNIT]
    routes = []
    for _ in range(rng.randint(1, 10)):
        links = rng.sample(range(n_links), rng.randint(0, min(n_links, 5)))
        if links and rng.random() < 0.05:
            links.append(links[0])
        routes.append([(link, rng.choice(weights)) for link in links])
    caps = [max(1, scale // rng.randint(1, 6)) for _ in range(rng.randint(1, 4))]
    starts = [rng.randint(0, 10**9) for _ in range(rng.randint(1, 12))]
    flows = []
    for _ in range(rng.randint(1, 30)):
        volume = 0 if rng.random() < 0.05 else rng.randint(1, 10 ** rng.randint(1, 9))
        if scale < GB:  # at a rate of 1, the last ps there is would come before the end
            volume = min(volume, 10**5)
        flows.append((rng.choice(starts), rng.randrange(len(routes)), volume, rng.choice(caps)))
    return Case(capacity, routes, flows)
