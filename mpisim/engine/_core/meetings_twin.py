"""The groups of a contended core, and the flows that they become, in plain Python."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .crew_twin import NEVER, Rank
from .sharing_twin import Sharing

__all__ = ["INFINITY", "RESOLVED", "Group", "Meetings"]

RESOLVED, FLOWING = -1, -2  # of Group.missing
INFINITY = int(np.iinfo(np.int64).max)
NOBODY = int(np.iinfo(np.int32).max)


class Group:
    """State of one group: see `mpisim.engine.core_input.COMMUNICATION_STATE`."""

    __slots__ = (
        "bound",
        "end",
        "flow",
        "follow",
        "follower",
        "last",
        "missing",
        "owned",
        "price",
        "remote",
        "route",
        "time",
        "waiters",
    )

    def __init__(
        self, time: int, end: int, last: int, missing: int, remote: int, owned: int
    ) -> None:
        self.time, self.end, self.last, self.missing, self.remote = time, end, last, missing, remote
        self.route = self.price = self.flow = -1
        self.bound = self.follow = NEVER
        self.follower = NOBODY
        self.owned = owned
        self.waiters: list[Rank] = []

    def merge(self, ready: int, last: int, cause: int) -> None:
        """Take in when a member is ready."""
        if ready > self.time or (ready == self.time and last < self.last):
            self.time, self.last = ready, last
        self.end = max(self.end, cause)

    def merge_promise(self, gap: int, last: int) -> None:
        """Take in how long after the end of the group before a member is ready."""
        if gap > self.follow or (gap == self.follow and last < self.follower):
            self.follow, self.follower = gap, last


class Meetings:
    """The groups of a layout; ranks that can move again are put on a stack, `ready`."""

    def __init__(self, layout: Any, ready: list[Rank]) -> None:
        self._traffic = layout.flows
        names = ("time", "end", "last", "missing", "remote", "owned")
        self.groups = [Group(*g) for g in layout.flows.communications[list(names)].tolist()]
        self.ready = ready
        self.posted: list[int] = []
        self.n_events = 0
        routes = layout.flows.routes
        self.sharing = Sharing(routes.capacity, routes.index, routes.link, routes.weight)
        self._arrivals: list[tuple[int, int]] = []  # (time, group), a heap
        self._flow: list[int] = []  # the group of each slot
        self._free: list[int] = []
        self._time = NEVER

    def start_if_complete(self, number: int, begins: bool) -> None:
        """Resolve a group to which all have come, or let it flow if that is this core's task."""
        group = self.groups[number]
        if group.missing or group.remote:
            return
        if begins and group.follow > NEVER:
            before = self.groups[number - 1]
            if before.missing != RESOLVED:
                return
            group.merge(before.end + group.follow, group.follower, before.end)
            group.follow = NEVER
        if group.route >= 0 and begins:
            group.missing = FLOWING
            time = group.time + int(self._traffic.latency[group.price])
            heapq.heappush(self._arrivals, (max(time, group.end), number))
        else:
            self._resolve(number)

    def _resolve(self, number: int) -> None:
        """Wake those who wait for a group."""
        group = self.groups[number]
        group.missing = RESOLVED
        for rank in group.waiters:
            if not rank.queued:
                rank.queued = True
                self.ready.append(rank)
        group.waiters = []
        if group.owned:
            self.posted.append(number)

    def outbox(self) -> NDArray[np.int64]:
        """Return the groups to tell other processes about, and forget them."""
        groups = np.array(self.posted, np.int64)
        self.posted = []
        return groups

    def deliver(
        self, groups: NDArray[np.int64], *columns: NDArray[np.int64], owned: NDArray[np.uint8]
    ) -> None:
        """Take in what other processes said about groups, and whether this one owns them."""
        for number, own, time, last, end, route, price, follow, follower in zip(
            groups.tolist(), owned.tolist(), *(column.tolist() for column in columns)
        ):
            group = self.groups[number]
            group.merge(time, last, end)
            group.merge_promise(follow, follower)
            group.route, group.price = max(group.route, route), max(group.price, price)
            group.remote -= 1
            self.start_if_complete(number, bool(own))

    # --- events ---------------------------------------------------------------------------------

    def next_event(self) -> int:
        """Return when the next arrival or end of a flow here is, the largest int64 if none is."""
        arrival = self._arrivals[0][0] if self._arrivals else INFINITY
        return min(arrival, self.sharing.next_end())

    def commit(self, until: int) -> None:
        """Let all events happen that are not later than `until`."""
        traffic, sharing = self._traffic, self.sharing
        while (time := self.next_event()) <= until and time < INFINITY:
            assert time >= self._time, "an event before one that has happened"
            self._time = time
            while (slot := sharing.pop_ended(time)) >= 0:
                self._free.append(slot)
                self.groups[self._flow[slot]].end = time
                self.groups[self._flow[slot]].flow = -1
                self._resolve(self._flow[slot])
                after = self._flow[slot] + 1
                if after < len(self.groups) and self.groups[after].follow > NEVER:
                    self.start_if_complete(after, True)
                self.n_events += 1
            while self._arrivals and self._arrivals[0][0] == time:
                _, number = heapq.heappop(self._arrivals)
                group = self.groups[number]
                if not self._free:
                    self._free.append(len(self._flow))
                    self._flow.append(-1)
                slot = group.flow = self._free.pop()
                self._flow[slot] = number
                volume, rate = traffic.volume[group.price], traffic.rate[group.price]
                sharing.begin(slot, group.route, time, int(volume), int(rate), group.route)
                self.n_events += 1
            sharing.solve(time)
