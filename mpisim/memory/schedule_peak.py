"""Schedule of a stage, memory of its model chunks → peak of its activation memory in a step.

Actions (forward and backward passes) come in the order of the schedule. Each raises the memory to
its own peak for a while, and leaves it changed by the bytes it keeps or frees
(`mpisim.memory.activations`).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..program import Phase
from ..schedules import Action, Pipeline
from ..schedules.units import ActionColumns
from .activations import ChunkMemory

__all__ = ["Moment", "Peak", "peak"]

Ints = NDArray[np.int64]

_KIND = np.full((max(Phase) + 1, 2), 3)
_KIND[Phase.FORWARD], _KIND[Phase.WEIGHT], _KIND[Phase.BACKWARD, 1] = 0, 1, 2
"""The kind of an action in `_of_actions`, by its phase and whether it is split."""


@frozen
class Peak:
    """The moment of a step at which a stage holds most.

    Attributes
    ----------
    kept : int
        The most that is kept between actions; with gradients that are accumulated, what is kept
        when that action begins.
    total : int
        The most that is held at any moment, temporaries and such gradients included.
    action : Action
        The action during which that is.
    gradients : int
        Accumulated gradients at that moment.
    """

    kept: int
    total: int
    action: Action
    gradients: int = 0


class Moment(NamedTuple):
    """Activation memory of a pipeline stage during one forward or backward, or two that overlap.

    Attributes
    ----------
    first, last : int
        Numbers of the actions; the same where one runs by itself.
    during, after : int
        The most that is held during them, and what is held behind them.
    """

    first: int
    last: int
    during: int
    after: int


def peak(
    pipeline: Pipeline,
    stage: int,
    chunks: Sequence[ChunkMemory],
    gradients: Sequence[int] = (),
    moments: list[Moment] | None = None,
) -> Peak:
    """Actions of a stage, memory of its chunks → the moment at which it holds most.

    Of a forward and a backward that overlap, each layer of the one runs beside one layer of the
    other (megatron/core/models/common/model_chunk_schedule_plan.py): both may be at their worst in
    these at once, but what the backward has freed by then is free.

    Parameters
    ----------
    pipeline : Pipeline
    stage : int
    chunks : sequence of ChunkMemory
        The model chunks the stage holds.
    gradients : sequence of int
        Bytes in which each chunk's gradients are accumulated, from its first backward to its last;
        none if not given.
    moments : list of Moment, optional
        To be filled with those of all actions, in order.
    """
    actions, of = pipeline.actions[stage], pipeline.columns[stage]
    top, change = _of_actions(of, chunks)
    first: Sequence[int] | Ints = range(len(actions))
    last = first
    ahead = np.flatnonzero(of.paired[1:])  # the forwards that the next action runs beside
    beside = change[ahead]
    if len(ahead):  # the second stands for both
        pairs = list(zip(of.chunk[ahead].tolist(), of.chunk[ahead + 1].tolist(), strict=True))
        known = {pair: _together(*(chunks[each] for each in pair)) for pair in set(pairs)}
        top[ahead + 1] = [known[pair] for pair in pairs]
        change[ahead + 1] += beside
        last = np.delete(np.arange(len(actions)), ahead)
        first = last - np.isin(last, ahead + 1)
        top, change = top[last], change[last]
    freed = change.cumsum()
    held = freed - change  # before each
    total = held + top
    before = after = np.zeros(1, np.int64)
    if gradients:
        before, after = _accumulated(of, np.asarray(last), gradients)
        total += before
    worst = int(total.argmax())
    if moments is not None:
        columns = first, last, total, after + freed
        moments += map(Moment, *(np.asarray(column).tolist() for column in columns))
    most, action = int(total[worst]), actions[last[worst]]
    if gradients:
        return Peak(int(held[worst]), most, action, int(before[worst]))
    # Beside a forward that overlaps a backward not all is kept of either.
    most_kept = max(int(freed.max()), int(held.max()))
    if len(ahead):
        at = np.searchsorted(last, ahead + 1)
        most_kept = max(most_kept, int((held[at] + beside).max()))
    return Peak(kept=min(most, most_kept), total=most, action=action)


def _of_actions(of: ActionColumns, chunks: Sequence[ChunkMemory]) -> tuple[Ints, Ints]:
    """Return the most that each action holds beyond what is held before it, and what it adds."""
    kinds = [
        [(each.forward, each.kept) for each in chunks],
        [(each.weights, -each.for_weights) for each in chunks],
        [(each.inputs, each.for_weights - each.kept) for each in chunks],
        [(each.backward, -each.kept) for each in chunks],
    ]
    found = np.array(kinds, np.int64)[_KIND[of.phase, of.split], of.chunk]
    return found[:, 0], found[:, 1]


def _accumulated(of: ActionColumns, last: Ints, gradients: Sequence[int]) -> tuple[Ints, Ints]:
    """Return the gradients that are accumulated during each action, and behind it.

    Those of a chunk, from its first completion of gradients to its last.

    Parameters
    ----------
    of : ActionColumns
    last : int64, shape (m,)
        The actions asked for.
    gradients : sequence of int
        Of each chunk.
    """
    during, after = np.zeros((2, len(last)), np.int64)
    completes = (of.phase != Phase.FORWARD) & (of.split == 0)
    for chunk, size in enumerate(gradients):
        own = np.flatnonzero(completes & (of.chunk == chunk))
        if len(own):
            during[(last >= own[0]) & (last <= own[-1])] += size
            after[(last >= own[0]) & (last < own[-1])] += size
    return during, after


def _together(ahead: ChunkMemory, behind: ChunkMemory) -> int:
    """A forward that overlaps a backward → most bytes both hold, advancing a layer at a time."""
    most = max(len(ahead.forward_by_layer), len(behind.backward_by_layer))
    forward = (*ahead.forward_by_layer, *[ahead.kept] * (most - len(ahead.forward_by_layer)))
    backward = (*behind.backward_by_layer, *[-behind.kept] * (most - len(behind.backward_by_layer)))
    return max(map(add, forward, backward))
