"""``flex_attention`` → its kernel, of the blocks that its mask leaves; unfused where not compiled.

Compiled, it is a kernel of Triton that goes through the blocks of scores in which its mask holds
anywhere (torch/_inductor/kernel/flex). It is taken for FlashAttention of as many keys: those are
counted where the mask follows from positions and from tensors whose values are known, else the mask
is taken to be causal. Called without ``torch.compile`` it writes out all scores, as PyTorch
does (``math_attention`` of torch/_higher_order_ops/flex_attention.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import CellType, FunctionType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..operators.attentions import CAUSAL
from .attention import FLASH_TYPES
from .values import Values

__all__ = ["flexible"]

MAX_SAMPLED = 32
"""Rows of blocks, and batches, and heads of a mask that are looked at, evenly spaced."""

_VISITED = "_mpisim_visited"
"""Attribute of a mask: keys in the blocks that a row of queries visits, on average."""


def flexible(noted: Callable[[str], None], values: Values) -> dict[str, Any]:
    """Return the stand-ins of ``torch.nn.attention.flex_attention``, by name.

    Parameters
    ----------
    noted : callable
        Told what is done in their place.
    values : Values
        Of tensors that masks look at.
    """
    from torch.nn.attention import flex_attention as module

    _registered()
    fused = torch.ops.flex_attention.forward
    _checkpoints_know(fused.default)

    def flex_attention(
        query: Any,
        key: Any,
        value: Any,
        score_mod: Any = None,
        block_mask: Any = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        return_lse: bool = False,
        kernel_options: Any = None,
        *,
        return_aux: Any = None,
    ) -> Any:
        if torch.compiler.is_compiling() or torch._dynamo.config.disable:
            visited = getattr(block_mask, _VISITED, None)
            if visited is None:
                causal = block_mask is not None
                visited = CAUSAL if causal else key.shape[-2]
                noted("flex_attention: taken for FlashAttention" + ", causal for its mask" * causal)
            else:
                noted("flex_attention: taken for FlashAttention of the blocks that its mask leaves")
            half = query.dtype if query.dtype in FLASH_TYPES else torch.bfloat16
            out, lse = fused(*(each.to(half) for each in (query, key, value)), visited)
            out = out.to(query.dtype)
        else:
            out, lse = _unfused(query, key, value, score_mod, block_mask, scale)
            noted("flex_attention: not compiled, all scores are written out, as PyTorch does")
        if return_aux is not None:
            asked = return_aux.lse
            return out, module.AuxOutput(lse=lse if asked else None, max_scores=None)
        return (out, lse) if return_lse else out

    def create_block_mask(
        mask_mod: Any,
        B: int | None,
        H: int | None,
        Q_LEN: int,
        KV_LEN: int,
        device: Any = None,
        BLOCK_SIZE: int | tuple[int, int] = 128,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        noted("create_block_mask: left out, its own kernels take no time")
        size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
        rows, columns = -(-Q_LEN // size[0]), -(-KV_LEN // size[1])
        counts = torch.full((B or 1, H or 1, rows), columns, dtype=torch.int32, device=device)
        indices = torch.arange(columns, dtype=torch.int32, device=device)
        made: Any = module.BlockMask.from_kv_blocks(
            counts,
            indices.expand(B or 1, H or 1, rows, columns).contiguous(),
            BLOCK_SIZE=size,
            mask_mod=mask_mod,
            seq_lengths=(Q_LEN, KV_LEN),
        )
        if not torch.compiler.is_compiling():
            with _disable_current_modes():
                visited = _visited(mask_mod, (B or 1, H or 1, Q_LEN, KV_LEN), size, values)
            if visited is not None:
                setattr(made, _VISITED, visited)
        return made

    return {"flex_attention": flex_attention, "create_block_mask": create_block_mask}


_NAMESPACE = "flex_attention"
_SCHEMAS = (
    "forward(Tensor query, Tensor key, Tensor value, int visited) -> (Tensor, Tensor)",
    "backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
    "int visited) -> (Tensor, Tensor, Tensor)",
)
"""The compiled kernel's two passes; ``visited``: keys that a row of queries goes through."""


def _forward_shapes(query: Any, key: Any, value: Any, visited: int) -> Any:
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    return out, query.new_empty(query.shape[:-1], dtype=torch.float32)


def _backward_shapes(grad: Any, query: Any, key: Any, value: Any, *rest: Any) -> Any:
    return tuple(torch.empty_like(each) for each in (query, key, value))


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.visited = inputs[3]


def _gradients(ctx: Any, grad: Any, *unused: Any) -> Any:
    backward = torch.ops.flex_attention.backward
    return (*backward(grad, *ctx.saved_tensors, ctx.visited), None)


@cache
def _registered() -> torch.library.Library:
    """Register both passes with the results that they have for fake tensors, and gradients."""
    library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    for name, shapes in (("forward", _forward_shapes), ("backward", _backward_shapes)):
        torch.library.register_fake(f"{_NAMESPACE}::{name}", shapes, lib=library)
    torch.library.register_autograd(
        f"{_NAMESPACE}::forward", _gradients, setup_context=_save, lib=library
    )
    return library


def _checkpoints_know(fused: Any) -> None:
    """Have selective checkpoints treat the kernel as what PyTorch shows them of ``flex_attention``.

    Policies name the higher-order operator (torchtitan, distributed/activation_checkpoint.py).
    """
    from torch.utils import checkpoint

    anything: Any = checkpoint
    original = checkpoint.create_selective_checkpoint_contexts
    known = torch.ops.higher_order.flex_attention

    def create(policy: Any, *args: Any, **kwargs: Any) -> Any:
        if not callable(policy):
            saved = [*policy, fused] if known in policy else policy
            return original(saved, *args, **kwargs)

        def asked(context: Any, operator: Any, *inputs: Any, **more: Any) -> Any:
            return policy(context, known if operator is fused else operator, *inputs, **more)

        return original(asked, *args, **kwargs)

    anything.create_selective_checkpoint_contexts = create


def _unfused(query: Any, key: Any, value: Any, score: Any, mask: Any, scale: Any) -> Any:
    """Output and sums of exponentials by operators that write all scores."""
    from torch._higher_order_ops.flex_attention import math_attention
    from torch.nn.attention import flex_attention as module

    anything: Any = module
    score = anything._identity if score is None else score
    mask = anything._create_empty_block_mask(query, key) if mask is None else mask
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return math_attention(query, key, value, score, mask.as_tuple(), scale, {})[:2]


def _visited(
    mask: Any, sizes: tuple[int, int, int, int], block: tuple[int, int], values: Values
) -> int | None:
    """Mask → keys in the blocks that a row of queries visits, on average; None: not known.

    Parameters
    ----------
    mask : callable
        Of batch, head, query and key.
    sizes : tuple of int
        Of these four.
    block : tuple of int
        Queries and keys of a block.
    values : Values
    """
    batches, heads, queries, keys = sizes
    rows, columns = -(-queries // block[0]), -(-keys // block[1])
    found = looked = 0
    try:
        known = _with_values(mask, values, {})
        at = torch.arange(keys)[None, :]
        for batch in _spaced(batches):
            for head in _spaced(heads):
                for row in _spaced(rows):
                    first = row * block[0]
                    q = torch.arange(first, min(first + block[0], queries))[:, None]
                    holds = known(torch.tensor(batch), torch.tensor(head), q, at)
                    any_of = torch.zeros(columns * block[1], dtype=torch.bool)
                    any_of[:keys] = holds.expand(len(q), keys).any(0)
                    found += int(any_of.view(columns, block[1]).any(1).sum())
                    looked += 1
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return None  # it looks at values that are not known, or at more than positions
    return max(round(found / looked * block[1] * keys / (columns * block[1])), 1)


def _spaced(size: int) -> range:
    return range(0, size, -(-size // MAX_SAMPLED))


def _with_values(value: Any, values: Values, done: dict[int, Any]) -> Any:
    """Function → the same of real tensors in the place of those without values.

    Raises
    ------
    LookupError
        If values of one are not known.
    """
    if isinstance(value, torch.Tensor):
        found = values.sure(value)
        if found is None:
            raise LookupError
        return found.detach()
    if type(value) in (tuple, list):
        return type(value)(_with_values(each, values, done) for each in value)
    if not isinstance(value, FunctionType):
        return value
    if id(value) not in done:
        done[id(value)] = value  # where it calls itself
        own, code = value.__globals__, value.__code__
        seen = {
            name: _with_values(own[name], values, done)
            for name in code.co_names
            if isinstance(own.get(name), torch.Tensor)
            or (isinstance(own.get(name), FunctionType) and own[name] is not value)
        }
        cells = tuple(
            CellType(_with_values(each.cell_contents, values, done))
            for each in value.__closure__ or ()
        )
        defaults = _with_values(value.__defaults__, values, done)
        made = FunctionType(code, {**own, **seen}, value.__name__, defaults, cells)
        made.__kwdefaults__ = value.__kwdefaults__
        done[id(value)] = made
    return done[id(value)]
