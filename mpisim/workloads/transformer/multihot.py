"""Lists of the experts that arrive with tokens → a map of tokens to experts (DeepEP).

DeepEP's dispatch brings, with each token, up to `topk` numbers of this rank's experts and their
probabilities, -1 where an expert is another rank's. Transformer Engine's permutation takes a map
(tokens, experts) in their place. Megatron-LM makes it by `_DeepepManager._indices_to_multihot`
(``megatron/core/transformer/moe/token_dispatcher.py``, 0.12 to 0.16): operations of PyTorch, of
which two that select by a mask, and one that repeats by counts, have a result whose size the CPU
waits for. Since 0.13 ``--enable-experimental`` with ``--moe-permute-fusion`` has one kernel each
way (`fused_indices_to_multihot`, ``megatron/core/fusions/fused_indices_converter.py``).

Of PyTorch are (aten/src/ATen/native/cuda): a mask as an index, which is made a list by two kernels
that count, two that select and one that divides numbers into places (Nonzero.cu); gradients of what
was selected, which are added in the order of their places, by a radix sort (Indexing.cu).
"""

from __future__ import annotations

from mpisim.kernels.operations import BYTES, Copy, Elementwise

from ...base.frozen import frozen
from ...operators import sort_kernels
from ..operators import Await, Compute, Task
from .pointwise import broadcast, elementwise

__all__ = ["Arrived", "map_experts", "map_experts_backward"]

FP32 = BYTES["fp32"]
FLAG, NUMBER = 1, 8
"""Bytes of a truth value and of a number of PyTorch (``int64``)."""
COUNT_KERNELS = 2
"""Of CUB's sum over a large array: of tiles, and of their sums."""
PLACE = 2 * NUMBER
"""Bytes of a place in a map: its row and its column."""


@frozen
class Arrived:
    """Tokens that DeepEP has brought to a rank, with lists of their experts.

    Attributes
    ----------
    tokens : int
        Different tokens.
    rows : int
        Pairs of a token and one of this rank's experts.
    experts : int
        This rank's.
    topk : int
        Places of a token's list.
    """

    tokens: int
    rows: int
    experts: int
    topk: int

    @property
    def listed(self) -> int:
        """Places of all lists."""
        return self.tokens * self.topk

    @property
    def places(self) -> int:
        """Places of the map: of each token and expert."""
        return self.tokens * self.experts


def map_experts(arrived: Arrived, *, fused: bool) -> list[Task]:
    """Lists of experts and probabilities → a map, and probabilities in its shape.

    Parameters
    ----------
    arrived : Arrived
    fused : bool
        In one kernel.
    """
    listed, places, rows = arrived.listed, arrived.places, arrived.rows
    if fused:  # reads numbers and probabilities; writes flags, probabilities, places in the lists
        traffic = (NUMBER + FP32) * listed + (FLAG + 2 * FP32) * places
        return [elementwise("expert map", traffic)]
    repeated: list[Task] = [
        elementwise("expert map tokens", NUMBER * arrived.tokens),
        elementwise("expert map token counts", FLAG * listed + NUMBER * arrived.tokens),
        elementwise("expert map token ends", 2 * NUMBER * arrived.tokens),
        *_read("expert map rows"),
        elementwise("expert map repetition", NUMBER * (arrived.tokens + rows)),
        elementwise("expert map row numbers", 3 * NUMBER * rows),
    ]
    return [
        elementwise("expert map zeros", NUMBER * places),
        elementwise("expert map probability zeros", FP32 * places),
        elementwise("expert map mask", (NUMBER + FLAG) * listed),
        *_selected("expert map experts", listed, rows, NUMBER),
        *repeated,
        broadcast("expert map ones", (NUMBER + PLACE) * rows, rows),
        *_selected("expert map probabilities", listed, rows, FP32),
        broadcast("expert map probability places", (2 * FP32 + PLACE) * rows, rows),
        elementwise("expert map", (NUMBER + FLAG) * places),
    ]


def map_experts_backward(arrived: Arrived, *, fused: bool) -> list[Task]:
    """Gradients of probabilities in the shape of the map → of those in the lists.

    Parameters
    ----------
    arrived : Arrived
    fused : bool
        In one kernel.
    """
    listed, places, rows = arrived.listed, arrived.places, arrived.rows
    name = "expert map gradient"
    if fused:
        return [elementwise(name, 2 * FP32 * places + FP32 * listed)]
    ordered: list[Task] = [
        Compute(f"{name} order", kernel) for kernel in sort_kernels(rows, NUMBER, NUMBER)
    ]
    return [
        elementwise(f"{name} of rows", (2 * FP32 + PLACE) * rows),
        elementwise(f"{name} zeros", FP32 * listed),
        *_places(name, listed, rows),
        *ordered,
        broadcast(f"{name} sums", (3 * FP32 + NUMBER) * rows, rows),
    ]


def _read(name: str) -> list[Task]:
    """A number of rows that the CPU reads, and waits for."""
    kernel = f"read {name}"
    return [Compute(kernel, Copy(NUMBER, "host")), Await(f"wait for {name}", kernel)]


def _places(name: str, listed: int, rows: int) -> list[Task]:
    """Mask of a matrix → rows and columns of its selected elements, counted by the CPU."""
    return [
        Compute(f"{name} count", Elementwise(FLAG * listed), launches=COUNT_KERNELS),
        *_read(name),
        elementwise(f"{name} selection begin", NUMBER),
        elementwise(f"{name} selection", FLAG * listed + NUMBER * rows),
        elementwise(f"{name} places", (NUMBER + PLACE) * rows),
    ]


def _selected(name: str, listed: int, rows: int, size: int) -> list[Task]:
    """Matrix and a mask → the elements, of `size` bytes, that it selects."""
    selected = elementwise(name, (2 * size + PLACE) * rows)
    return [*_places(name, listed, rows), selected]
