"""The ranks of a contended core, in plain Python: each is split into its CPU and its streams."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

__all__ = ["CPU", "Rank", "Stream"]

CPU = -1  # of Stream.need and Rank.need
NEVER = -(2**63)


class Stream:
    """One stream of a rank: it runs its kernels in order.

    It is `pending` while its kernel has begun and not ended. It waits for a group, or else until
    stream `need` has ended `count` kernels, or the CPU (-1) has come to row `count`.
    """

    def __init__(self, kernels: list[int]) -> None:
        self.kernels = kernels
        self.done = 0
        self.pending = False
        self.end = self.cause = NEVER
        self.group, self.need, self.count = -1, CPU, 0
        self.promised = 0  # how many kernels after the one that is pending
        self.front = 0  # the first kernel from here on that may flow
        self.bound: int | None = None


class Rank:
    """State of one rank. `value` holds when a row is launched, later when it has ended."""

    def __init__(self, layout: Any, local: int, steps: list[dict[str, int]]) -> None:
        number, traffic = layout.table[local], layout.flows
        script = traffic.views[number]
        slots = slice(layout.slot_index[local], layout.slot_index[local + 1])
        kernels, index = script.kernels.tolist(), script.kernel_index.tolist()
        self.steps = steps
        self.waits: list[int] = script.waits.tolist()
        self.streams = [Stream(kernels[a:b]) for a, b in pairwise(index)]
        self.kernel_index = index
        self.clock: list[int] = script.clock.tolist()
        if traffic.spans:
            self.span, self.spent = traffic.spans[layout.duration[local]].tolist()
        self.duration: list[int] = layout.durations[layout.duration[local]].tolist()
        self.price: list[int] = traffic.prices[layout.duration[local]].tolist()
        self.group: list[int] = layout.slot_first[slots].tolist()
        self.role: list[int] = layout.slot_role[slots].tolist()
        self.route: list[int] = traffic.slot_route[slots].tolist()
        self.n_routes: list[int] = traffic.slot_n_routes[slots].tolist()
        self.number, self.local = int(layout.numbers[local]), local
        self.row, self.need, self.count = 0, CPU, 0
        self.host = self.device = int(layout.start[local])
        self.cause = NEVER
        self.bound: int | None = None
        self.value = [0] * len(steps)
        self.causes = [NEVER] * len(steps)
        self.eager_ready = [0] * layout.lowered[number].n_eager
        self.left = 1 + len(self.streams)
        self.queued = True
        self._route_pattern: list[int] = traffic.routes.pattern.tolist()
        self._pattern: list[int] = traffic.pattern.tolist()

    def came(self, need: int, count: int) -> bool:
        """Whether an actor has come as far as another needs."""
        return (self.row if need == CPU else self.streams[need].done) >= count

    def awaited(self, kernels: list[int]) -> tuple[int, int] | None:
        """Return the first of some kernels that has not ended, as (stream, number of kernels)."""
        for kernel in kernels:
            need, count = self.steps[kernel]["stream"], self.steps[kernel]["index"] + 1
            if self.streams[need].done < count:
                return need, count
        return None

    def waits_of(self, row: int) -> list[int]:
        """Return the kernels that a row waits for."""
        first = self.steps[row]["first_wait"]
        return self.waits[first : first + self.steps[row]["n_waits"]]

    def rows_of(self, kernel: int) -> range:
        """Return the rows of a kernel."""
        return range(kernel, kernel + self.steps[kernel]["n_rows"])

    def group_at(self, row: int) -> int:
        """Return the group that a communication posts to."""
        return self.group[self.steps[row]["slot"]] + self.steps[row]["ordinal"]

    def route_of(self, row: int) -> int:
        """By which route a communication flows, or -1."""
        price, slot = self.price[row], self.steps[row]["slot"]
        if price >= 0:
            for route in range(self.route[slot], self.route[slot] + self.n_routes[slot]):
                if self._route_pattern[route] == self._pattern[price]:
                    return route
        return -1
