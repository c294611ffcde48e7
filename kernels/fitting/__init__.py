"""Measured kernels → constants of the analytical model (``mpisim calibrate kernels``).

Read in this order:

:mod:`.least_squares`
    ``fit``: the constants of one formula.
:mod:`.cross_validation`
    Errors of rows that a fit did not see; shrinkage of few chips towards all.
:mod:`.calibrate`
    ``calibrate``, ``write``: all fits and errors, and the file.
:mod:`.unseen`
    ``leave_each_chip_out``: every chip's calibration by the others alone.
"""

from .calibrate import calibrate, write
from .least_squares import FormulaFit, fit, log_errors
from .unseen import UnseenChip, leave_each_chip_out, with_own_launch

__all__ = [
    "FormulaFit",
    "UnseenChip",
    "calibrate",
    "fit",
    "leave_each_chip_out",
    "log_errors",
    "with_own_launch",
    "write",
]
