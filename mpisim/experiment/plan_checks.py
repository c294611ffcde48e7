"""What of a parallel plan goes together, and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.errors import InputError, nearest

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["AXES", "check"]

AXES = ("tp", "cp", "ep", "dp", "pp")
"""Axes of the grid of ranks, as Megatron-LM names them."""


def check(plan: Plan) -> None:
    """Refuse a plan whose keys do not go together, whatever the model and the cluster.

    Raises
    ------
    InputError
    """
    axes = plan.order.split("-")
    for axis in axes:
        if axis not in AXES:
            raise InputError(
                f"order is {plan.order!r}: unknown axis {axis!r}{nearest(axis, AXES)}; "
                f"allowed: {', '.join(AXES)}"
            )
    if sorted(axes) != sorted(AXES):
        raise InputError(f"order is {plan.order!r}; it must name each of {'-'.join(AXES)} once")
    if plan.stages and len(plan.stages) != plan.pp * plan.vpp:
        raise InputError(
            f"stages has {len(plan.stages)} entries; pp × vpp = {plan.pp * plan.vpp} are needed"
        )
    if plan.vpp > 1 and plan.schedule != "interleaved":
        raise InputError(f"vpp is {plan.vpp}, but schedule = {plan.schedule!r} has one chunk")
    alone = plan.schedule == "1f1b" and plan.pp == 1
    if plan.ep_overlap and plan.schedule != "interleaved" and not alone:
        raise InputError(
            f"ep_overlap is true, but schedule = {plan.schedule!r}; it needs 'interleaved', or "
            "pp = 1"
        )
    if plan.moe_dispatcher != "all-to-all" and plan.expert_tp > 1:
        raise InputError(
            f"moe_dispatcher is {plan.moe_dispatcher!r} with experts split over "
            f"{plan.expert_tp} ranks; set etp = 1"
        )
    if plan.launch_blocking and plan.cuda_graphs:
        raise InputError("launch_blocking is true, but cuda_graphs, too: the CPU launches none")
    if plan.convolution_precision is not None and plan.precision != "fp32":
        raise InputError(
            f"convolution_precision is given, but precision is {plan.precision!r}, which "
            "convolutions have, too; the key is for 'fp32'"
        )
    if (plan.recompute_keeps or plan.recompute_stops) and plan.recompute != "full":
        key = "recompute_keeps" if plan.recompute_keeps else "recompute_stops"
        raise InputError(f"{key} is given, but recompute is {plan.recompute!r}; set 'full'")
    if plan.recompute_modules and plan.recompute == "full":
        raise InputError("recompute_modules is given, but recompute = 'full' is all of them")
    if plan.sp and plan.tp == 1:
        raise InputError("sp is true, but tp is 1: there is nobody to share the sequence with")
    if plan.tp_overlap and not plan.sequence_parallel:
        raise InputError("tp_overlap is true; it needs tp > 1 and sp = true")
    _check_data_parallel(plan)
    _check_replicas(plan)


def _check_data_parallel(plan: Plan) -> None:
    allowed = {"ddp": (0, 1), "megatron": (0, 1), "deepspeed": (0, 1, 2, 3), "fsdp": (2, 3)}
    style = plan.dp_style
    if style is not None and plan.zero not in allowed[style]:
        choices = ", ".join(map(str, allowed[style]))
        raise InputError(f"zero is {plan.zero}; dp_style = {style!r} allows {choices}")
    if plan.zero == 3 and plan.pp > 1:
        raise InputError(
            "zero is 3 with pp > 1: no framework gathers parameters for each micro-batch of a "
            "pipeline; dp_style = 'fsdp' with zero = 2 shards them, and gathers them once a step"
        )
    if plan.zero_group is not None and not plan.zero:
        raise InputError("zero_group is given, but zero is 0: nothing is sharded")


def _check_replicas(plan: Plan) -> None:
    if not plan.replica_batch:
        return
    if plan.dp is not None and len(plan.replica_batch) != plan.dp:
        raise InputError(f"replica_batch has {len(plan.replica_batch)} entries; dp is {plan.dp}")
    if sum(plan.replica_batch) != plan.global_batch:
        raise InputError(
            f"replica_batch adds up to {sum(plan.replica_batch)}; global_batch is "
            f"{plan.global_batch}"
        )
    for replica, batch in enumerate(plan.replica_batch):
        if batch % plan.micro_batch:
            raise InputError(
                f"replica_batch gives replica {replica} {batch} sequences, which is not a "
                f"multiple of micro_batch = {plan.micro_batch}"
            )
    if plan.zero > 1:
        raise InputError(
            f"replica_batch is given with zero = {plan.zero}: replicas meet in every "
            "micro-batch, so they need equally many; allowed: zero = 0, 1"
        )
    if plan.ep > 1:
        raise InputError(
            "replica_batch is given with ep > 1: replicas exchange tokens in every "
            "micro-batch, so they need equally many"
        )
