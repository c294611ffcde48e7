"""FlashAttention (the package flash-attn): its functions, rotary positions, norms and loss.

The kernels are the operators that flash-attn itself registers (``flash_attn::_flash_attn_forward``
and its siblings, flash_attn/flash_attn_interface.py of version 2.8.3), with the same arguments, so
that traces, execution traces and captures are priced alike.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from .library import Contents, Launcher, Library
from .norms import Norms

__all__ = ["LIBRARY"]

launch = Launcher("flash-attn", "2.8.3")
norms = Norms(launch, "flash_attn")

_FORWARD = (
    "float dropout_p, float softmax_scale, bool causal, int window_size_left, "
    "int window_size_right, float softcap, Tensor? alibi_slopes"
)
_BEGINS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k"
_SCHEMAS = (
    f"_flash_attn_forward(Tensor q, Tensor k, Tensor v, {_FORWARD}, bool return_softmax) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    f"_flash_attn_varlen_forward(Tensor q, Tensor k, Tensor v, {_BEGINS}, {_FORWARD}, "
    "bool return_softmax, Tensor? block_table, Tensor? leftpad_k, Tensor? seqused_k, "
    "bool zero_tensors) -> (Tensor, Tensor, Tensor, Tensor)",
    "_flash_attn_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, "
    f"Tensor softmax_lse, Tensor(a!)? dq, Tensor(b!)? dk, Tensor(c!)? dv, {_FORWARD}, "
    "bool deterministic, Tensor? rng_state) -> Tensor",
    "_flash_attn_varlen_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, "
    f"Tensor softmax_lse, Tensor(a!)? dq, Tensor(b!)? dk, Tensor(c!)? dv, {_BEGINS}, {_FORWARD}, "
    "bool deterministic, Tensor? rng_state, bool zero_tensors) -> Tensor",
)
_ROW_MULTIPLE = 128
"""FlashAttention pads the rows of its softmax buffers to a multiple of this (``round_multiple`` of
flash_api.cpp)."""


def _up(number: int) -> int:
    return -(-number // _ROW_MULTIPLE) * _ROW_MULTIPLE


def _forward_shapes(q: Any, k: Any, v: Any, *rest: Any) -> Any:
    launch.note()
    varlen = q.dim() == 3
    rows = (q.shape[1], q.shape[0]) if varlen else (q.shape[0], q.shape[2], q.shape[1])
    dropped = rest[11 if varlen else 7]
    shape = (*q.shape[:-3], q.shape[-2], _up(q.shape[-3]), _up(k.shape[-3])) if dropped else (0,)
    return (
        q.new_empty((*q.shape[:-1], v.shape[-1])),
        q.new_empty(rows, dtype=torch.float32),
        q.new_empty(shape),
        q.new_empty((2,), dtype=torch.int64),
    )


def _backward_shapes(dout: Any, q: Any, k: Any, v: Any, *rest: Any) -> Any:
    return q.new_empty((q.shape[0], q.shape[2], _up(q.shape[1])), dtype=torch.float32)


def _varlen_backward_shapes(dout: Any, q: Any, k: Any, v: Any, *rest: Any) -> Any:
    sequences = rest[5].shape[0] - 1
    return q.new_empty((q.shape[1], q.shape[0] + _ROW_MULTIPLE * sequences), dtype=torch.float32)


_SHAPES = {
    "_flash_attn_forward": _forward_shapes,
    "_flash_attn_varlen_forward": _forward_shapes,
    "_flash_attn_backward": _backward_shapes,
    "_flash_attn_varlen_backward": _varlen_backward_shapes,
}
"""Operators, and the results that they have for fake tensors."""


def _registered() -> torch.library.Library:
    """Register the operators as flash-attn does, and return what keeps them."""
    library = torch.library.Library("flash_attn", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    for name, shapes in _SHAPES.items():
        torch.library.register_fake(f"flash_attn::{name}", shapes, lib=library)
    return library


def _padded(tensor: Any) -> Any:
    """Heads of a size that is no multiple of 8 → padded."""
    pad = -tensor.shape[-1] % 8
    return functional.pad(tensor, (0, pad)) if pad else tensor


class _Attention(torch.autograd.Function):
    """Attention of queries, keys and values, of sequences in a batch or one behind the other."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, begins: tuple[Any, ...], how: tuple[Any, ...],
                deterministic: bool, keeps: bool, block_table: Any) -> Any:  # fmt: skip
        size = v.shape[-1]
        q, k, v = (_padded(each).contiguous() for each in (q, k, v))
        if begins:
            out, lse, probabilities, state = torch.ops.flash_attn._flash_attn_varlen_forward(
                q, k, v, *begins, *how, keeps and how[0] > 0, block_table, None, None, False
            )
        else:
            out, lse, probabilities, state = torch.ops.flash_attn._flash_attn_forward(
                q, k, v, *how, keeps and how[0] > 0
            )
        ctx.save_for_backward(q, k, v, out, lse, state, *begins[:2])
        ctx.most, ctx.how, ctx.deterministic = begins[2:], how, deterministic
        return out[..., :size], lse, probabilities

    @staticmethod
    def backward(ctx: Any, grad: Any, *rest: Any) -> Any:
        q, k, v, out, lse, state, *begins = ctx.saved_tensors
        size = grad.shape[-1]
        grad = _padded(grad).contiguous()
        dq, dk, dv = (torch.empty_like(each) for each in (q, k, v))
        first = (grad, q, k, v, out, lse, dq, dk, dv)
        if begins:
            torch.ops.flash_attn._flash_attn_varlen_backward(
                *first, *begins, *ctx.most, *ctx.how, ctx.deterministic, state, False
            )
        else:
            torch.ops.flash_attn._flash_attn_backward(*first, *ctx.how, ctx.deterministic, state)
        return (*(each[..., :size] for each in (dq, dk, dv)), *[None] * 5)


def _attend(q: Any, k: Any, v: Any, begins: tuple[Any, ...], dropout_p: float = 0.0,
            softmax_scale: float | None = None, causal: bool = False,
            window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
            alibi_slopes: Any = None, deterministic: bool = False,
            return_attn_probs: bool = False, block_table: Any = None) -> Any:  # fmt: skip
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    how = (dropout_p, scale, causal, *window_size, softcap, alibi_slopes)
    found = _Attention.apply(q, k, v, begins, how, deterministic, return_attn_probs, block_table)
    return found if return_attn_probs else found[0]


def flash_attn_func(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention of (batch, tokens, heads, size)."""
    return _attend(q, k, v, (), *args, **kwargs)


def flash_attn_qkvpacked_func(qkv: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention of (batch, tokens, 3, heads, size)."""
    q, k, v = qkv.unbind(2)
    return _attend(q, k, v, (), *args, **kwargs)


def flash_attn_kvpacked_func(q: Any, kv: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention of (batch, tokens, heads, size) and (batch, tokens, 2, heads, size)."""
    k, v = kv.unbind(2)
    return _attend(q, k, v, (), *args, **kwargs)


def flash_attn_varlen_func(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any,
                           max_seqlen_q: int, max_seqlen_k: int,
                           *args: Any, **kwargs: Any) -> Any:  # fmt: skip
    """Attention of sequences of any lengths, one behind the other: (tokens, heads, size)."""
    begins = (cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k))
    return _attend(q, k, v, begins, *args, **kwargs)


def flash_attn_varlen_qkvpacked_func(qkv: Any, cu_seqlens: Any, max_seqlen: int,
                                     *args: Any, **kwargs: Any) -> Any:  # fmt: skip
    """Attention of (tokens, 3, heads, size)."""
    begins = (cu_seqlens, cu_seqlens, int(max_seqlen), int(max_seqlen))
    q, k, v = qkv.unbind(1)
    return _attend(q, k, v, begins, *args, **kwargs)


def flash_attn_varlen_kvpacked_func(q: Any, kv: Any, cu_seqlens_q: Any, cu_seqlens_k: Any,
                                    max_seqlen_q: int, max_seqlen_k: int,
                                    *args: Any, **kwargs: Any) -> Any:  # fmt: skip
    """Attention of (tokens, heads, size) and (tokens, 2, heads, size)."""
    begins = (cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k))
    k, v = kv.unbind(1)
    return _attend(q, k, v, begins, *args, **kwargs)


# --- sequences without padding --------------------------------------------------------------------


def index_first_axis(tensor: Any, indices: Any) -> Any:
    """Rows of a tensor by their numbers."""
    rows = tensor.reshape(tensor.shape[0], -1)
    found = rows.gather(0, indices.unsqueeze(-1).expand(-1, rows.shape[1]))
    return found.reshape(-1, *tensor.shape[1:])


def index_put_first_axis(values: Any, indices: Any, first_axis_dim: int) -> Any:
    """Rows to their places among `first_axis_dim`, zeros between them."""
    out = values.new_zeros((first_axis_dim, *values.shape[1:]))
    return out.index_copy(0, indices, values)


def unpad_input(hidden_states: Any, attention_mask: Any, unused_mask: Any = None) -> Any:
    """Tokens (batch, tokens, …) that a mask has → them, places, beginnings, longest, lengths."""
    used = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = used.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(used.flatten(), as_tuple=False).flatten()
    longest = lengths.max().item()
    begins = functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    rows = hidden_states.reshape(-1, *hidden_states.shape[2:])
    own = attention_mask.sum(dim=-1, dtype=torch.int32)
    return index_first_axis(rows, indices), indices, begins, longest, own


def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
    """Tokens and their places → (batch, tokens, …)."""
    out = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return out.reshape(batch, seqlen, *hidden_states.shape[1:])


# --- kernels beside attention ---------------------------------------------------------------------


def apply_rotary(x: Any, cos: Any, sin: Any, inplace: bool = False) -> Any:
    """Turn pairs of features by angles, in one kernel of Triton."""
    out = x if inplace else launch.like(x)
    launch("flash_attn::apply_rotary", [x, cos, sin], [out])
    return out


class ApplyRotaryEmb(torch.autograd.Function):
    """Positions turned into angles of pairs of features."""

    @staticmethod
    def forward(ctx: Any, x: Any, cos: Any, sin: Any, interleaved: bool = False,
                inplace: bool = False, seqlen_offsets: Any = 0, cu_seqlens: Any = None,
                max_seqlen: Any = None) -> Any:  # fmt: skip
        ctx.save_for_backward(cos, sin)
        ctx.inplace = inplace
        if inplace:
            ctx.mark_dirty(x)
        return apply_rotary(x, cos, sin, inplace)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        cos, sin = ctx.saved_tensors
        return (apply_rotary(grad, cos, sin, ctx.inplace), *[None] * 7)


def apply_rotary_emb(x: Any, cos: Any, sin: Any, interleaved: bool = False,
                     inplace: bool = False, seqlen_offsets: Any = 0, cu_seqlens: Any = None,
                     max_seqlen: Any = None) -> Any:  # fmt: skip
    """Turn pairs of features by angles, with a gradient."""
    return ApplyRotaryEmb.apply(
        x, cos, sin, interleaved, inplace, seqlen_offsets, cu_seqlens, max_seqlen
    )


class CrossEntropy(torch.autograd.Function):
    """Losses of rows, by one kernel of Triton forward and one backward."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any, inplace: bool) -> Any:
        rows = [launch.empty(labels.shape, torch.float32, logits.device) for _ in range(2)]
        launch("flash_attn::cross_entropy_fwd", [logits, labels], rows)
        ctx.save_for_backward(logits, labels, rows[1])
        ctx.inplace = inplace
        return rows[0], rows[1]

    @staticmethod
    def backward(ctx: Any, grad: Any, *rest: Any) -> Any:
        logits, labels, sums = ctx.saved_tensors
        out = logits if ctx.inplace else launch.like(logits)
        launch("flash_attn::cross_entropy_bwd", [logits, labels, grad, sums], [out])
        return out, None, None


def cross_entropy_loss(logits: Any, labels: Any, label_smoothing: float = 0.0,
                       logit_scale: float = 1.0, lse_square_scale: float = 0.0,
                       ignore_index: int = -100, inplace_backward: bool = False,
                       process_group: Any = None, **rest: Any) -> Any:  # fmt: skip
    """Scores and words → losses, and logarithms of the sums of exponentials."""
    if process_group is not None and process_group.size() > 1:
        raise launch.refuse("cross_entropy_loss(process_group=…)")
    return CrossEntropy.apply(logits, labels, inplace_backward)


class CrossEntropyLoss(torch.nn.Module):
    """The loss as a module."""

    def __init__(self, ignore_index: int = -100, reduction: str = "mean",
                 label_smoothing: float = 0.0, logit_scale: float = 1.0,
                 lse_square_scale: float = 0.0, inplace_backward: bool = False,
                 process_group: Any = None, return_z_loss: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.ignore_index, self.reduction = ignore_index, reduction
        self.inplace_backward, self.process_group = inplace_backward, process_group

    def forward(self, logits: Any, target: Any, precomputed_lse: Any = None) -> Any:
        losses = cross_entropy_loss(
            logits,
            target,
            inplace_backward=self.inplace_backward,
            process_group=self.process_group,
        )[0]
        if self.reduction == "mean":
            return losses.sum() / (target != self.ignore_index).sum()
        return losses.sum() if self.reduction == "sum" else losses


class RMSNorm(torch.nn.Module):
    """An RMS norm."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, device: Any = None,
                 dtype: Any = None) -> None:  # fmt: skip
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(self, x: Any) -> Any:
        return norms.apply("rms", x, self.weight)


def rms_norm(x: Any, weight: Any, epsilon: float) -> Any:
    """RMS norm of ops/rms_norm.py."""
    return norms.apply("rms", x, weight)


def layer_norm(x: Any, weight: Any, bias: Any, epsilon: float) -> Any:
    """Layer norm of ops/layer_norm.py."""
    return norms.apply("layer", x, weight, bias)


# --- the library ----------------------------------------------------------------------------------


def _modules() -> Contents:
    attention = {
        each.__name__: each
        for each in (
            flash_attn_func,
            flash_attn_kvpacked_func,
            flash_attn_qkvpacked_func,
            flash_attn_varlen_func,
            flash_attn_varlen_kvpacked_func,
            flash_attn_varlen_qkvpacked_func,
        )
    }
    padding = (index_first_axis, index_put_first_axis, pad_input, unpad_input)
    return {
        "flash_attn": attention,
        "flash_attn.flash_attn_interface": {**attention, "_operators": _registered()},
        "flash_attn.bert_padding": {each.__name__: each for each in padding},
        "flash_attn.layers": {},
        "flash_attn.layers.rotary": {
            "ApplyRotaryEmb": ApplyRotaryEmb,
            "apply_rotary_emb": apply_rotary_emb,
            "apply_rotary_emb_func": apply_rotary_emb,
        },
        "flash_attn.losses": {},
        "flash_attn.losses.cross_entropy": {"CrossEntropyLoss": CrossEntropyLoss},
        "flash_attn.ops": {},
        "flash_attn.ops.rms_norm": {"RMSNorm": RMSNorm, "rms_norm": rms_norm},
        "flash_attn.ops.layer_norm": {"layer_norm": layer_norm},
        "flash_attn.ops.triton": {},
        "flash_attn.ops.triton.cross_entropy": {"cross_entropy_loss": cross_entropy_loss},
        "flash_attn.ops.triton.rotary": {"apply_rotary": apply_rotary},
    }


LIBRARY = Library(
    "flash_attn",
    launch,
    _modules,
    {
        "flash_attn": ("flash_attn_with_kvcache",),
        "flash_attn.flash_attn_interface": (
            "flash_attn_with_kvcache",
            "_flash_attn_forward",
            "_flash_attn_backward",
            "_flash_attn_varlen_forward",
            "_flash_attn_varlen_backward",
            "_wrapped_flash_attn_forward",
            "_wrapped_flash_attn_backward",
        ),
        "flash_attn.bert_padding": (
            "index_first_axis_residual",
            "unpad_input_for_concatenated_sequences",
        ),
        "flash_attn.flash_attn_triton": (),
        "flash_attn.layers.patch_embed": (),
        "flash_attn.layers.rotary": (
            "RotaryEmbedding",
            "apply_rotary_emb_qkv_",
            "apply_rotary_emb_kv_",
        ),
        "flash_attn.models": (),
        "flash_attn.modules": (),
        "flash_attn.modules.block": (),
        "flash_attn.modules.embedding": (),
        "flash_attn.modules.mha": (),
        "flash_attn.modules.mlp": (),
        "flash_attn.ops.activations": (),
        "flash_attn.ops.fused_dense": (),
        "flash_attn.ops.layer_norm": (
            "DropoutAddLayerNorm",
            "dropout_add_layer_norm",
            "dropout_add_layer_norm_subset",
            "dropout_add_layer_norm_parallel_residual",
        ),
        "flash_attn.ops.rms_norm": (
            "DropoutAddRMSNorm",
            "dropout_add_rms_norm",
            "dropout_add_rms_norm_subset",
            "dropout_add_rms_norm_parallel_residual",
        ),
        "flash_attn.ops.triton.layer_norm": (),
        "flash_attn.ops.triton.linear": (),
        "flash_attn.ops.triton.mlp": (),
    },
)
"""The library."""
