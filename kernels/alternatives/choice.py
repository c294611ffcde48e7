"""Name of a model and measured kernels → models of GPUs that learn from the measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mpisim.base.errors import InputError

from ..analytical import Analytical, KernelCalibration
from ..gpu import Gpu, find_gpu
from ..gpu_parameters import GpuParameters, gpu_parameters
from ..measured import MeasuredKernels
from ..model import KernelModel
from .database import OperationDatabase
from .li import Li, regress
from .scaling import Scaling

__all__ = ["LEARNED_MODELS", "learned_models"]

LEARNED_MODELS = ("li", "simai", "database")
"""Names of the models, in options and experiments."""


def learned_models(
    name: str,
    rows: Sequence[MeasuredKernels],
    calibration: KernelCalibration | None = None,
    *,
    alone: bool = False,
) -> Callable[[Gpu], KernelModel]:
    """Name of a model, measured kernels → function from a GPU to its kernel model.

    ``"li"`` fits its lines to all rows. ``"database"`` has the rows of the GPU itself, and the
    analytical model for other kernels. ``"simai"`` scales such a database: of the GPU of highest
    peak rate among the rows, the GPU itself left out.

    Parameters
    ----------
    name : str
        One of `LEARNED_MODELS`.
    rows : sequence of MeasuredKernels
    calibration : KernelCalibration, optional
        Of the analytical model, and of the CPU time that measurements hold; the packaged one if not
        given.
    alone : bool
        Whether kernels that the analytical model estimates run by themselves, see `Analytical`.

    Raises
    ------
    InputError
        If there are no rows; from the returned function for ``"simai"``, if there are none of
        another GPU.
    """
    if not rows:
        raise InputError(f"the model {name!r} learns from measured rows, and none are for training")
    analytical: dict[str, Analytical] = {}

    def launch(measured: MeasuredKernels) -> np.ndarray:
        gpu = measured.gpu
        if gpu not in analytical:
            analytical[gpu] = Analytical(find_gpu(gpu), calibration, alone=True)
        found = analytical[gpu].look_up(measured.family, measured.dtype)
        return found.launch + found.growth * measured.elapsed

    def database(gpu: Gpu) -> OperationDatabase:
        return OperationDatabase(rows, Analytical(gpu, calibration, alone=alone), launch)

    if name == "database":
        return database
    if name == "li":
        lines = regress(rows, launch)
        return lambda gpu: Li(gpu, lines)
    by_rate = sorted({each.gpu for each in rows}, key=_peak_rate, reverse=True)

    def scaled(gpu: Gpu) -> Scaling:
        own = GpuParameters.of(gpu).name
        others = [each for each in by_rate if each != own]
        if not others:
            raise InputError(f"SimAI's rules need rows of another GPU than {own} for training")
        return Scaling(gpu, database(find_gpu(others[0])))

    return scaled


def _peak_rate(gpu: str) -> float:
    return max(gpu_parameters(gpu).peaks.values())
