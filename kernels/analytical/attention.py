"""Fused attention (FlashAttention-2 and later, arXiv:2307.08691, 2407.08608): shapes → seconds.

Each block of queries is a tile that runs over the keys. A score costs its share of the products on
the matrix units, and an exponential with its scaling, maxima and sums on the cores; the two overlap
only in part:

    score = products / (efficiency × peak) + softmax / (rate of exponentials)
    time  = floor + (arithmetic⁴ + memory⁴)^(1/4) + (backward) bytes / (bandwidth × memory)
    arithmetic = waves × block × (keys + prologue) × score

The exponentials are why small heads are slower: their rate is 16 a clock and multiprocessor on
NVIDIA's GPUs (CUDA programming guide, arithmetic instructions) and twice that on Blackwell Ultra,
while products grow with the head.
The backward pass runs the same loop with five products for two, at a rate of its own, between two
kernels that stream: one multiplies results and their gradients and clears sums in fp32 for the
gradients of queries, one rounds these sums (``flash_bwd_dot_do_o_kernel`` and
``flash_bwd_convert_dq_kernel`` of github:Dao-AILab/flash-attention, csrc/flash_attn/src/
flash_bwd_preprocess_kernel.h; FlashAttention-3's and cuDNN's backward passes have the like). Of a
window whole blocks of keys are computed: 128 tokens of window touch two.

Two constants exist in cuDNN's variant alone (``data/calibration/kernel_variants.toml``):
``softmax_back``, the softmax of the backward pass, and ``hidden``, the share of the shorter of
products and softmax that runs beside the longer, forward.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..gpu_parameters import GpuParameters
from ..operations import BYTES, Attention
from .formula import (
    PIPELINED,
    Columns,
    Constant,
    Constants,
    Formula,
    ceil,
    columns_as_floats,
    divided_overlap,
    filled_like,
    maximum,
    minimum,
    overlapped,
    where,
)
from .tiles import wave_stretch

__all__ = ["ATTENTION"]

CONSTANTS = (
    Constant("efficiency", 0.9, 0.2, 1.0, "share of the peak of the products alone"),
    Constant("backward", 0.7, 0.3, 1.2, "rate of the backward products, relative"),
    Constant("softmax", 0.9, 0.0, 4.0, "exponentials' time a score that products do not hide"),
    Constant("memory", 0.8, 0.3, 1.0, "share of the memory's bandwidth"),
    Constant("quantisation", 0.4, 0.0, 1.0, "1: a partial last wave takes as long as a full one"),
    Constant("prologue", 150.0, 0.0, 600.0, "starting and ending a block of queries, in keys"),
    Constant("floor", 5e-6, 0.0, 3e-5, "starting and draining the machine, s"),
)

TILE_QUERIES = 128
"""Queries of a tile; so many keys are masked, or not, together."""


def _columns(kernel: Attention) -> dict[str, float | int | str]:
    """Return dtype and sizes; causal and backward as 0 or 1, no window as one of all keys."""
    return {
        "dtype": kernel.dtype,
        "batch": kernel.batch,
        "heads": kernel.heads,
        "kv_heads": kernel.kv_heads,
        "queries": kernel.queries,
        "keys": kernel.keys,
        "head_size": kernel.head_size,
        "value_size": kernel.value_size,
        "causal": int(kernel.causal),
        "backward": int(kernel.backward),
        "window": min(kernel.window or kernel.keys, kernel.keys),
    }


def _terms(columns: Columns, gpu: GpuParameters, constants: Constants) -> tuple[Any, Any]:
    """Return the times that arithmetic and that memory alone would take."""
    dtype: str = columns["dtype"]
    batch, heads, kv_heads, queries, keys, head, value, window = columns_as_floats(
        columns,
        *("batch", "heads", "kv_heads", "queries", "keys"),
        *("head_size", "value_size", "window"),
    )
    backward = columns["backward"] != 0

    rate = gpu.peaks[dtype] / gpu.sms * constants["efficiency"] * gpu.sustained
    back = (6 * head + 4 * value) / constants["backward"]
    products = where(backward, back, 2 * head + 2 * value) / rate
    softmax = constants["softmax"]
    softmax = where(backward, constants.get("softmax_back", softmax), softmax)
    exponentials = softmax / (gpu.exponentials * gpu.clock)
    hidden = where(backward, 0.0, constants.get("hidden", 0.0))
    score = products + exponentials - hidden * minimum(products, exponentials)

    # A causal mask leaves the blocks of keys before a tile of queries, and half of the one on the
    # diagonal, which is computed in full. A window begins inside a block.
    block = minimum(TILE_QUERIES, keys)
    blocks = keys / block
    most = minimum(blocks, ceil((window - 1) / block) + 1)
    fewer = where(columns["causal"] != 0, most * (most - 1) / (2 * blocks), 0.0)
    seen = block * (most - fewer)
    tiles = batch * heads * ceil(queries / TILE_QUERIES) / gpu.sms
    q = constants["quantisation"]
    waves = q * ceil(tiles) + (1 - q) * maximum(tiles, 1.0)
    arithmetic = waves * TILE_QUERIES * (seen + constants["prologue"]) * score

    elements = (heads * queries + kv_heads * keys) * (head + value)
    traffic = batch * BYTES[dtype] * elements * where(backward, 2, 1)
    memory = traffic / (gpu.bandwidth * constants["memory"])
    return arithmetic, memory


def _passes(columns: Columns, gpu: GpuParameters, constants: Constants) -> Any:
    """Attention shape, GPU → seconds of the backward's side kernels (row sums, cast of dQ)."""
    batch, heads, queries, head, value = columns_as_floats(
        columns, "batch", "heads", "queries", "head_size", "value_size"
    )
    stored, summed = BYTES[columns["dtype"]], BYTES["fp32"]
    before = 2 * stored * value + summed * head
    after = (summed + stored) * head
    size = batch * heads * queries * (before + after)
    return where(columns["backward"] != 0, size / (gpu.bandwidth * constants["memory"]), 0.0)


def _seconds(columns: Columns, gpu: GpuParameters, constants: Constants) -> Any:
    """Return the duration of each kernel, in seconds."""
    loop = overlapped(*_terms(columns, gpu, constants), PIPELINED)
    return loop + _passes(columns, gpu, constants) + constants["floor"]


def _shares(columns: Columns, gpu: GpuParameters, constants: Constants) -> dict[str, Any]:
    """Return the time of arithmetic, of memory, of the passes around the loop, and fixed."""
    arithmetic, memory = divided_overlap(*_terms(columns, gpu, constants), PIPELINED)
    return {
        "arithmetic": arithmetic,
        "memory": memory + _passes(columns, gpu, constants),
        "floor": filled_like(arithmetic, constants["floor"]),
    }


def _stretch(
    columns: Columns, gpu: GpuParameters, constants: Constants, occupied: int
) -> np.ndarray:
    tiles = columns["batch"] * columns["heads"] * np.ceil(columns["queries"] / TILE_QUERIES)
    return np.asarray(wave_stretch(tiles, gpu, occupied), float)


ATTENTION = Formula(
    "attention",
    CONSTANTS,
    _columns,
    _seconds,
    _shares,
    stretch=_stretch,
    power_limited=True,
)
