"""Blocks: pieces of a table that are written once and used for many micro-batches.

A pipeline stage does the same forward and the same backward for every micro-batch. Each is written
once, row by row, as a `Block`; a table is then a sequence of blocks, joined by array operations.

A block's rows may wait for rows outside it, through ports: ``LAST`` is the latest kernel before the
block, ``PENDING`` the communications before it that the next kernel has to wait for. Other ports
have names: a row exported under a name by one block is awaited under that name by later ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..program import COLUMNS, Flag, Kind, Names, Operation, Phase, Table, TableBuilder, table_of
from .operators import Await, Communicate, Compute, Step
from .pricing import Launching, Pricing

__all__ = ["LAST", "PENDING", "Block", "BlockBuilder", "Slots", "TableAssembler"]

LAST, PENDING = -1, -2
"""Rows a block can wait for without knowing them; named ports follow below."""

COMPUTE = 0
"""The stream of kernels."""

AT_ONCE = Launching(host=0, launch=0, launch_cost=0)

MICRO_BATCH = list(COLUMNS).index("micro_batch")


class Slots:
    """Communicator slots of a table, numbered as they are first used.

    Parameters
    ----------
    sizes : mapping of str to int
        Members of each group a rank may use; groups of one are never communicated on.
    streams : mapping of str to str, optional
        Slots that share a stream with others: slot name to stream name. Otherwise each slot has a
        stream of its own.
    """

    def __init__(self, sizes: Mapping[str, int], streams: Mapping[str, str] | None = None) -> None:
        self.sizes = sizes
        self._shared = streams or {}
        self._slots: dict[str, int] = {}
        self._streams: dict[str, int] = {"": COMPUTE}

    @property
    def names(self) -> tuple[str, ...]:
        """Of the slots used, in order."""
        return tuple(self._slots)

    def alone(self, group: str) -> bool:
        """Whether a group has one member."""
        return self.sizes[group] == 1

    def slot(self, name: str) -> int:
        """Return the number of a slot, new or known."""
        return self._slots.setdefault(name, len(self._slots))

    def stream(self, name: str) -> int:
        """Return the stream of a slot, or one of that name."""
        return self._streams.setdefault(self._shared.get(name, name), len(self._streams))


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
    """

    def __init__(self, names: Names, pricing: Pricing, slots: Slots) -> None:
        self.rows = TableBuilder(names)
        self.pricing, self.slots = pricing, slots
        self.rows.tags(micro_batch=0)
        self.flops = self.duration = 0
        self._lanes = [_Lane()]
        self._lane = self._lanes[0]
        self._ports: list[str] = []
        self._exports: dict[str, list[int]] = {}

    def steps(self, steps: Iterable[Step]) -> None:
        """Write steps of one operator; afterwards all of its communications must be waited for."""
        for _ in self.stepwise(steps):
            pass

    def stepwise(self, steps: Iterable[Step]) -> Iterator[None]:
        """Write steps as `steps` does, pausing where the next kernel has to wait."""
        for step in steps:
            if isinstance(step, Compute):
                self.compute(step)
            elif isinstance(step, Await):
                if not self.pricing.captured:
                    self.host_wait([self._lane.kernels[step.kernel]], step.name)
            elif self.communicate(step) is not None and not step.token:
                yield
        self._lane.join()

    def compute(self, step: Compute, *, waits: Iterable[int] = ()) -> int:
        """Write a kernel; it waits for what is pending, its tokens, and `waits`."""
        estimate = self.pricing.estimate(step.name, step.kernel)
        lane = self._lane
        awaited = [*lane.pending, *lane.awaited(step.after), *waits]
        lane.taken.update(step.after)  # kernels run in order: no later one has to wait for these
        lane.last = self.rows.kernel(
            step.name, COMPUTE, estimate.duration, waits=awaited, **self.pricing.launching
        )
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
        self, kind: Kind, slot: str, size: int, name: str, *,
        waits: Iterable[int] = (), joined: bool = False, stream: str | None = None,
    ) -> int:  # fmt: skip
        """Write half of a send/receive pair on the slot of that name; the caller decides on waits.

        `joined`: in one batch with the row before, on the same stream. `stream`: by default that of
        the slot.
        """
        # What is joined was launched with the row before: no CPU time of its own.
        launching = AT_ONCE if joined else self.pricing.launching
        return self.rows.point_to_point(
            kind, self.slots.slot(slot), self.slots.stream(stream or slot), size, name=name,
            waits=() if joined else waits, flags=Flag.JOINED if joined else Flag.NONE, **launching,
        )  # fmt: skip

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
        `TableAssembler.add` turns into micro-batches.
        """
        while len(self._lanes) <= number:
            self._lanes.append(_Lane())
        self._lane = self._lanes[number]
        self.rows.tags(micro_batch=number, **self._lane.tags)

    def port(self, name: str) -> int:
        """Return what stands for rows that earlier blocks exported under a name."""
        if name not in self._ports:
            self._ports.append(name)
        return PENDING - 1 - self._ports.index(name)

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
        ports: dict[int, str | int] = {LAST: LAST, PENDING: PENDING}
        ports |= {PENDING - 1 - i: name for i, name in enumerate(self._ports)}
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
        return self.rows.collective(
            step.operation, self.slots.slot(step.group), self.slots.stream(step.group),
            step.bytes, name=step.name, waits=waits, **self.pricing.launching,
        )  # fmt: skip

    def _exchange(self, step: Communicate, waits: Iterable[int]) -> int:
        """Send to the next rank of a ring and receive from the one before, in one batch."""
        group, size = step.group, step.bytes
        self.point_to_point(
            Kind.SEND, f"{group}:send", size, step.name, waits=waits, stream=group
        )  # fmt: skip
        return self.point_to_point(
            Kind.RECV, f"{group}:recv", size, step.name, joined=True, stream=group
        )  # fmt: skip


class _Lane:
    """What the rows of one micro-batch wait for, while a block is written."""

    def __init__(self) -> None:
        self.last = LAST
        self.pending: list[int] = [PENDING]
        self.tokens: dict[str, int] = {}
        self.carried: dict[str, int] = {}
        self.taken: set[str] = set()
        self.kernels: dict[str, int] = {}
        self.tags: dict[str, int] = {"phase": Phase.NONE, "layer": -1}

    def awaited(self, tokens: Sequence[str]) -> list[int]:
        """Return the rows of tokens; a communication left out, in a group of one, has none."""
        known = self.carried | self.tokens
        return [known[token] for token in tokens if token in known]

    def join(self) -> None:
        """End an operator: what no kernel has waited for yet, the next one will."""
        self.pending += [row for token, row in self.tokens.items() if token not in self.taken]
        for token in self.taken:
            self.carried.pop(token, None)
        self.tokens.clear()
        self.taken.clear()
        self.kernels.clear()

    def end(self) -> None:
        """End the block, and with it all that was carried."""
        self.pending += self.carried.values()
        self.carried.clear()


class TableAssembler:
    """Joins blocks into a table."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._blocks: dict[int, Block] = {}
        self._used: list[tuple[Block, int, tuple[int, ...]]] = []
        self._outside: list[tuple[int, int]] = []
        self._length = 0
        self._last: list[int] = []
        self._pending: list[int] = []
        self._exports: dict[str, list[int]] = {}
        self.flops = self.duration = 0

    def add(self, block: Block, *micro_batches: int) -> None:
        """Append a block, the rows of its lanes tagged with a micro-batch each (none: -1)."""
        at = self._length
        self._blocks[id(block)] = block
        self._used.append((block, at, micro_batches or (-1,)))
        for row, port in block.outside:
            if port == LAST:
                rows = self._last
            elif port == PENDING:
                rows = self._pending
            else:
                rows = self._exports.get(str(port), [])
            self._outside.extend((at + row, each) for each in rows)
        if block.last >= 0:
            self._last = [at + block.last]
        if not block.hands_on:
            self._pending = []
        self._pending += [at + row for row in block.pending]
        for name, exported in block.exports.items():
            self._exports.setdefault(name, []).extend(at + row for row in exported)
        self._length += len(block)
        self.flops += block.flops
        self.duration += block.duration

    def table(self) -> Table:
        """Return the table.

        Raises
        ------
        ProgramError
            If a column cannot hold a value, such as too many micro-batches.
        """
        blocks = list(self._blocks.values())
        place = {key: i for i, key in enumerate(self._blocks)}
        used = np.array([place[id(block)] for block, _, _ in self._used], np.int64)
        at = np.array([at for _, at, _ in self._used], np.int64)
        lanes = max(len(each) for _, _, each in self._used)
        micro_batch = np.array(
            [each + each[:1] * (lanes - len(each)) for _, _, each in self._used], np.int64
        )

        # Rows: for each use of a block, its rows of all blocks' rows laid end to end.
        lengths = np.array([len(block) for block in blocks])
        values = np.concatenate([block.values for block in blocks])
        taken = _ranges(_starts(lengths)[used], lengths[used])
        values = values[taken]
        lane = values[:, MICRO_BATCH]
        values[:, MICRO_BATCH] = micro_batch[np.repeat(np.arange(len(used)), lengths[used]), lane]

        # Waits inside blocks in the same way, moved to where each block stands; then the others.
        counts = np.array([len(block.waiter) for block in blocks])
        taken = _ranges(_starts(counts)[used], counts[used])
        move = np.repeat(at, counts[used])
        outside = np.array(self._outside, np.int64).reshape(-1, 2)
        waiter = np.concatenate([block.waiter for block in blocks])[taken] + move
        awaited = np.concatenate([block.awaited for block in blocks])[taken] + move
        waiter = np.concatenate([waiter, outside[:, 0]])
        awaited = np.concatenate([awaited, outside[:, 1]])
        order = np.lexsort((awaited, waiter))
        index = np.searchsorted(waiter[order], np.arange(self._length + 1))
        return table_of(values, index, awaited[order], label=self.label)


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)[:-1]])


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ranges ``starts[i]`` to ``starts[i] + lengths[i]``, one after another."""
    first = np.repeat(starts - _starts(lengths), lengths)
    return first + np.arange(int(lengths.sum()))
