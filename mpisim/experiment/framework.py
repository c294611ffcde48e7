"""How a framework carries a plan out: the table ``[framework]`` of an experiment.

The plan says who does what (`mpisim.experiment.plan`); here is how: whose rules cut gradients into
buckets, which kernels layers are made of, how they are launched. These are properties of the
software, which is why a file says them once for a framework.
"""

from __future__ import annotations

from typing import Annotated, Literal

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.schema import Limits
from ..kernels.activations import ComposedActivation
from .models import Count

__all__ = ["FrameworkOptions", "Style"]

Style = Literal["megatron", "ddp", "deepspeed", "fsdp"]
Bytes = Annotated[int, Limits(least=1024, most=10**12)]
"""Of a bucket: less is a slip, as 25 for the 26214400 of ``bucket_cap_mb=25``."""


@frozen
class FrameworkOptions:
    """How a framework does its part.

    Attributes
    ----------
    name : str, optional
        One of ``mpisim list frameworks``, or the path of a file as those of ``data/frameworks``: it
        fills in what the experiment leaves blank (`mpisim.experiment.profiles`). If not given, what
        is common practice for such a plan does; "none": nothing does.
    version : str, optional
        Of the framework, as it counts them: ``"25.07"``, ``"0.12.1"``; the newest if not given.
    recipe : {"none", "performance"}
        Whether also what its published recipes for performance set.
    dp_style : {"megatron", "ddp", "deepspeed", "fsdp"}
        Whose rules buckets and hooks follow; by default "fsdp" where zero is 2 or more, "megatron"
        for other transformers, "ddp" for other models.
    bucket : int, optional
        Bytes of a gradient bucket, 1024 or more; the rule of `dp_style` if not given.
    cycle_time : float, optional
        With `dp_style` "ddp": Horovod reduces gradients, those that are there once in so many
        milliseconds (``HOROVOD_CYCLE_TIME``), up to `bucket` bytes together
        (``HOROVOD_FUSION_THRESHOLD``).
    gradients_ready : {"computed", "launched"}
        When Horovod is told of a gradient: when its kernel has ended, as MXNet does, or when it is
        launched, as TensorFlow does.
    reducer : {"pytorch", "apex", "apex-predivide"}
        With `dp_style` "ddp": whose DistributedDataParallel it is, PyTorch's or Apex's, which joins
        the gradients of a bucket in one kernel; "apex-predivide" divides them before they are added
        up, too (its ``gradient_predivide_factor``).
    divides_buckets : bool
        Whether DDP divides a bucket by the number of ranks once it is full, as before PyTorch 1.6,
        not as it copies gradients into it.
    find_unused_parameters : bool
        Whether DDP looks for parameters that the forward pass did not use.
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
    end_units : bool
        Whether FSDP has a unit of the embedding, which is freed as those of blocks are, and one of
        the last norm and the head, which stays gathered until its backward; otherwise both are the
        root's, which does.
    loss_chunks : int
        FSDP with `end_units`: parts of the sequence whose scores and loss are computed, forward and
        backward, one after another. More than one need the head by itself: it is freed after
        the forward of the last norm, gathered for all parts, freed, and gathered for the norm.
    fsdp_pipeline : {"overlapped", "pytorch"}
        When FSDP's units are gathered and reduced in a pipeline: ahead of the first forward and
        beside what follows the last backward (arXiv:2407.21783), or when a stage comes to its
        forward and after its last backward, beside nothing (torch.distributed.pipelining's
        ``PipelineStage``): :mod:`..workloads.data_parallel.fsdp`.
    flat_shards : bool
        Whether FSDP keeps a unit's parameters in one buffer that is gathered and reduced as it is,
        as Megatron-FSDP, not each apart, as PyTorch's ``fully_shard``, which copies them.
    fully_shard : bool
        Whether FSDP without `flat_shards` is PyTorch's ``fully_shard`` (FSDP2), which casts and
        copies shards before it gathers them, casts and adds up those of reduced gradients, and pads
        the first dimension of each parameter: :mod:`..workloads.data_parallel.fsdp`.
    p2p_split : bool
        Whether the ranks of a tp group, which all hold what is sent, send a share each and gather
        what they receive. Nothing changes where `sp` has split it already.
    sp_style : {"megatron", "pytorch"}
        How sequences are gathered with `sp`: along the outermost dimension, and again for gradients
        of weights (Megatron-LM); or along the second, with a copy more for each collective, once
        (PyTorch's DTensor).
    cp_style : {"ring", "all-gather", "pytorch", "all-to-all"}
        How attention gets over a context: :mod:`..workloads.transformer.context_parallel`.
    fp8_casts : {"transformer-engine", "compiled"}
        Whose kernels cast operands to fp8, see `mpisim.workloads.transformer.precision`.
    fp8_transposed : bool
        Whether products in fp8 take operands in one layout alone, as on Hopper, so that some are
        kept transposed, too; Blackwell's take any.
    fp8_weight_casts : bool
        Whether every pass casts weights to fp8 (torchao without its float8 all-gather); otherwise
        they are cast once a step, which counts with `dp_style` "megatron".
    scales_apart : bool
        Whether kernels of their own put scales of what was cast into the order that products read:
        two behind each cast to NVFP4, as Transformer Engine's until May 2026; one for each operand
        in MXFP8 before each product, as its until December 2025.
    separate_projections : bool
        Whether queries, keys and values come from a matrix each, and so do gate and value of a
        gated feed-forward block; otherwise from one. With tp > 1 they count as one, unless
        `sp_style` is "pytorch" without `overlap.tp`.
    fused_qkv : bool
        With `separate_projections`: whether queries, keys and values come from one matrix all the
        same, whose result is copied to three tensors.
    stacked_layers : bool
        Whether layers run in one loop (``jax.lax.scan``), which writes what a recomputed layer
        keeps into arrays of all layers and reads it from there:
        :mod:`..workloads.recomputation`.
    kernels : {"flash", "eager"}
        Fused attention, or scores in memory (matrix product, softmax, matrix product).
    unaligned : {"tensor-cores", "cores"}
        Where batched products of 16-bit numbers run whose rows are no multiple of 16 bytes, as with
        heads of odd sizes (`kernels` "eager"): on CUDA cores before CUDA 11.7.
    scores_softmax : {"whole", "causal", "operations"}
        With `kernels` "eager" and `fused`: whether the softmax reads all scores, or only those that
        a causal mask leaves, as the kernel of Megatron-LM's ``--masked-softmax-fusion``. Where that
        does not take the scores' shape, they are cast to fp32, operation by operation. Or, also
        without `fused`, "operations": always so, and the product before scales the scores, as the
        attention of Megatron-Core's local layers without Apex.
    attention : {"newest", "cudnn", "cudnn-9.13", "flash-2", "aotriton", "triton"}
        Which kernel of fused attention: the fastest published for the GPU, or that of cuDNN, of
        cuDNN up to 9.13, of FlashAttention-2, of AOTriton since 0.11, of FlashAttention in Triton
        (`mpisim.kernels.operations.AttentionVariant`).
    packed_attention : bool
        Whether fused attention reads queries, keys and values where one product wrote them, and
        writes their gradients so, by strides; otherwise kernels of their own put the gradients
        together. Without effect where kernels between the two write tensors of their own, as those
        of rotary positions and of norms of queries and keys do.
    repeats_heads : bool
        Whether keys and values of fewer heads than queries are copied for each of these before
        fused attention (``repeat_kv`` of Llama's reference code).
    rotary : {"real", "complex", "operations"}
        How rotary positions are computed: by sines and cosines, or as products of complex numbers
        in fp32, which torch.compile does not fuse (Llama's reference code). Or, also with `fused`,
        operation by operation, as in Megatron-Core's latent attention before 0.13.
    fused : bool
        Whether norms, rotary positions, activations, dropout-add and cross-entropy are one kernel
        each; otherwise each elementary operation is.
    fused_norms : bool, optional
        Whether norms are one kernel each; as `fused` says if not given.
    fused_optimizer : bool, optional
        Whether the optimizer of PyTorch is one kernel (``fused=True``); as `fused` says if not
        given. With `dp_style` "megatron" or "deepspeed": false where PyTorch's stands in for Apex's
        ``FusedAdam``, as in Megatron-Core without Apex and Transformer Engine.
    primitive : tuple of str
        Without `fused`: functions that are composed of operations of the framework, a kernel each,
        as in BERT's TensorFlow code (GELU also in Hugging Face's GPT-2); "norm": layer
        normalisation of ``tf.contrib.layers``.
    widened : tuple of {"norm", "softmax", "activation"}
        Without `fused`: what automatic mixed precision leaves in fp32, with a cast of what it reads
        and of what it writes. With "norm" residuals are added in fp32, too.
    parameter_loops : bool
        DDP, without `fused`: whether optimizer and clipping launch their kernels parameter by
        parameter (``torch.optim`` before PyTorch 2.0), not for all together.
    bias_kernels : bool
        Without `fused`: whether a kernel adds a bias after each product, not the product itself
        (PyTorch before cuBLASLt's epilogues, TensorFlow 1, MXNet).
    broadcast_biases : bool
        With kernels that add biases: whether these work out the place of each element, as PyTorch's
        do of what they broadcast, which takes longer than memory does where that is fast.
    persistent_norms : bool
        Whether fused norms read each row once, into registers, as those of Transformer Engine and
        of Apex's FastLayerNorm do; otherwise twice.
    residual_norms : bool
        Without dropout: whether the kernel of a fused norm also adds up the residual stream before
        it, and backward adds to the gradient of that (llm.c); otherwise kernels of their own do.
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
    loss_gradient : {"backward", "forward"}
        Fused cross-entropy, with tp = 1: when the gradient of the scores is computed. Forward, one
        kernel computes loss and gradient, which takes the scores' place (llm.c); with tp > 1 as
        "backward".
    cuda_graphs : bool
        Whether launches are captured: no CPU time between kernels.
    cuda_graph_modules : tuple of {"attn", "mamba", "moe_router", "moe_preprocess"}
        Parts of a layer whose launches are captured where not all are (Transformer Engine's
        graphs, Megatron-LM's ``--cuda-graph-modules``): attention, the router with the shared
        experts, what comes before tokens are exchanged.
    launch_blocking : bool
        Whether the CPU waits for each kernel it launches (``CUDA_LAUNCH_BLOCKING=1``).
    moe_experts : {"loop", "grouped", "fused", "modules"}, optional
        How experts multiply: a product after the other, each launched (Transformer Engine's
        ``GroupedLinear``; default in Megatron-LM); all in one kernel (default elsewhere); or that
        with the activation and the casts to the format of the next product in it (Megatron-LM's
        ``--use-transformer-engine-op-fuser``). Or each expert is a module of PyTorch, which a loop
        in Python gives its rows (Hugging Face's transformers before version 5); not with tp or ep.
    leaf_modules : bool
        With `moe_experts` "modules" and DeepSpeed's ZeRO-3: whether the block of experts is one
        module, whose parameters are gathered together (``set_z3_leaf_modules``), not each expert.
    moe_router : {"pytorch", "transformer-engine"}
        Whose products give scores in fp32: PyTorch's, of operands made fp32 before, or those of
        Transformer Engine, which take them as they are, and backward in tf32.
    moe_router_fusion : bool
        Whether scores, choice and auxiliary loss of Megatron-LM's router are a kernel each of
        Transformer Engine (``--moe-router-fusion``), or operations of PyTorch.
    moe_dispatcher : {"all-to-all", "flex", "hybrid-ep", "one-hot"}
        How tokens get to experts: a copy for each expert by NCCL, or one for each place that has
        any of the token's experts, by DeepEP or by HybridEP; or by products with masks, as many to
        each expert (MaxText without ``sparse_matmul``).
    moe_capacity_factor : float
        With "one-hot": places of the experts over those that tokens need.
    moe_multihot_fusion : bool
        With "flex": whether the lists of experts that arrive with tokens become a map of tokens to
        experts in one kernel (Megatron-LM's ``--enable-experimental`` with
        ``--moe-permute-fusion``), or by operations of PyTorch, for three of which the CPU waits.
    moe_balance : {"free", "round-robin"}
        Which experts tokens have, all experts as many: any, or, from a gate that a benchmark puts
        in the router's place, as many that follow each other, which ranks of DeepEP and HybridEP
        get in one copy (NeMo AutoModel's ``fake_balanced_gate``).
    moe_capacity : bool
        Whether every expert gets as many tokens as the next (``--moe-expert-capacity-factor`` with
        ``--moe-pad-expert-input-to-capacity``), so that no rank has to ask how many come.
    """

    # Whose rules hold where an experiment says nothing.
    name: str | None = None
    version: str | None = None
    recipe: Literal["none", "performance"] = "none"

    # Data parallelism: sharding, buckets, units.
    dp_style: Style | None = None
    bucket: Bytes | None = None
    cycle_time: Annotated[float, Limits(least=0, most=10_000)] | None = None
    gradients_ready: Literal["computed", "launched"] = "computed"
    reducer: Literal["pytorch", "apex", "apex-predivide"] = "pytorch"
    divides_buckets: bool = False
    find_unused_parameters: bool = False
    average_in_collective: bool = False
    broadcast_buffers: bool = True
    wrap_layers: Count = 1
    prefetch: Annotated[int, Limits(least=0, most=100)] = 1
    reshard_after_forward: bool = True
    end_units: bool = False
    loss_chunks: Count = 1
    fsdp_pipeline: Literal["overlapped", "pytorch"] = "overlapped"
    flat_shards: bool = False
    fully_shard: bool = False

    # Tensor, sequence, context and pipeline parallelism.
    p2p_split: bool = False
    sp_style: Literal["megatron", "pytorch"] = "megatron"
    cp_style: Literal["ring", "all-gather", "pytorch", "all-to-all"] = "ring"

    # Casts to fp8.
    fp8_casts: Literal["transformer-engine", "compiled"] = "transformer-engine"
    fp8_transposed: bool = True
    fp8_weight_casts: bool = False
    scales_apart: bool = False

    # Products and attention.
    separate_projections: bool = False
    fused_qkv: bool = False
    stacked_layers: bool = False
    kernels: Literal["flash", "eager"] = "flash"
    unaligned: Literal["tensor-cores", "cores"] = "tensor-cores"
    scores_softmax: Literal["whole", "causal", "operations"] = "whole"
    attention: Literal["newest", "cudnn", "cudnn-9.13", "flash-2", "aotriton", "triton"] = "newest"
    packed_attention: bool = False
    repeats_heads: bool = False
    rotary: Literal["real", "complex", "operations"] = "real"

    # Elementwise work, norms, images.
    fused: bool = True
    fused_norms: bool | None = None
    fused_optimizer: bool | None = None
    primitive: tuple[Literal[ComposedActivation, "norm", "dropout", "adam"], ...] = ()
    widened: tuple[Literal["norm", "softmax", "activation"], ...] = ()
    parameter_loops: bool = False
    bias_kernels: bool = False
    broadcast_biases: bool = False
    persistent_norms: bool = False
    residual_norms: bool = False
    norm_fusion: Literal["none", "activation", "convolution"] = "none"
    image_layout: Literal["channels-last", "channels-first"] = "channels-last"
    fused_wgrad: bool | None = None

    # Loss.
    fused_loss: bool | None = None
    eager_loss: bool = False
    compiled_loss: bool = False
    loss_gradient: Literal["backward", "forward"] = "backward"

    # Launches.
    cuda_graphs: bool = False
    cuda_graph_modules: tuple[Literal["attn", "mamba", "moe_router", "moe_preprocess"], ...] = ()
    launch_blocking: bool = False

    # Mixture of experts.
    moe_experts: Literal["loop", "grouped", "fused", "modules"] | None = None
    leaf_modules: bool = True
    moe_router: Literal["pytorch", "transformer-engine"] = "pytorch"
    moe_router_fusion: bool = False
    moe_dispatcher: Literal["all-to-all", "flex", "hybrid-ep", "one-hot"] = "all-to-all"
    moe_capacity_factor: Annotated[float, Limits(least=0.1, most=100)] = 1.0
    moe_multihot_fusion: bool = False
    moe_balance: Literal["free", "round-robin"] = "free"
    moe_capacity: bool = False

    @property
    def dispatches_by_kernels(self) -> bool:
        """Whether tokens are sent to experts by DeepEP or HybridEP, not by NCCL."""
        return self.moe_dispatcher in ("flex", "hybrid-ep")

    def __post_init__(self) -> None:
        if self.name in (None, "none") and (self.version is not None or self.recipe != "none"):
            key = "recipe" if self.version is None else "version"
            given = "name is not" if self.name is None else "name is 'none'"
            raise InputError(f"{key} is given, but {given}: of which framework?")
        if self.launch_blocking and self.cuda_graphs:
            raise InputError("launch_blocking is true, but cuda_graphs, too: the CPU launches none")

    @property
    def fuses_loss(self) -> bool:
        """Whether the cross-entropy loss is one kernel in place of several of PyTorch."""
        return self.fused if self.fused_loss is None else self.fused_loss

    @property
    def fuses_norms(self) -> bool:
        """Whether a norm is one kernel."""
        return self.fused if self.fused_norms is None else self.fused_norms

    @property
    def fuses_optimizer(self) -> bool:
        """Whether PyTorch's optimizer is one kernel."""
        return self.fused if self.fused_optimizer is None else self.fused_optimizer

    @property
    def fuses_wgrad(self) -> bool:
        """Whether products add gradients of weights straight to Megatron-LM's buffer."""
        return self.fused if self.fused_wgrad is None else self.fused_wgrad
