"""Buffers of data and pipeline parallelism: gathered parameters, buckets of gradients, messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..experiment.plan import Plan
from ..workloads.data_parallel.frameworks import frameworks
from ..workloads.layout import ModelChunk
from ..workloads.operators import Layer
from ..workloads.schedules import Pipeline
from .constants import constants
from .states import gradient_bytes, size, style, weight_bytes

__all__ = ["added_up", "buckets", "gathered", "messages"]


def _units(layers: Sequence[Layer], wrap: int) -> tuple[int, list[int]]:
    """Return the parameters of FSDP's root unit, and of each unit of `wrap` blocks."""
    blocks = [layer for layer in layers if layer.role == "block"]
    ends = [layer for layer in layers if layer.role != "block"]
    return size(ends), [size(blocks[i : i + wrap]) for i in range(0, len(blocks), wrap)]


def gathered(layers: Sequence[Layer], plan: Plan) -> int:
    """Return the bytes of parameters that are gathered at once where ranks share them.

    FSDP: the root unit (embedding and head), which stays gathered, the unit at work and those that
    are prefetched; all of them where nothing is freed after the forward (zero = 2, or
    ``reshard_after_forward = false``). DeepSpeed's stage 3 frees what it can once
    ``stage3_max_live_parameters`` are gathered.
    """
    weight = weight_bytes(plan)
    if style(plan) == "deepspeed" and plan.zero == 3:
        return min(weight * size(layers), weight * round(frameworks().deepspeed.live.si))
    if style(plan) != "fsdp":
        return 0
    root, units = _units(layers, plan.wrap_layers)
    if plan.zero == 2 or not plan.reshard_after_forward:
        return weight * (root + sum(units))
    ahead = 1 + plan.prefetch
    most = max((sum(units[i : i + ahead]) for i in range(len(units))), default=0)
    return weight * (root + most)


def buckets(layers: Sequence[Layer], plan: Plan, sizes: Mapping[str, int]) -> int:
    """Return the bytes that gradients take on their way, besides the gradients themselves.

    Megatron-LM reduces them where they are kept. PyTorch DDP copies all of them to its buckets
    (``gradient_as_bucket_view = False``, its default). FSDP has those of one unit as computed, of
    the unit before as they are reduced, and of the root unit until the end; in a pipeline those of
    one unit as computed, besides those that are added up (`added_up`). DeepSpeed's buckets have a
    fixed size, and overlapping takes several.
    """
    which = style(plan)
    if sizes["dp"] == 1 or which == "megatron":
        return 0
    weight, gradient = weight_bytes(plan), gradient_bytes(plan)
    everything = size(layers)
    if which == "ddp":
        return gradient * everything
    if which == "fsdp":
        root, units = _units(layers, plan.wrap_layers)
        if plan.pp > 1:
            return weight * max(units, default=0)
        return (weight + gradient) * max(units, default=0) + weight * root
    if plan.zero == 0:
        return 0
    bucket = plan.bucket or gradient * round(frameworks().deepspeed.bucket.si)
    times = constants().deepspeed_overlap.value if plan.dp_overlap else 1.0
    pairs = 1 if plan.zero == 3 else 2  # reduce and all-gather; stage 3 gathers by itself
    return round(pairs * times * min(bucket, gradient * everything))


def added_up(layers: Sequence[Layer], plan: Plan, sizes: Mapping[str, int]) -> int:
    """Return the bytes in which FSDP in a pipeline adds up the gradients of a model chunk.

    From the chunk's first backward of a step until they are reduced after its last
    (``unsharded_accumulated_grad`` of torch/distributed/fsdp/_fully_shard/_fsdp_param.py).
    """
    if style(plan) != "fsdp" or plan.pp == 1 or sizes["dp"] == 1:
        return 0
    return gradient_bytes(plan) * size(layers)


def messages(pipeline: Pipeline, stage: int, parts: Sequence[ModelChunk]) -> int:
    """Return the bytes a stage is about to receive: an activation and a gradient, the largest.

    What was received and is kept for the backward pass is counted with the activations.
    """
    activation = gradient = 0
    for chunk in range(pipeline.chunks):
        part = pipeline.part(stage, chunk)
        before, after = pipeline.previous(stage, chunk), pipeline.next(stage, chunk)
        if before is not None and before[0] != stage:
            activation = max(activation, parts[part - 1].layers[-1].output)
        if after is not None and after[0] != stage:
            gradient = max(gradient, parts[part].layers[-1].output)
    return activation + gradient
