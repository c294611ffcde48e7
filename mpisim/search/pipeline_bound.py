"""A pipeline with the least times of its passes → a time that its step cannot beat.

The bound of a single stage (:mod:`.bound`) knows no waiting but that at both ends. Here all passes
of all stages are gone through, in the order of the schedule:

- A stage's passes run one after another on its compute stream.
- A forward needs the output of the part before it, a backward the gradients of the part behind it.
  Between stages these come as messages, which take no less than alone on the network, and start
  when the pass that made them has ended and the receiver has posted its receive.
- Receives are posted as :mod:`mpisim.workloads.messages` writes them. Where messages do not
  overlap, behind everything before the pass. Where they do, behind the last kernel of the pass
  before, if that is of the same phase, and of the one before that otherwise.

Nothing else is waited for. Each time is a maximum of sums of times that the simulation has, too, so
none is later than there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..program import Phase
from ..schedules import Pipeline

__all__ = ["PassTimes", "pipeline_time"]

_FORWARD, _BACKWARD = Phase.FORWARD, Phase.BACKWARD


class PassTimes(NamedTuple):
    """The least times of one micro-batch on a part of the model, in ps.

    Attributes
    ----------
    forward, backward : int
        Until the next pass can begin; `backward` with recomputation and gradients of weights.
    weights : int
        Of the backward: gradients of weights, where these may come apart.
    after_forward, after_backward : int
        At the end of either: communications behind the last kernel.
    """

    forward: int
    backward: int
    weights: int
    after_forward: int
    after_backward: int


def pipeline_time(
    pipeline: Pipeline, parts: Sequence[PassTimes], message: int, *, overlap: bool
) -> int:
    """Passes of a pipeline → ps below which the last cannot have ended.

    Parameters
    ----------
    pipeline : Pipeline
        Whose parts lie in a loop, and in which no two passes of a stage overlap.
    parts : sequence of PassTimes, shape (pipeline.parts,)
    message : int
        What a message between two stages takes at least, in ps.
    overlap : bool
        Whether messages run beside kernels.

    Examples
    --------
    Three micro-batches through two stages: a forward before the last stage can begin, its work, and
    a backward after it. Messages of 5 come between these, and before each further forward of the
    last stage: four in all.

    >>> from mpisim.schedules import pipeline
    >>> part = PassTimes(10, 20, 0, 0, 0)
    >>> pipeline_time(pipeline("1f1b", 2, 3), [part, part], 0, overlap=False)
    120
    >>> pipeline_time(pipeline("1f1b", 2, 3), [part, part], 5, overlap=False)
    140
    """
    stages, last = pipeline.stages, pipeline.parts - 1
    several = stages > 1
    micro_batches = pipeline.micro_batches
    # When each pass has ended, by part and micro-batch; -1: not known yet.
    forward = [[-1] * micro_batches for _ in range(pipeline.parts)]
    backward = [[-1] * micro_batches for _ in range(pipeline.parts)]
    done = [0] * stages  # passes of each stage
    free = [0] * stages  # when the next one can begin
    # Of the last two passes: phase, and when the last kernel has ended.
    posted = [((_FORWARD, 0), (_FORWARD, 0)) for _ in range(stages)]
    waiting = list(range(stages))
    while waiting:
        left = []
        moved = False
        for stage in waiting:
            actions, now = pipeline.actions[stage], free[stage]
            before, latest = posted[stage]
            i = done[stage]
            while i < len(actions):
                action = actions[i]
                phase, number = action.phase, action.micro_batch
                part = action.chunk * stages + stage
                times = parts[part]
                source = -2  # nothing is waited for
                if phase is _FORWARD:
                    if part:
                        source = forward[part - 1][number]
                elif phase is _BACKWARD and part < last:
                    source = backward[part + 1][number]
                if source == -1:
                    break
                if source >= 0 and several:
                    if overlap:
                        start = latest[1] if latest[0] is phase else before[1]
                    else:
                        start = now
                    source = max(source, start) + message
                now = max(now, source)
                behind = 0
                if phase is _FORWARD:
                    now += times.forward
                    behind = times.after_forward
                    forward[part][number] = now
                elif phase is _BACKWARD:
                    now += times.backward - (times.weights if action.split else 0)
                    behind = times.after_backward
                    backward[part][number] = now
                else:
                    now += times.weights
                before, latest = latest, (phase, now - behind)
                moved = True
                i += 1
            done[stage], free[stage], posted[stage] = i, now, (before, latest)
            if i < len(actions):
                left.append(stage)
        assert moved, "passes of a schedule wait for each other"
        waiting = left
    return max(free)
