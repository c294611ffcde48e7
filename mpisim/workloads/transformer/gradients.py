"""How gradients of weights reach the buffer that is reduced.

Megatron-LM adds every micro-batch to a buffer of its own, fp32 by default: matrix products straight
from the kernel (``gradient_accumulation_fusion``, since 2022), everything else by one addition a
parameter. PyTorch keeps gradients in the weights' format and adds only from the second micro-batch
on; where there are several, that addition is counted for each. FSDP reduces gradients instead, or
adds up those of units (:mod:`..data_parallel.fsdp`). DeepSpeed's BF16_Optimizer copies
the gradients of every micro-batch to fp32 and adds the copies up (``update_hp_grads`` of
deepspeed/runtime/bf16_optimizer.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from mpisim.kernels.operations import BYTES, Elementwise, Gemm

from ..operators import Compute
from .shapes import Shapes

__all__ = ["accumulate", "weight_gradient"]


def accumulate(s: Shapes, name: str, size: int) -> Iterator[Compute]:
    """Add a gradient of `size` elements to those of the micro-batches before."""
    if s.megatron:
        traffic = s.element + 2 * BYTES[s.gradient]
    elif s.widens_gradients:
        wide = BYTES[s.gradient]
        cast = Elementwise((s.element + wide) * size)
        yield Compute(f"{name} gradient cast", cast, weight=True)
        traffic = 3 * wide
    elif s.accumulates and not s.shards_gradients:
        traffic = 3 * s.element
    else:
        return
    yield Compute(f"{name} gradient accumulation", Elementwise(traffic * size), weight=True)


def weight_gradient(
    s: Shapes,
    name: str,
    tokens: int,
    n: int,
    k: int,
    *,
    after: tuple[str, ...] = (),
    linear: bool = True,
) -> Iterator[Compute]:
    """Gradient of a matrix (k, n): the product of inputs and gradients over the tokens.

    Parameters
    ----------
    s : Shapes
    name : str
        Of the matrix.
    tokens, n, k : int
    after : tuple of str
        Tokens of communications to wait for.
    linear : bool
        Whether the product is in the format of linear layers.
    """
    name = f"{name} weight gradient"
    dtype = s.linear if linear else s.product
    if s.megatron and s.plan.fuses_wgrad:
        gemm = Gemm(n, k, tokens, dtype=dtype, output=s.gradient, accumulate=True)
        yield Compute(name, gemm, weight=True, after=after)
    else:
        gemm = Gemm(n, k, tokens, dtype=dtype, output=s.stored)
        yield Compute(name, gemm, weight=True, after=after)
        yield from accumulate(s, name.removesuffix(" gradient"), n * k)
