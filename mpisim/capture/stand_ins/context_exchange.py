"""Attention of Transformer Engine over a sequence that ranks share: all-to-alls, or all-gathers.

After `AttnFuncWithCPAndQKVOA2A` and `AttnFuncWithCPAndKVAllGather` of version 2.9
(``transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py``), of sequences
of one length, in 16 bits. A rank has two chunks of a sequence, the i-th and the i-th from the end.

All-to-all (Ulysses, arXiv:2309.14509)
    Queries, keys and values of all tokens and some heads come for those of some tokens and all
    heads, and results go back. One tensor is exchanged while the next is put in order; chunks that
    have come are put in order on another stream.
All-gather (arXiv:2407.21783, section 3.3.2)
    Every rank gets all keys and values, in either pass, and attends in two steps, one for each of
    its chunks, on two streams. Gradients of keys and values are added up over ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from .fp8 import launch
from .products import gather, scatter, softmax_statistics

__all__ = ["Exchanged", "Gathered"]


class _Orders:
    """Chunks of a sequence in the order of attention, and back in that of ranks.

    Their numbers are made once. Functions that put what is exchanged in order are compiled, as in
    the library (``jit_fuser``), at their first use.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, Any, bool], Any] = {}

    @cached_property
    def before(self) -> Any:
        """Put chunks in order before attention."""
        return torch.compile(_before)

    @cached_property
    def after(self) -> Any:
        """Put chunks in order after attention."""
        return torch.compile(_after)

    def ids(self, size: int, device: Any, *, after: bool) -> Any:
        """Numbers of chunks as they are put in order, before attention or after it."""
        key = size, device, after
        if key not in self._known:
            ids = self._known[key] = torch.empty(2 * size, dtype=torch.int32, device=device)
            for rank in range(size):
                here = (2 * rank, 2 * rank + 1) if after else (rank, rank + size)
                last = 2 * size - rank - 1 if after else 2 * size - 2 * rank - 1
                ids[here[0]], ids[here[1]] = rank if after else 2 * rank, last
        return self._known[key]

    def to_heads(self, tensors: Sequence[Any], axis: int, group: Any, stream: Any) -> list[Any]:
        """Some tokens of all heads → all tokens of some heads."""
        size = dist.get_world_size(group)
        ids = self.ids(size, tensors[0].device, after=False)

        def cut(each: Any) -> Any:
            heads = each.shape[-2] // size
            each = each.reshape(*each.shape[:-2], size, heads, each.shape[-1])
            return each.movedim(-3, 0).contiguous()

        def arrived(got: Any) -> Any:
            got = self.before(got, ids, axis, size)
            return got.view(*got.shape[:axis], -1, *got.shape[axis + 2 :])

        return _exchange([(cut, each, arrived) for each in tensors], group, stream, late=True)

    def to_tokens(self, tensors: Sequence[Any], axis: int, group: Any, stream: Any) -> list[Any]:
        """All tokens of some heads → some tokens of all heads."""
        size = dist.get_world_size(group)
        ids = self.ids(size, tensors[0].device, after=True)

        def cut(each: Any) -> Any:
            each = each.view(*each.shape[:axis], 2 * size, -1, *each.shape[axis + 1 :])
            return self.after(each, ids, axis, size)

        def arrived(got: Any) -> Any:
            got = got.movedim(0, -3).movedim(0, axis).contiguous()
            heads = got.shape[-3] * got.shape[-2]
            shape = (*got.shape[:axis], -1, *got.shape[axis + 2 : -3], heads, got.shape[-1])
            return got.view(shape)

        return _exchange([(cut, each, arrived) for each in tensors], group, stream, late=False)


def _before(got: Any, ids: Any, axis: int, size: int) -> Any:
    got = got.movedim(0, axis).contiguous()
    got = got.view(*got.shape[:axis], 2 * size, -1, *got.shape[axis + 2 :])
    return torch.index_select(got, axis, ids)


def _after(each: Any, ids: Any, axis: int, size: int) -> Any:
    each = torch.index_select(each.movedim(axis, 0).contiguous(), 0, ids)
    return each.view(size, 2, *each.shape[1:])


def _exchange(
    steps: Sequence[tuple[Callable[[Any], Any], Any, Callable[[Any], Any]]],
    group: Any,
    stream: Any,
    *,
    late: bool,
) -> list[Any]:
    """All-to-alls of several tensors, each cut while the one before is on its way.

    Parameters
    ----------
    steps : sequence
        What cuts a tensor, the tensor, and what puts together what has arrived.
    group, stream
        Of ranks; on which what has arrived is put together.
    late : bool
        Whether a tensor is cut after, not before, what has arrived of another is waited for.
    """
    cuts: list[Any] = []
    works: list[Any] = []
    out = []
    for i in range(len(steps) + 2):
        if 0 < i <= len(steps):
            got = torch.empty_like(cuts[i - 1])
            work = dist.all_to_all_single(got, cuts[i - 1], group=group, async_op=True)
            works.append((got, work))
        if not late and i < len(steps):
            cuts.append(steps[i][0](steps[i][1]))
        if i > 1:
            with torch.cuda.stream(stream):
                got, work = works[i - 2]
                work.wait()
                out.append(steps[i - 2][2](got))
        if late and i < len(steps):
            cuts.append(steps[i][0](steps[i][1]))
    torch.cuda.current_stream().wait_stream(stream)
    return out


_exchanged, _gathered = _Orders(), _Orders()


class Exchanged(torch.autograd.Function):
    """Attention between all-to-alls."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, how: tuple[Any, ...], group: Any, ranks: Any,
                stream: Any) -> Any:  # fmt: skip
        axis = how[0].index("s")
        size = dist.get_world_size(group)
        if q.shape[-2] % size or k.shape[-2] % size:
            raise AssertionError("The number of attention heads needs to be divisible by CP size!")
        given = _exchanged.to_heads([q, k, v], axis, group, stream)
        out = launch.empty((*given[0].shape[:-1], v.shape[-1]), q.dtype, q.device)
        sums = softmax_statistics(given[0])
        launch("transformer_engine::fused_attn_fwd", [*given, None, *how], [out, sums])
        ctx.save_for_backward(*given, out, sums)
        ctx.how, ctx.exchange = how, (axis, group, stream)
        return _exchanged.to_tokens([out], *ctx.exchange)[0]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        q, k, v, out, sums = ctx.saved_tensors
        (grad,) = _exchanged.to_heads([grad], *ctx.exchange)
        made = [launch.like(each) for each in (q, k, v)]
        inputs = [grad, q, k, v, None, *ctx.how, out, sums]
        launch("transformer_engine::fused_attn_bwd", inputs, made)
        return (*_exchanged.to_tokens(made, *ctx.exchange), None, None, None, None)


def _whole(tensor: Any, group: Any) -> Any:
    """Tokens of all ranks in order, from those of this one; tokens come first."""
    size = dist.get_world_size(group)
    found = gather(tensor, group)[0].view(2 * size, -1, *tensor.shape[1:])
    ids = _gathered.ids(size, tensor.device, after=False)
    return torch.index_select(found, 0, ids).view(-1, *tensor.shape[1:])


def _ends(causal: bool, group: Any, tokens: int) -> tuple[int, int]:
    """How many keys each of the two chunks needs, which have as many tokens together."""
    size, mine = dist.get_world_size(group), dist.get_rank(group)
    if not causal:
        return size * tokens, size * tokens
    return (mine + 1) * tokens // 2, (2 * size - mine) * tokens // 2


class Gathered(torch.autograd.Function):
    """Two steps of attention to keys and values of all ranks."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, how: tuple[Any, ...], group: Any, ranks: Any,
                stream: Any) -> Any:  # fmt: skip
        axis = how[0].index("s")
        cut = q.reshape(*q.shape[:axis], 2, -1, *q.shape[axis + 1 :])
        k, v = (each.movedim(axis, 0).contiguous() for each in (k, v))
        keys, values = _whole(k, group), _whole(v, group)
        stream.wait_stream(torch.cuda.current_stream())
        how = (how[0], 2 * how[1], *how[2:])  # causal_bottom_right
        streams = (torch.cuda.current_stream(), stream)
        out = torch.empty((*cut.shape[:-1], v.shape[-1]), dtype=q.dtype, device=q.device)
        found = []
        for step, end in enumerate(_ends(bool(how[1]), group, k.shape[0])):
            with torch.cuda.stream(streams[step]):
                given = [cut.select(axis, step).contiguous()]
                given += [x[:end].movedim(0, axis).contiguous() for x in (keys, values)]
                shape = (*given[0].shape[:-1], v.shape[-1])
                piece = launch.empty(shape, q.dtype, q.device)
                sums = softmax_statistics(given[0])
                launch("transformer_engine::fused_attn_fwd", [*given, None, *how], [piece, sums])
                found.append((piece, sums))
        for step in range(2):
            with torch.cuda.stream(streams[step]):
                out.select(axis, step).copy_(found[step][0])
        torch.cuda.current_stream().wait_stream(stream)
        ctx.save_for_backward(cut, k, v, *found[0], *found[1])
        ctx.how, ctx.shared = how, (group, stream)
        return out.view(*q.shape[:-1], v.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        cut, k, v, *found = ctx.saved_tensors
        (group, stream), axis = ctx.shared, ctx.how[0].index("s")
        grad = grad.reshape(*cut.shape[:-1], v.shape[-1])
        queries = torch.empty_like(cut)
        size = dist.get_world_size(group)
        sides = [x.new_zeros((x.shape[0] * size, *x.shape[1:])) for x in (k, v)]
        keys, values = _whole(k, group), _whole(v, group)
        stream.wait_stream(torch.cuda.current_stream())
        streams, made = (torch.cuda.current_stream(), stream), []
        steps = _ends(bool(ctx.how[1]), group, k.shape[0])
        for step, end in enumerate(steps):
            with torch.cuda.stream(streams[step]):
                given = [cut.select(axis, step).contiguous()]
                given += [x[:end].movedim(0, axis).contiguous() for x in (keys, values)]
                out, sums = found[2 * step : 2 * step + 2]
                made.append([launch.like(each) for each in given])
                part = grad.select(axis, step).contiguous()
                inputs = [part, *given, None, *ctx.how, out, sums]
                launch("transformer_engine::fused_attn_bwd", inputs, made[-1])
        updated = torch.cuda.Event()
        for step, end in enumerate(steps):
            with torch.cuda.stream(streams[step]):
                queries.select(axis, step).copy_(made[step][0])
                pieces = [each.movedim(axis, 0).contiguous() for each in made[step][1:]]
                if step:
                    streams[step].wait_event(updated)
                for side, piece in zip(sides, pieces, strict=True):
                    side[:end].add_(piece)
                if not step:
                    updated.record(streams[step])
        torch.cuda.current_stream().wait_stream(stream)
        own = []
        for side in sides:
            chunks = side.view(2 * size, -1, *side.shape[1:])
            ids = _gathered.ids(size, side.device, after=True)
            chunks = torch.index_select(chunks, 0, ids).view(side.shape)
            own.append(scatter(chunks, group)[0].movedim(0, axis).contiguous())
        tokens = queries.shape[axis] * queries.shape[axis + 1]
        shape = (*queries.shape[:axis], tokens, *queries.shape[axis + 2 :])
        return queries.view(shape), *own, None, None, None, None
