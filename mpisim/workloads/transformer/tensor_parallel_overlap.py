"""Matrix products cut into chunks that overlap with their communication.

Transformer Engine's userbuffers (``tp_comm_overlap`` in Megatron-LM,
``transformer_engine/common/comm_gemm_overlap``), ring exchange: an all-gather before a product,
or a reduce-scatter after one, becomes tp - 1 exchanges with both neighbours of the ring, each
beside the product of a chunk of the sequence. The two collectives of a column-split matrix's
backward pass stay whole, each beside a whole product (its "bulk" overlap), as they are without.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpisim.kernels.operations import Elementwise, Gemm

from ...program import Operation
from ..operators import Communicate, Compute, Step
from .shapes import Shapes

__all__ = ["gather_and_multiply", "multiply_and_scatter"]


def gather_and_multiply(
    s: Shapes, name: str, width: int, operand: int, gemm: Gemm
) -> Iterator[Step]:
    """All-gather a sequence of `width` features and multiply each chunk as it arrives.

    Parameters
    ----------
    s : Shapes
    name : str
    width : int
        Features gathered.
    operand : int
        Bytes of each.
    gemm : Gemm
        The product of one chunk, this rank's share of the sequence.
    """
    size = operand * s.shared * width
    for chunk in range(s.grid.tp):
        here = (f"chunk {chunk}",) if chunk else ()
        if chunk < s.grid.tp - 1:
            # The first waits for its input; what arrives is sent on at once, whatever computes.
            yield Communicate(
                f"{name} exchange", Operation.SEND_RECV, "tp", size,
                token=f"chunk {chunk + 1}", after=here or None,
            )  # fmt: skip
        yield Compute(f"{name} chunk", gemm, after=here)


def multiply_and_scatter(s: Shapes, name: str, n: int, gemm: Gemm) -> Iterator[Step]:
    """Multiply chunk by chunk; partial sums go round the ring beside the next chunk's product.

    Parameters
    ----------
    s : Shapes
    name : str
    n : int
        Features of the result.
    gemm : Gemm
        The product of one chunk, another rank's share of the sequence in each but the last.
    """
    size = s.element * s.shared * n
    for chunk in range(s.grid.tp):
        yield Compute(f"{name} chunk", gemm)
        if chunk:
            yield Compute(f"{name} sum", Elementwise(3 * size), after=(f"sum {chunk}",))
        if chunk < s.grid.tp - 1:
            yield Communicate(
                f"{name} exchange", Operation.SEND_RECV, "tp", size, token=f"sum {chunk + 1}"
            )
