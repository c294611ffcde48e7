"""Packets that switches drop and senders send again, in plain Python → when messages end.

Store-and-forward, fixed paths, no pauses, no congestion control. Senders and receivers hold sets of
positions in place of the compiled simulator's marks and pointers: what is missing is looked up.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["Links", "Sender", "run"]


class Links(NamedTuple):
    """Of each link: bytes per ps, ps, the node that it leads to, whether it is a switch's port."""

    rate: Sequence[float]
    latency: Sequence[int]
    target: Sequence[int]
    port: Sequence[bool]


class Sender:
    """A queue pair: what it was given, and how far it is.

    Parameters
    ----------
    path : sequence of int
        Links.
    messages : sequence of (bytes, start)
        In the order in which they start.
    back, timeout : int
        What an acknowledgement takes, and how long none may bring news; ps.
    window : float
    """

    def __init__(
        self,
        path: Sequence[int],
        messages: Sequence[tuple[int, int]],
        back: int,
        timeout: int,
        window: float,
    ) -> None:
        self.path, self.messages = path, messages
        self.back, self.timeout, self.window = back, timeout, window
        self.packets: dict[int, tuple[int, int]] = {}  # position → message, size
        self.offered = self.next = self.answered = self.known_to = self.deadline = 0
        self.expiring = self.recovering = False
        self.recover_to = 0
        self.known: set[int] = set()
        self.again: set[int] = set()  # sent again in this recovery
        self.arrived: set[int] = set()
        self.expected = 0
        self.refused_at = -1
        self.to_come = [bytes for bytes, _ in messages]
        self.resent = self.timeouts = self.furthest = 0

    def offer(self, number: int, mtu: int) -> None:
        end = self.offered + self.messages[number][0]
        while self.offered < end:
            size = min(mtu, end - self.offered)
            self.packets[self.offered] = (number, size)
            self.offered += size

    def missing(self) -> int | None:
        """The first packet that counts as lost, and has not been sent again."""
        if not self.recovering:
            return None
        found = (
            at
            for at in self.packets
            if self.answered <= at < self.known_to and at not in self.known | self.again
        )
        return min(found, default=None)

    def wants(self) -> bool:
        return self.next < self.offered or self.missing() is not None

    def may(self) -> bool:
        return self.next - self.answered < self.window or self.missing() is not None

    def recover(self) -> None:
        self.recovering, self.recover_to = True, self.next
        self.again = set()


def run(
    links: Links,
    senders: Sequence[Sender],
    mtu: int,
    buffer: float,
    share: float,
    selective: bool,
    most_events: float = math.inf,
) -> list[list[int]]:
    """Links, queue pairs and buffers → the end of each message of each pair, ps; -1 for none.

    Parameters
    ----------
    links : Links
    senders : sequence of Sender
    mtu : int
    buffer, share : float
        Of each switch, and the part of its free bytes that one egress queue may take.
    selective : bool
        Whether only what is missing is sent again.
    most_events : float
        After which the run is given up.
    """
    queues: list[deque[Any]] = [deque() for _ in links.rate]
    feeds: list[deque[int]] = [deque() for _ in links.rate]
    held = [0] * (max(links.target) + 1)
    free_at, after_queue = [0] * len(links.rate), [False] * len(links.rate)
    ends = [[-1] * len(sender.messages) for sender in senders]
    events: list[tuple[int, int, str, Any]] = []
    count = 0

    def push(time: int, what: str, item: Any) -> None:
        nonlocal count
        heapq.heappush(events, (time, count, what, item))
        count += 1

    def enter_or_leave(number: int) -> None:
        feed = feeds[senders[number].path[0]]
        if senders[number].wants() and number not in feed:
            feed.append(number)
        elif not senders[number].wants() and number in feed:
            feed.remove(number)

    def next_packet(number: int, now: int) -> tuple[int, int, int, int]:
        sender = senders[number]
        at = sender.missing() if selective else None
        if at is not None:
            sender.again.add(at)
        at = sender.next if at is None else at
        size = sender.packets[at][1]
        if at < sender.furthest:
            sender.resent += 1
        sender.furthest = max(sender.furthest, at + size)
        if sender.next == sender.answered:
            sender.deadline = now + sender.timeout
        if not sender.expiring:
            sender.expiring = True
            push(sender.deadline, "expire", number)
        if at == sender.next:
            sender.next += size
        return number, 0, at, size

    def look(link: int, now: int) -> None:
        if now < free_at[link]:
            return
        may = [senders[number].may() for number in feeds[link]]
        if any(may) and (not queues[link] or after_queue[link]):
            after_queue[link] = False
            feeds[link].rotate(-may.index(True) - 1)
            number = feeds[link][-1]
            packet = next_packet(number, now)
            enter_or_leave(number)
        elif queues[link]:
            after_queue[link] = True
            packet = queues[link].popleft()
            held[links.target[senders[packet[0]].path[packet[1] - 1]]] -= packet[3]
        else:
            return
        free_at[link] = now + math.ceil(packet[3] / links.rate[link])
        push(free_at[link], "free", link)
        push(free_at[link] + links.latency[link], "there", packet)

    def arrive(number: int, at: int, size: int, now: int) -> None:
        sender, refused = senders[number], False
        if selective:
            new = at not in sender.arrived
            sender.arrived.add(at)
            while sender.expected in sender.arrived:
                sender.expected += sender.packets[sender.expected][1]
            refused = at > sender.expected
        else:
            new = at == sender.expected
            if new:
                sender.expected += size
            elif at > sender.expected:
                if sender.refused_at == sender.expected:
                    return
                sender.refused_at, refused = sender.expected, True
        message = sender.packets[at][0]
        if new:
            sender.to_come[message] -= size
            if not sender.to_come[message]:
                ends[number][message] = now
        push(now + sender.back, "answer", (number, at, sender.expected, refused))

    def answer(number: int, at: int, before: int, refused: bool, now: int) -> None:
        sender = senders[number]
        if selective:
            sender.known.add(at)
            sender.known_to = max(sender.known_to, at)
        if before > sender.answered:
            sender.answered, sender.deadline = before, now + sender.timeout
        if not selective:
            if refused or before > sender.next:
                sender.next = sender.answered
        elif sender.recovering:
            sender.recovering = sender.answered < sender.recover_to
        elif refused:
            sender.recover()

    def expire(number: int, now: int) -> bool:
        sender = senders[number]
        sender.expiring = sender.answered < sender.next
        if not sender.expiring:
            return False
        late = now >= sender.deadline
        if late:
            sender.timeouts += 1
            sender.deadline = now + sender.timeout
        push(sender.deadline, "expire", number)
        if late and selective:
            sender.recover()
            sender.known_to = sender.next
        elif late:
            sender.next = sender.answered
        return late

    for number, sender in enumerate(senders):
        for message, (_, start) in enumerate(sender.messages):
            push(start, "begin", (number, message))
    while any(-1 in each for each in ends) and count < most_events:
        now, _, what, item = heapq.heappop(events)
        if what == "free":
            look(item, now)
        elif what == "there":
            number, hop, at, size = item
            path = senders[number].path
            if hop + 1 == len(path):
                arrive(number, at, size, now)
                continue
            link, node = path[hop + 1], links.target[path[hop]]
            room = buffer - held[node]
            queued = sum(packet[3] for packet in queues[link])
            if links.port[link] and (size > room or queued + size > share * room):
                continue
            held[node] += size
            queues[link].append((number, hop + 1, at, size))
            look(link, now)
        else:
            number = item[0] if isinstance(item, tuple) else item
            if what == "begin":
                senders[number].offer(item[1], mtu)
            elif what == "answer":
                answer(*item, now)
            elif not expire(number, now):
                continue
            enter_or_leave(number)
            look(senders[number].path[0], now)
    return ends
