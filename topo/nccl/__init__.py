"""NCCL's own model: which algorithm and protocol it takes, and how long that lasts.

``Nccl``, ``Choice``
    The model, and what it says of one communication.
``System``, ``Shape``
    A kind of machine, and the geometry of a group of ranks on it.
``Settings``
    The variables ``NCCL_*`` that matter.
``Factors``
    The calibration of a platform.
"""

from .channels import Factors
from .model import Choice, Nccl
from .settings import Settings
from .shape import Shape
from .system import System, version_of

__all__ = ["Choice", "Factors", "Nccl", "Settings", "Shape", "System", "version_of"]
