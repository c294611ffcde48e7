"""A stage of a pipeline → its passes and messages, in the order of 1F1B or GPipe."""

from __future__ import annotations

from ..program import Phase
from ..schedules import pipeline

__all__ = ["OF_FIRST", "OF_LAST", "ORDERS", "RECEIVE", "SEND", "Unit", "stage_order"]

ORDERS = ("1f1b", "gpipe")
"""Schedules of which a recorded stage is read."""

SEND = {"F": "send forward", "B": "send backward"}
RECEIVE = {"F": "receive forward", "B": "receive backward"}
OF_FIRST = ("receive forward", "send backward")
"""Messages that the first stage has not."""
OF_LAST = ("send forward", "receive backward")
"""Messages that the last stage has not."""

Unit = tuple[str, ...] | int
"""Messages that are exchanged at once; or a pass, by its micro-batch counted from 1: forward, or
negative, backward."""


def stage_order(
    schedule: str, stage: int, stages: int, micro_batches: int, fused: bool
) -> list[Unit]:
    """Stage of a pipeline → its passes and messages in the order of a schedule.

    Between a forward and a backward Megatron-LM sends and receives at once
    (megatron/core/pipeline_parallel/schedules.py), otherwise one behind the other.

    Parameters
    ----------
    schedule : str
        One of `ORDERS`.
    stage, stages, micro_batches : int
    fused : bool
        Whether messages of two directions are exchanged at once.

    Examples
    --------
    >>> stage_order("1f1b", 1, 2, 1, fused=True)
    [('receive forward',), 1, -1, ('send backward',)]
    """
    missing = (OF_FIRST if stage == 0 else ()) + (OF_LAST if stage == stages - 1 else ())
    found: list[Unit] = []

    def messages(*tokens: str) -> None:
        own = tuple(token for token in tokens if token not in missing)
        if fused and own:
            found.append(own)
        else:
            found.extend((token,) for token in own)

    before = ""
    for action in pipeline(schedule, stages=stages, micro_batches=micro_batches).actions[stage]:
        kind = "F" if action.phase is Phase.FORWARD else "B"
        if before and before != kind:
            messages(SEND[before], RECEIVE[kind])
        else:
            if before:
                messages(SEND[before])
            messages(RECEIVE[kind])
        number = action.micro_batch + 1
        found.append(number if kind == "F" else -number)
        before = kind
    messages(SEND[before])
    return found
