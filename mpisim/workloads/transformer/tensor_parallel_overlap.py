"""Matrix products cut into chunks that overlap with their communication.

Transformer Engine's userbuffers (``tp_comm_overlap`` in Megatron-LM), with the methods that
``initialize_ub`` takes by default (transformer_engine/pytorch/module/base.py):

- "ring_exchange": an all-gather before a product becomes tp - 1 exchanges with both neighbours of
  the ring, each beside the product of a chunk of the sequence. With ``aggregate`` neighbours first
  swap their chunks, and pairs of chunks go round (``plan.tp_overlap_pairs``).
- "pipeline": a product is cut into 4, and each part is reduce-scattered beside the product of the
  next; the last has nothing beside it. Instead, "ring_exchange" sends each chunk to the rank whose
  it is, beside the product of the next, and adds up what came in the end
  (``plan.tp_overlap_scatter``).
- "bulk": the two collectives of a column-split matrix's backward pass stay whole, each beside a
  whole product, as they are without.

PyTorch's asynchronous tensor parallelism (torch/distributed/_symmetric_memory) has the gathering
ring, with a copy engine for each chunk, and sends chunks of products to their ranks
(`_pipelined_produce_and_all2all`); input gradients, sums of several products, it does not cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mpisim.kernels.operations import Elementwise, Gemm, operand_bytes

from ...program import Operation
from ..operators import Communicate, Compute, Task
from .shapes import Shapes

__all__ = ["gather_and_multiply", "multiply_and_scatter"]

SPLITS = 4
"""Parts of a product that is reduce-scattered, ``num_splits``."""


def gather_and_multiply(s: Shapes, name: str, width: int, gemm: Gemm) -> Iterator[Task]:
    """All-gather a sequence of `width` features and multiply each chunk as it arrives.

    Parameters
    ----------
    s : Shapes
    name : str
    width : int
        Features gathered.
    gemm : Gemm
        The product of one chunk, this rank's share of the sequence.
    """
    size, chunks = operand_bytes(gemm.dtype, s.shared * width), s.grid.tp
    if s.plan.tp_overlap_pairs and chunks % 2 == 0:
        yield Communicate(f"{name} exchange", Operation.SEND_RECV, "tp", size)
        size, chunks, gemm = 2 * size, chunks // 2, replace(gemm, m=2 * gemm.m)
    for chunk in range(chunks):
        here = (f"chunk {chunk}",) if chunk else ()
        if chunk < chunks - 1:
            # The first waits for its input; what arrives is sent on at once, whatever computes.
            yield Communicate(
                f"{name} exchange",
                Operation.SEND_RECV,
                "tp",
                size,
                token=f"chunk {chunk + 1}",
                after=here or None,
            )
        yield Compute(f"{name} chunk", gemm, after=here)


def multiply_and_scatter(s: Shapes, name: str, k: int, n: int) -> Iterator[Task]:
    """Multiply the whole sequence by a matrix (k, n) part by part, and add up what ranks have.

    Parameters
    ----------
    s : Shapes
    name : str
    k, n : int
        Features in, this rank's, and out.
    """
    if s.plan.sp_style == "pytorch":
        yield from _sent(s, name, k, n)
    elif not s.megatron:
        yield from _ring(s, name, k, n)
    elif s.plan.tp_overlap_scatter == "ring":
        yield from _sent(s, name, k, n)
    else:
        yield from _pipeline(s, name, k, n)


def _pipeline(s: Shapes, name: str, k: int, n: int) -> Iterator[Task]:
    """Reduce-scatter each part beside the next."""
    splits = next(parts for parts in (SPLITS, 2, 1) if s.shared % parts == 0)
    rows = s.tokens // splits
    format = s.linear if s.plan.tp_overlap_fp8 and s.quantised else s.stored
    for part in range(splits):
        yield Compute(f"{name} chunk", Gemm(rows, n, k, dtype=s.linear, output=s.stored))
        yield Communicate(
            f"{name} reduce-scatter",
            Operation.REDUCE_SCATTER,
            "tp",
            operand_bytes(format, rows * n),
            token=f"part {part}",
        )


def _sent(s: Shapes, name: str, k: int, n: int) -> Iterator[Task]:
    """Send each chunk to its rank beside the next product; add up what came at the end."""
    size, tp = s.element * s.shared * n, s.grid.tp
    sums = tuple(f"sum {chunk}" for chunk in range(1, tp))
    for chunk in range(tp):
        yield Compute(f"{name} chunk", Gemm(s.shared, n, k, dtype=s.linear, output=s.stored))
        if chunk < tp - 1:
            yield Communicate(
                f"{name} exchange", Operation.SEND_RECV, "tp", size, token=sums[chunk]
            )
    yield Compute(f"{name} sum", Elementwise((tp + 1) * size), after=sums)


def _ring(s: Shapes, name: str, k: int, n: int) -> Iterator[Task]:
    """Pass partial sums round the ring beside the product of the next rank's share."""
    size = s.element * s.shared * n
    for chunk in range(s.grid.tp):
        yield Compute(f"{name} chunk", Gemm(s.shared, n, k, dtype=s.linear, output=s.stored))
        if chunk:
            yield Compute(f"{name} sum", Elementwise(3 * size), after=(f"sum {chunk}",))
        if chunk < s.grid.tp - 1:
            yield Communicate(
                f"{name} exchange", Operation.SEND_RECV, "tp", size, token=f"sum {chunk + 1}"
            )
