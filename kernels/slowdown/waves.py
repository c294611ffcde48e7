"""Tiles on fewer multiprocessors: waves.

A library cuts a product for all multiprocessors of the GPU; it does not know that a communication
holds some of them. With S multiprocessors and n of them taken, tiles that needed ceil(tiles / S)
waves need ceil(tiles / (S - n)): 132 tiles on an H100 (S = 132) with 24 taken need two in place of
one. What is not known as tiles is taken to divide freely: S / (S - n).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..analytical import Machine, attention, gemm, grouped_gemm, stack
from ..analytical.tiles import TILES, Cut, times
from ..fused_attention import ATTENTION
from ..operations import Kernel

__all__ = ["of_tiles", "stretched"]

Floats = NDArray[np.float64]

FUSED = frozenset(each.family for each in ATTENTION.values())
"""Families of fused attention, whichever kernel it is: all cut queries into blocks."""

ALONE = 0.5
"""Kernels keep at least this share of the multiprocessors: thread blocks of a communication that
find no place beside each other wait."""


def of_tiles(tiles: Any, machine: Machine, taken: int) -> Any:
    """Return the waves of some tiles with multiprocessors taken, over those without.

    Parameters
    ----------
    tiles : float, or ndarray
    machine : Machine
    taken : int

    Examples
    --------
    >>> from mpisim.kernels import find_gpu
    >>> float(of_tiles(132, Machine.of(find_gpu("h100-sxm")), 24))
    2.0
    """
    return np.ceil(tiles / _left(machine, taken)) / np.maximum(np.ceil(tiles / machine.sms), 1)


def stretched(
    kernels: Sequence[Kernel], machine: Machine, taken: int, constants: Mapping[str, float] | None
) -> Floats:
    """Return how much longer the arithmetic of kernels takes with multiprocessors taken.

    Parameters
    ----------
    kernels : sequence of Kernel
        Of one family and format.
    machine : Machine
    taken : int
    constants : mapping of str to float, optional
        Of the analytical model; without them work divides freely.

    Returns
    -------
    float64, shape (kernels,)
    """
    family = kernels[0].family
    freely = np.full(len(kernels), machine.sms / _left(machine, taken))
    if constants is None or taken == 0:
        return freely
    columns = stack(kernels)
    if family in FUSED:
        blocks = np.ceil(columns["queries"] / attention.QUERIES)
        found = of_tiles(columns["batch"] * columns["heads"] * blocks, machine, taken)
        return np.asarray(found, float)
    if family == gemm.FAMILY:
        size = (columns["m"], columns["n"], columns["k"], columns["batch"])
        return _of_products(columns["dtype"], size, machine, taken, constants, constants["choice"])
    if family == grouped_gemm.FAMILY:
        tokens = np.ceil(columns["rows"] / columns["groups"])
        weight = columns["weight"] != 0
        size = (
            np.where(weight, columns["k"], tokens),
            columns["n"],
            np.where(weight, tokens, columns["k"]),
            columns["groups"],
        )
        choice = grouped_gemm.CHOICE
        return _of_products(columns["dtype"], size, machine, taken, constants, choice)
    return freely


def _left(machine: Machine, taken: int) -> float:
    return max(machine.sms - taken, ALONE * machine.sms)


def _of_products(
    dtype: str,
    size: tuple[Any, Any, Any, Any],
    machine: Machine,
    taken: int,
    constants: Mapping[str, float],
    choice: float,
) -> Floats:
    """Return the mean over the ways to cut, each as likely and as long as it is alone."""
    cuts: tuple[Cut, ...] = TILES["fp32" if dtype == "fp32" else "half"]
    m, n, k, batch = (np.asarray(each, float) for each in size)
    names = ("efficiency", "loading", "quantisation", "prologue")
    alone = np.array(
        times(cuts, dtype, m, n, k, batch, machine, **{each: constants[each] for each in names})
    )
    weights = np.exp((1 - alone / alone.min(axis=0)) / choice) * alone
    tiles = [np.ceil(m / cut.rows) * np.ceil(n / cut.columns) * batch * cut.parts for cut in cuts]
    found: Floats = (weights * of_tiles(np.array(tiles), machine, taken)).sum(axis=0)
    return found / weights.sum(axis=0)
