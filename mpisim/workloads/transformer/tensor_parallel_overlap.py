"""Matrix products cut into chunks that overlap with their communication.

Transformer Engine's userbuffers (``tp_comm_overlap`` in Megatron-LM), with the methods that
``initialize_ub`` takes by default (transformer_engine/pytorch/module/base.py):

- "ring_exchange": an all-gather before a product becomes tp - 1 exchanges with both neighbours of
  the ring, each beside the product of a chunk of the sequence. With ``aggregate`` neighbours first
  swap their chunks, and pairs of chunks go round (``plan.overlap.tp_pairs``).
- "pipeline": a product is cut into 4, and each part is reduce-scattered beside the product of the
  next; the last has nothing beside it. Instead, "ring_exchange" sends each chunk to the rank whose
  it is, beside the product of the next, and adds up what came in the end
  (``plan.overlap.tp_scatter``).
  The exchanges of both are by copy engine (``use_ce``), beside one multiprocessor that waits.
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

REDUCE_SCATTER_PARTS = 4
"""Parts of a product that is reduce-scattered, ``num_splits``."""


def gather_and_multiply(s: Shapes, name: str, width: int, gemm: Gemm) -> Iterator[Task]:
    """Share of a sequence → product of the whole, each chunk multiplied as it arrives.

    Parameters
    ----------
    s : Shapes
    name : str
    width : int
        Features gathered.
    gemm : Gemm
        Product of one chunk, this rank's share of the sequence.
    """
    size, chunks = operand_bytes(gemm.dtype, s.sharded_tokens * width), s.grid.tp
    copied = s.is_megatron or s.plan.framework.sp_style == "pytorch"
    if s.plan.overlap.tp_pairs and chunks % 2 == 0:
        yield Communicate(f"{name} exchange", Operation.SEND_RECV, "tp", size, copy_engine=copied)
        size, chunks, gemm = 2 * size, chunks // 2, replace(gemm, m=2 * gemm.m)
    for chunk in range(chunks):
        arrival = (f"chunk {chunk}",) if chunk else ()
        if chunk < chunks - 1:
            # The first waits for its input; what arrives is sent on at once, whatever computes.
            yield Communicate(
                f"{name} exchange",
                Operation.SEND_RECV,
                "tp",
                size,
                token=f"chunk {chunk + 1}",
                after=arrival or None,
                copy_engine=copied,
            )
        yield Compute(f"{name} chunk", gemm, after=arrival)


def multiply_and_scatter(s: Shapes, name: str, k: int, n: int) -> Iterator[Task]:
    """Whole sequence × matrix (k, n) → this rank's share of the sum over ranks, part by part.

    Parameters
    ----------
    s : Shapes
    name : str
    k, n : int
        Features in, this rank's, and out.
    """
    if s.plan.framework.sp_style == "pytorch":
        yield from _send_to_owners(s, name, k, n)
    elif not s.is_megatron:
        yield from _ring_of_sums(s, name, k, n)
    elif s.plan.overlap.tp_scatter == "ring":
        yield from _send_to_owners(s, name, k, n)
    else:
        yield from _reduce_scatter_parts(s, name, k, n)


def _reduce_scatter_parts(s: Shapes, name: str, k: int, n: int) -> Iterator[Task]:
    """Reduce-scatter each part beside the product of the next."""
    splits = next(parts for parts in (REDUCE_SCATTER_PARTS, 2, 1) if s.sharded_tokens % parts == 0)
    rows = s.tokens // splits
    format = s.linear_format if s.plan.overlap.tp_fp8 and s.quantised else s.storage_format
    for part in range(splits):
        yield Compute(
            f"{name} chunk", Gemm(rows, n, k, dtype=s.linear_format, output=s.storage_format)
        )
        yield Communicate(
            f"{name} reduce-scatter",
            Operation.REDUCE_SCATTER,
            "tp",
            operand_bytes(format, rows * n),
            token=f"part {part}",
        )


def _send_to_owners(s: Shapes, name: str, k: int, n: int) -> Iterator[Task]:
    """Send each chunk to the rank that owns it beside the next product; add up what came."""
    size, tp = s.element_size * s.sharded_tokens * n, s.grid.tp
    sums = tuple(f"sum {chunk}" for chunk in range(1, tp))
    for chunk in range(tp):
        yield Compute(
            f"{name} chunk",
            Gemm(s.sharded_tokens, n, k, dtype=s.linear_format, output=s.storage_format),
        )
        if chunk < tp - 1:
            yield Communicate(
                f"{name} exchange",
                Operation.SEND_RECV,
                "tp",
                size,
                token=sums[chunk],
                copy_engine=True,
            )
    yield Compute(f"{name} sum", Elementwise((tp + 1) * size), after=sums)


def _ring_of_sums(s: Shapes, name: str, k: int, n: int) -> Iterator[Task]:
    """Pass partial sums round the ring beside the product of the next rank's share."""
    size = s.element_size * s.sharded_tokens * n
    for chunk in range(s.grid.tp):
        yield Compute(
            f"{name} chunk",
            Gemm(s.sharded_tokens, n, k, dtype=s.linear_format, output=s.storage_format),
        )
        if chunk:
            yield Compute(f"{name} sum", Elementwise(3 * size), after=(f"sum {chunk}",))
        if chunk < s.grid.tp - 1:
            yield Communicate(
                f"{name} exchange", Operation.SEND_RECV, "tp", size, token=f"sum {chunk + 1}"
            )
