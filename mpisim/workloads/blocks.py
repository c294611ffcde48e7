"""Blocks: pieces of a table that are written once and used for many micro-batches.

A pipeline stage does the same forward and the same backward for every micro-batch. Each is written
once, row by row, as a `Block`; a table is then a sequence of blocks, joined by array operations.

A block's rows may wait for rows outside it, through ports: ``LAST`` is the latest kernel before the
block, ``BEFORE`` the latest before the block of that one, ``PENDING`` the communications
before it that the next kernel has to wait for. Other ports have names: a row exported under a name
by one block is awaited under that name by later ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..program import Flag, Kind, Names, Operation, Phase, TableBuilder
from .fragments import Fragment, Fragments
from .operators import Await, Communicate, Compute, Step
from .pricing import AT_ONCE, Pricing
from .slots import COMPUTE, Slots

__all__ = ["BEFORE", "LAST", "PENDING", "Block", "BlockBuilder"]

LAST, PENDING, BEFORE = -1, -2, -3
"""Rows a block can wait for without knowing them; named ports follow below."""


@dataclass(frozen=True, eq=False)
class Block:
    """Rows whose place in a table is still open.

    Attributes
    ----------
    values : int64, shape (n, len(COLUMNS))
        The rows.
    waiter, awaited : int64
        Pairs of rows of this block.
    outside : tuple of (int, str or int)
        A row, and the port it waits for.
    exports : mapping of str to tuple of int
        Rows later blocks can wait for by name.
    last : int
        The last kernel, or -1.
    pending : tuple of int
        Communications the next kernel after the block has to wait for.
    hands_on : bool
        Whether what was pending before the block still is after it.
    flops : int
        Of the matrix units.
    duration : int
        Of all kernels together, in ps.
    """

    values: NDArray[np.int64]
    waiter: NDArray[np.int64]
    awaited: NDArray[np.int64]
    outside: tuple[tuple[int, str | int], ...]
    exports: Mapping[str, tuple[int, ...]]
    last: int
    pending: tuple[int, ...]
    hands_on: bool
    flops: int
    duration: int

    def __len__(self) -> int:
        return len(self.values)


class BlockBuilder:
    """Writes operators into a block, with the waits their order implies.

    Parameters
    ----------
    names : Names
    pricing : Pricing
    slots : Slots
    fragments : Fragments, optional
        Of operators that were written before. Not for blocks in which passes take turns.
    """

    def __init__(
        self, names: Names, pricing: Pricing, slots: Slots, fragments: Fragments | None = None
    ) -> None:
        self.rows = TableBuilder(names)
        self.pricing, self.slots, self._fragments = pricing, slots, fragments
        self.rows.tags(micro_batch=0)
        self.flops = self.duration = 0
        self._lanes = [_Lane()]
        self._lane = self._lanes[0]
        self._ports: list[str] = []
        self._exports: dict[str, list[int]] = {}

    def steps(self, steps: Iterable[Step]) -> None:
        """Write steps of one operator; afterwards all of its communications must be waited for."""
        for _ in self.stepwise(tuple(steps)):
            pass

    def stepwise(self, steps: Sequence[Step]) -> Iterator[None]:
        """Write steps as `steps` does, pausing where the next kernel has to wait."""
        if self._fragments is not None and self._lane.idle:
            fragment = self._fragments.of(steps, self)
            if fragment is not None:
                self._copy(fragment)
                return
        for step in steps:
            if isinstance(step, Compute):
                if self._lane.exchanging(step.after):
                    yield
                self.compute(step)
            elif isinstance(step, Await):
                if not self.pricing.captured:
                    self.host_wait([self._lane.kernels[step.kernel]], step.name)
            elif self.communicate(step) is not None and not step.token:
                yield
        self._lane.join()

    def fragment(self, steps: Sequence[Step]) -> Fragment | None:
        """Return what steps write into an empty block, with the names and slots of this one.

        None if communications go on beyond the operator.
        """
        other = BlockBuilder(self.rows.names, self.pricing, self.slots)
        before = len(self.slots.asked)
        other.steps(steps)
        lane = other._lane
        if lane.carried:
            return None
        rows, waits = other.rows.untagged()
        return Fragment.of(
            rows,
            waits,
            slots={each: self.slots.number(*each) for each in self.slots.asked[before:]},
            last=lane.last,
            pending=tuple(lane.pending),
            flops=other.flops,
            duration=other.duration,
            priced=self.pricing.priced(steps),
        )

    def _copy(self, fragment: Fragment) -> None:
        """Write what an operator writes that begins when all before it were waited for."""
        lane, at = self._lane, len(self.rows)
        ports = {LAST: [lane.last], PENDING: lane.pending}

        def moved(rows: Sequence[int]) -> list[int]:
            return [each for row in rows for each in (ports[row] if row < 0 else [at + row])]

        head = [moved(each) for each in fragment.head]
        counts, awaited = [len(each) for each in head], [row for each in head for row in each]
        self.rows.extend(
            fragment.rows,
            counts + fragment.counts,
            awaited + [at + row for row in fragment.awaited],
        )
        lane.pending = moved(fragment.pending)
        if fragment.last != LAST:
            lane.last = at + fragment.last
        lane.kernels.clear()
        self.flops += fragment.flops
        self.duration += fragment.duration
        self.pricing.note(fragment.priced)

    def compute(self, step: Compute, *, waits: Iterable[int] = ()) -> int:
        """Write a kernel; it waits for what is pending, its tokens, and `waits`."""
        estimate = self.pricing.estimate(step.name, step.kernel)
        lane = self._lane
        awaited = [*lane.pending, *lane.awaited(step.after), *waits]
        lane.taken.update(step.after)  # kernels run in order: no later one has to wait for these
        lane.last = self.rows.kernel(
            step.name,
            COMPUTE,
            estimate.duration,
            waits=awaited,
            **self.pricing.launching_of(step.launches),
        )
        self._block_launches(lane.last)
        lane.pending = []
        lane.kernels[step.name] = lane.last
        self.flops += step.kernel.flops
        self.duration += estimate.duration
        return lane.last

    def communicate(self, step: Communicate, *, waits: Iterable[int] = ()) -> int | None:
        """Write a communication; return its row, or None where the group has one member."""
        if self.slots.alone(step.group):
            return None
        lane = self._lane
        if step.after is None:
            waits = [lane.last, *lane.pending, *waits]
        else:
            waits = [*lane.awaited(step.after), *waits]
        if step.operation is Operation.SEND_RECV:
            row = self._exchange(step, waits)
        else:
            row = self._collective(step, waits)
        if step.token:
            (lane.carried if step.carried else lane.tokens)[step.token] = row
            if step.operation is Operation.ALL_TO_ALL:
                lane.exchanges.add(step.token)
        else:
            lane.pending = [row]
        return row

    def launch(self, step: Communicate, *, waits: Iterable[int] | None = None) -> int | None:
        """Write a collective that no kernel waits for unless told to (`await_next`, `export`).

        It starts after the kernel before it and what the next would wait for; given `waits`, after
        these alone. Returns its row, or None where the group has one member.
        """
        if self.slots.alone(step.group):
            return None
        if waits is None:
            waits = [self._lane.last, *self._lane.pending]
        return self._collective(step, waits)

    def host_wait(self, rows: Iterable[int], name: str) -> None:
        """Let the CPU wait until rows have ended, before it launches anything further."""
        self.rows.host_wait(rows, name=name)

    def point_to_point(
        self,
        kind: Kind,
        slot: str,
        size: int,
        name: str,
        *,
        waits: Iterable[int] = (),
        joined: bool = False,
        stream: str | None = None,
    ) -> int:
        """Write half of a send/receive pair on the slot of that name; the caller decides on waits.

        `joined`: in one batch with the row before, on the same stream. `stream`: by default that of
        the slot.
        """
        # What is joined was launched with the row before: no CPU time of its own.
        launching = AT_ONCE if joined else self.pricing.launching
        return self.rows.point_to_point(
            kind,
            self.slots.slot(slot),
            self.slots.stream(stream or slot),
            size,
            name=name,
            waits=() if joined else waits,
            flags=Flag.JOINED if joined else Flag.NONE,
            **launching,
        )

    def await_next(self, rows: Iterable[int]) -> None:
        """Let the next kernel wait for rows (or ports), too."""
        self._lane.pending += rows

    @property
    def last(self) -> int:
        """The latest kernel; ``LAST`` if there is none yet."""
        return self._lane.last

    @property
    def pending(self) -> list[int]:
        """What the next kernel has to wait for."""
        return self._lane.pending

    def lane(self, number: int) -> None:
        """Go on with one of several micro-batches whose kernels take turns.

        Each lane waits for its own communications alone. Rows are tagged with the lane, which
        `.assembly.TableAssembler` turns into micro-batches.
        """
        while len(self._lanes) <= number:
            self._lanes.append(_Lane())
        self._lane = self._lanes[number]
        self.rows.tags(micro_batch=number, **self._lane.tags)

    def port(self, name: str) -> int:
        """Return what stands for rows that earlier blocks exported under a name."""
        if name not in self._ports:
            self._ports.append(name)
        return BEFORE - 1 - self._ports.index(name)

    def export(self, name: str, rows: Iterable[int]) -> None:
        """Let later blocks wait for rows under a name, besides those exported before."""
        self._exports.setdefault(name, []).extend(rows)

    def tags(self, *, phase: Phase | None = None, layer: int | None = None) -> None:
        """Set phase or layer of the lane's rows that follow."""
        if phase is not None:
            self._lane.tags["phase"] = phase
        if layer is not None:
            self._lane.tags["layer"] = layer
        self.rows.tags(**self._lane.tags)

    def done(self) -> Block:
        """Return the block."""
        values, index, awaited = self.rows.rows()
        waiter = np.repeat(np.arange(len(values)), np.diff(index))
        inside = awaited >= 0
        ports: dict[int, str | int] = {each: each for each in (LAST, PENDING, BEFORE)}
        ports |= {BEFORE - 1 - i: name for i, name in enumerate(self._ports)}
        outside = zip(waiter[~inside].tolist(), awaited[~inside].tolist(), strict=True)
        for lane in self._lanes:
            lane.end()
        pending = tuple(row for lane in self._lanes for row in lane.pending if row != PENDING)
        assert all(row >= 0 for row in pending), "a port is awaited, but no kernel follows"
        return Block(
            values=values,
            waiter=waiter[inside],
            awaited=awaited[inside],
            outside=tuple((row, ports[port]) for row, port in outside),
            exports={name: tuple(rows) for name, rows in self._exports.items()},
            last=max(lane.last for lane in self._lanes),
            pending=pending,
            hands_on=all(PENDING in lane.pending for lane in self._lanes),
            flops=self.flops,
            duration=self.duration,
        )

    def _collective(self, step: Communicate, waits: Iterable[int]) -> int:
        row = self.rows.collective(
            step.operation,
            self.slots.slot(step.group),
            self.slots.stream(step.group),
            step.bytes,
            name=step.name,
            waits=waits,
            **self.pricing.launching,
        )
        self._block_launches(row)
        return row

    def _block_launches(self, row: int) -> None:
        """Let the CPU wait for a row it has launched, where it waits for every one."""
        if self.pricing.blocking:
            self.host_wait([row], "launch blocks")

    def _exchange(self, step: Communicate, waits: Iterable[int]) -> int:
        """Send to the next rank of a ring and receive from the one before, in one batch."""
        group, size = step.group, step.bytes
        self.point_to_point(Kind.SEND, f"{group}:send", size, step.name, waits=waits, stream=group)
        return self.point_to_point(
            Kind.RECV, f"{group}:recv", size, step.name, joined=True, stream=group
        )


class _Lane:
    """What the rows of one micro-batch wait for, while a block is written."""

    def __init__(self) -> None:
        self.last = LAST
        self.pending: list[int] = [PENDING]
        self.tokens: dict[str, int] = {}
        self.carried: dict[str, int] = {}
        self.taken: set[str] = set()
        self.exchanges: set[str] = set()
        self.kernels: dict[str, int] = {}
        self.tags: dict[str, int] = {"phase": Phase.NONE, "layer": -1}

    def awaited(self, tokens: Sequence[str]) -> list[int]:
        """Return the rows of tokens; a communication left out, in a group of one, has none."""
        known = self.carried | self.tokens
        return [known[token] for token in tokens if token in known]

    def exchanging(self, tokens: Sequence[str]) -> bool:
        """Whether any of these are all-to-alls that no kernel has waited for yet."""
        return not self.exchanges.isdisjoint(set(tokens) - self.taken)

    @property
    def idle(self) -> bool:
        """Whether no communication is under way that has a token, or was waited for by one."""
        return not (self.tokens or self.carried or self.taken)

    def join(self) -> None:
        """End an operator: what no kernel has waited for yet, the next one will."""
        self.pending += [row for token, row in self.tokens.items() if token not in self.taken]
        for token in self.taken:
            self.carried.pop(token, None)
        self.tokens.clear()
        self.taken.clear()
        self.exchanges.clear()
        self.kernels.clear()

    def end(self) -> None:
        """End the block, and with it all that was carried."""
        self.pending += self.carried.values()
        self.carried.clear()
