"""Whether two cases are the same to a run: what ranks do, and what memory they need."""

from __future__ import annotations

import numpy as np

from ..program import COLUMNS, Program, Table
from .case import Case

__all__ = ["alike"]

PARTS = ("table", "slot_index", "slots", "speed", "start")
GROUPS = ("index", "members")


def alike(one: Case, other: Case) -> bool:
    """Return whether two cases of equal networks take the same time and memory, and why. Local.

    Titles do not count.
    """
    work, others = one.workload, other.workload
    return (
        one.memory.peak == other.memory.peak
        and (work.flops, work.tokens) == (others.flops, others.tokens)
        and _same_programs(one.program, other.program)
    )


def _same_programs(one: Program, other: Program) -> bool:
    if one.names != other.names or one.jitter != other.jitter:
        return False
    if len(one.tables) != len(other.tables):
        return False
    return (
        all(np.array_equal(getattr(one, part), getattr(other, part)) for part in PARTS)
        and all(
            np.array_equal(getattr(one.communicators, part), getattr(other.communicators, part))
            for part in GROUPS
        )
        and all(map(_same_tables, one.tables, other.tables))
    )


def _same_tables(one: Table | None, other: Table | None) -> bool:
    if one is None or other is None:
        return one is other
    columns = (*COLUMNS, "wait_index", "wait_row")
    return one.queue_depth == other.queue_depth and all(
        np.array_equal(getattr(one, column), getattr(other, column)) for column in columns
    )
