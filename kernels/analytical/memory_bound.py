"""Elementwise kernels, optimizer steps, copies, fills: bytes, GPU → seconds.

    time = floor + bytes × ((1 - hit) / (bandwidth × share) + hit / (L2 bandwidth × l2_share))
    hit  = 1 / (1 + (bytes / (capacity × L2 size))³)

The bytes are those read and written. What a kernel touches, the kernel before has often just
written: as far as it still lies in the L2 cache, it comes from there. Data far larger than the
cache evicts itself before it is used, hence no hits at all, as with least-recently-used replacement
and cyclic access; the cube, a gradual change over about a factor of three in size, is what the
measured rates show around the sizes of the caches of A40, A100 and H100 (github:microsoft/vidur,
data/profiling). Kernels that write a result transposed are slower. Copies to or from the host
run at a share of the link's rate instead.

Operands that are broadcast or not dense have their places divided out of the element's number, and
a kernel takes at least

    elements × instructions / (integers a clock × multiprocessors × clock)

as do those whose threads go through lists (`Elementwise.instructions`). Threads that add up columns
wait for their loads (:mod:`.column_sums`), as do warps that find the places of their rows in lists,
with as many warps at work as the GPU holds (`Elementwise.loads`):

    loads × reduction_step / (multiprocessors × warps of one)

and the one warp that adds up all that is written to one place (`Elementwise.chained`).

What goes column by column through a matrix takes a time for each step (`Elementwise.steps`),
whatever the size of the matrix.

The share of its datasheet bandwidth that a GPU's memory delivers is a matter of the memory and its
controller: 0.75 on Pascal and on GDDR6 with error correction, 0.84 to 0.92 on HBM2 and later.
"""

from __future__ import annotations

from typing import Any

from ..gpu_parameters import GpuParameters
from ..numbers import number
from ..operations import Copy, Elementwise, Kernel
from .column_sums import column_sum_columns, column_sums_beyond
from .formula import Columns, Constant, Constants, Formula, columns_as_floats, filled_like, where

__all__ = ["MEMORY_BOUND", "instructions_beyond"]

MAX_MEMORY_SHARE = number("most_memory_share")

CONSTANTS = (
    Constant(
        "share",
        0.87,
        0.4,
        MAX_MEMORY_SHARE,
        "share of the memory's bandwidth that long kernels reach",
    ),
    Constant("l2_share", 0.4, 0.2, 1.0, "the same of the L2 cache's bandwidth"),
    Constant("capacity", 1.0, 0.3, 2.0, "bytes of a kernel that hit half the time, of the L2 size"),
    Constant("floor", 1.7e-6, 0.5e-6, 5e-6, "starting and draining a kernel, s"),
    Constant("host_share", 0.75, 0.2, 1.0, "share of the host link's rate that copies reach"),
)


TRANSPOSED_RATE = number("transposed_stream_rate")
INDEX_INSTRUCTIONS = number("index_instructions")
INTEGERS_PER_CLOCK = number("integers_per_clock")
STEP = number("reduction_step")
FACTORIZATION_STEP = number("factorization_step")


def _columns(kernel: Kernel) -> dict[str, float | int | str]:
    """Return the bytes moved, and as 0 or 1 whether by the host's link, whether transposed."""
    host = isinstance(kernel, Copy) and kernel.path == "host"
    transposes = isinstance(kernel, Elementwise) and kernel.transposes
    found = kernel if isinstance(kernel, Elementwise) else None
    return {
        "bytes": kernel.traffic,
        "host": int(host),
        "transposes": int(transposes),
        "indexed": (found and found.indexed) or 0,
        "instructions": (found and found.instructions) or 0,
        "loads": (found and found.loads) or 0,
        "chained": (found and found.chained) or 0,
        "steps": (found and found.steps) or 0,
        **column_sum_columns(found),
    }


def _seconds(columns: Columns, gpu: GpuParameters, constants: Constants) -> Any:
    """Return the duration of each kernel, in seconds."""
    memory, l2, link = _terms(columns, gpu, constants)
    beyond = instructions_beyond(columns, gpu, memory + l2)
    waiting = _waiting(columns, gpu, memory + l2)
    return memory + l2 + link + beyond + waiting + constants["floor"]


def _shares(columns: Columns, gpu: GpuParameters, constants: Constants) -> dict[str, Any]:
    """Return seconds by part: memory, L2 cache, host link, instructions, waiting, fixed."""
    memory, l2, link = _terms(columns, gpu, constants)
    return {
        "memory": memory,
        "l2": l2,
        "host link": link,
        "instructions": instructions_beyond(columns, gpu, memory + l2),
        "waiting": _waiting(columns, gpu, memory + l2),
        "floor": filled_like(memory, constants["floor"]),
    }


def _terms(columns: Columns, gpu: GpuParameters, constants: Constants) -> tuple[Any, Any, Any]:
    """Return the time in memory, in the L2 cache and on the link to the host."""
    (size,) = columns_as_floats(columns, "bytes")
    inside = where(columns["host"] != 0, 0.0, size)
    slower = where(columns.get("transposes", 0) != 0, 1 / TRANSPOSED_RATE, 1.0)
    x = size / (constants["capacity"] * gpu.l2)
    hit = 1 / (1 + x * x * x)
    return (
        slower * inside * (1 - hit) / (gpu.bandwidth * constants["share"]),
        slower * inside * hit / (gpu.l2_bandwidth * constants["l2_share"]),
        (size - inside) / (gpu.pcie * constants["host_share"]),
    )


def _waiting(columns: Columns, gpu: GpuParameters, hidden: Any) -> Any:
    """Columns, GPU → seconds beyond memory's that warps wait for loads, and that steps take.

    0 for most kernels.
    """
    seconds = columns.get("loads", 0) * STEP / (gpu.sms * gpu.sm_threads / gpu.warp_size)
    seconds = seconds + columns.get("chained", 0) * STEP
    waiting = where(seconds > hidden, seconds - hidden, 0.0)
    waiting = waiting + columns.get("steps", 0) * FACTORIZATION_STEP
    if "summed" not in columns:
        return waiting
    return waiting + column_sums_beyond(columns, gpu, hidden)


def instructions_beyond(columns: Columns, gpu: GpuParameters, hidden: Any) -> Any:
    """Kernel columns, GPU, memory time → seconds that integer instructions take longer than memory.

    Parameters
    ----------
    columns : Columns
    gpu : GpuParameters
    hidden : float or float64 array, shape (kernels,)
        Seconds that memory takes.
    """
    places = columns.get("indexed", 0) * INDEX_INSTRUCTIONS
    instructions = places + columns.get("instructions", 0)
    seconds = instructions / (INTEGERS_PER_CLOCK * gpu.sms * gpu.clock)
    return where(seconds > hidden, seconds - hidden, 0.0)


MEMORY_BOUND = Formula("memory_bound", CONSTANTS, _columns, _seconds, _shares)
