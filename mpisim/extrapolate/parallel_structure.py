"""A job's program → its parallel structure: a grid of ranks, and what each axis carries.

The axes are found from the groups of ranks (`mpisim.extrapolate.parallel_axes`). Where ranks of a
job are missing, one axis may be unseen: all ranks at hand have one place on it, and communications
whose other members are not there are taken to run along it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..program import Operation, Program
from .parallel_axes import MIN_SHARE_OF_LARGEST, Axis, AxisFinder

__all__ = [
    "MIN_EMBEDDING_BYTES",
    "ParallelStructure",
    "Traffic",
    "find_structure",
    "with_traffic_of",
]

MIN_EMBEDDING_BYTES = 1 << 20
"""Bytes from which on a group that spans stages and something else is taken for several, if only
its ends have joined it: frameworks reduce nothing but norms and flags over such a group."""


@frozen
class Traffic:
    """Traffic of communicators along some axes.

    Attributes
    ----------
    axes : str
        Their names; ``dp×tp`` for a group over two.
    operation : Operation
    bytes : int
        Of one operation; -1 where the recording does not say.
    count : int
        Operations of a rank, in the whole recording; the most of any.
    ranks : int
        Members of a group.
    """

    axes: str
    operation: Operation
    bytes: int
    count: int
    ranks: int


@frozen(eq=False)
class ParallelStructure:
    """The grid of a job.

    Attributes
    ----------
    ranks : tuple of int
        Global rank of every simulated one.
    axes : tuple of Axis
        The innermost, whose neighbours have consecutive ranks, first.
    place : int64, shape (n_ranks, n_axes)
        Of every simulated rank on every axis.
    spans : bool, shape (n_communicators, n_axes)
        Whether the members of a communicator differ along an axis.
    lone : bool, shape (n_communicators,)
        Whether members are not among the ranks at hand.
    traffic : tuple of Traffic
        By axes, the most bytes first.
    notes : tuple of str
        What was assumed.
    """

    ranks: tuple[int, ...]
    axes: tuple[Axis, ...]
    place: NDArray[np.int64]
    spans: NDArray[np.bool_]
    lone: NDArray[np.bool_]
    traffic: tuple[Traffic, ...]
    notes: tuple[str, ...]

    def axis(self, name: str) -> int | None:
        """Return which axis has a name; None if there is none."""
        return next((i for i, axis in enumerate(self.axes) if axis.name == name), None)

    @property
    def text(self) -> str:
        """The axes, the innermost first: ``tp=2,dp=2,pp=2``."""
        return ",".join(f"{axis.name}={axis.size}" for axis in self.axes)

    def carried(self, name: str) -> set[Operation]:
        """Return what groups along an axis, and perhaps others, do but for small messages."""
        found = [each for each in self.traffic if name in each.axes.split("×")]
        most = max((each.bytes for each in found), default=0)
        return {e.operation for e in found if e.bytes < 0 or e.bytes >= MIN_SHARE_OF_LARGEST * most}


def find_structure(
    program: Program,
    ranks: Sequence[int],
    world: int,
    *,
    named: bool,
    layout: Sequence[tuple[str, int]] = (),
    recorded: Sequence[tuple[int, ...] | None] = (),
) -> ParallelStructure:
    """Find the grid of a job in its communicators. Local.

    Parameters
    ----------
    program : Program
        Whole.
    ranks : sequence of int
        Global rank of every simulated one, ascending.
    world : int
        Ranks of the job, of which some may be missing.
    named : bool
        Whether the recording names the members of groups; otherwise they were found by their times,
        which cannot tell apart groups that do the same at the same time.
    layout : sequence of (str, int), optional
        Names and sizes of the axes, the innermost first, in place of those found.
    recorded : sequence of (tuple of int or None), optional
        Global ranks of each communicator, also those that are missing, where the recording names
        them.

    Raises
    ------
    InputError
        If the groups form no grid (naming the group and its ranks), or are not told apart.
    """
    finder = AxisFinder(program, ranks, world, recorded)
    axes = finder.given(layout) if layout else finder.axes()
    place = np.array([[rank // a.stride % a.size for a in axes] for rank in ranks], np.int64)
    place = place.reshape(len(ranks), len(axes))
    _check_full(axes, place, ranks)
    spans = np.zeros((len(program.communicators), len(axes)), bool)
    lone = np.zeros(len(program.communicators), bool)
    notes: list[str] = []
    unseen = [i for i, axis in enumerate(axes) if axis.unseen]
    for c in range(len(program.communicators)):
        members = program.communicators.group(c)
        if len(members) == 1:
            lone[c] = bool(unseen)
            spans[c, unseen] = True
            continue
        spans[c] = _span(axes, place[list(members)], [ranks[i] for i in members])
        if c in finder.parts:
            lone[c] = bool(unseen)
            spans[c, unseen] = True
            continue
        pp = next((i for i, axis in enumerate(axes) if axis.name == "pp"), None)
        if not named and pp is not None and spans[c, pp] and spans[c].sum() > 1:
            size = finder.most_bytes(c)
            if size >= MIN_EMBEDDING_BYTES:
                spans[c] = [i == pp for i in range(len(axes))]
                notes.append(
                    f"{finder.said(members)}, which reduce {size / 2**20:.1f} MiB at one time "
                    "(their groups are not on record), taken for one group a pipeline: gradients "
                    "of tied embeddings"
                )
    for axis in axes:
        if axis.unseen:
            notes.append(
                f"{len(ranks)} of {world} ranks at hand: communications whose other members are "
                f"missing taken to run along {axis.name}, over {axis.size} ranks at a distance of "
                f"{axis.stride}"
            )
    return ParallelStructure(
        tuple(ranks),
        axes,
        place,
        spans,
        lone,
        _traffic(program, axes, place, spans, lone),
        tuple(dict.fromkeys(notes)),
    )


def with_traffic_of(structure: ParallelStructure, program: Program) -> ParallelStructure:
    """Structure, program of the same communicators → structure with the program's traffic.

    Parameters
    ----------
    structure : ParallelStructure
    program : Program
    """
    found = _traffic(program, structure.axes, structure.place, structure.spans, structure.lone)
    return replace(structure, traffic=found)


def _check_full(axes: Sequence[Axis], place: NDArray[np.int64], ranks: Sequence[int]) -> None:
    """Refuse a grid of which single ranks are missing."""
    seen = [np.unique(place[:, i]) for i in range(len(axes))]
    if math.prod(len(each) for each in seen) == len(ranks):
        return
    there = {tuple(row) for row in place.tolist()}
    for index in np.ndindex(*(len(each) for each in seen)):
        wanted = tuple(int(each[i]) for each, i in zip(seen, index, strict=True))
        if wanted not in there:
            number = sum(at * axis.stride for at, axis in zip(wanted, axes, strict=True))
            raise InputError(
                f"rank {number} has no trace, though the grid "
                f"{','.join(f'{a.name}={a.size}' for a in axes)} has ranks beside it on every axis"
            )


def _span(axes: Sequence[Axis], place: NDArray[np.int64], ranks: list[int]) -> list[bool]:
    """Places of the members of a group → the axes along which it runs."""
    counts = [len(np.unique(place[:, i])) for i in range(len(axes))]
    if math.prod(counts) != len(ranks):
        grid = ", ".join(f"{axis.name}={axis.size}" for axis in axes)
        shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
        raise InputError(
            f"ranks {shown} are one group, but no part of a grid {grid}; --layout names the axes"
        )
    return [count > 1 for count in counts]


def _traffic(
    program: Program,
    axes: Sequence[Axis],
    place: NDArray[np.int64],
    spans: NDArray[np.bool_],
    lone: NDArray[np.bool_],
) -> tuple[Traffic, ...]:
    """Traffic of the groups of each kind, the most bytes first."""
    kinds: list[tuple[str, int]] = []
    for c in range(len(program.communicators)):
        along = np.flatnonzero(spans[c]).tolist()
        own = place[list(program.communicators.group(c))]
        sizes = [axes[i].size if lone[c] else len(np.unique(own[:, i])) for i in along]
        kinds.append(("×".join(axes[i].name for i in along) or "alone", math.prod(sizes)))
    most: dict[tuple[str, Operation, int, int], int] = {}
    for rank in range(program.n_ranks):
        table = program.table_of(rank)
        done: Counter[tuple[str, Operation, int, int]] = Counter()
        for slot, c in enumerate(program.slots_of(rank).tolist()):
            label, ranks = kinds[c]
            rows = table.rows_on(slot)
            for operation, size in zip(table.operation[rows].tolist(), table.bytes[rows].tolist()):
                done[label, Operation(operation), size, ranks] += 1
        for key, count in done.items():
            most[key] = max(most.get(key, 0), count)
    found = [
        Traffic(label, operation, size, count, ranks)
        for (label, operation, size, ranks), count in most.items()
    ]
    order = {label: i for i, label in enumerate(axis.name for axis in axes)}
    found.sort(key=lambda t: (order.get(t.axes, 99), t.axes, -t.bytes * t.count, t.operation))
    return tuple(found)
