"""Packets through links and queues, in plain Python: messages → their ends, what links carry.

Store-and-forward, endless queues, no congestion control; each message is a queue pair of its own,
and those that begin with the same link and have room in their windows take turns. Acknowledgements
take a time, or are packets of their own. `heapq` and dictionaries, nothing compiled.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import Any

__all__ = ["ends"]


def ends(
    rate: Sequence[float],
    latency: Sequence[int],
    messages: Sequence[tuple[Sequence[int], int, int]],
    mtu: int,
    windows: Sequence[float] = (),
    back: Sequence[int] = (),
    answers: Sequence[tuple[Sequence[int], int]] = (),
    answer_size: int = 0,
) -> tuple[list[int], list[tuple[int, int]]]:
    """Rates (bytes per ps) and latencies (ps) of links, messages → ends, and what links carried.

    Parameters
    ----------
    rate, latency : sequences, one entry a link
    messages : sequence of (path, bytes, start)
    mtu : int
    windows : sequence of float, optional
        Bytes of each message that may be under way.
    back : sequence of int, optional
        What its acknowledgements take, ps.
    answers : sequence of (path, delay), optional
        The links that they take instead, and what they take to reach the first of them, ps.
    answer_size : int
        Bytes of one.

    Returns
    -------
    ends : list of int
        When each message has come, in ps.
    sent : list of (int, int)
        For each packet and link, acknowledgements too: when it began to go over it, in ps, and its
        bytes.
    """
    # Of (message, hop, size, bytes that it acknowledges).
    queues: list[deque[Any]] = [deque() for _ in rate]
    feeds: list[deque[int]] = [deque() for _ in rate]  # messages that begin here, in turn
    free_at = [0] * len(rate)
    left = [bytes for _, bytes, _ in messages]
    to_come = list(left)
    under_way = [0] * len(messages)
    found = [0] * len(messages)
    sent: list[tuple[int, int]] = []
    after_queue = [False] * len(rate)
    events: list[tuple[int, int, str, Any]] = []
    count = 0

    def push(time: int, what: str, item: Any) -> None:
        nonlocal count
        heapq.heappush(events, (time, count, what, item))
        count += 1

    def look(link: int, now: int) -> None:
        if now < free_at[link]:
            return
        may = [not windows or under_way[message] < windows[message] for message in feeds[link]]
        if any(may) and (not queues[link] or after_queue[link]):
            after_queue[link] = False
            feeds[link].rotate(-may.index(True) - 1)
            message = feeds[link][-1]
            size = min(mtu, left[message])
            left[message] -= size
            under_way[message] += size
            if not left[message]:
                feeds[link].pop()
            packet = (message, 0, size, 0)
        elif queues[link]:
            after_queue[link] = True
            packet = queues[link].popleft()
        else:
            return
        sent.append((now, packet[2]))
        free_at[link] = now + math.ceil(packet[2] / rate[link])
        push(free_at[link], "free", link)
        push(free_at[link] + latency[link], "there", packet)

    for number, (_, _, start) in enumerate(messages):
        push(start, "begin", number)
    while events:
        now, _, what, item = heapq.heappop(events)
        if what == "begin":
            link = messages[item][0][0]
            feeds[link].append(item)
            look(link, now)
        elif what == "free":
            look(item, now)
        elif what == "acknowledged":
            message, size = item
            under_way[message] -= size
            look(messages[message][0][0], now)
        else:
            message, hop, size, answered = item
            path = answers[message][0] if answered else messages[message][0]
            if hop + 1 < len(path):
                queues[path[hop + 1]].append((message, hop + 1, size, answered))
                look(path[hop + 1], now)
            elif answered:
                under_way[message] -= answered
                look(messages[message][0][0], now)
            else:
                to_come[message] -= size
                if answers:
                    push(now + answers[message][1], "there", (message, -1, answer_size, size))
                elif windows:
                    push(now + back[message], "acknowledged", (message, size))
                if not to_come[message]:
                    found[message] = now
    return found, sent
