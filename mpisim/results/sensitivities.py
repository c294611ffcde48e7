"""What the step time depends on, first order: stored with the result of a prediction."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["TIMES", "Sensitivities", "first_order"]

TIMES = ("latency", "launch_time")
"""Quantities of which more makes a step longer; all others are rates."""


class Sensitivities(NamedTuple):
    """How the step time answers to each quantity of the hardware or the plan, the most first.

    Attributes
    ----------
    names : tuple of str
        As "NIC bandwidth".
    keys : tuple of str
        The key of an experiment that sets it, as "cluster.nic_bandwidth", or empty.
    now : tuple of str
        Its value, as "50 GB/s".
    elasticity : float64, shape (q,)
        Relative change of the step for a small relative change of the quantity, along the critical
        path as it is: −0.3 says that 1 % more of it makes the step 0.3 % shorter.
    """

    names: tuple[str, ...]
    keys: tuple[str, ...]
    now: tuple[str, ...]
    elasticity: NDArray[np.float64]

    def change(self, number: int, factor: float) -> float:
        """Return the relative change of the step for a factor of a quantity, first order.

        Parameters
        ----------
        number : int
            Index of the quantity.
        factor : float
            Its new value over the present one.
        """
        quantity = self.keys[number].rpartition(".")[2]
        return first_order(quantity, float(self.elasticity[number]), factor)


def first_order(name: str, elasticity: float, factor: float) -> float:
    """Return the relative change of a step for a factor of a quantity, by its elasticity.

    What a rate bounds takes a time in proportion to its inverse: twice the rate saves half of it.

    Parameters
    ----------
    name : str
        Of the quantity, as the last part of its key.
    elasticity : float
    factor : float

    Examples
    --------
    >>> first_order("nic_bandwidth", -0.5, 2.0), first_order("latency", 0.5, 2.0)
    (-0.25, 0.5)
    """
    return elasticity * (factor - 1 if name in TIMES else 1 - 1 / factor)
