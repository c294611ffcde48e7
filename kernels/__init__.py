"""Kernel models: description of a kernel, GPU → its duration with an error bar.

Read in this order:

:mod:`.operations`
    Descriptions of kernels: shapes, FLOP and memory traffic; variants.
:mod:`.gpu`, :mod:`.gpu_parameters`
    ``Gpu``: the numbers of a GPU with error bars and sources (``data/gpus.toml``); and the plain
    numbers that formulas take.
:mod:`.scaled`
    GPUs with rates and bandwidths multiplied by factors, for what-if questions.
:mod:`.model`
    ``KernelModel``, ``Estimate``: the interface of all kernel models.
:mod:`.roofline`, :mod:`.counted`
    The roofline model; kernels of which only FLOP and byte counts are known.
:mod:`.analytical`
    The default model: a formula for each family, with fitted constants.
:mod:`.measured`, :mod:`.fitting`
    Tables of measured kernels; from these to the constants (``mpisim calibrate kernels``).
:mod:`.alternatives`
    Models of other simulators: Li, SimAI, an operation database.
:mod:`.slowdown`
    Slowdown of kernels and communications that overlap.
:mod:`.numbers`
    Empirical numbers that no calibration fits (``data/calibration/kernel_numbers.toml``).

How to add

a GPU
    A table in ``data/gpus.toml``; its architecture, if new, in ``data/gpu_families.toml``,
    ``data/calibration/architectures.toml`` and `analytical.lookup.RELATED_ARCHITECTURES`.
a variant of a family
    A table in ``data/calibration/kernel_variants.toml``, and its name in the ``Literal`` of the
    family in :mod:`.operations`.
a kernel family
    A description in :mod:`.operations`; its terms in :mod:`.roofline`; a module with a ``Formula``
    in :mod:`.analytical`, entered in `analytical.families`; its class in
    :mod:`.slowdown.constants`.
a format of measured tables
    A function and an entry of ``FORMATS`` in :mod:`.measured.formats`.
"""

from . import operations
from .gpu import Gpu, find_gpu, gpu_name, gpu_names
from .model import Estimate, KernelModel
from .roofline import Roofline

__all__ = [
    "Estimate",
    "Gpu",
    "KernelModel",
    "Roofline",
    "find_gpu",
    "gpu_name",
    "gpu_names",
    "operations",
]
