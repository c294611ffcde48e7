"""Keys of a pipeline and its overlaps → refused where its schedule cannot have them."""

from __future__ import annotations

from ..base.errors import InputError
from ..schedules import CHUNKS_IN_A_V, SCHEDULES
from .plan_options import OverlapOptions, PipelineOptions

__all__ = ["check_schedule_keys"]


def check_schedule_keys(
    pipeline: PipelineOptions,
    overlap: OverlapOptions,
    *,
    pp: int,
    vpp: int,
    ep: int,
    zero: int,
    overlaps_p2p: bool,
) -> None:
    """Refuse stages, chunks and overlaps that the schedule of a pipeline contradicts.

    Parameters
    ----------
    pipeline : PipelineOptions
    overlap : OverlapOptions
    pp, vpp, ep, zero : int
        Of the plan.
    overlaps_p2p : bool
        Whether the compute stream goes on while activations are sent (`Plan.overlaps_p2p`).

    Raises
    ------
    InputError
        A line that names the key, its value and what is allowed.
    """
    if pipeline.stages and len(pipeline.stages) != pp * vpp:
        raise InputError(
            f"pipeline.stages has {len(pipeline.stages)} entries; pp × vpp = {pp * vpp} are needed"
        )
    schedule = SCHEDULES[pipeline.schedule]
    interleaved = schedule.interleaved
    if vpp > 1 and not (interleaved or schedule.v_shaped):
        raise InputError(
            f"vpp is {vpp}, but pipeline.schedule = {pipeline.schedule!r} has one chunk"
        )
    if schedule.v_shaped and vpp != CHUNKS_IN_A_V:
        raise InputError(
            f"vpp is {vpp}, but pipeline.schedule = {pipeline.schedule!r} has two chunks "
            f"a stage: vpp = {CHUNKS_IN_A_V}"
        )
    if schedule.needs_overlap and not overlaps_p2p:
        raise InputError(
            f"overlap.p2p is false, but pipeline.schedule = {pipeline.schedule!r}: its stages "
            "would wait for each other's messages"
        )
    alone = pipeline.schedule == "1f1b" and pp == 1
    if overlap.ep and not interleaved and not alone:
        raise InputError(
            f"overlap.ep is true, but pipeline.schedule = {pipeline.schedule!r}; it needs "
            "'interleaved', or pp = 1"
        )
    if overlap.mirror and not schedule.mirrored:
        mirrored = ", ".join(repr(name) for name, each in SCHEDULES.items() if each.mirrored)
        raise InputError(
            f"overlap.mirror is true, but pipeline.schedule = {pipeline.schedule!r} holds no "
            f"part twice; allowed: {mirrored}"
        )
    if overlap.mirror and (zero or ep > 1):
        key, value = ("zero", zero) if zero else ("ep", ep)
        raise InputError(
            f"overlap.mirror is true with {key} = {value}: whole gradients are added up early, "
            f"those of all layers; allowed: {key} = {0 if zero else 1}"
        )
