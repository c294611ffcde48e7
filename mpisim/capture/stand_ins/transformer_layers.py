"""Transformer Engine beside matrix products: norms, attention, positions, loss, rows of experts.

After transformer_engine/pytorch of version 2.9: module/layernorm.py, module/rmsnorm.py,
module/layernorm_mlp.py, attention/dot_product_attention, attention/rope.py, permutation.py,
cross_entropy.py. Attention is cuDNN's on Hopper and Blackwell and FlashAttention-2 on Ampere, as
`get_attention_backend` chooses.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .context_exchange import exchanged, gathered
from .context_parallel import ring
from .linears import Linears
from .products import Engine

__all__ = ["activations", "attention", "cross_entropy", "mlp", "norm", "permutation", "rotary"]

NAMESPACE = "transformer_engine"


def norm(engine: Engine, kind: str) -> Any:
    """Return ``LayerNorm`` or ``RMSNorm``."""

    class Norm(torch.nn.Module):
        """A norm over the last dimensions."""

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
            if kind == "layer":
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
            return engine.norms.apply(kind, x.to(dtype), self.weight, self.bias)

    Norm.__name__ = Norm.__qualname__ = "RMSNorm" if kind == "rms" else "LayerNorm"
    return Norm


def _activation(engine: Engine) -> Any:
    """Return the autograd function of an activation."""
    launch = engine.launch

    class Activation(torch.autograd.Function):
        """One kernel forward and one backward; gated ones take two numbers for one."""

        @staticmethod
        def forward(ctx: Any, x: Any, name: str) -> Any:
            width = x.shape[-1] // 2 if "glu" in name else x.shape[-1]
            out = launch.empty((*x.shape[:-1], width), x.dtype, x.device)
            launch(f"{NAMESPACE}::{name}", [x], [out])
            ctx.save_for_backward(x)
            ctx.name = name
            return out

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            out = launch.like(x)
            launch(f"{NAMESPACE}::d{ctx.name}", [grad, x], [out])
            return out, None

    return Activation


ACTIVATIONS = {
    "GELU": "gelu",
    "GEGLU": "geglu",
    "QGELU": "qgelu",
    "QGEGLU": "qgeglu",
    "ReLU": "relu",
    "ReGLU": "reglu",
    "SReLU": "srelu",
    "SReGLU": "sreglu",
    "SiLU": "silu",
    "SwiGLU": "swiglu",
}
"""Modules of ``ops``, by name, and their kernels."""


def activations(engine: Engine) -> dict[str, Any]:
    """Return the activations of ``ops``."""
    activate = _activation(engine)

    def module(name: str, kernel: str) -> Any:
        class Activation(torch.nn.Module):
            """An activation."""

            def __init__(self, *, cache_quantized_input: bool = False, **rest: Any) -> None:
                super().__init__()
                if cache_quantized_input:
                    raise engine.refuse(f"ops.{name}(cache_quantized_input=True)")

            def forward(self, x: Any) -> Any:
                """Run it."""
                return activate.apply(x.contiguous(), kernel)

        Activation.__name__ = Activation.__qualname__ = name
        return Activation

    return {name: module(name, kernel) for name, kernel in ACTIVATIONS.items()}


def mlp(engine: Engine, linears: Linears) -> Any:
    """Return ``LayerNormMLP``, of a product with a norm, an activation and a product."""
    activate = _activation(engine)

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
            self.fc1 = linears.layernorm_linear(
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
            self.fc2 = linears.linear(
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
            out = self.fc2(activate.apply(x, self.activation), is_first_microbatch)
            if not normed:
                return out
            return (*(out if isinstance(out, tuple) else (out,)), *normed)

    return LayerNormMLP


# --- attention ------------------------------------------------------------------------------------


def attention(engine: Engine) -> Any:
    """Return ``DotProductAttention``."""
    launch, state = engine.launch, engine.state

    def statistics(q: Any, layout: str) -> Any:
        return launch.empty(q.shape[:-1], torch.float32, q.device)

    class Attention(torch.autograd.Function):
        """One kernel forward, one backward, and the casts of operands in fp8."""

        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any, begins: Any, how: tuple[Any, ...],
                    recipe: Any) -> Any:  # fmt: skip
            dtype, given = q.dtype, (q, k, v)
            if recipe is not None:
                given = tuple(_in_fp8(each, recipe) for each in given)
            out = launch.empty((*q.shape[:-1], v.shape[-1]), dtype, q.device)
            sums = statistics(q, how[0])
            launch(f"{NAMESPACE}::fused_attn_fwd", [*given, begins, *how], [out, sums])
            ctx.save_for_backward(*given, out, sums, begins)
            ctx.how, ctx.recipe, ctx.dtype = how, recipe, dtype
            return out

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            q, k, v, out, sums, begins = ctx.saved_tensors
            if ctx.recipe is not None:
                grad = _in_fp8(grad.contiguous(), ctx.recipe, backward=True)
            made = [launch.like(each, ctx.dtype) for each in (q, k, v)]
            inputs = [grad, q, k, v, begins, *ctx.how, out, sums]
            launch(f"{NAMESPACE}::fused_attn_bwd", inputs, made)
            return (*made, None, None, None)

    def _in_fp8(tensor: Any, recipe: Any, backward: bool = False) -> Any:
        flat = tensor.reshape(-1, tensor.shape[-1])
        cast = state.quantize(flat, columns=False, backward=backward, recipe=recipe)
        return cast.rows.view(tensor.shape)

    shares = {
        "p2p": ring(engine, statistics, NAMESPACE),
        "a2a": exchanged(engine, statistics, NAMESPACE),
        "all_gather": gathered(engine, statistics, NAMESPACE),
    }

    class DotProductAttention(torch.nn.Module):
        """Attention of queries, keys and values."""

        def __init__(
            self,
            num_attention_heads: int,
            kv_channels: Any,
            num_gqa_groups: int | None = None,
            attention_dropout: float = 0.0,
            qkv_format: str = "sbhd",
            attn_mask_type: str = "causal",
            window_size: Any = None,
            sequence_parallel: bool = False,
            tp_size: int = 1,
            get_rng_state_tracker: Any = None,
            tp_group: Any = None,
            layer_number: int | None = None,
            attention_type: str = "self",
            cp_group: Any = None,
            cp_global_ranks: Any = None,
            cp_stream: Any = None,
            cp_comm_type: str = "p2p",
            softmax_scale: float | None = None,
            softmax_type: str = "vanilla",
            return_max_logit: bool = False,
        ) -> None:
            super().__init__()
            self.qkv_format, self.attn_mask_type = qkv_format, attn_mask_type
            self.window_size, self.return_max_logit = window_size, return_max_logit
            self.attention_dropout = attention_dropout
            self.cp_comm_type, self.tp_group = cp_comm_type, tp_group
            if softmax_type != "vanilla":
                raise engine.refuse(f"DotProductAttention(softmax_type={softmax_type!r})")
            self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)

        def set_context_parallel_group(
            self, cp_group: Any, cp_global_ranks: Any, cp_stream: Any, cp_comm_type: str = "p2p"
        ) -> None:
            """Set the group that shares sequences, its ranks, and a stream for every other step."""
            groups = cp_group if isinstance(cp_group, list) else [cp_group]
            shared = [each for each in groups if each is not None and dist.get_world_size(each) > 1]
            if len(shared) > 1 or (shared and cp_comm_type not in shares):
                raise engine.refuse(f"DotProductAttention(cp_comm_type={cp_comm_type!r})")
            self.cp_group = shared[0] if shared else None
            self.cp_global_ranks, self.cp_stream = cp_global_ranks, cp_stream
            self.cp_comm_type = cp_comm_type

        def forward(
            self,
            query_layer: Any,
            key_layer: Any,
            value_layer: Any,
            attention_mask: Any = None,
            qkv_format: str | None = None,
            cu_seqlens_q: Any = None,
            cu_seqlens_kv: Any = None,
            cu_seqlens_q_padded: Any = None,
            cu_seqlens_kv_padded: Any = None,
            max_seqlen_q: int | None = None,
            max_seqlen_kv: int | None = None,
            attn_mask_type: str | None = None,
            window_size: Any = None,
            **rest: Any,
        ) -> Any:
            """Attend; heads are one behind the other in the result."""
            if rest.get("inference_params") is not None:
                raise engine.refuse("DotProductAttention(inference_params=…)")
            capability = tuple(torch.cuda.get_device_capability())
            if capability < (8, 0) or query_layer.dtype is torch.float32:
                raise engine.refuse("UnfusedDotProductAttention")
            layout = qkv_format or self.qkv_format
            mask = attn_mask_type or self.attn_mask_type
            window = window_size or self.window_size
            before = window[0] if window is not None else -1
            how = (layout, int("causal" in mask), before, "cudnn" if capability >= (9, 0) else
                   "flash_2")  # fmt: skip
            recipe = state.recipe if state.enabled else None
            if recipe is not None and not (recipe.fp8_dpa or recipe.fp8_mha):
                recipe = None
            begins = cu_seqlens_q if layout == "thd" else None
            if self.cp_group is not None:
                kind = self.cp_comm_type
                if recipe is not None or layout == "thd" or (before >= 0 and kind != "a2a"):
                    raise engine.refuse(
                        "DotProductAttention(cp_group=…) in fp8, of sequences of several lengths, "
                        "or with a window"
                    )
                ranks = self.cp_global_ranks or dist.get_process_group_ranks(self.cp_group)
                if self.cp_stream is None:
                    self.cp_stream = torch.cuda.Stream()
                out = shares[kind].apply(
                    *(query_layer, key_layer, value_layer, how),
                    *(self.cp_group, ranks, self.cp_stream),
                )
                return out.reshape(*out.shape[:-2], -1)
            out = Attention.apply(query_layer, key_layer, value_layer, begins, how, recipe)
            out = out.reshape(*out.shape[:-2], -1)
            if self.return_max_logit:
                return out, out.new_empty(query_layer.shape[-2], dtype=torch.float32)
            return out

    return DotProductAttention


# --- rotary positions -----------------------------------------------------------------------------


def rotary(engine: Engine) -> dict[str, Any]:
    """Return what ``attention.rope`` has."""
    launch = engine.launch

    class FusedRoPEFunc(torch.autograd.Function):
        """One kernel forward and one backward."""

        @staticmethod
        def forward(ctx: Any, t: Any, freqs: Any) -> Any:
            out = launch.like(t)
            launch(f"{NAMESPACE}::fused_rope_forward", [t, freqs], [out])
            ctx.save_for_backward(freqs)
            return out

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            out = launch.like(grad)
            launch(f"{NAMESPACE}::fused_rope_backward", [grad, *ctx.saved_tensors], [out])
            return out, None

    def apply_rotary_pos_emb(t: Any, freqs: Any, tensor_format: str = "sbhd",
                             start_positions: Any = None, interleaved: bool = False,
                             fused: bool = False, cu_seqlens: Any = None, cp_size: int = 1,
                             cp_rank: int = 0) -> Any:  # fmt: skip
        if fused:
            return FusedRoPEFunc.apply(t, freqs)
        if tensor_format == "thd":
            raise engine.refuse("apply_rotary_pos_emb(tensor_format='thd', fused=False)")
        turned, rest = t[..., : freqs.shape[-1]], t[..., freqs.shape[-1] :]
        cos, sin = (each.to(t.dtype) for each in (torch.cos(freqs), torch.sin(freqs)))
        if tensor_format == "bshd":
            cos, sin = cos.transpose(0, 1), sin.transpose(0, 1)
        one, two = turned.chunk(2, dim=-1)
        turned = turned * cos + torch.cat((-two, one), dim=-1) * sin
        return torch.cat((turned, rest), dim=-1)

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

    return {
        "FusedRoPEFunc": FusedRoPEFunc,
        "apply_rotary_pos_emb": apply_rotary_pos_emb,
        "RotaryPositionEmbedding": RotaryPositionEmbedding,
    }


# --- loss -----------------------------------------------------------------------------------------


def cross_entropy(engine: Engine) -> Any:
    """Return ``parallel_cross_entropy``: the gradient is made with the loss, over the scores."""
    launch = engine.launch

    class CrossEntropyFunction(torch.autograd.Function):
        """Two kernels of Triton forward and one backward."""

        @staticmethod
        def forward(ctx: Any, scores: Any, target: Any, reduce_loss: bool, group: Any) -> Any:
            rows = target.numel()
            sums = launch.empty((3 * rows,), torch.float32, scores.device)
            launch(f"{NAMESPACE}::online_softmax", [scores], [sums])
            if group is not None and dist.get_world_size(group) > 1:
                every = sums.new_empty(dist.get_world_size(group) * sums.numel())
                dist.all_gather_into_tensor(every, sums, group=group)
                sums = every
            losses = launch.empty(target.shape, torch.float32, scores.device)
            launch(f"{NAMESPACE}::cross_entropy", [scores, sums, target], [losses, scores])
            ctx.save_for_backward(scores.detach())
            return losses.sum() / rows if reduce_loss else losses

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (scores,) = ctx.saved_tensors
            launch(f"{NAMESPACE}::element_mul", [scores, grad], [scores])
            return scores, None, None, None

    def parallel_cross_entropy(scores: Any, target: Any, label_smoothing: float = 0.0,
                               reduce_loss: bool = False, dist_process_group: Any = None,
                               ignore_idx: int = -100, is_cg_capturable: bool = False
                               ) -> Any:  # fmt: skip
        return CrossEntropyFunction.apply(scores, target, reduce_loss, dist_process_group)

    return parallel_cross_entropy


# --- rows of experts ------------------------------------------------------------------------------


def permutation(engine: Engine) -> dict[str, Any]:
    """Return what ``permutation`` has: rows to their experts, and back."""
    launch = engine.launch

    class Move(torch.autograd.Function):
        """Rows copied to other places, or gradients of copies added up."""

        @staticmethod
        def forward(ctx: Any, x: Any, places: Any, rows: int, probs: Any) -> Any:
            out = launch.empty((rows, x.shape[-1]), x.dtype, x.device)
            launch(f"{NAMESPACE}::permute", [x, places], [out])
            ctx.save_for_backward(places)
            ctx.rows = x.shape[0]
            ctx.width = None if probs is None else probs.shape
            if probs is None:
                return out
            moved = launch.empty((rows,), probs.dtype, x.device)
            launch(f"{NAMESPACE}::permute", [probs, places], [moved])
            return out, moved

        @staticmethod
        def backward(ctx: Any, grad: Any, grad_probs: Any = None) -> Any:
            (places,) = ctx.saved_tensors
            out = launch.empty((ctx.rows, grad.shape[-1]), grad.dtype, grad.device)
            launch(f"{NAMESPACE}::unpermute", [grad.contiguous(), places], [out])
            probs = None
            if grad_probs is not None and ctx.width is not None:
                probs = launch.empty(ctx.width, grad_probs.dtype, grad.device)
                launch(f"{NAMESPACE}::unpermute", [grad_probs, places], [probs])
            return out, None, None, probs

    class Collect(torch.autograd.Function):
        """Rows of experts added up to tokens, with weights or without."""

        @staticmethod
        def forward(ctx: Any, x: Any, places: Any, weights: Any, shape: Any) -> Any:
            out = launch.empty(shape, x.dtype, x.device)
            launch(f"{NAMESPACE}::unpermute", [x, places, weights], [out])
            ctx.save_for_backward(places, weights, x if weights is not None else None)
            ctx.rows = x.shape
            return out

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            places, weights, x = ctx.saved_tensors
            out = launch.empty(ctx.rows, grad.dtype, grad.device)
            launch(f"{NAMESPACE}::permute", [grad.contiguous(), places, x], [out])
            return out, None, None if weights is None else launch.like(weights), None

    def places_of(x: Any, routing_map: Any) -> Any:
        found = launch.empty(routing_map.shape, torch.int32, x.device)
        launch(f"{NAMESPACE}::make_row_id_map", [routing_map], [found])
        return found

    def moe_permute(inp: Any, routing_map: Any, num_out_tokens: int = -1, max_token_num: int = -1,
                    map_type: str = "mask") -> Any:  # fmt: skip
        rows = num_out_tokens
        if rows < 0 and map_type == "index":
            rows = routing_map.numel()
        if rows < 0:
            raise engine.refuse("moe_permute without num_out_tokens")
        places = places_of(inp, routing_map)
        return Move.apply(inp, places, rows, None), places

    def moe_permute_with_probs(inp: Any, probs: Any, routing_map: Any,
                               num_out_tokens: int = -1) -> Any:  # fmt: skip
        if num_out_tokens < 0:
            raise engine.refuse("moe_permute_with_probs without num_out_tokens")
        places = places_of(inp, routing_map)
        out, moved = Move.apply(inp, places, num_out_tokens, probs)
        return out, moved, places

    def moe_unpermute(inp: Any, row_id_map: Any, merging_probs: Any = None,
                      restore_shape: Any = None, map_type: str = "mask",
                      probs: Any = None) -> Any:  # fmt: skip
        shape = restore_shape if restore_shape is not None else inp.shape
        weights = merging_probs if merging_probs is not None else probs
        return Collect.apply(inp, row_id_map, weights, tuple(shape))

    def moe_sort_chunks_by_index(inp: Any, split_sizes: Any, sorted_index: Any) -> Any:
        return Move.apply(inp, split_sizes, inp.shape[0], None)

    def moe_sort_chunks_by_index_with_probs(inp: Any, probs: Any, split_sizes: Any,
                                            sorted_index: Any) -> Any:  # fmt: skip
        return Move.apply(inp, split_sizes, inp.shape[0], probs)

    found = (
        moe_permute,
        moe_permute_with_probs,
        moe_unpermute,
        moe_sort_chunks_by_index,
        moe_sort_chunks_by_index_with_probs,
    )
    return {each.__name__: each for each in found}
