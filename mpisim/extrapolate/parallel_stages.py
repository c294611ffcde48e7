"""A recorded pipeline → the same model on another number of stages.

    rows of each stage ─► passes (`parallel_passes`) ─► layers ─► dealt to the new stages

The same layers, with their recorded times, are run by more stages or fewer, in the recorded order:
1F1B (Megatron-LM's ``forward_backward_pipelining_without_interleaving``) or GPipe. What a stage
does before and behind its layers (embedding, head and loss) stays with the first and the last
stage; what it does before its first and behind its last pass (gradients set to zero, reductions,
the optimizer) goes with its share of the parameters. Messages are copies of recorded ones, of the
same place in the schedule; what leaves the recorded nodes, or has other bytes, is left for the
network to price.

How many bytes of gradients a layer has follows from what the stages reduce: a stage between the
others has layers alone; of two stages the last has, besides layers, a copy of the embedding whose
gradients both add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..base.frozen import frozen
from ..kernels.operations import Gemm
from ..program import COLUMNS, UNPRICED, Communicators, Kind, Program, Table, check_matching
from .parallel_order import stage_order
from .parallel_overlap import KernelsByName
from .parallel_passes import RecordedStage, recorded_stage
from .parallel_structure import Axis, ParallelStructure, find_structure

__all__ = ["with_stages"]

ALIGNMENT = 64
"""Bytes to a multiple of which buffers are rounded."""

ROUNDING = 1e-9

DEALT = ("tp", "cp", "dp", "pp")
"""Axes of jobs whose layers can be dealt anew."""

NONE = -1
"""No row."""

RUN = 4
"""Kernels of one name in a row, from which on they are one a tensor, or a part of the tensors."""


def with_stages(
    program: Program,
    structure: ParallelStructure,
    stages: int,
    node: int,
    floor: int,
    kernels: KernelsByName,
) -> tuple[Program, ParallelStructure, str]:
    """Deal the layers of a recorded pipeline to so many stages. Local.

    Parameters
    ----------
    program : Program
        Whole, as recorded.
    structure : ParallelStructure
        Of this program.
    stages : int
    node : int
        Ranks of a node.
    floor : int
        Of each kernel's time, what it takes besides its work, in ps.
    kernels : mapping of str to sequence of (int, Kernel)
        What kernels compute, by name and time, where shapes are on record.

    Returns
    -------
    Program
        Communications that the recording did not measure have no duration.
    ParallelStructure
        Of the new program.
    str
        What was assumed; empty if nothing is changed.

    Raises
    ------
    InputError
        If passes or layers cannot be told apart, or layers do not divide.
    """
    pp = structure.axis("pp")
    if pp is None:
        raise InputError(
            f"--pp {stages}: the grid {structure.text} has no pipeline, whose messages would tell "
            "where a stage begins"
        )
    if stages == structure.axes[pp].size:
        return program, structure, ""
    if stages < 2:
        raise InputError(f"--pp is {stages}; allowed is 2 or more")
    others = [axis.name for axis in structure.axes if axis.name not in DEALT]
    if others:
        raise InputError(
            f"--pp {stages}: the grid {structure.text} has {', '.join(others)}; layers are dealt "
            f"anew in grids of {', '.join(DEALT)} alone"
        )
    unseen = [axis.name for axis in structure.axes if axis.unseen]
    if unseen:
        raise InputError(f"--pp {stages}: ranks are missing along {', '.join(unseen)}")
    deal = _Deal(program, structure, stages, node, floor, kernels)
    found = deal.program()
    check_matching(found)
    layout = [(axis.name, axis.size) for axis in deal.axes]
    after = find_structure(found, range(found.n_ranks), found.n_ranks, named=True, layout=layout)
    return found, after, deal.said


@frozen(eq=False)
class _Share:
    """Bytes of gradients of the parts of a model.

    Attributes
    ----------
    first, layer, last : float
        What the first stage has besides layers, one layer, and the last stage besides layers.
    how : str
    """

    first: float
    layer: float
    last: float
    how: str


class _Deal:
    """The layers of one job, dealt anew."""

    def __init__(
        self,
        program: Program,
        structure: ParallelStructure,
        stages: int,
        node: int,
        floor: int,
        kernels: KernelsByName,
    ) -> None:
        self.kernels = kernels
        self.recorded, self.structure, self.stages = program, structure, stages
        self.node, self.floor = node, floor
        pp = structure.axis("pp")
        assert pp is not None
        self.pp, self.before = pp, structure.axes[pp].size
        self.at = {tuple(place): rank for rank, place in enumerate(structure.place.tolist())}
        self.of: dict[int, RecordedStage] = {}
        signatures: dict[tuple[Any, ...], int] = {}
        places = structure.place.tolist()
        for rank in sorted(range(program.n_ranks), key=lambda rank: places[rank][pp]):
            start = [0 if i == pp else at for i, at in enumerate(places[rank])]
            first_stage = self.of.get(self.at[tuple(start)])
            self.of[rank] = recorded_stage(program, structure, rank, signatures, first_stage)
        first = self._column({})
        counts = [each.layers for each in first]
        self.layers = sum(counts)
        self.micro_batches = first[0].micro_batches
        gpipe = any(each.schedule == "gpipe" for each in self.of.values())
        self.schedule = "gpipe" if gpipe else "1f1b"
        for rank, each in self.of.items():
            expected = counts[structure.place[rank, pp]]
            if each.layers != expected or each.micro_batches != self.micro_batches:
                raise InputError(
                    f"--pp: rank {structure.ranks[rank]} has {each.layers} layers and "
                    f"{each.micro_batches} micro-batches, others of its stage {expected} and "
                    f"{self.micro_batches}"
                )
        if self.layers % stages:
            allowed = [n for n in range(2, self.layers + 1) if self.layers % n == 0]
            raise InputError(
                f"--pp {stages}: the recording has {self.layers} layers, which cannot be dealt "
                f"evenly; allowed are {', '.join(map(str, allowed))}"
            )
        self.owner = [(s, i) for s, count in enumerate(counts) for i in range(count)]
        """Of each layer, its recorded stage and its number there."""
        self.share = self._shares(first)
        sizes = [axis.size for axis in structure.axes]
        sizes[pp] = stages
        strides = np.cumprod([1, *sizes])
        self.axes = tuple(
            Axis(axis.name, size, int(stride))
            for axis, size, stride in zip(structure.axes, sizes, strides, strict=False)
        )
        self.groups: dict[tuple[Any, ...], list[int]] = {}
        """Identity of a communicator → ranks of the new job."""

    @property
    def said(self) -> str:
        """What was assumed."""
        each = self.layers // self.stages
        return (
            f"{self.stages} stages in place of {self.before}: {self.layers} layers, found as rows "
            f"that repeat, {each} on each, with their recorded times, in the order of "
            f"{'GPipe' if self.schedule == 'gpipe' else '1F1B'}; "
            f"{self.share.how}; optimizer and gradients by each stage's share of these"
        )

    def _column(self, fixed: Mapping[int, int]) -> list[RecordedStage]:
        """Recorded stages of one pipeline, at given places of the other axes."""
        found = []
        for stage in range(self.before):
            place = [fixed.get(i, 0) for i in range(len(self.structure.axes))]
            place[self.pp] = stage
            found.append(self.of[self.at[tuple(place)]])
        return found

    def _shares(self, column: Sequence[RecordedStage]) -> _Share:
        reduced = [each.reduced for each in column]
        if not all(reduced):
            raise InputError(
                "--pp: no gradients are reduced over replicas, whose bytes would tell how much of "
                "the model each stage has"
            )
        first, last = column[0], column[-1]
        if self.before > 2:
            middle = column[1]
            layer = middle.reduced / middle.layers
            how = "gradients of a layer as of a stage between the others"
        elif first.tied:
            layer = (last.reduced - first.tied) / last.layers
            how = "the last stage has, besides layers, the embedding that both ends reduce"
        else:
            elements = self._matrices(first)
            fit = [n for n in (4, 2) if n * elements * self.layers <= 2 * min(reduced)]
            if not elements or not fit:
                raise InputError(
                    "--pp: of two stages without tied embeddings it is not known how large "
                    "embedding and head are; record three stages or more, or shapes "
                    "(record_shapes=True)"
                )
            layer = float(fit[0] * elements)
            how = f"its matrices, of {fit[0]} bytes an element"
        ends = (
            first.reduced - layer * first.layers,
            last.reduced - layer * last.layers,
        )
        if layer <= 0 or min(ends) < 0:
            raise InputError(
                f"--pp: stages reduce {', '.join(f'{each:,}' for each in reduced)} bytes of "
                "gradients, which is no number for each layer"
            )
        how = f"{layer / 2**20:.1f} MiB of gradients a layer: {how}"
        return _Share(ends[0], layer, ends[1], how)

    def _matrices(self, first: RecordedStage) -> int:
        """Elements of the matrices of a layer, by the shapes of its forward's products."""
        table, found = first.table, 0
        for row in first.passes[1].layers[0]:
            known = self.kernels.get(self.recorded.names[table.name[row]])
            if known and table.kind[row] == Kind.KERNEL:
                time = int(table.duration[row])
                kernel = min(known, key=lambda pair: abs(pair[0] - time))[1]
                if isinstance(kernel, Gemm) and kernel.batch == 1:
                    found += kernel.n * kernel.k  # m counts tokens
        return found

    def held(self, stage: int) -> float:
        """Bytes of gradients of a new stage."""
        size = self.share.layer * self.layers / self.stages
        size += self.share.first if stage == 0 else 0.0
        return size + (self.share.last if stage == self.stages - 1 else 0.0)

    # --- the new job ------------------------------------------------------------------------------

    def program(self) -> Program:
        """Return the program of all ranks."""
        recorded = self.recorded
        world = math.prod(axis.size for axis in self.axes)
        drafts, sources = [], []
        for rank in range(world):
            place = [rank // axis.stride % axis.size for axis in self.axes]
            draft = _Draft(self, rank, place)
            draft.write()
            drafts.append(draft)
            sources.append(self.at[tuple(draft.place_before())])
        number = {key: i for i, key in enumerate(self.groups)}
        slots = [[number[key] for key in draft.slots] for draft in drafts]
        return Program(
            names=recorded.names,
            tables=tuple(draft.table() for draft in drafts),
            communicators=Communicators.of(
                [self._ordered(key, members) for key, members in self.groups.items()],
                [f"{key[0]} {i}" for i, key in enumerate(self.groups)],
            ),
            table=np.arange(world, dtype=np.int32),
            slot_index=np.concatenate([[0], np.cumsum([len(own) for own in slots])]),
            slots=np.array([c for own in slots for c in own], np.int32),
            speed=recorded.speed[sources],
            start=recorded.start[sources],
            attributes={
                **recorded.attributes,
                "ranks": " ".join(map(str, range(world))),
                "world_size": str(world),
            },
        )

    @staticmethod
    def _ordered(key: tuple[Any, ...], members: Sequence[int]) -> list[int]:
        """Members of a communicator, the sender of a message first."""
        return sorted(members, reverse=key[0] == "back")

    def same_place(self, old: Sequence[int], new: Sequence[int]) -> bool:
        """Whether groups before and now stand in as many nodes."""
        ranks = [self.structure.ranks[i] for i in old]
        nodes = [len({rank // self.node for rank in each}) for each in (ranks, new)]
        return nodes[0] == nodes[1]


class _Draft:
    """The rows of one rank of the new job, as they are being written.

    Parameters
    ----------
    deal : _Deal
    rank : int
    place : list of int
        On the axes of the new grid.
    """

    def __init__(self, deal: _Deal, rank: int, place: list[int]) -> None:
        self.deal, self.rank, self.place = deal, rank, place
        self.stage = place[deal.pp]
        self.is_first, self.is_last = self.stage == 0, self.stage == deal.stages - 1
        self.source = deal.of[deal.at[tuple(self.place_before())]]
        self.share = deal.held(self.stage) / self.source.reduced
        each = deal.layers // deal.stages
        self.mine = range(self.stage * each, (self.stage + 1) * each)
        self.rows: list[dict[str, Any]] = []
        self.waits: list[list[int]] = []
        self.slots: list[tuple[Any, ...]] = []
        self.latest: dict[tuple[Any, ...], int] = {}
        """Stream → its latest row."""
        self.message = self.bulk = NONE
        """The latest message, and the latest large communication over replicas."""
        self.gathers = self._cut(self.source.gathers)
        self.reduces = self._cut(self.source.reduces)
        self.launched: list[int] = []
        """Rows of the gathers so far."""
        self.cut = 0
        """Reductions so far."""

    def place_before(self, stage: int | None = None) -> list[int]:
        """Place of the recorded rank that this one takes a stage's rows from.

        Of what is besides layers: the first, the last, or one between; of two the first.
        """
        deal = self.deal
        if stage is None:
            middle = 1 if deal.before > 2 else 0
            stage = 0 if self.is_first else deal.before - 1 if self.is_last else middle
        return [stage if i == deal.pp else at for i, at in enumerate(self.place)]

    def recorded(self, stage: int) -> RecordedStage:
        """What the rank at the same place of another recorded stage did."""
        return self.deal.of[self.deal.at[tuple(self.place_before(stage))]]

    # --- in order -----------------------------------------------------------------------------

    def write(self) -> None:
        """Write all rows."""
        deal, source = self.deal, self.source
        self._beside(source.prologue)
        if self.recorded(deal.before - 1).gathers_early:
            for _ in self.gathers[: source.ahead]:
                self._gather()
        order = stage_order(
            deal.schedule, self.stage, deal.stages, deal.micro_batches, source.fused
        )
        for unit in order:
            if isinstance(unit, tuple):
                self._messages(unit)
            elif unit > 0:
                self._forward(unit - 1)
            else:
                self._backward(-unit - 1)
        self._beside(source.epilogue)

    def _forward(self, micro_batch: int) -> None:
        deal, source = self.deal, self.source
        done = deal.share.first if self.is_first else 0.0
        received = [] if self.is_first else [self.message]
        if self.is_first or source.stage:
            needed = self._parameters(micro_batch, done)
            self._block(source, source.passes[micro_batch + 1].before, [*needed, *received])
        for layer in self.mine:
            stage, number = deal.owner[layer]
            own = self.recorded(stage)
            done += deal.share.layer
            needed = self._parameters(micro_batch, done)
            rows = own.passes[micro_batch + 1].layers[number]
            self._block(own, rows, [*needed, *received])
            received = []
        if self.is_last:
            needed = self._parameters(micro_batch, deal.held(self.stage))
            self._block(source, source.passes[micro_batch + 1].behind, needed)

    def _backward(self, micro_batch: int) -> None:
        deal = self.deal
        done = deal.share.last if self.is_last else 0.0
        if self.is_last:  # the head, where it is apart from the forward
            self._block(self.source, self.source.passes[-micro_batch - 1].before, [])
        self._reduce(micro_batch, done)
        for layer in reversed(self.mine):
            stage, number = deal.owner[layer]
            own = self.recorded(stage)
            begins = layer == self.mine[-1] and not self.is_last
            after = [self.message] if begins else []
            rows = own.passes[-micro_batch - 1].layers[own.layers - 1 - number]
            self._block(own, rows, after)
            done += deal.share.layer
            self._reduce(micro_batch, done)
        if self.is_first or self.source.stage:
            self._block(self.source, self.source.passes[-micro_batch - 1].behind, [])
        self._reduce(micro_batch, deal.held(self.stage))

    # --- communications over replicas -----------------------------------------------------------

    def _gather(self) -> None:
        row, size = self.gathers[len(self.launched)]
        self.launched.append(self._copied(self.source, row, {}, bytes=size, duration=UNPRICED))

    def _parameters(self, micro_batch: int, upto: float) -> list[int]:
        """Return the gather that brings a stage's parameters up to some bytes."""
        count = len(self.gathers)
        if micro_batch or not count:
            return []
        share = upto / self.deal.held(self.stage) * (1 - ROUNDING)
        bucket = min(count - 1, int(share * count))
        while len(self.launched) < min(bucket + self.source.ahead, count):
            self._gather()
        return [self.launched[bucket]]

    def _reduce(self, micro_batch: int, upto: float) -> None:
        """Reduce the gradients that are complete, in the last backward."""
        if micro_batch < self.deal.micro_batches - 1:
            return
        source, count = self.source, len(self.reduces)
        share = upto / self.deal.held(self.stage) * (1 + ROUNDING)
        while self.cut < count and share >= (self.cut + 1) / count:
            row, size = self.reduces[self.cut]
            more = self.share * len(source.reduces) / count
            for run in _runs(source.table, source.helpers.get(row, [])):
                self._run(run, {}, more)
            self.bulk = self._copied(source, row, {}, bytes=size, duration=UNPRICED)
            self.cut += 1

    def _cut(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Recorded communications of parameters → as many as a share has, with their bytes."""
        if not rows:
            return []
        total = int(self.source.table.bytes[list(rows)].sum()) * self.share
        count = max(1, round(len(rows) * self.share))
        picked = [rows[i * len(rows) // count] for i in range(count)]
        return [(row, max(1, round(total / count / ALIGNMENT)) * ALIGNMENT) for row in picked]

    # --- rows -------------------------------------------------------------------------------------

    def _beside(self, rows: Sequence[int]) -> None:
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
                size = round(int(table.bytes[row]) * len(self.mine) / source.layers)
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
        kept = max(1, round(count * share)) if count >= RUN else count
        written: dict[int, int] = {}
        for k in range(kept):
            of = rows[k * count // kept]
            duration = self._time(of, share * count / kept)
            written[of] = self._copied(self.source, of, {**here, **written}, duration=duration)
        return {**written, rows[-1]: len(self.rows) - 1}

    def _time(self, row: int, share: float) -> int:
        """Time of a kernel of `source` that does a share of its work."""
        own = int(self.source.table.duration[row])
        fixed = min(own, self.deal.floor)
        return fixed + round((own - fixed) * share)

    def _block(self, own: RecordedStage, rows: Sequence[int], after: Sequence[int]) -> None:
        """Write rows of a pass, its first kernel behind some others."""
        here: dict[int, int] = {}
        before = dict(self.latest)
        waits = {row for row in after if row != NONE}
        for row in rows:
            copy = here[row] = self._copied(own, row, here, before=before)
            if waits and own.table.kind[row] == Kind.KERNEL:
                self.waits[copy] = sorted(waits.union(self.waits[copy]))
                waits = set()

    def _messages(self, unit: tuple[str, ...]) -> None:
        """Write messages to and from neighbours, and the waits of the CPU for them."""
        places = (self.place_before()[self.deal.pp], *range(self.deal.before))
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
                self.deal.groups.setdefault(key, []).append(self.rank)
            values["slot"] = self.slots.index(key)
            if not self.deal.same_place(old, self._now(key)):
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
        self.waits.append(sorted(waits - {NONE}))
        if table.kind[row] <= Kind.RECV:
            self.latest[stream] = number
        return number

    def _group(
        self, own: RecordedStage, row: int, token: str | None
    ) -> tuple[tuple[Any, ...], list[int]]:
        """Identity of a row's communicator in the new job, and its members in the recording."""
        structure = self.deal.structure
        c = int(own.slots[own.table.slot[row]])
        old = list(self.deal.recorded.communicators.group(c))
        if token is not None:
            to = self.stage + (1 if token in ("send forward", "receive backward") else -1)
            way = "on" if token in ("send forward", "receive forward") else "back"
            pair = min(self.stage, to)
            fixed = [at for i, at in enumerate(self.place) if i != self.deal.pp]
            return (way, pair, *fixed), old
        spans = structure.spans[c]
        names = "-".join(axis.name for axis, s in zip(structure.axes, spans, strict=True) if s)
        fixed = [at for at, s in zip(self.place, spans, strict=True) if not s]
        return (names or "alone", own.ordinal(int(own.table.slot[row])), *fixed), old

    def _now(self, key: tuple[Any, ...]) -> list[int]:
        """Ranks of the new job that a communicator has."""
        axes, pp = self.deal.axes, self.deal.pp
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
        """Return the rows as a table."""
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
