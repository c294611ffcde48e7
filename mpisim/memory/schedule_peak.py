"""Schedule of a stage, memory of its model chunks → peak of its activation memory in a step.

Actions (forward and backward passes) come in the order of the schedule. Each raises the memory to
its own peak for a while, and leaves it changed by the bytes it keeps or frees
(`mpisim.memory.activations`).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import NamedTuple

from ..base.frozen import frozen
from ..program import Phase
from ..schedules import Action
from .activations import ChunkMemory

__all__ = ["Moment", "Peak", "peak"]


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
    actions: Sequence[Action],
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
    actions : sequence of Action
    chunks : sequence of ChunkMemory
        The model chunks the stage holds.
    gradients : sequence of int
        Bytes in which each chunk's gradients are accumulated, from its first backward to its last;
        none if not given.
    moments : list of Moment, optional
        To be filled with those of all actions, in order.
    """
    held = most_kept = most = 0
    worst = actions[0]
    forward, weight = Phase.FORWARD, Phase.WEIGHT  # looked up once: there are many actions
    known: dict[tuple[int, int], int] = {}
    overlapped: Action | None = None  # the forward that the next action runs beside
    last = _last_gradients(actions) if gradients else {}
    live: set[int] = set()
    sums = sums_at_worst = kept_at_worst = 0
    paired = [action.paired for action in actions[1:]]
    for i, (action, with_next) in enumerate(zip(actions, [*paired, False], strict=True)):
        found = chunks[action.chunk]
        if with_next:
            overlapped = action
            most_kept = max(most_kept, held + found.kept)
            continue
        if action.phase is forward:
            top, change = found.forward, found.kept
        elif action.phase is weight:
            top, change = found.weights, -found.for_weights
        elif action.split:
            top, change = found.inputs, found.for_weights - found.kept
        else:
            top, change = found.backward, -found.kept
        first = i
        if overlapped is not None:
            first = i - 1
            key = overlapped.chunk, action.chunk
            if key not in known:
                known[key] = _together(chunks[overlapped.chunk], found)
            top, change = known[key], change + chunks[overlapped.chunk].kept
            overlapped = None
        if last and action.phase is not forward and not action.split:
            live.add(action.chunk)
            sums = sum(gradients[each] for each in live)
        before = sums
        if sums + held + top > most:
            most, worst = sums + held + top, action
            sums_at_worst, kept_at_worst = sums, held
        held += change
        if held > most_kept:
            most_kept = held
        if last and last.get(action.chunk) == i:
            live.remove(action.chunk)
            sums = sum(gradients[each] for each in live)
        if moments is not None:
            moments.append(Moment(first, i, before + held - change + top, sums + held))
    if gradients:
        return Peak(kept_at_worst, most, worst, sums_at_worst)
    # Beside a forward that overlaps a backward not all is kept of either.
    return Peak(kept=min(most, most_kept), total=most, action=worst)


def _together(ahead: ChunkMemory, behind: ChunkMemory) -> int:
    """A forward that overlaps a backward → most bytes both hold, advancing a layer at a time."""
    most = max(len(ahead.forward_by_layer), len(behind.backward_by_layer))
    forward = (*ahead.forward_by_layer, *[ahead.kept] * (most - len(ahead.forward_by_layer)))
    backward = (*behind.backward_by_layer, *[-behind.kept] * (most - len(behind.backward_by_layer)))
    return max(map(add, forward, backward))


def _last_gradients(actions: Sequence[Action]) -> dict[int, int]:
    """Return the index of the action that completes the gradients of each chunk."""
    return {
        action.chunk: i
        for i, action in enumerate(actions)
        if action.phase is not Phase.FORWARD and not action.split
    }
