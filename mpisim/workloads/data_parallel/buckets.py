"""Buckets of gradients that are reduced together, by the rules of each framework.

All take parameters in the order in which the backward completes them: the reverse of that in which
modules register them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .held import Held

__all__ = ["Bucket", "close_after", "close_before", "padded", "sharded"]


@dataclass(frozen=True)
class Bucket:
    """Parameters whose gradients are reduced together.

    Attributes
    ----------
    parameters : tuple of Held
        In the order in which the backward completes them.
    size : int
        Elements, padding included.
    """

    parameters: tuple[Held, ...]
    size: int

    @property
    def expert(self) -> bool:
        """Whether it holds experts; dense parameters and experts never share a bucket."""
        return self.parameters[0].expert

    @property
    def complete(self) -> tuple[int, int]:
        """Layer and operator whose backward completes the last of its gradients."""
        return self.parameters[-1].place


def padded(size: int, multiple: int) -> int:
    """Return the next multiple of a number."""
    return -(-size // multiple) * multiple


def close_after(parameters: Iterable[Held], limits: Sequence[int]) -> list[Bucket]:
    """Close a bucket with the parameter that reaches its limit.

    As PyTorch's ``compute_bucket_assignment_by_size`` (torch/csrc/distributed/c10d/reducer.cpp).

    Parameters
    ----------
    parameters : iterable of Held
    limits : sequence of int
        Elements: of the first bucket, of the second, …; the last holds for all further ones.
    """
    found: list[Bucket] = []
    members: list[Held] = []
    size = 0
    for each in parameters:
        members.append(each)
        size += each.size
        if size >= limits[min(len(found), len(limits) - 1)]:
            found.append(Bucket(tuple(members), size))
            members, size = [], 0
    if members:
        found.append(Bucket(tuple(members), size))
    return found


def close_before(parameters: Iterable[Held], limit: int) -> list[Bucket]:
    """Close a bucket before the parameter that would exceed its limit (in elements).

    As DeepSpeed's ``reduce_independent_p_g_buckets_and_remove_grads``
    (deepspeed/runtime/zero/stage_1_and_2.py). A parameter above the limit has a bucket of its own.
    """
    found: list[Bucket] = []
    members: list[Held] = []
    size = 0
    for each in parameters:
        if members and size + each.size > limit:
            found.append(Bucket(tuple(members), size))
            members, size = [], 0
        members.append(each)
        size += each.size
    if members:
        found.append(Bucket(tuple(members), size))
    return found


def sharded(
    parameters: Iterable[Held],
    limit: int | None,
    ranks: int,
    *,
    alignment: tuple[int, int],
    own_bucket: bool,
) -> list[Bucket]:
    """Lay parameters out in a buffer whose buckets are spread evenly over ranks.

    As ``_ParamAndGradBuffer`` of Megatron-LM with the distributed optimizer
    (megatron/core/distributed/param_and_grad_buffer.py).

    Parameters
    ----------
    parameters : iterable of Held
    limit : int, optional
        Elements after which a bucket is closed; one bucket holds all if not given.
    ranks : int
    alignment : tuple of int
        Elements at multiples of which parameters, and buckets, start.
    own_bucket : bool
        Whether tied embeddings have a bucket of their own, so that the first and the last stage of
        a pipeline spread them alike.
    """
    found: list[Bucket] = []
    members: list[Held] = []
    begin = end = 0
    multiple = math.lcm(ranks, alignment[1])

    def close() -> None:
        nonlocal begin, end, members
        end = padded(end, multiple)
        found.append(Bucket(tuple(members), end - begin))
        begin, members = end, []

    for each in parameters:
        end = padded(end, alignment[0])
        own = own_bucket and each.parameter.tied
        if own and members:
            close()
        end += each.size
        members.append(each)
        if own or (limit is not None and end - begin >= limit):
            close()
    if members:
        close()
    return found
