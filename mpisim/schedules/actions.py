"""Actions of the stages of a pipeline, and the parts of the model that stages hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from ..base.distinct import numbered
from ..base.frozen import frozen
from ..program import Phase
from .units import ActionColumns, Units

__all__ = ["Action", "Order", "Pipeline", "PipelineSize", "Place", "part_of", "repeated"]

Place = tuple[int, int]
"""A chunk and a micro-batch."""


class PipelineSize(NamedTuple):
    """Numbers that a schedule is laid out for.

    Attributes
    ----------
    stages, micro_batches : int
        1 or more.
    chunks : int
        Model chunks a stage.
    group : int
        Micro-batches that a stage takes through one chunk before it turns to the next.
    paired : bool
        Whether a forward and the backward after it run overlapped.
    """

    stages: int
    micro_batches: int
    chunks: int
    group: int
    paired: bool


@frozen(slots=True)
class Action:
    """A pass of one micro-batch through one model chunk of a stage.

    Attributes
    ----------
    phase : Phase
        FORWARD; BACKWARD (the whole of it, or the gradients of the inputs alone where `split`);
        WEIGHT (gradients of the weights).
    chunk : int
        Number among the model chunks that the stage holds.
    micro_batch : int
    split : bool
        Of a BACKWARD: its gradients of weights come as a WEIGHT action of their own.
    paired : bool
        It runs overlapped with the action just before it: both start when both can.
    """

    phase: Phase
    chunk: int
    micro_batch: int
    split: bool = False
    paired: bool = False


Order = tuple[Action, ...]
"""The actions of one stage, from first to last."""


def repeated(orders: Sequence[Order], runs: int, micro_batches: int) -> tuple[Order, ...]:
    """Orders of all stages in one run → the same in several, one after another.

    Parameters
    ----------
    orders : sequence of Order
    runs, micro_batches : int
        Runs, and micro-batches of each: those of the i-th follow those of the runs before.
    """
    if runs == 1:
        return tuple(orders)
    return tuple(
        tuple(
            replace(action, micro_batch=run * micro_batches + action.micro_batch)
            for run in range(runs)
            for action in order
        )
        for order in orders
    )


def part_of(stage: int, chunk: int, stages: int, *, v_shaped: bool = False) -> int:
    """Stage and chunk → number of the part of the model, where each part is held once.

    Parameters
    ----------
    stage, chunk, stages : int
    v_shaped : bool
        Whether parts lie in a V, or else in a loop: see `Pipeline`.
    """
    place = stages - 1 - stage if v_shaped and chunk else stage
    return chunk * stages + place


@frozen
class Pipeline:
    """A schedule laid out for given numbers of stages and micro-batches.

    The model is cut into `parts` in sequence. A stage holds `chunks` of them:

    - in a loop: chunk c of stage s is part ``c × stages + s``;
    - in a V: chunk 0 of stage s is part s, chunk 1 part ``2 × stages - 1 - s``;
    - where every part is held twice, mirrored: chunk 0 of stage s is part s; chunk 1 is part
      ``stages - 1 - s`` of a second pipeline, which runs from the last stage to the first and takes
      the second half of the micro-batches.

    Attributes
    ----------
    name : str
        A key of `SCHEDULES`.
    stages, chunks, micro_batches : int
    actions : tuple of tuple of Action
        Of each stage, in the order of execution. Between two chunks, forward or backward, messages
        are sent and received in the same order.
    parts : int
        ``stages × chunks``, or `stages` where every part is held twice.
    v_shaped : bool
        Whether parts lie in a V.
    """

    name: str
    stages: int
    chunks: int
    micro_batches: int
    actions: tuple[Order, ...]
    parts: int
    v_shaped: bool = False

    @cached_property
    def columns(self) -> tuple[ActionColumns, ...]:
        """The actions of each stage as columns."""
        # Stages share the objects: each is looked into once.
        counts = [len(order) for order in self.actions]
        every = list(chain.from_iterable(self.actions))
        _, first, which = numbered(np.fromiter(map(id, every), np.int64, len(every)))
        distinct = [every[i] for i in first.tolist()]
        found = np.array(
            [
                (each.phase, each.chunk, each.micro_batch, each.split, each.paired)
                for each in distinct
            ],
            np.int64,
        ).reshape(-1, len(ActionColumns._fields))
        return tuple(
            ActionColumns(*found[own].T.copy()) for own in np.split(which, np.cumsum(counts)[:-1])
        )

    def units(self, stage: int, *, joins_turns: bool) -> Units:
        """Return the units of a stage's actions; kept, since plans that are compared share them.

        Parameters
        ----------
        stage : int
        joins_turns : bool
            As for `Units.of`.
        """
        key = stage, joins_turns
        if key not in self._units:
            self._units[key] = Units.of(self.columns[stage], joins_turns=joins_turns)
        return self._units[key]

    @cached_property
    def _units(self) -> dict[tuple[int, bool], Units]:
        return {}

    @property
    def mirrored(self) -> bool:
        """Whether every part is held twice, for pipelines of both directions."""
        return self.parts < self.stages * self.chunks

    def part(self, stage: int, chunk: int) -> int:
        """Stage and chunk → number of the part of the model.

        Parameters
        ----------
        stage, chunk : int
            From 0; less than `stages` and `chunks`.

        Returns
        -------
        int
            From 0 to `parts` - 1.
        """
        if self.mirrored:
            return stage if chunk == 0 else self.stages - 1 - stage
        return part_of(stage, chunk, self.stages, v_shaped=self.v_shaped)

    def next(self, stage: int, chunk: int) -> tuple[int, int] | None:
        """Stage and chunk that the output goes to; None after the last part.

        Parameters
        ----------
        stage, chunk : int
            From 0; those that hold the part.
        """
        return self._holder(chunk, self.part(stage, chunk) + 1)

    def previous(self, stage: int, chunk: int) -> tuple[int, int] | None:
        """Stage and chunk that the input comes from; None before the first part.

        Parameters
        ----------
        stage, chunk : int
            From 0; those that hold the part.
        """
        return self._holder(chunk, self.part(stage, chunk) - 1)

    def _holder(self, chunk: int, part: int) -> tuple[int, int] | None:
        """Stage and chunk of a part, for the micro-batches that pass through `chunk`."""
        if not 0 <= part < self.parts:
            return None
        if self.mirrored:
            return (part if chunk == 0 else self.stages - 1 - part), chunk
        chunk, place = divmod(part, self.stages)
        return (self.stages - 1 - place if self.v_shaped and chunk else place), chunk

    def peak(self, stage: int, saved: Sequence[int], weight_saved: Sequence[int] = ()) -> int:
        """Peak of what a stage keeps for its backward passes, over the actions of a step.

        Parameters
        ----------
        stage : int
        saved : sequence of int, shape (chunks,)
            What a forward of each chunk leaves for its backward, in bytes.
        weight_saved : sequence of int, shape (chunks,), optional
            What of it a split backward still leaves for its WEIGHT action, in bytes; nothing if
            not given.

        Returns
        -------
        int
            Bytes.
        """
        for_weights = weight_saved or [0] * self.chunks
        kept = most_kept = 0
        for action in self.actions[stage]:
            if action.phase is Phase.FORWARD:
                kept += saved[action.chunk]
                most_kept = max(most_kept, kept)
            elif action.phase is Phase.WEIGHT:
                kept -= for_weights[action.chunk]
            else:
                kept -= saved[action.chunk] - (for_weights[action.chunk] if action.split else 0)
        return most_kept
