"""The sizes one rank sees: what a model's dimensions become under a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mpisim.base.errors import InputError
from mpisim.kernels.operations import BYTES, Precision, operand_bytes

from ...experiment.models import Transformer, divides
from ...experiment.plan import Format, Plan
from ..grid import Grid

__all__ = ["Shapes"]

VOCABULARY_MULTIPLE = 128
"""Megatron-LM's ``--make-vocab-size-divisible-by``: times tp, what a vocabulary is padded to."""


@dataclass(frozen=True)
class Shapes:
    """Sizes of one rank's share of one micro-batch.

    Attributes
    ----------
    model : Transformer
    plan : Plan
    grid : Grid
    length : int
        Tokens of a whole sequence; of T5's decoder its own.
    """

    model: Transformer
    plan: Plan
    grid: Grid
    length: int

    @classmethod
    def of(cls, model: Transformer, plan: Plan, grid: Grid) -> Shapes:
        """Check that model and plan fit together.

        Raises
        ------
        InputError
            Naming the keys that do not.
        """
        shapes = cls(model, plan, grid, model.seq_len)
        shapes._check()
        return shapes

    def of_length(self, length: int) -> Shapes:
        """Return the same for sequences of another length."""
        return replace(self, length=length)

    # --- tokens ---------------------------------------------------------------------------------

    @property
    def batch(self) -> int:
        """Sequences of a micro-batch."""
        return self.plan.micro_batch

    @property
    def local_length(self) -> int:
        """Tokens of a sequence on this rank, its part of the context."""
        return self.length // self.grid.cp

    @property
    def tokens(self) -> int:
        """Tokens that enter the matrix products."""
        return self.batch * self.local_length

    @property
    def shared(self) -> int:
        """Tokens outside of the tensor-parallel regions: norms, dropout, residuals."""
        return self.tokens // self.grid.tp if self.sequence_parallel else self.tokens

    @property
    def sequence_parallel(self) -> bool:
        """Whether the ranks of a tp group share the sequence."""
        return self.grid.tp > 1 and self.plan.sequence_parallel

    @property
    def sequence_second(self) -> bool:
        """Whether what ranks of a tp group share of the sequence comes after the batch."""
        return self.sequence_parallel and self.plan.sp_style == "pytorch"

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
        """Entries of the vocabulary this rank holds, padding included."""
        multiple = VOCABULARY_MULTIPLE * self.grid.tp
        return -(-self.model.vocab // multiple) * VOCABULARY_MULTIPLE

    @property
    def separate_projections(self) -> bool:
        """Whether matrices with one input stay apart."""
        apart = self.grid.tp == 1 or (self.sequence_second and not self.plan.tp_overlap)
        return self.plan.separate_projections and apart

    # --- number formats -------------------------------------------------------------------------

    @property
    def quantised(self) -> bool:
        """Whether linear layers multiply in fp8 or NVFP4; everything else is then bf16."""
        return self.plan.precision in ("fp8", "nvfp4")

    @property
    def linear(self) -> Precision:
        """Format of the matrix products of linear layers."""
        return self.plan.precision

    @property
    def dispatches_operands(self) -> bool:
        """Whether tokens travel to experts in the format in which these multiply them."""
        return self.plan.dispatch_precision == self.plan.precision == "fp8"

    @property
    def product(self) -> Precision:
        """Format of the other matrix products."""
        return "bf16" if self.quantised else self.plan.precision

    @property
    def attended(self) -> Precision:
        """Format of the products of fused attention."""
        return self.plan.attention_precision or self.product

    @property
    def stored(self) -> Format:
        """Format of activations and weights in memory."""
        return self.plan.weight_format

    @property
    def element(self) -> int:
        """Bytes of an activation."""
        return BYTES[self.stored]

    def operand(self, elements: int) -> int:
        """Bytes of what enters the product of a linear layer."""
        return operand_bytes(self.linear, elements)

    @property
    def gradient(self) -> Precision:
        """Format in which gradients of weights are kept."""
        if self.plan.grad_precision is not None:
            return self.plan.grad_precision
        return "fp32" if self.megatron else self.stored

    @property
    def megatron(self) -> bool:
        """Whether gradients are kept in Megatron-LM's buffer, apart from the weights' own."""
        return self.plan.style(transformer=True) == "megatron"

    @property
    def widens_gradients(self) -> bool:
        """Whether gradients of 16 bits are added up in fp32, in DeepSpeed's BF16_Optimizer."""
        deepspeed = self.plan.style(transformer=True) == "deepspeed"
        return deepspeed and self.stored == "bf16" and self.gradient == "fp32"

    @property
    def shards_gradients(self) -> bool:
        """Whether FSDP takes gradients: it reduces them in every micro-batch, or adds units up."""
        return self.plan.style(transformer=True) == "fsdp"

    @property
    def accumulates(self) -> bool:
        """Whether several micro-batches add to one gradient."""
        return self.plan.global_batch > self.grid.dp * self.plan.micro_batch

    # --- attention ------------------------------------------------------------------------------

    @property
    def window(self) -> int | None:
        """Tokens a token sees, if fewer than there are."""
        window = self.model.window
        return None if window is None or window >= self.length else window

    def unwindowed(self) -> Shapes:
        """Return the same for layers whose tokens see all before them."""
        return replace(self, model=replace(self.model, window=None))

    # --- checks ---------------------------------------------------------------------------------

    def _check(self) -> None:
        model, plan, grid = self.model, self.plan, self.grid
        tp = grid.tp
        divides("model.heads", model.heads, "plan.tp", tp)
        if model.attention == "mha" and model.kv % tp and tp % model.kv:
            raise InputError(
                f"model.kv_heads is {model.kv}, neither a multiple nor a divisor of plan.tp = {tp}"
            )
        if any(not model.is_moe(layer) for layer in range(model.layers)):
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
        if plan.kernels == "eager":
            raise InputError(
                f"plan.cp is {plan.cp} with plan.kernels = 'eager': context parallelism needs "
                "'flash'"
            )
        if model.family == "t5":
            raise InputError(f"plan.cp is {plan.cp}; family 't5' has no context parallelism")
        if self.window is not None and plan.cp_style != "all-gather":
            raise InputError(
                f"model.window is {model.window} with plan.cp = {plan.cp}: a sliding window needs "
                "plan.cp_style = 'all-gather'"
            )
