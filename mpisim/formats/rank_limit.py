"""Number of ranks that a workload asks for → the number, bounded before any rank is listed."""

from __future__ import annotations

from ..base.errors import InputError

__all__ = ["MOST_RANKS", "bounded_ranks"]

MOST_RANKS = 1 << 18
"""Of a program that is made of a workload: each rank is listed, with its groups. Twice as
many as the largest jobs that are simulated (docs/scale.md)."""


def bounded_ranks(n_ranks: int, where: str) -> int:
    """Number of ranks → the same.

    Parameters
    ----------
    n_ranks : int
    where : str
        File, and what in it says so.

    Raises
    ------
    InputError
        If they are too many.
    """
    if n_ranks > MOST_RANKS:
        raise InputError(f"{where}: {n_ranks:,} ranks; at most {MOST_RANKS:,} are read")
    return n_ranks
