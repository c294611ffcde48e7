"""Order of ZB-V, a pipeline whose parts go from the first stage to the last and back, in a V.

A stage holds two model chunks: chunk 0 of stage s is part s of the model, chunk 1 part
``2 × stages - 1 - s``. So the first stage holds both ends of the model, and the last one hands its
output on to itself.
"""

from __future__ import annotations

from ..base.errors import InputError
from ..program import Phase
from .actions import Action, Order, PipelineSize

__all__ = ["check_zb_v", "zb_v"]


def check_zb_v(size: PipelineSize) -> None:
    """Refuse sizes that ZB-V cannot work with."""
    if size.chunks != 2:
        raise InputError(
            f"schedule zb-v: chunks is {size.chunks}; it must be 2: a stage holds two (vpp = 2)"
        )


def zb_v(size: PipelineSize) -> tuple[Order, ...]:
    """Forwards, backwards and gradients of weights by turns, on two chunks in a V.

    ZB-V (arXiv:2401.10241, section 6), as ``ScheduleZBVZeroBubble`` of
    torch.distributed.pipelining (schedules.py) lays it out. Where all three take equally long, a
    stage waits for its first forward and for nothing else.
    """
    return tuple(
        _zb_v_stage(stage, size.stages, size.micro_batches) for stage in range(size.stages)
    )


def _zb_v_stage(stage: int, stages: int, micro_batches: int) -> Order:
    """Order of one stage of ZB-V."""
    # Of fewer micro-batches than fill the pipeline, the order of so many without the others.
    many = max(2 * stages - 1, micro_batches)
    actions: list[Action] = []
    forwards, backwards, weights = [0, 0], [0, 0], [0, 0]

    def forward(chunk: int) -> None:
        actions.append(Action(Phase.FORWARD, chunk, forwards[chunk]))
        forwards[chunk] += 1

    def backward(chunk: int) -> None:
        actions.append(Action(Phase.BACKWARD, chunk, backwards[chunk], split=True))
        backwards[chunk] += 1

    def weight(chunk: int) -> None:
        actions.append(Action(Phase.WEIGHT, chunk, weights[chunk]))
        weights[chunk] += 1

    for _ in range(2 * (stages - stage) - 1):
        forward(0)
    for _ in range(stage):
        forward(1)
        forward(0)
    for _ in range(stages - stage):
        forward(1)
        backward(1)
        weight(1)
    while forwards[1] < forwards[0] or forwards[0] < many:
        if forwards[0] < many:
            forward(0)
        backward(0)
        weight(0)
        forward(1)
        backward(1)
        weight(1)
    for _ in range(stage):
        backward(0)
        backward(1)
    for _ in range(stages - stage):
        backward(0)
        weight(0)
    for chunk in (1, 0):
        while weights[chunk] < backwards[chunk]:
            weight(chunk)
    return tuple(each for each in actions if each.micro_batch < micro_batches)
