"""Fitting the constants of the slowdown to measured pairs.

Robust least squares of log(predicted / measured) (soft L1, so that a few odd pairs do not decide),
in units of what one pair is off by, with the constants that there were as prior knowledge, each
within its error bar. What no pair says anything of stays as it was.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.quantity import Quantity
from ..kernels.analytical.tiles import wave_stretch
from ..kernels.slowdown import CLASSES, SlowdownConstants
from ..kernels.slowdown.parametric import slowed
from ..program import Operation
from .pairs import ALGORITHMS, COLLECTIVES, Pairs

__all__ = ["Fitted", "fit", "predicted", "written"]

Floats = NDArray[np.float64]

NOISE = 0.05
"""Relative error of one measured slowdown."""

SHARED = ("gather", "reduce", "multicast", "send")

LIMITS = {
    **dict.fromkeys(SHARED, (0.1, 10.0)),
    **dict.fromkeys(CLASSES, (0.005, 2.0)),
    "communication": (0.005, 2.0),
}
"""The constants that are fitted, and what they can be: above 0, for error bars are relative."""


@dataclass(frozen=True)
class Fitted:
    """The outcome of a fit.

    Attributes
    ----------
    constants : SlowdownConstants
    before, after : float
        Root of the mean square of log(predicted / measured), of kernels.
    known : tuple of str
        The constants of which pairs say something.
    """

    constants: SlowdownConstants
    before: float
    after: float
    known: tuple[str, ...]


def predicted(pairs: Pairs, constants: SlowdownConstants) -> tuple[Floats, Floats]:
    """Return the slowdowns of kernels and of communications, shape (n,) each.

    What is due to memory is told by the shares of the memory's and the multiprocessors' rates that
    the kernel reaches, if they are given; otherwise by its class: products wait for arithmetic, all
    else for memory.
    """
    columns = pairs.columns
    of_gpu = [pairs.machines[name] for name in pairs.gpu]
    sms = np.array([each.sms for each in of_gpu], float)
    bandwidth = np.array([each.bandwidth for each in of_gpu])
    taken = np.rint(columns["channels"] * constants.block.si)
    stretch = sms / np.maximum(sms - taken, sms / 2)
    for i in np.flatnonzero(np.isfinite(columns["tiles"])).tolist():
        stretch[i] = wave_stretch(columns["tiles"][i], of_gpu[i], int(taken[i]))

    sm, dram = columns["sm"] ** 4, columns["dram"] ** 4
    with np.errstate(invalid="ignore", divide="ignore"):
        memory = dram / (sm + dram)
    by_class = (pairs.kind != CLASSES.index("matrix")).astype(float)
    memory = np.where(np.isfinite(memory), memory, by_class)
    use = np.where(np.isfinite(columns["dram"]), columns["dram"], by_class)

    traffic = np.array([each.si for each in _traffic(pairs, constants)])
    used = traffic * columns["sent"] / columns["comm_seconds"] / bandwidth
    own = np.array([getattr(constants, name).si for name in CLASSES])[pairs.kind]
    factor = slowed(memory, np.zeros(len(pairs)), own, used, stretch, constants.share.si)
    return (
        np.clip(factor, 1.0, constants.most.si),
        1 + constants.communication.si * use,
    )


def _traffic(pairs: Pairs, constants: SlowdownConstants) -> list[Quantity]:
    return [
        constants.traffic(
            Operation[COLLECTIVES[collective].upper().replace("-", "_")],
            ALGORITHMS[algorithm] if algorithm >= 0 else "",
        )
        for collective, algorithm in zip(pairs.collective.tolist(), pairs.algorithm.tolist())
    ]


def fit(pairs: Pairs, start: SlowdownConstants) -> Fitted:
    """Fit constants to pairs.

    Parameters
    ----------
    pairs : Pairs
    start : SlowdownConstants
        What is known without them.

    Raises
    ------
    InputError
        If no pair says anything of any constant.
    """
    from scipy.optimize import least_squares

    names = tuple(LIMITS)
    first = np.array([getattr(start, name).si for name in names])
    errors = np.array([max(getattr(start, name).error, 0.01) for name in names])
    width = np.maximum(first * errors, 0.01)
    measured = np.log(pairs.columns["kernel_slowdown"])
    beside = np.log(pairs.columns["comm_slowdown"])
    also = np.isfinite(beside)

    def residuals(x: Floats) -> Floats:
        factor, other = predicted(pairs, _with(start, x))
        return np.concatenate(
            [(np.log(factor) - measured) / NOISE, (np.log(other) - beside)[also] / NOISE]
        )

    def everything(x: Floats) -> Floats:
        return np.concatenate([residuals(x), (x - first) / width])

    least, most = np.array([LIMITS[name] for name in names]).T
    inside = np.clip(first, least * 1.001, most * 0.999)
    found = least_squares(everything, inside, bounds=(least, most), loss="soft_l1", x_scale=width)
    slope = _slope(residuals, found.x, width)
    seen = np.abs(slope).sum(axis=0) > 1e-6
    if not seen.any():
        raise InputError(f"{pairs.source}: no pair says anything of the constants")
    x = np.where(seen, found.x, first)
    scatter = max(1.0, float(np.mean(residuals(x) ** 2)))
    spread = np.sqrt(np.diag(np.linalg.inv(slope.T @ slope / scatter + np.diag(width**-2))))
    source = f"mpisim calibrate overlap: fitted to {len(pairs)} pairs of {pairs.source}"
    constants = start
    for i, name in enumerate(names):
        if seen[i]:
            error = min(float(spread[i] / x[i]), 10.0)
            number = Quantity(float(f"{x[i]:.4g}"), "1", float(f"{error:.3g}"), source)
            constants = replace(constants, **{name: number})
    return Fitted(
        constants,
        _off(pairs, start),
        _off(pairs, constants),
        tuple(name for name, known in zip(names, seen.tolist()) if known),
    )


def _slope(function: object, x: Floats, width: Floats) -> Floats:
    """Return the derivatives of residuals by each constant, from a difference both ways."""
    assert callable(function)
    columns = []
    for i in range(len(x)):
        step = np.zeros(len(x))
        step[i] = 1e-4 * width[i]
        columns.append((function(x + step) - function(x - step)) / (2 * step[i]))
    return np.stack(columns, axis=1)


def _with(constants: SlowdownConstants, x: Floats) -> SlowdownConstants:
    changed = {
        name: replace(getattr(constants, name), value=float(value))
        for name, value in zip(LIMITS, x.tolist(), strict=True)
    }
    return replace(constants, **changed)


def _off(pairs: Pairs, constants: SlowdownConstants) -> float:
    factor, _ = predicted(pairs, constants)
    return float(np.sqrt(np.mean(np.log(factor / pairs.columns["kernel_slowdown"]) ** 2)))


HEADER = "# Constants of the slowdown of what overlaps, written by `mpisim calibrate overlap`.\n"


def written(constants: SlowdownConstants) -> str:
    """Return the text of a file of constants, of the form of ``data/overlap.toml``."""
    parts = [HEADER]
    for each in fields(constants):
        number: Quantity = getattr(constants, each.name)
        source = number.source.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        parts.append(
            f'[{each.name}]\nvalue = {number.value!r}\nunit = "{number.unit}"\n'
            f'error = {number.error!r}\nsource = "{source}"\n'
        )
    return "\n".join(parts)
