"""When the flows that ranks have still to post can arrive at the earliest, in plain Python."""

from __future__ import annotations

from typing import Any

from .crew_twin import NEVER, Rank, Stream
from .meetings_twin import INFINITY, RESOLVED, Group, Meetings

__all__ = ["Bounds", "ended_at"]

MEET = 3


def ended_at(rank: Rank, row: int, group: Group) -> int:
    """When a communication ends for a rank that does not go ahead."""
    if group.route >= 0 and rank.price[row] >= 0:
        return group.end
    return group.time + rank.duration[row]


class Bounds:
    """Bounds on what ranks and groups do next."""

    def __init__(self, layout: Any, ranks: list[Rank], meetings: Meetings) -> None:
        self._traffic, self._ranks, self._meetings = layout.flows, ranks, meetings

    def safe_time(self, earliest: int) -> int:
        """Return a time before which no flow can arrive that ranks here have still to post.

        Nothing here may be able to move. The next post of each stream counts: what it posts later
        comes after the end of that. A group has to wait for the last of its members.

        Parameters
        ----------
        earliest : int
            When the next event of all processes is.
        """
        horizon, touched = INFINITY, []
        for rank in self._ranks:
            rank.bound = None
            for stream in rank.streams:
                stream.bound = None
            for stream in rank.streams:
                front = self._front(rank, stream)
                if front == len(stream.kernels):
                    continue
                ready = self._begin_bound(rank, stream, front, earliest)
                first = stream.kernels[front]
                for row in rank.rows_of(first):
                    if rank.route_of(row) < 0:
                        continue
                    if rank.steps[row]["eager"] >= 0:  # what follows does not wait for its end
                        horizon = min(horizon, ready)
                        continue
                    group = self._meetings.groups[rank.group_at(row)]
                    latency = int(self._traffic.latency[rank.price[row]])
                    group.bound = max(group.bound, ready + latency)
                    touched.append(group)
        for group in touched:
            horizon = min(horizon, group.bound)
        for group in touched:
            group.bound = NEVER
        return horizon

    def _front(self, rank: Rank, stream: Stream) -> int:
        """The first kernel of a stream that has not begun and may flow."""
        front = max(stream.front, stream.done + stream.pending + stream.promised)
        while front < len(stream.kernels):
            if any(rank.route_of(row) >= 0 for row in rank.rows_of(stream.kernels[front])):
                break
            front += 1
        stream.front = front
        return front

    def _begin_bound(self, rank: Rank, stream: Stream, kernel: int, earliest: int) -> int:
        """When a kernel of a stream, which has not begun, can begin at the earliest."""
        row = stream.kernels[kernel]
        step = rank.steps[row]
        begin = rank.value[row]
        if rank.row <= row:
            begin = self._cpu_bound(rank, earliest) + rank.clock[row] - rank.clock[rank.row]
            begin += step["launch"] - step["launch_cost"]
        if kernel > stream.done:  # what comes before it
            first = rank.kernel_index[rank.streams.index(stream)]
            spent = rank.spent[first + kernel] - rank.spent[first + stream.done]
            spent -= rank.span[first + kernel]
            begin = max(begin, self._end_bound(rank, stream, earliest) + spent)
        elif kernel:
            begin = max(begin, stream.end + step["gap"])
        for one in rank.waits_of(row):
            begin = max(begin, self._kernel_bound(rank, one, earliest) + step["gap"])
        return begin if self._traffic.backwards else max(begin, earliest)

    def _end_bound(self, rank: Rank, stream: Stream, earliest: int) -> int:
        """When the next kernel of a stream can end at the earliest."""
        if stream.bound is None:
            if stream.pending:
                row = stream.kernels[stream.done]
                stream.bound = max(
                    self._group_bound(rank, one, row, earliest) for one in rank.rows_of(row)
                )
            else:
                at = rank.kernel_index[rank.streams.index(stream)] + stream.done
                begin = self._begin_bound(rank, stream, stream.done, earliest)
                stream.bound = begin + rank.span[at]
        return stream.bound

    def _group_bound(self, rank: Rank, row: int, kernel: int, earliest: int) -> int:
        """When a communication that this rank has posted can end at the earliest."""
        step, duration = rank.steps[row], rank.duration[row]
        if step["eager"] >= 0:
            return rank.value[kernel] + duration
        group = self._meetings.groups[rank.group_at(row)]
        if group.missing == RESOLVED:
            return ended_at(rank, row, group)
        end = group.time + duration
        if group.missing > 0 and not self._traffic.backwards:
            return max(end, earliest + duration)
        if rank.route_of(row) < 0:
            return end
        if group.flow >= 0:
            end = max(end, self._meetings.sharing.bound(group.flow, earliest))
        return max(end, earliest)

    def _cpu_bound(self, rank: Rank, earliest: int) -> int:
        """When the CPU can have done the row that it has come to at the earliest."""
        if rank.bound is None:
            step = rank.steps[rank.row]
            waits = rank.waits_of(rank.row)
            if step["opcode"] <= MEET:
                waits = [step["queue"]]
            ends = [self._kernel_bound(rank, kernel, earliest) for kernel in waits]
            rank.bound = max(rank.host + step["host"], *ends) + step["launch_cost"]
        return rank.bound

    def _kernel_bound(self, rank: Rank, kernel: int, earliest: int) -> int:
        """When a kernel, told by its first row, ends, or can end at the earliest."""
        step = rank.steps[kernel]
        stream, index = rank.streams[step["stream"]], step["index"]
        if stream.done > index:
            return rank.value[kernel]
        first = rank.kernel_index[step["stream"]]
        spent = rank.spent[first + index] - rank.spent[first + stream.done]
        return self._end_bound(rank, stream, earliest) + spent
