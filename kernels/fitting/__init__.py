"""From measured kernels to the constants of the analytical model (``mpisim calibrate kernels``).

Read in this order:

:mod:`.least_squares`
    ``fit``: the constants of one formula.
:mod:`.cross_validation`
    Errors of rows that a fit did not see; shrinkage of few chips towards all.
:mod:`.calibrate`
    ``calibrate``, ``write``: all fits and errors, and the file.
"""

from .calibrate import calibrate, write
from .least_squares import FormulaFit, fit, log_errors

__all__ = ["FormulaFit", "calibrate", "fit", "log_errors", "write"]
