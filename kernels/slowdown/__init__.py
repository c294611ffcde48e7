"""How much kernels and communications that run at the same time slow each other down.

``Parametric``, ``Load``, ``Sensitivity``
    The model of a few constants, and what it takes.
``Constants``, ``packaged_constants()``, ``read_constants(path)``, ``CLASSES``
    Those constants: ``data/overlap.toml``, or a user's file.
``Work``, ``work_of(model, kernels, seconds)``
    What kernels are made of.
"""

from .constants import CLASSES, Constants, packaged_constants, read_constants
from .parametric import Load, Parametric, Sensitivity
from .work import Work, work_of

__all__ = [
    "CLASSES",
    "Constants",
    "Load",
    "Parametric",
    "Sensitivity",
    "Work",
    "packaged_constants",
    "read_constants",
    "work_of",
]
