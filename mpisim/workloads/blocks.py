"""Blocks: rows of a table that are written once and used for many micro-batches.

    operators, pricing, slots ─► BlockBuilder ─► Block ─► table (:mod:`.assembly`)

Ports
-----
The rows of a block may wait for rows outside it, whose place no one knows yet. They name these by
negative numbers: ``LAST`` is the latest kernel before the block, ``BEFORE`` the latest before the
block of that one, ``PENDING`` the communications before it that the next kernel has to wait for.
Further ports have names: a row exported under a name by one block is awaited under that name by
later ones.

What an operator writes
-----------------------
`BlockBuilder` turns the order and the tokens of tasks (:mod:`.operators`) into waits of rows. Its
state between two tasks is a `_Pass`. If no communication with a token is under way, what an
operator writes depends on that state through ``LAST`` and ``PENDING`` alone; so it is written once
into an empty block (`OperatorRows`) and copied, with the rows of the pass in place of the ports.

Operators that follow each other are copied together: a layer has a dozen of them, and a stage
dozens of equal layers. So they are only put down (`BlockBuilder.write_operator`) until anything
else is written or asked of the block, and the rows of all are kept under the whole sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..program import COLUMNS, Flag, Kind, Names, Operation, Phase, TableBuilder
from .block_cache import COMPUTE, BlockCache, Renumbering, Slots
from .operators import Await, Communicate, Compute, Operator, OperatorPart, Task
from .pricing import NO_LAUNCH, Pricing

__all__ = ["BEFORE", "LAST", "PENDING", "Block", "BlockBuilder"]

LAST, PENDING, BEFORE = -1, -2, -3
"""Ports without a name; those with names have the numbers below."""

SLOT, STREAM = (list(COLUMNS).index(column) for column in ("slot", "stream"))


@frozen(eq=False)
class Block:
    """Rows whose place in a table is still open.

    Attributes
    ----------
    values : int64, shape (n, len(COLUMNS))
        The rows. Layers are counted from `first_layer`; micro-batches are the numbers of the passes
        that alternate in the block (`BlockBuilder.select_pass`).
    waiter, awaited : int64
        Pairs of rows of this block.
    outside : tuple of (int, str or int)
        A row, and the port it waits for.
    exports : mapping of str to tuple of int
        Rows that later blocks can wait for by name.
    last : int
        The last kernel, or -1.
    pending : tuple of int
        Communications that the next kernel after the block has to wait for.
    keeps_pending : bool
        Whether what was pending before the block still is after it.
    flops : int
        Of the matrix units.
    duration : int
        Of all kernels together, in ps.
    first_layer : int
        Added to the layers of rows.
    """

    values: NDArray[np.int64]
    waiter: NDArray[np.int64]
    awaited: NDArray[np.int64]
    outside: tuple[tuple[int, str | int], ...]
    exports: Mapping[str, tuple[int, ...]]
    last: int
    pending: tuple[int, ...]
    keeps_pending: bool
    flops: int
    duration: int
    first_layer: int = 0

    def __len__(self) -> int:
        return len(self.values)

    def renumbered(self, numbers: Renumbering) -> Block:
        """Return the block with other numbers of slots and streams."""
        values = self.values.copy()
        for column, changed in ((SLOT, numbers.slots), (STREAM, numbers.streams)):
            for old, new in changed.items():
                if old != new:
                    values[self.values[:, column] == old, column] = new
        return replace(self, values=values)


class OperatorRows(NamedTuple):
    """What operators in sequence write into an empty block.

    Attributes
    ----------
    rows : list of tuple of int
        Without tags.
    head : list of sequence of int
        What each of the first rows waits for, rows or ports, up to the last one that waits for a
        port.
    counts, awaited : list of int
        How many rows each of the others waits for, and which.
    last, pending, flops, duration
        As of a `Block`; `last` may be ``LAST``, and `pending` has ports as well.
    """

    rows: list[tuple[int, ...]]
    head: list[Sequence[int]]
    counts: list[int]
    awaited: list[int]
    last: int
    pending: tuple[int, ...]
    flops: int
    duration: int

    def renumbered(self, numbers: Renumbering) -> OperatorRows:
        """Return the rows with other numbers of slots and streams."""
        rows = []
        for row in self.rows:
            values = list(row)
            values[SLOT] = numbers.slots.get(row[SLOT], row[SLOT])
            values[STREAM] = numbers.streams.get(row[STREAM], row[STREAM])
            rows.append(tuple(values))
        return self._replace(rows=rows)


class BlockBuilder:
    """Write operators into a block, with the waits that their order implies.

    Parameters
    ----------
    names : Names
        Of the rows.
    pricing : Pricing
    slots : Slots
        Of the table.
    cache : BlockCache, optional
        Of operators' rows. Not for blocks in which passes alternate, also inside an operator.
    """

    def __init__(
        self, names: Names, pricing: Pricing, slots: Slots, cache: BlockCache | None = None
    ) -> None:
        self._rows = TableBuilder(names)
        self.pricing, self.slots, self._cache = pricing, slots, cache
        self._rows.tags(micro_batch=0)
        self._put_down: list[tuple[Operator, OperatorPart]] = []
        self.flops = self.duration = 0
        self._passes = [_Pass()]
        self._pass = self._passes[0]
        self._ports: list[str] = []
        self._exports: dict[str, list[int]] = {}

    # --- operators --------------------------------------------------------------------------------

    def write(self, tasks: Iterable[Task]) -> None:
        """Write the tasks of one operator; whatever follows waits for its communications."""
        for _ in self.write_in_turn(tuple(tasks)):
            pass

    def write_operator(self, operator: Operator, part: OperatorPart) -> Iterable[None]:
        """Write a part of an operator, or copy its rows; yield as `write_in_turn` does.

        What is copied is there once anything else is written or asked for.

        Parameters
        ----------
        operator : Operator
        part : {"forward", "all", "input", "weight"}
            The forward, or a part of the backward.
        """
        idle = self._put_down or self._pass.idle
        if self._cache is not None and idle and not operator.carries:
            self._put_down.append((operator, part))
            return ()
        return self.write_in_turn(operator.tasks(part))

    def write_in_turn(self, tasks: Sequence[Task]) -> Iterator[None]:
        """Write as `write` does, and yield where the next kernel has to wait.

        At a yield another pass may be selected (`select_pass`), and this one before resuming.
        """
        self._write_down()
        for task in tasks:
            if isinstance(task, Compute):
                if self._pass.exchanging(task.after):
                    yield
                self.compute(task)
            elif isinstance(task, Await):
                if not self.pricing.captured:
                    state = self._pass
                    row = state.kernels[task.kernel] if task.kernel else state.last
                    self.host_wait([row], task.name, host=task.host, tail=task.tail)
            elif self.communicate(task) is not None and not task.token:
                yield
        self._pass.end_operator()

    def _write_down(self) -> None:
        """Copy the rows of the operators that were put down."""
        if not self._put_down or self._cache is None:
            return
        some, self._put_down = tuple(self._put_down), []
        self._copy(self._rows_of(some, self._cache))
        self.pricing.note(task for operator, part in some for task in operator.tasks(part))

    def _rows_of(
        self, some: tuple[tuple[Operator, OperatorPart], ...], cache: BlockCache
    ) -> OperatorRows:
        """Return the rows of parts of operators in sequence."""
        return cache.get(
            (self.pricing, some), self.slots, lambda: self._rows_of_operators(some, cache)
        )

    def _rows_of_operators(
        self, some: tuple[tuple[Operator, OperatorPart], ...], cache: BlockCache
    ) -> OperatorRows:
        """Write parts of operators into an empty block; of several, copy what each writes."""
        other = BlockBuilder(self._rows.names, self.pricing, self.slots)
        if len(some) == 1:
            operator, part = some[0]
            other.write(operator.tasks(part))
        else:
            for each in some:
                other._copy(self._rows_of((each,), cache))
        rows, waits = other._rows.untagged()
        with_ports = [i for i, each in enumerate(waits) if min(each, default=0) < 0]
        head = max(with_ports, default=-1) + 1
        return OperatorRows(
            rows,
            [*waits[:head]],
            [len(each) for each in waits[head:]],
            [row for each in waits[head:] for row in each],
            last=other._pass.last,
            pending=tuple(other._pass.pending),
            flops=other.flops,
            duration=other.duration,
        )

    def _copy(self, operator: OperatorRows) -> None:
        """Append rows of operators, with rows of the pass in place of their ports."""
        state, at = self._pass, len(self._rows)
        ports = {LAST: [state.last], PENDING: state.pending}

        def moved(rows: Sequence[int]) -> list[int]:
            return [each for row in rows for each in (ports[row] if row < 0 else [at + row])]

        head = [moved(each) for each in operator.head]
        counts, awaited = [len(each) for each in head], [row for each in head for row in each]
        self._rows.extend(
            operator.rows,
            counts + operator.counts,
            awaited + [at + row for row in operator.awaited],
        )
        state.pending = moved(operator.pending)
        if operator.last != LAST:
            state.last = at + operator.last
        state.kernels.clear()
        self.flops += operator.flops
        self.duration += operator.duration

    # --- single rows ------------------------------------------------------------------------------

    def compute(self, task: Compute, *, waits: Iterable[int] = ()) -> int:
        """Write a kernel; it waits for what is pending, its tokens, and `waits`.

        Parameters
        ----------
        task : Compute
            Priced in ps by the builder's `pricing`.
        waits : iterable of int
            Further rows of the block, or ports, that it starts after; none by default.

        Returns
        -------
        int
            The row, in the block.
        """
        self._write_down()
        estimate = self.pricing.estimate(task.name, task.kernel)
        state = self._pass
        awaited = [*state.pending, *state.rows_of(task.after), *waits]
        state.awaited.update(task.after)  # kernels run in order: no later one has to wait for these
        state.last = self._rows.kernel(
            task.name,
            COMPUTE,
            estimate.duration,
            waits=awaited,
            gap=self.pricing.gap_before(task),
            **self.pricing.launching_for(task),
        )
        self._block_launches(state.last)
        state.pending = []
        state.kernels[task.name] = state.last
        self.flops += task.kernel.flops
        self.duration += estimate.duration
        return state.last

    def communicate(self, task: Communicate, *, waits: Iterable[int] = ()) -> int | None:
        """Write a communication; return its row, or None where the group has one member.

        Parameters
        ----------
        task : Communicate
            Its size is in bytes. Without a token the next kernel waits for it; without `after` it
            starts after the latest kernel and what is pending.
        waits : iterable of int
            Further rows of the block, or ports, that it starts after; none by default.

        Returns
        -------
        int or None
            The row, in the block; of an exchange that of the RECV.
        """
        if self.slots.has_one_member(task.group):
            return None
        self._write_down()
        state = self._pass
        if task.after is None:
            waits = [state.last, *state.pending, *waits]
        else:
            waits = [*state.rows_of(task.after), *waits]
        if task.operation is Operation.SEND_RECV:
            row = self._exchange(task, waits)
        else:
            row = self._collective(task, waits)
        if task.token:
            (state.carried if task.carried else state.tokens)[task.token] = row
            if task.operation is Operation.ALL_TO_ALL:
                state.exchanges.add(task.token)
        else:
            state.pending = [row]
        return row

    def launch(self, task: Communicate, *, waits: Iterable[int] | None = None) -> int | None:
        """Write a collective that kernels wait for only by `await_next` or `export`.

        It starts after `waits`, by default the kernel before it and what the next would wait for.
        Returns its row, or None where the group has one member.

        Parameters
        ----------
        task : Communicate
            A collective, its size in bytes; its `token` and `after` are not read.
        waits : iterable of int, optional
            Rows of the block, or ports; empty for a collective that waits for none.
        """
        if self.slots.has_one_member(task.group):
            return None
        self._write_down()
        if waits is None:
            waits = [self._pass.last, *self._pass.pending]
        return self._collective(task, waits)

    def host_wait(self, rows: Iterable[int], name: str, *, host: int = 0, tail: int = 0) -> None:
        """Let the CPU wait until rows have ended, before it launches anything further.

        Parameters
        ----------
        rows : iterable of int
            Device rows of the block, or ports.
        name : str
            Of the row that is written.
        host, tail : int
            CPU time before the wait, and after the rows have ended, in ps.
        """
        self._write_down()
        self._rows.host_wait(rows, host=host, tail=tail, name=name)

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
        flags: Flag = Flag.NONE,
    ) -> int:
        """Write half of a send/receive pair; return its row.

        Parameters
        ----------
        kind : Kind
            SEND or RECV.
        slot : str
            Name of the slot.
        size : int
            Bytes.
        name : str
            Of the row.
        waits : iterable of int
            Rows or ports it starts after; nothing is added.
        joined : bool
            In one batch with the row before: launched with it, on the same stream, without waits
            or CPU time of its own.
        stream : str, optional
            By default that of the slot.
        flags : Flag
            Further ones.
        """
        self._write_down()
        launching = NO_LAUNCH if joined else self.pricing.launching
        return self._rows.point_to_point(
            kind,
            self.slots.slot(slot),
            self.slots.stream(stream or slot),
            size,
            name=name,
            waits=() if joined else waits,
            flags=flags | Flag.JOINED if joined else flags,
            **launching,
        )

    def await_next(self, rows: Iterable[int]) -> None:
        """Let the next kernel wait for rows (or ports), too."""
        self.pending.extend(rows)

    @property
    def last(self) -> int:
        """The latest kernel; ``LAST`` if there is none yet."""
        self._write_down()
        return self._pass.last

    @property
    def pending(self) -> list[int]:
        """What the next kernel has to wait for."""
        self._write_down()
        return self._pass.pending

    def select_pass(self, number: int) -> None:
        """Go on with one of several passes whose kernels alternate.

        Each waits only for its own communications. Rows are tagged with the number of the pass,
        which `TableAssembler` replaces by its micro-batch.
        """
        self._write_down()
        while len(self._passes) <= number:
            self._passes.append(_Pass())
        self._pass = self._passes[number]
        self._rows.tags(micro_batch=number, **self._pass.tags)

    def port(self, name: str) -> int:
        """Return the port of rows that earlier blocks exported under a name."""
        if name not in self._ports:
            self._ports.append(name)
        return BEFORE - 1 - self._ports.index(name)

    def export(self, name: str, rows: Iterable[int]) -> None:
        """Let later blocks wait for rows under a name, besides those exported before.

        Parameters
        ----------
        name : str
            As later blocks give it to `port`.
        rows : iterable of int
            Rows of this block; may be empty.
        """
        self._exports.setdefault(name, []).extend(rows)

    def tags(self, *, phase: Phase | None = None, layer: int | None = None) -> None:
        """Set phase or layer of the rows of the pass that follow.

        Parameters
        ----------
        phase : Phase, optional
            Stays as it is if not given.
        layer : int, optional
            Counted from the first layer of the block (`Block.first_layer`), -1 for none; stays as
            it is if not given.
        """
        self._write_down()
        if phase is not None:
            self._pass.tags["phase"] = phase
        if layer is not None:
            self._pass.tags["layer"] = layer
        self._rows.tags(**self._pass.tags)

    def done(self, first_layer: int = 0) -> Block:
        """Return the block, whose layers were counted from `first_layer`."""
        self._write_down()
        values, index, awaited = self._rows.rows()
        waiter = np.repeat(np.arange(len(values)), np.diff(index))
        inside = awaited >= 0
        ports: dict[int, str | int] = {each: each for each in (LAST, PENDING, BEFORE)}
        ports |= {BEFORE - 1 - i: name for i, name in enumerate(self._ports)}
        outside = zip(waiter[~inside].tolist(), awaited[~inside].tolist(), strict=True)
        for each in self._passes:
            each.end_block()
        pending = tuple(row for each in self._passes for row in each.pending if row != PENDING)
        assert all(row >= 0 for row in pending), "a port is awaited, but no kernel follows"
        return Block(
            values=values,
            waiter=waiter[inside],
            awaited=awaited[inside],
            outside=tuple((row, ports[port]) for row, port in outside),
            exports={name: tuple(rows) for name, rows in self._exports.items()},
            last=max(each.last for each in self._passes),
            pending=pending,
            keeps_pending=all(PENDING in each.pending for each in self._passes),
            flops=self.flops,
            duration=self.duration,
            first_layer=first_layer,
        )

    def _collective(self, task: Communicate, waits: Iterable[int]) -> int:
        row = self._rows.collective(
            task.operation,
            self.slots.slot(task.group),
            self.slots.stream(task.group),
            task.bytes,
            name=task.name,
            waits=waits,
            **self.pricing.launching,
        )
        self._block_launches(row)
        return row

    def _block_launches(self, row: int) -> None:
        """Let the CPU wait for a row it has launched, where it waits for every one."""
        if self.pricing.blocking:
            self.host_wait([row], "launch blocks")

    def _exchange(self, task: Communicate, waits: Iterable[int]) -> int:
        """Send to the next rank of a ring and receive from the one before, in one batch."""
        group, size = task.group, task.bytes
        flags = Flag.COPY_ENGINE if task.copy_engine else Flag.NONE
        self.point_to_point(
            Kind.SEND, f"{group}:send", size, task.name, waits=waits, stream=group, flags=flags
        )
        return self.point_to_point(
            Kind.RECV, f"{group}:recv", size, task.name, joined=True, stream=group, flags=flags
        )


class _Pass:
    """State of one pass while a block is written: what its next rows have to wait for.

    Attributes
    ----------
    last : int
        The latest kernel; ``LAST`` at first.
    pending : list of int
        What the next kernel waits for; ``PENDING`` at first.
    tokens, carried : dict of str to int
        Communications under way by token: of the operator, and those that outlive it.
    awaited : set of str
        Tokens that a kernel of the operator has waited for.
    exchanges : set of str
        Tokens of the operator's all-to-alls.
    kernels : dict of str to int
        Kernels of the operator, by name.
    tags : dict of str to int
        Phase and layer of the rows.
    """

    def __init__(self) -> None:
        self.last = LAST
        self.pending: list[int] = [PENDING]
        self.tokens: dict[str, int] = {}
        self.carried: dict[str, int] = {}
        self.awaited: set[str] = set()
        self.exchanges: set[str] = set()
        self.kernels: dict[str, int] = {}
        self.tags: dict[str, int] = {"phase": Phase.NONE, "layer": -1}

    def rows_of(self, tokens: Sequence[str]) -> list[int]:
        """Return the rows of tokens; a communication left out, in a group of one, has none."""
        known = self.carried | self.tokens
        return [known[token] for token in tokens if token in known]

    def exchanging(self, tokens: Sequence[str]) -> bool:
        """Whether any of these are all-to-alls that no kernel has waited for yet."""
        return not self.exchanges.isdisjoint(set(tokens) - self.awaited)

    @property
    def idle(self) -> bool:
        """Whether no communication with a token is under way."""
        return not (self.tokens or self.carried or self.awaited)

    def end_operator(self) -> None:
        """Let the next kernel wait for what no kernel of the operator has waited for."""
        self.pending += [row for token, row in self.tokens.items() if token not in self.awaited]
        for token in self.awaited:
            self.carried.pop(token, None)
        self.tokens.clear()
        self.awaited.clear()
        self.exchanges.clear()
        self.kernels.clear()

    def end_block(self) -> None:
        """Let the next kernel wait for all that was carried."""
        self.pending += self.carried.values()
        self.carried.clear()
