"""The sub-tables of ``[plan]``, one dataclass each: details of how the GPUs do their work.

Most plans need the first key of a sub-table alone. A value in place of the table is that key:
``precision = "fp8"`` is ``[plan.precision]`` with ``products = "fp8"`` (`MAIN_KEYS`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from ..base.errors import InputError, nearest
from ..base.frozen import frozen
from ..base.schema import Limits
from ..schedules import SCHEDULES, ScheduleName
from .transformer import Count, OptionalCount

__all__ = [
    "MAIN_KEYS",
    "OffloadOptions",
    "OverlapOptions",
    "PipelineOptions",
    "PrecisionOptions",
    "RecomputeOptions",
    "TableOptions",
]

MAIN_KEYS = {
    "pipeline": "schedule",
    "recompute": "granularity",
    "precision": "products",
    "overlap": "",
    "offload": "",
    "tables": "sharder",
}
"""Sub-tables of ``[plan]``, with the key that a value in place of the table is; empty: none."""

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4"]
Format = Literal["fp32", "fp16", "bf16"]
KeptOperator = Literal[
    "qkv",
    "query",
    "key",
    "value",
    "rotary",
    "attention",
    "attention output",
    "feed-forward in",
    "feed-forward gate",
    "feed-forward value",
    "feed-forward out",
]
"""Operators of a layer, by the names they have in results."""
RecomputedModule = Literal["layernorm", "moe_act", "mla_up_proj", "mlp", "moe"]
"""Parts of a layer, as Megatron-LM names them."""
WideModule = Literal["attention", "latent", "mtp"]
"""Parts of a transformer whose products may stay in 16 bits."""


@frozen
class PipelineOptions:
    """How layers are spread over the stages of a pipeline, and in which order these work.

    Attributes
    ----------
    schedule : str
        Pipeline schedule, see ``mpisim list schedules``.
    stages : tuple of int
        Layers of each part of the pipeline, for an uneven split; pp × vpp entries.
    account_for_embedding, account_for_loss : bool
        Whether embedding and head count as a layer when layers are spread over stages.
    run : int, optional
        Micro-batches of a replica after which the pipeline drains before it takes more: the batch
        of one call of a schedule of PyTorch, which trainers call several times in a step to
        accumulate gradients (torch.distributed.pipelining, ``schedule.step``); all of a step if not
        given.
    """

    schedule: ScheduleName = "1f1b"
    stages: tuple[Annotated[int, Limits(least=0, most=30_000)], ...] = ()
    account_for_embedding: bool = False
    account_for_loss: bool = False
    run: Count | None = None

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise InputError(
                f"schedule is {self.schedule!r}{nearest(self.schedule, SCHEDULES)}; "
                f"allowed: {', '.join(SCHEDULES)}"
            )


@frozen
class RecomputeOptions:
    """Which activations are not kept, but computed again in the backward pass.

    Attributes
    ----------
    granularity : {"none", "selective", "full"}
        Activations computed again in the backward pass: none, those inside attention, or all.
    layers : int, optional
        Layers of each part of the pipeline that do so; all if not given.
    keeps : tuple of str
        With "full": operators of a layer whose results are kept, and not computed again.
    modules : tuple of {"layernorm", "moe_act", "mla_up_proj", "mlp", "moe"}
        Parts of a layer computed again besides: norms, activations of experts, latent attention's
        projections up to the heads, dense feed-forward blocks, mixtures of experts from the router
        to the sum of their results, exchanges of tokens included (Megatron-LM's
        ``--recompute-modules``).
    stops : bool
        With "full": whether only what the backward pass reads is computed again, as PyTorch's
        checkpoints without reentry and XLA do, or the whole layer, as Megatron-LM does.
    """

    granularity: Literal["none", "selective", "full"] = "none"
    layers: Count | None = None
    keeps: tuple[KeptOperator, ...] = ()
    modules: tuple[RecomputedModule, ...] = ()
    stops: bool = False

    def __post_init__(self) -> None:
        if (self.keeps or self.stops) and self.granularity != "full":
            key = "keeps" if self.keeps else "stops"
            raise InputError(f"{key} is given, but granularity is {self.granularity!r}; set 'full'")
        if self.modules and self.granularity == "full":
            raise InputError("modules is given, but granularity = 'full' is all of them")


@frozen
class PrecisionOptions:
    """Number formats: of products, gradients, moments and what is sent.

    Attributes
    ----------
    products : {"fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4"}
        Of the matrix products.
    convolutions : {"fp32", "tf32"}, optional
        CNNs with `products` "fp32" or "tf32": of the convolutions. If not given, tf32 on GPUs that
        have it, as PyTorch lets cuDNN compute them (``torch.backends.cudnn.allow_tf32``, True by
        default); fp32 on others, and of images whose channels are first on GPUs whose cores are as
        fast in fp32 as their matrix units in TF32.
    attention : {"fp8"}, optional
        Of the products of fused attention; bf16 in plans of fp8 and nvfp4 if not given
        (Transformer Engine's ``fp8_dpa``).
    gradients : {"fp32", "bf16", "fp16"}, optional
        Of gradients as they are kept and reduced; fp32 in Megatron, that of the weights otherwise.
    main_parameters : {"fp32", "bf16", "fp16"}
        Of the parameters that the optimizer updates: a copy in fp32, or with the format of the
        passes the weights themselves, as of a model that was read in bf16 and trained so by
        PyTorch's DDP or FSDP. Gradients are then updated from in that format, too.
    autocast : bool
        Transformers under DDP with `products` in 16 bits: whether they run in ``torch.autocast``,
        which keeps parameters, gradients and the residual stream in fp32, and casts what products
        read (`mpisim.workloads.transformer.autocast`). Other models always do.
    moments : {"fp32", "bf16", "fp16"}
        In which the optimizer's step remembers gradients and their squares where it is one kernel
        (Megatron-LM's ``--exp-avg-dtype``, ``--exp-avg-sq-dtype``).
    dispatch : {"bf16", "fp8"}
        Of tokens on their way to experts; they return in bf16.
    fp8_scaling : {"delayed", "current", "blocks"}
        Where scales of operands in fp8 come from: steps before, the operand itself, which is read
        once more, or its blocks of 32 elements (MXFP8).
    fp8_params : bool
        Whether weights of products in fp8 are kept in fp8 alone, without a copy in 16 bits
        (Megatron-LM's ``--fp8-param-gather``). With its distributed optimizer they are gathered in
        fp8, too, but for those with scales of blocks, which are gathered in 16 bits and cast then.
    fp8_split_sums : bool
        Whether products in fp8 that make gradients keep their sums in fp32, which forward ones do
        not: split accumulators of cuBLAS, slower on Hopper
        (`mpisim.kernels.operations.GemmVariant`). False where one kernel serves all.
    fp8_activations : bool
        Whether inputs of the non-linearity of feed-forward blocks and experts are kept in fp8, cast
        forward and back (Megatron-LM's ``--activation-func-fp8-input-store``).
    first_wide, last_wide : int
        Layers at the begin and at the end of a transformer whose products stay in 16 bits in plans
        of fp8 and nvfp4 (Megatron-LM's ``--num-layers-at-start-in-bf16`` and
        ``--num-layers-at-end-in-bf16``).
    logits : {"fp8"}, optional
        Of the product that makes scores of the vocabulary in plans of fp8; 16 bits if not given
        (Megatron-LM's ``fp8_output_proj``).
    frozen : {"nf4"}, optional
        Transformers: of the matrices of layers that are frozen beside adapters
        (``model.lora_rank``): 4 bits, from which a kernel before each product makes 16 (QLoRA,
        arXiv:2305.14314); 16 bits if not given. Those of routed experts are in 4 bits where each is
        an ``nn.Linear`` (``framework.moe_experts = "modules"``), which is all that bitsandbytes
        packs.
    wide_modules : tuple of {"attention", "latent", "mtp"}
        What stays in 16 bits in all layers: the matrices around attention, those between hidden
        states and the narrower ones of LatentMoE, the modules that predict further tokens
        (Megatron-LM's ``--te-precision-config-file``).
    """

    products: Precision = "bf16"
    convolutions: Literal["fp32", "tf32"] | None = None
    attention: Literal["fp8"] | None = None
    gradients: Format | None = None
    main_parameters: Format = "fp32"
    autocast: bool = False
    moments: Format = "fp32"
    dispatch: Literal["bf16", "fp8"] = "bf16"
    fp8_scaling: Literal["delayed", "current", "blocks"] = "delayed"
    fp8_params: bool = False
    fp8_split_sums: bool = True
    fp8_activations: bool = False
    first_wide: OptionalCount = 0
    last_wide: OptionalCount = 0
    logits: Literal["fp8"] | None = None
    frozen: Literal["nf4"] | None = None
    wide_modules: tuple[WideModule, ...] = ()

    def __post_init__(self) -> None:
        if self.convolutions is not None and self.products not in ("fp32", "tf32"):
            raise InputError(
                f"convolutions is given, but products is {self.products!r}, which convolutions "
                "have, too; the key is for 'fp32' and 'tf32'"
            )
        if self.logits is not None and self.products != "fp8":
            raise InputError(
                f"logits is {self.logits!r}, but products is {self.products!r}; the key is for "
                "products in 'fp8'"
            )
        if self.frozen is not None and self.products not in ("fp16", "bf16"):
            raise InputError(
                f"frozen is {self.frozen!r}, but products is {self.products!r}; only products in "
                "'bf16' and 'fp16' are modelled with it"
            )
        if self.autocast:
            self._check_autocast()

    def _check_autocast(self) -> None:
        if self.products not in ("fp16", "bf16"):
            raise InputError(
                f"autocast is true, but products is {self.products!r}; torch.autocast is for "
                "'fp16' and 'bf16'"
            )
        if self.main_parameters != "fp32":
            raise InputError(
                f"autocast is true, but main_parameters is {self.main_parameters!r}; only "
                "parameters in 'fp32' are modelled with it"
            )

    def check_other_models(self) -> None:
        """Refuse keys that only transformers have, for a plan of another model.

        Raises
        ------
        InputError
            If frozen matrices have a format, or autocast is asked for.
        """
        if self.frozen is not None:
            raise InputError(
                f"plan.precision.frozen is {self.frozen!r}; only transformers have adapters "
                "(model.lora_rank) beside frozen matrices; leave it out"
            )
        if self.autocast:
            raise InputError(
                "plan.precision.autocast is true; the key is for transformers: other models always "
                "run in torch.autocast; leave it out"
            )

    @property
    def weights(self) -> Format:
        """The format in which the passes read weights and write activations.

        fp8 and nvfp4 are made of bf16 just before a matrix product; tf32 is fp32 to everything but
        the matrix units.
        """
        if self.products in ("fp32", "tf32"):
            return "fp32"
        return "fp16" if self.products == "fp16" else "bf16"


@frozen
class OverlapOptions:
    """Which communications run beside kernels.

    Attributes
    ----------
    dp : bool
        Whether gradients are reduced beside the backward pass (and shards gathered beside the
        forward).
    p2p : bool, optional
        Whether the compute stream goes on while activations are sent; by default where the
        schedule's implementation does so (all but plain 1F1B and GPipe).
    tp : bool
        Whether matrix products are cut into as many chunks as tp has ranks, that overlap with their
        communication.
    tp_pairs : bool
        Whether chunks that are gathered come two at a time (Transformer Engine's ``aggregate``).
    tp_scatter : {"pipeline", "ring"}
        How Transformer Engine adds up products beside them: parts that are reduce-scattered, or
        chunks that are sent to their ranks.
    tp_fp8 : bool
        Whether what is reduce-scattered in parts is in fp8 (its ``fp8_buf``), in a plan of fp8.
    dgrad : bool
        Whether, without sequence parallelism, the gradient of a matrix's input is added up over the
        tp group beside the product that makes the gradient of the matrix (Megatron-LM's
        ``async_tensor_model_parallel_allreduce``), or after it.
    ep : bool
        Whether a forward and the backward of another micro-batch take turns, so that one's exchange
        of tokens is beside the other's kernels (interleaved schedule, or one stage; Megatron-LM's
        ``overlap_moe_expert_parallel_comm``).
    moe : bool
        Whether dispatch and combine run beside the shared experts and other micro-batches.
    mirror : bool
        Whether, where pipelines of both directions hold every part of the model (schedules chimera
        and dualpipe), a part's gradients of both are added up as soon as its last backward is done
        (Chimera's eager gradient synchronization), or all of them after the passes.
    """

    dp: bool = True
    p2p: bool | None = None
    tp: bool = False
    tp_pairs: bool = False
    tp_scatter: Literal["pipeline", "ring"] = "pipeline"
    tp_fp8: bool = False
    dgrad: bool = True
    ep: bool = False
    moe: bool = False
    mirror: bool = False


@frozen
class OffloadOptions:
    """What lies in the memory of the host, from where it is copied to the GPU and back.

    Attributes
    ----------
    optimizer : float
        Share of the parameters whose main copy and optimizer states lie there, and which the CPU
        updates: DeepSpeed's ``offload_optimizer`` (with `zero` = 3 also a share of them, its
        ``ratio``), Megatron-LM's ``--optimizer-cpu-offload`` and ``--optimizer-offload-fraction``.
    parameters : bool
        Whether the parameters that passes gather lie there, too, with the whole optimizer:
        DeepSpeed's ``offload_param`` with `zero` = 3; FSDP's ``CPUOffload`` and
        ``CPUOffloadPolicy``.
    activations : int
        Layers of a transformer, the first ones, whose activations lie there between the passes
        (Megatron-LM's ``--cpu-offloading-num-layers``), or whose inputs do, with `recompute` "full"
        under "fsdp" and "ddp": PyTorch's ``save_on_cpu`` around checkpoints.
    overlap : bool
        Whether gradients come and weights go while the CPU updates other parameters (Megatron-LM's
        ``--overlap-cpu-optimizer-d2h-h2d``), and inputs of layers beside kernels (torchtune's
        ``enable_activation_offloading``).
    """

    optimizer: Annotated[float, Limits(least=0, most=1)] = 0.0
    parameters: bool = False
    activations: OptionalCount = 0
    overlap: bool = False

    def __post_init__(self) -> None:
        if self.overlap and not self.optimizer and not self.activations:
            raise InputError("overlap is true, but optimizer is 0: the CPU updates nothing")
        if self.parameters and self.optimizer < 1:
            raise InputError(
                f"parameters is true, but optimizer is {self.optimizer:g}: what is on the host is "
                "updated there; set optimizer = 1"
            )


@frozen
class TableOptions:
    """DLRM: where embedding tables are.

    Attributes
    ----------
    sharder : str
        How tables are placed on GPUs, see `mpisim.workloads.dlrm.sharding`: "naive",
        "naive-chunk", "random", "dim-greedy", "bytes-greedy", "size-greedy", "lookup-greedy",
        "norm-lookup-greedy", "size-lookup-greedy".
    placement : tuple of str
        Where each table is, in words of TorchRec, in place of `sharder`: "table_wise 3",
        "column_wise 0 1", "row_wise", "data_parallel"; "table_wise" alone leaves the rank to
        `sharder`. A word behind says how it is kept: "fused" (default) in the GPU's memory,
        "fused_uvm" in the host's, "fused_uvm_caching" there with a cache on the GPU. One text
        serves all tables. mpisim shard writes it.
    inputs : {"all", "own", "ahead"}
        What each rank copies from the host before a step: the samples of all ranks
        (facebookresearch/dlrm); its own, of which indices go on to the ranks that have the tables
        (TorchRec); nothing, since its own samples of the next step are copied and handed on beside
        this one (TorchRec's ``TrainPipelineSparseDist``, HugeCTR).
    """

    sharder: Literal[
        "naive",
        "naive-chunk",
        "random",
        "dim-greedy",
        "bytes-greedy",
        "size-greedy",
        "lookup-greedy",
        "norm-lookup-greedy",
        "size-lookup-greedy",
    ] = "size-lookup-greedy"
    placement: tuple[str, ...] = ()
    inputs: Literal["all", "own", "ahead"] = "all"
