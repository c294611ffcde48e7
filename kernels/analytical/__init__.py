"""Analytical kernel model: tiles, waves, memory traffic, caches, a floor; few fitted constants.

Read in this order:

:mod:`.formula`
    `Formula`: constants, columns, seconds; arithmetic on numbers or arrays; overlap.
:mod:`.tiles`
    Matrix products as tiles on multiprocessors.
:mod:`.gemm`, :mod:`.attention`, :mod:`.convolution`, :mod:`.memory_bound`, :mod:`.column_sums`,
:mod:`.reductions`, :mod:`.embedding`
    The formulas of the families; the head of each module states them.
:mod:`.families`
    Kernel family → its formula; variants.
:mod:`.calibration`
    The file of fitted constants.
:mod:`.lookup`
    GPU, format → fitted constants and their error.
:mod:`.model`
    ``Analytical``: all of it behind the interface of kernel models.
"""

from .calibration import KernelCalibration
from .families import formula_of, stack_columns
from .formula import Constant, Formula
from .model import Analytical, analytical_model

__all__ = [
    "Analytical",
    "Constant",
    "Formula",
    "KernelCalibration",
    "analytical_model",
    "formula_of",
    "stack_columns",
]
