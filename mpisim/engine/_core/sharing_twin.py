"""Flows that share links, in plain Python: what `sharing` compiles, to be read and tested against.

A *flow* moves a volume of payload over a *route*: links, each with the bytes that pass over it for
every byte of payload (its weight). Rates are weighted max-min fair (Bertsekas, Gallager, *Data
Networks*, 2nd ed., section 6.5.2): no flow's rate can rise without lowering one that is no higher.
They come from filling: all flows rise together; a flow that reaches its cap stops there, and all
flows over a link that is full stop with it.

Everything is an integer, so that no order of flows, links or events can show in a result:

- times in ps, rates and capacities in 2**-40 bytes per ps, weights scaled by 2**20;
- what remains of a flow in 2**-40 bytes, lowered by rate times elapsed time: the same whether in
  one step or in many;
- a link is full at the level floor(what is left of it / sum of weights). All links full at one
  level stop their flows together, after the flows whose cap is that level.

This twin solves everything anew at every change; the compiled one only what can have changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["NEVER", "Sharing"]

Ints = NDArray[np.int64]

RATE_BITS = 40
WEIGHT_BITS = 20
NEVER = int(np.iinfo(np.int64).max)


@dataclass
class Flow:
    """One active flow; `legs` are its links with their weights."""

    legs: list[tuple[int, int]]
    cap: int
    volume: int
    remaining: int
    settled: int
    tag: int
    rate: int = 0
    end: int = NEVER

    def settle(self, time: int) -> None:
        """Account for what has moved until `time`."""
        self.remaining -= self.rate * (time - self.settled)
        self.settled = time


def _end(time: int, remaining: int, rate: int) -> int:
    return time + max(0, min(-(-remaining // rate), NEVER - time))


class Sharing:
    """Flows over links with capacities.

    Parameters
    ----------
    capacity : int64, shape (n_links,)
        At least 1; unit 2**-40 bytes per ps.
    route_index : int64, shape (n_routes + 1,)
        Route ``r`` has the links ``route_link[route_index[r] : route_index[r + 1]]``.
    route_link, route_weight : int64
        Weights are bytes over the link per byte of payload, scaled by 2**20; at least 1. The
        weights of a link that stands in a route twice add up.
    record : bool
        Keep every change of a rate for `changes`.

    Raises
    ------
    ValueError
        If a capacity or a weight is below 1.
    """

    def __init__(
        self,
        capacity: Ints,
        route_index: Ints,
        route_link: Ints,
        route_weight: Ints,
        record: bool = False,
    ) -> None:
        if np.min(capacity, initial=1) < 1 or np.min(route_weight, initial=1) < 1:
            raise ValueError("a capacity or a weight is below 1")
        self._capacity = [int(c) << WEIGHT_BITS for c in capacity]
        legs = list(zip(route_link.tolist(), route_weight.tolist(), strict=True))
        index = route_index.tolist()
        self._routes = [legs[a:b] for a, b in pairwise(index)]
        self._flows: dict[int, Flow] = {}
        self._log: list[tuple[int, int, int]] | None = [] if record else None

    def begin(self, flow: int, route: int, time: int, volume: int, cap: int, tag: int = 0) -> None:
        """Let a flow begin; `solve` gives it a rate, and must follow at the same time.

        Parameters
        ----------
        flow : int
            A number that no active flow has; small, for it is an index.
        route, time : int
        volume : int
            Bytes of payload. A flow without any ends at once and loads nothing.
        cap : int
            Highest rate.
        tag : int, optional
            What the flow is called in `changes`.
        """
        legs = self._routes[route] if volume else []
        self._flows[flow] = Flow(legs, max(1, cap), volume, volume << RATE_BITS, time, tag)
        if not volume:
            self._flows[flow].end = time

    def solve(self, time: int) -> None:
        """Give every flow its rate from `time` on."""
        flows = {number: flow for number, flow in self._flows.items() if flow.volume}
        for number, rate in self._filled(flows).items():
            flow = flows[number]
            flow.settle(time)
            if rate != flow.rate:
                flow.rate = rate
                flow.end = _end(time, flow.remaining, rate)
                self._write(time, flow.tag, rate)

    def _filled(self, flows: dict[int, Flow]) -> dict[int, int]:
        """Return the rate of every flow."""
        rates: dict[int, int] = {}
        left = list(self._capacity)
        weight = [0] * len(left)
        for flow in flows.values():
            for link, w in flow.legs:
                weight[link] += w

        def fix(number: int, rate: int) -> None:
            rates[number] = rate
            for link, w in flows[number].legs:
                left[link] -= rate * w
                weight[link] -= w

        while len(rates) < len(flows):
            # A rate of 0 would never end; where shares are that small, links may be overfull.
            level = {i: max(1, left[i] // w) for i, w in enumerate(weight) if w}
            cap = min(flow.cap for number, flow in flows.items() if number not in rates)
            lowest = min(level.values(), default=cap)
            if cap <= lowest:
                stopped, lowest = [n for n, flow in flows.items() if flow.cap == cap], cap
            else:
                full = {link for link, at in level.items() if at == lowest}
                stopped = [n for n, flow in flows.items() if any(k in full for k, _ in flow.legs)]
            for number in stopped:
                if number not in rates:
                    fix(number, lowest)
        return rates

    def next_end(self) -> int:
        """Return the earliest end of an active flow as things stand, `NEVER` if there is none."""
        return min((flow.end for flow in self._flows.values()), default=NEVER)

    def pop_ended(self, time: int) -> int:
        """Remove a flow that has ended by `time`, the earliest, the lowest of several; or -1.

        `solve` must follow at the same time, when all that have ended are gone.
        """
        end, number = min(((f.end, n) for n, f in self._flows.items()), default=(NEVER, -1))
        if number < 0 or end > time:
            return -1
        flow = self._flows.pop(number)
        if flow.rate:
            self._write(time, flow.tag, 0)
        return number

    def bound(self, flow: int, time: int) -> int:
        """Return when an active flow would end if it had its highest rate from `time` on."""
        one = self._flows[flow]
        one.settle(time)
        return _end(time, one.remaining, one.cap)

    def rate(self, flow: int) -> int:
        """Return the rate of an active flow."""
        return self._flows[flow].rate

    def end(self, flow: int) -> int:
        """Return the end of an active flow as things stand."""
        return self._flows[flow].end

    def changes(self) -> Any:
        """Return all changes of rates so far, int64, shape (n, 3): time, tag, new rate."""
        return np.array(self._log or [], np.int64).reshape(-1, 3)

    def _write(self, time: int, tag: int, rate: int) -> None:
        if self._log is not None:
            self._log.append((time, tag, rate))
