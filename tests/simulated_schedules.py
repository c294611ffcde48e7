"""Pipelines → how their orders are written, and how long each stage idles, from who needs what.

Times are the integers of `simulate`, which knows only who needs whose output: independent of how
a schedule is laid out.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from mpisim.program import Phase
from mpisim.schedules import SCHEDULES, Action, Pipeline, pipeline


def spell(pipe: Pipeline, stage: int) -> str:
    """Write a stage's actions: F, B (I of the inputs alone), W, the micro-batch, the chunk a, b...

    ``&`` stands before an action that overlaps the one before it.
    """
    letters = {Phase.FORWARD: "F", Phase.BACKWARD: "B", Phase.WEIGHT: "W"}
    return " ".join(
        "&" * action.paired
        + ("I" if action.split else letters[action.phase])
        + str(action.micro_batch)
        + ("abcdefgh"[action.chunk] if pipe.chunks > 1 else "")
        for action in pipe.actions[stage]
    )


def together(actions: tuple[Action, ...]) -> list[list[Action]]:
    """Return the actions of a stage, those that overlap in one list."""
    groups: list[list[Action]] = []
    for action in actions:
        if action.paired:
            groups[-1].append(action)
        else:
            groups.append([action])
    return groups


class StageTimes(NamedTuple):
    """When a stage begins its first action and ends its last one, and how long it works."""

    begin: int
    end: int
    busy: int


def simulate(pipe: Pipeline, times: dict[str, int]) -> list[int]:
    """Return how long each stage idles in a step: longest paths, messages taking no time.

    `times` of F, I (backward of the inputs), W, and F&B, of one chunk.
    """
    found = stage_times(pipe, times)
    end = max(each.end for each in found)
    return [end - each.busy for each in found]


def stage_times(pipe: Pipeline, times: dict[str, int]) -> list[StageTimes]:
    """Return the times of each stage, from those of F, I, W and F&B of one chunk."""
    ends: dict[tuple[Phase, int, int, int], int] = {}

    def needed(stage: int, action: Action) -> tuple[Phase, int, int, int] | None:
        phase, chunk, i = action.phase, action.chunk, action.micro_batch
        if phase is Phase.WEIGHT:
            return Phase.BACKWARD, stage, chunk, i
        of_input = phase is Phase.FORWARD
        source = pipe.previous(stage, chunk) if of_input else pipe.next(stage, chunk)
        if source is not None:
            return phase, *source, i
        return None if of_input else (Phase.FORWARD, stage, chunk, i)

    def lasts(group: list[Action]) -> int:
        if len(group) == 2:
            return times["F&B"]
        action = group[0]
        if action.phase is Phase.FORWARD:
            return times["F"]
        if action.phase is Phase.WEIGHT:
            return times["W"]
        return times["I"] + (0 if action.split else times["W"])

    todo = [together(actions) for actions in pipe.actions]
    position, now, busy = [0] * pipe.stages, [0] * pipe.stages, [0] * pipe.stages
    begin = [0] * pipe.stages
    moved = True
    while moved:
        moved = False
        for stage in range(pipe.stages):
            while position[stage] < len(todo[stage]):
                group = todo[stage][position[stage]]
                needs = [need for action in group if (need := needed(stage, action)) is not None]
                if any(need not in ends for need in needs):
                    break
                start = max([now[stage], *(ends[need] for need in needs)])
                if position[stage] == 0:
                    begin[stage] = start
                busy[stage] += lasts(group)
                now[stage] = start + lasts(group)
                for action in group:
                    ends[action.phase, stage, action.chunk, action.micro_batch] = now[stage]
                position[stage] += 1
                moved = True
    assert position == [len(groups) for groups in todo], "deadlock"
    return list(map(StageTimes, begin, now, busy))


def in_flight(pipe: Pipeline, stage: int = 0) -> int:
    """Return the most chunks whose activations a stage keeps."""
    return pipe.peak(stage, [1] * pipe.chunks)


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Return any schedule with any numbers it can work with."""
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    if name == "chimera":
        return pipeline(name, 2 * draw(st.integers(1, 5)), 2 * draw(st.integers(1, 14)))
    if name == "dualpipe":
        stages = 2 * draw(st.integers(1, 5))
        return pipeline(name, stages, 2 * draw(st.integers(stages, 2 * stages + 3)))
    if name == "dualpipe-v":
        stages = draw(st.integers(1, 6))
        return pipeline(name, stages, draw(st.integers(2 * stages, 3 * stages + 3)), 2)
    if name == "zb-v":
        return pipeline(name, draw(st.integers(1, 8)), draw(st.integers(1, 24)), 2)
    if name == "interleaved":
        stages, chunks = draw(st.integers(2, 6)), draw(st.integers(2, 5))
        group = draw(st.integers(stages, 2 * stages))
        rest = draw(st.sampled_from([0, *range(stages, group)]))
        m = group * draw(st.integers(1, 3)) + rest
        return pipeline(name, stages, m, chunks, group=group)
    return pipeline(name, draw(st.integers(1, 8)), draw(st.integers(1, 24)))


TIME = st.integers(1, 50)
