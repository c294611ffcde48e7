"""How long one kernel takes on a GPU.

``find_gpu(name_or_path)``, ``gpu_names()``, ``Gpu``
    The numbers of a GPU, each with its error bar and source.
``KernelModel``, ``Estimate``
    What every kernel model offers, and what it answers.
``Roofline``
    The model by arithmetic and memory traffic.
``operations``
    Descriptions of kernels: what they compute, and the memory they touch.
"""

from . import operations
from .gpu import Gpu, find_gpu, gpu_names
from .model import Estimate, KernelModel
from .roofline import Roofline

__all__ = [
    "Estimate",
    "Gpu",
    "KernelModel",
    "Roofline",
    "find_gpu",
    "gpu_names",
    "operations",
]
