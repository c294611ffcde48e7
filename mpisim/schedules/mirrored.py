"""Orders of pipelines that run in both directions: every part of the model is held twice.

Chunk 0 takes the first half of the micro-batches from the first stage to the last, chunk 1 the
second half from the last to the first.
"""

from __future__ import annotations

from collections import deque

from ..base.errors import InputError
from ..program import Phase
from .actions import Action, Order, PipelineSize, Place

__all__ = ["check_chimera", "check_dualpipe", "chimera", "dualpipe"]


def check_chimera(size: PipelineSize) -> None:
    """Refuse sizes that Chimera cannot work with."""
    for key, value in (("stages", size.stages), ("micro_batches", size.micro_batches)):
        if value % 2:
            raise InputError(f"schedule chimera: {key} is {value}; it must be even")


def chimera(size: PipelineSize) -> tuple[Order, ...]:
    """Two pipelines in opposite directions, each one forward, one backward, that fill each other.

    Chimera (arXiv:2107.06925, section 3.1), as in ``MyPipeLine`` of Shigangli/Chimera
    (chimera_pipeline_rank.py). A unit is as many micro-batches as there are stages, half of them
    in either direction. In time slots of one pass each, a direction starts a micro-batch every
    other slot, which then goes through all stages and back without a stop: so no two passes of a
    stage fall into one slot. Units follow each other after as many slots as they have work for a
    stage (section 3.5, direct concatenation), so that the next one's forwards fill the gaps
    between the last backwards of the one before. The last unit may be shorter.
    """
    stages = size.stages
    half, of_unit = size.micro_batches // 2, stages // 2
    slots: list[list[tuple[int, Action]]] = [[] for _ in range(stages)]
    for i in range(half):
        unit, place = divmod(i, of_unit)
        start = 2 * stages * unit + 2 * place
        for chunk in range(2):
            forward = Action(Phase.FORWARD, chunk, i + chunk * half)
            backward = Action(Phase.BACKWARD, chunk, i + chunk * half)
            for part in range(stages):
                stage = part if chunk == 0 else stages - 1 - part
                slots[stage].append((start + part, forward))
                slots[stage].append((start + 2 * stages - 1 - part, backward))
    return tuple(tuple(each for _, each in sorted(own, key=lambda pair: pair[0])) for own in slots)


def check_dualpipe(size: PipelineSize) -> None:
    """Refuse sizes that DualPipe cannot work with."""
    stages, micro_batches = size.stages, size.micro_batches
    if stages % 2:
        raise InputError(f"schedule dualpipe: stages is {stages}; it must be even")
    if micro_batches % 2 or micro_batches < 2 * stages:
        raise InputError(
            f"schedule dualpipe: micro_batches is {micro_batches}; it must be even, and at least "
            f"twice the number of stages: {2 * stages} or more"
        )


def dualpipe(size: PipelineSize) -> tuple[Order, ...]:
    """Two pipelines in opposite directions, forwards of one overlapped with backwards of the other.

    DualPipe of DeepSeek-V3 (arXiv:2412.19437), as in ``DualPipe.step`` of deepseek-ai/DualPipe
    (dualpipe/dualpipe.py), whose limits these are.
    """
    stages, micro_batches = size.stages, size.micro_batches
    return tuple(_dualpipe_stage(stage, stages, micro_batches) for stage in range(stages))


def _dualpipe_stage(stage: int, stages: int, micro_batches: int) -> Order:
    """Order of one stage of DualPipe, in the eight steps of the published code."""
    # Seen from a stage, the near pipeline is the one that begins at the nearer end.
    near = 0 if stage < stages // 2 else 1
    far = 1 - near
    outer = min(stage, stages - 1 - stage)  # stages between this one and the nearer end
    inner = stages // 2 - 1 - outer  # stages between this one and the middle
    half = micro_batches // 2

    actions: list[Action] = []
    # Micro-batches of each chunk that are still to go forward, and backward; weights still to come.
    ahead = [deque(range(half)), deque(range(half, micro_batches))]
    behind: list[deque[int]] = [deque(), deque()]
    weights: deque[Place] = deque()

    def forward(chunk: int) -> None:
        i = ahead[chunk].popleft()
        behind[chunk].append(i)
        actions.append(Action(Phase.FORWARD, chunk, i))

    def backward(chunk: int, split: bool = False, paired: bool = False) -> None:
        i = behind[chunk].popleft()
        if split:
            weights.append((chunk, i))
        actions.append(Action(Phase.BACKWARD, chunk, i, split, paired))

    def weight() -> None:
        actions.append(Action(Phase.WEIGHT, *weights.popleft()))

    for _ in range(2 * inner):
        forward(near)
    for _ in range(outer + 1):
        forward(near)
        forward(far)
    for _ in range(inner):
        backward(far, split=True)
        weight()
        forward(far)
    for i in range(half - stages + outer + 1):
        forward(near)
        # The middle stages do not overlap their first pair: its forward can start earlier alone.
        backward(far, paired=i > 0 or inner > 0)
        forward(far)
        backward(near, paired=True)
    for _ in range(inner):
        backward(far)
        forward(far)
        backward(near, paired=True)
    for i in range(2 * (outer + 1)):
        backward(near if i % 2 else far, split=i > outer)
    for _ in range(inner):
        weight()
        backward(near, split=True)
    for _ in range(outer + 1):
        weight()
    return tuple(actions)
