"""Fused attention of PyTorch and of FlashAttention → attention of the kernel models.

Layouts: ``scaled_dot_product`` operators take (batch, heads, tokens, size), FlashAttention and the
inner operators (batch, tokens, heads, size), or (tokens, heads, size) with the beginnings of the
sequences. Where sequences differ in length, all are taken to have the mean length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ..kernels.operations import Attention, AttentionVariant, Kernel
from .call import OperatorCall, TensorSpec
from .tensors import all_tensors, format_of, number, tensor

__all__ = [
    "CAUSAL",
    "attention",
    "autograd_attention",
    "autograd_attention_backward",
    "visiting_attention",
]

Kernels = tuple[Kernel, ...]
Layout = Literal["heads first", "tokens first"]

CAUSAL = -1
"""What stands there in the place of a number where a mask is taken to be causal."""


def attention(
    layout: Layout,
    causal: int,
    *,
    first: int = 0,
    begins: int | None = None,
    backward: bool = False,
    variant: AttentionVariant | None = None,
    window: int | None = None,
) -> Callable[[OperatorCall], Kernels | None]:
    """Return the rule of an operator of attention.

    Parameters
    ----------
    layout : {"heads first", "tokens first"}
    causal : int
        Which input says whether the mask is causal.
    first : int
        Which input is the queries; keys and values follow.
    begins : int, optional
        Which input holds the beginnings of sequences, if they follow one another.
    backward : bool
    variant : str, optional
    window : int, optional
        Which input is how many tokens before its own a token sees, -1: all; how many behind it
        follows, of which none make the mask causal.
    """

    def rule(call: OperatorCall) -> Kernels | None:
        q, k, v = (tensor(call, first + i) for i in range(3))
        if q is None or k is None or v is None:
            return None
        starts = None if begins is None else tensor(call, begins)
        masked, before = bool(number(call, causal, 1)), -1
        if window is not None:
            before = number(call, window, -1)
            masked = masked or number(call, window + 1, -1) == 0
        return _attention(q, k, v, layout, starts, masked, backward, variant, before + 1)

    return rule


def visiting_attention(*, backward: bool = False) -> Callable[[OperatorCall], Kernels | None]:
    """Return the rule of attention whose last input says how many keys a row of queries visits.

    Parameters
    ----------
    backward : bool
    """

    def rule(call: OperatorCall) -> Kernels | None:
        q, k, v = (tensor(call, i + backward) for i in range(3))
        if q is None or k is None or v is None:
            return None
        keys = number(call, len(call.inputs) - 1, CAUSAL)
        if keys == CAUSAL:
            return _attention(q, k, v, "heads first", None, True, backward, "flash_2")
        k, v = (TensorSpec(each.dtype, (*each.shape[:-2], keys, each.shape[-1])) for each in (k, v))
        return _attention(q, k, v, "heads first", None, False, backward, "flash_2")

    return rule


def _attention(
    q: TensorSpec, k: TensorSpec, v: TensorSpec, layout: Layout, starts: TensorSpec | None,
    causal: bool, backward: bool, variant: AttentionVariant | None, window: int = 0,
) -> Kernels | None:  # fmt: skip
    if not (q.elements and k.elements and v.elements):
        return ()
    if len(q.shape) == 3:  # sequences that follow one another
        batch = starts.elements - 1 if starts is not None and starts.elements > 1 else 1
        queries, keys = (max(1, each.shape[0] // batch) for each in (q, k))
        heads, kv_heads = q.shape[1], k.shape[1]
    elif len(q.shape) == 4:
        at, of_heads = (2, 1) if layout == "heads first" else (1, 2)
        batch, queries, keys = q.shape[0], q.shape[at], k.shape[at]
        heads, kv_heads = q.shape[of_heads], k.shape[of_heads]
        if starts is not None and batch == 1 and starts.elements > 2:
            batch = starts.elements - 1
            queries, keys = (max(1, each // batch) for each in (queries, keys))
    else:
        return None
    return (
        Attention(
            batch=batch,
            heads=heads,
            kv_heads=kv_heads,
            queries=queries,
            keys=keys,
            head_size=q.shape[-1],
            value_size=v.shape[-1],
            causal=causal,
            backward=backward,
            dtype=format_of(q),
            window=window if 0 < window < keys else None,
            variant=variant,
        ),
    )


def autograd_attention(call: OperatorCall) -> Kernels | None:
    """Autograd function of FlashAttention (q, k, v, …) → a forward kernel.

    Its tensors alone are recorded: (tokens, heads, size), or with a batch before. It is taken to be
    causal, as in language models.
    """
    return _of_function(tuple(all_tensors(call.inputs)), backward=False)


def autograd_attention_backward(call: OperatorCall) -> Kernels | None:
    """Backward of that → a backward kernel; what the forward was given is the last argument."""
    forward = call.inputs[-1] if call.inputs and isinstance(call.inputs[-1], tuple) else ()
    return _of_function(tuple(all_tensors(forward)), backward=True)


def _of_function(given: tuple[TensorSpec, ...], backward: bool) -> Kernels | None:
    if not given:
        return None
    starts = next((t for t in given if "int" in t.dtype and len(t.shape) == 1), None)
    q = given[0]
    if len(q.shape) == 5 and q.shape[2] == 3:  # q, k and v packed into one tensor
        part = TensorSpec(q.dtype, (*q.shape[:2], *q.shape[3:]))
        k = v = q = part
    elif len(given) > 2:
        k, v = given[1:3]
    else:
        return None
    if len(k.shape) != len(q.shape):
        return None
    return _attention(q, k, v, "tokens first", starts, True, backward, "flash_2")
