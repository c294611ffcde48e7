"""The kinds of schedules by name, and the way to one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ...base.errors import InputError, nearest
from . import orders
from .layout import Order, Pipeline

__all__ = ["SCHEDULES", "Schedule", "pipeline"]


@dataclass(frozen=True)
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
    """

    title: str
    chunks: str
    bubble: str
    in_flight: str
    source: str


SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        "gpipe": Schedule(
            title="All forwards, then all backwards",
            chunks="1",
            bubble="(p-1)(F+B)",
            in_flight="m",
            source="GPipe, arXiv:1811.06965",
        ),
        "1f1b": Schedule(
            title="One forward, one backward",
            chunks="1",
            bubble="(p-1)(F+B)",
            in_flight="p",
            source="PipeDream-Flush, arXiv:2006.09503; Megatron-LM",
        ),
        "interleaved": Schedule(
            title="One forward, one backward, over several model chunks a stage",
            chunks="v, 2 or more; stages 2 or more; micro-batches in whole groups",
            bubble="(p-1)(F+B)/v",
            in_flight="p+(p-1)/v",
            source="arXiv:2104.04473; Megatron-LM",
        ),
        "zb-h1": Schedule(
            title="1F1B with gradients of weights put off into the bubbles",
            chunks="1",
            bubble="(p-1)(F+B-2W) if W is at most F and B-W",
            in_flight="p",
            source="ZB-H1, arXiv:2401.10241",
        ),
        "dualpipe": Schedule(
            title="Two pipelines in opposite directions, forwards and backwards overlapped",
            chunks="1, held twice; stages even; micro-batches even, at least twice the stages",
            bubble="(p/2-1)(F&B+B-3W) if F = B-W and W is at most F",
            in_flight="p+1",
            source="DeepSeek-V3, arXiv:2412.19437; github.com/deepseek-ai/DualPipe",
        ),
    }
)
"""The kinds of schedules by name."""

_ONE_CHUNK: Mapping[str, Callable[[int, int], tuple[Order, ...]]] = {
    "gpipe": orders.gpipe,
    "1f1b": orders.one_f_one_b,
    "zb-h1": orders.zb_h1,
    "dualpipe": orders.dualpipe,
}


def pipeline(
    name: str,
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    *,
    group: int | None = None,
    paired: bool = False,
) -> Pipeline:
    """Lay out a schedule.

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
        ``interleaved``, 1 for the others. (``dualpipe`` cuts none; it gives a stage a second
        chunk, which another stage holds too.)
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
    if name not in SCHEDULES:
        raise InputError(
            f"no schedule {name!r}{nearest(name, SCHEDULES)}; there are {', '.join(SCHEDULES)}"
        )
    for key, value in (("stages", stages), ("micro_batches", micro_batches), ("chunks", chunks)):
        if value < 1:
            raise InputError(f"schedule {name}: {key} is {value}; it must be 1 or more")
    if name == "interleaved":
        actions = orders.interleaved(
            stages, micro_batches, chunks, stages if group is None else group, paired
        )
        return Pipeline(name, stages, chunks, micro_batches, actions, parts=stages * chunks)
    alone = name == "1f1b" and stages == 1
    for key, given in (
        ("chunks", chunks > 1),
        ("group", group is not None),
        ("paired", paired and not alone),
    ):
        if given:
            raise InputError(f"schedule {name}: {key} is for the schedule interleaved only")
    if paired:
        actions = orders.one_f_one_b(stages, micro_batches, paired)
    else:
        actions = _ONE_CHUNK[name](stages, micro_batches)
    held = 2 if name == "dualpipe" else 1
    return Pipeline(name, stages, held, micro_batches, actions, parts=stages)
