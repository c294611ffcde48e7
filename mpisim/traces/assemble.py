"""Matched communications → communicators, slots and rows of a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..program import Communicators, Flag, Kind, Operation, TableBuilder
from .lower import EmitCommunication
from .matching import Matched, Matching

__all__ = ["CommunicatorSlots", "break_cycles"]

Key = tuple[tuple[int, ...], bool, int]
"""A communicator: simulated ranks, whether it is an ordered pair (sender, receiver), and the line
of the matching that it is."""


def break_cycles(matching: Matching) -> None:
    """Take apart operations that the ranks could not all do in the order of their streams.

    A wrong match can ask one rank to do x before y and another y before x. What does not come
    first on all its members' streams, when everything before it is taken away, is replayed as
    recorded on each rank, and counted.
    """
    kernels: dict[tuple[int, int], dict[int, set[int]]] = {}
    for number, operation in enumerate(matching.operations):
        for item in operation.members:
            own = kernels.setdefault((item.rank, item.stream), {})
            own.setdefault(item.op, set()).add(number)  # messages of a batch: in any order
    lines_of: dict[int, list[tuple[int, int]]] = {}
    queues: dict[tuple[int, int], list[set[int]]] = {}
    for key, found in kernels.items():
        queues[key] = [found[op] for op in sorted(found, reverse=True)]
        for numbers in queues[key]:
            for number in numbers:
                lines_of.setdefault(number, []).append(key)
    needed = [len(keys) for _, keys in sorted(lines_of.items())]
    ready = Counter(number for queue in queues.values() for number in queue[-1])
    stack = [number for number, count in ready.items() if count == needed[number]]
    while stack:
        done = stack.pop()
        for key in lines_of[done]:
            queue = queues[key]
            queue[-1].remove(done)
            if queue[-1]:
                continue
            queue.pop()
            for number in queue[-1] if queue else ():
                ready[number] += 1
                if ready[number] == needed[number]:
                    stack.append(number)
    left = {number for queue in queues.values() for numbers in queue for number in numbers}
    stuck = {number for number in left if needed[number] > 1}
    if not stuck:
        return
    matching.counts["operations in contradictory order"] += len(stuck)
    kept = []
    for number, operation in enumerate(matching.operations):
        if number in stuck:
            kept += [
                Matched([i], [i.end - i.begin], [False], line=operation.line)
                for i in operation.members
            ]
        else:
            kept.append(operation)
    matching.operations[:] = kept


class CommunicatorSlots:
    """Communicators of a job and the slots to which each rank binds them.

    The same on every process, since it depends only on the matching.

    Parameters
    ----------
    matching : Matching
    ranks : sequence of int
        Global rank of every simulated rank.
    """

    def __init__(self, matching: Matching, ranks: Sequence[int]) -> None:
        self.ranks = list(ranks)
        self._number = {rank: i for i, rank in enumerate(ranks)}
        self._groups: dict[Key, int] = {}
        self._slots: list[dict[Key, int]] = [{} for _ in ranks]
        self.recorded_groups: list[tuple[int, ...] | None] = []
        """Of each communicator, the global ranks that the files name as its group: those without a
        trace, too."""
        self._roles: dict[tuple[int, int], list[tuple[Matched, int]]] = {}
        """Rank and device operation → the communications that it runs, and its place in each."""
        for operation in matching.operations:
            for key in self._keys(operation):
                if self._groups.setdefault(key, len(self._groups)) == len(self.recorded_groups):
                    groups = (member.group for member in operation.members)
                    named = next((group for group in groups if group is not None), None)
                    self.recorded_groups.append(named)
                for member in key[0]:
                    self._slots[member].setdefault(key, len(self._slots[member]))
            for position, item in enumerate(operation.members):
                self._roles.setdefault((item.rank, item.op), []).append((operation, position))
        for roles in self._roles.values():
            roles.sort(key=lambda role: role[0].members[role[1]].part)

    def communicators(self) -> Communicators:
        """Return all communicators, named by their global ranks."""
        named: Counter[str] = Counter()
        names = []
        for members, is_pair, _ in self._groups:
            name = self._name(members, is_pair)
            named[name] += 1
            names.append(name if named[name] == 1 else f"{name} #{named[name]}")
        return Communicators.of([members for members, _, _ in self._groups], names)

    def slots(self, index: int) -> list[int]:
        """Return the communicator of each slot of a simulated rank."""
        return [self._groups[key] for key in self._slots[index]]

    def emitter(
        self, index: int, names: Sequence[str], streams: Sequence[int]
    ) -> EmitCommunication:
        """Return what appends the rows of a communication kernel of one simulated rank.

        Parameters
        ----------
        index : int
            The simulated rank.
        names, streams : sequences
            Name and stream of each device operation.
        """

        def emit(
            rows: TableBuilder, op: int, columns: dict[str, int], waits: list[int]
        ) -> list[int]:
            roles = self._roles[self.ranks[index], op]
            pairs = [role for role in roles if role[0].is_pair]
            if pairs:
                return self._messages(rows, index, pairs, names[op], streams[op], columns, waits)
            operation, position = roles[0]
            item = operation.members[position]
            key = self._keys(operation)[0]
            flags = Flag.EAGER if operation.eager[position] else Flag.NONE
            return [
                rows.collective(
                    _agreed_operation(operation),
                    self._slots[index][key],
                    streams[op],
                    _agreed_bytes(operation, item.bytes),
                    duration=operation.wire[position],
                    name=names[op],
                    waits=waits,
                    flags=flags,
                    **columns,
                )
            ]

        return emit

    def _messages(
        self,
        rows: TableBuilder,
        index: int,
        pairs: list[tuple[Matched, int]],
        name: str,
        stream: int,
        columns: dict[str, int],
        waits: list[int],
    ) -> list[int]:
        """Rows of a send/receive kernel: one a message, joined in one launch."""
        written: list[int] = []
        for operation, position in pairs:
            item, other = operation.members[position], operation.members[1 - position]
            there = self._number[other.rank]
            for way in item.directions:
                key = ((index, there) if way == "S" else (there, index), True, operation.line)
                written.append(
                    rows.point_to_point(
                        Kind.SEND if way == "S" else Kind.RECV,
                        self._slots[index][key],
                        stream,
                        item.bytes,
                        duration=operation.wire[position],
                        name=name,
                        waits=() if written else waits,
                        flags=Flag.JOINED if written else Flag.NONE,
                        **({} if written else columns),
                    )
                )
        return written

    def _keys(self, operation: Matched) -> list[Key]:
        numbers = [self._number[item.rank] for item in operation.members]
        if not operation.is_pair:
            return [(tuple(sorted(numbers)), False, operation.line)]
        first, other = numbers
        return [
            ((first, other) if way == "S" else (other, first), True, operation.line)
            for way in sorted(set(operation.members[0].directions))
        ]

    def _name(self, members: tuple[int, ...], is_pair: bool) -> str:
        ranks = [str(self.ranks[i]) for i in members]
        if is_pair:
            return f"rank {ranks[0]} to {ranks[1]}"
        return "ranks " + ",".join(ranks[:8]) + (",…" if len(ranks) > 8 else "")


def _agreed_operation(operation: Matched) -> Operation:
    """What the members call the operation; the most frequent where they differ."""
    votes = Counter(item.operation for item in operation.members)
    best = max(votes, key=lambda o: (votes[o], -o))
    # A send or receive without its partner is on no pair.
    return Operation.UNKNOWN if best is Operation.SEND_RECV else best


def _agreed_bytes(operation: Matched, own: int) -> int:
    """One size for all members, but where each may bring its own."""
    if _agreed_operation(operation) is Operation.ALL_TO_ALL:
        return own
    return max(item.bytes for item in operation.members)
