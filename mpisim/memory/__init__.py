"""How much of a GPU's memory a plan takes, whether it fits, and what would make it fit.

To be read in this order; each module uses only those above it:

`constants`
    What is in a GPU's memory besides tensors, from ``data/memory.toml``; `capacity`.
`states`
    Model states, and the buffers of data parallelism.
`activations`
    What a pass of a layer, and of a model chunk, holds.
`schedule_peak`
    What the passes of a stage hold together, at the worst moment of a step.
`host`
    What lies in the memory of the host, where it is offloaded.
`communicators`
    Buffers of NCCL, DeepEP and HybridEP.
`model`
    `memory`: all of these for every pipeline stage, as `StageMemory`.
`verdict`
    `assess`: a layout against what a GPU has, as `Verdict`; `evaluator` does so for other plans.
`remedies`
    Changes that make a plan fit, the cheapest first, as `Remedy`; `advice` puts them as text.

What PyTorch's allocator makes of allocations that are known one by one, apart from these:

`allocator_settings`
    PYTORCH_CUDA_ALLOC_CONF, parsed.
`blocks`
    `Block` and `Pool`, which the allocator is made of.
`caching_allocator`
    `CachingAllocator`: what is taken, split, joined, given back.
`allocations`
    `Allocations`, a table of what comes and goes; `replay` runs it.
`configurations`
    `outcome`: settings and a GPU → whether allocations fit, as `Outcome`.
"""

from .constants import capacity
from .model import StageMemory, memory
from .verdict import Evaluate, Verdict, assess, evaluator

__all__ = [
    "Evaluate",
    "StageMemory",
    "Verdict",
    "assess",
    "capacity",
    "evaluator",
    "memory",
]
