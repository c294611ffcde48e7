"""Published pipeline schedules: the order in which each stage works, and a description of each.

A schedule is a function from the size of a pipeline to the `Order` of every stage, which raises
`InputError` for sizes that it cannot work with, and a `Schedule` with its formulas, its source and
all that other parts ask of it. To add one, write both here, and its name in `ScheduleName`. How
long a step takes and what it keeps follow from the order (`Pipeline.peak`, :mod:`mpisim.memory`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from ..base.errors import InputError, nearest
from ..base.frozen import frozen
from ..base.lru_cache import kept_by_size
from ..program import Phase
from .actions import Action, Order, Pipeline, PipelineSize, Place, part_of
from .chimera import check_chimera, chimera
from .dualpipe import check_dualpipe, check_dualpipe_v, dualpipe, dualpipe_v
from .zb_v import check_zb_v, zb_v

__all__ = [
    "SCHEDULES",
    "PipelineSize",
    "Schedule",
    "ScheduleName",
    "check_schedule",
    "parts_of_stage",
    "pipeline",
]

ScheduleName = Literal[
    "gpipe",
    "1f1b",
    "interleaved",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "chimera",
    "dualpipe",
    "dualpipe-v",
]
"""Values of ``plan.pipeline.schedule``."""

MOST_ACTIONS = 100_000
"""Actions of all pipelines that are kept, of 100 bytes each with their columns: of the few that
plans have which differ in recomputation, sharding or the size of a micro-batch."""


@frozen
class Schedule:
    """A kind of schedule, in words.

    In the formulas p is the number of stages, m of micro-batches, v of chunks a stage; F, B and W
    are the times of a forward, of a whole backward and of its gradients of weights on one stage,
    F&B that of a forward and a backward overlapped.

    Attributes
    ----------
    title : str
    chunks : str
        What a stage holds, and what the schedule asks of the numbers.
    bubble : str
        How long a stage idles in a step where all stages take the same times and messages take
        none.
    in_flight : str
        Micro-batches that the first stage keeps activations of at most, in units of a whole
        stage's.
    source : str
        Where it was published.
    order : callable
        From the size of a pipeline to the order of every stage.
    overlaps_messages : bool
        Whether its implementation computes on while messages are sent (``plan.overlap.p2p``, where
        a plan does not say).
    needs_overlap : bool
        Whether stages would wait for each other's messages, without end, if they did not.
    megatron : bool
        Whether Megatron-LM has it, whose CPU waits for messages that do not overlap.
    rounds_to_fill : int, optional
        Rounds of micro-batches, each of as many as there are stages, until the pipeline is full
        and further ones take equally long, so that a sweep simulates few and extrapolates. If not
        given, all are simulated: the safe choice where nobody has compared.
    alternates : bool
        Whether a micro-batch more is, on every stage, one forward and one backward more, between
        those that alternate anyway: nothing else of its order changes.
    interleaved : bool
        Whether it takes several chunks a stage, groups and pairs.
    v_shaped : bool
        Whether it takes two chunks a stage, whose parts lie in a V (`Pipeline`).
    mirrored : bool
        Whether every part of the model is held twice, for pipelines of both directions.
    splits_backward : bool
        Whether gradients of weights may come apart from those of inputs, and later.
    pairs_passes : bool
        Whether forwards run overlapped with backwards of other micro-batches, without a key that
        says so.
    check : callable, optional
        Refuses sizes that the schedule cannot work with; called before `order`.
    """

    title: str
    chunks: str
    bubble: str
    in_flight: str
    source: str
    order: Callable[[PipelineSize], tuple[Order, ...]]
    overlaps_messages: bool
    needs_overlap: bool = False
    megatron: bool = False
    rounds_to_fill: int | None = None
    alternates: bool = False
    interleaved: bool = False
    v_shaped: bool = False
    mirrored: bool = False
    splits_backward: bool = False
    pairs_passes: bool = False
    check: Callable[[PipelineSize], None] | None = None


# --- orders -------------------------------------------------------------------------------------


def _gpipe(size: PipelineSize) -> tuple[Order, ...]:
    """All forwards, then all backwards (GPipe, arXiv:1811.06965).

    Backwards come in the order of the forwards, as in ``ScheduleGPipe`` of
    torch.distributed.pipelining. The paper draws them in reverse, which changes neither the time
    of a step nor what is kept.
    """
    places = [(0, i) for i in range(size.micro_batches)]
    order = _alternate(_forwards(places), _backwards(places), size.micro_batches)
    return (order,) * size.stages


def _one_f_one_b(size: PipelineSize) -> tuple[Order, ...]:
    """One forward, one backward (PipeDream-Flush, arXiv:2006.09503).

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


def _check_interleaved(size: PipelineSize) -> None:
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


def _interleaved(size: PipelineSize) -> tuple[Order, ...]:
    """One forward, one backward, over several chunks a stage (arXiv:2104.04473).

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


def _zb_h1(size: PipelineSize) -> tuple[Order, ...]:
    """1F1B with the gradients of weights put off into the bubbles (ZB-H1, arXiv:2401.10241).

    Stage s falls s micro-batches behind with its gradients of weights, so that every stage keeps
    activations of as many micro-batches, and does the rest when its backwards are done. As in
    ``ScheduleInterleavedZeroBubble`` of torch.distributed.pipelining with one stage a rank, which
    is the paper's ZB1P. (The quick start of sail-sg/zero-bubble-pipeline-parallelism puts off the
    same work, but does not split backwards where it would follow at once.)
    """
    return _zero_bubble(size, 1)


def _zb_h2(size: PipelineSize) -> tuple[Order, ...]:
    """1F1B with twice the forwards ahead, and gradients of weights put off (ZB-H2, ibid., 2.2).

    Stage s starts with so many forwards that its first backward's gradient is there when they are
    done, and falls 2s micro-batches behind with its gradients of weights, which fill its time after
    the last backward: twice of what ZB-H1 does of both. Where forward, backward and gradients of
    weights take equally long, no stage waits between its first and its last action.
    """
    return _zero_bubble(size, 2)


def _zero_bubble(size: PipelineSize, ahead: int) -> tuple[Order, ...]:
    """Forwards and backwards by turns, split, with gradients of weights put off.

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
    """Warm-up forwards, then by turns a forward and a backward, then the other backwards.

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


# --- catalogue ----------------------------------------------------------------------------------

SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        "gpipe": Schedule(
            title="All forwards, then all backwards",
            chunks="1",
            bubble="(p-1)(F+B)",
            in_flight="m",
            source="GPipe, arXiv:1811.06965",
            order=_gpipe,
            overlaps_messages=False,
            rounds_to_fill=1,
        ),
        "1f1b": Schedule(
            title="One forward, one backward",
            chunks="1",
            bubble="(p-1)(F+B)",
            in_flight="p",
            source="PipeDream-Flush, arXiv:2006.09503; Megatron-LM",
            order=_one_f_one_b,
            overlaps_messages=False,
            megatron=True,
            rounds_to_fill=1,
            alternates=True,
        ),
        "interleaved": Schedule(
            title="One forward, one backward, over several model chunks a stage",
            chunks="v, 2 or more; stages 2 or more; micro-batches in whole groups",
            bubble="(p-1)(F+B)/v",
            in_flight="p+(p-1)/v",
            source="arXiv:2104.04473; Megatron-LM",
            order=_interleaved,
            overlaps_messages=True,
            megatron=True,
            rounds_to_fill=1,
            interleaved=True,
            check=_check_interleaved,
        ),
        "zb-h1": Schedule(
            title="1F1B with gradients of weights put off into the bubbles",
            chunks="1",
            bubble="(p-1)(F+B-2W) if W is at most F and B-W",
            in_flight="p",
            source="ZB-H1, arXiv:2401.10241",
            order=_zb_h1,
            overlaps_messages=True,
            splits_backward=True,
        ),
        "zb-h2": Schedule(
            title="ZB-H1 with twice the forwards ahead",
            chunks="1",
            bubble="(p-1)max(F,F+B-3W) if W is at most F and B-W",
            in_flight="2p-1",
            source="ZB-H2, arXiv:2401.10241",
            order=_zb_h2,
            overlaps_messages=True,
            needs_overlap=True,
            splits_backward=True,
        ),
        "zb-v": Schedule(
            title="Two chunks a stage in a V, gradients of weights put off",
            chunks="2; the last stage hands its output on to itself",
            bubble="(p-1)(B-W)/2 if F and W are at most B-W, and B-W at most W+F/2",
            in_flight="p",
            source="ZB-V, arXiv:2401.10241; torch.distributed.pipelining",
            order=zb_v,
            overlaps_messages=True,
            needs_overlap=True,
            v_shaped=True,
            splits_backward=True,
            check=check_zb_v,
        ),
        "chimera": Schedule(
            title="Two pipelines in opposite directions, each one forward, one backward",
            chunks="1, held twice; stages and micro-batches even",
            bubble="(p-2)(B+(m/p-1)(B-F)) if F is at most B and m a multiple of p",
            in_flight="p/2+1",
            source="Chimera, arXiv:2107.06925; github.com/Shigangli/Chimera",
            order=chimera,
            overlaps_messages=True,
            mirrored=True,
            check=check_chimera,
        ),
        "dualpipe": Schedule(
            title="Two pipelines in opposite directions, forwards and backwards overlapped",
            chunks="1, held twice; stages even; micro-batches even, at least twice the stages",
            bubble="(p/2-1)(F&B+B-3W) if F = B-W and W is at most F",
            in_flight="p+1",
            source="DeepSeek-V3, arXiv:2412.19437; github.com/deepseek-ai/DualPipe",
            order=dualpipe,
            overlaps_messages=True,
            rounds_to_fill=3,
            mirrored=True,
            splits_backward=True,
            pairs_passes=True,
            check=check_dualpipe,
        ),
        "dualpipe-v": Schedule(
            title="Two chunks a stage in a V, forwards and backwards overlapped",
            chunks="2; the last stage hands its output on to itself; micro-batches twice the "
            "stages or more",
            bubble="(p-1)(F&B+B-3W)/2 if F = B-W and W is at most F",
            in_flight="p+1/2",
            source="github.com/deepseek-ai/DualPipe; torch.distributed.pipelining",
            order=dualpipe_v,
            overlaps_messages=True,
            needs_overlap=True,
            v_shaped=True,
            splits_backward=True,
            pairs_passes=True,
            check=check_dualpipe_v,
        ),
    }
)
"""The kinds of schedules by name."""


def parts_of_stage(name: str, stage: int, stages: int, chunks: int) -> list[int]:
    """Schedule, stage and sizes → parts of the model that the stage holds, by chunk.

    Parameters
    ----------
    name : str
        Of a schedule; of a mirrored one the parts of the first direction.
    stage, stages, chunks : int
    """
    v_shaped = SCHEDULES[name].v_shaped
    return [part_of(stage, chunk, stages, v_shaped=v_shaped) for chunk in range(chunks)]


def check_schedule(
    name: str,
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    *,
    group: int | None = None,
    paired: bool = False,
) -> PipelineSize:
    """Refuse numbers that a schedule cannot work with, without laying it out.

    Parameters
    ----------
    name, stages, micro_batches, chunks, group, paired
        As for `pipeline`.

    Raises
    ------
    InputError
        For an unknown name, and for numbers that the schedule cannot work with.
    """
    if name not in SCHEDULES:
        raise InputError(
            f"no schedule {name!r}{nearest(name, SCHEDULES)}; there are {', '.join(SCHEDULES)}"
        )
    for key, value in (("stages", stages), ("micro_batches", micro_batches), ("chunks", chunks)):
        if value < 1:
            raise InputError(f"schedule {name}: {key} is {value}; it must be 1 or more")
    schedule = SCHEDULES[name]
    if not schedule.interleaved:
        single_stage = name == "1f1b" and stages == 1
        for key, given in (
            ("chunks", chunks > 1 and not schedule.v_shaped),
            ("group", group is not None),
            ("paired", paired and not single_stage),
        ):
            if given:
                raise InputError(f"schedule {name}: {key} is for the schedule interleaved only")
    size = PipelineSize(stages, micro_batches, chunks, stages if group is None else group, paired)
    if schedule.check is not None:
        schedule.check(size)
    return size


def pipeline(
    name: str,
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    *,
    group: int | None = None,
    paired: bool = False,
) -> Pipeline:
    """Lay out a schedule; the last few are kept, since plans that are compared share them.

    Parameters
    ----------
    name : str
        A key of `SCHEDULES`.
    stages : int
        Pipeline-parallel stages.
    micro_batches : int
        Of one step through this pipeline.
    chunks : int
        Model chunks (virtual stages) a stage's share of the model is cut into: 2 or more for
        ``interleaved``, 2 for ``zb-v`` and ``dualpipe-v``, 1 for the others. (``dualpipe`` cuts
        none; it gives a stage a second chunk, which another stage holds too.)
    group : int, optional
        ``interleaved`` only: micro-batches that a stage takes through one chunk before it turns to
        the next (Megatron-LM's ``microbatch_group_size_per_vp_stage``). If not given, as many as
        there are stages.
    paired : bool
        ``interleaved``, or ``1f1b`` of one stage: a forward and the backward after it run
        overlapped, as in Megatron-LM with ``overlap_moe_expert_parallel_comm``; stages warm up with
        one forward more.

    Returns
    -------
    Pipeline

    Raises
    ------
    InputError
        For an unknown name, and for numbers that the schedule cannot work with.

    Examples
    --------
    >>> first, last = pipeline("1f1b", stages=2, micro_batches=2).actions
    >>> [(action.phase.name, action.micro_batch) for action in first]
    [('FORWARD', 0), ('FORWARD', 1), ('BACKWARD', 0), ('BACKWARD', 1)]
    >>> [(action.phase.name, action.micro_batch) for action in last]
    [('FORWARD', 0), ('BACKWARD', 0), ('FORWARD', 1), ('BACKWARD', 1)]
    """
    size = check_schedule(name, stages, micro_batches, chunks, group=group, paired=paired)
    return _laid_out(name, size)


def _actions(found: Pipeline) -> int:
    """Return the number of actions of all stages."""
    return sum(map(len, found.actions))


@kept_by_size(MOST_ACTIONS, _actions)
def _laid_out(name: str, size: PipelineSize) -> Pipeline:
    schedule = SCHEDULES[name]
    return Pipeline(
        name,
        size.stages,
        2 if schedule.mirrored else size.chunks,
        size.micro_batches,
        schedule.order(size),
        parts=size.stages * size.chunks,
        v_shaped=schedule.v_shaped,
    )
