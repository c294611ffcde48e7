"""``scaled_dot_product_attention`` as PyTorch chooses its kernel on a GPU.

The choice asks the driver, so it is made here: FlashAttention for 16-bit tensors without a mask,
the memory-efficient kernel for others that fit, else products and a softmax
(``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``). ``flex_attention``, which is
compiled for its mask, is taken for FlashAttention of the same shape, causal if there is a mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["attention", "flexible"]

WIDEST_HEAD = 256
"""Of FlashAttention."""

HALF = (torch.float16, torch.bfloat16)
"""Types of FlashAttention."""


def _enabled(kernel: str) -> bool:
    """Whether the script allows a kernel."""
    return bool(getattr(torch.backends.cuda, f"{kernel}_sdp_enabled")())


_asking: Any = _enabled
_asking._dynamo_marked_constant = True  # torch.compiler.assume_constant_result, without its import


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
    half = query.dtype in HALF
    size = query.shape[-1]
    aten = torch.ops.aten
    flash = fits and half and attn_mask is None and size <= WIDEST_HEAD
    if flash and _enabled("flash"):
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
    if fits and _enabled("mem_efficient"):
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


attention.__name__ = "scaled_dot_product_attention"  # by which context parallelism exchanges it


def flexible(noted: Callable[[str], None]) -> dict[str, Any]:
    """Return the stand-ins of ``torch.nn.attention.flex_attention``, by name.

    Parameters
    ----------
    noted : callable
        Told what is done in their place.
    """
    from torch.nn.attention import flex_attention as module

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
        causal = block_mask is not None
        noted("flex_attention: taken for FlashAttention" + ", causal for its mask" * causal)
        half = query.dtype if query.dtype in HALF else torch.bfloat16
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention(
            *(each.to(half) for each in (query, key, value)), 0.0, causal, False, scale=scale
        )[:2]
        out = out.to(query.dtype)
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
        noted("create_block_mask: left out, every block is in it")
        size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
        rows, columns = -(-Q_LEN // size[0]), -(-KV_LEN // size[1])
        counts = torch.full((B or 1, H or 1, rows), columns, dtype=torch.int32, device=device)
        indices = torch.arange(columns, dtype=torch.int32, device=device)
        return module.BlockMask.from_kv_blocks(
            counts,
            indices.expand(B or 1, H or 1, rows, columns).contiguous(),
            BLOCK_SIZE=size,
            mask_mod=mask_mod,
            seq_lengths=(Q_LEN, KV_LEN),
        )

    return {"flex_attention": flex_attention, "create_block_mask": create_block_mask}
