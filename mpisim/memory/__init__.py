"""Model, plan, GPU → memory of each pipeline stage, the verdict, plans that would fit.

To be read in this order; each module uses only those above it:

`constants`
    GPU memory besides tensors (CUDA context, NCCL), from ``data/memory.toml``; `capacity`.
`states`
    Model states, and the buffers of data parallelism.
`activations`
    Activations and temporaries of a pass through a layer, and through a model chunk.
`schedule_peak`
    Activations of all passes of a stage together, at the worst moment of a step.
`host`
    Host memory of offloaded states and activations.
`communicators`
    Buffers of NCCL, DeepEP and HybridEP.
`model`
    `memory`: all of these for every pipeline stage, as `StageMemory`.
`verdict`
    `assess`: layout and GPU → `Verdict`; `evaluator` does the same for other plans.
`remedies`
    Changes that make a plan fit, the cheapest first, as `Remedy`; `advice` puts them as text.

PyTorch's caching allocator, for recorded allocations (independent of the modules above):

`allocator_settings`
    PYTORCH_CUDA_ALLOC_CONF, parsed.
`blocks`
    `Block` and `Pool`, the data structures of the allocator.
`segments`
    `Segments`: what the driver gives and takes, by segments or page by page.
`caching_allocator`
    `CachingAllocator`: takes, splits, joins and gives back blocks.
`allocations`
    `Allocations`, a table of allocations and frees; `replay` runs it.
`configurations`
    `outcome`: settings and a GPU → whether allocations fit, as `AllocatorUsage`.
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
