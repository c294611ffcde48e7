"""``scaled_dot_product_attention`` as PyTorch chooses its kernel on a GPU.

The choice asks the driver, so it is made here: FlashAttention for 16-bit tensors without a mask,
the memory-efficient kernel for others that fit, else products and a softmax
(``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``).
"""

from __future__ import annotations

import math
from typing import Any

import torch

__all__ = ["attention"]

WIDEST_HEAD = 256
"""Of FlashAttention."""


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
    """Attention of queries (…, heads, tokens, head size), by the kernel that a GPU would run."""
    fits = query.dim() == 4 and query.shape[-1] == value.shape[-1] and query.device.type == "cuda"
    half = query.dtype in (torch.float16, torch.bfloat16)
    backends = torch.backends.cuda
    size = query.shape[-1]
    aten = torch.ops.aten
    flash = fits and half and attn_mask is None and size <= WIDEST_HEAD
    if flash and backends.flash_sdp_enabled():
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
    if fits and backends.mem_efficient_sdp_enabled():
        bias = attn_mask
        if bias is not None:
            if bias.dtype is torch.bool:
                bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(
                    bias.logical_not(), -math.inf
                )
            bias = bias.expand(*query.shape[:3], key.shape[2])
        needs = any(each.requires_grad for each in (query, key, value))
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, needs, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale
    )[0]
