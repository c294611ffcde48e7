"""Model dimensions, plan, grid → sizes of tensors on one rank.

`Shapes` has the sizes of all layers, and checks that plan and model fit together; those of one
attention call are in `.attention_shape`.
"""

from __future__ import annotations

from dataclasses import replace

from mpisim.base.errors import InputError, divides
from mpisim.kernels.operations import BYTES, Precision, operand_bytes

from ...base.frozen import frozen
from ...experiment.models import Transformer
from ...experiment.plan import Format, Plan
from ...experiment.plan_options import WideModule
from ..grid import Grid

__all__ = ["WHOLE_SEQUENCES", "Shapes", "check_shared_heads"]

WHOLE_SEQUENCES = ("all-gather", "all-to-all")
"""Of ``framework.cp_style``: attention has all keys at once, so that they may have a window."""

VOCABULARY_MULTIPLE = 128
"""Megatron-LM's ``--make-vocab-size-divisible-by``: times tp, what a vocabulary is padded to."""


@frozen
class Shapes:
    """Sizes of one rank's share of one micro-batch.

    Attributes
    ----------
    model : Transformer
    plan : Plan
    grid : Grid
    length : int
        Tokens of a whole sequence; in T5's decoder those of the decoder.
    """

    model: Transformer
    plan: Plan
    grid: Grid
    length: int

    @classmethod
    def of(cls, model: Transformer, plan: Plan, grid: Grid) -> Shapes:
        """Model, plan and grid → sizes of a rank, after checking that they fit together.

        Parameters
        ----------
        model : Transformer
            Its `seq_len` becomes `length`: in T5 that of the encoder.
        plan : Plan
        grid : Grid
            Of this plan: sizes are divided by its axes.

        Raises
        ------
        InputError
            Naming the keys that do not fit.
        """
        shapes = cls(model, plan, grid, model.seq_len)
        shapes._check()
        return shapes

    def with_length(self, length: int) -> Shapes:
        """Sizes with sequences of another length."""
        return replace(self, length=length)

    # --- tokens ---------------------------------------------------------------------------------

    @property
    def batch(self) -> int:
        """Sequences of a micro-batch."""
        return self.plan.micro_batch

    @property
    def local_length(self) -> int:
        """Tokens of a sequence on this rank: its part of the context (cp)."""
        return self.length // self.grid.cp

    @property
    def tokens(self) -> int:
        """Tokens that enter the matrix products of the tensor-parallel regions."""
        return self.batch * self.local_length

    @property
    def sharded_tokens(self) -> int:
        """Tokens outside of these regions (norms, dropout, residuals): with sp a share."""
        return self.tokens // self.grid.tp if self.sequence_parallel else self.tokens

    @property
    def sequence_parallel(self) -> bool:
        """Whether the ranks of a tp group each have a share of the sequence."""
        return self.grid.tp > 1 and self.plan.sequence_parallel

    @property
    def gathers_batch_first(self) -> bool:
        """Whether gathered sequences come after the batch (PyTorch's DTensor), not before it."""
        return self.sequence_parallel and self.plan.framework.sp_style == "pytorch"

    # --- widths ---------------------------------------------------------------------------------

    @property
    def heads(self) -> int:
        """Attention heads of this rank."""
        return self.model.heads // self.grid.tp

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values of this rank; where there are fewer than ranks, each has one."""
        return max(1, self.model.kv // self.grid.tp)

    @property
    def vocabulary(self) -> int:
        """Entries of the vocabulary that this rank holds, padding included."""
        multiple = VOCABULARY_MULTIPLE * self.grid.tp
        return -(-self.model.vocab // multiple) * VOCABULARY_MULTIPLE

    @property
    def separate_projections(self) -> bool:
        """Whether matrices with the same input are separate products."""
        possible = self.grid.tp == 1 or (self.gathers_batch_first and not self.plan.overlap.tp)
        return self.plan.framework.separate_projections and possible

    @property
    def fused_qkv(self) -> bool:
        """Whether queries, keys and values share a matrix where other matrices are separate."""
        framework = self.plan.framework
        return framework.separate_projections and framework.fused_qkv

    # --- number formats -------------------------------------------------------------------------

    @property
    def quantised(self) -> bool:
        """Whether linear layers multiply in fp8 or NVFP4; everything else is then bf16."""
        return self.plan.precision.products in ("fp8", "nvfp4")

    @property
    def linear_format(self) -> Precision:
        """Format of the matrix products of linear layers."""
        return self.plan.precision.products

    @property
    def dispatches_fp8(self) -> bool:
        """Whether tokens travel to experts in fp8 and are multiplied as they come."""
        return self.plan.precision.dispatch == self.plan.precision.products == "fp8"

    @property
    def matmul_format(self) -> Precision:
        """Format of matrix products that are not of linear layers."""
        return "bf16" if self.quantised else self.plan.precision.products

    @property
    def attention_format(self) -> Precision:
        """Format of the products inside fused attention."""
        return self.plan.precision.attention or self.matmul_format

    @property
    def storage_format(self) -> Format:
        """Format of activations and weights in memory."""
        return self.plan.weight_format

    @property
    def element_size(self) -> int:
        """Bytes of an element of an activation."""
        return BYTES[self.storage_format]

    @property
    def autocast(self) -> bool:
        """Whether the passes run in ``torch.autocast``."""
        return self.plan.precision.autocast

    @property
    def stream_format(self) -> Format:
        """Format of the residual stream: the widest of its summands, fp32 with autocast."""
        return "fp32" if self.autocast else self.storage_format

    @property
    def stream_size(self) -> int:
        """Bytes of an element of the residual stream."""
        return BYTES[self.stream_format]

    def operand_bytes(self, elements: int) -> int:
        """Elements → bytes of an operand of a linear layer's product."""
        return operand_bytes(self.linear_format, elements)

    @property
    def gradient_format(self) -> Precision:
        """Format in which gradients of weights are kept."""
        if self.plan.precision.gradients is not None:
            return self.plan.precision.gradients
        return "fp32" if self.is_megatron else self.plan.parameter_format

    @property
    def is_megatron(self) -> bool:
        """Whether the framework is Megatron-LM, which keeps gradients in a buffer of its own."""
        return self.plan.style(transformer=True) == "megatron"

    @property
    def upcasts_gradients(self) -> bool:
        """Whether 16-bit gradients are added up in fp32: DeepSpeed's BF16_Optimizer."""
        deepspeed = self.plan.style(transformer=True) == "deepspeed"
        return deepspeed and self.storage_format == "bf16" and self.gradient_format == "fp32"

    @property
    def shards_gradients(self) -> bool:
        """Whether FSDP handles gradients: reduced in every micro-batch, or accumulated by unit."""
        return self.plan.style(transformer=True) == "fsdp"

    @property
    def accumulates_gradients(self) -> bool:
        """Whether several micro-batches add to one gradient."""
        return self.plan.global_batch > self.grid.dp * self.plan.micro_batch

    def wide(self, module: WideModule | None = None) -> Shapes:
        """Sizes of layers whose products stay in 16 bits, or of a module if the plan says so.

        Parameters
        ----------
        module : {"attention", "latent", "mtp"}, optional
            As in ``plan.precision.wide_modules``; if not given, always.
        """
        precision = self.plan.precision
        if not self.quantised or (module and module not in precision.wide_modules):
            return self
        wide = replace(precision, products=precision.weights, attention=None)
        return replace(self, plan=replace(self.plan, precision=wide))

    # --- attention ------------------------------------------------------------------------------

    @property
    def window(self) -> int | None:
        """Tokens that a token attends to (sliding window); None if it is the whole sequence."""
        window = self.model.window
        return None if window is None or window >= self.length else window

    def without_window(self) -> Shapes:
        """Sizes of layers whose tokens attend to all before them."""
        return replace(self, model=replace(self.model, window=None))

    # --- checks ---------------------------------------------------------------------------------

    def _check(self) -> None:
        model, plan, grid = self.model, self.plan, self.grid
        tp = grid.tp
        divides("model.heads", model.heads, "plan.tp", tp)
        if self.autocast:
            self._check_autocast()
        if model.attention == "mha" and model.kv % tp and tp % model.kv:
            raise InputError(
                f"model.kv_heads is {model.kv}, neither a multiple nor a divisor of plan.tp = {tp}"
            )
        letters = set("".join(model.kinds))
        if "M" in letters:
            divides("model.mamba_heads", model.mamba_heads, "plan.tp × plan.cp", tp * grid.cp)
            divides("model.mamba_groups", model.mamba_groups, "plan.tp", tp)
        if "G" in letters:
            divides(
                "model.delta_key_heads", model.delta_key_heads, "plan.tp × plan.cp", tp * grid.cp
            )
        if "-" in letters:
            divides("model.ffn_hidden", model.ffn, "plan.tp", tp)
        self._check_length("model.seq_len", model.seq_len)
        if model.decoder_layers:
            self._check_length("model.decoder_seq_len", model.decoder_seq_len or model.seq_len)
        if model.experts:
            self._check_experts()
        elif plan.ep > 1:
            raise InputError(f"plan.ep is {plan.ep}, but the model has no experts")
        if grid.cp > 1:
            self._check_context()
        if (model.memory or model.cutoffs) and grid.tp * grid.cp > 1:
            raise InputError(
                f"plan.tp is {grid.tp} and plan.cp {grid.cp} with model.memory or model.cutoffs: "
                "Transformer-XL is not shared by tensor or context"
            )
        if model.memory and plan.framework.kernels != "eager":
            raise InputError(
                f"framework.kernels is {plan.framework.kernels!r} with model.memory = "
                f"{model.memory}: shifted "
                "scores need 'eager'"
            )

    def _check_length(self, key: str, length: int) -> None:
        tp, cp = self.grid.tp, self.grid.cp
        if cp > 1 and length % (2 * cp):
            # Each rank holds one chunk from the front and one from the back, so that all have the
            # same work under a causal mask.
            raise InputError(
                f"{key} is {length}, which is not a multiple of 2 × plan.cp = {2 * cp}"
            )
        if self.sequence_parallel and length // cp % tp:
            ranks = f"plan.cp × plan.tp = {cp} × {tp}" if cp > 1 else f"plan.tp = {tp}"
            raise InputError(
                f"{key} is {length}, which is not a multiple of {ranks}, as plan.sp shares the "
                "sequence; set plan.sp = false"
            )

    def _check_autocast(self) -> None:
        model, style = self.model, self.plan.style(transformer=True)
        if style != "ddp":
            raise InputError(
                f"plan.precision.autocast is true with framework.dp_style = {style!r}, which keeps "
                "or gathers weights in 16 bits; allowed: 'ddp'"
            )
        for key in ("experts", "lora_rank", "memory"):
            value = getattr(model, key)
            if value:
                raise InputError(
                    f"plan.precision.autocast is true with model.{key} = {value}, where it is not "
                    "modelled; set it false"
                )

    def _check_experts(self) -> None:
        model, grid = self.model, self.grid
        divides("model.experts", model.experts, "plan.ep", grid.ep)
        divides("model.moe_ffn_hidden", model.expert_ffn, "plan.etp", grid.etp)
        if model.shared_ffn:
            divides("model.shared_ffn_hidden", model.shared_ffn, "plan.tp", grid.tp)
        if grid.tp > 1 and not self.sequence_parallel:
            raise InputError(
                f"plan.sp is false with experts and plan.tp = {grid.tp}: every rank of a tp group "
                "would send the same tokens; set plan.sp = true"
            )

    def _check_context(self) -> None:
        model, plan = self.model, self.plan
        if plan.framework.kernels == "eager":
            raise InputError(
                f"plan.cp is {plan.cp} with framework.kernels = 'eager': context parallelism needs "
                "'flash'"
            )
        if model.family == "t5":
            raise InputError(f"plan.cp is {plan.cp}; family 't5' has no context parallelism")
        style = plan.framework.cp_style
        if style == "all-to-all":
            check_shared_heads(
                plan.cp, self.heads, self.heads if model.attention == "mla" else self.kv_heads
            )
        if self.window is not None and style not in WHOLE_SEQUENCES:
            raise InputError(
                f"model.window is {model.window} with plan.cp = {plan.cp}: a sliding window needs "
                "framework.cp_style = 'all-gather' or 'all-to-all'"
            )


def check_shared_heads(cp: int, heads: int, kv_heads: int) -> None:
    """Refuse heads of attention that the ranks of a context cannot share.

    Parameters
    ----------
    cp : int
    heads, kv_heads : int
        Of one rank of tensor parallelism.

    Raises
    ------
    InputError
        If `cp` does not divide `heads`, or is neither a divisor nor a multiple of `kv_heads`.
    """
    if heads % cp or (kv_heads % cp and cp % kv_heads):
        raise InputError(
            f"plan.cp is {cp} with framework.cp_style = 'all-to-all', which shares heads: a rank "
            f"has {heads} of queries and {kv_heads} of keys"
        )
