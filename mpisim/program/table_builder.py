"""Rows of one rank, added one by one → `Table`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ProgramError
from ..base.kinds import Flag, Kind, Operation, Phase
from ._core.building import rows_as_arrays
from .program import Names
from .table import COLUMNS, UNPRICED, Table

__all__ = ["Mark", "TableBuilder", "columns_of"]

_FLAGS, _JOINED = list(COLUMNS).index("flags"), int(Flag.JOINED)

_LIMITS = [np.iinfo(dtype) for dtype in COLUMNS.values()]
_LOWEST = np.array([each.min for each in _LIMITS], np.int64)
_HIGHEST = np.array([each.max for each in _LIMITS], np.int64)
"""What the types of columns can hold."""


class Mark(NamedTuple):
    """A position in a table that is being built.

    Attributes
    ----------
    rows, awaited, tagged : int
        Number of rows, waits and changes of tags before the position.
    """

    rows: int
    awaited: int
    tagged: int


class TableBuilder:
    """Append rows, then `build` the table. Times in ps, sizes in bytes.

    Each method that appends a row returns its number, to be named in later waits. In all of them
    `waits` are earlier device rows that must have ended (by default the stream's order alone
    counts), and `host`, `launch`, `launch_cost`, `gap` in ps are as the columns of `Table`. The
    `tag` keywords (phase, layer, micro_batch, step) may be set for all following rows with `tags`.

    Examples
    --------
    >>> rows = TableBuilder(Names())
    >>> first = rows.kernel("gemm", stream=0, duration=5_000_000)
    >>> last = rows.collective(Operation.ALL_REDUCE, slot=0, stream=1, bytes=1024, waits=[first])
    >>> rows.host_wait([last])
    2
    >>> len(rows.build())
    3
    """

    def __init__(self, names: Names, label: str = "") -> None:
        self.names = names
        self.label = label
        self._rows: list[tuple[int, ...]] = []  # without tags
        self._counts: list[int] = []  # how many rows each row waits for
        self._awaited: list[int] = []
        self._tagged: list[tuple[int, tuple[int, ...]]] = []  # tags, and from which row on
        self._tags: dict[str, int] = {
            "phase": int(Phase.NONE),
            "layer": -1,
            "micro_batch": -1,
            "step": -1,
        }
        self.tags()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def device_rows(self) -> list[int]:
        """Device rows so far, which later rows may wait for."""
        return [i for i, row in enumerate(self._rows) if row[0] <= Kind.RECV]

    def tags(self, **tags: int) -> TableBuilder:
        """Set phase, layer, micro_batch or step of all rows appended from here on."""
        known = self._tags
        for tag, value in tags.items():
            if tag not in known:
                raise TypeError(f"no such tag: {tag!r}; there are {sorted(known)}")
            known[tag] = int(value)
        self._tagged.append((len(self._rows), tuple(self._tags.values())))
        return self

    def kernel(
        self,
        name: str,
        stream: int,
        duration: int,
        *,
        waits: Iterable[int] = (),
        host: int = 0,
        launch: int = 0,
        launch_cost: int = 0,
        gap: int = 0,
        bytes: int = -1,
        kind: Kind = Kind.KERNEL,
    ) -> int:
        """Append a compute kernel (or a copy: ``kind=Kind.COPY``).

        Parameters
        ----------
        name : str
        stream : int
            0 and up.
        duration : int
            Device time in ps.
        bytes : int
            Of a copy; -1: unknown.
        kind : Kind
            KERNEL or COPY.
        """
        return self._append(
            kind,
            name,
            waits,
            stream=stream,
            duration=duration,
            host=host,
            launch=launch,
            launch_cost=launch_cost,
            gap=gap,
            bytes=bytes,
        )

    def collective(
        self,
        operation: Operation,
        slot: int,
        stream: int,
        bytes: int,
        *,
        duration: int = UNPRICED,
        name: str | None = None,
        waits: Iterable[int] = (),
        host: int = 0,
        launch: int = 0,
        launch_cost: int = 0,
        gap: int = 0,
        flags: Flag = Flag.NONE,
    ) -> int:
        """Append a collective on a communicator slot.

        Parameters
        ----------
        operation : Operation
        slot : int
            0 and up; each rank binds it to a communicator.
        stream : int
            0 and up.
        bytes : int
            Size of the message; -1: unknown.
        duration : int
            Wire time in ps; by default the network model prices it.
        name : str, optional
            By default that of the operation in small letters.
        flags : Flag
        """
        name = operation.name.lower() if name is None else name
        return self._append(
            Kind.COLLECTIVE,
            name,
            waits,
            stream=stream,
            duration=duration,
            host=host,
            launch=launch,
            launch_cost=launch_cost,
            gap=gap,
            bytes=bytes,
            slot=slot,
            operation=operation,
            flags=flags,
        )

    def point_to_point(
        self,
        kind: Kind,
        slot: int,
        stream: int,
        bytes: int,
        *,
        duration: int = UNPRICED,
        name: str | None = None,
        waits: Iterable[int] = (),
        host: int = 0,
        launch: int = 0,
        launch_cost: int = 0,
        gap: int = 0,
        flags: Flag = Flag.NONE,
    ) -> int:
        """Append one half of a send/receive pair: `kind` is Kind.SEND or Kind.RECV.

        ``flags=Flag.JOINED`` puts it in one batch with the row before it.

        Parameters
        ----------
        kind : Kind
        slot : int
            As of `collective`, with two members: sender and receiver.
        stream, bytes, duration, flags
            As of `collective`.
        name : str, optional
            By default ``send`` or ``recv``.
        """
        name = kind.name.lower() if name is None else name
        return self._append(
            kind,
            name,
            waits,
            stream=stream,
            duration=duration,
            host=host,
            launch=launch,
            launch_cost=launch_cost,
            gap=gap,
            bytes=bytes,
            slot=slot,
            operation=Operation.SEND_RECV,
            flags=flags,
        )

    def host(self, duration: int, name: str = "host") -> int:
        """Append CPU work that launches nothing, in ps.

        Parameters
        ----------
        duration : int
            CPU time in ps.
        name : str
        """
        return self._append(Kind.HOST, name, (), host=duration)

    def host_wait(
        self, waits: Iterable[int], *, host: int = 0, tail: int = 0, name: str = "wait"
    ) -> int:
        """Append a wait of the CPU for device rows; `tail` is its CPU time after they ended.

        Parameters
        ----------
        waits : iterable of int
            Numbers of earlier device rows.
        host : int
            CPU time before the waiting call starts, in ps.
        tail : int
            In ps.
        name : str
        """
        return self._append(Kind.HOST_WAIT, name, waits, host=host, launch_cost=tail)

    def _append(
        self,
        kind: Kind,
        name: str,
        waits: Iterable[int],
        *,
        stream: int = -1,
        flags: int = 0,
        operation: int = Operation.NONE,
        slot: int = -1,
        host: int = 0,
        launch: int = 0,
        launch_cost: int = 0,
        gap: int = 0,
        duration: int = 0,
        bytes: int = -1,
    ) -> int:
        # In the order of COLUMNS: a generator appends millions of rows.
        self._rows.append(
            (
                int(kind),
                stream,
                int(flags),
                int(operation),
                slot,
                host,
                launch,
                launch_cost,
                gap,
                duration,
                bytes,
                self.names[name],
            )
        )
        before = len(self._awaited)
        self._awaited.extend(waits)
        self._counts.append(len(self._awaited) - before)
        return len(self._rows) - 1

    def repeat(self, times: int) -> int:
        """Append `times` copies of the latest row, without its waits.

        Returns
        -------
        int
            Number of the last row.
        """
        self._rows.extend(self._rows[-1:] * times)
        self._counts.extend([0] * times)
        return len(self._rows) - 1

    def mark(self) -> Mark:
        """Return the current position in the table, for `repeat_layer`."""
        return Mark(len(self._rows), len(self._awaited), len(self._tagged))

    def repeat_layer(self, since: Mark, layers: Sequence[int]) -> None:
        """Append a copy of the rows since a mark for each further layer, with their waits.

        Parameters
        ----------
        since : Mark
            Right before the tag of the layer was set.
        layers : sequence of int
            Tags of the copies, one or more. Rows waited for are as far before each copy as they are
            before the rows copied; negative numbers stay.
        """
        n, times = len(self._rows) - since.rows, len(layers)
        at_layer = list(self._tags).index("layer")
        tagged = self._tagged[since.tagged :]
        for i, layer in enumerate(layers):
            for row, tags in tagged:
                with_layer = (*tags[:at_layer], layer, *tags[at_layer + 1 :])
                self._tagged.append((row + (i + 1) * n, with_layer))
        self._tags["layer"] = int(layers[-1])
        self._rows.extend(self._rows[since.rows :] * times)
        self._counts.extend(self._counts[since.rows :] * times)
        awaited = self._awaited[since.awaited :]
        for moved in range(n, (times + 1) * n, n):
            self._awaited.extend([row + moved if row >= 0 else row for row in awaited])

    def untagged(self) -> tuple[list[tuple[int, ...]], list[list[int]]]:
        """Return rows without their tags, and the rows that each waits for, for `extend`."""
        awaited = iter(self._awaited)
        return list(self._rows), [list(islice(awaited, count)) for count in self._counts]

    def extend(
        self, rows: Iterable[tuple[int, ...]], counts: Iterable[int], awaited: Iterable[int]
    ) -> None:
        """Append the `untagged` rows of a builder that shares names, with the tags of this one.

        Parameters
        ----------
        rows : iterable of tuple of int
        counts : iterable of int
            Number of rows that each waits for.
        awaited : iterable of int
            The rows waited for, one after another.
        """
        self._rows.extend(rows)
        self._counts.extend(counts)
        self._awaited.extend(awaited)

    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the appended rows as arrays, unchecked.

        Returns
        -------
        values : int64, shape (n, len(COLUMNS))
        wait_index : int64, shape (n + 1,)
        wait_row : int64
            Negative numbers, whose meaning only the caller knows, are left as they are.
        """
        found: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] = rows_as_arrays(
            self._rows, self._tagged, self._counts, self._awaited, len(COLUMNS), _FLAGS, _JOINED
        )
        return found

    def build(self, queue_depth: int = 0) -> Table:
        """Return the table.

        Raises
        ------
        ProgramError
            On a row that no rank could execute.
        """
        values, wait_index, wait_row = self.rows()
        return Table(
            **columns_of(values, self.label),
            wait_index=wait_index,
            wait_row=wait_row.astype(np.int32),
            queue_depth=queue_depth,
            label=self.label,
        )


def columns_of(values: NDArray[np.int64], label: str = "") -> dict[str, Any]:
    """Rows as one array → the columns of a table.

    Parameters
    ----------
    values : int64, shape (n, len(COLUMNS))
    label : str
        Of the table, for messages.

    Raises
    ------
    ProgramError
        For a value that its column cannot hold.
    """
    columns = np.ascontiguousarray(values.T)
    _check_ranges(columns, label)
    return {
        column: each.astype(dtype)
        for each, (column, dtype) in zip(columns, COLUMNS.items(), strict=True)
    }


def _check_ranges(columns: NDArray[np.int64], label: str) -> None:
    """Refuse values that do not fit into the types of their columns."""
    lowest, highest = columns.min(axis=1, initial=0), columns.max(axis=1, initial=0)
    for i in np.flatnonzero((lowest < _LOWEST) | (highest > _HIGHEST))[:1].tolist():
        column, least, most = [*COLUMNS][i], _LOWEST[i], _HIGHEST[i]
        row = int(np.argmax((columns[i] < least) | (columns[i] > most)))
        raise ProgramError(
            f"table {label!r}, row {row}: {column} is {columns[i, row]}; it must be "
            f"from {least} to {most}"
        )
