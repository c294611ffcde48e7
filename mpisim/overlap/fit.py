"""Fitting: measured pairs → constants of the slowdown model.

Robust least squares of log(predicted / measured) (soft L1, so that outliers count little), in units
of the error of one pair, with the previous constants as priors, each with its error bar. Constants
that no pair depends on keep their values.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.quantity import Quantity
from ..kernels.analytical.tiles import wave_stretch
from ..kernels.slowdown import CLASSES, SlowdownConstants
from ..kernels.slowdown.parametric import slowed
from ..program import Operation
from ..topo.traffic.transfers import NCCL_ALGORITHMS
from .pairs import COLLECTIVES, Pairs

__all__ = ["OverlapFit", "fit", "predicted", "written"]

Floats = NDArray[np.float64]

PAIR_ERROR = 0.05
"""Relative error of one measured slowdown."""

TRAFFIC_CONSTANTS = ("gather", "reduce", "multicast", "send")

FIT_BOUNDS = {
    **dict.fromkeys(TRAFFIC_CONSTANTS, (0.1, 10.0)),
    **dict.fromkeys(CLASSES, (0.005, 2.0)),
    "communication": (0.005, 2.0),
}
"""SlowdownConstants that are fitted, and their bounds: above 0, since error bars are relative."""


@frozen
class OverlapFit:
    """The outcome of a fit.

    Attributes
    ----------
    constants : SlowdownConstants
    before, after : float
        Root of the mean square of log(predicted / measured), of kernels.
    known : tuple of str
        The constants that pairs depend on.
    """

    constants: SlowdownConstants
    before: float
    after: float
    known: tuple[str, ...]


def predicted(pairs: Pairs, constants: SlowdownConstants) -> tuple[Floats, Floats]:
    """Return the slowdowns of kernels and of communications, shape (n,) each.

    The part of a kernel's time that memory limits follows from the shares of the memory's and the
    multiprocessors' rates that it reaches, if given; otherwise from its class: matrix products are
    limited by arithmetic, all other kernels by memory.

    Parameters
    ----------
    pairs : Pairs
        n of them, of GPUs that are among `pairs.machines`.
    constants : SlowdownConstants
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
            NCCL_ALGORITHMS[algorithm] if algorithm >= 0 else "",
        )
        for collective, algorithm in zip(pairs.collective.tolist(), pairs.algorithm.tolist())
    ]


def fit(pairs: Pairs, start: SlowdownConstants) -> OverlapFit:
    """Fit constants to pairs.

    Parameters
    ----------
    pairs : Pairs
    start : SlowdownConstants
        The prior constants.

    Raises
    ------
    InputError
        If pairs depend on no constant.
    """
    from scipy.optimize import least_squares

    names = tuple(FIT_BOUNDS)
    first = np.array([getattr(start, name).si for name in names])
    errors = np.array([max(getattr(start, name).error, 0.01) for name in names])
    width = np.maximum(first * errors, 0.01)
    measured = np.log(pairs.columns["kernel_slowdown"])
    beside = np.log(pairs.columns["comm_slowdown"])
    also = np.isfinite(beside)

    def residuals(x: Floats) -> Floats:
        factor, other = predicted(pairs, _with(start, x))
        return np.concatenate(
            [(np.log(factor) - measured) / PAIR_ERROR, (np.log(other) - beside)[also] / PAIR_ERROR]
        )

    def everything(x: Floats) -> Floats:
        return np.concatenate([residuals(x), (x - first) / width])

    lower, upper = np.array([FIT_BOUNDS[name] for name in names]).T
    inside = np.clip(first, lower * 1.001, upper * 0.999)
    found = least_squares(everything, inside, bounds=(lower, upper), loss="soft_l1", x_scale=width)
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
    return OverlapFit(
        constants,
        _off(pairs, start),
        _off(pairs, constants),
        tuple(name for name, known in zip(names, seen.tolist()) if known),
    )


def _slope(function: object, x: Floats, width: Floats) -> Floats:
    """Return the derivatives of residuals by each constant, by central differences."""
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
        for name, value in zip(FIT_BOUNDS, x.tolist(), strict=True)
    }
    return replace(constants, **changed)


def _off(pairs: Pairs, constants: SlowdownConstants) -> float:
    factor, _ = predicted(pairs, constants)
    return float(np.sqrt(np.mean(np.log(factor / pairs.columns["kernel_slowdown"]) ** 2)))


HEADER = "# Constants of the slowdown of what overlaps, written by `mpisim calibrate overlap`.\n"


def written(constants: SlowdownConstants) -> str:
    """Return constants as the text of a file in the format of ``data/overlap.toml``."""
    parts = [HEADER]
    for each in fields(constants):
        number: Quantity = getattr(constants, each.name)
        source = number.source.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        parts.append(
            f'[{each.name}]\nvalue = {number.value!r}\nunit = "{number.unit}"\n'
            f'error = {number.error!r}\nsource = "{source}"\n'
        )
    return "\n".join(parts)
