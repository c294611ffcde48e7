"""A stage of a pipeline → its passes and messages, in the order of a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from ..base.errors import InputError
from ..base.frozen import frozen
from ..program import Phase
from ..schedules import Action, Pipeline, pipeline

__all__ = ["SCHEDULES", "Message", "Pass", "PipelineOrder", "Unit", "orders_of"]

SCHEDULES = ("1f1b", "gpipe", "interleaved")
"""Schedules of which a recorded stage is read, and in which a new one is written."""

MOST_CHUNKS = 64
"""Chunks of a stage up to which an interleaved schedule is looked for."""


class Pass(NamedTuple):
    """A pass of one micro-batch through one chunk of a stage's layers."""

    forward: bool
    chunk: int
    micro_batch: int


class Message(NamedTuple):
    """A message of a stage.

    Attributes
    ----------
    token : str
        Whether it is sent or received, and of which pass: ``"send forward"``.
    peer : int
        The other stage.
    """

    token: str
    peer: int


Unit = tuple[Message, ...] | Pass
"""Messages that are exchanged at once; or a pass."""


@frozen
class PipelineOrder:
    """The order in which the stages of a pipeline work.

    Attributes
    ----------
    schedule : str
        One of `SCHEDULES`.
    stages, micro_batches : int
    chunks : int
        Of each stage: 1 but for ``interleaved``.
    group : int
        Micro-batches that a stage takes through a chunk before it turns to the next; 0 but for
        ``interleaved``.
    fused : bool
        Whether messages are exchanged in batches: those between a forward and a backward, of
        several chunks always, a forward and the backward behind it as one (Megatron-LM without
        ``overlap_p2p_comm``, megatron/core/pipeline_parallel/schedules.py); else one by one.
    """

    schedule: str
    stages: int
    micro_batches: int
    chunks: int
    group: int
    fused: bool

    @property
    def parts(self) -> int:
        """Of the model: chunk c of stage s is part c × stages + s."""
        return self.stages * self.chunks

    @property
    def text(self) -> str:
        """For people."""
        name = {"1f1b": "1F1B", "gpipe": "GPipe"}.get(self.schedule, self.schedule)
        return name if self.chunks == 1 else f"{name}, {self.chunks} chunks a stage"

    def laid_out(self) -> Pipeline:
        """Return the schedule; raises InputError where it cannot work with these numbers."""
        group = self.group or None
        return pipeline(self.schedule, self.stages, self.micro_batches, self.chunks, group=group)

    def of(self, stage: int) -> list[Unit]:
        """Passes and messages of one stage, in order.

        Examples
        --------
        >>> order = PipelineOrder("1f1b", 2, 1, 1, 0, fused=True)
        >>> [each.token for unit in order.of(0) if not isinstance(unit, Pass) for each in unit]
        ['send forward', 'receive backward']
        """
        laid_out = self.laid_out()
        actions = laid_out.actions[stage]
        several = self.chunks > 1
        starts = laid_out.units(stage, joins_turns=self.fused and several).first[1:].tolist()
        units = [actions[a:b] for a, b in pairwise([*starts, len(actions)])]
        found: list[Unit] = []
        for before, after in pairwise([(), *units, ()]):
            sent = [(a, _message(laid_out, stage, a, sends=True)) for a in before]
            received = [(a, _message(laid_out, stage, a, sends=False)) for a in after]
            messages = [(action, each) for action, each in [*sent, *received] if each]
            both_ways = len({action.phase for action, _ in messages}) > 1
            if messages and self.fused and (several or both_ways):
                found.append(tuple(each for _, each in messages))
            else:
                found += [(each,) for _, each in messages]
            found += [Pass(a.phase is Phase.FORWARD, a.chunk, a.micro_batch) for a in after]
        return found


def _message(laid_out: Pipeline, stage: int, action: Action, *, sends: bool) -> Message | None:
    """What a pass sends, or receives."""
    forward = action.phase is Phase.FORWARD
    there = laid_out.next if forward == sends else laid_out.previous
    other = there(stage, action.chunk)
    if other is None:
        return None
    way = "forward" if forward else "backward"
    return Message(f"{'send' if sends else 'receive'} {way}", other[0])


def orders_of(stages: int, stage: int, messages: int, fused: bool) -> Iterator[PipelineOrder]:
    """Number of a stage's messages → the orders that have as many.

    Parameters
    ----------
    stages, stage : int
    messages : int
        Sent and received by the stage in a step.
    fused : bool
        Whether messages are exchanged in batches.
    """
    at_end = stage in (0, stages - 1)
    each = 2 if at_end else 4
    if messages and messages % each == 0:
        for schedule in ("1f1b", "gpipe"):
            yield PipelineOrder(schedule, stages, messages // each, 1, 0, fused)
    for chunks in range(2, MOST_CHUNKS):
        each = 4 * chunks - (2 if at_end else 0)
        micro_batches = messages // each
        if micro_batches < stages:
            return
        if messages % each:
            continue
        for group in range(stages, micro_batches + 1):
            order = PipelineOrder("interleaved", stages, micro_batches, chunks, group, fused)
            try:
                order.laid_out()
            except InputError:
                continue
            yield order
