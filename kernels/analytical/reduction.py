"""The time of kernels that reduce rows, shared by the families ``softmax`` and ``norm``.

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
``passes`` over a row; ``again``, bytes of an element that a second sweep over the whole tensor
reads; ``block``, threads of a row; ``steps``, loads of a thread one after the other in a pass;
``unaligned``, 1 where warps load single elements from rows that begin inside a 32-byte sector, so
that a load of 128 bytes touches five sectors in place of four.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .family import Columns, Constant
from .machine import Machine
from .maths import floats, maximum, minimum
from .overlap import WAITING, Overlapped

__all__ = ["CONSTANTS", "SECTOR", "WARP", "seconds", "shares"]

CONSTANTS = (
    Constant("share", 0.85, 0.3, 1.0, "share of the memory's bandwidth that long kernels reach"),
    Constant("capacity", 0.75, 0.4, 1.5, "bytes of rows in flight that half miss, of the L2 size"),
    Constant("step", 4e-7, 0.0, 3e-6, "one load of a row's threads, the next waiting for it, s"),
    Constant("row", 3e-6, 0.0, 2e-5, "starting, reducing and ending the work on a row, s"),
    Constant("unaligned", 0.1, 0.0, 0.25, "more traffic where rows begin inside 32-byte sectors"),
    Constant("floor", 2e-6, 0.5e-6, 5e-6, "starting and draining a kernel, s"),
)

WARP = 32

SECTOR = 32
"""Bytes that memory and caches move at once."""

RESIDENT = {"turing": 1024, "ada": 1536}
"""Threads that a multiprocessor holds, where not 2,048 (CUDA programming guide, compute
capabilities)."""

RESIDENT_GA10X = 1536
DOUBLED = 200
"""FLOP of fp32 a clock and multiprocessor above which an Ampere GPU is one of the small ones
(GA10x: 256), which hold fewer threads than the A100 (128)."""

RESIDENT_BLOCKS = 32
"""Groups that a multiprocessor holds."""


def _parts(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> tuple[Any, Any]:
    """Return the times that memory and that latency alone would take."""
    rows, width = floats(columns, "rows", "columns")
    passes = columns["passes"]
    read = width * columns["read"]
    elements = rows * width
    total = rows * read

    in_flight = gpu.sms * minimum(_resident(gpu) / columns["block"], RESIDENT_BLOCKS)
    kept = minimum(rows, in_flight) * read
    repeated = (passes - 1) * total * _miss(kept, gpu, constants)
    swept = elements * columns["again"] * _miss(total, gpu, constants)
    first = total + elements * columns["write"]
    moved = (first + repeated + swept) * (1 + columns["unaligned"] * constants["unaligned"])
    memory = moved / (gpu.bandwidth * constants["share"])

    turns = maximum(1.0, rows / in_flight)
    latency = turns * (passes * columns["steps"] * constants["step"] + constants["row"])
    return memory, latency


_FORMULA = Overlapped(_parts, ("memory", "latency"), WAITING)
seconds, shares = _FORMULA.seconds, _FORMULA.shares


def _miss(size: Any, gpu: Machine, constants: Mapping[str, float]) -> Any:
    """Return the share of repeated reads that miss, for so many bytes between the two reads."""
    x = size / (constants["capacity"] * gpu.l2)
    square = x * x
    ratio = square * square
    return ratio / (1 + ratio)


def _resident(gpu: Machine) -> int:
    """Return how many threads a multiprocessor holds."""
    if gpu.family == "ampere" and gpu.peaks.get("fp32", 0.0) > DOUBLED * gpu.sms * gpu.clock:
        return RESIDENT_GA10X
    return RESIDENT.get(gpu.family, 2048)
