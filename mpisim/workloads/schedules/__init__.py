"""Pipeline schedules: in which order each stage works through its micro-batches.

A schedule knows nothing of time, bytes or GPUs. It says what each stage does after what; bubbles
follow from the durations.

``pipeline``
    Lay out a schedule for given numbers of stages and micro-batches, as a `Pipeline`.
``Pipeline``
    What each stage does, which parts of the model it holds, and what it keeps at most.
``Action``
    A forward, a backward or the gradients of weights, of one micro-batch in one model chunk.
``SCHEDULES``
    The kinds of schedules by name, each described by a `Schedule`.
"""

from .catalogue import SCHEDULES, Schedule, pipeline
from .layout import Action, Pipeline

__all__ = ["SCHEDULES", "Action", "Pipeline", "Schedule", "pipeline"]
