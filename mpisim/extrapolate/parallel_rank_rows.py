"""A rank of the new pipeline → its rows: copies of recorded ones, in the recorded order.

Rows of passes come from the recorded stage that had the layer; what is before a stage's first and
behind its last pass (gradients set to zero, reductions, the optimizer) goes with its share of the
parameters. The order is that of a schedule (`parallel_order`). Messages are copies of recorded
ones, of the same place in the schedule; what leaves the recorded nodes, or has other bytes, is left
for the network to price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..base.errors import InputError
from ..program import UNPRICED, Flag, Kind, Table
from .parallel_copies import NO_ROW, CopiedRows
from .parallel_order import Message, Pass
from .parallel_partition import StagePartition
from .parallel_recorded import RecordedPass, RecordedStage

__all__ = ["RankRows"]

BUFFER_ALIGNMENT = 64
"""Bytes to a multiple of which the new sizes of buffers are rounded: whole elements of any type.
Megatron-LM pads to 64 elements and more (param_and_grad_buffer.py); in buckets of MiB neither
shows."""

EQUAL_SHARE_TOLERANCE = 1e-9
"""Relative: shares of bytes that differ by less are equal, in floating point."""

OF_MESSAGE = ("kind", "bytes", "duration", "name", "flags")
OF_LAUNCH = ("host", "launch", "launch_cost", "gap")
"""Columns of a message, and of the launch of a batch of them."""

MIN_EQUAL_KERNELS = 4
"""Kernels of one name in a row, from which on they are taken for one a tensor (or a chunk of
tensors, as of apex's multi_tensor_apply), so that their number goes with the parameters. An
assumption: fewer are kept as they are, each with more or less work."""


class _Shares(NamedTuple):
    """Share that a new stage, or a chunk of one, has of a recorded stage's parameters.

    Attributes
    ----------
    others, experts : float
        Of all but experts, and of these.
    """

    others: float
    experts: float


class _Bucket(NamedTuple):
    """A communication over replicas.

    Attributes
    ----------
    row : int
        The recorded one.
    bytes : int
    upto : float
        Share of a chunk's parameters of which gradients, or parameters, are complete with it.
    work : float
        Of the kernels that make its buffer, over those of the recorded one.
    """

    row: int
    bytes: int
    upto: float
    work: float


@dataclass(eq=False)
class _Chunk:
    """A chunk of a new stage.

    Attributes
    ----------
    part : int
        Of the model, in sequence.
    layers : range
        Of the model, in sequence.
    is_first, is_last : bool
        Whether it has the embedding, or head and loss.
    source, number
        Recorded stage and chunk of which its rows besides layers are.
    follows : bool
        Whether these are of a part behind the first, so that what is before layers is no embedding.
    gathers, reduces : list of _Bucket
        Communications over replicas, as of `source`. Gathers are taken off as they are launched.
    """

    part: int
    layers: range
    is_first: bool
    is_last: bool
    source: RecordedStage
    number: int
    follows: bool
    gathers: list[_Bucket]
    reduces: list[_Bucket]
    gather_count: int = field(init=False)
    reduced: int = 0
    """How many of `reduces` are written."""

    def __post_init__(self) -> None:
        self.gather_count = len(self.gathers)


class RankRows:
    """The rows of one rank of the new job, as they are being written.

    Parameters
    ----------
    partition, rank, place, groups
        As of `CopiedRows`.
    """

    def __init__(
        self,
        partition: StagePartition,
        rank: int,
        place: list[int],
        groups: dict[tuple[Any, ...], list[int]],
    ) -> None:
        self.partition, self.place = partition, place
        self.stage = place[partition.pp]
        self.is_first, self.is_last = self.stage == 0, self.stage == partition.stages - 1
        self.source = partition.of_rank[partition.rank_at[tuple(self.recorded_place())]]
        own, recorded = partition.gradient_bytes(self.stage), self.source.reduced
        self.share = own / recorded
        layers = partition.layers // partition.stages
        self.shares = self._shares(own, recorded, layers, self._recorded_layers(self.source))
        self.chunks = [self._chunk(chunk) for chunk in range(partition.order.chunks)]
        self.copies = CopiedRows(partition, rank, place, groups)
        self.at_pass: dict[tuple[Any, ...], int] = {}
        """As `CopiedRows.latest`, where the latest pass began."""
        self.forward: bool | None = None
        """Whether the latest pass is a forward."""
        self.launched: list[int] = []
        """New rows of the gathers that are written."""

    def _chunk(self, number: int) -> _Chunk:
        """What a chunk of this rank runs, and from where its rows are."""
        partition, before = self.partition, self.partition.before
        part = number * partition.stages + self.stage
        each = partition.layers // partition.order.parts
        is_first, is_last = part == 0, part == partition.order.parts - 1
        middle = 1 if before.parts > 2 else 0
        of = 0 if is_first else before.parts - 1 if is_last else middle
        source = self.recorded(of % before.stages)
        chunk = of // before.stages
        shares = self._shares(
            *(partition.part_bytes(part), partition.recorded_part_bytes(of), each, source.layers)
        )
        layers = range(part * each, (part + 1) * each)
        return _Chunk(
            *(part, layers, is_first, is_last, source, chunk, of > 0),
            self._cut(source, source.gathers[chunk], shares),
            self._cut(source, source.reduces[chunk], shares),
        )

    def _shares(self, new: float, old: float, layers: int, recorded: int) -> _Shares:
        """Bytes of gradients and layers, new and recorded → shares of the parameters."""
        experts = self.partition.gradients.experts
        return _Shares((new - experts * layers) / (old - experts * recorded), layers / recorded)

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
            self._gather_upto(source.ahead)
        for unit in partition.order.of(self.stage):
            if not isinstance(unit, Pass):
                self._messages(unit)
                continue
            self.at_pass, self.forward = dict(self.copies.latest), unit.forward
            if unit.forward:
                self._forward(unit)
            else:
                self._backward(unit)
        self._outside_passes(source.epilogue)

    def table(self) -> Table:
        """Rows that are written → the rank's `Table` of the program."""
        return self.copies.table(self.source.table.queue_depth)

    def _recorded_pass(self, of: Pass, own: RecordedStage, chunk: int) -> RecordedPass:
        """The recorded pass of the same micro-batch and direction."""
        return own.passes[of._replace(chunk=chunk)]

    def _forward(self, unit: Pass) -> None:
        partition, chunk = self.partition, self.chunks[unit.chunk]
        done = partition.gradients.first if chunk.is_first else 0.0
        received = [] if chunk.is_first else [self.copies.message]
        beside = self._recorded_pass(unit, chunk.source, chunk.number)
        if chunk.is_first or chunk.follows:
            needed = self._parameters(unit, done)
            self._block(chunk.source, beside.before, [*needed, *received])
        for layer in chunk.layers:
            stage, number, at = partition.owner[layer]
            own = self.recorded(stage)
            done += partition.gradients.layer
            needed = self._parameters(unit, done)
            rows = self._recorded_pass(unit, own, number).layers[at]
            self._block(own, rows, [*needed, *received])
            received = []
        if chunk.is_last:
            needed = self._parameters(unit, partition.part_bytes(chunk.part))
            self._block(chunk.source, beside.behind, needed)

    def _backward(self, unit: Pass) -> None:
        partition, chunk = self.partition, self.chunks[unit.chunk]
        done = partition.gradients.last if chunk.is_last else 0.0
        beside = self._recorded_pass(unit, chunk.source, chunk.number)
        if chunk.is_last:  # the head's, where the schedule runs it apart from the forward
            self._block(chunk.source, beside.before, [])
        self._reduce(unit, done)
        for layer in reversed(chunk.layers):
            stage, number, at = partition.owner[layer]
            own = self.recorded(stage)
            begins = layer == chunk.layers[-1] and not chunk.is_last
            after = [self.copies.message] if begins else []
            rows = self._recorded_pass(unit, own, number).layers[own.layers - 1 - at]
            self._block(own, rows, after)
            done += partition.gradients.layer
            self._reduce(unit, done)
        if chunk.is_first or chunk.follows:
            self._block(chunk.source, beside.behind, [])
        self._reduce(unit, partition.part_bytes(chunk.part))

    # --- communications over replicas -----------------------------------------------------------

    def _gather_upto(self, count: int) -> None:
        """Launch gathers of parameters, those of the first chunk first, until there are so many."""
        for chunk in self.chunks:
            while chunk.gathers and len(self.launched) < count:
                row, size, *_ = chunk.gathers.pop(0)
                copy = self.copies.copy(chunk.source, row, {}, bytes=size, duration=UNPRICED)
                self.launched.append(copy)

    def _parameters(self, unit: Pass, upto: float) -> list[int]:
        """Return the gather that brings a chunk's parameters up to some bytes."""
        chunk = self.chunks[unit.chunk]
        count = chunk.gather_count
        if unit.micro_batch or not count:
            return []
        share = upto / self.partition.part_bytes(chunk.part) * (1 - EQUAL_SHARE_TOLERANCE)
        before = sum(each.gather_count for each in self.chunks[: unit.chunk])
        bucket = before + min(count - 1, int(share * count))
        self._gather_upto(bucket + self.source.ahead)
        return [self.launched[bucket]]

    def _reduce(self, unit: Pass, upto: float) -> None:
        """Reduce the gradients that are complete, in a chunk's last backward."""
        chunk = self.chunks[unit.chunk]
        if unit.micro_batch < self.partition.order.micro_batches - 1:
            return
        source, count = chunk.source, len(chunk.reduces)
        share = upto / self.partition.part_bytes(chunk.part) * (1 + EQUAL_SHARE_TOLERANCE)
        while chunk.reduced < count and share >= chunk.reduces[chunk.reduced].upto:
            row, size, _, more = chunk.reduces[chunk.reduced]
            for run in _runs(source.table, source.helpers.get(row, [])):
                self._run(source, run, {}, more)
            self.copies.bulk = self.copies.copy(source, row, {}, bytes=size, duration=UNPRICED)
            chunk.reduced += 1

    def _cut(self, source: RecordedStage, rows: Sequence[int], shares: _Shares) -> list[_Bucket]:
        """Recorded communications of parameters → as many as a share has, with their bytes.

        Those of each group of ranks by themselves, in the order in which parameters are complete.
        """
        groups: dict[str, list[int]] = {}
        for row in rows:
            groups.setdefault(source.names[source.table.slot[row]], []).append(row)
        found = []
        for own in groups.values():
            share = shares.experts if source.is_of_experts(own[0]) else shares.others
            total = int(source.table.bytes[own].sum()) * share
            count = max(1, round(len(own) * share))
            size = max(1, round(total / count / BUFFER_ALIGNMENT)) * BUFFER_ALIGNMENT
            work = share * len(own) / count
            found += [
                _Bucket(own[i * len(own) // count], size, (i + 1) / count, work)
                for i in range(count)
            ]
        return sorted(found, key=lambda bucket: bucket.upto)

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
                    for of, size, *_ in (
                        self._cut(source, own, self.shares) if own[:1] == [row] else ()
                    ):
                        self.copies.bulk = self.copies.copy(
                            source, of, here, bytes=size, duration=UNPRICED
                        )
            elif row in source.ends and inner:
                pass
            elif table.slot[row] >= 0 and source.is_inside(row):
                layers = sum(len(chunk.layers) for chunk in self.chunks)
                size = round(int(table.bytes[row]) * layers / self._recorded_layers(source))
                here[row] = self.copies.copy(source, row, here, bytes=size, duration=UNPRICED)
            elif table.kind[row] != Kind.KERNEL:
                here[row] = self.copies.copy(source, row, here)
            else:
                while run < len(rows) and _alike(table, rows[run], row):
                    run += 1
                here |= self._run(source, rows[i:run], here, self.share)
            i = run

    def _recorded_layers(self, source: RecordedStage) -> int:
        return source.layers * self.partition.before.chunks

    def _run(
        self, source: RecordedStage, rows: Sequence[int], here: Mapping[int, int], share: float
    ) -> dict[int, int]:
        """Write kernels of one name in a row: as many as a share has, if they are many."""
        count = len(rows)
        kept = max(1, round(count * share)) if count >= MIN_EQUAL_KERNELS else count
        written: dict[int, int] = {}
        for k in range(kept):
            of = rows[k * count // kept]
            duration = self._time(source, of, share * count / kept)
            written[of] = self.copies.copy(source, of, {**here, **written}, duration=duration)
        return {**written, rows[-1]: len(self.copies.rows) - 1}

    def _time(self, source: RecordedStage, row: int, share: float) -> int:
        """Time of a recorded kernel that does a share of its work."""
        own = int(source.table.duration[row])
        fixed = min(own, self.partition.floor)
        return fixed + round((own - fixed) * share)

    def _block(self, own: RecordedStage, rows: Sequence[int], after: Sequence[int]) -> None:
        """Write rows of a pass, its first kernel behind some others."""
        here: dict[int, int] = {}
        before = dict(self.copies.latest)
        waits = {row for row in after if row != NO_ROW}
        for row in rows:
            copy = here[row] = self.copies.copy(own, row, here, before=before)
            if waits and own.table.kind[row] == Kind.KERNEL:
                self.copies.waits[copy] = sorted(waits.union(self.copies.waits[copy]))
                waits = set()

    def _messages(self, unit: tuple[Message, ...]) -> None:
        """Write messages to and from neighbours, and the waits of the CPU for them."""
        recorded = self._recorded_messages(tuple(sorted(each.token for each in unit)))
        if recorded is None:
            self._regrouped_messages(unit)
            return
        own, rows, behind = recorded
        here: dict[int, int] = {}
        early = rows[0] in own.early if behind is self.forward else self._is_early(unit)
        before = dict(self.at_pass if early else self.copies.latest)
        left = list(unit)
        for row in rows:
            if self.partition.drops_waits and own.table.kind[row] == Kind.HOST_WAIT:
                continue
            token = own.token.get(row)
            message = next((each for each in left if each.token == token), None)
            if message is not None:
                left.remove(message)
            here[row] = self.copies.copy(own, row, here, before=before, message=message)
            if message is not None:
                self.copies.message = here[row]

    def _is_early(self, unit: tuple[Message, ...]) -> bool:
        """Messages that are not recorded behind such a pass → whether they wait for nothing of it.

        A receive that overlaps is posted behind the latest pass of its own direction (Megatron-LM,
        ``overlap_p2p_comm``): before the latest pass where that is of the other. Whether receives
        overlap, those show that are recorded behind a pass of the other direction.
        """
        other = "backward" if self.forward else "forward"
        stages = range(self.partition.recorded_stages)
        return [each.token for each in unit] == [f"receive {other}"] and any(
            self.recorded(stage).receives_early for stage in stages
        )

    def _regrouped_messages(self, unit: tuple[Message, ...]) -> None:
        """Write messages that were exchanged one by one, or with others: launched as these were.

        They are one batch, behind which the CPU waits if it waited for any of them.
        """
        before = dict(self.copies.latest)
        host_wait: tuple[RecordedStage, int] | None = None
        for i, message in enumerate(unit):
            own, rows = self._recorded_with(message)
            row = next(row for row in rows if own.token.get(row) == message.token)
            table, first = own.table, rows[0]  # the launch and its waits are those of the batch
            changes = {name: int(getattr(table, name)[row]) for name in OF_MESSAGE}
            changes["flags"] &= ~int(Flag.JOINED)
            copy = self.copies.copy(own, first, {}, before=before, message=message, **changes)
            if i:
                batch = self.copies.rows[self.copies.message]
                self.copies.rows[copy] |= dict.fromkeys(OF_LAUNCH, 0)
                self.copies.rows[copy] |= {"flags": int(Flag.JOINED), "stream": batch["stream"]}
                self.copies.waits[copy] = []
            self.copies.message = copy
            for each in rows:
                if table.kind[each] == Kind.HOST_WAIT:
                    host_wait = own, each
        if host_wait is not None and not self.partition.drops_waits:
            self.copies.copy(*host_wait, {}, before=before)

    def _recorded_with(self, message: Message) -> tuple[RecordedStage, list[int]]:
        """A message → rows of one time that it was exchanged: by itself, or with others."""
        alone = self._recorded_messages((message.token,))
        if alone is not None:
            return alone[:2]
        for own in map(self.recorded, range(self.partition.recorded_stages)):
            for (tokens, _), times in own.units.items():
                if message.token in tokens:
                    return own, times[len(times) // 2]
        raise InputError(f"--pp or --schedule: no recorded rank does '{message.token}'")

    def _recorded_messages(
        self, tokens: tuple[str, ...]
    ) -> tuple[RecordedStage, list[int], bool | None] | None:
        """Messages that are exchanged at once → a recorded stage, its rows of one time, the pass.

        That is, whether the pass before them was a forward. They are behind a pass of the same
        direction as now where there are such: when a receive is posted depends on that.
        """
        partition = self.partition
        places = (self.recorded_place()[partition.pp], *range(partition.recorded_stages))
        for forward in (self.forward, not self.forward, None):
            for own in map(self.recorded, places):
                times = own.units.get((tokens, forward))
                if times:
                    return own, times[len(times) // 2], forward
        return None


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
