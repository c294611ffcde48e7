"""Tasks of a pass → rows of a block, with the waits that their order and tokens imply.

    tasks, pricing, slots ─► TaskWriter ─► RowBlock (:mod:`.block_rows`) ─► table

`TaskWriter` turns the order and the tokens of tasks (:mod:`.operators`) into waits of rows. Its
state between two tasks is a `PassState`. Several passes may alternate in a block, a forward of one
micro-batch and a backward of another; each has its own state. `BlockBuilder` (:mod:`.blocks`) adds
to it the copying of operators that were written before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..program import Flag, Kind, Names, Operation, Phase, TableBuilder
from ._core.joining import waits_inside
from .block_cache import COMPUTE, Slots
from .block_rows import BEFORE, LAST, PENDING, OperatorRows, RowBlock
from .operators import Await, Communicate, Compute, Task
from .pass_state import PassState
from .pricing import NO_LAUNCH, Launching, Pricing

__all__ = ["TaskWriter"]


class TaskWriter:
    """Write tasks into a block, with the waits that their order implies.

    Parameters
    ----------
    names : Names
        Of the rows.
    pricing : Pricing
    slots : Slots
        Of the table.
    """

    def __init__(self, names: Names, pricing: Pricing, slots: Slots) -> None:
        self._rows = TableBuilder(names)
        self.pricing, self.slots = pricing, slots
        self._rows.tags(micro_batch=0)
        self.flops = self.duration = 0
        self._passes = [PassState()]
        self._pass = self._passes[0]
        self._ports: list[str] = []
        self._exports: dict[str, list[int]] = {}

    def _write_deferred(self) -> None:
        """Write what was put off: nothing, unless a subclass puts off any.

        Every method that writes or reads rows calls it first.
        """

    def write(self, tasks: Iterable[Task]) -> None:
        """Write the tasks of one operator; whatever follows waits for its communications."""
        for _ in self.write_in_turn(tuple(tasks)):
            pass

    def write_in_turn(self, tasks: Sequence[Task]) -> Iterator[None]:
        """Write as `write` does, and yield where the next kernel has to wait.

        At a yield another pass may be selected (`select_pass`), and this one before resuming.
        """
        self._write_deferred()
        for task in tasks:
            if isinstance(task, Compute):
                if self._pass.exchanging(task.after):
                    yield
                self.compute(task)
            elif isinstance(task, Await):
                if not self.pricing.captured:
                    state = self._pass
                    row = state.kernels[task.kernel] if task.kernel else state.last
                    row = state.kept.pop(task.kept, row)
                    self.host_wait([row], task.name, host=task.host, tail=task.tail)
            elif self.communicate(task) is not None and not task.token:
                yield
        self._pass.end_operator()

    def append(self, operator: OperatorRows) -> None:
        """Append rows of operators, with rows of the pass in place of their ports.

        Parameters
        ----------
        operator : OperatorRows
            As `operator_rows` returns them.
        """
        self._write_deferred()
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

    def operator_rows(self) -> OperatorRows:
        """Return what was written into an empty block, to be appended to others."""
        rows, waits = self._rows.untagged()
        with_ports = [i for i, each in enumerate(waits) if min(each, default=0) < 0]
        head = max(with_ports, default=-1) + 1
        return OperatorRows(
            rows,
            [*waits[:head]],
            [len(each) for each in waits[head:]],
            [row for each in waits[head:] for row in each],
            last=self._pass.last,
            pending=tuple(self._pass.pending),
            flops=self.flops,
            duration=self.duration,
        )

    # --- single rows ------------------------------------------------------------------------------

    def compute(self, task: Compute, *, waits: Iterable[int] = ()) -> int:
        """Write a kernel; it waits for pending communications, its tokens, and `waits`.

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
        self._write_deferred()
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
        if task.kept:
            state.kept[task.kept] = state.last
        self.flops += task.kernel.flops
        self.duration += estimate.duration
        return state.last

    def compute_beside(
        self, task: Compute, stream: str, *, waits: Iterable[int] | None = None
    ) -> int:
        """Write a kernel on another stream than that of the pass; return its row.

        It starts after `waits`, by default the kernel before it and what the next would wait for.
        Kernels wait for it only by `await_next` or `export`, communications by `launch`.

        Parameters
        ----------
        task : Compute
            Priced as by `compute`; its `after` is not read.
        stream : str
            Name of the stream; that of a group of ranks is the stream of its collectives.
        waits : iterable of int, optional
            Rows of the block, or ports; empty for a kernel that waits for none.
        """
        self._write_deferred()
        if waits is None:
            waits = [self._pass.last, *self._pass.pending]
        row = self._rows.kernel(
            task.name,
            self.slots.stream(stream),
            self.pricing.estimate(task.name, task.kernel).duration,
            waits=waits,
            gap=self.pricing.gap_before(task),
            **self.pricing.launching_for(task),
        )
        self._block_launches(row)
        return row

    def compute_again(self, task: Compute, times: int) -> None:
        """Write a kernel that waits for no token several times, each after the one before.

        Parameters
        ----------
        task : Compute
            As for `compute`.
        times : int
            1 or more.
        """
        assert not task.after
        before = self.duration
        self.compute(task)
        if self.pricing.blocking:  # the CPU waits for each
            for _ in range(times - 1):
                self.compute(task)
            return
        state = self._pass
        state.last = state.kernels[task.name] = self._rows.repeat(times - 1)
        self.flops += (times - 1) * task.kernel.flops
        self.duration += (times - 1) * (self.duration - before)

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
        self._write_deferred()
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

    def launch(
        self,
        task: Communicate,
        *,
        waits: Iterable[int] | None = None,
        latency: int | None = None,
    ) -> int | None:
        """Write a collective that kernels wait for only by `await_next` or `export`.

        It starts after `waits`, by default the kernel before it and what the next would wait for.
        Returns its row, or None where the group has one member.

        Parameters
        ----------
        task : Communicate
            A collective, its size in bytes; its `token` and `after` are not read.
        waits : iterable of int, optional
            Rows of the block, or ports; empty for a collective that waits for none.
        latency : int, optional
            Where another thread launches it: ps from when the CPU comes here until it can start.
        """
        if self.slots.has_one_member(task.group):
            return None
        self._write_deferred()
        if waits is None:
            waits = [self._pass.last, *self._pass.pending]
        return self._collective(task, waits, latency)

    def host_work(
        self,
        name: str,
        duration: int,
        *,
        stream: str = "",
        waits: Iterable[int] = (),
        bytes: int = -1,
    ) -> int:
        """Write work beside the step: of other threads of the host, or a copy that they launch.

        Nothing waits for it but by `await_next`, `launch` or `export`.

        Parameters
        ----------
        name : str
            Of the row.
        duration : int
            In ps.
        stream : str
            Where it waits for what was written before; by default a stream of its name.
        waits : iterable of int
            Rows of the block, or ports, that it starts after, too.
        bytes : int
            That it copies; -1: none.

        Returns
        -------
        int
            The row, in the block.
        """
        self._write_deferred()
        return self._rows.kernel(
            name,
            self.slots.stream(stream or name),
            duration,
            waits=waits,
            bytes=bytes,
            kind=Kind.COPY,
        )

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
        self._write_deferred()
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
        self._write_deferred()
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

    def _collective(
        self, task: Communicate, waits: Iterable[int], latency: int | None = None
    ) -> int:
        launching = self.pricing.launching
        if latency is not None:
            launching = Launching(host=0, launch=latency, launch_cost=0)
        row = self._rows.collective(
            task.operation,
            self.slots.slot(task.group),
            self.slots.stream(task.group),
            task.bytes,
            name=task.name,
            waits=waits,
            **launching,
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

    # --- state of the passes ----------------------------------------------------------------------

    def await_next(self, rows: Iterable[int]) -> None:
        """Let the next kernel wait for rows (or ports), too."""
        self.pending.extend(rows)

    @property
    def n_rows(self) -> int:
        """Rows so far."""
        self._write_deferred()
        return len(self._rows)

    @property
    def last(self) -> int:
        """The latest kernel; ``LAST`` if there is none yet."""
        self._write_deferred()
        return self._pass.last

    @property
    def pending(self) -> list[int]:
        """Rows and ports that the next kernel has to wait for."""
        self._write_deferred()
        return self._pass.pending

    def select_pass(self, number: int) -> None:
        """Switch to one of several passes whose kernels alternate in the block.

        Each waits only for its own communications. Rows are tagged with the number of the pass,
        which `TableAssembler` replaces by its micro-batch.
        """
        self._write_deferred()
        while len(self._passes) <= number:
            self._passes.append(PassState())
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
            Counted from the first layer of the block (`RowBlock.first_layer`), -1 for none; stays
            as it is if not given.
        """
        self._write_deferred()
        if phase is not None:
            self._pass.tags["phase"] = phase
        if layer is not None:
            self._pass.tags["layer"] = layer
        self._rows.tags(**self._pass.tags)

    def done(self, first_layer: int = 0) -> RowBlock:
        """Return the block, whose layers were counted from `first_layer`."""
        self._write_deferred()
        values, index, awaited = self._rows.rows()
        waiter, awaited, outside = waits_inside(index, awaited)
        ports: dict[int, str | int] = {each: each for each in (LAST, PENDING, BEFORE)}
        ports |= {BEFORE - 1 - i: name for i, name in enumerate(self._ports)}
        for each in self._passes:
            each.end_block()
        pending = tuple(row for each in self._passes for row in each.pending if row != PENDING)
        assert all(row >= 0 for row in pending), "a port is awaited, but no kernel follows"
        return RowBlock(
            values=values,
            waiter=waiter,
            awaited=awaited,
            outside=tuple((row, ports[port]) for row, port in outside),
            exports={name: tuple(rows) for name, rows in self._exports.items()},
            last=max(each.last for each in self._passes),
            pending=pending,
            keeps_pending=all(PENDING in each.pending for each in self._passes),
            flops=self.flops,
            duration=self.duration,
            first_layer=first_layer,
        )
