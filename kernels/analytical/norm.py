"""Layer, RMS and batch norm.

How rows are given to threads is that of PyTorch's kernels (github:pytorch/pytorch,
aten/src/ATen/native/cuda/layer_norm_kernel.cu), and for RMS norms that of vLLM's
(github:vllm-project/vllm, csrc/layernorm_kernels.cu), whose threads load single elements. The time:
:mod:`.reduction`.
"""

from __future__ import annotations

from ..operations import BYTES, Norm
from .reduction import CONSTANTS, SECTOR, WARP, seconds, shares

__all__ = ["CONSTANTS", "FAMILY", "columns", "seconds", "shares"]

FAMILY = "norm"

LAYER_THREADS = 128
LAYER_VECTOR = 4
"""Threads of a row in PyTorch's layer norm, and elements that each loads at once."""

RMS_THREADS = 1024
"""Most threads of a row in vLLM's RMS norm."""


def columns(kernel: Norm) -> dict[str, float | int | str]:
    """Return what a kernel does to its rows; see :mod:`.reduction`."""
    size = BYTES[kernel.dtype]
    read = 2 * size if kernel.backward else size
    # Backward, a second kernel sums the gradients of the weights over all rows.
    again = read if kernel.backward else 0
    block, steps, passes = _threads(kernel)
    width_bytes = size * kernel.columns
    if kernel.kind == "batch":
        # The statistics go through the tensor in any order, and the output needs them all.
        again = read
    return {
        "rows": kernel.rows,
        "columns": kernel.columns,
        "read": read,
        "write": size,
        "again": again,
        "dtype": kernel.dtype,
        "block": block,
        "steps": steps,
        "passes": passes,
        "unaligned": int(kernel.kind == "rms" and width_bytes % SECTOR > 0),
    }


def _threads(kernel: Norm) -> tuple[int, int, int]:
    """Return the threads of a row, their steps and passes."""
    width = kernel.columns
    if kernel.kind == "batch":
        return WARP, 0, 1
    if kernel.kind == "rms":
        block = min(RMS_THREADS, WARP * -(-width // WARP))
        return block, -(-width // block), 2
    vector = LAYER_VECTOR if width % LAYER_VECTOR == 0 else 1
    return LAYER_THREADS, -(-width // (vector * LAYER_THREADS)), 2
