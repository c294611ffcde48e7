"""Models of collectives by name, as predictors of measured batches.

``nccl`` is the calibrated model. ``alpha-beta`` and ``echo`` are formulas fitted to the training
half; ``sigmoid`` are curves of three regions (Lin et al., "Towards universal performance modeling
for machine learning training on multi-GPU platforms", arXiv:2404.12674): a constant duration where
latency rules, a sigmoid of the bandwidth over the logarithm of the size, a constant bandwidth where
that rules. One curve a platform, operation and group; groups that were not measured take that of
the nearest number of GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import log

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation

from ..network import bus_factor
from .batches import Batch
from .calibration import DEEPEP, CollectiveCalibration, calibration_of
from .fit import CollectiveFit, fit_owners, least_squares, owner_chain
from .formulas import (
    AlphaBetaFormula,
    CostFormula,
    DeepEpFormula,
    EchoFormula,
    FittedFormula,
    NcclFormula,
)

__all__ = ["MODELS", "Predictor", "SigmoidCurve", "fitted_formula", "formula_of", "predictor"]

Floats = NDArray[np.float64]


@frozen
class SigmoidCurve:
    """A fitted curve: latency, sigmoid of the bandwidth, bandwidth.

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
        """Return durations; `factor` is the bytes over a rank's link per byte of the buffer.

        Parameters
        ----------
        bytes : float64, shape (n,)
            Of the full buffer, above 0.
        factor : float
            Above 0, see `bus_factor`.

        Returns
        -------
        float64, shape (n,)
            In seconds, at least `latency`.
        """
        reached = self.bandwidth / (1 + (self.middle / bytes) ** self.slope)
        found: Floats = np.maximum(self.latency, factor * bytes / reached)
        return found


class SigmoidModel:
    """Sigmoid curves of all measured operations and groups.

    Parameters
    ----------
    training : iterable of Batch
    """

    name = "sigmoid"

    def __init__(self, training: Iterable[Batch]) -> None:
        groups: dict[tuple[str, Operation, bool, int], list[Batch]] = {}
        for batch in training:
            several = batch.shape.nodes > 1
            for owner in owner_chain(batch):
                if batch.platform.trains(owner):
                    key = (owner, batch.operation, several, batch.shape.ranks)
                    groups.setdefault(key, []).append(batch)
        self._groups = groups
        self._curves: dict[tuple[str, Operation, bool, int], SigmoidCurve] = {}

    def seconds(self, batch: Batch) -> Floats:
        """Return the durations of a batch's rows.

        Raises
        ------
        InputError
            If nothing of the kind was measured.
        """
        several, ranks = batch.shape.nodes > 1, batch.shape.ranks
        factor = bus_factor(batch.operation, ranks)
        for owner in owner_chain(batch):
            sizes = [key[3] for key in self._groups if key[:3] == (owner, batch.operation, several)]
            if sizes:
                near = min(sizes, key=lambda size: (abs(log(size / ranks)), size))
                curve = self._curve((owner, batch.operation, several, near))
                return curve.seconds(batch.bytes, factor)
        where = "across nodes" if several else "in a node"
        raise InputError(f"no {batch.operation.name.lower()} {where} to learn from")

    def _curve(self, key: tuple[str, Operation, bool, int]) -> SigmoidCurve:
        if key not in self._curves:
            self._curves[key] = _fit_curve(self._groups[key])
        return self._curves[key]


def _fit_curve(measured: Sequence[Batch]) -> SigmoidCurve:
    weights = np.concatenate([np.full(len(each), 1 / len(each)) for each in measured])
    factors = [bus_factor(each.operation, each.shape.ranks) for each in measured]

    def errors(point: Floats) -> Floats:
        curve = SigmoidCurve(*point.tolist())
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
    return SigmoidCurve(
        *least_squares(errors, start, weights, start, pull=np.full(4, 0.01)).tolist()
    )


MODELS = ("nccl", "alpha-beta", "echo", "sigmoid")

Predictor = Callable[[Batch], tuple[Floats, Floats | None]]
"""From a batch to durations in seconds and their relative standard errors, if the model states any.
Raises InputError where it covers the batch not."""


@cache
def formula_of(library: str) -> CostFormula:
    """Library of a measurement → its formula: NCCL's, or that of a DeepEP kernel."""
    return DeepEpFormula() if library.startswith(DEEPEP) else NcclFormula()


def fitted_formula(batch: Batch, calibration: CollectiveCalibration) -> FittedFormula:
    """Batch, calibration → calibrated model of its platform.

    Parameters
    ----------
    batch : Batch
        Whose platform, library and settings are taken; its rows do not matter.
    calibration : CollectiveCalibration
        Where the numbers come from.
    """
    found = calibration_of(calibration, owner_chain(batch))
    form = formula_of(batch.library)
    return FittedFormula(form, found.numbers, batch.platform.system, batch.settings)


def predictor(
    name: str, calibration: CollectiveCalibration, training: Sequence[Batch]
) -> Predictor:
    """Name of a model → predictor of measured batches.

    Parameters
    ----------
    name : str
        Of `MODELS`. All but ``"nccl"`` learn from `training`; DeepEP's kernels are always
        predicted by their own formula.
    calibration : CollectiveCalibration
    training : sequence of Batch

    Raises
    ------
    InputError
        If the model learns from measurements and there are none.
    """

    def calibrated(batch: Batch) -> tuple[Floats, Floats | None]:
        model = fitted_formula(batch, calibration)
        found = model.seconds(batch.operation, batch.bytes, batch.shape)
        return found, calibration_of(calibration, owner_chain(batch)).error(
            batch.bytes, batch.regime
        )

    if name == "nccl":
        return calibrated
    learned = [batch for batch in training if not batch.library.startswith(DEEPEP)]
    if not learned:
        raise InputError(f"the model {name!r} learns from measurements, and none are for training")
    if name == "sigmoid":
        curves = SigmoidModel(learned)
        return lambda batch: (curves.seconds(batch), None)
    form: CostFormula = EchoFormula() if name == "echo" else AlphaBetaFormula()
    fits: dict[str, CollectiveFit] = dict(fit_owners(form, learned))

    def fitted(batch: Batch) -> tuple[Floats, Floats | None]:
        owner = next((each for each in owner_chain(batch) if each in fits), None)
        if owner is None:
            raise InputError(f"{name} learned nothing of {batch.library}")
        model = FittedFormula(form, fits[owner].numbers, batch.platform.system)
        return model.seconds(batch.operation, batch.bytes, batch.shape), None

    return fitted
