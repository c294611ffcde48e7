"""The defaults of frameworks, from ``data/frameworks.toml``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from mpisim.data import text

from ...base.quantity import Quantity
from ...base.schema import build, parse

__all__ = ["Frameworks", "frameworks"]

FILE = "frameworks.toml"


@dataclass(frozen=True)
class DdpDefaults:
    """Of PyTorch's DistributedDataParallel: bytes of the first bucket, and of the others."""

    first_bucket: Quantity
    bucket: Quantity


@dataclass(frozen=True)
class MegatronDefaults:
    """Of Megatron-LM, in elements: what a bucket holds, that much for each rank at least, and what
    parameters and buckets are padded to where they are sharded."""

    bucket: Quantity
    bucket_per_rank: Quantity
    parameter_alignment: Quantity
    bucket_alignment: Quantity


@dataclass(frozen=True)
class DeepSpeedDefaults:
    """Of DeepSpeed, in elements: what a bucket holds; what one rank's share of all parameters is
    padded to; of stage 3, how much is gathered ahead, which parameters are never freed, how much is
    gathered at a time, and how soon a parameter must be used again to stay gathered."""

    bucket: Quantity
    alignment: Quantity
    prefetch: Quantity
    persistent: Quantity
    live: Quantity
    reuse: Quantity


@dataclass(frozen=True)
class Frameworks:
    """Of all frameworks; where each number comes from stands in the data file."""

    ddp: DdpDefaults
    megatron: MegatronDefaults
    deepspeed: DeepSpeedDefaults


@cache
def frameworks() -> Frameworks:
    """Return the defaults of ``data/frameworks.toml``."""
    return build(Frameworks, parse(text(FILE), FILE), FILE)
