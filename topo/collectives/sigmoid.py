"""Curves of three regions: latency, transition, bandwidth.

Lin et al. ("Towards universal performance modeling for machine learning training on multi-GPU
platforms", arXiv:2404.12674) fit to each collective's measured bandwidth over the logarithm of the
size: a constant duration where latency rules, a sigmoid between, a constant bandwidth where that
rules. One curve a platform, operation and group; groups that were not measured take that of the
nearest number of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.kinds import Operation

from ..bus import bus_factor
from .batches import Batch
from .fit import chain
from .solve import least_squares

__all__ = ["Curve", "Sigmoids"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One fitted curve.

    Attributes
    ----------
    latency : float
        Seconds, of small messages.
    bandwidth : float
        Bus bandwidth of large ones, bytes per second.
    middle : float
        Bytes at which half of the bandwidth is reached.
    slope : float
        Of the sigmoid over the natural logarithm of the size.
    """

    latency: float
    bandwidth: float
    middle: float
    slope: float

    def seconds(self, bytes: Floats, factor: float) -> Floats:
        """Return durations; `factor` is the bytes over a rank's link per byte of the buffer."""
        reached = self.bandwidth / (1 + (self.middle / bytes) ** self.slope)
        found: Floats = np.maximum(self.latency, factor * bytes / reached)
        return found


class Sigmoids:
    """Curves for all that was measured.

    Parameters
    ----------
    training : iterable of Batch
    """

    name = "sigmoid"

    def __init__(self, training: Iterable[Batch]) -> None:
        groups: dict[tuple[str, Operation, bool, int], list[Batch]] = {}
        for batch in training:
            several = batch.shape.nodes > 1
            for owner in chain(batch):
                if batch.platform.feeds(owner):
                    key = (owner, batch.operation, several, batch.shape.ranks)
                    groups.setdefault(key, []).append(batch)
        self._groups = groups
        self._curves: dict[tuple[str, Operation, bool, int], Curve] = {}

    def seconds(self, batch: Batch) -> Floats:
        """Return the durations of a batch's rows.

        Raises
        ------
        InputError
            If nothing of the kind was measured.
        """
        several, ranks = batch.shape.nodes > 1, batch.shape.ranks
        factor = bus_factor(batch.operation, ranks)
        for owner in chain(batch):
            sizes = [key[3] for key in self._groups if key[:3] == (owner, batch.operation, several)]
            if sizes:
                near = min(sizes, key=lambda size: (abs(log(size / ranks)), size))
                curve = self._curve((owner, batch.operation, several, near))
                return curve.seconds(batch.bytes, factor)
        where = "across nodes" if several else "in a node"
        raise InputError(f"no {batch.operation.name.lower()} {where} to learn from")

    def _curve(self, key: tuple[str, Operation, bool, int]) -> Curve:
        if key not in self._curves:
            self._curves[key] = _fitted(self._groups[key])
        return self._curves[key]


def _fitted(measured: Sequence[Batch]) -> Curve:
    weights = np.concatenate([np.full(len(each), 1 / len(each)) for each in measured])
    factors = [bus_factor(each.operation, each.shape.ranks) for each in measured]

    def errors(point: Floats) -> Floats:
        curve = Curve(*point.tolist())
        return np.concatenate(
            [
                np.log(curve.seconds(each.bytes, factor) / each.seconds)
                for each, factor in zip(measured, factors)
            ]
        )

    fastest = max(
        float(np.max(factor * each.bytes / each.seconds)) for each, factor in zip(measured, factors)
    )
    least = min(float(each.seconds.min()) for each in measured)
    start = np.array([least, fastest, fastest * least, 0.8])
    return Curve(*least_squares(errors, start, weights, start, pull=np.full(4, 0.01)).tolist())
