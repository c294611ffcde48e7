"""Model states: parameters, gradients and what the optimizer remembers, and how they are sharded.

Bytes of a parameter in mixed precision with Adam:

=========  =======  =========  ======  =======  =====
framework  weights  gradients  master  moments  total
=========  =======  =========  ======  =======  =====
Megatron         2          4       4        8     18
DeepSpeed        2          2       4        8     16
FSDP             -          4       4        8     16
=========  =======  =========  ======  =======  =====

Megatron-LM keeps gradients in fp32 (``megatron/training/theoretical_memory_usage.py``: 18, or
6 + 12/dp with the distributed optimizer); DeepSpeed is ZeRO as published (arXiv:1910.02054); FSDP
shards fp32 parameters and gathers copies in 16 bits, which are buffers
(:mod:`mpisim.memory.buffers`). Models in fp32 have no master copy. Other optimizers remember less:
momentum and Adagrad one number a parameter, SGD none. Weights of products in fp8 and NVFP4 have
copies in that format besides, on Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..experiment.plan import Plan
from ..kernels.operations import BYTES, Gemm, GroupedGemm
from ..workloads.data_parallel.buckets import ChunkParameter, chunk_parameters, of_kind
from ..workloads.operators import Compute, Layer, Operator

__all__ = [
    "FP32",
    "Rates",
    "States",
    "gradient_bytes",
    "rates",
    "sharding",
    "shared",
    "size",
    "states",
    "style",
    "weight_bytes",
]

FP32 = 4

MOMENTS = {"adam": 2, "momentum": 1, "adagrad": 1, "sgd": 0}
"""Numbers an optimizer remembers of a parameter."""

FORMATS = ("fp8", "nvfp4")
"""Of products whose weights are copies of those in 16 bits."""

BLOCK = 32
"""Elements of an MXFP8 block, which have a scale of one byte."""


@dataclass(frozen=True)
class Rates:
    """Bytes of one parameter, before sharding.

    Attributes
    ----------
    weight : int
        Of the weight as matrix products read it (FSDP: as it is kept).
    gradient : int
    optimizer : int
        Master copy and moments.
    """

    weight: int
    gradient: int
    optimizer: int

    @property
    def total(self) -> int:
        """Of everything."""
        return self.weight + self.gradient + self.optimizer


@dataclass(frozen=True)
class States:
    """Bytes of model states on one rank.

    Attributes
    ----------
    parameters, gradients, optimizer : int
    """

    parameters: int
    gradients: int
    optimizer: int


def style(plan: Plan) -> str:
    """Return whose rules for data parallelism a plan follows, which :func:`memory` has settled."""
    assert plan.dp_style is not None
    return plan.dp_style


def weight_bytes(plan: Plan) -> int:
    """Bytes of a weight as the passes read it."""
    return BYTES[plan.weight_format]


def gradient_bytes(plan: Plan) -> int:
    """Bytes of a gradient as it is kept and reduced."""
    if plan.grad_precision is not None:
        return BYTES[plan.grad_precision]
    return FP32 if style(plan) == "megatron" else weight_bytes(plan)


def rates(plan: Plan) -> Rates:
    """Return the bytes of a parameter under a plan, before sharding."""
    weight = weight_bytes(plan)
    moments = BYTES[plan.moment_precision] * MOMENTS[plan.optimizer]
    if style(plan) == "fsdp":
        # The sharded parameter is the master copy, and its gradient has the same precision.
        return Rates(FP32, FP32, moments)
    gradient = gradient_bytes(plan)
    master = FP32 if weight < FP32 else 0
    return Rates(weight, gradient, master + moments)


def sharding(plan: Plan) -> tuple[bool, bool, bool]:
    """Return whether data-parallel ranks share parameters, gradients and optimizer states."""
    if style(plan) == "fsdp":
        return True, True, True  # zero = 2 only keeps the gathered copies longer
    return plan.zero >= 3, plan.zero >= 2, plan.zero >= 1


def size(layers: Sequence[Layer]) -> int:
    """Return the parameters of layers, but for those that one rank alone has."""
    return sum(each.size for each in chunk_parameters(layers))


def shared(layers: Sequence[Layer], sizes: Mapping[str, int]) -> int:
    """Return how many of these one rank has where ranks share them."""
    return _shared(chunk_parameters(layers), sizes)


def _shared(found: Sequence[ChunkParameter], sizes: Mapping[str, int]) -> int:
    dense, experts = (sum(each.size for each in of_kind(found, kind)) for kind in (False, True))
    return -(-dense // sizes["shard"]) + -(-experts // sizes["eshard"])


def states(layers: Sequence[Layer], plan: Plan, sizes: Mapping[str, int]) -> States:
    """Return the bytes of model states that a rank keeps through a step.

    Parameters
    ----------
    layers : sequence of Layer
        All that the rank holds, in one rank's shapes.
    plan : Plan
    sizes : mapping of str to int
        Members of groups: ``shard`` and ``eshard`` (experts) share states. What a rank has for
        itself alone (tables of a recommendation model) is never shared, and has gradients of the
        rows that were looked up, which are temporaries.
    """
    each = rates(plan)
    found = chunk_parameters(layers)
    whole, share = sum(each.size for each in found), _shared(found, sizes)
    of_parameters, of_gradients, of_optimizer = (
        share if sharded else whole for sharded in sharding(plan)
    )
    own = sum(p.size for layer in layers for p in layer.parameters if p.local)
    return States(
        each.weight * of_parameters + weight_bytes(plan) * own + _copies(layers, plan),
        each.gradient * of_gradients,
        each.optimizer * of_optimizer + FP32 * MOMENTS[plan.optimizer] * own,
    )


def _copies(layers: Sequence[Layer], plan: Plan) -> int:
    """Return the bytes that weights in the format of the products add to those in 16 bits.

    Transformer Engine keeps them through a step (weight workspaces,
    transformer_engine/pytorch/module/base.py), also transposed where the GPU's products take one
    layout alone, or where blocks are scaled, along either dimension; in NVFP4 9/16 byte each. Only
    weights of products in that format have them: not embedding, head, router and norms. With
    ``fp8_params`` they are all there is of these weights.
    """
    if style(plan) != "megatron" or plan.precision not in FORMATS or plan.fp8_weight_casts:
        return 0
    size = sum(_quantised(layer.operators) for layer in layers)
    if plan.precision == "nvfp4":
        return 2 * 9 * size // 16
    blocks = plan.fp8_scaling == "blocks"
    each = 2 if plan.fp8_transposed or blocks else 1
    scales = each * (size // BLOCK) if blocks else 0
    return each * size + scales - (weight_bytes(plan) * size if plan.fp8_params else 0)


def _quantised(operators: Sequence[Operator]) -> int:
    """Return the elements of the weights that operators multiply by in fp8 or NVFP4."""
    return sum(
        parameter.size
        for operator in operators
        if any(
            isinstance(step, Compute)
            and isinstance(step.kernel, Gemm | GroupedGemm)
            and step.kernel.dtype in FORMATS
            for step in operator.forward
        )
        for parameter in operator.parameters
        if parameter.name.endswith(" weight")
    )
