"""Communicators of a job's program → the axes of its grid of ranks, with their names.

Frameworks number ranks axis by axis (Megatron-LM's ``RankGenerator``, PyTorch's ``DeviceMesh``): a
group of an axis of size n is n ranks at one distance, the product of the sizes of the axes inside
of it. So the axes are found from the groups alone:

- ranks that send to one another are a pipeline: the axis ``pp``;
- every other group of ranks at one distance is an axis, unless it lies inside a pipeline (the
  first and the last stage reduce the gradients of tied embeddings) or is several axes at once (the
  norm of the gradients is summed over the whole job);
- an axis has its name from what it carries (`_role`): gradients ``dp``, experts' tokens ``ep``,
  layer by layer the halves of operators ``tp``. Of two axes of gradients the one that gathers
  parameters is ``shard`` (FSDP's hybrid sharding), and the replicas are the other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..program import Kind, Operation, Program, Table

__all__ = ["AXES", "MIN_SHARE_OF_LARGEST", "Axis", "AxisFinder", "bulk_rows", "parse_layout"]

AXES = ("tp", "cp", "ep", "shard", "dp", "pp")
"""Names that an axis may have."""

MIN_SHARE_OF_LARGEST = 0.01
"""Operations with less than this share of the largest message of a group say nothing of its axis:
norms, losses, flags."""

MIN_GATHERS_OF_LAYERS = 4
"""All-gathers in a row, with no reduce-scatter between, from which on a group gathers parameters
(FSDP: those of each unit of the forward). Megatron-LM's sequence parallelism has three at most: the
gradient of an output, the input once more, the next layer's."""

MIN_REDUCTIONS_OF_LAYERS = 4
"""All-reduces of one size in a step, from which on they may be those of layers."""

MIN_SHARE_BEFORE_GRADIENTS = 1 / 12
"""Share of a step's kernel time before which layers have reduced something. Gradients come a
quarter of it or later: behind the forward, which takes a third, or a quarter where it is run
twice."""


@frozen
class Axis:
    """One axis of the grid.

    Attributes
    ----------
    name : str
        One of `AXES`; with a number behind it where two carry the same.
    size : int
        Ranks along it.
    stride : int
        Distance of two neighbours, in ranks.
    unseen : bool
        Whether the ranks at hand all have one place on it.
    """

    name: str
    size: int
    stride: int
    unseen: bool = False


def bulk_rows(table: Table, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Communications of one group → those that carry gradients, parameters or activations.

    Parameters
    ----------
    table : Table
    rows : int, shape (n,)

    Returns
    -------
    int, shape (m,)
        Of `rows`, those of at least `MIN_SHARE_OF_LARGEST` of the most bytes.
    """
    size = table.bytes[rows]
    return rows[size >= MIN_SHARE_OF_LARGEST * size.max(initial=0)]


def parse_layout(text: str) -> list[tuple[str, int]]:
    """``tp=2,dp=2,pp=2`` → names and sizes, the innermost axis first.

    Parameters
    ----------
    text : str
        As ``--layout`` takes it.

    Returns
    -------
    list of (str, int)

    Raises
    ------
    InputError
        If an entry is not AXIS=RANKS, its axis is none of `AXES`, or an axis is given twice.

    Examples
    --------
    >>> parse_layout("tp=2,dp=4")
    [('tp', 2), ('dp', 4)]
    """
    found: list[tuple[str, int]] = []
    for entry in text.split(","):
        match = re.fullmatch(r"\s*([a-z]+)\s*=\s*([1-9]\d{0,6})\s*", entry)
        if match is None or match[1] not in AXES:
            raise InputError(
                f"--layout: {entry.strip()!r} is not AXIS=RANKS with an axis of {', '.join(AXES)}, "
                "as in tp=2,dp=4"
            )
        if match[1] in dict(found):
            raise InputError(f"--layout: {match[1]} is given twice")
        found.append((match[1], int(match[2])))
    return found


class AxisFinder:
    """Finds axes in the communicators of one program.

    Parameters
    ----------
    program : Program
    ranks : sequence of int
        Global rank of every simulated one.
    world : int
        Ranks of the job.
    recorded : sequence of (tuple of int or None), optional
        Global ranks of each communicator, also those that are missing.

    Attributes
    ----------
    parts : frozenset of int
        Communicators of several ranks that have further members without a trace: they show no
        axis. Messages from one rank to another are none, whichever group they were sent on.
    """

    def __init__(
        self,
        program: Program,
        ranks: Sequence[int],
        world: int,
        recorded: Sequence[tuple[int, ...] | None] = (),
    ) -> None:
        self.program, self.ranks, self.world = program, ranks, world
        groups = program.communicators
        self.groups = [groups.group(c) for c in range(len(groups))]
        self.slot_of: list[tuple[int, int]] = [(-1, -1)] * len(groups)
        for rank in range(program.n_ranks):
            for slot, c in enumerate(program.slots_of(rank).tolist()):
                if self.slot_of[c][0] < 0:
                    self.slot_of[c] = rank, slot
        known = frozenset(ranks)
        self.parts = frozenset(
            c
            for c, named in enumerate(recorded)
            if named
            and len(self.groups[c]) > 1
            and not known.issuperset(named)
            and not self.is_pair(c)
        )

    def said(self, members: Iterable[int]) -> str:
        """Ranks as messages name them."""
        numbers = [str(self.ranks[i]) for i in members]
        more = f", … ({len(numbers)} in all)" if len(numbers) > 8 else ""
        return f"ranks {', '.join(numbers[:8])}{more}"

    def rows(self, c: int) -> tuple[Table, NDArray[np.intp]]:
        """What the first member of a communicator does on it."""
        rank, slot = self.slot_of[c]
        if rank < 0:
            return self.program.table_of(0), np.zeros(0, np.intp)
        table = self.program.table_of(rank)
        return table, table.rows_on(slot)

    def most_bytes(self, c: int) -> int:
        """The largest message on a communicator; -1 if no size is known."""
        table, rows = self.rows(c)
        return int(table.bytes[rows].max(initial=-1))

    def is_pair(self, c: int) -> bool:
        """Whether a communicator carries messages from one rank to another."""
        table, rows = self.rows(c)
        return bool(len(rows)) and table.operation[rows[0]] == Operation.SEND_RECV

    # --- axes that are told ----------------------------------------------------------------------

    def given(self, layout: Sequence[tuple[str, int]]) -> tuple[Axis, ...]:
        """Axes of `layout`, with their strides."""
        axes, stride = [], 1
        for name, size in layout:
            unseen = size > 1 and len({r // stride % size for r in self.ranks}) == 1
            axes.append(Axis(name, size, stride, unseen))
            stride *= size
        if stride != self.world:
            sizes = " × ".join(str(size) for _, size in layout)
            raise InputError(f"--layout: {sizes} are {stride} ranks, but the job has {self.world}")
        return tuple(axes)

    # --- axes that are found ---------------------------------------------------------------------

    def axes(self) -> tuple[Axis, ...]:
        """Find the axes, the innermost first."""
        found = self._pipelines()
        families: dict[tuple[int, int], list[int]] = {}
        for c, members in enumerate(self.groups):
            numbers = {self.ranks[i] for i in members}
            shape = None if self.is_pair(c) or c in self.parts else self._shape(c)
            if shape is not None and not any(numbers <= set(chain) for chain in self._chains):
                families.setdefault(shape, []).append(c)
        for stride, size in sorted(families, key=lambda f: (f[1], f[0])):
            if not _composite(found, stride, size):
                found[stride, size] = self._role_of(families[stride, size])
        return self._without_gaps(found)

    def _shape(self, c: int) -> tuple[int, int] | None:
        """Distance and number of the members of a communicator; None if not at one distance."""
        numbers = sorted(self.ranks[i] for i in self.groups[c])
        if len(numbers) < 2:
            return None
        stride = numbers[1] - numbers[0]
        even = numbers == list(range(numbers[0], numbers[-1] + 1, stride))
        return (stride, len(numbers)) if even else None

    def _pipelines(self) -> dict[tuple[int, int], str]:
        """Ranks that send to one another, as an axis if there are any."""
        import networkx as nx

        graph = nx.Graph(
            [tuple(self.ranks[i] for i in self.groups[c]) for c in self._pairs()],
        )
        self._chains = [sorted(each) for each in nx.connected_components(graph)]
        found: dict[tuple[int, int], str] = {}
        for chain in self._chains:
            stride = chain[1] - chain[0]
            if chain != list(range(chain[0], chain[-1] + 1, stride)):
                raise InputError(
                    f"ranks {', '.join(map(str, chain[:8]))} send to one another, but are not at "
                    "one distance: no pipeline of a grid of ranks; --layout names the axes"
                )
            found[stride, len(chain)] = "pp"
        if len(found) > 1:
            (a, n), (b, m) = list(found)[:2]
            raise InputError(
                f"some ranks send to one another in chains of {n} at a distance of {a}, others of "
                f"{m} at a distance of {b}: no grid of ranks; --layout names the axes"
            )
        return found

    def _pairs(self) -> list[int]:
        return [c for c in range(len(self.groups)) if self.is_pair(c) and len(self.groups[c]) == 2]

    def _role_of(self, communicators: list[int]) -> str:
        """What the heaviest of groups of one shape is for."""

        def weight(c: int) -> int:
            table, rows = self.rows(c)
            return int(np.maximum(table.bytes[rows], 0).sum())

        c = max(communicators, key=lambda c: (weight(c), -c))
        if not weight(c):
            table, rows = self.rows(c)
            word = Operation(int(table.operation[rows[0]])).name.lower().replace("_", "-")
            raise InputError(
                f"{self.said(self.groups[c])}: the sizes of their communications ({word}) are not "
                "on record, and what they are for cannot be told; record shapes "
                "(record_shapes=True), or name the axes with --layout"
            )
        return _role(*self.rows(c))

    def _without_gaps(self, found: dict[tuple[int, int], str]) -> tuple[Axis, ...]:
        """Put axes in order, find the one that is unseen, and give each a name of its own."""
        axes: list[Axis] = []
        expected = 1
        for (stride, size), name in sorted(found.items()):
            if stride < expected:
                other = axes[-1]
                raise InputError(
                    f"the group of {self._example(stride, size)} ({name}) and that of "
                    f"{self._example(other.stride, other.size)} ({other.name}) cannot both be axes "
                    "of one grid; --layout names the axes"
                )
            if stride > expected:
                axes.append(self._unseen(expected, stride))
            axes.append(Axis(name, size, stride))
            expected = stride * size
        if expected < self.world:
            axes.append(self._unseen(expected, self.world))
        self._name_shards(axes)
        numbers: Counter[str] = Counter()
        for i, axis in enumerate(axes):
            numbers[axis.name] += 1
            if numbers[axis.name] > 1:
                axes[i] = Axis(
                    f"{axis.name}{numbers[axis.name]}", axis.size, axis.stride, axis.unseen
                )
        return tuple(axes)

    def _example(self, stride: int, size: int) -> str:
        """A group of so many ranks at one distance, as messages name it."""
        for c, members in enumerate(self.groups):
            if self._shape(c) == (stride, size):
                return self.said(members)
        return f"{size} ranks at a distance of {stride}"  # a pipeline, found pair by pair

    def _name_shards(self, axes: list[Axis]) -> None:
        """Of two axes of gradients, one of which gathers parameters, the other has the replicas."""
        gathers = []
        for i, axis in enumerate(axes):
            if axis.name == "dp":
                own = [c for c in self._family(axis) if self._gathers(c)]
                gathers += [i] if own else []
        if len(gathers) == 1 and sum(axis.name == "dp" for axis in axes) == 2:
            axis = axes[gathers[0]]
            axes[gathers[0]] = Axis("shard", axis.size, axis.stride, axis.unseen)

    def _family(self, axis: Axis) -> list[int]:
        """Communicators along one axis."""
        return [c for c in range(len(self.groups)) if self._shape(c) == (axis.stride, axis.size)]

    def _gathers(self, c: int) -> bool:
        table, rows = self.rows(c)
        return bool((table.operation[bulk_rows(table, rows)] == Operation.ALL_GATHER).any())

    def _unseen(self, stride: int, upto: int) -> Axis:
        """The axis between two others along which no group was found."""
        if upto % stride:
            raise InputError(
                f"{upto} ranks are no whole number of groups of {stride}, as "
                f"ranks 0 to {stride - 1} are by their groups: no grid; --layout names the axes"
            )
        places: dict[int, int] = {}
        for rank in self.ranks:
            places.setdefault(rank // stride % (upto // stride), rank)
        if len(places) > 1:
            a, b = sorted(places.values())[:2]
            raise InputError(
                f"ranks {a} and {b} should be in one group, but are in none: the groups form no "
                "grid; --layout names the axes"
            )
        alone = [c for c, own in enumerate(self.groups) if len(own) == 1 or c in self.parts]
        if not any(self.most_bytes(c) > 0 for c in alone):
            raise InputError(
                f"{len(self.ranks)} of {self.world} ranks are at hand, and none of them shows what "
                "it communicates with the others; --layout names the axes"
            )
        return Axis("dp", upto // stride, stride, unseen=True)


def _role(table: Table, rows: NDArray[np.intp]) -> str:
    """What one rank does on one communicator → what the group is for."""
    rows = bulk_rows(table, rows)
    first = table.step[rows[0]]
    kinds = [Operation(int(each)) for each in table.operation[rows]]
    if Operation.ALL_TO_ALL in kinds:
        return "ep"
    halves = [k for k in kinds if k in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)]
    if halves:
        runs = [(kind, len(list(same))) for kind, same in groupby(halves)]
        gathered = max((n for kind, n in runs if kind is Operation.ALL_GATHER), default=0)
        steps = len(np.unique(table.step[rows]))
        layered = len(runs) > 2 * steps + 1 and gathered < MIN_GATHERS_OF_LAYERS
        return "tp" if layered else "dp"
    of_step = rows[table.step[rows] == first]
    sizes = Counter(table.bytes[of_step].tolist())
    if max(sizes.values()) >= max(MIN_REDUCTIONS_OF_LAYERS, 0.8 * len(of_step)):
        compute = np.cumsum(np.where(table.kind == Kind.KERNEL, table.duration, 0))
        inside = np.flatnonzero(table.step == first)
        before, until = compute[inside[0]], compute[inside[-1]]
        if compute[of_step[0]] - before < MIN_SHARE_BEFORE_GRADIENTS * (until - before):
            return "tp"
    return "dp"


def _composite(found: dict[tuple[int, int], str], stride: int, size: int) -> bool:
    """Whether groups of one shape are axes that were found, one behind the other."""
    reached = stride
    while reached < stride * size:
        n = next((n for at, n in found if at == reached), 0)
        if not n:
            return False
        reached *= n
    return reached == stride * size
