"""What is asked for of a recorded job → refused, where the job need not be known to see that.

Reading the files of a job takes longest: what cannot be is said before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.errors import UsageError
from ..kernels import find_gpu
from .parallel_axes import parse_layout

if TYPE_CHECKING:
    from ..topo import Cluster

__all__ = ["check_changes"]


def check_changes(
    cluster: Cluster | None,
    layout: str = "",
    *,
    dp: int | None = None,
    gpu: str | None = None,
    distributed_optimizer: bool | None = None,
    micro_batches: int | None = None,
    stages: int | None = None,
    schedule: str | None = None,
    chunks: int | None = None,
    calibration: str | None = None,
) -> None:
    """Options of a changed job → nothing, or the error of the first that no job allows. Local.

    Parameters
    ----------
    cluster, layout, dp, gpu, distributed_optimizer, micro_batches, stages, schedule, chunks
        As of `extrapolate_parallel`, and so `calibration`.

    Raises
    ------
    UsageError
        For a number that is too small, or a change for which no network is named.
    InputError
        For a layout that is none, or a GPU that is not known.
    """
    for option, number, least in (
        ("--dp", dp, 1),
        ("--micro-batches", micro_batches, 1),
        ("--pp", stages, 2),
        ("--vpp", chunks, 1),
    ):
        if number is not None and number < least:
            raise UsageError(f"{option} is {number}; allowed is {least} or more")
    if layout:
        parse_layout(layout)
    if gpu is not None:
        find_gpu(gpu)
    changes = {
        "--gpu": gpu,
        "--distributed-optimizer": distributed_optimizer,
        "--micro-batches": micro_batches,
        "--pp": stages,
        "--schedule": schedule,
        "--vpp": chunks,
        "--calibration": calibration,
    }
    given = next((name for name, value in changes.items() if value is not None), None)
    if given is not None and cluster is None:
        raise UsageError(f"{given} is a change: --cluster says on which network")
