"""``scaled_dot_product_attention`` as PyTorch chooses its kernel on a GPU.

The choice asks the driver, so it is made here: cuDNN's kernel for 16-bit tensors on Hopper and
Blackwell since PyTorch 2.11, FlashAttention for those without a mask, the memory-efficient kernel
for others that fit, else products and a softmax; or in the order that the script sets
(``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``).
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch

__all__ = ["FLASH_TYPES", "PACKED", "attention", "of_packed"]

MAX_FLASH_HEAD = 256
"""Size of a head up to which FlashAttention has kernels (flash_api.cpp, ``mha_fwd``)."""

FLASH_TYPES = (torch.float16, torch.bfloat16)
"""Types of elements that FlashAttention has kernels for (flash_api.cpp, ``mha_fwd``)."""


PREFERS_CUDNN = ((9, 0), (10, 0), (10, 3))
"""Compute capabilities on which PyTorch tries cuDNN first (check_prefer_cudnn_attention)."""

MIN_TORCH_PREFERRING_CUDNN = (2, 11)
"""First version of PyTorch whose wheels have a cuDNN, above 9.15, that it prefers
(github:huggingface/transformers pull request 48163)."""

MAX_CUDNN_HEAD = {(9, 0): 256}
"""Largest head size that cuDNN's attention takes, by compute capability; 128 on others
(check_cudnn_tensor_shapes)."""

_NAMES = {0: "math", 1: "flash", 2: "mem_efficient", 3: "cudnn"}
"""Of `torch.nn.attention.SDPBackend`."""

_UNLESS_ASKED = [1, 2, 0, 3]
"""Order of PyTorch where the script sets none."""


def _allowed() -> tuple[str, ...]:
    """Kernels that the script allows, in the order in which they are tried."""
    anything: Any = torch
    order = [each for each in anything._C._get_sdp_priority_order() if each in _NAMES]
    version = tuple(int(each) for each in torch.__version__.split(".")[:2])
    prefers = (
        torch.cuda.get_device_capability() in PREFERS_CUDNN
        and version >= MIN_TORCH_PREFERRING_CUDNN
    )
    if order == _UNLESS_ASKED and prefers and "TORCH_CUDNN_SDPA_DEPRIORITIZED" not in os.environ:
        order = [3, 1, 2, 0]
    names = (_NAMES[each] for each in order)
    return tuple(name for name in names if getattr(torch.backends.cuda, f"{name}_sdp_enabled")())


def _widest_of_cudnn() -> int:
    """GPU and the script's settings → largest head size that cuDNN takes; 0: it is not used."""
    if torch.are_deterministic_algorithms_enabled():
        return 0
    return MAX_CUDNN_HEAD.get(torch.cuda.get_device_capability(), 128)


def _takes_cudnn(query: Any, key: Any, value: Any, mask: Any) -> bool:
    """Query, key and value in 16 bits → whether cuDNN's attention supports them and the mask.

    A mask that has a gradient, as a bias that is learned, it does not take, nor one of three
    dimensions (check_attn_mask_shape of ``sdp_utils_cpp.h``, which PyTorch's wheels hold).
    """
    widest = _widest_of_cudnn()
    sizes = query.shape[-1], value.shape[-1]
    takes = key.shape[-2] > 1 and all(size <= widest and size % 8 == 0 for size in sizes)
    if not takes or mask is None:
        return takes
    scores = (*query.shape[:-1], key.shape[-2])[-mask.dim() :]
    fits = all(size in (1, all_of) for size, all_of in zip(mask.shape, scores, strict=False))
    return fits and mask.dim() in (2, 4) and not mask.requires_grad


_asking: Any = (_allowed, _widest_of_cudnn)
for _each in _asking:  # torch.compiler.assume_constant_result, without its import
    _each._dynamo_marked_constant = True


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Queries, keys, values → attention output, by the operator that PyTorch would choose on a GPU.

    Stands in for ``torch.nn.functional.scaled_dot_product_attention``, whose own choice asks the
    GPU that is there. The first backend that is allowed and takes the operands is recorded: cuDNN,
    flash, memory-efficient, or the composition of elementary operators.

    Parameters
    ----------
    query, key, value : torch.Tensor
        (…, heads, tokens, head size); nested jagged tensors are lowered to variable-length kernels.
    attn_mask : torch.Tensor, optional
        Of a shape that broadcasts to (…, heads, query tokens, key tokens).
    dropout_p : float
        Probability of dropout on the scores.
    is_causal : bool
        Whether a query sees only the keys up to its own place.
    scale : float, optional
        Factor on the scores; 1/√(head size) if None.
    enable_gqa : bool
        Whether there may be fewer key and value heads than query heads.

    Returns
    -------
    torch.Tensor
        (…, heads, tokens, head size of the values).
    """
    if query.is_nested and query.layout is torch.jagged:
        return _of_jagged(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    on_device = query.dim() == 4 and query.device.type == "cuda"
    fits = on_device and query.shape[-1] == value.shape[-1]
    half = query.dtype in FLASH_TYPES
    size = query.shape[-1]
    aten = torch.ops.aten
    fitting = {
        "cudnn": on_device and half and _takes_cudnn(query, key, value, attn_mask),
        "flash": fits and half and attn_mask is None and size <= MAX_FLASH_HEAD,
        "mem_efficient": fits,
        "math": True,
    }
    kernel = next((each for each in _allowed() if fitting[each]), "math")
    if kernel == "cudnn":
        needs = any(each.requires_grad for each in (query, key, value))
        bias = None if attn_mask is None else _bias(attn_mask, query, key)
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, bias, needs, dropout_p, is_causal, False, scale=scale
        )[0]
    if kernel == "flash":
        pad = -size % 8
        if pad:
            scale = 1 / math.sqrt(size) if scale is None else scale
            query, key, value = (
                torch.nn.functional.pad(each, (0, pad)) for each in (query, key, value)
            )
        out = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
        return out[..., :size] if pad else out
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(times, -3)
        value = value.repeat_interleave(times, -3)
    if kernel == "mem_efficient":
        bias = None if attn_mask is None else _bias(attn_mask, query, key)
        needs = any(each.requires_grad for each in (query, key, value))
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, needs, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale
    )[0]


def _bias(mask: Any, query: Any, key: Any) -> Any:
    """Mask → what is added to each score."""
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -math.inf)
    return mask.expand(*query.shape[:3], key.shape[2])


def _of_jagged(query: Any, *args: Any) -> Any:
    """Query, key and value of jagged layout → output of scaled dot-product attention, recorded.

    Shapes are (sequences, heads, tokens, head size), with tokens of several lengths.

    PyTorch's own, which gives the kernel what is packed, with a choice that asks no driver.
    """
    from torch.nested._internal import sdpa

    def chosen(query: Any, *args: Any) -> Any:
        backends = sdpa.SDPBackend
        allowed = _allowed()  # cuDNN's takes no such sequences
        if query.dtype in FLASH_TYPES and query.shape[-1] <= MAX_FLASH_HEAD and "flash" in allowed:
            return backends.FLASH_ATTENTION
        return backends.EFFICIENT_ATTENTION if "mem_efficient" in allowed else backends.MATH

    anything: Any = sdpa
    anything._select_sdp_backend = chosen
    return sdpa.jagged_scaled_dot_product_attention(query, *args)


PACKED = ("torch_attn::_varlen_attn", "torch_attn::_varlen_attn_backward")
"""Operators of ``torch.nn.attention.varlen``, for sequences that follow one another."""


def of_packed(func: Any, args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
    """Call of an operator of `PACKED` → the operator that it runs on a GPU, and its arguments.

    cuDNN's or FlashAttention, by PyTorch's own choice; those before 2.11 have the latter alone.

    Parameters
    ----------
    func : OpOverload
    args, kwargs
        Of the call.

    Returns
    -------
    func : OpOverload
    args : list
        In the order of its schema.
    """
    from torch.nn.attention import varlen

    known: Any = varlen
    given = {each.name: each.default_value for each in func._schema.arguments}
    given |= dict(zip(given, args)) | kwargs
    window = list(given.get("window_size") or (-1, -1))
    tensors = [given[name] for name in ("query", "key", "value")]
    starts = [given["cu_seq_q"], given["cu_seq_k"], given["max_q"], given["max_k"]]
    scale, causal = given.get("scale"), given["is_causal"]
    backward = "grad_out" in given
    asked = () if backward else ("enable_gqa", "seqused_k", "block_table", "num_splits")
    asked = tuple(given[name] for name in asked if name in given)
    chosen = getattr(known, "_can_use_cudnn", None)
    by_cudnn = chosen is not None and chosen(*tensors, given["max_q"], window, *asked)
    aten = torch.ops.aten
    if not backward and by_cudnn:
        last = (True, 0.0, causal, False, scale)
        return aten._cudnn_attention_forward.default, [*tensors, None, *starts, *last]
    if not backward:
        last = (0.0, causal, False, scale, *window)
        return aten._flash_attention_forward.default, [*tensors, *starts, *last]
    tensors = [given["grad_out"], *tensors, given["out"], given["lse"]]
    draws = given["rng_state"]
    if by_cudnn:
        last = (draws, draws, None, *starts, 0.0, causal, scale)
        return aten._cudnn_attention_backward.default, [*tensors, *last]
    last = (*starts, 0.0, causal, draws, None, scale, *window)
    return aten._flash_attention_backward.default, [*tensors, *last]


attention.__name__ = "scaled_dot_product_attention"  # by which context parallelism exchanges it
