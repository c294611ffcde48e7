"""The grid of a recorded job and a number of replicas → the ranks of the new job, or a refusal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..program import Operation, Program
from .parallel_axes import Axis
from .parallel_structure import ParallelStructure

__all__ = ["NewRanks", "check_replicas", "new_ranks"]

_REDUCTIONS = (Operation.ALL_REDUCE, Operation.REDUCE_SCATTER, Operation.REDUCE)


@frozen(eq=False)
class NewRanks:
    """Ranks of the new job.

    Attributes
    ----------
    axes : tuple of Axis
    place : int64, shape (n, n_axes)
    source : int64, shape (n,)
        The simulated rank of the recording that each is a copy of.
    """

    axes: tuple[Axis, ...]
    place: NDArray[np.int64]
    source: NDArray[np.int64]


def check_replicas(
    program: Program, structure: ParallelStructure, along: int | None, replicas: int
) -> None:
    """Refuse a change of the axis of replicas that would change what the ranks compute.

    Parameters
    ----------
    program : Program
        Whole, as recorded.
    structure : ParallelStructure
    along : int or None
        The axis of replicas, if there is one.
    replicas : int

    Raises
    ------
    InputError
        If there is no such axis, or it carries something else than gradients and parameters.
    """
    if along is None:
        if replicas != 1:
            raise InputError(
                f"--dp {replicas}: the grid {structure.text} has no axis of replicas; --layout "
                "names the axes"
            )
        return
    if replicas == structure.axes[along].size:
        return
    if Operation.ALL_TO_ALL in structure.carried("dp"):
        raise InputError(
            f"--dp {replicas}: an all-to-all runs along dp={structure.axes[along].size}: what it "
            "exchanges (tokens of experts, rows of embedding tables) would be cut otherwise"
        )
    carried = structure.carried("dp")
    if carried and carried.isdisjoint((*_REDUCTIONS, Operation.UNKNOWN)):
        words = ", ".join(sorted(each.name.lower().replace("_", "-") for each in carried))
        raise InputError(
            f"--dp {replicas}: nothing is reduced along dp={structure.axes[along].size} ({words}): "
            "the recording has no gradients of replicas; --layout names the axes"
        )
    bits = program.operation_bits
    for c in np.flatnonzero(structure.spans[:, along] & ~structure.lone).tolist():
        group = list(program.communicators.group(c))
        places = len(np.unique(structure.place[group, along]))
        sends = bool(bits[c] >> Operation.SEND_RECV & 1)
        if sends or places < structure.axes[along].size:
            names = ", ".join(str(structure.ranks[i]) for i in group[:8])
            why = "send to one another" if sends else "are a group of their own"
            raise InputError(
                f"--dp {replicas}: ranks {names} {why}, though they are replicas by the grid "
                f"{structure.text}: what more replicas would do cannot be told"
            )


def new_ranks(structure: ParallelStructure, along: int | None, replicas: int) -> NewRanks:
    """Grid of the recording → the ranks of the new grid, and what each is a copy of.

    Parameters
    ----------
    structure : ParallelStructure
    along : int or None
        The axis of replicas, if there is one.
    replicas : int

    Raises
    ------
    InputError
        If ranks are missing along another axis.
    """
    axes, stride = [], 1
    for i, axis in enumerate(structure.axes):
        size = replicas if i == along else axis.size
        if axis.unseen and i != along:
            raise InputError(
                f"the ranks at hand are all at one place of {axis.name}={axis.size}: only missing "
                "replicas (dp) can be filled in"
            )
        axes.append(Axis(axis.name, size, stride))
        stride *= size
    place = np.array([np.arange(stride) // axis.stride % axis.size for axis in axes], np.int64).T
    place = place.reshape(stride, len(axes))
    traced = {tuple(row): i for i, row in enumerate(structure.place.tolist())}
    like = place.copy()
    if along is not None:
        there = np.unique(structure.place[:, along])
        like[:, along] = there[place[:, along] % len(there)]
    source = np.array([traced[tuple(row)] for row in like.tolist()], np.int64)
    return NewRanks(tuple(axes), place, source)
