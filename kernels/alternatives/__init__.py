"""Kernel models of other simulators, behind the same interface, to compare with.

``Li``
    Linear regression on arithmetic and traffic, carried from GPU to GPU (as in TrioSim).
``Scaling``
    Times of one GPU scaled by the ratio of peak rates or of bandwidths (as in SimAI).
``OperationDatabase``
    Measured times: exact, interpolated, or another model's.

The roofline is :class:`mpisim.kernels.Roofline`.
"""

from .database import OperationDatabase
from .li import Li, Regression, regress
from .scaling import Scaling

__all__ = ["Li", "OperationDatabase", "Regression", "Scaling", "regress"]
