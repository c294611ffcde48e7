"""Operators that communicate: their names, as ``c10d`` and ``_c10d_functional`` dispatch them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["COLLECTIVES", "is_collective"]

COLLECTIVES: Mapping[str, str] = {
    "allreduce_": "all_reduce", "all_reduce": "all_reduce", "allreduce_coalesced_": "all_reduce",
    "all_reduce_coalesced": "all_reduce", "broadcast_": "broadcast", "broadcast": "broadcast",
    "_allgather_base_": "all_gather", "allgather_": "all_gather",
    "all_gather_into_tensor": "all_gather", "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather", "allgather_coalesced_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall_": "all_to_all", "alltoall_base_": "all_to_all", "all_to_all_single": "all_to_all",
    "reduce_": "reduce", "gather_": "gather", "scatter_": "scatter", "send": "send",
    "recv_": "recv", "recv_any_source_": "recv", "barrier": "barrier",
}  # fmt: skip
"""Operators of ``c10d`` and ``_c10d_functional``, by name → what they communicate."""

_C10D = ("c10d::", "_c10d_functional::", "c10d_functional::", "symm_mem::")


def is_collective(name: str) -> bool:
    """Name of an operator → whether it communicates; such launch no kernel of this table.

    Parameters
    ----------
    name : str

    Returns
    -------
    bool
    """
    return name.startswith(_C10D) or name in ("record_param_comms", "nccl:coalesced")
