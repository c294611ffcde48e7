"""Parameters of a model chunk → buckets in which their gradients are reduced.

Each framework has its rule to cut buckets. All take parameters in the order in which the backward
completes them: the reverse of that in which modules register them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...base.frozen import frozen
from ...experiment.plan import Plan
from ..operators import Layer, Parameter

__all__ = [
    "Bucket",
    "ChunkParameter",
    "aligned_buckets",
    "buckets_closed_after",
    "buckets_closed_before",
    "chunk_parameters",
    "experts_apart",
    "of_kind",
    "padded",
]


class ChunkParameter(NamedTuple):
    """A parameter of a model chunk, and the operator it belongs to.

    Attributes
    ----------
    parameter : Parameter
    layer, operator : int
        The layer in the chunk, and the operator in the layer.
    number : int
        Place among the chunk's parameters in the order of registration.
    """

    parameter: Parameter
    layer: int
    operator: int
    number: int

    @property
    def size(self) -> int:
        """Elements this rank holds."""
        return self.parameter.size

    @property
    def expert(self) -> bool:
        """Whether it belongs to a routed expert."""
        return self.parameter.expert

    @property
    def position(self) -> tuple[int, int]:
        """Layer and operator; the backward comes through them in descending order."""
        return self.layer, self.operator


def chunk_parameters(
    layers: Sequence[Layer], *, frozen: bool = False
) -> tuple[ChunkParameter, ...]:
    """Layers of a chunk → their parameters in order of registration, no local ones.

    A matrix that two layers of the chunk share (tied embeddings without a pipeline) is registered
    once, with the first: its gradient is complete when the backward has come there. A parameter
    that this rank alone holds (`Parameter.local`) is left out, and so is a frozen one by default.

    Parameters
    ----------
    layers : sequence of Layer
    frozen : bool
        Whether frozen ones count, too.
    """
    found: list[ChunkParameter] = []
    tied: set[int] = set()
    for i, layer in enumerate(layers):
        for j, operator in enumerate(layer.operators):
            for parameter in operator.parameters:
                if parameter.local or (parameter.frozen and not frozen):
                    continue
                if parameter.tied and parameter.size in tied:
                    continue
                if parameter.tied:
                    tied.add(parameter.size)
                found.append(ChunkParameter(parameter, i, j, len(found)))
    return tuple(found)


def experts_apart(plan: Plan, sizes: Mapping[str, int]) -> bool:
    """Plan, sizes of groups → whether experts' parameters are exchanged apart from all others.

    Where each rank holds all experts, DDP knows none: buckets go by the order of gradients alone
    (torch/csrc/distributed/c10d/reducer.cpp). FSDP's block is one unit: experts are one of their
    own ``if transformer_block.moe_enabled and ep_degree > 1`` (torchtitan,
    torchtitan/models/llama4/infra/parallelize.py). Megatron-FSDP, which has flat shards, tells them
    apart.

    Parameters
    ----------
    plan : Plan
        Resolved.
    sizes : mapping of str to int
        Members of groups of ranks; ``dp`` and ``edp`` (experts) are read.
    """
    if plan.ep > 1 or sizes["edp"] != sizes["dp"]:
        return True
    style = plan.framework.dp_style
    return style != "ddp" and (style != "fsdp" or plan.framework.flat_shards)


def of_kind(parameters: Iterable[ChunkParameter], expert: bool) -> list[ChunkParameter]:
    """Parameters → those of dense layers, or those of experts.

    Parameters
    ----------
    parameters : iterable of ChunkParameter
    expert : bool
        Whether those of experts are wanted.
    """
    return [each for each in parameters if each.parameter.expert is expert]


@frozen
class Bucket:
    """Parameters whose gradients are reduced together.

    Attributes
    ----------
    parameters : tuple of ChunkParameter
        In the order in which the backward completes them.
    size : int
        Elements, padding included.
    """

    parameters: tuple[ChunkParameter, ...]
    size: int

    @property
    def expert(self) -> bool:
        """Whether it holds experts; dense parameters and experts never share a bucket."""
        return self.parameters[0].expert

    @property
    def complete(self) -> tuple[int, int]:
        """Layer and operator whose backward completes the last of its gradients."""
        return self.parameters[-1].position


def padded(size: int, multiple: int) -> int:
    """Size → the next multiple of a number.

    Parameters
    ----------
    size : int
    multiple : int
        The result is the least multiple of it that is not below `size`.
    """
    return -(-size // multiple) * multiple


def buckets_closed_after(
    parameters: Iterable[ChunkParameter], limits: Sequence[int]
) -> list[Bucket]:
    """Parameters → buckets, each closed with the parameter that reaches its limit.

    As PyTorch's ``compute_bucket_assignment_by_size`` (torch/csrc/distributed/c10d/reducer.cpp).

    Parameters
    ----------
    parameters : iterable of ChunkParameter
    limits : sequence of int
        Elements: of the first bucket, of the second, …; the last holds for all further ones.
    """
    found: list[Bucket] = []
    members: list[ChunkParameter] = []
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


def buckets_closed_before(parameters: Iterable[ChunkParameter], limit: int) -> list[Bucket]:
    """Parameters → buckets, each closed before the parameter that would exceed the limit.

    As DeepSpeed's ``reduce_independent_p_g_buckets_and_remove_grads``
    (deepspeed/runtime/zero/stage_1_and_2.py). A parameter above the limit has a bucket of its own.

    Parameters
    ----------
    parameters : iterable of ChunkParameter
    limit : int
        Elements.
    """
    found: list[Bucket] = []
    members: list[ChunkParameter] = []
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


def aligned_buckets(
    parameters: Iterable[ChunkParameter],
    limit: int | None,
    ranks: int,
    *,
    alignment: tuple[int, int],
    own_bucket: bool,
) -> list[Bucket]:
    """Parameters → buckets of one buffer, padded to be spread evenly over ranks.

    As ``_ParamAndGradBuffer`` of Megatron-LM with the distributed optimizer
    (megatron/core/distributed/param_and_grad_buffer.py).

    Parameters
    ----------
    parameters : iterable of ChunkParameter
    limit : int, optional
        Elements after which a bucket is closed; one bucket holds all if not given.
    ranks : int
        Ranks that share each bucket.
    alignment : tuple of int
        Elements at multiples of which parameters, and buckets, start.
    own_bucket : bool
        Whether tied embeddings have a bucket of their own, so that the first and the last stage of
        a pipeline shard them in the same way.
    """
    found: list[Bucket] = []
    members: list[ChunkParameter] = []
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
