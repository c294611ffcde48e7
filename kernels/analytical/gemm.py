"""Matrix products, single and batched.

    time = floor + (arithmetic⁴ + memory⁴)^(1/4)

The arithmetic is that of tiles on multiprocessors (:mod:`.tiles`), in the way that the library
is expected to choose, slowed by the power limit; memory traffic is every operand once.

What decides the rest in fp32, and is a fact of libraries rather than a number to fit: batched
products run in one kernel whatever their shape on some architectures (`BATCHED`), and single ones
lose time to address translation on Pascal (`SPAN`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..operations import BYTES, OPERAND, Gemm
from .family import Columns, Constant
from .machine import Machine
from .maths import Numbers, floats, minimum, some, where
from .overlap import PIPELINED, Overlapped
from .tiles import TILES, Cut, preferred, throttled, times

__all__ = ["CONSTANTS", "FAMILY", "columns", "seconds", "shares"]

FAMILY = "gemm"

CONSTANTS = (
    Constant("efficiency", 0.9, 0.2, 1.3, "rate of the arithmetic alone, as a share of the peak"),
    Constant("loading", 0.8, 0.0, 3.0, "share of reading operands from L2 that is waited for"),
    Constant("memory", 0.8, 0.3, 1.0, "share of the memory's bandwidth"),
    Constant("quantisation", 0.6, 0.0, 1.0, "1: a partial last wave takes as long as a full one"),
    Constant("prologue", 30.0, 0.0, 600.0, "starting and ending a tile, in steps of k"),
    Constant("choice", 0.2, 0.01, 1.5, "relative loss at which a way to cut is 1/e as likely"),
    Constant("burst", 3e-3, 1e-4, 0.3, "duration at which half of the power limit holds, s"),
    Constant("floor", 3e-6, 0.0, 2e-5, "starting and draining the machine, s"),
)

BATCHED = {"pascal": Cut(64, 128), "ampere": Cut(128, 128)}
"""The tile of cuBLAS's batched products in fp32, rows and columns of a row-major result:
maxwell_sgemm_128x64_nn and ampere_sgemm_128x128_nn whatever the shape, as profiles show
(github:sitar-lab/NeuSight, scripts/asplos/data). Elsewhere the library chooses by shape."""

SPAN = 36.0
"""Sizes of the L2 cache over which the rows of the smaller operand spread when translations of
addresses no longer fit on Pascal, if both operands run along k (linear layers); `SLOW` is how much
longer a product takes far beyond. Read off the P100 rows of the same data: rate 0.7 of the peak at
64 MB, 0.45 at 180 MB, 0.25 at 1 GB; nothing of the kind shows on later architectures."""

SLOW = 2.0


def columns(kernel: Gemm) -> dict[str, float | int | str]:
    """Return the numbers of one description.

    Returns
    -------
    dict
        dtype, m, n, k, batch, and ``result``: bytes read and written for an element of the result.
    """
    return {
        "dtype": kernel.dtype,
        "m": kernel.m,
        "n": kernel.n,
        "k": kernel.k,
        "batch": kernel.batch,
        "result": BYTES[kernel.output] * (2 if kernel.accumulate else 1),
    }


def _parts(columns: Columns, gpu: Machine, constants: Mapping[str, float]) -> tuple[Any, Any]:
    """Return the times that arithmetic and that memory alone would take."""
    dtype: str = columns["dtype"]
    m, n, k, batch = floats(columns, "m", "n", "k", "batch")
    traffic = batch * (OPERAND[dtype] * (m * k + k * n) + columns["result"] * m * n)
    memory = traffic / (gpu.bandwidth * constants["memory"])
    return _arithmetic(dtype, m, n, k, batch, gpu, constants), memory


_FORMULA = Overlapped(_parts, ("arithmetic", "memory"), PIPELINED)
seconds, shares = _FORMULA.seconds, _FORMULA.shares


def _arithmetic(
    dtype: str,
    m: Numbers,
    n: Numbers,
    k: Numbers,
    batch: Numbers,
    gpu: Machine,
    constants: Mapping[str, float],
) -> Numbers:
    cores = dtype == "fp32"
    cuts = TILES["fp32" if cores else "half"]
    batched = BATCHED.get(gpu.family) if cores else None
    if batched is not None and not some(batch <= 1):
        cuts = (batched,)
    found = times(
        cuts,
        dtype,
        *(m, n, k, batch),
        gpu,
        efficiency=constants["efficiency"],
        loading=constants["loading"],
        quantisation=constants["quantisation"],
        prologue=constants["prologue"],
    )
    mean = preferred(found, constants["choice"])
    if batched is not None:
        mean = where(batch > 1, found[cuts.index(batched)], mean)
    if cores and gpu.family == "pascal":
        spread = OPERAND[dtype] * k * minimum(m, n) / (SPAN * gpu.l2)
        mean = where(batch > 1, mean, mean * (1 + SLOW * spread / (1 + spread)))
    return throttled(mean, constants["burst"], gpu)
