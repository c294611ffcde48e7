"""Embedding lookup or its gradient (rows, width, vocabulary), GPU → kernel time in seconds.

    time  = floor + sqrt(memory² + issue²)
    memory = max((rows that miss + outputs + indices) / (bandwidth × share),
                 (rows + outputs) / (L2 bandwidth × cached_rows_share))
    issue  = elements / (multiprocessors × clock × rate)

Which rows miss is found as Lin et al. find it (arXiv:2201.07821), for indices that are drawn
evenly: of n lookups in a table of E rows, E (1 - (1 - 1/E)ⁿ) touch a row for the first time, which
comes from memory; a later lookup of a row hits as far as the rows in use fit in the L2 cache.
Skewed indices hit more often: the estimate is on the safe side. Rows that hit still have to come
from the L2 cache, whose rate binds lookups in tables that fit into it (the larger of the two, as
theirs).

PyTorch looks up single rows (no pooling) with a kernel whose threads each copy one element after
divisions of its index (github:pytorch/pytorch, aten/src/ATen/native/cuda/Indexing.cu), so that the
multiprocessors' instructions set its pace on GPUs with much bandwidth: lookups in fp16 run at 148
GB/s read on an A100 and 293 on an H100. Kernels that pool rows load vectors and have no such limit.

Where FBGEMM pools rows of several tables at once (``outputs`` given), a warp has an output: it
loads its offsets, its indices and then one row after another, which adds to ``issue``

    max(1, outputs / warps at once) × (2 + lookups / outputs) × step

(split_embedding_codegen_forward kernels of github:pytorch/FBGEMM); `pooled_output_warps` of the
warps that the GPU holds are at work at once.

Of lookups in several tables (`EmbeddingTables`), whose widths and skew may differ, the description
brings the rows that miss in caches of several sizes, and the formula reads off those for
``capacity`` × L2 size, between two sizes in proportion to the logarithm.

Backward, the indices are sorted first, so that each row's gradients are summed by one group of
threads: a radix sort passes eight times over keys and values of 8 bytes, where the kernel's time
holds it. Each lookup reads the gradient of its output, of which the L2 cache has those of a table.

FBGEMM's gradients have two kernels (embedding_backward_split_template.cu). Runs of 32 equal indices
and more have a block of 1,024 threads each, one on a multiprocessor (they need 42 registers on an
A100, as recorded), whose 32 warps load one gradient after another. Shorter runs have a warp each.
Their kernel is launched with a warp for each lookup, as if all were different, and those that find
no run still wait for the load that tells:

    looking = lookups / (warps that the GPU holds) × step
    blocks  = runs / multiprocessors × (run length / 32 × step + join)     runs of 32 and more
    warps   = runs / (warps that the GPU holds) × (6 + run length) × step  shorter ones

All runs are taken to be of the mean length, which shapes tell; a row that most samples look up has
one block to itself and takes longer.
"""

from __future__ import annotations

import math
from typing import Any

from ..gpu_parameters import GpuParameters
from ..numbers import number
from ..operations import BYTES, CACHE_BYTES, Embedding, EmbeddingTables
from .formula import (
    WAITING,
    Columns,
    Constant,
    Constants,
    Formula,
    any_of,
    ceil,
    columns_as_floats,
    expm1,
    log1p,
    maximum,
    minimum,
    where,
)

__all__ = ["EMBEDDING"]

CONSTANTS = (
    Constant("share", 0.8, 0.5, 1.0, "share of the memory's bandwidth that whole rows reach"),
    Constant("rate", 0.55, 0.1, 8.0, "elements copied a clock and multiprocessor"),
    Constant("capacity", 0.6, 0.1, 2.0, "of the L2 size, what holds rows for the next lookup"),
    Constant("floor", 3e-6, 0.5e-6, 2e-5, "starting and draining a kernel, s"),
)

CACHED_SHARE = number("cached_rows_share")
STEP = number("reduction_step")
JOIN = number("reduction_join")
OUTPUT_WARPS = number("pooled_output_warps")

WARP_LOADS, RUN_LOADS = 2, 6
"""Loads one after another of a warp beside its rows, as counted in FBGEMM's code: of an output its
offsets and its indices; of a run its place, its first lookup, its table, its lookups, and where the
row and its state lie (fbgemm_gpu/codegen/training/backward of github:pytorch/FBGEMM at 0172dcc1,
embedding_backward_split_kernel_warp_template.cu: ``sorted_linear_indices_run``, ``sorted_infos``,
``hash_size_cumsum``, then ``compute_grad_sum`` and the update of the table)."""
LONG_RUN = 32
"""Equal indices from which on a block adds them up: ``max_segment_length_per_warp`` of
embedding_backward_split_host_template.cpp in the same folder. ROCm's 64 is left out."""
BLOCK_WARPS = 32
"""Warps of such a block: 1,024 threads."""

INDEX_BYTES = 8

SORT_BYTES = 8 * 2 * 2 * INDEX_BYTES
"""Bytes that sorting moves for a lookup: eight passes, keys and values, read and written."""


MISSED = tuple(f"missed_{number}" for number in range(len(CACHE_BYTES)))
"""Columns: bytes of rows that caches of these sizes miss."""


def _columns(kernel: Embedding | EmbeddingTables) -> dict[str, float | int | str]:
    """Return the sizes of a lookup.

    Returns
    -------
    dict
        ``lookups``, ``entries``, ``outputs``, ``row`` (bytes), ``width`` where each element is
        copied by itself and 0 where rows are loaded whole, ``backward``; of several tables
        ``distinct``, the bytes of rows without repetition, ``looked_up``, those of all rows, and
        what caches miss; 0 of one table; ``sorts`` and ``warps``, 1 of kernels that sort and of
        FBGEMM's, whose warps have an output or a run each.
    """
    if isinstance(kernel, EmbeddingTables):
        return {
            "lookups": kernel.lookups,
            "entries": 1,
            "outputs": kernel.output_bytes,
            "row": 1,
            "width": 0,
            "backward": int(kernel.backward),
            "dtype": kernel.dtype,
            "distinct": kernel.distinct_bytes,
            "looked_up": kernel.row_bytes,
            "sorts": 1,
            "warps": 0,
            **dict(zip(MISSED, kernel.missed, strict=True)),
        }
    single = kernel.pooling == 1 and kernel.outputs is None
    return {
        "lookups": kernel.lookups,
        "entries": kernel.entries,
        "outputs": kernel.outputs or -(-kernel.lookups // kernel.pooling),
        "row": BYTES[kernel.dtype] * kernel.width,
        "width": kernel.width if single else 0,
        "backward": int(kernel.backward),
        "dtype": kernel.dtype,
        "distinct": 0,
        "looked_up": 0,
        "sorts": int(kernel.sorts),
        "warps": int(kernel.outputs is not None),
        **dict.fromkeys(MISSED, 0),
    }


def _terms(columns: Columns, gpu: GpuParameters, constants: Constants) -> tuple[Any, Any]:
    """Return the times that memory and that instructions alone would take."""
    lookups, row, entries = columns_as_floats(columns, "lookups", "row", "entries")
    backward = columns["backward"] != 0
    several = columns.get("distinct", 0) != 0
    cache = constants["capacity"] * gpu.l2

    first = where(several, columns.get("distinct", 0.0), _distinct(lookups, entries))
    hit = minimum(1.0, cache / (first * row))
    missed = where(several, _missed(columns, cache), row * (first + (lookups - first) * (1 - hit)))
    outputs = columns["outputs"] * row
    forward = missed + outputs + INDEX_BYTES * lookups
    # Gradients of the outputs in, sums of the rows out on top of what they hold.
    sort = where(columns.get("sorts", 1) != 0, SORT_BYTES, 0)
    reverse = outputs + 2 * row * first + (INDEX_BYTES + sort) * lookups
    memory = where(backward, reverse, forward) / (gpu.bandwidth * constants["share"])
    rows = where(several, columns.get("looked_up", 0.0), lookups * row)
    written = where(backward, 2 * row * first, outputs)
    cached = (rows + written) / (gpu.l2_bandwidth * CACHED_SHARE)
    memory = maximum(memory, cached)

    elements = where(backward, 0.0, lookups * columns["width"])
    issue = elements / (gpu.sms * gpu.clock * constants["rate"])
    by_warps = columns.get("warps", 0) != 0
    if any_of(by_warps):
        pooled = columns_as_floats(columns, "outputs")[0]
        forward_wait = _output_waits(lookups, pooled, gpu)
        wait = where(backward, _run_waits(lookups, first, gpu), forward_wait)
        issue = issue + where(by_warps, wait, 0.0)
    return memory, issue


def _output_waits(lookups: Any, outputs: Any, gpu: GpuParameters) -> Any:
    """Return the seconds that warps wait which pool the rows of an output each."""
    turns = maximum(outputs / (OUTPUT_WARPS * _warps(gpu)), 1.0)
    return turns * (WARP_LOADS + lookups / outputs) * STEP


def _run_waits(lookups: Any, runs: Any, gpu: GpuParameters) -> Any:
    """Return the seconds that FBGEMM's gradients wait, with so many runs of equal indices."""
    length = lookups / runs
    blocks = maximum(runs / gpu.sms, 1.0) * (ceil(length / BLOCK_WARPS) * STEP + JOIN)
    warps = maximum(runs / _warps(gpu), 1.0) * (RUN_LOADS + length) * STEP
    looking = maximum(lookups / _warps(gpu), 1.0) * STEP
    return looking + where(length >= LONG_RUN, blocks, warps)


def _warps(gpu: GpuParameters) -> float:
    """Return the warps that a GPU holds at once."""
    return gpu.sms * gpu.sm_threads / gpu.warp_size


def _missed(columns: Columns, cache: float) -> Any:
    """Return the bytes of rows that a cache of so many bytes misses, of several tables."""
    place = math.log2(max(cache, CACHE_BYTES[0]) / CACHE_BYTES[0])
    low = min(int(place), len(CACHE_BYTES) - 2)
    share = min(place - low, 1.0)
    return (1 - share) * columns.get(MISSED[low], 0.0) + share * columns.get(MISSED[low + 1], 0.0)


def _distinct(lookups: Any, entries: Any) -> Any:
    """Return the average number of distinct rows that evenly drawn lookups touch.

    `log1p` and `expm1` keep the digits where the table is much larger than the lookups; a table of
    one row is touched once.
    """
    chance = 1 / maximum(entries, 1 + 1e-12)
    return minimum(-entries * expm1(lookups * log1p(-chance)), lookups)


EMBEDDING = Formula.of_two_terms(
    "embedding", CONSTANTS, _columns, _terms, ("memory", "issue"), WAITING
)
