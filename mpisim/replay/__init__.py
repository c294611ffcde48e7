"""Replay of recorded traces, changed or not, compared with the recorded step times.

Read in this order.

``what_if``
    A program with other durations: factors by kernel, communication, rank.
``jobs``
    Traces → program → replayed step times and the recorded ones.
``kernel_times``
    The kernels of a recording on another GPU.
``reprice``
    Recorded kernels and communications with the times of another GPU or cluster.
``error``
    Error of a replay with changed times.
``origin``
    What a replay was made of, as a text that results files keep.
"""

from .jobs import Replay, ReplayedStep, TraceJob, read_job, replay, reread_job
from .origin import Pricing, ReplayOrigin
from .reprice import Repriced, Repricing, reprice
from .what_if import WhatIf, apply_what_if

__all__ = [
    "Pricing",
    "Replay",
    "ReplayOrigin",
    "ReplayedStep",
    "Repriced",
    "Repricing",
    "TraceJob",
    "WhatIf",
    "apply_what_if",
    "read_job",
    "replay",
    "reprice",
    "reread_job",
]
