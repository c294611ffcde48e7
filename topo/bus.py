"""The convention of bus bandwidths."""

from __future__ import annotations

from mpisim.base.errors import InputError
from mpisim.base.kinds import Operation

__all__ = ["bus_factor"]


def bus_factor(operation: Operation, ranks: int) -> float:
    """Return the bytes each rank sends over its link, per byte of the full buffer.

    Ring all-reduce sends 2 (n - 1) / n, its two halves (reduce-scatter, all-gather) one half each;
    pipelined broadcast and reduce send everything once; all-to-all keeps 1 / n at home. Size over
    time, times this, is the "bus bandwidth" of nccl-tests (doc/PERFORMANCE.md).

    Raises
    ------
    InputError
        For an operation without bytes of its own.

    Examples
    --------
    >>> bus_factor(Operation.ALL_REDUCE, 4)
    1.5
    """
    share = (ranks - 1) / ranks
    factors = {
        Operation.ALL_REDUCE: 2 * share,
        Operation.ALL_GATHER: share,
        Operation.REDUCE_SCATTER: share,
        Operation.ALL_TO_ALL: share,
        Operation.GATHER: share,
        Operation.SCATTER: share,
        Operation.BROADCAST: 1.0,
        Operation.REDUCE: 1.0,
        Operation.SEND_RECV: 1.0,
        Operation.BARRIER: 0.0,
    }
    if operation not in factors:
        raise InputError(
            f"no cost is known for a communication of kind {operation.name}; known are "
            f"{', '.join(o.name for o in factors)}"
        )
    return factors[operation]
