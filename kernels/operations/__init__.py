"""Shape of a GPU kernel → its FLOP and its bytes of memory traffic, by families of kernels.

A description says nothing about time. Workload generators make descriptions, kernel models
(:mod:`mpisim.kernels.roofline` and others) say how long each takes on a GPU. Descriptions are
frozen and hashable by value, so that a model prices each distinct kernel of a step once.

A *variant* names one of several kernels that compute the same with another speed; which one runs is
the framework's choice, and often a matter of its date. ``data/calibration/kernel_variants.toml``
says how fast each is.

Conventions
-----------
flops
    Operations of the matrix units, an addition and a multiplication as two. Kernels that only move
    memory have none: their few operations an element never set the pace.
traffic
    Bytes that must pass between the GPU's memory and its cores if every operand is touched once.

Read in this order; :mod:`mpisim.kernels.analytical` has formulas in modules of the same names.

``kernel``
    `Kernel`, formats of numbers and their bytes, `Counted`.
``products``, ``attention``
    Kernels of the matrix units, and their variants.
``reductions``, ``embedding``, ``memory_bound``
    Kernels whose time is that of memory: along rows, of tables, and once through all.
"""

from .attention import ATTENTION_VARIANTS, Attention, AttentionVariant
from .embedding import CACHE_BYTES, Embedding, EmbeddingTables
from .kernel import BYTES, OPERAND_BYTES, Counted, Kernel, Precision, operand_bytes
from .memory_bound import Copy, Elementwise, ElementwiseVariant, OptimizerStep
from .products import Convolution, Gemm, GemmVariant, GroupedGemm, GroupedGemmVariant
from .reductions import CrossEntropy, Norm, NormVariant, Softmax

__all__ = [
    "ATTENTION_VARIANTS",
    "BYTES",
    "CACHE_BYTES",
    "OPERAND_BYTES",
    "Attention",
    "AttentionVariant",
    "Convolution",
    "Copy",
    "Counted",
    "CrossEntropy",
    "Elementwise",
    "ElementwiseVariant",
    "Embedding",
    "EmbeddingTables",
    "Gemm",
    "GemmVariant",
    "GroupedGemm",
    "GroupedGemmVariant",
    "Kernel",
    "Norm",
    "NormVariant",
    "OptimizerStep",
    "Precision",
    "Softmax",
    "operand_bytes",
]
