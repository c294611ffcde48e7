"""Calls of operators → bytes that PyTorch's kernels allocate for themselves while they run.

What operators called inside an operator allocate is theirs, and not counted here. Nor are the
workspaces of cuBLAS, which stay and count as CUDA's context, and of cuDNN, which are searched for.
"""

from __future__ import annotations

import math

from .call import OperatorCall, TensorSpec
from .losses import is_reduced
from .tensors import broadcast, element_bytes, tensor

__all__ = ["temporary_bytes"]

_TOKEN_MULTIPLE = 128
"""Multiple to which FlashAttention's backward pass rounds the tokens of a sequence up."""


def temporary_bytes(call: OperatorCall) -> int:
    """Call → bytes of the device that come and go inside of it; 0 for most operators.

    Parameters
    ----------
    call : OperatorCall
    """
    if call.name in (
        "aten::_scaled_dot_product_flash_attention_backward",
        "aten::_flash_attention_backward",
        "flash_attn::_flash_attn_backward",
    ):
        return _flash_backward(call)
    if call.name in ("aten::sort", "aten::argsort", "aten::embedding_dense_backward"):
        return _sorting(call)
    if call.name in ("aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss"):
        return _losses(call)
    return 0


def _flash_backward(call: OperatorCall) -> int:
    """Gradients of queries and sums of rows in fp32; of keys and values for every head of queries.

    mha_bwd of flash_attn/flash_api.cpp (dq_accum, softmax_d, dk_expanded, dv_expanded).
    """
    query, key = tensor(call, 1), tensor(call, 2)
    if query is None or key is None or len(query.shape) != 4 or len(key.shape) != 4:
        return 0
    heads_first = call.name.startswith("aten::_scaled_dot_product")
    batch, size = query.shape[0], query.shape[3]
    heads, tokens = query.shape[1:3] if heads_first else query.shape[2:0:-1]
    kv_heads, keys = key.shape[1:3] if heads_first else key.shape[2:0:-1]
    rows = -(-tokens // _TOKEN_MULTIPLE) * _TOKEN_MULTIPLE
    wide = -(-size // 32) * 32
    found = 4 * batch * heads * rows * (wide + 1)
    if kv_heads != heads:
        found += 2 * element_bytes(query.dtype) * batch * keys * heads * size
    return found


def _sorting(call: OperatorCall) -> int:
    """CUB's radix sort: keys and positions once more, of embeddings twice (Embedding.cu)."""
    if call.name == "aten::embedding_dense_backward":
        indices = tensor(call, 1)
        return 0 if indices is None else 4 * 8 * indices.elements
    source: TensorSpec | None = tensor(call, 0)
    return 0 if source is None else (element_bytes(source.dtype) + 8) * source.elements


def _losses(call: OperatorCall) -> int:
    """Call of a loss → bytes of all elements' losses, which a second kernel adds up (Loss.cpp)."""
    both = [each for each in (tensor(call, 0), tensor(call, 1)) if each is not None]
    if len(both) < 2 or not is_reduced(call, 2):
        return 0
    return element_bytes(both[0].dtype) * math.prod(broadcast(each.shape for each in both))
