"""Decentralized training event by event, from the protocol's rules: no rows, no passes.

Every worker computes, sends to its receivers over links of their own, waits for as many updates as
the protocol asks, averages and updates. Events are taken in the order of time; a worker looks at
its queues whenever something has come, all that comes at a moment together.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count

Edges = list[tuple[int, int]]


@dataclass
class Worker:
    """State of a worker; times of its parts of an iteration are integers."""

    compute: int
    average: int
    update: int
    senders: list[int]
    receivers: list[int]
    iteration: int = 0
    passed: int = 1
    state: str = "entering"
    queue: dict[int, set[int]] = field(default_factory=dict)  # iteration → whose updates came
    tokens: dict[int, int] = field(default_factory=dict)  # receiver → tokens
    reached: dict[int, int] = field(default_factory=dict)  # receiver → iteration, as tokens tell
    link_free: dict[int, int] = field(default_factory=dict)
    entered: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)


def run(
    edges: Edges,
    parts: list[tuple[int, int, int]],
    transfer: int,
    token: int,
    iterations: int,
    *,
    backup: int = 0,
    staleness: int = 0,
    max_gap: int | None = None,
    skip: int = 0,
) -> tuple[list[list[int]], list[list[int]]]:
    """Return when every worker entered and ended every iteration; -1 for those it skipped.

    `parts` are each worker's times of computing, averaging and updating; `transfer` and `token`
    those of a message.
    """
    workers = []
    for i, times in enumerate(parts):
        workers.append(
            Worker(*times, [a for a, b in edges if b == i], [b for a, b in edges if a == i])
        )
        workers[i].tokens = dict.fromkeys(workers[i].receivers, max_gap or 0)
        workers[i].reached = dict.fromkeys(workers[i].receivers, 0)
    events: list[tuple[int, int, str, int, int, int, int]] = []
    number = count()

    def at(
        time: int, what: str, who: int, other: int = -1, iteration: int = -1, n: int = 0
    ) -> None:
        heapq.heappush(events, (time, next(number), what, who, other, iteration, n))

    def enter(i: int, now: int, passed: int) -> None:
        """Begin an iteration, with tokens for those that wait for it and for what was skipped."""
        me = workers[i]
        me.entered.append(now)
        if me.iteration and max_gap is not None:
            for sender in me.senders:
                at(now + token, "token", sender, i, me.iteration, passed)
        me.state = "computing"
        at(now + me.compute, "computed", i)

    def look(i: int, now: int) -> None:
        """Go on if what the worker waits for is there."""
        me = workers[i]
        if me.state == "entering" and me.iteration < iterations:
            if me.iteration and max_gap is not None:
                if not all(me.tokens.values()):
                    return
                here = me.iteration
                to = min(here + skip, min(me.reached.values()), here - 1 + max_gap)
                passed = max(to, here) - here + 1
                for receiver in me.receivers:
                    me.tokens[receiver] -= passed
                if passed > 1:
                    me.entered += [-1] * (passed - 1)
                    me.ended += [-1] * (passed - 1)
                    me.iteration, me.passed = to, passed
                    me.state = "renewing"
                    look(i, now)
                    return
            enter(i, now, 1)
        elif me.state == "renewing":
            if len(me.queue.get(me.iteration - 1, ())) < len(me.senders) - backup:
                return
            me.state = "renewed"
            at(now + me.average, "renewed", i)
        elif me.state == "waiting":
            wanted = me.iteration - staleness
            if wanted >= 0 and len(me.queue.get(wanted, ())) < len(me.senders) - backup:
                return
            me.state = "updating"
            at(now + (me.average if wanted >= 0 else 0) + me.update, "ended", i)

    for i in range(len(workers)):
        look(i, 0)
    while events:
        now = events[0][0]
        touched = []
        while events and events[0][0] == now:
            _, _, what, who, other, iteration, n = heapq.heappop(events)
            me = workers[who]
            touched.append(who)
            if what == "token":
                me.tokens[other] += n
                me.reached[other] = iteration
            elif what == "update":
                me.queue.setdefault(iteration, set()).add(other)
            elif what == "computed":
                for receiver in me.receivers:
                    start = max(now, me.link_free.get(receiver, 0))
                    me.link_free[receiver] = start + transfer
                    at(start + transfer, "update", receiver, who, me.iteration)
                me.state = "waiting"
            elif what == "renewed":
                enter(who, now, me.passed)
            else:
                me.ended.append(now)
                me.iteration += 1
                me.state = "entering"
        for who in dict.fromkeys(touched):
            look(who, now)
    return [each.entered for each in workers], [each.ended for each in workers]
