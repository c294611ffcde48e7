"""The orders of execution of the published schedules.

Each function returns the `Order` of every stage, or raises `InputError` for numbers that the
schedule cannot work with. Stages and micro-batches are 1 or more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ...base.errors import InputError
from ...program import Phase
from .layout import Action, Order

__all__ = ["dualpipe", "gpipe", "interleaved", "one_f_one_b", "zb_h1"]

Place = tuple[int, int]
"""A chunk and a micro-batch."""


def gpipe(stages: int, micro_batches: int) -> tuple[Order, ...]:
    """All forwards, then all backwards (GPipe, arXiv:1811.06965).

    Backwards come in the order of the forwards, as in ``ScheduleGPipe`` of
    torch.distributed.pipelining. The paper draws them in reverse, which changes neither the time
    of a step nor what is kept.
    """
    places = [(0, i) for i in range(micro_batches)]
    return (_alternate(_forwards(places), _backwards(places), micro_batches),) * stages


def one_f_one_b(stages: int, micro_batches: int, paired: bool = False) -> tuple[Order, ...]:
    """One forward, one backward (PipeDream-Flush, arXiv:2006.09503).

    As in ``forward_backward_pipelining_without_interleaving`` of Megatron-LM
    (megatron/core/pipeline_parallel/schedules.py): a stage does one forward ahead for each stage
    that follows it. `paired`, of one stage only, a forward and the backward after it overlap, for
    which the stage is one forward ahead (``combined_1f1b_schedule_for_no_pipelining``).
    """
    places = [(0, i) for i in range(micro_batches)]
    forwards, backwards = _forwards(places), _backwards(places)
    return tuple(
        _alternate(forwards, backwards, stages - 1 - stage + paired, paired=paired)
        for stage in range(stages)
    )


def interleaved(
    stages: int, micro_batches: int, chunks: int, group: int, paired: bool = False
) -> tuple[Order, ...]:
    """One forward, one backward, over several chunks a stage (arXiv:2104.04473).

    As in ``forward_backward_pipelining_with_interleaving`` of Megatron-LM
    (megatron/core/pipeline_parallel/schedules.py): a stage takes `group` micro-batches through one
    chunk before it turns to the next (``get_schedule_table``), backwards through the chunks in
    reverse, and warms up with ``2 × stages that follow + (chunks - 1) × group`` forwards
    (``get_pp_rank_microbatches``). The limits are Megatron-LM's too. `paired`, a forward and the
    backward after it overlap, for which a stage is one forward further ahead
    (``combined_1f1b_schedule_for_interleaved_pipelining``).
    """
    if stages < 2 or chunks < 2:
        raise InputError(
            f"schedule interleaved: stages is {stages} and chunks is {chunks}; both must be 2 or "
            "more (1f1b is the schedule of one chunk a stage)"
        )
    if not stages <= group <= micro_batches:
        raise InputError(
            f"schedule interleaved: group is {group} (if not given, as many as stages); it must "
            f"be from the number of stages, {stages}, to the number of micro-batches, "
            f"{micro_batches}"
        )
    # A last group that is shorter than the pipeline would leave stages waiting for one another.
    if 0 < micro_batches % group < stages:
        raise InputError(
            f"schedule interleaved: micro_batches is {micro_batches}; it must be a multiple of "
            f"the group, {group}, or leave a remainder of at least the number of stages, {stages}"
        )
    places = [
        (chunk, i)
        for first in range(0, micro_batches, group)
        for chunk in range(chunks)
        for i in range(first, min(first + group, micro_batches))
    ]
    forwards = _forwards(places)
    backwards = _backwards([(chunks - 1 - chunk, i) for chunk, i in places])
    ahead = (chunks - 1) * group + paired
    return tuple(
        _alternate(forwards, backwards, ahead + 2 * (stages - 1 - stage), paired=paired)
        for stage in range(stages)
    )


def zb_h1(stages: int, micro_batches: int) -> tuple[Order, ...]:
    """1F1B with the gradients of weights put off into the bubbles (ZB-H1, arXiv:2401.10241).

    Stage s falls s micro-batches behind with its gradients of weights, so that every stage keeps
    activations of as many micro-batches, and does the rest when its backwards are done. As in
    ``ScheduleInterleavedZeroBubble`` of torch.distributed.pipelining with one stage a rank, which
    is the paper's ZB1P. (The quick start of sail-sg/zero-bubble-pipeline-parallelism puts off the
    same work, but does not split backwards where it would follow at once.)
    """
    places = [(0, i) for i in range(micro_batches)]
    forwards, backwards = _forwards(places), _backwards(places, split=True)
    weights = [Action(Phase.WEIGHT, chunk, i) for chunk, i in places]
    return tuple(
        _alternate(forwards, backwards, stages - 1 - stage, weights, stage)
        for stage in range(stages)
    )


def dualpipe(stages: int, micro_batches: int) -> tuple[Order, ...]:
    """Two pipelines in opposite directions, forwards of one overlapped with backwards of the other.

    DualPipe of DeepSeek-V3 (arXiv:2412.19437), as in ``DualPipe.step`` of deepseek-ai/DualPipe
    (dualpipe/dualpipe.py), whose limits these are. Chunk 0 takes the first half of the
    micro-batches from the first stage to the last, chunk 1 the second half from the last to the
    first.
    """
    if stages % 2:
        raise InputError(f"schedule dualpipe: stages is {stages}; it must be even")
    if micro_batches % 2 or micro_batches < 2 * stages:
        raise InputError(
            f"schedule dualpipe: micro_batches is {micro_batches}; it must be even, and at least "
            f"twice the number of stages: {2 * stages} or more"
        )
    return tuple(_dualpipe(stage, stages, micro_batches) for stage in range(stages))


def _forwards(places: Sequence[Place]) -> list[Action]:
    return [Action(Phase.FORWARD, chunk, i) for chunk, i in places]


def _backwards(places: Sequence[Place], split: bool = False) -> list[Action]:
    return [Action(Phase.BACKWARD, chunk, i, split) for chunk, i in places]


def _alternate(
    forwards: Sequence[Action],
    backwards: Sequence[Action],
    warm_up: int,
    weights: Sequence[Action] = (),
    delay: int = 0,
    paired: bool = False,
) -> Order:
    """Do `warm_up` forwards, then by turns a forward and a backward, then the other backwards.

    `weights` follow the backwards `delay` places behind. `paired` backwards run overlapped with the
    forward before them. Stages share the actions, of which there
    are many.
    """
    warm_up = min(warm_up, len(forwards))
    actions = list(forwards[:warm_up])
    for i, backward in enumerate(backwards):
        if warm_up + i < len(forwards):
            actions.append(forwards[warm_up + i])
            if paired:
                backward = replace(backward, paired=True)
        actions.append(backward)
        if weights and i >= delay:
            actions.append(weights[i - delay])
    actions += weights[max(len(weights) - delay, 0) :]
    return tuple(actions)


def _dualpipe(stage: int, stages: int, micro_batches: int) -> Order:
    """One stage of DualPipe, in the eight steps of the published code."""
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
