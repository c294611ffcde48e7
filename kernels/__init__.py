"""How long one kernel takes on a GPU.

``find_gpu(name)``, ``Gpu``
    The numbers of a GPU, each with its error bar and source.
``gemm``, ``attention``, ``memory_bound``
    Durations by roofline, as an `Estimate`.
``gemm_flops``, ``attention_flops``
    The work alone.
"""

from .gpu import Gpu, find_gpu
from .roofline import Estimate, attention, attention_flops, gemm, gemm_flops, memory_bound

__all__ = [
    "Estimate",
    "Gpu",
    "attention",
    "attention_flops",
    "find_gpu",
    "gemm",
    "gemm_flops",
    "memory_bound",
]
