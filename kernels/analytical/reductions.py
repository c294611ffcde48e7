"""Softmax, cross-entropy, norms (reductions of rows): shapes, GPU → seconds.

    time    = floor + sqrt(memory² + latency²)
    memory  = (first touches + repeated reads × miss) / (bandwidth × share)
    latency = max(1, rows / rows in flight) × (passes × steps × step + row)
    miss    = x⁴ / (1 + x⁴),  x = bytes of the rows in flight / (capacity × L2 size)

A group of threads takes a row, reads it once for every quantity that the result needs (maximum, sum
and output of a softmax; moments and output of a norm), and cannot go on before its loads have come.
Two things follow beside the traffic of first touches. A row that is read again comes from a cache
while the rows in flight on all multiprocessors fit there, and from memory otherwise: long rows take
up to twice the time per element. And short loads leave the memory idle: the time of the loads one
after the other, summed over the rows that share a multiprocessor's threads, binds GPUs with much
bandwidth a multiprocessor. The two overlap in part, hence the root of squares.

The columns, beside ``rows`` and ``columns``: ``read`` and ``write``, bytes of an element;
``passes`` over a row; ``swept``, bytes of an element that a second pass over the whole tensor
reads; ``block``, threads of a row; ``steps``, loads of a thread one after the other in a pass;
``unaligned``, 1 where warps load single elements from rows that begin inside a 32-byte sector, so
that a load of 128 bytes touches five sectors in place of four.

**Softmax and cross-entropy.** How rows are given to threads is that of PyTorch's kernels
(github:pytorch/pytorch, aten/src/ATen/native/cuda/SoftMax.cu and PersistentSoftmax.cuh): a warp
keeps a short row in its registers; a longer row has a block of threads that reads it three times
forward (maximum, sum, output) and twice backward. Threads load 16 bytes at once. The rows in fp32
that were measured have a block of half as many threads as there are vectors, in PyTorch 2.1. Rows
of 16 bits that do not begin at multiples of 16 bytes are taken as later versions take them forward:
by 1,024 threads (SoftMaxForward_getBlockSize), which load single elements up to the next multiple,
and behind the last whole round of vectors, four at a time, as the compiler unrolls such a loop. A
row of 5,185 elements of 16 bits has no whole round. Up to 2,048 of them stay in a warp. (2.7 keeps
rows of fewer than 9,217 elements in registers, which is not modelled.) Megatron-LM's kernel for a
causal mask keeps all rows it takes, up to 2,048 elements, in the registers of a warp
(scaled_upper_triang_masked_softmax.h). Where one kernel computes loss and gradient, it is taken as
llm.c's (github:karpathy/llm.c, llmc/fused_classifier.cuh): 1,024 threads a row, which read it for
maximum and sum together, and again for the gradient.

**Norms.** Rows are given to threads as in PyTorch's kernels (layer_norm_kernel.cu of the same
folder), and for RMS norms as in vLLM's (github:vllm-project/vllm, csrc/layernorm_kernels.cu), whose
threads load single elements.
"""

from __future__ import annotations

import math
from typing import Any

from ..gpu_parameters import GpuParameters
from ..numbers import number
from ..operations import BYTES, CrossEntropy, Norm, Softmax
from .formula import (
    WAITING,
    Columns,
    Constant,
    Constants,
    Formula,
    columns_as_floats,
    maximum,
    minimum,
)

__all__ = ["NORM", "SOFTMAX"]

CONSTANTS = (
    Constant("share", 0.85, 0.3, 1.0, "share of the memory's bandwidth that long kernels reach"),
    Constant("capacity", 0.75, 0.4, 1.5, "bytes of rows in flight that half miss, of the L2 size"),
    Constant("step", 4e-7, 0.0, 3e-6, "one load of a row's threads, the next waiting for it, s"),
    Constant("row", 3e-6, 0.0, 2e-5, "starting, reducing and ending the work on a row, s"),
    Constant("unaligned", 0.1, 0.0, 0.25, "more traffic where rows begin inside 32-byte sectors"),
    Constant("floor", 2e-6, 0.5e-6, 5e-6, "starting and draining a kernel, s"),
)

WARP_THREADS = 32
"""Threads that execute together (CUDA programming guide)."""

SECTOR_BYTES = 32
"""Bytes that memory and caches move at once."""

MAX_SM_THREADS = 2048
"""Threads whose registers a multiprocessor has, of 65,536 at 32 each: fewer than an MI100 would
hold of kernels that need at most 24."""

MAX_BLOCKS_PER_SM = 32
"""Thread blocks that a multiprocessor of V100, A100 and H100 holds (CUDA programming guide); that
some smaller GPUs hold 16 is left out."""


def _terms(columns: Columns, gpu: GpuParameters, constants: Constants) -> tuple[Any, Any]:
    """Return the times that memory and that latency alone would take."""
    rows, width = columns_as_floats(columns, "rows", "columns")
    passes = columns["passes"]
    read = width * columns["read"]
    elements = rows * width
    total = rows * read

    threads = min(gpu.sm_threads, MAX_SM_THREADS)
    in_flight = gpu.sms * minimum(threads / columns["block"], MAX_BLOCKS_PER_SM)
    kept = minimum(rows, in_flight) * read
    repeated = (passes - 1) * total * _miss(kept, gpu, constants)
    swept = elements * columns["swept"] * _miss(total, gpu, constants)
    first = total + elements * columns["write"]
    moved = (first + repeated + swept) * (1 + columns["unaligned"] * constants["unaligned"])
    memory = moved / (gpu.bandwidth * constants["share"])

    rounds = maximum(1.0, rows / in_flight)
    latency = rounds * (passes * columns["steps"] * constants["step"] + constants["row"])
    return memory, latency


def _miss(size: Any, gpu: GpuParameters, constants: Constants) -> Any:
    """Return the share of repeated reads that miss, for so many bytes between the two reads."""
    x = size / (constants["capacity"] * gpu.l2)
    square = x * x
    ratio = square * square
    return ratio / (1 + ratio)


# --- softmax --------------------------------------------------------------------------------------

MAX_WARP_ROW = 1024
"""Elements of the longest row that a warp keeps in its registers."""

HALF_BYTES, MAX_HALF_WARP_ROW = 2, 2048
"""The same of 16 bits in later versions, here for rows that no vector divides."""

UNROLLED = number("softmax_single_loads")

LOAD_BYTES = 16
"""Bytes that a thread loads at once."""

MAX_SOFTMAX_THREADS = 1024
"""Threads of a row in PyTorch's softmax (SoftMax.cu, ``SoftMax_getBlockSize``), at most."""


def _softmax_columns(kernel: Softmax | CrossEntropy) -> dict[str, float | int | str]:
    """Return the columns of the formula, as listed in the module's head."""
    size = BYTES[kernel.dtype]
    read: float
    if isinstance(kernel, CrossEntropy) and kernel.gradient:
        read = write = size
        steps = math.ceil(kernel.columns * size / (LOAD_BYTES * MAX_SOFTMAX_THREADS))
        threads = {"block": MAX_SOFTMAX_THREADS, "steps": steps, "passes": 2, "unaligned": 0}
    elif isinstance(kernel, CrossEntropy):
        # The softmax is kept in fp32. Backward, the gradient needs no sum over the row.
        read, write = (BYTES["fp32"], size) if kernel.backward else (size, BYTES["fp32"])
        threads = _softmax_threads(kernel.columns, size, 1 if kernel.backward else 3)
    else:
        read, write = kernel.read / 2, size
        if kernel.causal:
            threads = _in_registers(kernel.columns, size)
        else:
            threads = _softmax_threads(kernel.columns, size, 2 if kernel.backward else 3)
    return {
        "rows": kernel.rows,
        "columns": kernel.columns,
        "read": read,
        "write": write,
        "swept": 0,
        "dtype": kernel.dtype,
        **threads,
    }


def _in_registers(width: int, size: int) -> dict[str, int]:
    """Return the threads of a row that a warp keeps, all of its loads in flight at once."""
    unaligned = width * size % SECTOR_BYTES > 0
    return {"block": WARP_THREADS, "steps": 1, "passes": 1, "unaligned": int(unaligned)}


def _softmax_threads(width: int, size: int, passes: int) -> dict[str, int]:
    """Return the threads of a row, their steps and passes."""
    if width <= MAX_WARP_ROW:
        return _in_registers(width, size)
    vector = LOAD_BYTES // size
    if passes == 3 and width % vector and size == HALF_BYTES:
        if width <= MAX_HALF_WARP_ROW:
            return _in_registers(width, size)
        block = MAX_SOFTMAX_THREADS
        rounds, rest = divmod(width - block, vector * block)  # the first round goes to a boundary
        steps = 1 + rounds + math.ceil(rest / (block * UNROLLED))
        return {"block": block, "steps": steps, "passes": passes, "unaligned": 1}
    # PyTorch takes the largest block of which about half of the loads are whole vectors: the power
    # of two at or above this.
    half = min(width // vector, MAX_SOFTMAX_THREADS) // 2
    block = max(WARP_THREADS, 1 << (half - 1).bit_length())
    steps, rest = divmod(width, vector * block)
    # What is left is loaded by single elements. Rows that begin between two vectors have one more
    # step, up to the next boundary.
    steps += -(-rest // block) + (width % vector > 0)
    return {"block": block, "steps": steps, "passes": passes, "unaligned": 0}


SOFTMAX = Formula.of_two_terms(
    "softmax", CONSTANTS, _softmax_columns, _terms, ("memory", "latency"), WAITING
)


# --- norms ----------------------------------------------------------------------------------------

LAYER_THREADS = 128
LAYER_VECTOR = 4
"""Threads of a row in PyTorch's layer norm, and elements that each loads at once."""

MAX_RMS_THREADS = 1024
"""Threads of a row in vLLM's RMS norm, at most."""


def _norm_columns(kernel: Norm) -> dict[str, float | int | str]:
    """Return the columns of the formula, as listed in the module's head."""
    size = BYTES[kernel.dtype]
    read, write = 2 * size if kernel.backward else size, size
    # Backward, a second kernel sums the gradients of the weights over all rows.
    swept = read if kernel.backward else 0
    if kernel.residual:
        read += size
        write += 0 if kernel.backward else size
    block, steps, passes = _norm_threads(kernel)
    width_bytes = size * kernel.columns
    if kernel.kind == "batch":
        # The statistics go through the tensor in any order, and the output needs them all.
        swept = read
    return {
        "rows": kernel.rows,
        "columns": kernel.columns,
        "read": read,
        "write": write,
        "swept": swept,
        "dtype": kernel.dtype,
        "block": block,
        "steps": steps,
        "passes": passes,
        "unaligned": int(kernel.kind == "rms" and width_bytes % SECTOR_BYTES > 0),
    }


def _norm_threads(kernel: Norm) -> tuple[int, int, int]:
    """Return the threads of a row, their steps and passes."""
    width = kernel.columns
    if kernel.kind == "batch":
        return WARP_THREADS, 0, 1
    if kernel.kind == "rms":
        block = min(MAX_RMS_THREADS, WARP_THREADS * -(-width // WARP_THREADS))
        return block, -(-width // block), 2
    vector = LAYER_VECTOR if width % LAYER_VECTOR == 0 else 1
    return LAYER_THREADS, -(-width // (vector * LAYER_THREADS)), 2


NORM = Formula.of_two_terms(
    "norm", CONSTANTS, _norm_columns, _terms, ("memory", "latency"), WAITING
)
