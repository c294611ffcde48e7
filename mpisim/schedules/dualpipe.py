"""Orders of DualPipe and DualPipeV: forwards of one chunk overlapped with backwards of the other.

DualPipe runs two pipelines in opposite directions, whose chunks are those of :mod:`.chimera`.
DualPipeV is one half of its stages: what they would send to the other half comes back to them, so
that parts go from the first stage to the last and back, in a V, and each is held once.
"""

from __future__ import annotations

from collections import deque

from ..base.errors import InputError
from ..program import Phase
from .actions import Action, Order, PipelineSize, Place

__all__ = ["check_dualpipe", "check_dualpipe_v", "dualpipe", "dualpipe_v"]


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
    """Size → order of each stage: two pipelines, forwards of one beside backwards of the other.

    DualPipe of DeepSeek-V3 (arXiv:2412.19437), as in ``DualPipe.step`` of deepseek-ai/DualPipe
    (dualpipe/dualpipe.py), whose limits these are.
    """
    stages, micro_batches = size.stages, size.micro_batches
    orders = []
    for stage in range(stages):
        # Seen from a stage, the near pipeline is the one that begins at the nearer end.
        near = 0 if stage < stages // 2 else 1
        outer = min(stage, stages - 1 - stage)
        halves = range(micro_batches // 2), range(micro_batches // 2, micro_batches)
        orders.append(_order(near, outer, stages // 2 - 1 - outer, halves))
    return tuple(orders)


def check_dualpipe_v(size: PipelineSize) -> None:
    """Refuse sizes that DualPipeV cannot work with."""
    if size.chunks != 2:
        raise InputError(
            f"schedule dualpipe-v: chunks is {size.chunks}; it must be 2: a stage holds two "
            "(vpp = 2)"
        )
    if size.micro_batches < 2 * size.stages:
        raise InputError(
            f"schedule dualpipe-v: micro_batches is {size.micro_batches}; it must be at least "
            f"twice the number of stages: {2 * size.stages} or more"
        )


def dualpipe_v(size: PipelineSize) -> tuple[Order, ...]:
    """Size → order of each stage: two chunks in a V, forwards of one beside backwards of the other.

    DualPipeV (github.com/deepseek-ai/DualPipe, dualpipe/dualpipev.py), as ``ScheduleDualPipeV`` of
    torch.distributed.pipelining (schedules.py) lays it out, whose limits these are.
    """
    stages, every = size.stages, range(size.micro_batches)
    return tuple(_order(0, stage, stages - 1 - stage, (every, every)) for stage in range(stages))


def _order(near: int, outer: int, inner: int, micro_batches: tuple[range, range]) -> Order:
    """Chunks, distances and micro-batches → one stage's order, in the published code's eight steps.

    Parameters
    ----------
    near : int
        The chunk whose first part is nearer: micro-batches come to it first.
    outer, inner : int
        Stages between this one and those that hold the first part of that chunk, and between this
        one and the last that is as near to it as to the other chunk's.
    micro_batches : tuple of range
        Of each chunk; as many of one as of the other.
    """
    far = 1 - near
    actions: list[Action] = []
    # Micro-batches of each chunk that are still to go forward, and backward; weights still to come.
    ahead = [deque(each) for each in micro_batches]
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
    for i in range(len(micro_batches[0]) - 2 * inner - outer - 1):
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
