"""The critical path → its sums and pieces, as columns of the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import numbered
from ..base.text import duration
from ..engine.critical_path import CriticalPath, PieceKind
from ..report.comparison import WORDS
from ..report.figures import path_by
from ..results import Results
from .timeline import SHARE_AT_BEGIN

__all__ = ["MOST_PIECES", "path_of"]

MOST_PIECES = 50_000
"""Pieces that are in the page one by one; sums are of all."""

MOST_SUMMED = 1_000
"""Names, and ranks, of which the page has sums; the rest is one line."""

Ints = NDArray[np.int64]


def path_of(
    results: Results, begin: int, place: Mapping[int, tuple[Ints, Ints]] | None = None
) -> dict[str, Any] | None:
    """Results → the section of the critical path; None where there is none.

    Parameters
    ----------
    results : Results
    begin : int
        Begin of the step shown, in ps from the begin of the run.
    place : mapping of int to (int64, int64), optional
        Where rows of ranks lie in the timeline: see `mpisim.page.timeline.Timeline`.
    """
    path = results.critical_path
    if path is None or not len(path.kind):
        return None
    words = [WORDS[kind] for kind in PieceKind]
    numbers = results.rank_numbers
    sums: dict[str, list[list[Any]]] = {}
    for what in ("kind", "name", "rank"):
        lines = [
            [_label(what, each[what]), each["total_ps"], each["pieces"]]
            for each in path_by(path, what, numbers)
        ]
        sums[f"by_{what}"] = _first(lines)
    n = len(path.kind)
    which, cut = np.arange(n), ""
    if n > MOST_PIECES:
        first, last = (
            round(SHARE_AT_BEGIN * MOST_PIECES),
            n - round((1 - SHARE_AT_BEGIN) * MOST_PIECES),
        )
        which = np.concatenate([which[:first], which[last:]])
        ends = (duration(int(path.begin[at]) - begin) for at in (first, last))
        cut = (
            f"{MOST_PIECES:,} of {n:,} pieces are shown one by one: those from {' to '.join(ends)} "
            "are left out; sums are of all."
        )
    used, _, name = numbered(path.name[which])
    return {
        **sums,
        "names": [path.names[i] if i >= 0 else "" for i in used.tolist()],
        "kinds": words,
        "pieces": {
            "begin": path.begin[which] - begin,
            "end": path.end[which] - begin,
            "rank": np.array(numbers, np.int32)[path.rank[which]],
            "kind": path.kind[which],
            "name": name.astype(np.int32),
            "row": _rows(path, which, place or {}),
        },
        "cut": cut,
    }


def _label(what: str, key: Any) -> str:
    if what == "kind":
        return WORDS[PieceKind[key.upper()]]
    return f"rank {key}" if what == "rank" else str(key)


def _first(lines: list[list[Any]]) -> list[list[Any]]:
    """Return the first lines, and the sum of the others as one."""
    rest = lines[MOST_SUMMED:]
    if not rest:
        return lines
    more = [f"{len(rest):,} more", sum(each[1] for each in rest), sum(each[2] for each in rest)]
    return [*lines[:MOST_SUMMED], more]


def _rows(
    path: CriticalPath, which: Ints, place: Mapping[int, tuple[Ints, Ints]]
) -> NDArray[np.int32]:
    """Return the entry in the timeline of each piece's row; -1 where it is not shown."""
    found = np.full(len(which), -1, np.int32)
    ranks, rows = path.rank[which], path.row[which]
    for rank, (number, entry) in place.items():
        mine = np.flatnonzero((ranks == rank) & (rows >= 0))
        if len(number) and len(mine):
            at = np.searchsorted(number, rows[mine]).clip(max=len(number) - 1)
            found[mine] = np.where(number[at] == rows[mine], entry[at], -1)
    return found
