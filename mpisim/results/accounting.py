"""Accounting: the time of a step by what each rank did, exact to the picosecond.

At any time of the step the device of a rank is in one of four states, the first that applies:

- **compute**: a kernel or a copy runs. Copies are work of the device: if they were idle time, the
  host would be blamed for them. ``copy`` is the part of compute in which only copies run.
- **exposed wire**: a communication moves data and nothing computes.
- **exposed waiting**: a communication occupies a stream and waits for other members; nothing
  computes and nothing moves.
- **idle**: nothing runs, also before the rank's start and after its end, and while the host alone
  works, at the batch of the next step.

Exposed communication is the sum of the second and the third, so that compute + exposed
communication + idle is the step time, exactly, in integers. ``communication`` is the whole time
in which some communication ran, hidden or not.

`mpisim.results.step_parts` says how these are divided further: compute by phase, exposed
communication by kind of communicator.

Ranks are accounted for a few at a time, side by side, since the rows of all may not fit into
memory; ranks with identical timelines once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import dense
from ..engine._core import Ledger
from ..engine.refine import ranges
from ..engine.run import Run
from ..program import Flag, Kind, Table
from .step_parts import PartLayout

__all__ = ["BREAKDOWN", "Accounts", "RowAccounts", "account", "added_up"]

BREAKDOWN = (
    "compute",
    "copy",
    "communication",
    "exposed",
    "exposed_wire",
    "exposed_waiting",
    "idle",
    "host_busy",
    "host_waiting",
)
"""Columns of a breakdown; compute + exposed + idle = step time, exposed = wire + waiting."""


class Accounts(NamedTuple):
    """Accounts of the ranks hosted here.

    Attributes
    ----------
    breakdown : int64, shape (h, len(BREAKDOWN))
        ps, one row a hosted rank, in the columns `BREAKDOWN`.
    kernels : int64, shape (k, 5)
        KERNEL and COPY rows: (kind, name, count, total ps, longest ps), by kind and name.
    communications : int64, shape (k, 8)
        Rows (communicator, operation, rows, wire ps, waiting ps, rows of known size, their bytes,
        their wire ps); a communication of n members is n rows.
    parts : int64, shape (m, n_parts + 1)
        ps of each part of the step (`PartLayout`) and of idle time, one row for each of
        `Run.simulated`.
    """

    breakdown: NDArray[np.int64]
    kernels: NDArray[np.int64]
    communications: NDArray[np.int64]
    parts: NDArray[np.int64]


def account(run: Run, names: NDArray[np.int64], n_names: int, layout: PartLayout) -> Accounts:
    """Run → accounts of the step of every rank hosted here.

    Local.

    Parameters
    ----------
    run : Run
    names : int64, shape (len(run.program.names),)
        The number of each name, equal on all processes.
    n_names : int
        Number of distinct names.
    layout : PartLayout
        Of the program.
    """
    program = run.program
    first, number = np.unique(run.identical, return_inverse=True)
    # Structure by structure: columns serve all ranks whose tables differ in durations alone.
    numbers: dict[tuple[Table, bytes], int] = {}
    of_table = [
        -1 if t is None else numbers.setdefault((t.structure, kinds.tobytes()), len(numbers))
        for t, kinds in zip(program.tables, layout.of_slot, strict=True)
    ]
    structures = np.array(of_table)[program.table[run.hosted[run.simulated[first]]]]
    order = np.argsort(structures, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    accounted_by = place[number][run.simulated_by]  # which account is that of each hosted rank
    n_ranks = np.bincount(accounted_by, minlength=len(first))
    breakdown, parts = [np.zeros((0, len(BREAKDOWN)), np.int64)], [_no_parts(layout)]
    kernels, communications = [], []
    counts: list[int] = []  # communications of each
    at = 0
    for key, n in zip(numbers, np.bincount(structures, minlength=len(numbers)).tolist()):
        if not n:
            continue
        structure, kinds = key[0], np.frombuffer(key[1], np.uint8)
        columns = _TableColumns(structure, layout, kinds)
        ranks = run.simulated[first[order[at : at + n]]]
        covered, sums, host_end = run.accounts(ranks, columns.ledger, run.step_time)
        waited = host_end - program.start[run.hosted[ranks]] - columns.host_busy
        breakdown.append(_breakdown(covered, run.step_time, columns.host_busy, waited, layout))
        parts.append(_parts(covered, run.step_time))
        weight = n_ranks[at : at + n]
        total, longest = weight @ sums[:, 0], sums[:, 2].max(axis=0)
        kernels.append(columns.kernels(total, longest, weight.sum(), names))
        communications.append(columns.communications(sums[:, 0], sums[:, 1]))
        counts += [len(communications[-1]) // n] * n
        at += n
    return Accounts(
        breakdown=np.concatenate(breakdown)[accounted_by],
        kernels=_kernels(kernels, n_names),
        communications=_communications(run, communications, np.cumsum([0, *counts]), accounted_by),
        parts=np.concatenate(parts)[place[number]],
    )


def _breakdown(
    covered: NDArray[np.int64],
    until: int,
    busy: int,
    waited: NDArray[np.int64],
    layout: PartLayout,
) -> NDArray[np.int64]:
    """Return rows of `Accounts.breakdown`, given what a `Ledger` has found."""
    n_compute, n_kinds = layout.n_compute, len(layout.kinds)
    copies = covered[:, n_compute - 1]
    computing, wire, waiting = (
        covered[:, first : first + n].sum(axis=1)
        for first, n in ((0, n_compute), (n_compute, n_kinds), (n_compute + n_kinds, n_kinds))
    )
    columns = (
        computing,
        copies,
        covered[:, -1],
        wire + waiting,
        wire,
        waiting,
        until - computing - wire - waiting,
        np.full(len(waited), busy),
        waited,
    )
    return np.stack(columns, axis=1)


def _no_parts(layout: PartLayout) -> NDArray[np.int64]:
    """Return `Accounts.parts` of no ranks."""
    return np.zeros((0, layout.n_parts + 1), np.int64)


def _parts(covered: NDArray[np.int64], until: int) -> NDArray[np.int64]:
    """Return rows of `Accounts.parts`, given what a `Ledger` has found."""
    found = covered.copy()
    found[:, -1] = until - covered[:, :-1].sum(axis=1)
    return found


class RowAccounts:
    """Accounts of parts of ranks, whose rows are given one rank after another.

    Parameters
    ----------
    names : int64, shape (n,)
        The number of each name that all processes use.
    n_names : int
    layout : PartLayout
        Of the program.
    """

    def __init__(self, names: NDArray[np.int64], n_names: int, layout: PartLayout) -> None:
        self._names, self._n_names, self._layout = names, n_names, layout
        self._breakdown = [np.zeros((0, len(BREAKDOWN)), np.int64)]
        self._parts = [_no_parts(layout)]
        self._kernels: list[NDArray[np.int64]] = []
        self._communications: list[NDArray[np.int64]] = []

    @staticmethod
    def busy(table: Table, rows: slice) -> int:
        """Return the CPU time of some rows, in ps.

        Parameters
        ----------
        table : Table
        rows : slice
            Their numbers. Waits of the CPU count with their tail, without the waiting itself.
        """
        joined = (table.flags[rows] & Flag.JOINED) != 0
        called = np.where(table.kind[rows] == Kind.HOST, 0, table.launch_cost[rows])
        return int(np.where(joined, 0, table.host[rows] + called).sum())

    def add(
        self,
        table: Table,
        kinds: NDArray[np.uint8],
        rows: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
        until: int,
        own: NDArray[np.bool_],
        busy: int,
        waited: int,
    ) -> None:
        """Add a rank.

        Parameters
        ----------
        table : Table
        kinds : uint8, shape (at least its slots,)
            Of what its slots are bound to: a row of `PartLayout.of_slot`.
        rows : tuple of int64, shape (n,)
            Begin, end and wire of its rows, in ps from the begin of the part.
        until : int
            The end of the part, in ps.
        own : bool, shape (n,)
            Rows whose kernels and communications count.
        busy, waited : int
            CPU time of work and of waiting, in ps.
        """
        layout = self._layout
        covered, _ = _TableColumns(table, layout, kinds).ledger.of_rows(*rows, until)
        self._breakdown.append(_breakdown(covered[None], until, busy, np.array([waited]), layout))
        self._parts.append(_parts(covered[None], until))
        columns = _TableColumns(table, layout, kinds, own)
        _, sums = columns.ledger.of_rows(*rows, until)
        self._kernels.append(columns.kernels(sums[0], sums[2], 1, self._names))
        self._communications.append(columns.communications(sums[:1], sums[1:2]))

    def add_like(self, rank: int) -> None:
        """Add a rank that does the same at the same times as one added before.

        Parameters
        ----------
        rank : int
            Its number among those added.
        """
        for accounts in (self._kernels, self._communications):
            accounts.append(accounts[rank])
        for accounts in (self._breakdown, self._parts):  # which begin with none
            accounts.append(accounts[rank + 1])

    def joined(self, run: Run) -> Accounts:
        """Return the accounts of all ranks added, which are those hosted here, in their order."""
        index = np.cumsum([0, *map(len, self._communications)])
        own = np.arange(len(run.hosted))
        return Accounts(
            breakdown=np.concatenate(self._breakdown),
            kernels=_kernels(self._kernels, self._n_names),
            communications=_communications(run, self._communications, index, own),
            parts=np.concatenate(self._parts)[run.simulated],
        )


class _TableColumns:
    """Columns of a table for the accounts of all its ranks.

    Device rows are counted by key: kernels by kind and name, communications by slot, operation and
    whether their size is known; a key's first row says which.
    """

    def __init__(
        self,
        table: Table,
        layout: PartLayout,
        kinds: NDArray[np.uint8],
        chosen: NDArray[np.bool_] | None = None,
    ) -> None:
        device = np.flatnonzero(table.is_device if chosen is None else table.is_device & chosen)
        device = device[np.argsort(table.stream[device], kind="stable")].astype(np.int32)
        new = np.flatnonzero(np.diff(table.stream[device])) + 1
        stream_index = np.concatenate([[0], new, [len(device)]]).astype(np.int64)
        is_kernel = table.kind[device] <= Kind.COPY
        known = table.bytes[device] >= 0
        which = np.where(is_kernel, table.name[device], table.slot[device]).astype(np.int64)
        operation = table.operation[device].astype(np.int64)
        how = np.where(is_kernel, table.kind[device], 2 * operation + known)
        # One number for each key: sorting rows of columns takes ten times as long.
        packed = (which << 10) + (how << 1) + is_kernel
        _, first, key, self._count = np.unique(
            packed, return_index=True, return_inverse=True, return_counts=True
        )
        self._table, self._first = table, device[first]
        n_keys = len(first)
        key_of = np.zeros(len(table), np.int32)
        key_of[device] = key
        part, waiting = layout.of_rows(table, kinds)
        self.ledger = Ledger(
            device, stream_index, part, waiting, key_of, n_keys,
            layout.n_parts, layout.n_compute, layout.n_device,
        )  # fmt: skip
        self._bytes = np.zeros(n_keys, np.int64)
        np.add.at(self._bytes, key, np.where(known, table.bytes[device], 0))
        self._is_kernel = is_kernel[first]
        self.host_busy = RowAccounts.busy(table, slice(None))

    def kernels(
        self,
        total: NDArray[np.int64],
        longest: NDArray[np.int64],
        ranks: int,
        names: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return rows of `Accounts.kernels` for that many ranks."""
        these, first = self._is_kernel, self._first[self._is_kernel]
        kind, name = self._table.kind[first], names[self._table.name[first]]
        count = self._count[these] * ranks
        return np.stack([kind, name, count, total[these], longest[these]], axis=1)

    def communications(
        self, wire: NDArray[np.int64], waiting: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return rows of `Accounts.communications` of m ranks, one after another, with slots.

        Parameters
        ----------
        wire, waiting : int64, shape (m, n_keys)
        """
        these, first = ~self._is_kernel, self._first[~self._is_kernel]
        slot, operation = self._table.slot[first], self._table.operation[first]
        known = self._table.bytes[first] >= 0
        count, wire = self._count[these], wire[:, these]
        rows = (
            slot,
            operation,
            count,
            wire,
            waiting[:, these],
            known * count,
            self._bytes[these],
            known * wire,
        )
        found = np.empty((*wire.shape, len(rows)), np.int64)
        for i, column in enumerate(rows):
            found[:, :, i] = column
        return found.reshape(-1, len(rows))


def _kernels(parts: list[NDArray[np.int64]], n_names: int) -> NDArray[np.int64]:
    """Join kernels of the same kind and name."""
    rows = np.concatenate([np.zeros((0, 5), np.int64), *parts])
    key = rows[:, 0] * n_names + rows[:, 1]
    order = np.argsort(key, kind="stable")
    rows = rows[order]
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    if not len(first):
        return rows
    sums = np.add.reduceat(rows[:, 2:4], first, axis=0)
    longest = np.maximum.reduceat(rows[:, 4:], first, axis=0)
    return np.concatenate([rows[first, :2], sums, longest], axis=1)


def _communications(
    run: Run,
    parts: list[NDArray[np.int64]],
    index: NDArray[np.int64],
    accounted_by: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Join the rows of ranks on the same communicator; ranks of one account bind their own."""
    at, owner = ranges(index, accounted_by)
    rows = np.concatenate([np.zeros((0, 8), np.int64), *parts])
    program = run.program
    slot = program.slot_index[run.hosted[owner]] + rows[:, 0][at]
    return _summed(program.slots[slot].astype(np.int64), rows[:, 1:].T, at)


def added_up(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add up rows that agree in the first two columns (at least 0); the result is in their order.

    Examples
    --------
    >>> added_up(np.array([[1, 0, 5], [0, 9, 1], [1, 0, 7]])).tolist()
    [[0, 9, 1], [1, 0, 12]]
    """
    if not len(rows):
        return rows
    key = rows[:, 0] * (rows[:, 1].max() + 1) + rows[:, 1]
    if (key[1:] > key[:-1]).all():  # those of one process
        return rows
    return _summed(rows[:, 0], rows[:, 1:].T, np.arange(len(rows)))


def _summed(
    first: NDArray[np.int64], others: NDArray[np.int64], at: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Add up rows that agree in the first two columns (at least 0), in their order.

    A run of many ranks has a million rows, made of few: column after column takes least memory.

    Parameters
    ----------
    first : int64, shape (m,)
        The first column.
    others : int64, shape (k, n)
        The other columns of distinct rows.
    at : int64, shape (m,)
        The row of `others` that continues each of `first`.

    Returns
    -------
    int64, shape (distinct pairs, k + 1)
    """
    span = int(others[0].max(initial=0)) + 1
    number, n = dense(first * span + others[0][at])
    found = np.empty((n, len(others) + 1), np.int64)
    found[number, 0], found[number, 1] = first, others[0][at]
    for i, column in enumerate(others[1:], 2):
        total = np.zeros(n, np.int64)
        np.add.at(total, number, np.ascontiguousarray(column)[at])
        found[:, i] = total
    return found
