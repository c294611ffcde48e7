"""Pipeline schedules: in which order each stage works through its micro-batches.

A schedule knows nothing of time, bytes or GPUs. It says what each stage does after what; bubbles
follow from the durations.

``pipeline``
    Lay out a schedule for given numbers of stages and micro-batches, as a `Pipeline`.
``Pipeline``
    What each stage does, which parts of the model it holds, and how much it keeps.
``Action``
    A forward, a backward or the gradients of weights, of one micro-batch in one model chunk.
``check_schedule``
    Refuse numbers that a schedule cannot work with, without laying it out.
``parts_of_stage``
    Which parts of the model a stage holds, without laying the schedule out.
``Units``
    What a stage does between two exchanges of messages, as columns.
``SCHEDULES``
    The kinds of schedules by name, each described by a `Schedule`.

Read `units` and `actions` (the data), `alternating` (the orders of pipelines in one direction),
`zb_v` (of parts in a V), `chimera` (of two pipelines in opposite directions), `dualpipe` (of two
that overlap each other, and of half of their stages), then `catalogue`. To add a schedule: its
order, its entry in `SCHEDULES` and its name in `ScheduleName`.
"""

from .actions import Action, Pipeline, PipelineSize
from .catalogue import (
    CHUNKS_IN_A_V,
    SCHEDULES,
    Schedule,
    ScheduleName,
    check_schedule,
    parts_of_stage,
    pipeline,
)
from .units import ActionColumns, Units

__all__ = [
    "CHUNKS_IN_A_V",
    "SCHEDULES",
    "Action",
    "ActionColumns",
    "Pipeline",
    "PipelineSize",
    "Schedule",
    "ScheduleName",
    "Units",
    "check_schedule",
    "parts_of_stage",
    "pipeline",
]
