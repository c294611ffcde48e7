"""What the step time depends on, first order: stored with the result of a prediction."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Sensitivities"]


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
