"""Models of communications by name, for measured batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError

from .batches import Batch
from .calibration import Calibration
from .deepep import DeepEp
from .echo import Echo
from .fit import DEEPEP, Fit, chain, fit_all
from .form import Form, Model
from .line import Line
from .nccl_form import NcclForm
from .overlay import served
from .sigmoid import Sigmoids

__all__ = ["MODELS", "Predictor", "form_of", "model_of", "predictor"]

MODELS = ("nccl", "alpha-beta", "echo", "sigmoid")

Floats = NDArray[np.float64]

Predictor = Callable[[Batch], tuple[Floats, Floats | None]]
"""From a batch to durations in seconds and their relative standard errors, if the model states any.
Raises InputError where it covers the batch not."""


@cache
def form_of(library: str) -> Form:
    """Return the formula for what ran: NCCL's, or that of a kernel of DeepEP's."""
    return DeepEp() if library.startswith(DEEPEP) else NcclForm()


def model_of(batch: Batch, calibration: Calibration) -> Model:
    """Return the calibrated model of a batch's platform."""
    found = served(calibration, chain(batch))
    form = form_of(batch.library)
    return Model(form, found.numbers, batch.platform.system, batch.settings)


def predictor(name: str, calibration: Calibration, training: Sequence[Batch]) -> Predictor:
    """Return a model.

    Parameters
    ----------
    name : str
        Of `MODELS`. All but ``"nccl"`` learn from `training`; DeepEP's kernels are always
        predicted by their own formula.
    calibration : Calibration
    training : sequence of Batch

    Raises
    ------
    InputError
        If the model learns from measurements and there are none.
    """

    def calibrated(batch: Batch) -> tuple[Floats, Floats | None]:
        model = model_of(batch, calibration)
        found = model.seconds(batch.operation, batch.bytes, batch.shape)
        return found, served(calibration, chain(batch)).error(batch.bytes, batch.regime)

    if name == "nccl":
        return calibrated
    learned = [batch for batch in training if not batch.library.startswith(DEEPEP)]
    if not learned:
        raise InputError(f"the model {name!r} learns from measurements, and none are for training")
    if name == "sigmoid":
        curves = Sigmoids(learned)
        return lambda batch: (curves.seconds(batch), None)
    form: Form = Echo() if name == "echo" else Line()
    fits: dict[str, Fit] = dict(fit_all(form, learned))

    def fitted(batch: Batch) -> tuple[Floats, Floats | None]:
        owner = next((each for each in chain(batch) if each in fits), None)
        if owner is None:
            raise InputError(f"{name} learned nothing of {batch.library}")
        model = Model(form, fits[owner].numbers, batch.platform.system)
        return model.seconds(batch.operation, batch.bytes, batch.shape), None

    return fitted
