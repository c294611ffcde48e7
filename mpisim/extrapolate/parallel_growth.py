"""A job's program and its grid → the program with other numbers of data-parallel replicas.

A rank of the grown job does what a recorded rank at the same place of all other axes did: its rows
are those of the recorded replicas in turn, with their kernel times, their CPU times and their
starts, so that replicas differ as they did. Communicators are built anew from the axes that the
recorded ones ran along. Full buffers keep their sizes: an all-gather of parameters or a
reduce-scatter of gradients moves the same buffer over more ranks, each with a smaller share.

A communication keeps its recorded wire time where the model gives the same time to its new group on
its new network as to the old on the old one. Otherwise it loses it, and the network is asked
(`MeasuredNetwork`), so that it also shares links with others.

Where the states of the optimizer are sharded (parameters are gathered along the axis), kernels
between the last reduction of a step and what follows it work on a rank's share, and are scaled by
it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.quantity import Quantity
from ..program import UNPRICED, Communicators, Operation, Program, Table
from ..topo.nccl_network import NcclNetwork
from ..topo.traffic.link_limits import Placement
from .parallel_axes import Axis
from .parallel_network import Key, MeasuredNetwork, regime
from .parallel_replicas import NewRanks, check_replicas, new_ranks
from .parallel_shards import scaled_optimizers
from .parallel_structure import ParallelStructure

__all__ = ["Grown", "grow"]

MIN_BANDWIDTH_BYTES = 1 << 20
"""Messages from here on measure a rate: their ratios stand for those that were not measured."""

MAX_UNSIZED_SHARE = 0.1
"""Share of the communications of a group up to which sizes may be missing: of those that were
launched before the recording began."""

SHARD_PADDING = 4
"""Bytes to a multiple of which each rank's share of a sharded buffer is padded."""

_SHARDED = (Operation.REDUCE_SCATTER, Operation.ALL_GATHER)


@frozen(eq=False)
class Grown:
    """A program at another scale.

    Attributes
    ----------
    program : Program
    network : MeasuredNetwork
        That prices what has no duration.
    axes : tuple of Axis
        Of the new grid, the innermost first.
    repriced : mapping of str to int
        Axes → communications that the network prices, over all ranks and the whole recording.
    ratios : mapping of str to (float, float, int)
        Regime → the median ratio of measured to modelled times of messages of 1 MiB and more, the
        standard deviation of its logarithm, and of how many sorts of communications.
    sharded : tuple of (float, float)
        Seconds of kernels of sharded optimizers of the slowest rank, before and after.
    assumptions : tuple of str
    samples : float
        Of a step, over those of a recorded one.
    slowest : Quantity, optional
        What products take on the slowest GPU, over that on the slowest recorded.
    waited : tuple of (float, float)
        Seconds of the communications with ranks that have no file, in the recorded rank where they
        took longest: as recorded, waiting included, and as priced.
    buckets : str
        In which gradients are reduced.
    """

    program: Program
    network: MeasuredNetwork
    axes: tuple[Axis, ...]
    repriced: dict[str, int] = field(default_factory=dict)
    ratios: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    sharded: tuple[float, float] = (0.0, 0.0)
    assumptions: tuple[str, ...] = ()
    samples: float = 1.0
    slowest: Quantity | None = None
    waited: tuple[float, float] = (0.0, 0.0)
    buckets: str = "gradients are reduced in the same buckets"


def grow(
    program: Program,
    structure: ParallelStructure,
    replicas: int,
    old: NcclNetwork,
    new: NcclNetwork,
    floor: int,
) -> Grown:
    """Write the program of a job with so many data-parallel replicas on a network. Local.

    Parameters
    ----------
    program : Program
        Whole, as recorded.
    structure : ParallelStructure
        Of this program.
    replicas : int
        Size of the axis ``dp``; 1 where there is none.
    old, new : NcclNetwork
        Networks of as many ranks as the recorded and the new job have.
    floor : int
        Time of a kernel of the optimizer besides its work, in ps.

    Raises
    ------
    InputError
        If the axis cannot be changed, or a size that is needed is not on record.
    """
    along = structure.axis("dp")
    check_replicas(program, structure, along, replicas)
    ranks = new_ranks(structure, along, replicas)
    groups = _Groups(program, structure, ranks)
    prices = _Prices(program, structure, groups, old, new, along)
    scaled, before, after = scaled_optimizers(program, structure, along, replicas, floor)
    tables: list[Table] = []
    number: dict[tuple[int, tuple[int, ...]], int] = {}
    use = np.empty(len(ranks.source), np.int32)
    for rank, source in enumerate(ranks.source.tolist()):
        own = groups.of_rank[rank]
        key = source, tuple(prices.variant[c] for c in own)
        if key not in number:
            number[key] = len(tables)
            tables.append(prices.table(scaled[source], own))
        use[rank] = number[key]
    counts = np.diff(program.slot_index)[ranks.source]
    grown = Program(
        names=program.names,
        tables=tuple(tables),
        communicators=groups.communicators(structure, ranks),
        table=use,
        slot_index=np.concatenate([[0], np.cumsum(counts)]),
        slots=np.array([c for own in groups.of_rank for c in own], np.int32),
        speed=program.speed[ranks.source],
        start=program.start[ranks.source],
        attributes={
            **program.attributes,
            "ranks": " ".join(map(str, range(len(ranks.source)))),
            "world_size": str(len(ranks.source)),
        },
    )
    return Grown(
        grown,
        prices.network(),
        ranks.axes,
        prices.counted(structure, ranks),
        prices.measured(),
        (before, after),
        tuple(dict.fromkeys(prices.assumptions)),
        waited=prices.waited(),
    )


class _Groups:
    """Communicators of the new job: those of the recording, over the axes that they ran along."""

    def __init__(self, program: Program, structure: ParallelStructure, ranks: NewRanks) -> None:
        self.origin: list[int] = []
        """The recorded communicator of each."""
        self.members: list[list[int]] = []
        self.of_rank: list[list[int]] = []
        number: dict[tuple[int, tuple[int, ...]], int] = {}
        fixed = [np.flatnonzero(~spans) for spans in structure.spans]
        slots = [program.slots_of(i).tolist() for i in range(program.n_ranks)]
        places = ranks.place.tolist()
        kept = {c: axes.tolist() for c, axes in enumerate(fixed)}
        for rank, source in enumerate(ranks.source.tolist()):
            place, own = places[rank], []
            for c in slots[source]:
                key = c, tuple([place[i] for i in kept[c]])
                found = number.setdefault(key, len(self.origin))
                if found == len(self.origin):
                    self.origin.append(c)
                    self.members.append([])
                self.members[found].append(rank)
                own.append(found)
            self.of_rank.append(own)
        self._in_order(program, ranks)
        self.index = np.cumsum([0, *map(len, self.members)], dtype=np.int64)
        self.flat = np.array([rank for group in self.members for rank in group], np.int32)

    def _in_order(self, program: Program, ranks: NewRanks) -> None:
        """Put the sender of a pair before its receiver."""
        for found, c in enumerate(self.origin):
            group = program.communicators.group(c)
            if len(group) == 2 and len(self.members[found]) == 2:
                at = {source: i for i, source in enumerate(group)}
                self.members[found].sort(key=lambda rank: (at[int(ranks.source[rank])], rank))

    def communicators(self, structure: ParallelStructure, ranks: NewRanks) -> Communicators:
        """Return them, named by the axes along which they run."""
        numbers: dict[str, Iterator[int]] = defaultdict(lambda: iter(range(1 << 62)))
        words = {c: "-".join(_along(c, structure, ranks)) or "alone" for c in set(self.origin)}
        names = [f"{words[c]} {next(numbers[words[c]])}" for c in self.origin]
        return Communicators.of(self.members, names)


class _Prices:
    """Times of the new job's communications: as recorded, or by the new network."""

    def __init__(
        self,
        program: Program,
        structure: ParallelStructure,
        groups: _Groups,
        old: NcclNetwork,
        new: NcclNetwork,
        along: int | None,
    ) -> None:
        self.program, self.structure, self.groups = program, structure, groups
        self.old, self.new, self.along = old, new, along
        self.assumptions: list[str] = []
        self._sharded = along is not None and Operation.ALL_GATHER in structure.carried("dp")
        bits = program.operation_bits
        own = program.communicators
        groups_before = Communicators.of(
            [[structure.ranks[i] for i in _members(program, structure, c)] for c in range(len(own))]
        )
        label, classes = old.group_classes(groups_before.index, groups_before.members, bits)
        self._before = [classes[i] for i in label.tolist()]
        self._rows = _rows_of_members(program)
        self._measured = [self._measure(c) for c in range(len(own))]
        self._usual = self._usual_ratios()
        label, classes = new.group_classes(
            groups.index, groups.flat, bits[np.array(groups.origin, np.int64)]
        )
        self._new = [classes[i] for i in label.tolist()]
        self.variant: list[int] = []
        """Of each new communicator, what becomes of its communications: entry of `_choices`."""
        self._choices: list[dict[tuple[int, int], int] | None] = [None]
        self._ratios: dict[Key, list[float]] = defaultdict(list)
        self._errors: dict[Key, float] = {}
        chosen: dict[tuple[int, int, int], int] = {}
        for found, c in enumerate(groups.origin):
            key = c, int(label[found]), len(groups.members[found])
            if key not in chosen:
                choice = self._choose(c, classes[int(label[found])], len(groups.members[found]))
                chosen[key] = len(self._choices) if choice else 0
                if choice:
                    self._choices.append(choice)
            self.variant.append(chosen[key])

    def _measure(self, c: int) -> dict[tuple[int, int], float]:
        """Operation and bytes → the median recorded time on a communicator, in ps."""
        if self.structure.lone[c] or self.program.communicators.sizes[c] < 2:
            return {}
        found: dict[tuple[int, int], list[int]] = defaultdict(list)
        for table, rows in self._rows[c]:
            columns = table.operation[rows], table.bytes[rows], table.duration[rows]
            for operation, size, time in zip(*(each.tolist() for each in columns), strict=True):
                found[operation, size].append(time)
        medians = {key: float(np.median(times)) for key, times in found.items()}
        return {key: time for key, time in medians.items() if time >= 0}  # others were put in

    def _modelled(self, c: int, operation: int, size: int) -> int:
        return self.old.price(Operation(operation), size, self._before[c]).duration

    def _usual_ratios(self) -> dict[str, list[float]]:
        """Regime → ratios of the large messages that were measured, one for each sort."""
        found: dict[tuple[str, int, int], list[float]] = defaultdict(list)
        for c, measured in enumerate(self._measured):
            for (operation, size), time in measured.items():
                if size >= MIN_BANDWIDTH_BYTES and operation not in (
                    Operation.UNKNOWN,
                    Operation.BARRIER,
                ):
                    model = self._modelled(c, operation, size)
                    if model and time:
                        key = regime(self._before[c]), operation, size
                        found[key].append(time / model)
        usual: dict[str, list[float]] = defaultdict(list)
        for (where, _, _), ratios in sorted(found.items()):
            usual[where].append(float(np.exp(np.mean(np.log(ratios)))))
        return dict(usual)

    def _choose(self, c: int, group: Placement, members: int) -> dict[tuple[int, int], int]:
        """One communicator and its new class → what is to be priced, and its new bytes."""
        sizes = np.concatenate([table.bytes[rows] for table, rows in self._rows[c]])
        kinds = np.concatenate([table.operation[rows] for table, rows in self._rows[c]])
        lone = bool(self.structure.lone[c])
        found: dict[tuple[int, int], int] = {}
        pairs = np.stack([kinds.astype(np.int64), sizes])
        for operation, size in np.unique(pairs, axis=1).T.tolist():
            if operation == Operation.UNKNOWN:
                self.assumptions.append(
                    "communications of an unknown kind keep their recorded times, whatever changes"
                )
                continue
            known = self._size(c, operation, size)
            padded = self._padded(c, operation, known, members)
            after = self._price(operation, padded, group)
            if not lone and (operation, size) in self._measured[c]:
                before = self._price(operation, known, self._before[c], old=True)
                if before == after and padded == known and regime(group) == regime(self._before[c]):
                    continue
            if padded < 0 and (sizes < 0).mean() <= MAX_UNSIZED_SHARE:
                self.assumptions.append(
                    "single communications whose sizes are not on record keep their recorded times"
                )
                continue
            if padded < 0:
                word = Operation(operation).name.lower().replace("_", "-")
                members_said = [str(self.structure.ranks[i]) for i in self._group(c)[:8]]
                raise InputError(
                    f"ranks {', '.join(members_said)}: the size of their {word} is not on record, "
                    "and its new group needs another time; record shapes (record_shapes=True)"
                )
            found[operation, size] = padded
            price = Operation(operation), padded, group
            self._ratios[price].append(self._ratio(c, operation, size, known, group))
            self._errors[price] = _error(self.new, *price)
        return found

    def _group(self, c: int) -> tuple[int, ...]:
        return self.program.communicators.group(c)

    def _price(self, operation: int, size: int, group: Placement, old: bool = False) -> int:
        """Time by the model; of an unknown size that of a large one, which tells groups apart."""
        size = MIN_BANDWIDTH_BYTES if size < 0 else size
        return (self.old if old else self.new).price(Operation(operation), size, group).duration

    def _size(self, c: int, operation: int, size: int) -> int:
        """Bytes of a communication: as recorded, or of the activations that stages send."""
        if size >= 0 or operation != Operation.SEND_RECV:
            return size
        sent, why = _activation(self.structure)
        if sent >= 0:
            self.assumptions.append(why)
        return sent

    def _padded(self, c: int, operation: int, size: int, members: int) -> int:
        """Bytes of a sharded buffer, in whole shares of the new number of ranks."""
        over_dp = self.along is not None and bool(self.structure.spans[c, self.along])
        if size < 0 or not (self._sharded and over_dp and operation in _SHARDED):
            return size
        share = members * SHARD_PADDING
        return size if size % members == 0 else -(-size // share) * share

    def _ratio(self, c: int, operation: int, recorded: int, size: int, group: Placement) -> float:
        """Measured over modelled time, where it holds for the new group."""
        where = regime(group)
        time = self._measured[c].get((operation, recorded))
        if time is not None and where == regime(self._before[c]):
            model = self._modelled(c, operation, size)
            return time / model if model and time else 1.0
        if time is None and size >= MIN_BANDWIDTH_BYTES and where in self._usual:
            self.assumptions.append(
                "communications that were not measured take the model's time, times the median "
                f"ratio of those measured {where} nodes"
            )
            return float(np.median(self._usual[where]))
        return 1.0

    # --- what comes of it ------------------------------------------------------------------------

    def table(self, table: Table, own: Sequence[int]) -> Table:
        """Return a table of which some communications are to be priced.

        Parameters
        ----------
        table : Table
        own : sequence of int
            The new communicator of each slot.
        """
        duration, size = table.duration.copy(), table.bytes.copy()
        for slot, found in enumerate(own):
            choice = self._choices[self.variant[found]] or {}
            for row in table.rows_on(slot).tolist() if choice else ():
                key = int(table.operation[row]), int(table.bytes[row])
                if key in choice:
                    duration[row], size[row] = UNPRICED, choice[key]
        if (size == table.bytes).all():
            return table.replace(duration=duration)
        return table.replace(duration=duration, bytes=size)

    def waited(self) -> tuple[float, float]:
        """Return what communications with missing ranks took: see `Grown.waited`."""
        found: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        done: set[int] = set()
        for number, c in enumerate(self.groups.origin):
            choice = self._choices[self.variant[number]]
            if choice is None or not self.structure.lone[c] or c in done:
                continue
            done.add(c)
            for member, (table, rows) in zip(self._group(c), self._rows[c], strict=True):
                keys = zip(table.operation[rows].tolist(), table.bytes[rows].tolist(), strict=True)
                times = table.duration[rows].tolist()
                for (operation, size), time in zip(keys, times, strict=True):
                    if (operation, size) in choice:
                        price = self._price(operation, choice[operation, size], self._new[number])
                        found[member][0] += time / 1e12
                        found[member][1] += price / 1e12
        before, after = max(found.values(), default=[0.0, 0.0])
        return before, after

    def measured(self) -> dict[str, tuple[float, float, int]]:
        """Return median, spread and number of the ratios of each regime."""
        return {
            where: (float(np.median(own)), float(np.std(np.log(own))), len(own))
            for where, own in self._usual.items()
        }

    def network(self) -> MeasuredNetwork:
        """Return the network that prices what lost its recorded time."""
        ratios = {key: float(np.exp(np.mean(np.log(own)))) for key, own in self._ratios.items()}
        return MeasuredNetwork(self.new, ratios, self._errors)

    def counted(self, structure: ParallelStructure, ranks: NewRanks) -> dict[str, int]:
        """Return how many communications are priced, by axes."""
        found: dict[str, int] = defaultdict(int)
        for (c, variant), groups in Counter(
            zip(self.groups.origin, self.variant, strict=True)
        ).items():
            choice = self._choices[variant]
            if choice:
                table, rows = self._rows[c][0]
                keys = zip(table.operation[rows].tolist(), table.bytes[rows].tolist(), strict=True)
                word = "×".join(_along(c, structure, ranks)) or "alone"
                found[word] += groups * sum(key in choice for key in keys)
        return {name: count for name, count in found.items() if count}


def _along(c: int, structure: ParallelStructure, ranks: NewRanks) -> list[str]:
    """Names of the axes that a recorded communicator runs along."""
    return [ranks.axes[i].name for i in np.flatnonzero(structure.spans[c])]


def _members(program: Program, structure: ParallelStructure, c: int) -> list[int]:
    """Members of a recorded communicator; of one that stands for several, those of the first."""
    group = program.communicators.group(c)
    fixed = np.flatnonzero(~structure.spans[c])
    place = structure.place[list(group)][:, fixed]
    return [each for each, row in zip(group, place, strict=True) if (row == place[0]).all()]


def _error(network: NcclNetwork, operation: Operation, size: int, group: Placement) -> float:
    """Error bar of the model's time, relative."""
    shares = network.shares(operation, size, group)
    return math.hypot(*(share * network.numbers[name].error for name, share in shares.items()))


def _rows_of_members(program: Program) -> list[list[tuple[Table, NDArray[np.intp]]]]:
    """Of each communicator, the table of every member and its rows there."""
    found: list[list[tuple[Table, NDArray[np.intp]]]] = [[] for _ in program.communicators.names]
    for rank in range(program.n_ranks):
        table = program.table_of(rank)
        for slot, c in enumerate(program.slots_of(rank).tolist()):
            found[c].append((table, table.rows_on(slot)))
    return found


def _activation(structure: ParallelStructure) -> tuple[int, str]:
    """Bytes that a stage sends to the next, from what its tensor-parallel group exchanges.

    With sequence parallelism a rank holds a share of the activations, which are gathered whole in
    front of each product; without, all hold them whole, and reduce them behind.
    """
    tp = next((axis for axis in structure.axes if axis.name == "tp"), None)
    found = [each for each in structure.traffic if each.axes == "tp" and each.bytes > 0]
    if tp is None or not found:
        return -1, ""
    most = max(found, key=lambda each: (each.count, each.bytes))
    split = most.operation in _SHARDED
    size = most.bytes // tp.size if split else most.bytes
    how = f"1/{tp.size} of what tp gathers" if split else "what tp reduces"
    return size, (
        f"messages between stages, whose sizes are not on record, taken as {size / 2**20:.1f} MiB: "
        f"{how} in each layer"
    )
