"""``DotProductAttention`` of Transformer Engine, of whole sequences and of those that ranks share.

After transformer_engine/pytorch/attention/dot_product_attention of version 2.9. Attention is
cuDNN's on Hopper and Blackwell and FlashAttention-2 on Ampere, as `get_attention_backend` chooses.

With context parallelism by sends and receives (`AttnFuncWithCPAndKVP2P` in context_parallel.py;
`context_exchange` has the others), of sequences of one length, keys and values go round the ranks:
steps alternate between the current stream and another, and what the next step needs is sent before
this one's attention. With a causal mask a rank has two chunks, the i-th and the i-th from the end;
of another rank's it needs half of the keys, or they half of its queries. Backward they go round
again, and their gradients one step behind.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from .context_exchange import Exchanged, Gathered
from .fp8 import launch, state
from .products import softmax_statistics

__all__ = ["DotProductAttention"]


class _Attention(torch.autograd.Function):
    """One kernel forward, one backward, and the casts of operands in fp8."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, begins: Any, how: tuple[Any, ...],
                recipe: Any) -> Any:  # fmt: skip
        dtype, given = q.dtype, (q, k, v)
        if recipe is not None:
            given = tuple(_in_fp8(each, recipe) for each in given)
        out = launch.empty((*q.shape[:-1], v.shape[-1]), dtype, q.device)
        sums = softmax_statistics(q)
        launch("transformer_engine::fused_attn_fwd", [*given, begins, *how], [out, sums])
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
        launch("transformer_engine::fused_attn_bwd", inputs, made)
        return (*made, None, None, None)


def _in_fp8(tensor: Any, recipe: Any, backward: bool = False) -> Any:
    flat = tensor.reshape(-1, tensor.shape[-1])
    cast = state.quantize(flat, columns=False, backward=backward, recipe=recipe)
    return cast.rows.view(tensor.shape)


# --- context parallelism --------------------------------------------------------------------------


def _exchange(group: Any, ranks: Any, sent: Any, received: Any) -> list[Any]:
    """Send to the next rank of the ring, and receive from the one before."""
    size, mine = dist.get_world_size(group), dist.get_rank(group)
    there, here = ranks[(mine + 1) % size], ranks[mine - 1]
    if size == 2 or int(os.environ.get("NVTE_BATCH_MHA_P2P_COMM", "0")):
        return dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, sent, there, group),
                dist.P2POp(dist.irecv, received, here, group),
            ]
        )
    calls = [lambda: dist.isend(sent, there, group), lambda: dist.irecv(received, here, group)]
    return [call() for call in (reversed(calls) if mine % 2 else calls)]


def _parts(own: bool, keys_halved: bool, causal: bool, axis: int, q: Any, k: Any, v: Any) -> Any:
    """Return what of queries, keys and values a step needs, and whether it is masked."""
    if own or not causal:
        return q, k, v, causal
    half = q.shape[axis] // 2
    if keys_halved:
        return q, k.narrow(axis, 0, half), v.narrow(axis, 0, half), False
    return q.narrow(axis, half, half), k, v, False


class _Ring(torch.autograd.Function):
    """A kernel and an exchange a step, and the merge of what steps give."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, how: tuple[Any, ...], group: Any, ranks: Any,
                stream: Any) -> Any:  # fmt: skip
        layout, causal, before, kernel = how
        axis, size, mine = layout.index("s"), dist.get_world_size(group), dist.get_rank(group)
        streams = (torch.cuda.current_stream(), stream)
        shapes, split = (k.shape, v.shape), k.numel()
        at_hand = torch.cat((k.reshape(-1), v.reshape(-1)))
        stream.wait_stream(streams[0])
        pending: list[Any] = []
        found = []
        sums = None
        for step in range(size):
            with torch.cuda.stream(streams[step % 2]):
                for each in pending:
                    each.wait()
                pending, coming = [], at_hand
                if step < size - 1:
                    coming = torch.empty_like(at_hand)
                    pending = _exchange(group, ranks, at_hand, coming)
                keys, values = at_hand[:split].view(shapes[0]), at_hand[split:].view(shapes[1])
                *given, masked = _parts(step == 0, step <= mine, causal, axis, q, keys, values)
                piece = launch.empty((*given[0].shape[:-1], v.shape[-1]), q.dtype, q.device)
                own = softmax_statistics(given[0])
                inputs = [*given, None, layout, int(masked), before, kernel]
                launch("transformer_engine::fused_attn_fwd", inputs, [piece, own])
                found.append((piece, own))
                if step < size - 1:
                    at_hand = coming
            if step == 1:
                sums = found[0][1].clone()
            if step:
                name = "transformer_engine::softmax_lse_correction"
                launch(name, [sums, found[-1][1]], [])
        streams[0].wait_stream(stream)
        out = launch.empty((*q.shape[:-1], v.shape[-1]), q.dtype, q.device)
        for piece, own in found:
            inputs = [piece, sums, own]
            launch("transformer_engine::flash_attn_fwd_out_correction", inputs, [out])
        ctx.save_for_backward(q, at_hand, out, sums)
        ctx.how, ctx.ring, ctx.shapes = how, (group, ranks), shapes
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        q, last, out, sums = ctx.saved_tensors
        layout, causal, before, kernel = ctx.how
        axis, split = layout.index("s"), ctx.shapes[0].numel()
        group, ranks = ctx.ring
        size, mine = dist.get_world_size(group), dist.get_rank(group)
        buffers = [last.new_empty((2, last.numel())) for _ in range(2)]
        buffers[0][0].copy_(last)
        queries = torch.empty_like(q)
        pending: list[Any] = []
        for step in range(size):
            for each in pending:
                each.wait()
            at_hand, coming = buffers[step % 2], buffers[(step + 1) % 2]
            # At first there are no gradients, in the end nobody needs keys and values.
            part: Any = 0 if step == 0 else 1 if step == size - 1 else slice(None)
            pending = _exchange(group, ranks, at_hand[part], coming[part])
            keys, values = (
                each.view(shape)
                for each, shape in zip((at_hand[0][:split], at_hand[0][split:]), ctx.shapes)
            )
            own, halved = step == size - 1, step >= size - mine - 1
            *given, masked = _parts(own, halved, causal, axis, q, keys, values)
            *outs, _, _, _ = _parts(own, halved, causal, axis, grad.contiguous(), keys, values)
            made = [launch.empty(each.shape, q.dtype, q.device) for each in given]
            inputs = [*outs, *given, None, layout, int(masked), before, kernel, out, sums]
            launch("transformer_engine::fused_attn_bwd", inputs, made)
            length = made[0].shape[axis]  # half of them are the last
            into = queries.narrow(axis, q.shape[axis] - length, length)
            if step == 0:
                into.copy_(made[0])
            else:
                into.add_(made[0])
            for each in pending:
                each.wait()
            pending = []
            sides = (coming[1][:split], coming[1][split:])
            for side, shape, gradient in zip(sides, ctx.shapes, made[1:]):
                to = side.view(shape).narrow(axis, 0, gradient.shape[axis])
                if step == 0:
                    to.copy_(gradient)
                else:
                    to.add_(gradient)
        done = buffers[size % 2][1]
        keys, values = (
            each.view(shape) for each, shape in zip((done[:split], done[split:]), ctx.shapes)
        )
        return queries, keys.clone(), values.clone(), None, None, None, None


# --- the module -----------------------------------------------------------------------------------


SHARED: dict[str, Any] = {"p2p": _Ring, "a2a": Exchanged, "all_gather": Gathered}
"""Attention to sequences that ranks share, by ``cp_comm_type``."""


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
            raise launch.refuse(f"DotProductAttention(softmax_type={softmax_type!r})")
        self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)

    def set_context_parallel_group(
        self, cp_group: Any, cp_global_ranks: Any, cp_stream: Any, cp_comm_type: str = "p2p"
    ) -> None:
        """Take the context-parallel group, its ranks, and a stream for every other step."""
        groups = cp_group if isinstance(cp_group, list) else [cp_group]
        shared = [each for each in groups if each is not None and dist.get_world_size(each) > 1]
        if len(shared) > 1 or (shared and cp_comm_type not in SHARED):
            raise launch.refuse(f"DotProductAttention(cp_comm_type={cp_comm_type!r})")
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
            raise launch.refuse("DotProductAttention(inference_params=…)")
        capability = tuple(torch.cuda.get_device_capability())
        if capability < (8, 0) or query_layer.dtype is torch.float32:
            raise launch.refuse("UnfusedDotProductAttention")
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
                raise launch.refuse(
                    "DotProductAttention(cp_group=…) in fp8, of sequences of several lengths, "
                    "or with a window"
                )
            ranks = self.cp_global_ranks or dist.get_process_group_ranks(self.cp_group)
            if self.cp_stream is None:
                self.cp_stream = torch.cuda.Stream()
            out = SHARED[kind].apply(
                *(query_layer, key_layer, value_layer, how),
                *(self.cp_group, ranks, self.cp_stream),
            )
            return out.reshape(*out.shape[:-2], -1)
        out = _Attention.apply(query_layer, key_layer, value_layer, begins, how, recipe)
        out = out.reshape(*out.shape[:-2], -1)
        if self.return_max_logit:
            return out, out.new_empty(query_layer.shape[-2], dtype=torch.float32)
        return out
