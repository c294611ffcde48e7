"""Transformer Engine beside products and attention: norms, activations, rotary positions, loss.

After transformer_engine/pytorch of version 2.9: module/layernorm.py, module/rmsnorm.py,
module/layernorm_mlp.py, ops, attention/rope.py, cross_entropy.py.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.distributed as dist

from .fp8 import launch
from .linears import LayerNormLinear, Linear
from .products import norms

__all__ = [
    "ACTIVATIONS",
    "FusedRoPEFunc",
    "LayerNorm",
    "LayerNormMLP",
    "RMSNorm",
    "RotaryPositionEmbedding",
    "SplitAlongDim",
    "apply_rotary_pos_emb",
    "parallel_cross_entropy",
]


class _Norm(torch.nn.Module):
    """A norm over the last dimensions.

    Attributes
    ----------
    kind : {"layer", "rms"}
    """

    kind: ClassVar[str]

    def __init__(
        self,
        normalized_shape: Any = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: Any = None,
        zero_centered_gamma: bool = False,
        hidden_size: int | None = None,
        device: Any = "cuda",
        dtype: Any = None,
        **rest: Any,
    ) -> None:
        super().__init__()
        shape = normalized_shape if normalized_shape is not None else hidden_size
        shape = (shape,) if isinstance(shape, int) else tuple(shape or ())
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        self.sequence_parallel = sequence_parallel
        given = {"device": device, "dtype": params_dtype or dtype}
        fill = torch.zeros if zero_centered_gamma else torch.ones
        self.weight: Any = torch.nn.Parameter(fill(shape, **given))
        self.bias: Any = None
        if self.kind == "layer":
            self.bias = torch.nn.Parameter(torch.zeros(shape, **given))
        if sequence_parallel is not None:
            for each in self.parameters():
                each.sequence_parallel = sequence_parallel

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Nothing more than was done as they were made."""

    def forward(self, x: Any) -> Any:
        """Normalise."""
        dtype = x.dtype
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
        return norms.apply(self.kind, x.to(dtype), self.weight, self.bias)


class LayerNorm(_Norm):
    """A layer norm."""

    kind = "layer"


class RMSNorm(_Norm):
    """An RMS norm."""

    kind = "rms"


class _Activation(torch.autograd.Function):
    """One kernel forward and one backward; gated ones take two numbers for one."""

    @staticmethod
    def forward(ctx: Any, x: Any, name: str) -> Any:
        width = x.shape[-1] // 2 if "glu" in name else x.shape[-1]
        out = launch.empty((*x.shape[:-1], width), x.dtype, x.device)
        launch(f"transformer_engine::{name}", [x], [out])
        ctx.save_for_backward(x)
        ctx.name = name
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        out = launch.like(x)
        launch(f"transformer_engine::d{ctx.name}", [grad, x], [out])
        return out, None


class _ActivationModule(torch.nn.Module):
    """An activation.

    Attributes
    ----------
    kernel : str
    """

    kernel: ClassVar[str]

    def __init__(self, *, cache_quantized_input: bool = False, **rest: Any) -> None:
        super().__init__()
        if cache_quantized_input:
            raise launch.refuse(f"ops.{type(self).__name__}(cache_quantized_input=True)")

    def forward(self, x: Any) -> Any:
        """Run it."""
        return _Activation.apply(x.contiguous(), self.kernel)


ACTIVATIONS = {
    name: type(name, (_ActivationModule,), {"kernel": kernel})
    for name, kernel in (
        ("GELU", "gelu"),
        ("GEGLU", "geglu"),
        ("QGELU", "qgelu"),
        ("QGEGLU", "qgeglu"),
        ("ReLU", "relu"),
        ("ReGLU", "reglu"),
        ("SReLU", "srelu"),
        ("SReGLU", "sreglu"),
        ("SiLU", "silu"),
        ("SwiGLU", "swiglu"),
    )
}
"""Modules of ``ops``, by name."""


class LayerNormMLP(torch.nn.Module):
    """Norm, product, activation, product."""

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        return_bias: bool = False,
        get_rng_state_tracker: Any = None,
        tp_group: Any = None,
        tp_size: int = 1,
        init_method: Any = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        output_layer_init_method: Any = None,
        fuse_wgrad_accumulation: bool = False,
        params_dtype: Any = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
        set_parallel_mode: bool = False,
        zero_centered_gamma: bool = False,
        device: Any = "cuda",
        **rest: Any,
    ) -> None:
        super().__init__()
        shared = {
            "sequence_parallel": sequence_parallel,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "tp_group": tp_group,
            "tp_size": tp_size,
            "get_rng_state_tracker": get_rng_state_tracker,
            "bias": bias,
            "params_dtype": params_dtype,
            "device": device,
            "delay_wgrad_compute": rest.get("delay_wgrad_compute", False),
        }
        self.activation, self.returns_norm = activation, return_layernorm_output
        inner = ffn_hidden_size * (2 if "glu" in activation else 1)
        # Parameters are fc1_weight and so on in the library; here they are of the two modules.
        self.fc1 = LayerNormLinear(
            hidden_size,
            inner,
            eps,
            init_method=init_method,
            normalization=normalization,
            parallel_mode="column" if set_parallel_mode else None,
            return_layernorm_output=return_layernorm_output,
            return_layernorm_output_gathered=return_layernorm_output_gathered,
            zero_centered_gamma=zero_centered_gamma,
            **shared,
        )
        self.fc2 = Linear(
            ffn_hidden_size,
            hidden_size,
            init_method=output_layer_init_method,
            parallel_mode="row" if set_parallel_mode else None,
            return_bias=return_bias,
            **shared,
        )

    def forward(self, inp: Any, is_first_microbatch: bool | None = None) -> Any:
        """Run all four."""
        x = self.fc1(inp, is_first_microbatch)
        x, *normed = x if isinstance(x, tuple) else (x,)
        out = self.fc2(_Activation.apply(x, self.activation), is_first_microbatch)
        if not normed:
            return out
        return (*(out if isinstance(out, tuple) else (out,)), *normed)


# --- parts of a tensor ----------------------------------------------------------------------------


class SplitAlongDim(torch.autograd.Function):
    """Parts of a tensor, whose gradients are one tensor again."""

    @staticmethod
    def forward(ctx: Any, mixed: Any, axis: int, sizes: Any, squeeze: bool = False) -> Any:
        ctx.axis = axis
        parts = mixed.split(sizes, dim=axis)
        return tuple(each.squeeze(axis) if squeeze else each for each in parts)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return torch.cat(grads, dim=ctx.axis), None, None, None


# --- rotary positions -----------------------------------------------------------------------------


class FusedRoPEFunc(torch.autograd.Function):
    """One kernel forward and one backward."""

    @staticmethod
    def forward(ctx: Any, t: Any, freqs: Any) -> Any:
        out = launch.like(t)
        launch("transformer_engine::fused_rope_forward", [t, freqs], [out])
        ctx.save_for_backward(freqs)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        out = launch.like(grad)
        launch("transformer_engine::fused_rope_backward", [grad, *ctx.saved_tensors], [out])
        return out, None


def apply_rotary_pos_emb(t: Any, freqs: Any, tensor_format: str = "sbhd",
                         start_positions: Any = None, interleaved: bool = False,
                         fused: bool = False, cu_seqlens: Any = None, cp_size: int = 1,
                         cp_rank: int = 0) -> Any:  # fmt: skip
    """Turn pairs of features by the angles of their positions."""
    if fused:
        return FusedRoPEFunc.apply(t, freqs)
    if tensor_format == "thd":
        raise launch.refuse("apply_rotary_pos_emb(tensor_format='thd', fused=False)")
    rotated, rest = t[..., : freqs.shape[-1]], t[..., freqs.shape[-1] :]
    cos, sin = (each.to(t.dtype) for each in (torch.cos(freqs), torch.sin(freqs)))
    if tensor_format == "bshd":
        cos, sin = cos.transpose(0, 1), sin.transpose(0, 1)
    one, two = rotated.chunk(2, dim=-1)
    rotated = rotated * cos + torch.cat((-two, one), dim=-1) * sin
    return torch.cat((rotated, rest), dim=-1)


class RotaryPositionEmbedding(torch.nn.Module):
    """Angles of positions."""

    def __init__(self, dim: int, rotary_percent: float = 1.0, seq_len_interpolation_factor:
                 Any = None, pretrained_max_position_embeddings: Any = None,
                 rotary_base: float = 10000.0, interleaved: bool = False) -> None:  # fmt: skip
        super().__init__()
        dim = int(dim * rotary_percent)
        steps = torch.arange(0, dim, 2, dtype=torch.float32, device="cuda") / dim
        self.register_buffer("inv_freq", 1.0 / rotary_base**steps)

    def forward(self, max_seq_len: int, offset: int = 0) -> Any:
        frequencies: Any = self.inv_freq
        positions = torch.arange(max_seq_len, device="cuda", dtype=torch.float32) + offset
        angles = torch.outer(positions, frequencies)
        return torch.cat((angles, angles), dim=-1)[:, None, None, :]


# --- loss -----------------------------------------------------------------------------------------


class CrossEntropyFunction(torch.autograd.Function):
    """Two kernels of Triton forward and one backward."""

    @staticmethod
    def forward(ctx: Any, scores: Any, target: Any, reduce_loss: bool, group: Any) -> Any:
        rows = target.numel()
        sums = launch.empty((3 * rows,), torch.float32, scores.device)
        launch("transformer_engine::online_softmax", [scores], [sums])
        if group is not None and dist.get_world_size(group) > 1:
            every = sums.new_empty(dist.get_world_size(group) * sums.numel())
            dist.all_gather_into_tensor(every, sums, group=group)
            sums = every
        losses = launch.empty(target.shape, torch.float32, scores.device)
        launch("transformer_engine::cross_entropy", [scores, sums, target], [losses, scores])
        ctx.save_for_backward(scores.detach())
        return losses.sum() / rows if reduce_loss else losses

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (scores,) = ctx.saved_tensors
        launch("transformer_engine::element_mul", [scores, grad], [scores])
        return scores, None, None, None


def parallel_cross_entropy(scores: Any, target: Any, label_smoothing: float = 0.0,
                           reduce_loss: bool = False, dist_process_group: Any = None,
                           ignore_idx: int = -100, is_cg_capturable: bool = False
                           ) -> Any:  # fmt: skip
    """Scores and words → losses; the gradient is made with the loss, over the scores."""
    return CrossEntropyFunction.apply(scores, target, reduce_loss, dist_process_group)
