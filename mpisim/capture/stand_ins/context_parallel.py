"""Attention of Transformer Engine over a sequence that ranks share: keys and values go round.

After `AttnFuncWithCPAndKVP2P` of version 2.9 (``transformer_engine/pytorch/attention/
dot_product_attention/context_parallel.py``), of sequences of one length: steps alternate between
the current stream and another, and what the next step needs is sent before this one's attention.
With a causal mask a rank has two chunks, the i-th and the i-th from the end; of another rank's it
needs half of the keys, or they half of its queries. Backward they go round again, and their
gradients one step behind.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from .products import Engine

__all__ = ["ring"]


def ring(engine: Engine, statistics: Callable[[Any, str], Any], namespace: str) -> Any:
    """Return the autograd function: queries, keys, values, how, group, its ranks, other stream.

    Parameters
    ----------
    engine : Engine
    statistics : callable
        Queries and layout → a tensor for what the backward pass needs of a softmax.
    namespace : str
        Of the kernels.
    """
    launch = engine.launch

    def exchange(group: Any, ranks: Any, sent: Any, received: Any) -> list[Any]:
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

    def parts(own: bool, keys_halved: bool, causal: bool, axis: int, q: Any, k: Any, v: Any) -> Any:
        """Return what of queries, keys and values a step needs, and whether it is masked."""
        if own or not causal:
            return q, k, v, causal
        half = q.shape[axis] // 2
        if keys_halved:
            return q, k.narrow(axis, 0, half), v.narrow(axis, 0, half), False
        return q.narrow(axis, half, half), k, v, False

    class Ring(torch.autograd.Function):
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
                        pending = exchange(group, ranks, at_hand, coming)
                    keys, values = at_hand[:split].view(shapes[0]), at_hand[split:].view(shapes[1])
                    *given, masked = parts(step == 0, step <= mine, causal, axis, q, keys, values)
                    piece = launch.empty((*given[0].shape[:-1], v.shape[-1]), q.dtype, q.device)
                    own = statistics(given[0], layout)
                    inputs = [*given, None, layout, int(masked), before, kernel]
                    launch(f"{namespace}::fused_attn_fwd", inputs, [piece, own])
                    found.append((piece, own))
                    if step < size - 1:
                        at_hand = coming
                if step == 1:
                    sums = found[0][1].clone()
                if step:
                    name = f"{namespace}::softmax_lse_correction"
                    launch(name, [sums, found[-1][1]], [])
            streams[0].wait_stream(stream)
            out = launch.empty((*q.shape[:-1], v.shape[-1]), q.dtype, q.device)
            for piece, own in found:
                inputs = [piece, sums, own]
                launch(f"{namespace}::flash_attn_fwd_out_correction", inputs, [out])
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
                pending = exchange(group, ranks, at_hand[part], coming[part])
                keys, values = (
                    each.view(shape)
                    for each, shape in zip((at_hand[0][:split], at_hand[0][split:]), ctx.shapes)
                )
                own, halved = step == size - 1, step >= size - mine - 1
                *given, masked = parts(own, halved, causal, axis, q, keys, values)
                *outs, _, _, _ = parts(own, halved, causal, axis, grad.contiguous(), keys, values)
                made = [launch.empty(each.shape, q.dtype, q.device) for each in given]
                inputs = [*outs, *given, None, layout, int(masked), before, kernel, out, sums]
                launch(f"{namespace}::fused_attn_bwd", inputs, made)
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

    return Ring
