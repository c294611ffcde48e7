"""Replay of recorded traces, changed or not, set beside what was measured.

``what_if``
    A program with other durations: factors by kernel, communication, rank.
``jobs``
    Traces → program → simulated step times beside the recorded ones.
``error``
    How far a replay of changed times may be off.
"""

from .jobs import Replay, StepTime, TraceJob, read_again, read_job, replay
from .what_if import WhatIf, change

__all__ = ["Replay", "StepTime", "TraceJob", "WhatIf", "change", "read_again", "read_job", "replay"]
