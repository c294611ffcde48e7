"""Changes of a recorded job of several ranks, and which of them no job allows.

Reading the files of a job takes longest, so what can be refused without them is refused before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from ..base.errors import UsageError, nearest
from ..kernels import find_gpu
from .parallel_axes import parse_layout

if TYPE_CHECKING:
    from ..topo import Cluster

__all__ = ["Changes", "check_changes"]

BUCKET_FORMATS = ("fp32", "bf16")
"""In which Megatron-LM reduces gradients; ``--megatron-buckets`` of the command line has them."""


class Changes(TypedDict, total=False):
    """Changes of a job by `extrapolate_parallel`; None, or left out, is as recorded.

    Attributes
    ----------
    dp, stages, micro_batches, chunks : int or None
        Data-parallel replicas, pipeline stages, micro-batches a step, model chunks a stage.
    gpu : str or None
        Name or file of another GPU.
    distributed_optimizer : bool or None
    schedule : str or None
        A name of `mpisim.schedules`.
    buckets : str or None
        Gradients are reduced in this format, ``fp32`` or ``bf16``, in Megatron-LM's buckets for the
        new replicas.
    calibration : str or None
        A file of NCCL's calibrated constants.
    """

    dp: int | None
    gpu: str | None
    distributed_optimizer: bool | None
    micro_batches: int | None
    stages: int | None
    schedule: str | None
    chunks: int | None
    buckets: str | None
    calibration: str | None


def check_changes(cluster: Cluster | None, layout: str, changes: Changes) -> None:
    """Changes of a job → an error for the first that no job allows. Local.

    Parameters
    ----------
    cluster : Cluster or None
        The new one, if one is named.
    layout : str
        As of `extrapolate_parallel`; "" if none is given.
    changes : Changes

    Raises
    ------
    UsageError
        For a number that is too small, buckets of no such format, or a change for which no network
        is named.
    InputError
        For a layout that is none, or a GPU that is not known.
    """
    for option, number, least in (
        ("--dp", changes.get("dp"), 1),
        ("--micro-batches", changes.get("micro_batches"), 1),
        ("--pp", changes.get("stages"), 2),
        ("--vpp", changes.get("chunks"), 1),
    ):
        if number is not None and number < least:
            raise UsageError(f"{option} is {number}; allowed is {least} or more")
    buckets = changes.get("buckets")
    if buckets is not None and buckets not in BUCKET_FORMATS:
        raise UsageError(
            f"--megatron-buckets is {buckets!r}; allowed are {' and '.join(BUCKET_FORMATS)}"
            f"{nearest(str(buckets), BUCKET_FORMATS)}"
        )
    if layout:
        parse_layout(layout)
    gpu = changes.get("gpu")
    if gpu is not None:
        find_gpu(gpu)
    on_a_network = {
        "--gpu": gpu,
        "--distributed-optimizer": changes.get("distributed_optimizer"),
        "--micro-batches": changes.get("micro_batches"),
        "--pp": changes.get("stages"),
        "--schedule": changes.get("schedule"),
        "--vpp": changes.get("chunks"),
        "--megatron-buckets": buckets,
        "--calibration": changes.get("calibration"),
    }
    given = next((name for name, value in on_a_network.items() if value is not None), None)
    if given is not None and cluster is None:
        raise UsageError(f"{given} is a change: --cluster says on which network")
