"""Parallel plans: how the GPUs share the work of a step, and how each GPU does its part.

`Plan` is the table ``[plan]`` of an experiment: its fields are the keys, with a sub-table for each
group of details (`mpisim.experiment.plan_options`). Its field `framework` is a table of the file by
itself, ``[framework]``. Keys that contradict each other are refused when a plan is made, whatever
the model and the cluster; what depends on those is refused where a model is laid out
(`mpisim.workloads.layout`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from ..base.errors import InputError, nearest
from ..base.frozen import frozen
from ..base.schema import Limits
from ..schedules import SCHEDULES
from .framework import FrameworkOptions, Style
from .models import Count, Large
from .plan_options import (
    MAIN_KEYS,
    Format,
    OffloadOptions,
    OverlapOptions,
    PipelineOptions,
    PrecisionOptions,
    RecomputeOptions,
    TableOptions,
)
from .schedule_checks import check_schedule_keys

__all__ = ["AXES", "Plan", "keys_of", "with_keys"]

AXES = ("tp", "cp", "ep", "dp", "pp")
"""Axes of the grid of ranks, as Megatron-LM names them."""

GROUPS = (*MAIN_KEYS, "framework")
"""Fields of a plan that are groups of keys."""


@frozen
class Plan:
    """How the work is shared.

    Attributes
    ----------
    global_batch : int
        Sequences (images, samples) of one step, a multiple of dp × `micro_batch`.
    micro_batch : int
        What one data-parallel rank works on at a time; the others follow as gradient accumulation
        or in a pipeline.
    replica_batch : tuple of int
        Sequences of each data-parallel replica, where they do not share `global_batch` evenly: a
        slow replica may be given less. Multiples of `micro_batch`; their sum is `global_batch`.
    tp, pp, cp : int
        Tensor, pipeline and context parallel size.
    vpp : int
        Model chunks of a stage: 2 or more with the schedule interleaved, 2 with zb-v and dualpipe-v
        (in a file also where it is not given), 1 with the others.
    ep, etp : int
        Expert parallel size, inside tp × cp × dp; tensor parallel size inside an expert (`tp` if
        not given).
    dp : int, optional
        Data parallel size; what remains of the GPUs if not given.
    order : str
        Axes from the innermost (neighbouring ranks) to the outermost, as Megatron-LM's
        ``--tp-cp-ep-dp-pp`` order.
    sp : bool, optional
        Sequence parallelism: norms and dropout share the sequence over the tp group; by default
        where tp > 1.
    zero : int
        Sharded over data-parallel ranks: 1 optimizer states, 2 and gradients, 3 and parameters.
    zero_group : int, optional
        Ranks of one sharding group (hybrid sharding); all data-parallel ranks if not given.
    optimizer : {"adam", "lamb", "sgd", "momentum", "adagrad"}
    clip : bool, optional
        Whether gradients are clipped by their norm; by default with every ``framework.dp_style``
        but "ddp".
    moe_imbalance : float
        Tokens of the busiest expert-parallel rank over the mean.
    precision : PrecisionOptions
    recompute : RecomputeOptions
    pipeline : PipelineOptions
    overlap : OverlapOptions
    offload : OffloadOptions
    tables : TableOptions
    framework : FrameworkOptions
        How a framework does its part: the table ``[framework]`` of files.
    """

    global_batch: Large
    micro_batch: Annotated[int, Limits(least=1, most=1_000_000)] = 1
    replica_batch: tuple[Large, ...] = ()
    tp: Count = 1
    pp: Count = 1
    vpp: Count = 1
    cp: Count = 1
    ep: Count = 1
    etp: Count | None = None
    dp: Count | None = None
    order: str = "tp-cp-ep-dp-pp"
    sp: bool | None = None
    zero: Annotated[int, Limits(least=0, most=3)] = 0
    zero_group: Count | None = None
    optimizer: Literal["adam", "lamb", "sgd", "momentum", "adagrad"] = "adam"
    clip: bool | None = None
    moe_imbalance: Annotated[float, Limits(least=1, most=1000)] = 1.0
    precision: PrecisionOptions = PrecisionOptions()
    recompute: RecomputeOptions = RecomputeOptions()
    pipeline: PipelineOptions = PipelineOptions()
    overlap: OverlapOptions = OverlapOptions()
    offload: OffloadOptions = OffloadOptions()
    tables: TableOptions = TableOptions()
    framework: FrameworkOptions = FrameworkOptions()

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_data_parallel(self)
        _check_offload(self)
        _check_replicas(self)

    def division(self, dp: int) -> str:
        """Replicas → along which axes the work is divided, as ``"dp+tp"``, or ``"one GPU"``."""
        sizes = {"dp": dp, "tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": self.ep}
        return "+".join(axis for axis, size in sizes.items() if size > 1) or "one GPU"

    @property
    def sequence_parallel(self) -> bool:
        """Whether norms and dropout share the sequence."""
        return self.tp > 1 if self.sp is None else self.sp

    @property
    def expert_tp(self) -> int:
        """Tensor parallel size inside an expert."""
        return self.tp if self.etp is None else self.etp

    @property
    def experts(self) -> Literal["loop", "grouped", "fused", "modules"]:
        """How the experts of a rank multiply: one GEMM each, a grouped GEMM, or fused kernels.

        Or as modules of PyTorch, one after another.
        """
        if self.framework.moe_experts is None:
            return "loop" if self.style(transformer=True) == "megatron" else "grouped"
        return self.framework.moe_experts

    @property
    def overlaps_p2p(self) -> bool:
        """Whether the compute stream goes on while activations are sent."""
        if self.overlap.p2p is None:
            return SCHEDULES[self.pipeline.schedule].overlaps_messages
        return self.overlap.p2p

    @property
    def message_shares(self) -> int:
        """Ranks that send a share each of what goes from stage to stage."""
        return self.tp if self.framework.p2p_split and not self.sequence_parallel else 1

    def resolved(self, *, transformer: bool) -> Plan:
        """Return the plan with style and number format as data parallelism takes them.

        Transformers are trained with weights in the format of their products. Other models are
        trained with ``torch.autocast``: their weights and gradients stay in fp32.

        Raises
        ------
        InputError
            If data parallelism refuses the plan, or another model has keys of transformers.
        """
        if not transformer:
            self.precision.check_other_models()
        style = self.style(transformer=transformer)
        products = self.precision.products if transformer else "fp32"
        keys = {"framework.dp_style": style, "precision.products": products}
        try:
            return with_keys(self, keys)
        except InputError as error:
            if self.framework.dp_style is not None or "framework.dp_style" not in str(error):
                raise
            raise InputError(f"{error}; framework.dp_style is the default for this plan") from error

    def style(self, *, transformer: bool) -> Style:
        """Return whose rules data parallelism follows, for a transformer or another model."""
        if self.framework.dp_style is not None:
            return self.framework.dp_style
        if self.zero >= 2:
            return "fsdp"
        return "megatron" if transformer else "ddp"

    @property
    def offloads_checkpoints(self) -> bool:
        """Whether what is offloaded of activations are the inputs of layers that run again."""
        return bool(self.offload.activations) and self.recompute.granularity == "full"

    @property
    def weight_format(self) -> Format:
        """The format in which the passes read weights and write activations."""
        return self.precision.weights

    @property
    def parameter_format(self) -> Format:
        """The format in which parameters are kept between the passes, and their gradients."""
        return "fp32" if self.precision.autocast else self.weight_format


def keys_of(plan: Plan) -> dict[str, object]:
    """Plan → its values by key, as `with_keys` takes them.

    Parameters
    ----------
    plan : Plan

    Returns
    -------
    dict of str to object
        Keys of sub-tables as ``recompute.granularity``.

    Examples
    --------
    >>> keys = keys_of(Plan(global_batch=8))
    >>> keys["global_batch"], keys["recompute.granularity"], keys["framework.fused"]
    (8, 'none', True)
    """
    found: dict[str, object] = {}
    for name, value in vars(plan).items():
        if name in GROUPS:
            found |= {f"{name}.{key}": each for key, each in vars(value).items()}
        else:
            found[name] = value
    return found


def with_keys(plan: Plan, keys: Mapping[str, Any]) -> Plan:
    """Plan, values by key → the plan with these.

    Parameters
    ----------
    plan : Plan
    keys : mapping of str to object
        Fields of the plan and of its groups, as ``"tp"`` and ``"recompute.layers"``.

    Raises
    ------
    InputError
        If the plan refuses them.

    Examples
    --------
    >>> changed = with_keys(Plan(global_batch=8), {"tp": 2, "recompute.layers": 4})
    >>> changed.tp, changed.recompute.layers
    (2, 4)
    """
    own = {key: value for key, value in keys.items() if "." not in key}
    grouped: dict[str, dict[str, Any]] = {}
    for key, value in keys.items():
        group, _, name = key.rpartition(".")
        if group:
            grouped.setdefault(group, {})[name] = value
    own |= {group: replace(getattr(plan, group), **each) for group, each in grouped.items()}
    return replace(plan, **own)


# --- keys that do not go together ----------------------------------------------------------------


def _check_sizes(plan: Plan) -> None:
    """Refuse axes, schedules and parallelism that contradict each other."""
    axes = plan.order.split("-")
    for axis in axes:
        if axis not in AXES:
            raise InputError(
                f"order is {plan.order!r}: unknown axis {axis!r}{nearest(axis, AXES)}; "
                f"allowed: {', '.join(AXES)}"
            )
    if sorted(axes) != sorted(AXES):
        raise InputError(f"order is {plan.order!r}; it must name each of {'-'.join(AXES)} once")
    check_schedule_keys(
        plan.pipeline,
        plan.overlap,
        pp=plan.pp,
        vpp=plan.vpp,
        ep=plan.ep,
        zero=plan.zero,
        overlaps_p2p=plan.overlaps_p2p,
    )
    if plan.framework.moe_dispatcher != "all-to-all" and plan.expert_tp > 1:
        raise InputError(
            f"framework.moe_dispatcher is {plan.framework.moe_dispatcher!r} with experts split "
            f"over "
            f"{plan.expert_tp} ranks; set etp = 1"
        )
    _check_modules(plan)
    if plan.sp and plan.tp == 1:
        raise InputError("sp is true, but tp is 1: there is nobody to share the sequence with")
    if plan.overlap.tp and not plan.sequence_parallel:
        raise InputError("overlap.tp is true; it needs tp > 1 and sp = true")


def _check_modules(plan: Plan) -> None:
    """Refuse to share out experts that a loop over all of them calls."""
    if plan.framework.moe_experts != "modules":
        return
    split = {"tp": plan.tp, "ep": plan.ep, "etp": plan.expert_tp}
    for key, size in split.items():
        if size > 1:
            raise InputError(
                f"framework.moe_experts is 'modules', but {key} is {size}: each rank runs all "
                f"experts; allowed: {key} = 1"
            )
    if plan.framework.moe_dispatcher != "all-to-all":
        raise InputError(
            "framework.moe_experts is 'modules', but framework.moe_dispatcher is "
            f"{plan.framework.moe_dispatcher!r}: nothing is dispatched; leave it out"
        )


def _check_data_parallel(plan: Plan) -> None:
    framework = plan.framework
    if framework.cycle_time is not None:
        if framework.dp_style not in (None, "ddp"):
            raise InputError(
                f"framework.cycle_time is given, but framework.dp_style is {framework.dp_style!r}; "
                "Horovod reduces gradients under 'ddp'"
            )
        if plan.zero:
            raise InputError(
                f"framework.cycle_time is given, but zero is {plan.zero}; Horovod shards nothing"
            )
    if framework.reducer != "pytorch":
        wrong = {
            "framework.cycle_time": (framework.cycle_time, "Horovod reduces gradients"),
            "framework.find_unused_parameters": (
                framework.find_unused_parameters and "true",
                "it looks for none",
            ),
            "framework.dp_style": (
                framework.dp_style not in (None, "ddp") and repr(framework.dp_style),
                "it reduces under 'ddp'",
            ),
            "zero": (plan.zero, "it shards nothing"),
        }
        for key, (value, why) in wrong.items():
            if value:
                raise InputError(
                    f"framework.reducer is {framework.reducer!r}, but {key} is {value}: {why}"
                )
    allowed = {"ddp": (0, 1), "megatron": (0, 1), "deepspeed": (0, 1, 2, 3), "fsdp": (2, 3)}
    style = plan.framework.dp_style
    main = plan.precision.main_parameters
    if main not in ("fp32", plan.weight_format):
        raise InputError(
            f"precision.main_parameters is {main!r}; the passes read {plan.weight_format}, so it "
            "is that or 'fp32'"
        )
    if main != "fp32" and style in ("megatron", "deepspeed"):
        raise InputError(
            f"precision.main_parameters is {main!r}; framework.dp_style = {style!r} keeps a copy "
            "in fp32; 'ddp' and 'fsdp' can do without"
        )
    if style is not None and plan.zero not in allowed[style]:
        choices = ", ".join(map(str, allowed[style]))
        raise InputError(f"zero is {plan.zero}; framework.dp_style = {style!r} allows {choices}")
    if framework.fully_shard and framework.flat_shards:
        raise InputError(
            "framework.fully_shard and framework.flat_shards are given; fully_shard shards each "
            "parameter apart"
        )
    if plan.zero == 3 and plan.pp > 1:
        raise InputError(
            "zero is 3 with pp > 1: no framework gathers parameters for each micro-batch of a "
            "pipeline; framework.dp_style = 'fsdp' with zero = 2 shards them, and gathers them "
            "once a step"
        )
    if plan.zero_group is not None and not plan.zero:
        raise InputError("zero_group is given, but zero is 0: nothing is sharded")


OFFLOADED_OPTIMIZERS: Mapping[Style, tuple[str, ...]] = {
    "deepspeed": ("adam", "adagrad"),
    "fsdp": ("adam", "adagrad", "momentum", "sgd"),
    "megatron": ("adam", "momentum", "sgd"),
}
"""Frameworks that offload an optimizer, and those that they have for the CPU: deepspeed/ops,
torch.optim, ``optimizer_cpu_offload`` in megatron/core/optimizer/__init__.py."""


def _check_offload(plan: Plan) -> None:
    """Refuse what a framework does not offload, once it is known which one it is."""
    _check_offloaded_activations(plan)
    share, style = plan.offload.optimizer, plan.framework.dp_style
    if not share or style is None:
        return
    optimizers = OFFLOADED_OPTIMIZERS.get(style)
    if optimizers is None:
        choices = ", ".join(map(repr, OFFLOADED_OPTIMIZERS))
        raise InputError(
            f"offload.optimizer is {share:g} with framework.dp_style = {style!r}, which updates "
            f"parameters where they are; allowed: {choices}"
        )
    if not plan.zero:
        raise InputError(
            f"offload.optimizer is {share:g}, but zero is 0: only states that ranks share are "
            "offloaded; set zero = 1"
        )
    if plan.optimizer not in optimizers:
        raise InputError(
            f"optimizer is {plan.optimizer!r}, which framework.dp_style = {style!r} does not run "
            f"on the CPU (offload.optimizer is {share:g}); allowed: {', '.join(optimizers)}"
        )
    if style == "deepspeed" and plan.zero < 3 and share < 1:
        raise InputError(
            f"offload.optimizer is {share:g} with zero = {plan.zero}: DeepSpeed offloads a share "
            "(its ratio) with zero = 3 alone; allowed: 0, 1"
        )
    if plan.offload.parameters and style != "fsdp" and (style, plan.zero) != ("deepspeed", 3):
        raise InputError(
            f"offload.parameters is true with framework.dp_style = {style!r}, "
            f"zero = {plan.zero}; allowed: 'deepspeed' with zero = 3, 'fsdp'"
        )
    if style == "fsdp" and not plan.offload.parameters:
        raise InputError(
            f"offload.optimizer is {share:g} with framework.dp_style = 'fsdp', which updates "
            "parameters where they are; set offload.parameters = true"
        )
    if style == "fsdp" and plan.pp > 1:
        raise InputError(
            f"offload.parameters is true with framework.dp_style = 'fsdp' and pp = {plan.pp}; "
            "allowed: pp = 1"
        )
    if style == "megatron" and plan.precision.fp8_params:
        raise InputError(
            "offload.optimizer is given with precision.fp8_params: weights come from the CPU in 16 "
            "bits"
        )
    if style != "megatron" and plan.offload.overlap and not plan.offloads_checkpoints:
        raise InputError(
            f"offload.overlap is true; framework.dp_style = {style!r} goes on once all are "
            "updated; allowed: 'megatron'"
        )


def _check_offloaded_activations(plan: Plan) -> None:
    """Refuse what neither Megatron-LM's ``cpu_offloading`` nor PyTorch's hooks do.

    The former excludes more (transformer_config.py); the latter are modelled around checkpoints.
    """
    if not plan.offload.activations:
        return
    given = f"offload.activations is {plan.offload.activations}"
    if plan.pp > 1:
        raise InputError(
            f"{given} with pp = {plan.pp}; Megatron-LM offloads them with pp = 1 alone"
        )
    style, recompute = plan.style(transformer=True), plan.recompute
    if style == "deepspeed" or plan.framework.stacked_layers:
        who = "XLA's offload" if plan.framework.stacked_layers else "its cpu_checkpointing"
        raise InputError(
            f"{given} with framework.dp_style = {style!r}: {who} is not modelled; allowed: "
            "'megatron', 'fsdp', 'ddp'"
        )
    pytorch = style == "fsdp" and not plan.framework.flat_shards
    if pytorch and recompute.granularity != "full":
        raise InputError(
            f"{given} with framework.dp_style = 'fsdp' and recompute = "
            f"{recompute.granularity!r}: PyTorch offloads the inputs of layers that are computed "
            "again; set recompute = 'full'"
        )
    if not pytorch and style != "ddp" and recompute.granularity != "none":
        raise InputError(
            f"{given} with recompute = {recompute.granularity!r}: Megatron-LM does one or the "
            "other; set recompute = 'none'"
        )
    if recompute.granularity == "selective":
        raise InputError(f"{given} with recompute = 'selective'; allowed: 'none', 'full'")
    if recompute.layers is not None and plan.offload.activations > recompute.layers:
        raise InputError(
            f"{given}, but recompute.layers is {recompute.layers}: only inputs of layers that are "
            f"computed again are offloaded; allowed: 0 to {recompute.layers}"
        )
    if plan.offload.overlap and not plan.offload.optimizer and not plan.offloads_checkpoints:
        raise InputError(
            "offload.overlap is true, but offload.optimizer is 0: copies of activations run beside "
            "the kernels in any case; leave it out"
        )
    if plan.overlap.ep:
        raise InputError(f"{given} with overlap.ep = true, whose passes take turns; allowed: false")
    if plan.framework.cuda_graphs:
        raise InputError(
            f"{given} with framework.cuda_graphs = true, which hold no such copies; allowed: false"
        )


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
            f"replica_batch is given with zero = {plan.zero}: replicas communicate in every "
            "micro-batch, so they need equally many; allowed: zero = 0, 1"
        )
    if plan.ep > 1:
        raise InputError(
            "replica_batch is given with ep > 1: replicas exchange tokens in every "
            "micro-batch, so they need equally many"
        )
