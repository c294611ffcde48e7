"""Kernels of HybridEP besides the transfers: token placement, copies of rows, sums of rows.

The branch hybrid-ep of github:deepseek-ai/DeepEP as NVIDIA's containers have it. For each token of
the group one thread goes through all ranks (``scan`` of ``csrc/hybrid_ep/backend``), and for each
expert of the rank a sum is made over all tokens of the group (``permute_processing_kernel`` of
``csrc/hybrid_ep/extension/permute.cu``). 128 threads copy a token that has arrived to the rows of
its experts, or add these up (``permute_kernel``, ``unpermute_kernel``): they look at each expert of
the rank, of which few are the token's. With many experts on a rank, or short rows, that takes
longer than memory does; how many instructions it is says ``data/hybrid_ep.toml``.

Where two passes overlap (``plan.overlap.ep``) Megatron-LM runs them on its stream of communications
(``megatron/core/models/gpt/fine_grained_callables.py``), beside kernels of the other pass. What
these lose is taken to be the time that memory needs for rows and maps, and that is all that is
counted then (:mod:`.token_dispatch`): how two kernels share multiprocessors is not modelled.
"""

from __future__ import annotations

from functools import cache

from mpisim.kernels.operations import Elementwise

from ...base.frozen import frozen
from ...base.presets import packaged
from ...base.quantity import Quantity
from ...base.schema import build
from ..operators import Compute

__all__ = ["Exchange", "copy_rows", "place_rows", "scan_maps", "sum_rows"]

MAP_PASSES = 2
"""The scan reads the map to count, and again to write places."""
FLAG_BYTES, PLACE_BYTES = 1, 4
THREADS = 128
"""That move a token, 16 bytes each at a time."""
CHUNK_BYTES = 16 * THREADS

FILE = "hybrid_ep.toml"


@frozen
class _Instructions:
    """Tables of the data file: a thread's, but those of places and of the scan."""

    copy_token: Quantity
    copy_slot: Quantity
    sum_token: Quantity
    sum_chunk: Quantity
    sum_slot: Quantity
    place_slot: Quantity
    scan_rank: Quantity


@cache
def _instructions() -> _Instructions:
    return build(_Instructions, packaged(FILE), FILE)


@frozen
class Exchange:
    """Tokens of one layer on their way to one rank.

    Attributes
    ----------
    tokens : int
        Of all ranks of the group.
    ranks : int
        Of the group inside a node.
    arrived : int
        Tokens that this rank has got.
    rows : int
        Pairs of a token and one of this rank's experts.
    experts : int
        This rank's.
    """

    tokens: int
    ranks: int
    arrived: int
    rows: int
    experts: int

    def moved(self, row_bytes: int) -> int:
        """Bytes of a row → those of all tokens that arrived, and of all rows."""
        return row_bytes * (self.arrived + self.rows)


def scan_maps(exchange: Exchange, experts: int) -> Compute:
    """Maps of all ranks' tokens to experts → where each token goes on each rank.

    Parameters
    ----------
    exchange : Exchange
    experts : int
        Of the whole group.
    """
    size = MAP_PASSES * FLAG_BYTES * exchange.tokens * experts
    instructions = round(_instructions().scan_rank.value * exchange.tokens * exchange.ranks)
    return Compute("token maps", Elementwise(size, instructions=instructions))


def place_rows(exchange: Exchange) -> Compute:
    """Experts of the tokens that arrived → the rows of their copies."""
    size = (FLAG_BYTES + 4 * PLACE_BYTES) * exchange.arrived * exchange.experts
    instructions = round(_instructions().place_slot.value * exchange.tokens * exchange.experts)
    return Compute("token rows", Elementwise(size, instructions=instructions))


def copy_rows(name: str, exchange: Exchange, row_bytes: int) -> Compute:
    """Tokens that arrived → a copy for each of their experts here.

    Parameters
    ----------
    name : str
    exchange : Exchange
    row_bytes : int
    """
    of = _instructions()
    each = of.copy_token.value + of.copy_slot.value * exchange.experts
    instructions = round(THREADS * each * exchange.arrived)
    size = exchange.moved(row_bytes)
    return Compute(name, Elementwise(size, variant="row_copies", instructions=instructions))


def sum_rows(name: str, exchange: Exchange, row_bytes: int) -> Compute:
    """Rows of the experts → their sums by token.

    Parameters
    ----------
    name : str
    exchange : Exchange
    row_bytes : int
    """
    chunks = -(-row_bytes // CHUNK_BYTES)
    of = _instructions()
    each = of.sum_token.value + chunks * (of.sum_chunk.value + of.sum_slot.value * exchange.experts)
    instructions = round(THREADS * each * exchange.arrived)
    size = exchange.moved(row_bytes)
    return Compute(name, Elementwise(size, variant="row_sums", instructions=instructions))
