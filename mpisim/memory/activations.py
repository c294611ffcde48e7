"""Activations over a step: what a stage keeps for its backward passes, at the worst moment.

A stage's actions are gone through in order. Within an action layers come one after another, and
within a layer operators: forward, each leaves what it saves; backward, each first gets back what
was recomputed, works on top of it, and frees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add

from ..experiment.plan import Plan
from ..program import Phase
from ..workloads.layout import ModelChunk
from ..workloads.operators import Layer, Operator
from ..workloads.recomputation import kept_bytes, recomputed_layers
from ..workloads.schedules import Action
from .temporaries import needed_for_weights, output, working

__all__ = ["Chunk", "Kinds", "Peak", "chunk", "kept", "peak"]


@dataclass(frozen=True)
class Chunk:
    """What the passes of one micro-batch through a model chunk hold, in bytes.

    Attributes
    ----------
    kept : int
        What a forward leaves for the backward.
    for_weights : int
        What a split backward leaves for the gradients of weights.
    forward, backward, inputs, weights : int
        The most a forward, a whole backward, one of the inputs alone, and one of the weights hold
        at any moment beyond what the stage holds before it.
    going, coming : tuple of int
        The most that is held while the forward is in each layer, and the whole backward, which
        begins with the last layer; beyond what the stage holds before them.
    """

    kept: int
    for_weights: int
    forward: int
    backward: int
    inputs: int
    weights: int
    going: tuple[int, ...]
    coming: tuple[int, ...]


@dataclass(frozen=True)
class Peak:
    """The worst moment of a stage.

    Attributes
    ----------
    kept : int
        The most that is kept between actions; with gradients that are added up, what is kept when
        that action begins.
    total : int
        The most that is held at any moment, temporaries and such gradients included.
    action : Action
        During which that is.
    gradients : int
        What of it are gradients that are added up.
    """

    kept: int
    total: int
    action: Action
    gradients: int = 0


def kept(layer: Layer, plan: Plan, whole: bool) -> int:
    """Return the bytes a layer keeps of one micro-batch; `whole`: all of it is computed again."""
    if whole:
        return layer.checkpoint + kept_bytes(plan, layer.operators)
    return layer.saved_selective if plan.recompute == "selective" else layer.saved


class Kinds(dict[tuple[tuple[Operator, ...], int, bool], "_Layer"]):
    """What layers hold that were worked out already, by their operators and whether all is computed
    again; of one plan, while its network exists."""


def chunk(
    part: ModelChunk, plan: Plan, sizes: Mapping[str, int], known: Kinds | None = None
) -> Chunk:
    """Work out what the passes through a model chunk hold.

    Parameters
    ----------
    part : ModelChunk
    plan : Plan
    sizes : mapping of str to int
        Members of each group of ranks.
    known : Kinds, optional
        Layers of one kind share their operators: each kind is worked out once.
    """
    known = Kinds() if known is None else known
    again = recomputed_layers(plan, part.numbers)
    keeps = [kept(layer, plan, whole) for layer, whole in zip(part.layers, again, strict=True)]
    each = []
    for layer, whole in zip(part.layers, again, strict=True):
        key = (layer.operators, layer.checkpoint, whole)
        if key not in known:
            known[key] = _Layer(layer, plan, whole, sizes)
        each.append(known[key])

    held, going, coming = 0, [], []
    for found, left in zip(each, keeps, strict=True):
        going.append(held + found.forward)
        held += left
    # Backward: what is held changes by the layers behind, which are done.
    inputs = weights = 0
    done = done_inputs = done_weights = 0
    for found, left in zip(reversed(each), reversed(keeps), strict=True):
        coming.append(done + found.backward)
        inputs = max(inputs, done_inputs + found.inputs)
        weights = max(weights, done_weights + found.weights)
        done -= left
        done_inputs += found.for_weights - left
        done_weights -= found.for_weights
    return Chunk(
        kept=held,
        for_weights=-done_weights,
        forward=max([held, *going]),
        backward=max([0, *coming]),
        inputs=max(inputs, done_inputs),
        weights=weights,
        going=tuple(going),
        coming=tuple(coming),
    )


class _Layer:
    """What the passes of one layer hold at most, beyond what was held before each."""

    def __init__(self, layer: Layer, plan: Plan, whole: bool, sizes: Mapping[str, int]) -> None:
        self.for_weights = sum(needed_for_weights(each, sizes) for each in layer.operators)
        again = plan.recompute == "selective"
        self.forward, held = 0, layer.checkpoint if whole else 0
        for operator in layer.operators:
            drops = whole or (again and operator.selective)
            saved = 0 if drops else operator.saved
            # What it saves are its inputs or its own results: besides these, only the last is new.
            own = max(working(operator.forward, sizes), saved + output(operator, sizes))
            self.forward = max(self.forward, held + own)
            held += saved

        self.backward = self._back(layer, plan, whole, sizes, "all")
        self.inputs = self._back(layer, plan, whole, sizes, "input")
        self.weights, held = 0, 0
        for operator in reversed(layer.operators):
            steps = [step for step in operator.backward if step.weight]
            self.weights = max(self.weights, held + working(steps, sizes))
            held -= needed_for_weights(operator, sizes)

    def _back(
        self, layer: Layer, plan: Plan, whole: bool, sizes: Mapping[str, int], part: str
    ) -> int:
        again = plan.recompute == "selective"
        # The input of a layer that is computed again is the first thing its operators save.
        held = most = max(layer.saved - layer.checkpoint, 0) if whole else 0
        for operator in reversed(layer.operators):
            if not whole and again and operator.selective:
                held += operator.saved
            steps = [step for step in operator.backward if part == "all" or not step.weight]
            most = max(most, held + working(steps, sizes, given=output(operator, sizes)))
            held -= operator.saved
            if part == "input":
                held += needed_for_weights(operator, sizes)
                most = max(most, held)
        return most


def peak(actions: Sequence[Action], chunks: Sequence[Chunk], gradients: Sequence[int] = ()) -> Peak:
    """Go through a stage's actions and return its worst moment.

    Of a forward and a backward that overlap, each layer of the one runs beside one layer of the
    other (megatron/core/models/common/model_chunk_schedule_plan.py): both may be at their worst in
    these at once, but what the backward has freed by then is free.

    Parameters
    ----------
    actions : sequence of Action
    chunks : sequence of Chunk
        The model chunks the stage holds.
    gradients : sequence of int
        Bytes in which each chunk's gradients are added up, from its first backward to its last;
        none if not given.
    """
    held = most_kept = most = 0
    worst = actions[0]
    forward, weight = Phase.FORWARD, Phase.WEIGHT  # looked up once: there are many actions
    known: dict[tuple[int, int], int] = {}
    going: Action | None = None  # the forward that the next action runs beside
    last = _last(actions) if gradients else {}
    live: set[int] = set()
    sums = sums_at_worst = kept_at_worst = 0
    paired = [action.paired for action in actions[1:]]
    for i, (action, with_next) in enumerate(zip(actions, [*paired, False], strict=True)):
        found = chunks[action.chunk]
        if with_next:
            going = action
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
        if going is not None:
            key = going.chunk, action.chunk
            if key not in known:
                known[key] = _together(chunks[going.chunk], found)
            top, change = known[key], change + chunks[going.chunk].kept
            going = None
        if action.chunk in last and action.phase is not forward and not action.split:
            live.add(action.chunk)
            sums = sum(gradients[each] for each in live)
        if sums + held + top > most:
            most, worst = sums + held + top, action
            sums_at_worst, kept_at_worst = sums, held
        held += change
        if held > most_kept:
            most_kept = held
        if last.get(action.chunk) == i:
            live.remove(action.chunk)
            sums = sum(gradients[each] for each in live)
    if gradients:
        return Peak(kept_at_worst, most, worst, sums_at_worst)
    # Beside a forward that overlaps a backward not all is kept of either.
    return Peak(kept=min(most, most_kept), total=most, action=worst)


def _together(ahead: Chunk, behind: Chunk) -> int:
    """Return the most that a forward and a backward hold together, layer beside layer."""
    most = max(len(ahead.going), len(behind.coming))
    going = (*ahead.going, *[ahead.kept] * (most - len(ahead.going)))
    coming = (*behind.coming, *[-behind.kept] * (most - len(behind.coming)))
    return max(map(add, going, coming))


def _last(actions: Sequence[Action]) -> dict[int, int]:
    """Return which action completes the gradients of each chunk."""
    return {
        action.chunk: i
        for i, action in enumerate(actions)
        if action.phase is not Phase.FORWARD and not action.split
    }
