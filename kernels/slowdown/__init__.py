"""Overlap slowdown: how much kernels and communications that run at the same time slow each other.

Read in this order:

:mod:`.constants`
    ``SlowdownConstants``: ``data/overlap.toml``, or a user's file.
:mod:`.work`
    ``work_of(model, kernels, seconds)``: what is due to memory and to multiprocessors in kernels.
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
