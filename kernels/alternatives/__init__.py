"""Kernel models of other simulators, behind the same interface.

An experiment chooses one by ``[kernels] model``, with a table of measured kernels of its own
(``[kernels] measurements``); ``mpisim validate kernels --model`` compares them. The roofline is
:class:`mpisim.kernels.Roofline`.

:mod:`.li`
    ``Li``: regression on arithmetic and traffic, carried from GPU to GPU (as in TrioSim).
:mod:`.database`
    ``OperationDatabase``: measured times: exact, interpolated, or another model's.
:mod:`.scaling`
    ``Scaling``: times of one GPU scaled by the ratio of peak rates or of bandwidths (as in SimAI).
:mod:`.choice`
    ``learned_models``: name of a model and measured kernels → models of GPUs.
"""

from .choice import LEARNED_MODELS, learned_models
from .database import OperationDatabase
from .li import Li, Regression, regress
from .scaling import Scaling

__all__ = [
    "LEARNED_MODELS",
    "Li",
    "OperationDatabase",
    "Regression",
    "Scaling",
    "learned_models",
    "regress",
]
