"""Sums of a matrix's columns, as for the gradient of a bias: sizes, GPU → seconds of waiting.

PyTorch's reduction gives each thread up to four columns and some of the rows (setReduceConfig and
reduce_kernel of github:pytorch/pytorch, aten/src/ATen/native/cuda/Reduce.cuh). A thread loads four
rows at once and cannot go on before these have come, since the compiler does not move loads over
the additions. Few columns make few blocks, so that their threads wait while the memory is idle:

    waiting = rounds × step + join + (2 + last) × step + join

``rounds`` loads one after the other, and a block adds up its threads' sums in shared memory. Where
a thread would have 256 rows or more, as many blocks as the GPU holds share the rows, down to 16 a
thread. The second half is theirs: a block writes its sums and counts itself in, which are two
waits, and the last one to come loads all of these sums one by one.
"""

from __future__ import annotations

from typing import Any

from ..gpu_parameters import GpuParameters
from ..numbers import number
from ..operations import Elementwise
from .formula import Columns, ceil, maximum, minimum, where

__all__ = ["blocks_of_a_column", "column_sum_columns", "column_sums_beyond"]

STEP = number("reduction_step")
JOIN = number("reduction_join")

BLOCK_THREADS = 512
"""Threads of a block (ReduceConfig::MAX_NUM_THREADS) times the columns of one."""

WARP = 32
SM_THREADS = 2048
"""Threads that a multiprocessor of V100, A100, H100 and B200 holds (CUDA programming guide)."""

AT_ONCE = 4
"""Rows that a thread loads at once (``vt0``)."""

LEAST_ROWS, MOST_ROWS = 16, 256
"""Rows of a thread where several blocks share a column, and from where on they do
(``min_values_per_thread`` and ``max_values_per_thread``)."""


def column_sum_columns(kernel: Elementwise | None) -> dict[str, int]:
    """Sizes of a matrix → how rows and columns are given to threads; zeros for other kernels.

    Returns
    -------
    dict
        ``thread_rows``, rows of a thread of one block; ``sum_blocks``, blocks beside each other;
        ``sum_lines``, threads of a block that share a column; ``sum_threads`` of a block.
    """
    rows, sums = (kernel and kernel.summed) or 0, (kernel and kernel.sums) or 0
    if not rows or not sums:
        return {"thread_rows": 0, "sum_blocks": 1, "sum_lines": 1, "sum_threads": WARP}
    vector = next(size for size in (4, 2, 1) if sums % size == 0)
    across, most = sums // vector, BLOCK_THREADS // vector
    width = min(_power_of_two(min(across, most)), WARP)
    height = min(_power_of_two(min(rows, most)), most // width)
    width = min(_power_of_two(min(across, most)), most // height)
    shared = rows >= min(height * LEAST_ROWS, MOST_ROWS)
    lines = height if shared else 1
    return {
        "thread_rows": -(-rows // lines),
        "sum_blocks": -(-across // (width * height // lines)),
        "sum_lines": lines,
        "sum_threads": width * height,
    }


def column_sums_beyond(columns: Columns, gpu: GpuParameters, hidden: Any) -> Any:
    """Kernel columns, GPU, memory time → seconds that threads wait longer than memory takes.

    Parameters
    ----------
    columns : Columns
        With those of `column_sum_columns`.
    gpu : GpuParameters
    hidden : float or float64 array, shape (kernels,)
        Seconds that memory takes.
    """
    rows, blocks, lines = (columns[key] for key in ("thread_rows", "sum_blocks", "sum_lines"))
    parts = blocks_of_a_column(columns, gpu)
    turns = maximum(blocks * parts / _room(columns, gpu), 1.0)
    loading = ceil(rows / (parts * AT_ONCE)) * turns * STEP
    joined = where(lines > 1, JOIN, 0.0)
    together = where(parts > 1, (2 + ceil(parts / lines)) * STEP + JOIN, 0.0)
    beyond = where(loading > hidden, loading - hidden, 0.0) + joined + together
    return where(rows > 0, beyond, 0.0)


def blocks_of_a_column(columns: Columns, gpu: GpuParameters) -> Any:
    """Kernel columns, GPU → thread blocks that share the rows (``ctas_per_output``)."""
    rows, blocks = columns["thread_rows"], columns["sum_blocks"]
    room = _room(columns, gpu)
    shared = (columns["sum_lines"] > 1) & (rows >= MOST_ROWS) & (blocks <= room)
    wanted = minimum(ceil(room / blocks), ceil(rows / LEAST_ROWS))
    return where(shared, maximum(wanted, ceil(rows / MOST_ROWS)), 1.0)


def _room(columns: Columns, gpu: GpuParameters) -> Any:
    """Return the blocks that the GPU holds at once."""
    return gpu.sms * (SM_THREADS // columns["sum_threads"])


def _power_of_two(size: int) -> int:
    """Return the largest power of two that is not above a size of 1 or more."""
    return 1 << (size.bit_length() - 1)
