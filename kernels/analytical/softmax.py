"""Softmax over rows, and the cross-entropy that is one with a logarithm.

How rows are given to threads is that of PyTorch's kernels (github:pytorch/pytorch,
aten/src/ATen/native/cuda/SoftMax.cu and PersistentSoftmax.cuh): a warp keeps a short row in its
registers; a longer row has a block of threads that reads it three times forward (maximum, sum,
output) and twice backward. Megatron-LM's kernel for a causal mask keeps all rows it takes, up to
2,048 elements, in the registers of a warp (scaled_upper_triang_masked_softmax.h). The time:
:mod:`.reduction`.
"""

from __future__ import annotations

from ..operations import BYTES, CrossEntropy, Softmax
from .reduction import CONSTANTS, SECTOR, WARP, seconds, shares

__all__ = ["CONSTANTS", "FAMILY", "columns", "seconds", "shares"]

FAMILY = "softmax"

PERSISTENT = 1024
"""Longest row that a warp keeps in its registers."""

VECTOR = 16
"""Bytes that a thread loads at once."""

MOST_THREADS = 1024


def columns(kernel: Softmax | CrossEntropy) -> dict[str, float | int | str]:
    """Return what a kernel does to its rows; see :mod:`.reduction`."""
    size = BYTES[kernel.dtype]
    read: float
    if isinstance(kernel, CrossEntropy):
        # The softmax is kept in fp32. Backward, the gradient needs no sum over the row.
        read, write = (BYTES["fp32"], size) if kernel.backward else (size, BYTES["fp32"])
        threads = _threads(kernel.columns, size, 1 if kernel.backward else 3)
    else:
        read, write = kernel.read / 2, size
        if kernel.causal:
            threads = _in_registers(kernel.columns, size)
        else:
            threads = _threads(kernel.columns, size, 2 if kernel.backward else 3)
    return {
        "rows": kernel.rows,
        "columns": kernel.columns,
        "read": read,
        "write": write,
        "again": 0,
        "dtype": kernel.dtype,
        **threads,
    }


def _in_registers(width: int, size: int) -> dict[str, int]:
    """Return the threads of a row that a warp keeps, all of its loads under way at once."""
    unaligned = width * size % SECTOR > 0
    return {"block": WARP, "steps": 1, "passes": 1, "unaligned": int(unaligned)}


def _threads(width: int, size: int, passes: int) -> dict[str, int]:
    """Return the threads of a row, their steps and passes."""
    if width <= PERSISTENT:
        return _in_registers(width, size)
    vector = VECTOR // size
    # PyTorch takes the largest block of which about half of the loads are whole vectors: the power
    # of two at or above this.
    half = min(width // vector, MOST_THREADS) // 2
    block = max(WARP, 1 << (half - 1).bit_length())
    whole, rest = divmod(width, vector * block)
    # What is left is loaded by single elements. Rows that begin between two vectors have one more
    # step, up to the next boundary.
    steps = whole + -(-rest // block) + (width % vector > 0)
    return {"block": block, "steps": steps, "passes": passes, "unaligned": 0}
