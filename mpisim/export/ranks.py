"""Which ranks of a run are exported: those asked for, or one of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..base.errors import UsageError
from ..base.rank_ranges import parse_ranges, ranges_text
from ..program import Program

__all__ = ["ALL", "MOST_CHOSEN", "Chosen", "named_ranks", "some_ranks"]

ALL = "all"
"""What is asked for to have every rank."""

MOST_CHOSEN = 16
"""Ranks that are chosen at most where none are asked for."""


class Chosen(NamedTuple):
    """Ranks that are exported, and why these."""

    ranks: list[int]
    """Ranks of the program, ascending."""
    why: str
    """Why these, for people; empty if they were asked for."""


def named_ranks(text: str, numbers: Sequence[int]) -> Chosen:
    """Text → the ranks that it names.

    Parameters
    ----------
    text : str
        ``"all"``, or numbers and ranges: ``"0,8-15"``.
    numbers : sequence of int
        Number of each rank in its job.

    Raises
    ------
    InputError
        If it cannot be read.
    UsageError
        If there are no such ranks.
    """
    n = len(numbers)
    if text.strip().lower() == ALL:
        return Chosen(list(range(n)), "")
    rank_of = {number: rank for rank, number in enumerate(numbers)}
    found = parse_ranges(text, "--ranks", "rank")
    missing = [number for number in found if number not in rank_of]
    if missing:
        there = f"there are ranks {ranges_text(numbers)}, or {ALL!r}"
        raise UsageError(f"--ranks: {text!r} names rank {missing[0]}; {there}")
    return Chosen(sorted(rank_of[number] for number in found), "")


def some_ranks(program: Program) -> Chosen:
    """Return one rank of each kind: of those that do the same, at one speed, from one start.

    Of more kinds than `MOST_CHOSEN`, one for each table (each stage of a pipeline has its own);
    of more tables, some, spread evenly. Equal on any number of processes, which classes of ranks
    are not: with a process a rank there is nothing to fold.
    """
    kinds = np.stack([program.table, program.speed, program.start], axis=1)
    lowest = np.unique(kinds, axis=0, return_index=True)[1].tolist()
    if len(lowest) > MOST_CHOSEN:
        lowest = np.unique(program.table, return_index=True)[1].tolist()
    ranks, why = sorted(lowest), "one of each kind: others do the same work"
    if len(ranks) > MOST_CHOSEN:
        spread = np.linspace(0, len(ranks) - 1, MOST_CHOSEN).round().astype(int).tolist()
        why = f"one of each kind would be {len(ranks)}"
        ranks = [ranks[i] for i in spread]
    return Chosen(ranks, why if len(ranks) < program.n_ranks else "")
