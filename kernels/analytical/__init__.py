"""Kernel times by formula: tiles and waves, memory traffic, caches, a floor; few fitted constants.

``Machine``
    A GPU as plain numbers.
``Constant``, ``FamilyModule``
    What a module of an operator family offers.
``family_module(kernel_family)``, ``stack(kernels)``
    The module that serves a kernel, and the columns it computes with.
"""

from .family import Constant, FamilyModule, family_module, stack
from .machine import Machine

__all__ = ["Constant", "FamilyModule", "Machine", "family_module", "stack"]
