"""Differences between GPUs (``[variation]``): given and random speeds, jitter, slowest GPU.

**Given and random speeds** change the program: `with_variation` gives each rank a speed and each
kernel its jitter.

**The slowest GPU** changes the kernel model: GPUs of a kind reach different clocks at the same
power, and so different rates. The model applies that to the kernels that draw most power (matrix
products, convolutions, attention), and not to memory-bound kernels. Kernels are measured on one
GPU. A step on many GPUs ends when the slowest is done, as every rank communicates with the others
at least once a step. Of N GPUs whose times are lognormal with spread s
(``data/variation.toml``), the slowest takes

    exp(s z),   z = Φ⁻¹((N - 0.375) / (N + 0.25))

times as long as the median, by Blom's formula for the mean of the largest of N normal numbers: z is
1.4 for 8 GPUs, 2.3 for 64, 3.2 for 1,024. It is an upper bound where ranks rarely wait for each
other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.presets import packaged
from ..base.quantity import Quantity
from ..base.rank_ranges import parse_ranges
from ..base.schema import build
from ..engine.duration_factors import ONE, jitter_factors
from ..experiment import VariationChoice
from ..kernels import Estimate, Gpu, KernelModel
from ..kernels.operations import Attention, Convolution, Gemm, GroupedGemm, Kernel
from ..program import Jitter, Program

__all__ = ["SlowestKernels", "slowest_factor", "with_changed_variation", "with_variation"]

RANK_ROW = -2
"""The number of no row: random factors of it are those of the whole rank."""

FILE = "variation.toml"

FACTOR_NAME = "slowest GPU"
"""Name of the factor among the numbers that a step depends on."""


def with_variation(program: Program, choice: VariationChoice, sample: int = 0) -> Program:
    """Program, ``[variation]`` → program with a speed for each rank, and jitter. Local.

    Parameters
    ----------
    program : Program
    choice : VariationChoice
    sample : int
        Added to the seed.

    Raises
    ------
    InputError
        If a speed is given to a rank that there is not, or twice.

    Examples
    --------
    >>> with_variation(program, VariationChoice(speeds={"3": 0.9})).speed[3]      # doctest: +SKIP
    0.9
    """
    speed = program.speed * _speeds(choice, program.n_ranks, sample)
    jitter = Jitter(choice.kernels, _seed(choice, sample)) if choice.kernels else program.jitter
    return program.replace(speed=speed, jitter=jitter)


def with_changed_variation(
    program: Program, before: VariationChoice, after: VariationChoice, sample: int = 0
) -> Program:
    """Program of `with_variation` by one choice → the program by another choice. Local.

    Parameters
    ----------
    program : Program
    before, after : VariationChoice
    sample : int
        Added to the seed of `after`.

    Raises
    ------
    InputError
        As `with_variation`.
    """
    speed = _speeds(before, program.n_ranks)
    own = np.where(program.speed == speed, 1.0, program.speed / speed)
    jitter = None if before.kernels else program.jitter
    return with_variation(program.replace(speed=own, jitter=jitter), after, sample)


def _seed(choice: VariationChoice, sample: int) -> int:
    return (choice.seed + sample) % (1 << 64)


def _speeds(choice: VariationChoice, n_ranks: int, sample: int = 0) -> NDArray[np.float64]:
    speed = _given_speeds(choice, n_ranks)
    if choice.gpus:
        speed = speed / _random_factors(Jitter(choice.gpus, _seed(choice, sample)), n_ranks)
    return speed


def _given_speeds(choice: VariationChoice, n_ranks: int) -> NDArray[np.float64]:
    speed = np.ones(n_ranks)
    known = np.zeros(n_ranks, bool)
    for numbers, value in choice.speeds.items():
        ranks = parse_ranges(numbers, "variation.speeds", "rank", n_ranks)
        if known[ranks].any():
            rank = ranks[int(np.argmax(known[ranks]))]
            raise InputError(f"variation.speeds: rank {rank} is given a speed twice")
        known[ranks] = True
        speed[ranks] = value
    return speed


def _random_factors(jitter: Jitter, n_ranks: int) -> NDArray[np.float64]:
    row = np.array([RANK_ROW])
    return np.array([jitter_factors(jitter, rank, row)[0] for rank in range(n_ranks)]) / ONE


# --- the slowest of many GPUs ---------------------------------------------------------------------


@cache
def _spread() -> Quantity:
    return build(Quantity, packaged(FILE)["gpus"], FILE, "gpus")


def slowest_factor(gpus: int) -> Quantity:
    """Number of GPUs → time of products on the slowest of them, relative to a typical GPU."""
    spread = _spread()
    normal = NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25)) if gpus > 1 else 0.0
    beyond = spread.si * normal
    return Quantity(math.exp(beyond), "1", beyond * spread.error, spread.source)


class SlowestKernels:
    """A kernel model of the slowest of many GPUs.

    Parameters
    ----------
    model : KernelModel
        Of most of them.
    gpus : int
    """

    def __init__(self, model: KernelModel, gpus: int) -> None:
        self._model, self._factor = model, slowest_factor(gpus)
        self._prices: dict[Kernel, Estimate] = {}

    @property
    def gpu(self) -> Gpu:
        """The GPU."""
        return self._model.gpu

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """Numbers that times depend on, by name: the model's and the factor."""
        return {**self._model.numbers, FACTOR_NAME: self._factor}

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return the duration of a kernel."""
        if not isinstance(kernel, (Gemm, GroupedGemm, Convolution, Attention)):
            return self._model.estimate(kernel)
        found = self._prices.get(kernel)
        if found is None:
            typical = self._model.estimate(kernel)
            duration = round(typical.duration * self._factor.value)
            found = self._prices[kernel] = typical._replace(
                duration=duration, shares={**typical.shares, FACTOR_NAME: 1.0}
            )
        return found

    def scaled(self, factors: Mapping[str, float]) -> SlowestKernels:
        """Return the model of the slowest of GPUs whose numbers are multiplied.

        Parameters
        ----------
        factors : mapping of str to float
            As of `mpisim.kernels.scaled.scaled_gpu`.
        """
        found = copy(self)
        found._model, found._prices = self._model.scaled(factors), {}
        return found
