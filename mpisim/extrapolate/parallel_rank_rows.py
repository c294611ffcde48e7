"""A rank of the new pipeline → its rows: copies of recorded ones, in the recorded order.

Rows of passes come from the recorded stage that had the layer; what is before a stage's first and
behind its last pass (gradients set to zero, reductions, the optimizer) goes with its share of the
parameters. The order is that of 1F1B (Megatron-LM's
``forward_backward_pipelining_without_interleaving``) or of GPipe. Messages are copies of recorded
ones, of the same place in the schedule; what leaves the recorded nodes, or has other bytes, is left
for the network to price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..program import COLUMNS, UNPRICED, Kind, Table
from .parallel_order import stage_order
from .parallel_partition import StagePartition
from .parallel_passes import RecordedStage

__all__ = ["RankRows"]

BUFFER_ALIGNMENT = 64
"""Bytes to a multiple of which the new sizes of buffers are rounded: whole elements of any type.
Megatron-LM pads to 64 elements and more (param_and_grad_buffer.py); in buckets of MiB neither
shows."""

ROUNDING = 1e-9
"""Relative: shares of bytes that differ by less are equal, in floating point."""

NO_ROW = -1

TENSOR_KERNELS = 4
"""Kernels of one name in a row, from which on they are taken for one a tensor (or a chunk of
tensors, as of apex's multi_tensor_apply), so that their number goes with the parameters. An
assumption: fewer are kept as they are, each with more or less work."""


class RankRows:
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
        self.is_first, self.is_last = self.stage == 0, self.stage == partition.stages - 1
        self.source = partition.of_rank[partition.rank_at[tuple(self.recorded_place())]]
        self.share = partition.gradient_bytes(self.stage) / self.source.reduced
        each = partition.layers // partition.stages
        self.layers = range(self.stage * each, (self.stage + 1) * each)
        self.rows: list[dict[str, Any]] = []
        self.waits: list[list[int]] = []
        self.slots: list[tuple[Any, ...]] = []
        self.latest: dict[tuple[Any, ...], int] = {}
        """Stream → its latest row."""
        self.message = self.bulk = NO_ROW
        """The latest message, and the latest large communication over replicas."""
        self.gathers = self._cut(self.source.gathers)
        self.reduces = self._cut(self.source.reduces)
        self.launched: list[int] = []
        """New rows of those of `gathers` that are written."""
        self.reduces_written = 0
        """How many of `reduces` are written."""

    def recorded_place(self, stage: int | None = None) -> list[int]:
        """Place of the recorded rank that this one takes a stage's rows from.

        Of what is besides layers: the first, the last, or one between; of two the first.
        """
        partition = self.partition
        if stage is None:
            middle = 1 if partition.recorded_stages > 2 else 0
            stage = (
                0 if self.is_first else partition.recorded_stages - 1 if self.is_last else middle
            )
        return [stage if i == partition.pp else at for i, at in enumerate(self.place)]

    def recorded(self, stage: int) -> RecordedStage:
        """What the rank at the same place of another recorded stage did."""
        return self.partition.of_rank[self.partition.rank_at[tuple(self.recorded_place(stage))]]

    # --- in order -----------------------------------------------------------------------------

    def write(self) -> None:
        """Write all rows."""
        partition, source = self.partition, self.source
        self._outside_passes(source.prologue)
        if self.recorded(partition.recorded_stages - 1).gathers_early:
            for _ in self.gathers[: source.ahead]:
                self._gather()
        order = stage_order(
            partition.schedule,
            self.stage,
            partition.stages,
            partition.micro_batches,
            source.fused,
        )
        for unit in order:
            if isinstance(unit, tuple):
                self._messages(unit)
            elif unit > 0:
                self._forward(unit - 1)
            else:
                self._backward(-unit - 1)
        self._outside_passes(source.epilogue)

    def _forward(self, micro_batch: int) -> None:
        partition, source = self.partition, self.source
        done = partition.gradients.first if self.is_first else 0.0
        received = [] if self.is_first else [self.message]
        if self.is_first or source.stage:
            needed = self._parameters(micro_batch, done)
            self._block(source, source.passes[micro_batch + 1].before, [*needed, *received])
        for layer in self.layers:
            stage, number = partition.owner[layer]
            own = self.recorded(stage)
            done += partition.gradients.layer
            needed = self._parameters(micro_batch, done)
            rows = own.passes[micro_batch + 1].layers[number]
            self._block(own, rows, [*needed, *received])
            received = []
        if self.is_last:
            needed = self._parameters(micro_batch, partition.gradient_bytes(self.stage))
            self._block(source, source.passes[micro_batch + 1].behind, needed)

    def _backward(self, micro_batch: int) -> None:
        partition = self.partition
        done = partition.gradients.last if self.is_last else 0.0
        if self.is_last:  # the head's, where the schedule runs it apart from the forward
            self._block(self.source, self.source.passes[-micro_batch - 1].before, [])
        self._reduce(micro_batch, done)
        for layer in reversed(self.layers):
            stage, number = partition.owner[layer]
            own = self.recorded(stage)
            begins = layer == self.layers[-1] and not self.is_last
            after = [self.message] if begins else []
            rows = own.passes[-micro_batch - 1].layers[own.layers - 1 - number]
            self._block(own, rows, after)
            done += partition.gradients.layer
            self._reduce(micro_batch, done)
        if self.is_first or self.source.stage:
            self._block(self.source, self.source.passes[-micro_batch - 1].behind, [])
        self._reduce(micro_batch, partition.gradient_bytes(self.stage))

    # --- communications over replicas -----------------------------------------------------------

    def _gather(self) -> None:
        row, size = self.gathers[len(self.launched)]
        self.launched.append(self._copied(self.source, row, {}, bytes=size, duration=UNPRICED))

    def _parameters(self, micro_batch: int, upto: float) -> list[int]:
        """Return the gather that brings a stage's parameters up to some bytes."""
        count = len(self.gathers)
        if micro_batch or not count:
            return []
        share = upto / self.partition.gradient_bytes(self.stage) * (1 - ROUNDING)
        bucket = min(count - 1, int(share * count))
        while len(self.launched) < min(bucket + self.source.ahead, count):
            self._gather()
        return [self.launched[bucket]]

    def _reduce(self, micro_batch: int, upto: float) -> None:
        """Reduce the gradients that are complete, in the last backward."""
        if micro_batch < self.partition.micro_batches - 1:
            return
        source, count = self.source, len(self.reduces)
        share = upto / self.partition.gradient_bytes(self.stage) * (1 + ROUNDING)
        while self.reduces_written < count and share >= (self.reduces_written + 1) / count:
            row, size = self.reduces[self.reduces_written]
            more = self.share * len(source.reduces) / count
            for run in _runs(source.table, source.helpers.get(row, [])):
                self._run(run, {}, more)
            self.bulk = self._copied(source, row, {}, bytes=size, duration=UNPRICED)
            self.reduces_written += 1

    def _cut(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Recorded communications of parameters → as many as a share has, with their bytes."""
        if not rows:
            return []
        total = int(self.source.table.bytes[list(rows)].sum()) * self.share
        count = max(1, round(len(rows) * self.share))
        picked = [rows[i * len(rows) // count] for i in range(count)]
        return [
            (row, max(1, round(total / count / BUFFER_ALIGNMENT)) * BUFFER_ALIGNMENT)
            for row in picked
        ]

    # --- rows -------------------------------------------------------------------------------------

    def _outside_passes(self, rows: Sequence[int]) -> None:
        """Write rows besides passes, at this stage's share of the parameters."""
        source, table = self.source, self.source.table
        here: dict[int, int] = {}
        bulk = [row for row in rows if row in source.bulk]
        gathers = [row for row in bulk if row in source.bulk_gathers]
        reduces = [row for row in bulk if row not in source.bulk_gathers]
        inner = not (self.is_first or self.is_last)
        i = 0
        while i < len(rows):
            row = rows[i]
            run = i + 1
            if row in source.bulk:  # as many as the share has, where the first of them is
                for own in (gathers, reduces):
                    for of, size in self._cut(own) if own[:1] == [row] else ():
                        self.bulk = self._copied(source, of, here, bytes=size, duration=UNPRICED)
            elif row in source.ends and inner:
                pass
            elif table.slot[row] >= 0 and source.is_inside(row):
                size = round(int(table.bytes[row]) * len(self.layers) / source.layers)
                here[row] = self._copied(source, row, here, bytes=size, duration=UNPRICED)
            elif table.kind[row] != Kind.KERNEL:
                here[row] = self._copied(source, row, here)
            else:
                while run < len(rows) and _alike(table, rows[run], row):
                    run += 1
                here |= self._run(rows[i:run], here, self.share)
            i = run

    def _run(self, rows: Sequence[int], here: Mapping[int, int], share: float) -> dict[int, int]:
        """Write kernels of one name in a row: as many as a share has, if they are many."""
        count = len(rows)
        kept = max(1, round(count * share)) if count >= TENSOR_KERNELS else count
        written: dict[int, int] = {}
        for k in range(kept):
            of = rows[k * count // kept]
            duration = self._time(of, share * count / kept)
            written[of] = self._copied(self.source, of, {**here, **written}, duration=duration)
        return {**written, rows[-1]: len(self.rows) - 1}

    def _time(self, row: int, share: float) -> int:
        """Time of a kernel of `source` that does a share of its work."""
        own = int(self.source.table.duration[row])
        fixed = min(own, self.partition.floor)
        return fixed + round((own - fixed) * share)

    def _block(self, own: RecordedStage, rows: Sequence[int], after: Sequence[int]) -> None:
        """Write rows of a pass, its first kernel behind some others."""
        here: dict[int, int] = {}
        before = dict(self.latest)
        waits = {row for row in after if row != NO_ROW}
        for row in rows:
            copy = here[row] = self._copied(own, row, here, before=before)
            if waits and own.table.kind[row] == Kind.KERNEL:
                self.waits[copy] = sorted(waits.union(self.waits[copy]))
                waits = set()

    def _messages(self, unit: tuple[str, ...]) -> None:
        """Write messages to and from neighbours, and the waits of the CPU for them."""
        places = (self.recorded_place()[self.partition.pp], *range(self.partition.recorded_stages))
        own = next((o for o in map(self.recorded, places) if o.units.get(unit)), None)
        if own is None:
            raise InputError(
                f"--pp: no recorded rank exchanges {' and '.join(unit)} at once, as a new stage "
                "does; record more micro-batches"
            )
        times = own.units[unit]
        here: dict[int, int] = {}
        before = dict(self.latest)
        for row in times[len(times) // 2]:
            token = own.token.get(row)
            here[row] = self._copied(own, row, here, before=before, token=token)
            if token is not None:
                self.message = here[row]

    def _copied(
        self,
        own: RecordedStage,
        row: int,
        here: Mapping[int, int],
        *,
        before: Mapping[tuple[Any, ...], int] | None = None,
        token: str | None = None,
        **changes: int,
    ) -> int:
        """Write a copy of a recorded row, and return its number."""
        table, number = own.table, len(self.rows)
        values = {name: getattr(table, name)[row] for name in COLUMNS}
        values |= changes
        stream = own.stream_key(row)
        if table.slot[row] >= 0:
            key, old = self._group(own, row, token)
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
        self, own: RecordedStage, row: int, token: str | None
    ) -> tuple[tuple[Any, ...], list[int]]:
        """Identity of a row's communicator in the new job, and its members in the recording."""
        structure = self.partition.structure
        c = int(own.slots[own.table.slot[row]])
        old = list(self.partition.recorded.communicators.group(c))
        if token is not None:
            to = self.stage + (1 if token in ("send forward", "receive backward") else -1)
            way = "on" if token in ("send forward", "receive forward") else "back"
            pair = min(self.stage, to)
            fixed = [at for i, at in enumerate(self.place) if i != self.partition.pp]
            return (way, pair, *fixed), old
        spans = structure.spans[c]
        names = "-".join(axis.name for axis, s in zip(structure.axes, spans, strict=True) if s)
        fixed = [at for at, s in zip(self.place, spans, strict=True) if not s]
        return (names or "alone", own.ordinal(int(own.table.slot[row])), *fixed), old

    def _new_ranks(self, key: tuple[Any, ...]) -> list[int]:
        """Ranks of the new job that a communicator has."""
        axes, pp = self.partition.axes, self.partition.pp
        if key[0] in ("on", "back"):
            stride = axes[pp].stride
            here = self.rank + (key[1] - self.stage) * stride
            return [here, here + stride]
        names = key[0].split("-")
        found = [self.rank]
        for axis, at in zip(axes, self.place, strict=True):
            if axis.name in names:
                found = [r + (k - at) * axis.stride for r in found for k in range(axis.size)]
        return found

    def table(self) -> Table:
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
            queue_depth=self.source.table.queue_depth,
            label=f"rank {self.rank}",
        )


def _runs(table: Table, rows: Sequence[int]) -> list[list[int]]:
    """Rows → those of one name that follow each other."""
    found: list[list[int]] = []
    for row in rows:
        if found and _alike(table, found[-1][0], row):
            found[-1].append(row)
        else:
            found.append([row])
    return found


def _alike(table: Table, one: int, other: int) -> bool:
    return bool(
        table.kind[one] == table.kind[other]
        and table.name[one] == table.name[other]
        and table.stream[one] == table.stream[other]
    )
