"""Kernel times by formula: tiles and waves, memory traffic, caches, a floor; few fitted constants.

``Analytical``
    The model of a GPU; ``Calibration``, the constants it takes.
``shared(gpu)``
    The model of a GPU, one for all who ask.
``Machine``
    A GPU as plain numbers.
``Constant``, ``FamilyModule``
    What a module of an operator family offers.
``family_module(kernel_family)``, ``stack(kernels)``
    The module that serves a kernel, and the columns it computes with.
"""

from .calibration import Calibration
from .family import Constant, FamilyModule, family_module, stack
from .machine import Machine
from .model import Analytical
from .shared import shared

__all__ = [
    "Analytical",
    "Calibration",
    "Constant",
    "FamilyModule",
    "Machine",
    "family_module",
    "shared",
    "stack",
]
