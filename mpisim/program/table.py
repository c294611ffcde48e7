"""Tables: ordered rows (kernels, copies, communications, CPU work) that ranks execute.

Columns are checked once, when a table is made from them. `Table.replace` with other durations
keeps all other columns and everything derived from them, so runs that repeat a program with other
durations check and derive nothing again.
"""

from __future__ import annotations

from dataclasses import field, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ProgramError
from ..base.frozen import frozen
from ..base.kinds import Flag, Kind, Operation, Phase
from ._core.columns import communications_by_slot, counts_below, sum_of_sizes

__all__ = ["COLUMNS", "UNPRICED", "Table"]

UNPRICED = -1
"""Duration of a communication that the network model has yet to price."""

COLUMNS: dict[str, type] = {
    "kind": np.uint8,
    "stream": np.int16,
    "flags": np.uint8,
    "operation": np.uint8,
    "slot": np.int32,
    "host": np.int64,
    "launch": np.int64,
    "launch_cost": np.int64,
    "gap": np.int64,
    "duration": np.int64,
    "bytes": np.int64,
    "name": np.int32,
    "phase": np.uint8,
    "layer": np.int16,
    "micro_batch": np.int16,
    "step": np.int32,
}
"""Column names and their dtypes, in the order in which files store them."""


_COLLECTIVE, _RECV = int(Kind.COLLECTIVE), int(Kind.RECV)
"""The first and the last kind of a communication, as numbers that numpy takes at once."""


class _Communications(NamedTuple):
    """The communications of a table, as `communications_by_slot` finds them."""

    rows: NDArray[np.int64]
    order: NDArray[np.int64]
    operations: NDArray[np.int64]
    kinds: NDArray[np.int64]
    operation_bits: NDArray[np.int64]


@frozen(eq=False)
class Table:
    """An ordered list of rows, shared by all ranks that execute the same operations.

    Times are int64 picoseconds, sizes bytes. Every column has shape (n,), n the number of rows.

    Attributes
    ----------
    kind : uint8
        A `Kind`.
    stream : int16
        Device stream, 0 to `n_streams` - 1; -1 for HOST and HOST_WAIT.
    flags : uint8
        `Flag` bits.
    operation : uint8
        `Operation` of a communication, else `Operation.NONE`.
    slot : int32
        Communicator slot of a communication, else -1. A rank binds slots to communicators.
    host : int64
        CPU time from the end of the previous row's call to the start of this row's.
    launch : int64
        From the start of the launching call to the earliest start on the device. May be negative
        where a trace's two clocks differ.
    launch_cost : int64
        CPU time of the launching call itself (HOST_WAIT: the tail after the wait).
    gap : int64
        From the last end on the device that the row depends on (the previous kernel of its stream,
        or a row it waits for) to its earliest start.
    duration : int64
        Device time (HOST rows: 0). For a communication the wire time, which starts when its last
        member is ready; `UNPRICED` where the network model prices it.
    bytes : int64
        Message size in bytes; -1 when unknown.
    name : int32
        Index into `Program.names`.
    phase, layer, micro_batch, step
        Phase, layer, micro-batch and training step of the row; -1 (phase: 0) where none applies.
    wait_index : int64, shape (n + 1,)
        Row ``i`` waits for rows ``wait_row[wait_index[i]:wait_index[i + 1]]``.
    wait_row : int32
        Earlier device rows of the same table that must have ended on the device. A wait for a
        batch of JOINED rows names its last row and means all of them.
    queue_depth : int
        At most this many launches of a stream are in flight: the call that launches one more
        blocks until the oldest has ended. 0: no limit.
    label : str
        For messages and reports.
    original : Table, optional
        The table that this one differs from in durations alone: `replace` fills it. Everything but
        durations is then taken over from there, unchecked.
    checked : bool
        Whether rows and waits are known to be sound, as where a table's rows are copies of those of
        a table that was checked; nothing is refused then.

    Raises
    ------
    ProgramError
        On a row that no rank could execute; the message names the row.
    """

    kind: NDArray[np.uint8]
    stream: NDArray[np.int16]
    flags: NDArray[np.uint8]
    operation: NDArray[np.uint8]
    slot: NDArray[np.int32]
    host: NDArray[np.int64]
    launch: NDArray[np.int64]
    launch_cost: NDArray[np.int64]
    gap: NDArray[np.int64]
    duration: NDArray[np.int64]
    bytes: NDArray[np.int64]
    name: NDArray[np.int32]
    phase: NDArray[np.uint8]
    layer: NDArray[np.int16]
    micro_batch: NDArray[np.int16]
    step: NDArray[np.int32]
    wait_index: NDArray[np.int64]
    wait_row: NDArray[np.int32]
    queue_depth: int = 0
    label: str = field(default="", compare=False)
    original: Table | None = field(default=None, repr=False)
    checked: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        original = self.original
        if original is None:
            for column, dtype in {**COLUMNS, "wait_index": np.int64, "wait_row": np.int32}.items():
                self._set(column, dtype)
            if self.checked:
                return
            _check_table(self)
        else:
            self._set("duration", np.int64)
            for name in _INDEPENDENT_OF_DURATIONS & vars(original).keys():
                vars(self)[name] = vars(original)[name]
        _check_durations(self)

    def _set(self, column: str, dtype: type) -> None:
        """Make a column a contiguous, read-only array of its type."""
        values: NDArray[Any] = np.ascontiguousarray(getattr(self, column), dtype=dtype)
        values.setflags(write=False)
        object.__setattr__(self, column, values)

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def is_communication(self) -> NDArray[np.bool_]:
        """Whether each row is a communication, shape (n,)."""
        return (self.kind >= _COLLECTIVE) & (self.kind <= _RECV)

    @cached_property
    def is_device(self) -> NDArray[np.bool_]:
        """Whether each row occupies a device stream, shape (n,)."""
        return self.kind <= _RECV

    @cached_property
    def n_streams(self) -> int:
        """Number of device streams."""
        return int(self.stream.max(initial=-1)) + 1

    @cached_property
    def _communications(self) -> _Communications:
        return _Communications(*communications_by_slot(self.kind, self.operation, self.slot))

    @property
    def communications(self) -> NDArray[np.int64]:
        """Rows that are communications, in order."""
        return self._communications.rows

    @cached_property
    def n_slots(self) -> int:
        """Number of communicator slots.

        What is sorted by slot takes memory for each, so a program asks this first.
        """
        return int(self.slot.max(initial=-1)) + 1

    @cached_property
    def ordinal(self) -> NDArray[np.int32]:
        """Number of earlier communications on the slot of each communication; -1: other rows."""
        ordinal = np.full(len(self), -1, np.int32)
        order = self.by_slot
        slots = self.slot[order]
        first = np.searchsorted(slots, slots, side="left")
        ordinal[order] = np.arange(len(order)) - first
        return ordinal

    @property
    def operations(self) -> NDArray[np.int64]:
        """Number of communications on each slot, shape (n_slots,)."""
        return self._communications.operations

    @property
    def operation_bits(self) -> NDArray[np.int64]:
        """Operations on each slot as a bit set, shape (n_slots,): the sum of 1 << `Operation`."""
        return self._communications.operation_bits

    @property
    def kind_bits(self) -> NDArray[np.int64]:
        """Kinds of the communications on each slot, likewise: the sum of 1 << `Kind`."""
        return self._communications.kinds

    @cached_property
    def launch_time(self) -> float:
        """CPU time, launch latencies and gaps of all rows, one after the other, in ps."""
        return float(sum_of_sizes(self.host, self.launch_cost, self.launch, self.gap))

    def operations_below(self, row: int) -> NDArray[np.int64]:
        """Return the number of communications on each slot before a row, shape (n_slots,)."""
        found: NDArray[np.int64] = counts_below(self.communications, self.slot, self.n_slots, row)
        return found

    def rows_on(self, slot: int) -> NDArray[np.intp]:
        """Return the rows that communicate on a slot, in order; none beyond `n_slots`."""
        return self._rows_by_slot[slot] if slot < self.n_slots else np.zeros(0, np.intp)

    @cached_property
    def _rows_by_slot(self) -> list[NDArray[np.intp]]:
        return np.split(self.by_slot, np.cumsum(self.operations)[:-1])

    @property
    def slot_order(self) -> NDArray[np.int64]:
        """The order that sorts the communications by slot, those of each as they stand."""
        return self._communications.order

    @cached_property
    def by_slot(self) -> NDArray[np.intp]:
        """Communications by slot, those of each in order."""
        return self._communications.rows[self.slot_order]

    @property
    def structure(self) -> Table:
        """The table of which this is a copy with other durations, or itself.

        All such copies return the same object, so it can be a key for what is derived from
        columns other than durations.
        """
        return self if self.original is None else self.original

    def __getstate__(self) -> dict[str, object]:
        """Pickle the columns alone: everything else is derived again where they arrive."""
        return {**{f.name: getattr(self, f.name) for f in fields(self)}, "original": None}

    def replace(self, **columns: object) -> Table:
        """Return a copy with some columns (or `queue_depth`, `label`) changed."""
        original = self.structure if columns.keys() == {"duration"} else None
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Table(**{**values, **columns, "original": original, "checked": False})


_INDEPENDENT_OF_DURATIONS = frozenset(
    [
        "n_streams",
        "n_slots",
        "ordinal",
        "is_communication",
        "is_device",
        "by_slot",
        "_communications",
        "_rows_by_slot",
        "launch_time",
    ]
)
"""Cached properties that tables share which differ in durations alone."""


_WORDS = {
    "kind": (max(Kind), f"kind must be one of {[k.name for k in Kind]}"),
    "operation": (max(Operation), f"operation must be one of {list(Operation)}"),
    "phase": (max(Phase), f"phase must be one of {[p.name for p in Phase]}"),
}
"""Columns of words: the last of them, and what is said of others. There can be thousands of tables,
and looking through words takes longer than through a short table."""


def _check_table(table: Table) -> None:
    """Refuse a table that no rank could execute, naming the first bad row."""
    n = len(table.kind)
    for column in COLUMNS:
        values = getattr(table, column)
        if values.shape != (n,):
            raise ProgramError(
                f"table {table.label!r}: column {column!r} has shape {values.shape}, "
                f"'kind' has ({n},)"
            )
    device, comm = table.is_device, table.is_communication
    host_only = ~device
    joined = (table.flags & Flag.JOINED) != 0
    eager = (table.flags & Flag.EAGER) != 0
    pair = (table.kind == Kind.SEND) | (table.kind == Kind.RECV)

    def refuse(bad: NDArray[np.bool_], text: str) -> None:
        if bad.any():
            row = int(np.argmax(bad))
            raise ProgramError(f"table {table.label!r}, row {row}: {text}")

    for column, (most, text) in _WORDS.items():
        refuse(getattr(table, column) > most, text)
    refuse(device & (table.stream < 0), "a device row needs a stream (0 or more)")
    refuse(host_only & (table.stream >= 0), "a HOST or HOST_WAIT row has no stream (use -1)")
    refuse(comm & (table.slot < 0), "a communication needs a communicator slot")
    refuse(~comm & (table.slot >= 0), "only communications have a communicator slot")
    refuse(comm & (table.operation == Operation.NONE), "a communication needs an operation")
    refuse(~comm & (table.operation != Operation.NONE), "only communications have an operation")
    refuse(
        pair != (table.operation == Operation.SEND_RECV),
        "SEND and RECV, and only they, have the operation SEND_RECV",
    )
    refuse(table.host < 0, "the host time is negative")
    refuse(table.launch_cost < 0, "the launch cost is negative")
    refuse(table.bytes < -1, "the number of bytes is negative")
    refuse(eager & ~comm, "only communications can be EAGER")
    before = np.concatenate([[-2], table.stream[:-1]])
    comm_before = np.concatenate([[False], comm[:-1]])
    refuse(
        joined & ~(comm & comm_before & (before == table.stream)),
        "a JOINED row must be a communication that follows one on the same stream",
    )
    _check_waits(table)


def _check_durations(table: Table) -> None:
    """Refuse durations that no row can have, naming the first bad row."""
    label, n = f"table {table.label!r}", len(table.kind)
    if table.duration.shape != (n,):
        raise ProgramError(
            f"{label}: column 'duration' has shape {table.duration.shape}, 'kind' has ({n},)"
        )
    below = np.flatnonzero(table.duration < 0)
    kind = table.kind[below]
    negative = (table.duration[below] != UNPRICED) | (kind < _COLLECTIVE) | (kind > _RECV)
    if negative.any():
        raise ProgramError(f"{label}, row {below[np.argmax(negative)]}: the duration is negative")


def _check_waits(table: Table) -> None:
    """Refuse waits that do not name an earlier device row."""
    n, index = len(table.kind), table.wait_index
    label = f"table {table.label!r}"
    if index.shape != (n + 1,) or index[0] != 0 or index[-1] != len(table.wait_row):
        raise ProgramError(f"{label}: wait_index must run from 0 to {len(table.wait_row)}")
    if (np.diff(index) < 0).any():
        raise ProgramError(f"{label}: wait_index must not decrease")
    waiter = np.repeat(np.arange(n), np.diff(index))
    bad = (table.wait_row < 0) | (table.wait_row >= waiter)
    if bad.any():
        at = int(np.argmax(bad))
        raise ProgramError(
            f"{label}, row {waiter[at]}: waits for row {table.wait_row[at]}, "
            "which is not an earlier row"
        )
    joined = (table.flags[waiter] & Flag.JOINED) != 0
    if joined.any():
        raise ProgramError(
            f"{label}, row {waiter[np.argmax(joined)]}: a JOINED row waits for nothing of its own; "
            "give its waits to the first row of the batch"
        )
    bad = ~table.is_device[table.wait_row] if n else np.zeros(0, bool)
    if bad.any():
        at = int(np.argmax(bad))
        raise ProgramError(
            f"{label}, row {waiter[at]}: waits for row {table.wait_row[at]}, "
            "which does not run on the device"
        )
    if table.queue_depth < 0:
        raise ProgramError(f"{label}: queue_depth is {table.queue_depth}; 0 means no limit")
