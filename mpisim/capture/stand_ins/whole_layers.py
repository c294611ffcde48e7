"""Transformer Engine's ``MultiheadAttention`` and ``TransformerLayer``, of the modules beside them.

After ``transformer_engine/pytorch/attention/multi_head_attention.py`` and ``transformer.py`` of
version 2.9. Queries, keys and values come from one product also where they are three parameters
(``fuse_qkv_params=False``): these lie one behind the other, so that nothing is copied
(``noop_cat``). Attention to another sequence has one product of queries, behind the norm, and one
of that sequence's keys and values. Bias, dropout and residual are one kernel of ``torch.compile``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

import torch

from .dot_product_attention import DotProductAttention
from .fp8 import launch
from .linears import LayerNormLinear, Linear
from .products import group_size
from .split_parameters import INPUT_PRODUCTS
from .transformer_layers import (
    LayerNorm,
    LayerNormMLP,
    RMSNorm,
    SplitAlongDim,
    apply_rotary_pos_emb,
)

__all__ = ["MultiheadAttention", "TransformerLayer"]

_NORMS: dict[str, Any] = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


class _Parts(torch.autograd.Function):
    """Queries, keys and values of one tensor, into which attention writes their gradients, too."""

    @staticmethod
    def forward(ctx: Any, mixed: Any, axis: int, sizes: Any) -> Any:
        ctx.given = mixed.shape
        return mixed.split(sizes, dim=axis)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0].new_empty(ctx.given), None, None


class MultiheadAttention(torch.nn.Module):
    """Product, positions, attention, product."""

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        kv_channels: int | None = None,
        attention_dropout: float = 0.1,
        layernorm_epsilon: float = 1e-5,
        init_method: Any = None,
        output_layer_init_method: Any = None,
        layer_number: int | None = None,
        attn_mask_type: str = "causal",
        window_size: Any = None,
        tp_group: Any = None,
        tp_size: int = 1,
        num_gqa_groups: int | None = None,
        fuse_wgrad_accumulation: bool = False,
        get_rng_state_tracker: Any = None,
        sequence_parallel: bool = False,
        params_dtype: Any = None,
        return_bias: bool = False,
        return_layernorm_output: bool = False,
        input_layernorm: bool = False,
        attention_type: str = "self",
        set_parallel_mode: bool = False,
        fuse_qkv_params: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        bias: bool = True,
        normalization: str = "LayerNorm",
        device: Any = "cuda",
        qkv_format: str = "sbhd",
        qk_norm_type: str | None = None,
        softmax_type: str = "vanilla",
        **rest: Any,
    ) -> None:
        super().__init__()
        if attention_type not in ("self", "cross") or qk_norm_type == "L2Normalization":
            raise launch.refuse("MultiheadAttention of another kind")
        self.crosses = attention_type == "cross"
        _without_overlaps("MultiheadAttention", rest)
        tp_size = tp_size if tp_group is None else group_size(tp_group)
        groups = num_gqa_groups or num_attention_heads
        self.size = kv_channels or hidden_size // num_attention_heads
        self.heads, self.groups = num_attention_heads // tp_size, groups // tp_size
        self.interleaved = qkv_weight_interleaved and fuse_qkv_params
        self.attn_mask_type, self.window_size = attn_mask_type, window_size
        self.qkv_format, self.input_layernorm = qkv_format, input_layernorm
        self.return_bias, self.returns_norm = return_bias, return_layernorm_output
        self.turns_pairs = rest.get("rotary_pos_interleaved", False)
        self.norm_before = rest.get("qk_norm_before_rope", False)
        shared = {
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "tp_group": tp_group,
            "tp_size": tp_size,
            "get_rng_state_tracker": get_rng_state_tracker,
            "sequence_parallel": sequence_parallel,
            "params_dtype": params_dtype,
            "device": device,
            "bias": bias,
        }
        rows = {"query": self.size * num_attention_heads}
        rows |= dict.fromkeys(("key", "value"), self.size * groups)
        kind = INPUT_PRODUCTS[bool(input_layernorm), bool(fuse_qkv_params)]
        norm = {
            "eps": layernorm_epsilon,
            "normalization": normalization,
            "zero_centered_gamma": zero_centered_gamma,
            "return_layernorm_output": return_layernorm_output,
        }
        products = {"layernorm_qkv" if input_layernorm else "qkv": (kind, rows)}
        if self.crosses:
            given = {name: rows[name] for name in ("key", "value")}
            query = LayerNormLinear if input_layernorm else Linear
            products = {
                "layernorm_query" if input_layernorm else "query_layer": (query, {}),
                "key_value": (INPUT_PRODUCTS[False, bool(fuse_qkv_params)], given),
            }
        for name, (made, parts) in products.items():
            product = made(
                hidden_size,
                sum(parts.values()) or rows["query"],
                init_method=init_method,
                parallel_mode="column" if set_parallel_mode else None,
                **shared,
                **(norm if name.startswith("layernorm") else {}),
                **({} if fuse_qkv_params or not parts else {"sizes": parts}),
            )
            self.add_module(name, product)
        self.q_norm: Any = None
        self.k_norm: Any = None
        if qk_norm_type is not None:
            eps = rest.get("qk_norm_eps", 1e-6)
            self.q_norm, self.k_norm = (
                _NORMS[qk_norm_type](self.size, eps=eps, device=device) for _ in range(2)
            )
        self.core_attention = DotProductAttention(
            num_attention_heads,
            self.size,
            num_gqa_groups=groups,
            attention_dropout=attention_dropout,
            qkv_format=qkv_format,
            tp_size=tp_size,
            tp_group=tp_group,
            layer_number=layer_number,
            attention_type=attention_type,
            softmax_type=softmax_type,
        )
        self.proj = Linear(
            rows["query"],
            hidden_size,
            init_method=output_layer_init_method,
            return_bias=return_bias,
            parallel_mode="row" if set_parallel_mode else None,
            **shared,
        )

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """Take the tensor-parallel group."""
        _to_children(self, "set_tensor_parallel_group", tp_group)

    def set_context_parallel_group(self, *given: Any, **named: Any) -> None:
        """Take the context-parallel group."""
        _to_children(self, "set_context_parallel_group", *given, **named)

    def _heads(self, mixed: Any, *, apart: bool) -> list[Any]:
        """Result of the product → queries, keys and values."""
        share = self.heads // self.groups
        inner = (self.groups, share + 2) if self.interleaved else (share + 2, self.groups)
        mixed = mixed.view(*mixed.shape[:-1], *inner, self.size)
        split = SplitAlongDim.apply if apart else _Parts.apply
        found = split(mixed, -2 if self.interleaved else -3, (share, 1, 1))
        return [each.reshape(*mixed.shape[:-3], -1, self.size) for each in found]

    def _two_sequences(
        self, hidden: Any, other: Any, first: bool | None
    ) -> tuple[Any, Any, Any, Any]:
        """Decoder and encoder hidden states → queries, keys, values, and the norm's output."""
        mixed = self.key_value(other, first)
        groups = (self.groups, 2) if self.interleaved else (2, self.groups)
        mixed = mixed.view(*mixed.shape[:-1], *groups, self.size)
        k, v = _Parts.apply(mixed, -2 if self.interleaved else -3, (1, 1))
        product: Any = self.layernorm_query if self.input_layernorm else self.query_layer
        q, normed = product(hidden, first), None
        if isinstance(q, tuple):
            q, normed = q
        q = q.view(*q.shape[:-1], self.heads, self.size)
        k, v = (each.reshape(*mixed.shape[:-3], self.groups, self.size) for each in (k, v))
        return q, k, v, normed

    def forward(
        self,
        hidden_states: Any,
        attention_mask: Any = None,
        encoder_output: Any = None,
        attn_mask_type: str | None = None,
        window_size: Any = None,
        is_first_microbatch: bool | None = None,
        checkpoint_core_attention: bool = False,
        inference_params: Any = None,
        rotary_pos_emb: Any = None,
        **rest: Any,
    ) -> Any:
        """Attend to the tokens themselves, or to those of another sequence."""
        if checkpoint_core_attention or inference_params is not None:
            raise launch.refuse("MultiheadAttention(checkpoint_core_attention=…)")
        if self.crosses:
            q, k, v, normed = self._two_sequences(
                hidden_states, encoder_output, is_first_microbatch
            )
        else:
            product: Any = self.layernorm_qkv if self.input_layernorm else self.qkv
            mixed, normed = product(hidden_states, is_first_microbatch), None
            if isinstance(mixed, tuple):
                mixed, normed = mixed
            # Kernels of attention write one gradient where they read one tensor.
            apart = rotary_pos_emb is not None or self.q_norm is not None
            q, k, v = self._heads(mixed, apart=apart or self.heads != self.groups)
        if self.q_norm is not None and self.norm_before:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotary_pos_emb is not None:
            both = rotary_pos_emb
            both = both if isinstance(both, tuple) else (both, both)
            how = {"fused": True, "interleaved": self.turns_pairs}
            q, k = (
                apply_rotary_pos_emb(x, e, self.qkv_format, **how) for x, e in zip((q, k), both)
            )
        if self.q_norm is not None and not self.norm_before:
            q, k = self.q_norm(q), self.k_norm(k)
        out = self.core_attention(
            q,
            k,
            v,
            attention_mask=attention_mask,
            qkv_format=self.qkv_format,
            attn_mask_type=attn_mask_type or self.attn_mask_type,
            window_size=window_size if window_size is not None else self.window_size,
            **{name: rest[name] for name in rest if name[:10] in ("cu_seqlens", "max_seqlen")},
        )
        out = self.proj(out, is_first_microbatch)
        out = out if isinstance(out, tuple) else (out,)
        out = (*out, normed) if self.returns_norm else out
        return out if len(out) > 1 else out[0]


def _without_overlaps(name: str, given: Mapping[str, Any]) -> None:
    """Refuse communication by user buffers."""
    for asked, value in given.items():
        if asked.startswith("ub_") and value:
            raise launch.refuse(f"{name}({asked}=…)")


def _to_children(module: torch.nn.Module, name: str, *given: Any, **named: Any) -> None:
    """Call a method of all modules inside that have it."""
    for index, child in enumerate(module.modules()):
        method = getattr(child, name, None)
        if index and method is not None:
            method(*given, **named)


def _added(x: Any, bias: Any, residual: Any, share: float, training: bool) -> Any:
    """Bias, dropout, residual: compiled to one kernel."""
    return residual + torch.nn.functional.dropout(x + bias, p=share, training=training)


class TransformerLayer(torch.nn.Module):
    """Attention and a feed-forward block, each with its residual."""

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        num_attention_heads: int,
        num_gqa_groups: int | None = None,
        layernorm_epsilon: float = 1e-5,
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        init_method: Any = None,
        output_layer_init_method: Any = None,
        layer_number: int | None = None,
        kv_channels: int | None = None,
        self_attn_mask_type: str = "causal",
        window_size: Any = None,
        enc_dec_attn_mask_type: str = "no_mask",
        enc_dec_window_size: Any = None,
        tp_group: Any = None,
        tp_size: int = 1,
        params_dtype: Any = None,
        get_rng_state_tracker: Any = None,
        fuse_wgrad_accumulation: bool = False,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
        sequence_parallel: bool = False,
        apply_residual_connection_post_layernorm: bool = False,
        output_layernorm: bool = False,
        parallel_attention_mlp: bool = False,
        layer_type: str = "encoder",
        drop_path_rate: float = 0.0,
        set_parallel_mode: bool = False,
        fuse_qkv_params: bool = False,
        zero_centered_gamma: bool = False,
        bias: bool = True,
        activation: str = "gelu",
        normalization: str = "LayerNorm",
        device: Any = "cuda",
        attn_input_format: str = "sbhd",
        **rest: Any,
    ) -> None:
        super().__init__()
        assert layer_type in ("encoder", "decoder"), f"layer_type {layer_type} not supported"
        if drop_path_rate:
            raise launch.refuse("TransformerLayer(drop_path_rate=…)")
        self.layer_type, self.enc_dec_attn_mask_type = layer_type, enc_dec_attn_mask_type
        self.enc_dec_window_size = enc_dec_window_size
        if fuse_wgrad_accumulation and not fuse_qkv_params:
            raise AssertionError("Gradient accumulation fusion requires single QKV parameter.")
        if rest.pop("ub_tp_comm_overlap", False):
            raise launch.refuse("TransformerLayer(ub_tp_comm_overlap=True)")
        rest = {name: value for name, value in rest.items() if not name.startswith("ub_")}
        self.self_attn_mask_type, self.window_size = self_attn_mask_type, window_size
        self.after_norm = apply_residual_connection_post_layernorm
        self.output_layernorm, self.parallel = output_layernorm, parallel_attention_mlp
        self.hidden_dropout = hidden_dropout
        tp_size = tp_size if tp_group is None else group_size(tp_group)
        shared = {
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "tp_group": tp_group,
            "tp_size": tp_size,
            "get_rng_state_tracker": get_rng_state_tracker,
            "sequence_parallel": tp_size > 1 and sequence_parallel,
            "params_dtype": params_dtype,
            "return_layernorm_output": self.after_norm,
            "set_parallel_mode": set_parallel_mode,
            "zero_centered_gamma": zero_centered_gamma,
            "init_method": init_method,
            "output_layer_init_method": output_layer_init_method,
            "bias": bias,
            "return_bias": not parallel_attention_mlp,
            "normalization": normalization,
            "device": device,
        }
        attention: Any = functools.partial(
            MultiheadAttention,
            hidden_size,
            num_attention_heads,
            kv_channels,
            attention_dropout,
            layernorm_epsilon,
            layer_number=layer_number,
            num_gqa_groups=num_gqa_groups,
            fuse_qkv_params=fuse_qkv_params,
            qkv_format=attn_input_format,
            **shared,
            **rest,
        )
        self.self_attention = attention(input_layernorm=not output_layernorm)
        if layer_type == "decoder":
            self.inter_attention = attention(
                attn_mask_type=enc_dec_attn_mask_type, input_layernorm=True, attention_type="cross"
            )
        self.layernorm_mlp = LayerNormMLP(
            hidden_size, ffn_hidden_size, layernorm_epsilon, activation=activation, **shared
        )
        if output_layernorm:
            self.layernorm = _NORMS[normalization](
                hidden_size,
                eps=layernorm_epsilon,
                sequence_parallel=shared["sequence_parallel"],
                params_dtype=params_dtype,
                zero_centered_gamma=zero_centered_gamma,
                device=device,
            )
        fused = bool(int(os.environ.get("NVTE_BIAS_DROPOUT_FUSION", "1")))
        self._fused = torch.compile(_added) if fused else _added

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """Take the tensor-parallel group."""
        _to_children(self, "set_tensor_parallel_group", tp_group)

    def set_context_parallel_group(self, *given: Any, **named: Any) -> None:
        """Take the context-parallel group."""
        _to_children(self, "set_context_parallel_group", *given, **named)

    def forward(
        self,
        hidden_states: Any,
        attention_mask: Any = None,
        self_attn_mask_type: str | None = None,
        window_size: Any = None,
        encoder_output: Any = None,
        enc_dec_attn_mask: Any = None,
        enc_dec_attn_mask_type: str | None = None,
        enc_dec_window_size: Any = None,
        is_first_microbatch: bool | None = None,
        **rest: Any,
    ) -> Any:
        """Run both."""
        x = hidden_states.contiguous()
        if torch.is_autocast_enabled("cuda"):
            x = x.to(torch.get_autocast_dtype("cuda"))
        attended = self.self_attention(
            x,
            attention_mask,
            attn_mask_type=self_attn_mask_type or self.self_attn_mask_type,
            window_size=window_size if window_size is not None else self.window_size,
            is_first_microbatch=is_first_microbatch,
            **rest,
        )
        if self.parallel:
            out = self.layernorm_mlp(x, is_first_microbatch)
            return self._add(attended, out, x)
        residual = x
        if self.after_norm and not self.output_layernorm:
            *attended, residual = attended
        x = self._add(attended[0], attended[1], residual)
        if self.layer_type == "decoder":
            attended = self.inter_attention(
                x,
                enc_dec_attn_mask,
                encoder_output,
                attn_mask_type=enc_dec_attn_mask_type or self.enc_dec_attn_mask_type,
                window_size=enc_dec_window_size or self.enc_dec_window_size,
                is_first_microbatch=is_first_microbatch,
            )
            residual = x
            if self.after_norm:
                *attended, residual = attended
            x = self._add(attended[0], attended[1], residual)
        out = self.layernorm_mlp(x, is_first_microbatch)
        residual = x
        if self.after_norm:
            *out, residual = out
        x = self._add(out[0], out[1], residual)
        return self.layernorm(x) if self.output_layernorm else x

    def _add(self, x: Any, bias: Any, residual: Any) -> Any:
        if bias is not None and bias.numel():
            with torch.enable_grad():
                return self._fused(x, bias, residual, self.hidden_dropout, self.training)
        share, training = self.hidden_dropout, self.training
        return residual + torch.nn.functional.dropout(x, p=share, training=training)
