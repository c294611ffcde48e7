"""Replay of recorded traces, changed or not, compared with the recorded step times.

Read in this order.

``what_if``
    A program with other durations: factors by kernel, communication, rank.
``jobs``
    Traces → program → replayed step times and the recorded ones.
``error``
    Error of a replay with changed times.
"""

from .jobs import Replay, ReplayedStep, TraceJob, read_job, replay, reread_job
from .what_if import WhatIf, apply_what_if

__all__ = [
    "Replay",
    "ReplayedStep",
    "TraceJob",
    "WhatIf",
    "apply_what_if",
    "read_job",
    "replay",
    "reread_job",
]
