"""Default sizes of the frameworks' data parallelism, from ``data/frameworks.toml``."""

from __future__ import annotations

from functools import cache

from ...base.frozen import frozen
from ...base.presets import packaged
from ...base.quantity import Quantity
from ...base.schema import build

__all__ = ["Frameworks", "frameworks"]

FILE = "frameworks.toml"


@frozen
class DdpDefaults:
    """PyTorch's DistributedDataParallel.

    Attributes
    ----------
    first_bucket, bucket : Quantity
        Bytes of the first bucket, and of the others.
    copy_launch : Quantity
        CPU time of a copy that the reducer launches, over that of a launch from Python.
    searched_node : Quantity
        CPU time to visit a node of autograd's graph, over that of a launch from Python.
    """

    first_bucket: Quantity
    bucket: Quantity
    copy_launch: Quantity
    searched_node: Quantity


@frozen
class LibraryDefaults:
    """Libraries whose calls launch several kernels.

    Attributes
    ----------
    further_launch : Quantity
        CPU time of a launch that is not the first of its operator, over that of the first.
    """

    further_launch: Quantity


@frozen
class ApexDefaults:
    """Apex's DistributedDataParallel.

    Attributes
    ----------
    message : Quantity
        Elements from which on a bucket is reduced.
    """

    message: Quantity


@frozen
class HorovodDefaults:
    """Horovod.

    Attributes
    ----------
    threshold : Quantity
        Bytes of the fusion buffer.
    negotiation : Quantity
        From the end of a cycle until all ranks know which gradients are there.
    """

    threshold: Quantity
    negotiation: Quantity


@frozen
class ThreadDefaults:
    """PyTorch's DataParallel: one process, a thread for each GPU.

    Attributes
    ----------
    buffer : Quantity
        Bytes that are sent at a time, of parameters and of gradients.
    """

    buffer: Quantity


@frozen
class MegatronDefaults:
    """Megatron-LM's DistributedDataParallel.

    Attributes
    ----------
    bucket, bucket_per_rank : Quantity
        Elements of a bucket, and the least for each rank that shares it.
    parameter_alignment, bucket_alignment : Quantity
        Elements to which parameters and buckets are padded where they are sharded.
    """

    bucket: Quantity
    bucket_per_rank: Quantity
    parameter_alignment: Quantity
    bucket_alignment: Quantity


@frozen
class DeepSpeedDefaults:
    """DeepSpeed, its ZeRO stages included.

    Attributes
    ----------
    bucket : Quantity
        Elements of a bucket.
    alignment : Quantity
        Elements to which one rank's share of all parameters is padded.
    prefetch, live : Quantity
        Stage 3: elements gathered ahead, and gathered at a time.
    persistent : Quantity
        Stage 3: elements of the largest parameter that is never freed.
    reuse : Quantity
        Stage 3: elements used in between up to which a parameter stays gathered for its next use.
    """

    bucket: Quantity
    alignment: Quantity
    prefetch: Quantity
    persistent: Quantity
    live: Quantity
    reuse: Quantity


@frozen
class Frameworks:
    """All frameworks; the data file says where each number comes from."""

    ddp: DdpDefaults
    library: LibraryDefaults
    apex: ApexDefaults
    horovod: HorovodDefaults
    data_parallel: ThreadDefaults
    megatron: MegatronDefaults
    deepspeed: DeepSpeedDefaults


@cache
def frameworks() -> Frameworks:
    """Default sizes of ``data/frameworks.toml``."""
    return build(Frameworks, packaged(FILE), FILE)
