"""From an experiment to the model of slowdown that serves it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.quantity import PICOSECONDS
from ..kernels.slowdown import Constants, Parametric, packaged_constants, read_constants, work_of
from ..topo import Network
from .factors import ParametricFactors
from .rank import Device, Factors, Ranks
from .residents import Residents

if TYPE_CHECKING:
    from ..prediction.prepared import PreparedExperiment
    from ..program import Program
    from ..workloads.pricing import Pricing

__all__ = ["ranks_of"]


def ranks_of(case: PreparedExperiment, network: Network) -> Ranks:
    """Return all that is needed to work out what overlap costs the ranks of a case. Local.

    Raises
    ------
    InputError
        If a file that the experiment names cannot be read, or is not of its form.
    """
    choice = case.experiment.overlap
    source = case.experiment.source
    folder = Path(source).parent
    try:
        constants = packaged_constants()
        if choice.calibration is not None:
            constants = read_constants(folder / choice.calibration)
        pairs = None if choice.pairs is None else folder / choice.pairs
        devices = tuple(
            _device(case.program, each, constants, pairs) for each in case.workload.pricings
        )
    except InputError as error:
        raise InputError(f"{source}: [overlap] {error}") from error
    residents = Residents(case.program, network, constants)
    kinds: NDArray[np.int64] = np.zeros(case.program.n_ranks, np.int64)
    of_rank = case.workload.layout.gpu_of
    return Ranks(case.program, residents, devices, kinds if of_rank is None else of_rank)


def _device(program: Program, pricing: Pricing, constants: Constants, pairs: Path | None) -> Device:
    seconds = [duration / PICOSECONDS for _, duration in pricing.kernels]
    work = work_of(pricing.model, list(pricing.kernels.values()), seconds)
    model = Parametric(work, constants)
    factors: Factors = ParametricFactors(model)
    if pairs is not None:
        from .learned import Learned, LearnedFactors

        factors = LearnedFactors(Learned.read(pairs, work.machine.name), model)
    return Device.of(program, factors, work, pricing.kernels)
