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

Of lookups in several tables (`EmbeddingTables`), whose widths and skew may differ, the description
brings the rows that miss in caches of several sizes, and the formula reads off those for
``capacity`` × L2 size, between two sizes in proportion to the logarithm.

Backward, the indices are sorted first, so that each row's gradients are summed by one group of
threads: a radix sort passes eight times over keys and values of 8 bytes.
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
        what caches miss; 0 of one table.
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
    reverse = outputs + 2 * row * first + (INDEX_BYTES + SORT_BYTES) * lookups
    memory = where(backward, reverse, forward) / (gpu.bandwidth * constants["share"])
    rows = where(several, columns.get("looked_up", 0.0), lookups * row)
    cached = where(backward, 0.0, rows + outputs) / (gpu.l2_bandwidth * CACHED_SHARE)
    memory = maximum(memory, cached)

    elements = where(backward, 0.0, lookups * columns["width"])
    issue = elements / (gpu.sms * gpu.clock * constants["rate"])
    return memory, issue


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
