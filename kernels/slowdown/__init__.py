"""Overlap slowdown: kernels and communications at the same time → slowdown factors of both.

Read in this order:

:mod:`.constants`
    ``SlowdownConstants``: ``data/overlap.toml``, or a user's file.
:mod:`.work`
    ``work_of(model, kernels, seconds)``: parts of kernel times due to memory and to SMs.
:mod:`.parametric`
    ``Parametric``: from the ``Load`` of communications to factors, and their ``Sensitivity``.
"""

from .constants import CLASSES, SlowdownConstants, packaged_constants, read_constants
from .parametric import Load, Parametric, Sensitivity
from .work import KernelWork, work_of

__all__ = [
    "CLASSES",
    "KernelWork",
    "Load",
    "Parametric",
    "Sensitivity",
    "SlowdownConstants",
    "packaged_constants",
    "read_constants",
    "work_of",
]
