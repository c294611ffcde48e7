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

A block's width is that of a warp, 64 threads on AMD's GPUs. That later builds for these GPUs let
fewer blocks share the rows is left out.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..gpu_parameters import GpuParameters
from ..numbers import number
from ..operations import Elementwise
from .formula import Columns, any_of, ceil, filled_like, maximum, minimum, where

__all__ = ["Blocks", "blocks_of_sums", "column_sum_columns", "column_sums_beyond"]

STEP = number("reduction_step")
JOIN = number("reduction_join")

BLOCK_THREADS = 512
"""Threads of a block (ReduceConfig::MAX_NUM_THREADS) times the columns of one."""

AT_ONCE = 4
"""Rows that a thread loads at once (``vt0``)."""

LEAST_ROWS, MOST_ROWS = 16, 256
"""Rows of a thread where several blocks share a column, and from where on they do
(``min_values_per_thread`` and ``max_values_per_thread``)."""


class Blocks(NamedTuple):
    """Thread blocks of a sum of columns; numbers, or arrays of shape (kernels,).

    Attributes
    ----------
    beside : float
        Blocks that have different columns.
    parts : float
        Blocks that share the rows of theirs (``ctas_per_output``).
    width, height : float
        Threads of a block along a row, and down a column.
    lines : float
        Of these, those that share a column: all or 1.
    rows : float
        Of a thread, if a block had its columns alone.
    room : float
        Blocks that the GPU holds at once.
    """

    beside: Any
    parts: Any
    width: Any
    height: Any
    lines: Any
    rows: Any
    room: Any


def column_sum_columns(kernel: Elementwise | None) -> dict[str, int]:
    """Kernel → ``summed`` rows and ``sums`` of a matrix; zeros where it is none."""
    return {
        "summed": (kernel and kernel.summed) or 0,
        "sums": (kernel and kernel.sums) or 0,
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
    is_sum = columns["summed"] * columns["sums"] > 0
    if not any_of(is_sum):
        return filled_like(hidden, 0.0)
    blocks = blocks_of_sums(columns, gpu)
    parts, lines = blocks.parts, blocks.lines
    turns = maximum(blocks.beside * parts / blocks.room, 1.0)
    loading = ceil(blocks.rows / (parts * AT_ONCE)) * turns * STEP
    joined = where(lines > 1, JOIN, 0.0)
    together = where(parts > 1, (2 + ceil(parts / lines)) * STEP + JOIN, 0.0)
    beyond = where(loading > hidden, loading - hidden, 0.0) + joined + together
    return where(is_sum, beyond, 0.0)


def blocks_of_sums(columns: Columns, gpu: GpuParameters) -> Blocks:
    """Rows and sums of matrices, GPU → how both are given to thread blocks.

    Parameters
    ----------
    columns : Columns
        With those of `column_sum_columns`.
    gpu : GpuParameters
    """
    summed, sums = maximum(columns["summed"], 1.0), maximum(columns["sums"], 1.0)
    vector = where(sums % 4 == 0, 4.0, where(sums % 2 == 0, 2.0, 1.0))
    across, most = sums / vector, BLOCK_THREADS / vector
    widest = _power_of_two(minimum(across, most))
    width = minimum(widest, float(gpu.warp_size))
    height = minimum(_power_of_two(minimum(summed, most)), most / width)
    width = minimum(widest, most / height)
    lines = where(summed >= minimum(height * LEAST_ROWS, MOST_ROWS), height, 1.0)
    rows, beside = ceil(summed / lines), ceil(across * lines / (width * height))
    room = gpu.sms * (gpu.sm_threads // (width * height))
    shared = (lines > 1) & (rows >= MOST_ROWS) & (beside <= room)
    wanted = minimum(ceil(room / beside), ceil(rows / LEAST_ROWS))
    parts = where(shared, maximum(wanted, ceil(rows / MOST_ROWS)), 1.0)
    return Blocks(beside, parts, width, height, lines, rows, room)


def _power_of_two(size: Any) -> Any:
    """Size of 1 or more → the largest power of two that is not above it."""
    if isinstance(size, np.ndarray):
        return np.ldexp(1.0, np.frexp(size)[1] - 1)
    return math.ldexp(1.0, math.frexp(size)[1] - 1)
