"""Matrix products (single, batched, grouped): shapes, GPU → seconds.

    time = floor + (arithmetic⁴ + memory⁴)^(1/4)

The arithmetic is that of tiles on multiprocessors (:mod:`.tiles`), divided as the library is
expected to choose, slowed by the power limit; memory traffic is every operand once. Where tiles
are few and k is long, k is divided into as many parts as fill the GPU, and a second kernel adds
them up.

**Single and batched products.** What decides the rest in fp32, and is a fact of libraries rather
than a number to fit: batched products run in one kernel whatever their shape on some architectures
(`BATCHED_TILINGS`), and single ones lose time to address translation on Pascal.

**Grouped products.** One kernel works on the tiles of all experts (CUTLASS, example 24; DeepGEMM).
The arithmetic is that of a batched product in which every expert has the mean number of tokens,
rounded up to whole tiles by itself. Where a router without preference spreads the tokens
(``ragged``), an expert's number is binomial, about its mean with the square root of it as standard
deviation, and tiles are those that cover it on average (:func:`.tiles.expected_tiles`): half a tile
more than whole ones would be, as soon as numbers differ by half a tile. Megatron-LM's benchmarks
with ``--moe-router-force-load-balancing`` are of this kind, too: random scores
(`apply_random_logits` of megatron/core/transformer/moe/moe_utils.py).
Transformer Engine's loop over experts on four streams
(``GroupedLinear``) fills the GPU in the same way. In formats in which no grouped product was
measured the constants are those of single ones (:mod:`.lookup`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..gpu_parameters import GpuParameters
from ..numbers import number
from ..operations import BYTES, OPERAND_BYTES, Gemm, GroupedGemm
from .formula import (
    PIPELINED,
    Columns,
    Constant,
    Constants,
    Formula,
    Numbers,
    any_of,
    ceil,
    columns_as_floats,
    minimum,
    where,
)
from .tiles import (
    LONGEST_BURST,
    Tiling,
    expected_time,
    filling_times,
    library_tilings,
    power_throttled,
    product_stretch,
    tiled_times,
    tiling_constants,
)

__all__ = ["GEMM", "GROUPED_GEMM"]

GEMM_CONSTANTS = (
    Constant("efficiency", 0.9, 0.2, 1.3, "rate of the arithmetic alone, as a share of the peak"),
    Constant("loading", 0.8, 0.0, 3.0, "share of reading operands from L2 that is waited for"),
    Constant("memory", 0.8, 0.3, 1.0, "share of the memory's bandwidth"),
    Constant("quantisation", 0.6, 0.0, 1.0, "1: a partial last wave takes as long as a full one"),
    Constant("prologue", 30.0, 0.0, 600.0, "starting and ending a tile, in steps of k"),
    Constant("choice", 0.2, 0.01, 1.5, "relative loss at which a tiling is 1/e as likely"),
    Constant(
        "burst", 1e-3, 1e-4, LONGEST_BURST, "duration at which half of the power limit holds, s"
    ),
    Constant("floor", 3e-6, 0.0, 2e-5, "starting and draining the machine, s"),
)

BATCHED_TILINGS = {"pascal": Tiling(64, 128), "ampere": Tiling(128, 128)}
"""The tile of cuBLAS's batched products in fp32, rows and columns of a row-major result:
maxwell_sgemm_128x64_nn and ampere_sgemm_128x128_nn whatever the shape, as profiles show
(github:sitar-lab/NeuSight, scripts/asplos/data). Elsewhere the library chooses by shape."""

PASCAL_TRANSLATION_SPAN = number("pascal_translation_span")
PASCAL_TRANSLATION_SLOWDOWN = number("pascal_translation_slowdown")


def _gemm_columns(kernel: Gemm) -> dict[str, float | int | str]:
    """Return dtype, m, n, k, batch, and ``result``: bytes moved for an element of the result."""
    return {
        "dtype": kernel.dtype,
        "m": kernel.m,
        "n": kernel.n,
        "k": kernel.k,
        "batch": kernel.batch,
        "result": BYTES[kernel.output] * (2 if kernel.accumulate else 1),
    }


def _gemm_terms(
    columns: Columns, gpu: GpuParameters, constants: Constants, fills: bool = True
) -> tuple[Any, Any]:
    """Return the times that arithmetic and that memory alone would take."""
    dtype: str = columns["dtype"]
    m, n, k, batch = columns_as_floats(columns, "m", "n", "k", "batch")
    traffic = batch * (OPERAND_BYTES[dtype] * (m * k + k * n) + columns["result"] * m * n)
    memory = traffic / (gpu.bandwidth * constants["memory"])
    return _arithmetic(dtype, m, n, k, batch, gpu, constants, fills), memory


def _undivided_terms(columns: Columns, gpu: GpuParameters, constants: Constants) -> tuple[Any, Any]:
    """Return the same of products that are not divided to fill the GPU."""
    return _gemm_terms(columns, gpu, constants, fills=False)


def _arithmetic(
    dtype: str,
    m: Numbers,
    n: Numbers,
    k: Numbers,
    batch: Numbers,
    gpu: GpuParameters,
    constants: Constants,
    fills: bool,
) -> Numbers:
    cores = dtype == "fp32"
    tilings = library_tilings(dtype)
    batched = BATCHED_TILINGS.get(gpu.family) if cores else None
    if batched is not None and not any_of(batch <= 1):
        tilings = (batched,)
    times = tiled_times(tilings, dtype, m, n, k, batch, gpu, **tiling_constants(constants))
    fillings = filling_times(tilings, dtype, m, n, k, batch, gpu, constants) if fills else []
    times += [each for each, _ in fillings]
    time = expected_time(times, constants["choice"])
    if batched is not None:
        time = where(batch > 1, times[tilings.index(batched)], time)
    if cores and gpu.family == "pascal":
        spread = OPERAND_BYTES[dtype] * k * minimum(m, n) / (PASCAL_TRANSLATION_SPAN * gpu.l2)
        slower = 1 + PASCAL_TRANSLATION_SLOWDOWN * spread / (1 + spread)
        time = where(batch > 1, time, time * slower)
    clock = gpu.sustained if cores else gpu.product_clock
    return power_throttled(time, constants["burst"], clock)


def _gemm_stretch(
    columns: Columns, gpu: GpuParameters, constants: Constants, occupied: int
) -> np.ndarray:
    sizes = (columns["m"], columns["n"], columns["k"], columns["batch"])
    choice = constants["choice"]
    stretch: np.ndarray = product_stretch(
        columns["dtype"], *sizes, gpu, constants, choice, occupied
    )
    return stretch


GEMM = Formula.of_two_terms(
    "gemm",
    GEMM_CONSTANTS,
    _gemm_columns,
    _gemm_terms,
    ("arithmetic", "memory"),
    PIPELINED,
    # The division has numbers of its own: few rows would decide the constants of all others.
    fitted_terms=_undivided_terms,
    stretch=_gemm_stretch,
    power_limited=True,
)


# --- grouped products -----------------------------------------------------------------------------

GROUPED_GEMM_CONSTANTS = (
    Constant("efficiency", 0.85, 0.2, 1.3, "rate of the arithmetic alone, as a share of the peak"),
    Constant("loading", 0.5, 0.0, 3.0, "share of reading operands from L2 that is waited for"),
    Constant("memory", 0.8, 0.3, 1.0, "share of the memory's bandwidth"),
    Constant("quantisation", 0.4, 0.0, 1.0, "1: a partial last wave takes as long as a full one"),
    Constant("prologue", 60.0, 0.0, 600.0, "starting and ending a tile, in steps of k"),
    Constant("floor", 4e-6, 0.0, 2e-5, "starting and draining the machine, s"),
)

GROUPED_GEMM_CHOICE = number("grouped_gemm_choice")


def _grouped_columns(kernel: GroupedGemm) -> dict[str, float | int | str]:
    """Return dtype, rows, groups, n, k, weight and ragged as 0 or 1, ``result`` as for single ones.

    Gradients of weights have tokens along k, which no tile divides: they are never ragged.
    """
    return {
        "dtype": kernel.dtype,
        "rows": kernel.rows,
        "groups": kernel.groups,
        "n": kernel.n,
        "k": kernel.k,
        "weight": int(kernel.weight),
        "ragged": int(kernel.ragged and not kernel.weight),
        "result": BYTES[kernel.output] * (2 if kernel.accumulate else 1),
    }


def _grouped_terms(columns: Columns, gpu: GpuParameters, constants: Constants) -> tuple[Any, Any]:
    """Return the times that arithmetic and that memory alone would take."""
    dtype: str = columns["dtype"]
    rows, groups, n, k = columns_as_floats(columns, "rows", "groups", "n", "k")
    weight = columns["weight"] != 0
    ragged = columns["ragged"] != 0
    mean = rows / groups
    tokens = where(ragged, mean, ceil(mean))
    times = tiled_times(
        library_tilings(dtype),
        dtype,
        where(weight, k, tokens),
        n,
        where(weight, tokens, k),
        groups,
        gpu,
        spread=where(ragged, mean**0.5, 0.0) if any_of(ragged) else None,
        **tiling_constants(constants),
    )
    matrices = groups * n * k
    operands = where(weight, rows * (n + k), rows * k + matrices)
    results = where(weight, matrices, rows * n)
    traffic = OPERAND_BYTES[dtype] * operands + columns["result"] * results
    memory = traffic / (gpu.bandwidth * constants["memory"])
    # No grouped product was measured for long enough to say when the clock is lowered; a product's
    # constants, where they serve, say it.
    burst = constants.get("burst", 0.0)
    time = expected_time(times, GROUPED_GEMM_CHOICE)
    return power_throttled(time, burst, gpu.product_clock), memory


def _grouped_stretch(
    columns: Columns, gpu: GpuParameters, constants: Constants, occupied: int
) -> np.ndarray:
    tokens = np.ceil(columns["rows"] / columns["groups"])
    weight = columns["weight"] != 0
    m, k = np.where(weight, columns["k"], tokens), np.where(weight, tokens, columns["k"])
    sizes = (m, columns["n"], k, columns["groups"])
    stretch: np.ndarray = product_stretch(
        columns["dtype"], *sizes, gpu, constants, GROUPED_GEMM_CHOICE, occupied, fills=False
    )
    return stretch


GROUPED_GEMM = Formula.of_two_terms(
    "grouped_gemm",
    GROUPED_GEMM_CONSTANTS,
    _grouped_columns,
    _grouped_terms,
    ("arithmetic", "memory"),
    PIPELINED,
    stretch=_grouped_stretch,
    power_limited=True,
)
