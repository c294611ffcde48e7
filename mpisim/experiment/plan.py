"""Parallel plans: how the GPUs share the work of a step, and how each GPU does its part.

`Plan` is the table ``[plan]`` of an experiment: its fields are the keys, in groups. Keys that
contradict each other are refused when a plan is made, whatever the model and the cluster; what
depends on those is refused where a model is laid out (`mpisim.workloads.layout`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from ..base.errors import InputError, nearest
from ..base.frozen import frozen
from ..base.schema import Limits
from ..kernels.activations import ComposedActivation
from ..schedules import SCHEDULES, ScheduleName
from .models import Count, Large

__all__ = ["AXES", "Plan"]

AXES = ("tp", "cp", "ep", "dp", "pp")
"""Axes of the grid of ranks, as Megatron-LM names them."""

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4"]
Format = Literal["fp32", "fp16", "bf16"]
Style = Literal["megatron", "ddp", "deepspeed", "fsdp"]
Bytes = Annotated[int, Limits(least=1, most=10**12)]
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
RecomputedModule = Literal["layernorm", "moe_act", "mla_up_proj", "mlp"]
"""Parts of a layer, as Megatron-LM names them."""


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
    ep, etp : int
        Expert parallel size, inside tp × cp × dp; tensor parallel size inside an expert (`tp` if
        not given).
    dp : int, optional
        Data parallel size; what remains of the GPUs if not given.
    order : str
        Axes from the innermost (neighbouring ranks) to the outermost, as Megatron-LM's
        ``--tp-cp-ep-dp-pp`` order.

    schedule : str
        Pipeline schedule, see ``mpisim list schedules``.
    vpp : int
        Model chunks of a stage (interleaved schedule).
    stages : tuple of int
        Layers of each part of the pipeline, for an uneven split; pp × vpp entries.
    p2p_overlap : bool, optional
        Whether the compute stream goes on while activations are sent; by default where the
        schedule's implementation does so (all but plain 1F1B and GPipe).
    p2p_split : bool
        Whether the ranks of a tp group, which all hold what is sent, send a share each and gather
        what they receive. Nothing changes where `sp` has split it already.
    account_for_embedding, account_for_loss : bool
        Whether embedding and head count as a layer when layers are spread over stages.

    sp : bool, optional
        Sequence parallelism: norms and dropout share the sequence over the tp group; by default
        where tp > 1.
    sp_style : {"megatron", "pytorch"}
        How sequences are gathered with `sp`: along the outermost dimension, and again for gradients
        of weights (Megatron-LM); or along the second, with a copy more for each collective, once
        (PyTorch's DTensor).
    tp_overlap : bool
        Whether matrix products are cut into `tp` chunks that overlap with their communication.
    tp_overlap_pairs : bool
        Whether chunks that are gathered come two at a time (Transformer Engine's ``aggregate``).
    tp_overlap_scatter : {"pipeline", "ring"}
        How Transformer Engine adds up products beside them: parts that are reduce-scattered, or
        chunks that are sent to their ranks.
    tp_overlap_fp8 : bool
        Whether what is reduce-scattered in parts is in fp8 (its ``fp8_buf``), in a plan of fp8.
    dgrad_overlap : bool
        Whether, without `sp`, the gradient of a matrix's input is added up over the tp group beside
        the product that makes the gradient of the matrix (Megatron-LM's
        ``async_tensor_model_parallel_allreduce``), or after it.
    cp_style : {"ring", "all-gather", "pytorch"}
        How keys and values get round a context: :mod:`..workloads.transformer.context_parallel`.

    dp_style : {"megatron", "ddp", "deepspeed", "fsdp"}
        Whose rules buckets and hooks follow; by default "fsdp" where zero is 2 or more, "megatron"
        for other transformers, "ddp" for other models.
    zero : int
        Sharded over data-parallel ranks: 1 optimizer states, 2 and gradients, 3 and parameters.
    zero_group : int, optional
        Ranks of one sharding group (hybrid sharding); all data-parallel ranks if not given.
    dp_overlap : bool
        Whether gradients are reduced beside the backward pass (and shards gathered beside the
        forward).
    bucket : int, optional
        Bytes of a gradient bucket; the rule of `dp_style` if not given.
    average_in_collective : bool
        Whether NCCL divides by the number of ranks, not a kernel before it (Megatron-LM's
        ``--ddp-average-in-collective``).
    broadcast_buffers : bool
        Whether DDP sends running statistics of normalisation to all ranks before each step.
    wrap_layers : int
        Layers of one FSDP unit.
    prefetch : int
        FSDP units gathered ahead, in a pipeline over model chunks; 1 is what PyTorch does unless
        told otherwise.
    reshard_after_forward : bool
        Whether FSDP frees a unit's parameters after its forward.
    fsdp_pipeline : {"overlapped", "pytorch"}
        When FSDP's units are gathered and reduced in a pipeline: ahead of the first forward and
        beside what follows the last backward (arXiv:2407.21783), or when a stage comes to its
        forward and after its last backward, beside nothing (torch.distributed.pipelining's
        ``PipelineStage``): :mod:`..workloads.data_parallel.fsdp`.
    flat_shards : bool
        Whether FSDP keeps a unit's parameters in one buffer that is gathered and reduced as it is,
        as Megatron-FSDP, not each apart, as PyTorch's ``fully_shard``, which copies them.

    precision : {"fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4"}
        Of the matrix products.
    convolution_precision : {"fp32", "tf32"}, optional
        CNNs with precision "fp32": of the convolutions. If not given, tf32 on GPUs that have it, as
        PyTorch lets cuDNN compute them (``torch.backends.cudnn.allow_tf32``, True by default);
        fp32 on others.
    fp8_scaling : {"delayed", "current", "blocks"}
        Where scales of operands in fp8 come from: steps before, the operand itself, which is read
        once more, or its blocks of 32 elements (MXFP8).
    fp8_casts : {"transformer-engine", "compiled"}
        Whose kernels cast operands to fp8, see `mpisim.workloads.transformer.precision`.
    fp8_transposed : bool
        Whether products in fp8 take operands in one layout alone, as on Hopper, so that some are
        kept transposed, too; Blackwell's take any.
    fp8_weight_casts : bool
        Whether every pass casts weights to fp8 (torchao without its float8 all-gather); otherwise
        they are cast once a step, which counts with `dp_style` "megatron".
    fp8_params : bool
        Whether weights of products in fp8 are kept in fp8 alone, without a copy in 16 bits
        (Megatron-LM's ``--fp8-param-gather``). It counts for memory; gathered they are in 16 bits.
    fp8_split_sums : bool
        Whether products in fp8 that make gradients keep their sums in fp32, which forward ones do
        not: split accumulators of cuBLAS, slower on Hopper
        (`mpisim.kernels.operations.GemmVariant`). False where one kernel serves all.
    grad_precision : {"fp32", "bf16", "fp16"}, optional
        Of gradients as they are kept and reduced; fp32 in Megatron, that of the weights otherwise.
    optimizer : {"adam", "sgd", "momentum", "adagrad"}
    moment_precision : {"fp32", "bf16", "fp16"}
        In which the optimizer's step remembers gradients and their squares where it is one kernel
        (Megatron-LM's ``--exp-avg-dtype``, ``--exp-avg-sq-dtype``).
    clip : bool, optional
        Whether gradients are clipped by their norm; by default with every `dp_style` but "ddp".

    recompute : {"none", "selective", "full"}
        Activations computed again in the backward pass: none, those inside attention, or all.
    recompute_layers : int, optional
        Layers of each part of the pipeline that do so; all if not given.
    recompute_keeps : tuple of str
        With "full": operators of a layer whose results are kept, and not computed again.
    recompute_modules : tuple of {"layernorm", "moe_act", "mla_up_proj", "mlp"}
        Parts of a layer computed again besides: norms, activations of experts, latent attention's
        projections up to the heads, dense feed-forward blocks (Megatron-LM's
        ``--recompute-modules``).
    recompute_stops : bool
        With "full": whether only what the backward pass reads is computed again, as PyTorch's
        checkpoints without reentry and XLA do, or the whole layer, as Megatron-LM does.
    activation_fp8 : bool
        Whether inputs of the non-linearity of feed-forward blocks and experts are kept in fp8, cast
        forward and back (Megatron-LM's ``--activation-func-fp8-input-store``).

    separate_projections : bool
        Whether queries, keys and values come from a matrix each, and so do gate and value of a
        gated feed-forward block; otherwise from one. With tp > 1 they count as one, unless
        `sp_style` is "pytorch" without `tp_overlap`.
    kernels : {"flash", "eager"}
        Fused attention, or scores in memory (matrix product, softmax, matrix product).
    unaligned : {"tensor-cores", "cores"}
        Where batched products of 16-bit numbers run whose rows are no multiple of 16 bytes, as with
        heads of odd sizes (`kernels` "eager"): on CUDA cores before CUDA 11.7.
    scores_softmax : {"whole", "causal"}
        With `kernels` "eager" and `fused`: whether the softmax reads all scores, or only those that
        a causal mask leaves, as the kernel of Megatron-LM's ``--masked-softmax-fusion``. Where that
        does not take the scores' shape, they are cast to fp32, operation by operation.
    attention : {"newest", "cudnn", "flash-2", "triton"}
        Which kernel of fused attention: the fastest published for the GPU, or that of cuDNN, of
        FlashAttention-2, of FlashAttention in Triton
        (`mpisim.kernels.operations.AttentionVariant`).
    attention_precision : {"fp8"}, optional
        Of the products of fused attention; bf16 in plans of fp8 and nvfp4 if not given
        (Transformer Engine's ``fp8_dpa``).
    repeats_heads : bool
        Whether keys and values of fewer heads than queries are copied for each of these before
        fused attention (``repeat_kv`` of Llama's reference code).
    rotary : {"real", "complex"}
        How rotary positions are computed: by sines and cosines, or as products of complex numbers
        in fp32, which torch.compile does not fuse (Llama's reference code).

    fused : bool
        Whether norms, rotary positions, activations, dropout-add and cross-entropy are one kernel
        each; otherwise each elementary operation is.
    primitive : tuple of str
        Without `fused`: functions that are composed of operations of the framework, a kernel each,
        as in BERT's TensorFlow code (GELU also in Hugging Face's GPT-2).
    bias_kernels : bool
        Without `fused`: whether a kernel adds a bias after each product, not the product itself
        (PyTorch before cuBLASLt's epilogues, TensorFlow 1, MXNet).
    persistent_norms : bool
        Whether fused norms read each row once, into registers, as those of Transformer Engine and
        of Apex's FastLayerNorm do; otherwise twice.
    norm_fusion : {"none", "activation", "convolution"}
        ResNet: batch normalisation by itself, with ReLU and the sum before it, or in convolutions.
    image_layout : {"channels-last", "channels-first"}
        Images of a CNN in memory. Matrix units take channels last: convolutions in other formats
        than fp32 turn images that have them first.
    fused_wgrad : bool, optional
        Whether products add gradients of weights straight to Megatron-LM's buffer
        (``gradient_accumulation_fusion``); as `fused` says if not given.

    fused_loss : bool, optional
        Whether cross-entropy is; as `fused` says if not given.
    eager_loss : bool
        Whether cross-entropy is PyTorch's of scores that a kernel before it casts to fp32
        (``F.cross_entropy(scores.float(), targets)``); with tp > 1 as `fused_loss` says.
    compiled_loss : bool
        Whether cross-entropy is compiled functions between its all-reduces, as Megatron-LM's
        ``--cross-entropy-loss-fusion`` with the implementation ``native``.

    cuda_graphs : bool
        Whether launches are captured: no CPU time between kernels.
    cuda_graph_modules : tuple of {"attn", "mamba", "moe_router", "moe_preprocess"}
        Parts of a layer whose launches are captured where not all are (Transformer Engine's
        graphs, Megatron-LM's ``--cuda-graph-modules``): attention, the router with the shared
        experts, what comes before tokens are exchanged.
    launch_blocking : bool
        Whether the CPU waits for each kernel it launches (``CUDA_LAUNCH_BLOCKING=1``).

    moe_experts : {"loop", "grouped", "fused"}, optional
        How experts multiply: a product after the other, each launched (Transformer Engine's
        ``GroupedLinear``; default in Megatron-LM); all in one kernel (default elsewhere); or that
        with the activation and the casts to the format of the next product in it (Megatron-LM's
        ``--use-transformer-engine-op-fuser``).
    moe_imbalance : float
        Tokens of the busiest expert-parallel rank over the mean.
    moe_overlap : bool
        Whether dispatch and combine run beside the shared experts and other micro-batches.
    moe_dispatcher : {"all-to-all", "flex", "hybrid-ep"}
        How tokens get to experts: a copy for each expert by NCCL, or one for each place that has
        any of the token's experts, by DeepEP or by HybridEP.
    moe_capacity : bool
        Whether every expert gets as many tokens as the next (``--moe-expert-capacity-factor`` with
        ``--moe-pad-expert-input-to-capacity``), so that no rank has to ask how many come.
    ep_overlap : bool
        Whether a forward and the backward of another micro-batch take turns, so that one's exchange
        of tokens is beside the other's kernels (interleaved schedule, or one stage; Megatron-LM's
        ``overlap_moe_expert_parallel_comm``).
    dispatch_precision : {"bf16", "fp8"}
        Of tokens on their way to experts; they return in bf16.

    sharder : str
        DLRM: how tables are placed on GPUs, see `mpisim.workloads.dlrm.sharding`: "naive",
        "naive-chunk", "random", "dim-greedy", "bytes-greedy", "size-greedy", "lookup-greedy",
        "norm-lookup-greedy", "size-lookup-greedy".
    placement : tuple of str
        DLRM: where each table is, in words of TorchRec, in place of `sharder`: "table_wise 3",
        "column_wise 0 1", "row_wise", "data_parallel"; "table_wise" alone leaves the rank to
        `sharder`. A word behind says how it is kept: "fused" (default) in the GPU's memory,
        "fused_uvm" in the host's, "fused_uvm_caching" there with a cache on the GPU. One text
        serves all tables. mpisim shard writes it.
    """

    # Batch, and the grid of ranks.
    global_batch: Large
    micro_batch: Annotated[int, Limits(least=1, most=1_000_000)] = 1
    replica_batch: tuple[Large, ...] = ()
    tp: Count = 1
    pp: Count = 1
    cp: Count = 1
    ep: Count = 1
    etp: Count | None = None
    dp: Count | None = None
    order: str = "tp-cp-ep-dp-pp"

    # Pipeline: schedule, stages, messages between them.
    schedule: ScheduleName = "1f1b"
    vpp: Count = 1
    stages: tuple[Annotated[int, Limits(least=0, most=30_000)], ...] = ()
    p2p_overlap: bool | None = None
    p2p_split: bool = False
    account_for_embedding: bool = False
    account_for_loss: bool = False

    # Tensor, sequence and context parallelism.
    sp: bool | None = None
    sp_style: Literal["megatron", "pytorch"] = "megatron"
    tp_overlap: bool = False
    tp_overlap_pairs: bool = False
    tp_overlap_scatter: Literal["pipeline", "ring"] = "pipeline"
    tp_overlap_fp8: bool = False
    dgrad_overlap: bool = True
    cp_style: Literal["ring", "all-gather", "pytorch"] = "ring"

    # Data parallelism: sharding, buckets, units.
    dp_style: Style | None = None
    zero: Annotated[int, Limits(least=0, most=3)] = 0
    zero_group: Count | None = None
    dp_overlap: bool = True
    bucket: Bytes | None = None
    average_in_collective: bool = False
    broadcast_buffers: bool = True
    wrap_layers: Count = 1
    prefetch: Annotated[int, Limits(least=0, most=100)] = 1
    reshard_after_forward: bool = True
    fsdp_pipeline: Literal["overlapped", "pytorch"] = "overlapped"
    flat_shards: bool = False

    # Number formats and the optimizer.
    precision: Precision = "bf16"
    convolution_precision: Literal["fp32", "tf32"] | None = None
    fp8_scaling: Literal["delayed", "current", "blocks"] = "delayed"
    fp8_casts: Literal["transformer-engine", "compiled"] = "transformer-engine"
    fp8_transposed: bool = True
    fp8_weight_casts: bool = False
    fp8_params: bool = False
    fp8_split_sums: bool = True
    grad_precision: Format | None = None
    optimizer: Literal["adam", "sgd", "momentum", "adagrad"] = "adam"
    moment_precision: Format = "fp32"
    clip: bool | None = None

    # Activation recomputation.
    recompute: Literal["none", "selective", "full"] = "none"
    recompute_layers: Count | None = None
    recompute_keeps: tuple[KeptOperator, ...] = ()
    recompute_modules: tuple[RecomputedModule, ...] = ()
    recompute_stops: bool = False
    activation_fp8: bool = False

    # Kernels of layers: products and attention.
    separate_projections: bool = False
    kernels: Literal["flash", "eager"] = "flash"
    unaligned: Literal["tensor-cores", "cores"] = "tensor-cores"
    scores_softmax: Literal["whole", "causal"] = "whole"
    attention: Literal["newest", "cudnn", "flash-2", "triton"] = "newest"
    attention_precision: Literal["fp8"] | None = None
    repeats_heads: bool = False
    rotary: Literal["real", "complex"] = "real"

    # Kernels of layers: elementwise work, norms, images.
    fused: bool = True
    primitive: tuple[Literal[ComposedActivation, "dropout", "adam"], ...] = ()
    bias_kernels: bool = False
    persistent_norms: bool = False
    norm_fusion: Literal["none", "activation", "convolution"] = "none"
    image_layout: Literal["channels-last", "channels-first"] = "channels-last"
    fused_wgrad: bool | None = None

    # Loss.
    fused_loss: bool | None = None
    eager_loss: bool = False
    compiled_loss: bool = False

    # Launches.
    cuda_graphs: bool = False
    cuda_graph_modules: tuple[Literal["attn", "mamba", "moe_router", "moe_preprocess"], ...] = ()
    launch_blocking: bool = False

    # Mixture of experts.
    moe_experts: Literal["loop", "grouped", "fused"] | None = None
    moe_imbalance: Annotated[float, Limits(least=1, most=1000)] = 1.0
    moe_overlap: bool = False
    moe_dispatcher: Literal["all-to-all", "flex", "hybrid-ep"] = "all-to-all"
    moe_capacity: bool = False
    ep_overlap: bool = False
    dispatch_precision: Literal["bf16", "fp8"] = "bf16"

    # Embedding tables of DLRM.
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

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_precision(self)
        _check_recomputation(self)
        _check_data_parallel(self)
        _check_replicas(self)

    @property
    def sequence_parallel(self) -> bool:
        """Whether norms and dropout share the sequence."""
        return self.tp > 1 if self.sp is None else self.sp

    @property
    def expert_tp(self) -> int:
        """Tensor parallel size inside an expert."""
        return self.tp if self.etp is None else self.etp

    @property
    def experts(self) -> Literal["loop", "grouped", "fused"]:
        """How experts multiply."""
        if self.moe_experts is None:
            return "loop" if self.style(transformer=True) == "megatron" else "grouped"
        return self.moe_experts

    @property
    def fuses_loss(self) -> bool:
        """Whether cross-entropy is one kernel."""
        return self.fused if self.fused_loss is None else self.fused_loss

    @property
    def fuses_wgrad(self) -> bool:
        """Whether products add gradients of weights straight to Megatron-LM's buffer."""
        return self.fused if self.fused_wgrad is None else self.fused_wgrad

    @property
    def overlaps_p2p(self) -> bool:
        """Whether the compute stream goes on while activations are sent."""
        if self.p2p_overlap is None:
            return SCHEDULES[self.schedule].overlaps_messages
        return self.p2p_overlap

    @property
    def message_shares(self) -> int:
        """Ranks that send a share each of what goes from stage to stage."""
        return self.tp if self.p2p_split and not self.sequence_parallel else 1

    def resolved(self, *, transformer: bool) -> Plan:
        """Return the plan with `dp_style` and `precision` as data parallelism takes them.

        Transformers are trained with weights in the format of their products. Other models are
        trained with ``torch.autocast``: their weights and gradients stay in fp32.
        """
        style = self.style(transformer=transformer)
        precision = self.precision if transformer else "fp32"
        return replace(self, dp_style=style, precision=precision)

    def style(self, *, transformer: bool) -> Style:
        """Return whose rules data parallelism follows, for a transformer or another model."""
        if self.dp_style is not None:
            return self.dp_style
        if self.zero >= 2:
            return "fsdp"
        return "megatron" if transformer else "ddp"

    @property
    def weight_format(self) -> Format:
        """The format in which the passes read weights and write activations.

        fp8 and nvfp4 are made of bf16 just before a matrix product; tf32 is fp32 to everything but
        the matrix units.
        """
        if self.precision in ("fp32", "tf32"):
            return "fp32"
        return "fp16" if self.precision == "fp16" else "bf16"


# --- keys that do not go together ----------------------------------------------------------------


def _check_sizes(plan: Plan) -> None:
    """Refuse axes, stages, schedules and parallelism that contradict each other."""
    axes = plan.order.split("-")
    for axis in axes:
        if axis not in AXES:
            raise InputError(
                f"order is {plan.order!r}: unknown axis {axis!r}{nearest(axis, AXES)}; "
                f"allowed: {', '.join(AXES)}"
            )
    if sorted(axes) != sorted(AXES):
        raise InputError(f"order is {plan.order!r}; it must name each of {'-'.join(AXES)} once")
    if plan.stages and len(plan.stages) != plan.pp * plan.vpp:
        raise InputError(
            f"stages has {len(plan.stages)} entries; pp × vpp = {plan.pp * plan.vpp} are needed"
        )
    if plan.schedule not in SCHEDULES:
        raise InputError(
            f"schedule is {plan.schedule!r}{nearest(plan.schedule, SCHEDULES)}; "
            f"allowed: {', '.join(SCHEDULES)}"
        )
    interleaved = SCHEDULES[plan.schedule].interleaved
    if plan.vpp > 1 and not interleaved:
        raise InputError(f"vpp is {plan.vpp}, but schedule = {plan.schedule!r} has one chunk")
    alone = plan.schedule == "1f1b" and plan.pp == 1
    if plan.ep_overlap and not interleaved and not alone:
        raise InputError(
            f"ep_overlap is true, but schedule = {plan.schedule!r}; it needs 'interleaved', or "
            "pp = 1"
        )
    if plan.moe_dispatcher != "all-to-all" and plan.expert_tp > 1:
        raise InputError(
            f"moe_dispatcher is {plan.moe_dispatcher!r} with experts split over "
            f"{plan.expert_tp} ranks; set etp = 1"
        )
    if plan.sp and plan.tp == 1:
        raise InputError("sp is true, but tp is 1: there is nobody to share the sequence with")
    if plan.tp_overlap and not plan.sequence_parallel:
        raise InputError("tp_overlap is true; it needs tp > 1 and sp = true")


def _check_precision(plan: Plan) -> None:
    """Refuse formats, and ways to launch kernels, of which one rules out the other."""
    if plan.launch_blocking and plan.cuda_graphs:
        raise InputError("launch_blocking is true, but cuda_graphs, too: the CPU launches none")
    if plan.convolution_precision is not None and plan.precision != "fp32":
        raise InputError(
            f"convolution_precision is given, but precision is {plan.precision!r}, which "
            "convolutions have, too; the key is for 'fp32'"
        )


def _check_recomputation(plan: Plan) -> None:
    if (plan.recompute_keeps or plan.recompute_stops) and plan.recompute != "full":
        key = "recompute_keeps" if plan.recompute_keeps else "recompute_stops"
        raise InputError(f"{key} is given, but recompute is {plan.recompute!r}; set 'full'")
    if plan.recompute_modules and plan.recompute == "full":
        raise InputError("recompute_modules is given, but recompute = 'full' is all of them")


def _check_data_parallel(plan: Plan) -> None:
    allowed = {"ddp": (0, 1), "megatron": (0, 1), "deepspeed": (0, 1, 2, 3), "fsdp": (2, 3)}
    style = plan.dp_style
    if style is not None and plan.zero not in allowed[style]:
        choices = ", ".join(map(str, allowed[style]))
        raise InputError(f"zero is {plan.zero}; dp_style = {style!r} allows {choices}")
    if plan.zero == 3 and plan.pp > 1:
        raise InputError(
            "zero is 3 with pp > 1: no framework gathers parameters for each micro-batch of a "
            "pipeline; dp_style = 'fsdp' with zero = 2 shards them, and gathers them once a step"
        )
    if plan.zero_group is not None and not plan.zero:
        raise InputError("zero_group is given, but zero is 0: nothing is sharded")


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
