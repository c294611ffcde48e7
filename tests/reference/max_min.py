"""Flows that share links: capacities and flows → rates and ends, in exact integers.

Rates are weighted max-min fair (Bertsekas, Gallager, *Data Networks*, 2nd ed., section 6.5.2): no
flow's rate can rise without lowering one that is not higher. Water filling finds them: all flows
rise together; a flow that reaches its own limit stops there, and all flows over a link that is full
stop with it.

Units: times in ps, rates and capacities in 2**-40 bytes per ps, weights in 2**-20 bytes over the
link per byte of payload; what remains of a flow in 2**-40 bytes. A link is full at the level
floor(what is left of it / sum of weights), at least 1. All links full at one level stop their flows
together, after the flows whose own limit is not above that level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

__all__ = ["NO_END", "SharedLinks"]

RATE_BITS = 40
WEIGHT_BITS = 20
NO_END = int(np.iinfo(np.int64).max)

Links = Sequence[tuple[int, int]]
"""(link, weight); a link may stand there twice, its weights then add up."""


def max_min_rates(
    capacity: Sequence[int], flows: Mapping[int, tuple[Links, int]]
) -> dict[int, int]:
    """Fill all links anew: capacities and, by number, the links and limit of flows → rates.

    Parameters
    ----------
    capacity : sequence of int
        Of each link, in 2**-40 bytes per ps.
    flows : mapping of int to (links, limit)
        The limit is the highest rate of the flow.
    """
    rates: dict[int, int] = {}
    left = [each << WEIGHT_BITS for each in capacity]
    weight = [0] * len(capacity)
    for links, _ in flows.values():
        for link, w in links:
            weight[link] += w
    while len(rates) < len(flows):
        level = {link: max(1, left[link] // w) for link, w in enumerate(weight) if w}
        rising = {number: flow for number, flow in flows.items() if number not in rates}
        limit = min(limit for _, limit in rising.values())
        lowest = min(level.values(), default=limit)
        if limit <= lowest:
            lowest = limit
            stopped = [number for number, (_, own) in rising.items() if own == limit]
        else:
            full = {link for link, at in level.items() if at == lowest}
            stopped = [n for n, (links, _) in rising.items() if any(k in full for k, _ in links)]
        for number in stopped:
            rates[number] = lowest
            for link, w in flows[number][0]:
                left[link] -= lowest * w
                weight[link] -= w
    return rates


@dataclass
class _Flow:
    links: Links
    limit: int
    volume: int
    remaining: int
    """2**-40 bytes, at time `since`."""
    since: int
    tag: int
    rate: int = 0
    end: int = NO_END

    def advance(self, time: int) -> None:
        self.remaining -= self.rate * (time - self.since)
        self.since = time

    def end_at(self, rate: int) -> int:
        """When it ends at a constant rate; the bytes of the last ps may need only a part of it."""
        return self.since + max(0, min(-(-self.remaining // rate), NO_END - self.since))


class SharedLinks:
    """Active flows over links, all of them solved anew at every change.

    Parameters
    ----------
    capacity : int64, shape (n_links,)
        At least 1, in 2**-40 bytes per ps.
    route_index : int64, shape (n_routes + 1,)
        Route ``r`` has the links ``route_link[route_index[r] : route_index[r + 1]]``.
    route_link, route_weight : int64
        Weights are at least 1, in 2**-20 bytes over the link per byte of payload.
    record : bool
        Keep every change of a rate for `changes`.

    Raises
    ------
    ValueError
        If a capacity or a weight is below 1.
    """

    def __init__(
        self,
        capacity: Any,
        route_index: Any,
        route_link: Any,
        route_weight: Any,
        record: bool = False,
    ) -> None:
        if np.min(capacity, initial=1) < 1 or np.min(route_weight, initial=1) < 1:
            raise ValueError("a capacity or a weight is below 1")
        self._capacity = np.asarray(capacity).tolist()
        links = list(zip(np.asarray(route_link).tolist(), np.asarray(route_weight).tolist()))
        self._routes = [links[a:b] for a, b in pairwise(np.asarray(route_index).tolist())]
        self._flows: dict[int, _Flow] = {}
        self._changes: list[tuple[int, int, int]] | None = [] if record else None

    def begin(self, flow: int, route: int, time: int, volume: int, cap: int, tag: int = 0) -> None:
        """Begin a flow of a number that no active flow has; `solve` must follow at this time.

        Parameters
        ----------
        flow, route, time : int
        volume : int
            Bytes of payload. A flow without any ends at once and loads nothing.
        cap : int
            Highest rate.
        tag : int, optional
            What the flow is called in `changes`.
        """
        links = self._routes[route] if volume else []
        self._flows[flow] = _Flow(links, max(1, cap), volume, volume << RATE_BITS, time, tag)
        if not volume:
            self._flows[flow].end = time

    def solve(self, time: int) -> None:
        """Give every flow its rate from `time` on."""
        flows = {number: flow for number, flow in self._flows.items() if flow.volume}
        limits = {number: (flow.links, flow.limit) for number, flow in flows.items()}
        for number, rate in max_min_rates(self._capacity, limits).items():
            flow = flows[number]
            flow.advance(time)
            if rate != flow.rate:
                flow.rate, flow.end = rate, flow.end_at(rate)
                self._record(time, flow.tag, rate)

    def next_end(self) -> int:
        """Return the earliest end of an active flow as things stand, `NO_END` if there is none."""
        return min((flow.end for flow in self._flows.values()), default=NO_END)

    def pop_ended(self, time: int) -> int:
        """Remove a flow that has ended by `time`, the earliest, the lowest of several; or -1.

        `solve` must follow at the same time, when all that have ended are gone.
        """
        end, number = min(((f.end, n) for n, f in self._flows.items()), default=(NO_END, -1))
        if number < 0 or end > time:
            return -1
        flow = self._flows.pop(number)
        if flow.rate:
            self._record(time, flow.tag, 0)
        return number

    def bound(self, flow: int, time: int) -> int:
        """Return when an active flow would end if it had its highest rate from `time` on."""
        self._flows[flow].advance(time)
        return self._flows[flow].end_at(self._flows[flow].limit)

    def rate(self, flow: int) -> int:
        """Return the rate of an active flow."""
        return self._flows[flow].rate

    def end(self, flow: int) -> int:
        """Return the end of an active flow as things stand."""
        return self._flows[flow].end

    def changes(self) -> Any:
        """Return all changes of rates so far, int64, shape (n, 3): time, tag, new rate."""
        return np.array(self._changes or [], np.int64).reshape(-1, 3)

    def _record(self, time: int, tag: int, rate: int) -> None:
        if self._changes is not None:
            self._changes.append((time, tag, rate))
