"""Replay of recorded traces, changed or not, compared with the recorded step times.

Read in this order.

``what_if``
    A program with other durations: factors by kernel, communication, rank.
``jobs``
    Traces → program → replayed step times and the recorded ones.
``error``
    Error of a replay with changed times.
``origin``
    What a replay was made of, as a text that results files keep.
"""

from .jobs import Replay, ReplayedStep, TraceJob, read_job, replay, reread_job
from .origin import ReplayOrigin
from .what_if import WhatIf, apply_what_if

__all__ = [
    "Replay",
    "ReplayOrigin",
    "ReplayedStep",
    "TraceJob",
    "WhatIf",
    "apply_what_if",
    "read_job",
    "replay",
    "reread_job",
]
