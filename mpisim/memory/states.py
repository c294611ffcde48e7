"""Parameters of a rank → bytes of (sharded) model states and of data-parallel buffers.

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
shards fp32 parameters and gathers copies in 16 bits, which are buffers (`gathered_parameters`).
Models in fp32 have no master copy, and those whose weights are what the optimizer updates
(``precision.main_parameters``) none either: FSDP keeps their parameters and gradients in 16 bits.
What is offloaded lies in the memory of the host (:mod:`.host`). Other optimizers keep less:
momentum and Adagrad one number a parameter, SGD none. Weights of products in fp8 and NVFP4 have
copies in that format besides, on Megatron-LM.

Everything here is a function of how many parameters a rank holds, which are counted once
(`parameter_counts`), of the plan, and of the sizes of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..base.frozen import frozen
from ..experiment.plan import Plan
from ..kernels.operations import BYTES, Gemm, GroupedGemm
from ..workloads.data_parallel.frameworks import frameworks
from ..workloads.operators import Compute, Layer, Operator, Parameter
from ..workloads.optimizer import OPTIMIZER_STATES
from .constants import constants

__all__ = [
    "FP32",
    "ModelStates",
    "ParameterCounts",
    "Rates",
    "accumulated_gradients",
    "framework",
    "gathered_parameters",
    "gradient_buckets",
    "model_states",
    "optimizer_buffers",
    "parameter_counts",
    "rates",
    "sharding",
]

FP32 = 4

QUANTISED_FORMATS = ("fp8", "nvfp4")
"""Formats of products whose weights are copies of those in 16 bits."""

MXFP8_BLOCK = 32
"""Elements of an MXFP8 block, which have a scale of one byte."""


@frozen
class ParameterCounts:
    """Numbers of parameters that one rank holds.

    Attributes
    ----------
    dense, experts : int
        Parameters that data-parallel ranks have in common.
    local : int
        Parameters of this rank alone (tables of a recommendation model). They are never sharded,
        and have gradients of the rows that were looked up, which are temporaries.
    quantised : int
        Weights of products in fp8 or NVFP4.
    root : int
        Parameters of FSDP's root unit: embedding and head.
    units : tuple of int
        Parameters of FSDP's other units.
    frozen, frozen_experts : int
        Parameters that are not trained (beside adapters), weights alone: all, and those of experts.
    held_root : int
    held_units : tuple of int
        As `root` and `units`, with the frozen ones.
    """

    dense: int
    experts: int
    local: int
    quantised: int
    root: int
    units: tuple[int, ...]
    frozen: int = 0
    frozen_experts: int = 0
    held_root: int = 0
    held_units: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """Parameters that data-parallel ranks have in common."""
        return self.dense + self.experts

    def sharded(self, sizes: Mapping[str, int]) -> int:
        """Return the common parameters of one rank where ranks shard them."""
        return _share(self.dense, self.experts, sizes)

    def frozen_share(self, sizes: Mapping[str, int]) -> int:
        """Sizes of the sharding groups → frozen parameters on one rank (FSDP, ZeRO-3)."""
        return _share(self.frozen - self.frozen_experts, self.frozen_experts, sizes)


def _share(dense: int, experts: int, sizes: Mapping[str, int]) -> int:
    return -(-dense // sizes["shard"]) + -(-experts // sizes["eshard"])


def parameter_counts(
    layers: Sequence[Layer], wrap_layers: int = 1, end_units: bool = False
) -> ParameterCounts:
    """Layers in one rank's shapes → numbers of parameters.

    Parameters
    ----------
    layers : sequence of Layer
        All that the rank holds.
    wrap_layers : int
        Blocks of an FSDP unit.
    end_units : bool
        Whether layers before all blocks form a unit, and layers after them; else both are the
        root's.
    """
    known: dict[int, _OfOperators] = {}  # by the tuple itself: most layers have one and the same
    each = []
    for layer in layers:
        found = known.get(id(layer.operators))
        if found is None:
            found = known[id(layer.operators)] = _OfOperators.of(layer.operators)
        each.append(found)
    blocks = [one for one, layer in zip(each, layers, strict=True) if layer.role == "block"]
    ends = [one for one, layer in zip(each, layers, strict=True) if layer.role != "block"]
    units = [blocks[i : i + wrap_layers] for i in range(0, len(blocks), wrap_layers)]
    if end_units:
        first = next((i for i, layer in enumerate(layers) if layer.role == "block"), len(ends))
        units = [part for part in (ends[:first], *units, ends[first:]) if part]
        ends = []
    return ParameterCounts(
        dense=sum(one.dense for one in each) + _tied(each, expert=False),
        experts=sum(one.experts for one in each) + _tied(each, expert=True),
        local=sum(one.local for one in each),
        quantised=sum(one.quantised for one in each),
        root=_common(ends),
        units=_of_each(_common, units),
        frozen=sum(one.frozen for one in each),
        frozen_experts=sum(one.frozen_experts for one in each),
        held_root=_held(ends),
        held_units=_of_each(_held, units),
    )


def _of_each(
    count: Callable[[Sequence[_OfOperators]], int], units: Sequence[Sequence[_OfOperators]]
) -> tuple[int, ...]:
    """Return the counts of every unit, computed once for units of the same layers."""
    keys = [tuple(map(id, unit)) for unit in units]
    found = {key: count(unit) for key, unit in dict(zip(keys, units, strict=True)).items()}
    return tuple([found[key] for key in keys])


class _OfOperators(NamedTuple):
    """Numbers of parameters of a layer; of those that layers may share, the parameters."""

    dense: int
    experts: int
    local: int
    quantised: int
    tied: tuple[Parameter, ...]
    frozen: int
    frozen_experts: int

    @classmethod
    def of(cls, operators: Sequence[Operator]) -> _OfOperators:
        found = [each for operator in operators for each in operator.parameters]
        own = [each for each in found if not (each.local or each.tied or each.frozen)]
        return cls(
            dense=sum(each.size for each in own if not each.expert),
            experts=sum(each.size for each in own if each.expert),
            local=sum(each.size for each in found if each.local),
            quantised=_quantised(operators),
            tied=tuple(each for each in found if each.tied and not (each.local or each.frozen)),
            frozen=sum(each.size for each in found if each.frozen),
            frozen_experts=sum(each.size for each in found if each.frozen and each.expert),
        )


def _common(layers: Sequence[_OfOperators]) -> int:
    """Return the parameters of layers that data-parallel ranks have in common."""
    own = sum(each.dense + each.experts for each in layers)
    return own + _tied(layers, expert=False) + _tied(layers, expert=True)


def _held(layers: Sequence[_OfOperators]) -> int:
    """Return the parameters as `_common` does, with the frozen ones."""
    return _common(layers) + sum(each.frozen for each in layers)


def _tied(layers: Sequence[_OfOperators], *, expert: bool) -> int:
    """Return the elements of matrices that layers share: one of a size is registered once."""
    first = {tied.size: tied for layer in reversed(layers) for tied in reversed(layer.tied)}
    return sum(size for size, tied in first.items() if tied.expert is expert)


def _quantised(operators: Sequence[Operator]) -> int:
    """Return the elements of the weights that operators multiply by in fp8 or NVFP4."""
    return sum(
        parameter.size
        for operator in operators
        if any(
            isinstance(task, Compute)
            and isinstance(task.kernel, Gemm | GroupedGemm)
            and task.kernel.dtype in QUANTISED_FORMATS
            for task in operator.forward
        )
        for parameter in operator.parameters
        if parameter.name.endswith(" weight")
    )


# --- bytes of one parameter -----------------------------------------------------------------------


@frozen
class Rates:
    """Bytes of one parameter, before sharding.

    Attributes
    ----------
    weight : int
        The weight as matrix products read it (FSDP: as it is kept).
    gradient : int
        The gradient as it is kept between micro-batches.
    optimizer : int
        Master copy and moments.
    """

    weight: int
    gradient: int
    optimizer: int

    @property
    def total(self) -> int:
        """Bytes of weight, gradient, master copy and moments."""
        return self.weight + self.gradient + self.optimizer


def framework(plan: Plan) -> str:
    """Return the framework whose data parallelism a plan follows (`Plan.resolved` fills it in)."""
    assert plan.framework.dp_style is not None
    return plan.framework.dp_style


def _weight_bytes(plan: Plan) -> int:
    """Plan → bytes of a parameter as forward and backward passes read it."""
    return BYTES[plan.parameter_format]


def _gradient_bytes(plan: Plan) -> int:
    """Return the bytes of a gradient as it is kept and reduced."""
    if plan.precision.gradients is not None:
        return BYTES[plan.precision.gradients]
    return FP32 if framework(plan) == "megatron" else _weight_bytes(plan)


def rates(plan: Plan) -> Rates:
    """Return the bytes of a parameter under a plan, before sharding."""
    weight = _weight_bytes(plan)
    main = BYTES[plan.precision.main_parameters]
    moments = BYTES[plan.precision.moments] * OPTIMIZER_STATES[plan.optimizer]
    if framework(plan) == "fsdp":
        # The sharded parameter is the master copy, and its gradient has the same precision.
        return Rates(main, main, moments)
    gradient = _gradient_bytes(plan)
    master = main if weight < main else 0
    return Rates(weight, gradient, master + moments)


def sharding(plan: Plan) -> tuple[bool, bool, bool]:
    """Return whether data-parallel ranks shard parameters, gradients and optimizer states."""
    if framework(plan) == "fsdp":
        return True, True, True  # zero = 2 only keeps the gathered copies longer
    return plan.zero >= 3, plan.zero >= 2, plan.zero >= 1


# --- states ---------------------------------------------------------------------------------------


@frozen
class ModelStates:
    """Bytes of model states on one rank.

    Attributes
    ----------
    parameters, gradients : int
    optimizer : int
        Master weights and moments.
    """

    parameters: int
    gradients: int
    optimizer: int


def model_states(counts: ParameterCounts, plan: Plan, sizes: Mapping[str, int]) -> ModelStates:
    """Parameters of a rank → bytes of model states that it keeps through a step.

    Parameters
    ----------
    counts : ParameterCounts
    plan : Plan
    sizes : mapping of str to int
        Members of groups of ranks: ``shard`` and ``eshard`` (experts) shard states.
    """
    each = rates(plan)
    share = counts.sharded(sizes)
    of_parameters, of_gradients, of_optimizer = (
        share if sharded else counts.total for sharded in sharding(plan)
    )
    frozen = _weight_bytes(plan) * counts.frozen
    if sharding(plan)[0]:
        frozen = each.weight * counts.frozen_share(sizes)
    if plan.offload.parameters:
        of_parameters = frozen = of_gradients = 0
    own = frozen + _weight_bytes(plan) * counts.local
    of_optimizer -= round(plan.offload.optimizer * of_optimizer)
    gradients = each.gradient * of_gradients
    if plan.offload.optimizer and framework(plan) == "deepspeed" and plan.zero >= 2:
        # Each goes to the host once it is reduced; of what the GPU updates there is one in fp32.
        gradients = FP32 * (of_gradients - round(plan.offload.optimizer * of_gradients))
    return ModelStates(
        each.weight * of_parameters + own + _quantised_copies(counts, plan),
        gradients,
        each.optimizer * of_optimizer + FP32 * OPTIMIZER_STATES[plan.optimizer] * counts.local,
    )


def _quantised_copies(counts: ParameterCounts, plan: Plan) -> int:
    """Return the bytes that weights in the format of the products add to those in 16 bits.

    Transformer Engine keeps them through a step (weight workspaces,
    transformer_engine/pytorch/module/base.py), also transposed where the GPU's products take one
    layout alone, or where blocks are scaled, along either dimension; in NVFP4 9/16 byte each. Only
    weights of products in that format have them: not embedding, head, router and norms. With
    ``fp8_params`` they are all there is of these weights.
    """
    quantises = plan.precision.products in QUANTISED_FORMATS and not plan.framework.fp8_weight_casts
    if framework(plan) != "megatron" or not quantises:
        return 0
    size = counts.quantised
    if plan.precision.products == "nvfp4":
        return 2 * 9 * size // 16
    blocks = plan.precision.fp8_scaling == "blocks"
    each = 2 if plan.framework.fp8_transposed or blocks else 1
    scales = each * (size // MXFP8_BLOCK) if blocks else 0
    return each * size + scales - (_weight_bytes(plan) * size if plan.precision.fp8_params else 0)


# --- buffers --------------------------------------------------------------------------------------


def gathered_parameters(counts: ParameterCounts, plan: Plan) -> int:
    """Return the bytes of parameters that are gathered at once where ranks shard them.

    FSDP: the root unit (embedding and head), which stays gathered, the unit at work and those that
    are prefetched; all of them where nothing is freed after the forward (zero = 2, or
    ``reshard_after_forward = false``). What ``fully_shard`` gathers comes in a buffer, from which
    parameters are copied (`foreach_all_gather_copy_out` of
    torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py). Buffers are made in a stream of their
    own: the allocator keeps the largest from the first forward on, and no other stream can have it.
    DeepSpeed's stage 3 frees what it can once ``stage3_max_live_parameters`` are gathered.

    Parameters
    ----------
    counts : ParameterCounts
        Of the rank, before sharding.
    plan : Plan
    """
    weight = _weight_bytes(plan)
    if framework(plan) == "deepspeed" and plan.zero == 3:
        held = counts.total + counts.frozen
        return min(weight * held, weight * round(frameworks().deepspeed.live.si))
    if framework(plan) != "fsdp":
        return 0
    ahead = 1 + plan.framework.prefetch
    root, units = counts.held_root, counts.held_units
    most = max((sum(units[i : i + ahead]) for i in range(len(units))), default=0)
    copied = 0 if plan.framework.flat_shards else max(root, most)
    if plan.zero == 2 or not plan.framework.reshard_after_forward:
        most = sum(units)
    return weight * (root + most + copied)


def gradient_buckets(counts: ParameterCounts, plan: Plan, sizes: Mapping[str, int]) -> int:
    """Return the bytes of buffers in which gradients are reduced, besides the gradients.

    Megatron-LM reduces them where they are kept. PyTorch DDP copies all of them to its buckets
    (``gradient_as_bucket_view = False``, its default). FSDP has those of one unit as computed, of
    the unit before as they are reduced, and of the root unit until the end; in a pipeline those of
    one unit as computed, besides those that are accumulated (`accumulated_gradients`). DeepSpeed's
    buckets have a fixed size, and overlapping takes several.

    Parameters
    ----------
    counts : ParameterCounts
        Of the rank, before sharding.
    plan : Plan
    sizes : mapping of str to int
        Members of each group of ranks; ``dp`` is read: alone, a rank reduces nothing, but offloads
        from its buckets.
    """
    style = framework(plan)
    if (sizes["dp"] == 1 and not plan.offload.optimizer) or style == "megatron":
        return 0
    weight, gradient = _weight_bytes(plan), _gradient_bytes(plan)
    everything = counts.total
    if style == "ddp":
        return gradient * everything
    if style == "fsdp":
        if plan.pp > 1:
            return weight * max(counts.units, default=0)
        return (weight + gradient) * max(counts.units, default=0) + weight * counts.root
    if plan.zero == 0:
        return 0
    bucket = plan.framework.bucket or gradient * round(frameworks().deepspeed.bucket.si)
    times = constants().deepspeed_overlap.value if plan.overlap.dp else 1.0
    pairs = 1 if plan.zero == 3 else 2  # reduce and all-gather; stage 3 gathers by itself
    return round(pairs * times * min(bucket, gradient * everything))


def accumulated_gradients(counts: ParameterCounts, plan: Plan, sizes: Mapping[str, int]) -> int:
    """Return the bytes in which FSDP in a pipeline accumulates the gradients of a model chunk.

    From the chunk's first backward of a step until they are reduced after its last
    (``unsharded_accumulated_grad`` of torch/distributed/fsdp/_fully_shard/_fsdp_param.py).

    Parameters
    ----------
    counts : ParameterCounts
        Of the model chunk, before sharding.
    plan : Plan
    sizes : mapping of str to int
        Members of each group of ranks; ``dp`` is read: alone, a rank reduces nothing.
    """
    if framework(plan) != "fsdp" or plan.pp == 1 or sizes["dp"] == 1:
        return 0
    return _gradient_bytes(plan) * counts.total


def optimizer_buffers(counts: ParameterCounts, plan: Plan, sizes: Mapping[str, int]) -> int:
    """Return the bytes that the optimizer's step allocates, when activations are freed.

    PyTorch's optimizers work on lists of tensors and make one more copy of what they update
    (``foreach``, torch/optim/adam.py: about the size of the parameters); Megatron-LM copies 16-bit
    gradients to fp32 (megatron/core/optimizer/optimizer.py, ``_copy_model_grads_to_main_grads``).

    Parameters
    ----------
    counts : ParameterCounts
        Of the rank, before sharding.
    plan : Plan
    sizes : mapping of str to int
        Members of groups of ranks: ``shard`` and ``eshard`` (experts) shard states.
    """
    if plan.offload.parameters:
        return 0
    if framework(plan) == "megatron":
        if rates(plan).gradient == FP32:
            return 0
    elif framework(plan) == "deepspeed" or plan.optimizer == "sgd":
        return 0
    *_, sharded = sharding(plan)
    main = BYTES[plan.precision.main_parameters]
    return main * (counts.sharded(sizes) if sharded else counts.total)
