"""How long a kernel takes, by roofline: the slower of its arithmetic and its memory traffic.

    time = max(flops / (peak × fraction), bytes / (bandwidth × fraction)) + floor

An estimate remembers which numbers of the GPU it rests on, so that their error bars can be carried
to the end of a simulation (:mod:`mpisim.uncertainty`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mpisim.errors import InputError
from mpisim.quantity import picoseconds

from .gpu import Gpu

__all__ = ["Estimate", "attention", "attention_flops", "gemm", "gemm_flops", "memory_bound"]

BF16 = 2
"""Bytes of an element."""


@dataclass(frozen=True)
class Estimate:
    """The duration of one kernel.

    Attributes
    ----------
    duration : int
        ps.
    shares : mapping of str to float
        For each number of the GPU (an attribute of `Gpu`) the share of the duration that is
        inversely or directly proportional to it: a relative error e of the number changes the
        duration by share × e.
    """

    duration: int
    shares: Mapping[str, float]


def gemm_flops(m: int, n: int, k: int) -> int:
    """Return the FLOPs of a matrix product (m, k) × (k, n)."""
    return 2 * m * n * k


def gemm(gpu: Gpu, m: int, n: int, k: int, *, output_bytes: int = BF16) -> Estimate:
    """Estimate a bf16 matrix product (m, k) × (k, n).

    Parameters
    ----------
    gpu : Gpu
    m, n, k : int
        The three dimensions, 1 or more.
    output_bytes : int
        Memory traffic for each element of the result: 2 to write bf16, 8 to add to fp32.

    Raises
    ------
    InputError
        If a dimension is below 1.
    """
    _positive(m=m, n=n, k=k, output_bytes=output_bytes)
    traffic = BF16 * (m * k + k * n) + output_bytes * m * n
    return _estimate(gpu, gemm_flops(m, n, k), "gemm_fraction", traffic, "gemm_floor")


def attention_flops(
    batch: int,
    heads: int,
    sequence: int,
    head_size: int,
    *,
    causal: bool = True,
    backward: bool = False,
) -> int:
    """Return the FLOPs of fused attention.

    Forward: two matrix products. Backward: five, as the scores are computed again. A causal mask
    leaves half of the work.
    """
    products = 5 if backward else 2
    full = products * 2 * batch * heads * sequence * sequence * head_size
    return full // 2 if causal else full


def attention(
    gpu: Gpu,
    batch: int,
    heads: int,
    sequence: int,
    head_size: int,
    *,
    causal: bool = True,
    backward: bool = False,
) -> Estimate:
    """Estimate fused attention, which never writes its scores to memory (FlashAttention).

    Parameters
    ----------
    gpu : Gpu
    batch, heads, sequence, head_size : int
        Sequences, heads a GPU holds, tokens of a sequence, elements of a head; 1 or more.
    causal : bool
        Whether a token sees only those before it.
    backward : bool
        Whether this is the backward pass.

    Raises
    ------
    InputError
        If a size is below 1.
    """
    _positive(batch=batch, heads=heads, sequence=sequence, head_size=head_size)
    flops = attention_flops(batch, heads, sequence, head_size, causal=causal, backward=backward)
    # Forward: reads Q, K, V and writes O. Backward: reads these and the gradient of O, and writes
    # those of Q, K, V.
    tensors = 8 if backward else 4
    traffic = tensors * BF16 * batch * heads * sequence * head_size
    return _estimate(gpu, flops, "attention_fraction", traffic, "gemm_floor")


def memory_bound(gpu: Gpu, bytes: int) -> Estimate:
    """Estimate a kernel that only moves memory: elementwise, norms, the optimizer.

    Parameters
    ----------
    gpu : Gpu
    bytes : int
        Read and written, together.

    Raises
    ------
    InputError
        If `bytes` is below 1.
    """
    _positive(bytes=bytes)
    return _estimate(gpu, 0, "gemm_fraction", bytes, "memory_floor")


def _estimate(gpu: Gpu, flops: int, fraction: str, traffic: int, floor: str) -> Estimate:
    """Apply the roofline; `fraction` and `floor` are attributes of the GPU."""
    arithmetic = flops / (gpu.peak.si * getattr(gpu, fraction).si)
    memory = traffic / (gpu.bandwidth.si * gpu.memory_fraction.si)
    fixed = getattr(gpu, floor).si
    work = max(arithmetic, memory)
    total = work + fixed
    rate = ("peak", fraction) if arithmetic >= memory else ("bandwidth", "memory_fraction")
    return Estimate(
        duration=picoseconds(total),
        shares={rate[0]: work / total, rate[1]: work / total, floor: fixed / total},
    )


def _positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"a kernel's {name!r} is {size}; it must be 1 or more")
