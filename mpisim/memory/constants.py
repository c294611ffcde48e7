"""Constants of the memory model, from ``data/memory.toml``."""

from __future__ import annotations

import re
from functools import cache

from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import Quantity
from ..base.schema import build
from ..kernels import Gpu

__all__ = ["MemoryConstants", "capacity", "constants"]

FILE = "memory.toml"

GIB_PER_GB = 2**30 / 10**9
"""GPUs are sold by the GB, but hold as many GiB: 80 GB of an H100 are 81,559 MiB to its driver."""


@frozen
class InlineEcc:
    """Cards that keep the check bits of their memory in the memory itself.

    Attributes
    ----------
    titles : tuple of str
        Words of a GPU's title.
    """

    titles: tuple[str, ...]


@frozen
class MemoryConstants:
    """Contents of a GPU's memory besides tensors; the data file explains each entry.

    Attributes
    ----------
    usable, usable_inline_ecc : Quantity
        Share of the memory that a program can have.
    inline_ecc : InlineEcc
        The GPUs that `usable_inline_ecc` applies to.
    context : Quantity
        CUDA's context.
    collective, peer, network : Quantity
        NCCL's buffers: of a communicator that does collectives, of each peer in the node for
        messages, of a communicator that sends messages between nodes.
    deepep : Quantity
        DeepEP's buffers.
    hybridep : Quantity
        1; its error bar is the uncertainty of HybridEP's buffer.
    fragmentation : Quantity
        What PyTorch's allocator reserves on top, as a share of what it hands out.
    temporaries : Quantity
        1; its error bar is the uncertainty of what is alive inside operators.
    deepspeed_overlap : Quantity
        Buckets that DeepSpeed allocates where it overlaps.
    """

    usable: Quantity
    usable_inline_ecc: Quantity
    inline_ecc: InlineEcc
    context: Quantity
    collective: Quantity
    peer: Quantity
    network: Quantity
    deepep: Quantity
    hybridep: Quantity
    fragmentation: Quantity
    temporaries: Quantity
    deepspeed_overlap: Quantity


@cache
def constants() -> MemoryConstants:
    """Return the constants of ``data/memory.toml``, by table and name."""
    return build(MemoryConstants, packaged(FILE), FILE)


def capacity(gpu: Gpu) -> int:
    """GPU → bytes of its memory that a program can have.

    Examples
    --------
    >>> from mpisim.kernels import find_gpu
    >>> round(capacity(find_gpu("h100-sxm")) / 2**30, 1)
    79.0
    """
    known = constants()
    words = re.split(r"[^A-Za-z0-9]+", gpu.title)
    inline = any(title in words for title in known.inline_ecc.titles)
    share = known.usable_inline_ecc if inline else known.usable
    return round(gpu.memory.si * GIB_PER_GB * share.value)
