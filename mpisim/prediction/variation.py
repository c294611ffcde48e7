"""Programs whose ranks are not all alike: slow GPUs, GPUs that differ by chance, jitter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.rank_ranges import span
from ..engine.duration_factors import ONE, jitter_factors
from ..experiment import VariationChoice
from ..program import Jitter, Program

__all__ = ["revaried", "varied"]

OF_RANK = -2
"""The row that stands for the whole rank where one draws a factor for it: no row has it."""


def varied(program: Program, choice: VariationChoice, sample: int = 0) -> Program:
    """Return a program whose ranks differ as chosen. Local.

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
    >>> varied(program, VariationChoice(speeds={"3": 0.9})).speed[3]      # doctest: +SKIP
    0.9
    """
    speed = program.speed * _speeds(choice, program.n_ranks, sample)
    jitter = Jitter(choice.kernels, _seed(choice, sample)) if choice.kernels else program.jitter
    return program.replace(speed=speed, jitter=jitter)


def revaried(
    program: Program, before: VariationChoice, after: VariationChoice, sample: int = 0
) -> Program:
    """Return a program that `varied` made by one choice as it is by another. Local.

    Parameters
    ----------
    program : Program
    before, after : VariationChoice
    sample : int
        Added to the seed of `after`.

    Raises
    ------
    InputError
        As `varied`.
    """
    speed = _speeds(before, program.n_ranks)
    own = np.where(program.speed == speed, 1.0, program.speed / speed)
    jitter = None if before.kernels else program.jitter
    return varied(program.replace(speed=own, jitter=jitter), after, sample)


def _seed(choice: VariationChoice, sample: int) -> int:
    return (choice.seed + sample) % (1 << 64)


def _speeds(choice: VariationChoice, n_ranks: int, sample: int = 0) -> NDArray[np.float64]:
    speed = _given(choice, n_ranks)
    if choice.gpus:
        speed = speed / _drawn(Jitter(choice.gpus, _seed(choice, sample)), n_ranks)
    return speed


def _given(choice: VariationChoice, n_ranks: int) -> NDArray[np.float64]:
    speed = np.ones(n_ranks)
    known = np.zeros(n_ranks, bool)
    for text, value in choice.speeds.items():
        ranks = span(text, "variation.speeds", "rank", n_ranks)
        if known[ranks].any():
            rank = ranks[int(np.argmax(known[ranks]))]
            raise InputError(f"variation.speeds: rank {rank} is given a speed twice")
        known[ranks] = True
        speed[ranks] = value
    return speed


def _drawn(jitter: Jitter, n_ranks: int) -> NDArray[np.float64]:
    row = np.array([OF_RANK])
    return np.array([jitter_factors(jitter, rank, row)[0] for rank in range(n_ranks)]) / ONE
