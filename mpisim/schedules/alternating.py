"""Orders of pipelines in one direction whose parts lie in a loop: each part is held once.

All are `_alternate`: warm-up forwards, then forwards and backwards by turns, then what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..base.errors import InputError
from ..program import Phase
from .actions import Action, Order, PipelineSize, Place

__all__ = ["check_interleaved", "gpipe", "interleaved", "one_f_one_b", "zb_h1", "zb_h2"]


def gpipe(size: PipelineSize) -> tuple[Order, ...]:
    """Size → order of each stage: all forwards, then all backwards (GPipe, arXiv:1811.06965).

    Backwards come in the order of the forwards, as in ``ScheduleGPipe`` of
    torch.distributed.pipelining. The paper draws them in reverse, which changes neither the time
    of a step nor what is kept.
    """
    places = [(0, i) for i in range(size.micro_batches)]
    order = _alternate(_forwards(places), _backwards(places), size.micro_batches)
    return (order,) * size.stages


def one_f_one_b(size: PipelineSize) -> tuple[Order, ...]:
    """Size → order of each stage: one forward, one backward (PipeDream-Flush, arXiv:2006.09503).

    As in ``forward_backward_pipelining_without_interleaving`` of Megatron-LM
    (megatron/core/pipeline_parallel/schedules.py): a stage does one forward ahead for each stage
    that follows it. `paired`, of one stage only, a forward and the backward after it overlap, for
    which the stage is one forward ahead (``combined_1f1b_schedule_for_no_pipelining``).
    """
    stages, paired = size.stages, size.paired
    places = [(0, i) for i in range(size.micro_batches)]
    forwards, backwards = _forwards(places), _backwards(places)
    return tuple(
        _alternate(forwards, backwards, stages - 1 - stage + paired, paired=paired)
        for stage in range(stages)
    )


def check_interleaved(size: PipelineSize) -> None:
    """Refuse sizes that the interleaved schedule cannot work with."""
    stages, micro_batches, chunks, group, _ = size
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


def interleaved(size: PipelineSize) -> tuple[Order, ...]:
    """Size → order of each stage: one forward, one backward, over several chunks a stage.

    Megatron-LM's interleaved schedule (arXiv:2104.04473).

    As in ``forward_backward_pipelining_with_interleaving`` of Megatron-LM
    (megatron/core/pipeline_parallel/schedules.py): a stage takes `group` micro-batches through one
    chunk before it turns to the next (``get_schedule_table``), backwards through the chunks in
    reverse, and warms up with ``2 × stages that follow + (chunks - 1) × group`` forwards
    (``get_pp_rank_microbatches``). The limits are Megatron-LM's too. `paired`, a forward and the
    backward after it overlap, for which a stage is one forward further ahead
    (``combined_1f1b_schedule_for_interleaved_pipelining``).
    """
    stages, micro_batches, chunks, group, paired = size
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


def zb_h1(size: PipelineSize) -> tuple[Order, ...]:
    """Size → order of each stage: 1F1B, gradients of weights put off into the bubbles (ZB-H1).

    ZB-H1 of arXiv:2401.10241. Stage s falls s micro-batches behind with its gradients of weights,
    so that every stage keeps activations of as many micro-batches, and does the rest when its
    backwards are done. As in
    ``ScheduleInterleavedZeroBubble`` of torch.distributed.pipelining with one stage a rank, which
    is the paper's ZB1P. (The quick start of sail-sg/zero-bubble-pipeline-parallelism puts off the
    same work, but does not split backwards where it would follow at once.)
    """
    return _zero_bubble(size, 1)


def zb_h2(size: PipelineSize) -> tuple[Order, ...]:
    """Size → order of each stage: 1F1B, twice the forwards ahead, gradients of weights put off.

    ZB-H2 (ibid., 2.2). Stage s starts with so many forwards that its first backward's gradient is
    there when they are done, and falls 2s micro-batches behind with its gradients of weights, which
    fill its time after the last backward: twice of what ZB-H1 does of both. Where forward, backward
    and gradients of weights take equally long, no stage waits between its first and last action.
    """
    return _zero_bubble(size, 2)


def _zero_bubble(size: PipelineSize, ahead: int) -> tuple[Order, ...]:
    """Size → order of each stage: split backwards, gradients of weights put off.

    Parameters
    ----------
    size : PipelineSize
    ahead : int
        Forwards ahead for each stage that follows, and micro-batches behind with gradients of
        weights for each stage before.
    """
    stages = size.stages
    places = [(0, i) for i in range(size.micro_batches)]
    forwards, backwards = _forwards(places), _backwards(places, split=True)
    weights = [Action(Phase.WEIGHT, chunk, i) for chunk, i in places]
    return tuple(
        _alternate(forwards, backwards, ahead * (stages - 1 - stage), weights, ahead * stage)
        for stage in range(stages)
    )


def _forwards(places: Sequence[Place]) -> list[Action]:
    """Places → forward actions."""
    return [Action(Phase.FORWARD, chunk, i) for chunk, i in places]


def _backwards(places: Sequence[Place], split: bool = False) -> list[Action]:
    """Places → backward actions."""
    return [Action(Phase.BACKWARD, chunk, i, split) for chunk, i in places]


def _alternate(
    forwards: Sequence[Action],
    backwards: Sequence[Action],
    warm_up: int,
    weights: Sequence[Action] = (),
    delay: int = 0,
    paired: bool = False,
) -> Order:
    """Actions → warm-up forwards, then by turns forwards and backwards, then the other backwards.

    Stages share the action objects, of which there are many.

    Parameters
    ----------
    forwards, backwards : sequence of Action
    warm_up : int
        Forwards before the first backward.
    weights : sequence of Action
        Gradients of weights, which follow the backwards `delay` places behind.
    delay : int
    paired : bool
        Whether a backward runs overlapped with the forward before it.
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
