"""Recorded rows → copies of them on a rank of the new job: their waits, streams, communicators.

A copy waits for the copies of what its original waited for. What these are follows from the order
in which rows are copied: those of the same pass by themselves, messages and large communications
over replicas by the latest of them, all others by the latest row of their stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..program import COLUMNS, UNPRICED, Kind, Table
from .parallel_order import Message
from .parallel_partition import StagePartition
from .parallel_recorded import RecordedStage

__all__ = ["DIRECTIONS", "NO_ROW", "CopiedRows"]

NO_ROW = -1

DIRECTIONS = ("forward", "backward")
"""First entries of the identities of pairs of stages."""


class CopiedRows:
    """The rows of one rank of the new job, as they are being written.

    Parameters
    ----------
    partition : StagePartition
    rank : int
        Of the new job.
    place : list of int
        On the axes of the new grid.
    groups : dict of tuple to list of int
        Identity of a communicator → ranks of the new job; this rank is added.

    Attributes
    ----------
    rows : list of dict
        Values of each row, by column.
    waits : list of list of int
        Rows that each waits for.
    slots : list of tuple
        Identities of the communicators that the rank binds.
    latest : dict of tuple to int
        Stream → its latest row.
    message, bulk : int
        The latest message, and the latest large communication over replicas; `NO_ROW` before.
    """

    def __init__(
        self,
        partition: StagePartition,
        rank: int,
        place: list[int],
        groups: dict[tuple[Any, ...], list[int]],
    ) -> None:
        self.partition, self.rank, self.place, self.groups = partition, rank, place, groups
        self.stage = place[partition.pp]
        self.rows: list[dict[str, Any]] = []
        self.waits: list[list[int]] = []
        self.slots: list[tuple[Any, ...]] = []
        self.latest: dict[tuple[Any, ...], int] = {}
        self.message = self.bulk = NO_ROW

    def copy(
        self,
        own: RecordedStage,
        row: int,
        here: Mapping[int, int],
        *,
        before: Mapping[tuple[Any, ...], int] | None = None,
        message: Message | None = None,
        **changes: int,
    ) -> int:
        """Write a copy of a recorded row, and return its number."""
        table, number = own.table, len(self.rows)
        values = {name: getattr(table, name)[row] for name in COLUMNS}
        values |= changes
        stream = own.stream_key(row)
        if table.slot[row] >= 0:
            key, old = self._group(own, row, message)
            if key not in self.slots:
                self.slots.append(key)
                self.groups.setdefault(key, []).append(self.rank)
            values["slot"] = self.slots.index(key)
            if not self.partition.same_place(old, self._new_ranks(key)):
                values["duration"] = UNPRICED
        values["stream"] = stream
        waits = set()
        reached = self.latest if before is None else before
        for wait in own.waits(row):
            if wait in here:
                waits.add(here[wait])
            elif wait in own.token:
                waits.add(self.message)
            elif wait in own.bulk:
                waits.add(self.bulk)
            elif own.stream_key(wait) in reached:
                waits.add(reached[own.stream_key(wait)])
        self.rows.append(values)
        self.waits.append(sorted(waits - {NO_ROW}))
        if table.kind[row] <= Kind.RECV:
            self.latest[stream] = number
        return number

    def _group(
        self, own: RecordedStage, row: int, message: Message | None
    ) -> tuple[tuple[Any, ...], list[int]]:
        """Identity of a row's communicator in the new job, and its members in the recording."""
        structure = self.partition.structure
        c = int(own.slots[own.table.slot[row]])
        old = list(self.partition.recorded.communicators.group(c))
        if message is not None:
            sends, here, there = message.token.startswith("send"), self.stage, message.peer
            pair = (here, there) if sends else (there, here)
            fixed = [at for i, at in enumerate(self.place) if i != self.partition.pp]
            return (message.token.split()[1], *pair, *fixed), old
        spans = structure.spans[c]
        names = "-".join(axis.name for axis, s in zip(structure.axes, spans, strict=True) if s)
        fixed = [at for at, s in zip(self.place, spans, strict=True) if not s]
        return (names or "alone", own.ordinal(int(own.table.slot[row])), *fixed), old

    def _new_ranks(self, key: tuple[Any, ...]) -> list[int]:
        """Ranks of the new job that a communicator has."""
        axes, pp = self.partition.axes, self.partition.pp
        if key[0] in DIRECTIONS:
            stride = axes[pp].stride
            return [self.rank + (stage - self.stage) * stride for stage in key[1:3]]
        names = key[0].split("-")
        found = [self.rank]
        for axis, at in zip(axes, self.place, strict=True):
            if axis.name in names:
                found = [r + (k - at) * axis.stride for r in found for k in range(axis.size)]
        return found

    def table(self, queue_depth: int) -> Table:
        """Rows of the new rank → its `Table` of the program, with streams numbered as they came."""
        streams: dict[tuple[Any, ...], int] = {}
        for values in self.rows:
            key = values["stream"]
            values["stream"] = -1 if key == () else streams.setdefault(key, len(streams))
        columns: dict[str, Any] = {
            name: np.array([values[name] for values in self.rows]) for name in COLUMNS
        }
        return Table(
            **columns,
            wait_index=np.concatenate([[0], np.cumsum([len(each) for each in self.waits])]),
            wait_row=np.array([w for each in self.waits for w in each], np.int32),
            queue_depth=queue_depth,
            label=f"rank {self.rank}",
        )
