"""Published pipeline schedules: the order in which each stage works, and a description of each.

A schedule is a function from the size of a pipeline to the `Order` of every stage, and a `Schedule`
with its formulas, its source and all that other parts ask of it. To add one, write its order in a
module beside this one, its `Schedule` here, and its name in `ScheduleName`. How
long a step takes and what it keeps follow from the order (`Pipeline.peak`, :mod:`mpisim.memory`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from ..base.errors import InputError, nearest
from ..base.frozen import frozen
from ..base.lru_cache import kept_by_size
from .actions import Order, Pipeline, PipelineSize, part_of, repeated
from .alternating import check_interleaved, gpipe, interleaved, one_f_one_b, zb_h1, zb_h2
from .chimera import check_chimera, chimera
from .dualpipe import check_dualpipe, check_dualpipe_v, dualpipe, dualpipe_v
from .zb_v import check_zb_v, zb_v

__all__ = [
    "CHUNKS_IN_A_V",
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

CHUNKS_IN_A_V = 2
"""Model chunks of a stage whose parts lie in a V: one on the way there, one on the way back."""

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


SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        "gpipe": Schedule(
            title="All forwards, then all backwards",
            chunks="1",
            bubble="(p-1)(F+B)",
            in_flight="m",
            source="GPipe, arXiv:1811.06965",
            order=gpipe,
            overlaps_messages=False,
            rounds_to_fill=1,
        ),
        "1f1b": Schedule(
            title="One forward, one backward",
            chunks="1",
            bubble="(p-1)(F+B)",
            in_flight="p",
            source="PipeDream-Flush, arXiv:2006.09503; Megatron-LM",
            order=one_f_one_b,
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
            order=interleaved,
            overlaps_messages=True,
            megatron=True,
            rounds_to_fill=1,
            interleaved=True,
            check=check_interleaved,
        ),
        "zb-h1": Schedule(
            title="1F1B with gradients of weights put off into the bubbles",
            chunks="1",
            bubble="(p-1)(F+B-2W) if W is at most F and B-W",
            in_flight="p",
            source="ZB-H1, arXiv:2401.10241",
            order=zb_h1,
            overlaps_messages=True,
            splits_backward=True,
        ),
        "zb-h2": Schedule(
            title="ZB-H1 with twice the forwards ahead",
            chunks="1",
            bubble="(p-1)max(F,F+B-3W) if W is at most F and B-W",
            in_flight="2p-1",
            source="ZB-H2, arXiv:2401.10241",
            order=zb_h2,
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
    run: int | None = None,
) -> PipelineSize:
    """Refuse numbers that a schedule cannot work with, without laying it out → size of one run.

    Parameters
    ----------
    name, stages, micro_batches, chunks, group, paired, run
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
    if run is not None and stages > 1:  # one stage has nothing to drain
        if micro_batches % run:
            raise InputError(
                f"plan.pipeline.run is {run}, which does not divide the {micro_batches} "
                "micro-batches of a replica"
            )
        micro_batches = run
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
    run: int | None = None,
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
    run : int, optional
        Micro-batches after which the pipeline drains before it takes more; all if not given. One
        stage has nothing to drain: without effect.

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
    size = check_schedule(name, stages, micro_batches, chunks, group=group, paired=paired, run=run)
    return _laid_out(name, size, micro_batches // size.micro_batches)


def _actions(found: Pipeline) -> int:
    """Return the number of actions of all stages."""
    return sum(map(len, found.actions))


@kept_by_size(MOST_ACTIONS, _actions)
def _laid_out(name: str, size: PipelineSize, runs: int) -> Pipeline:
    schedule = SCHEDULES[name]
    return Pipeline(
        name,
        size.stages,
        2 if schedule.mirrored else size.chunks,
        runs * size.micro_batches,
        repeated(schedule.order(size), runs, size.micro_batches),
        parts=size.stages * size.chunks,
        v_shaped=schedule.v_shaped,
    )
