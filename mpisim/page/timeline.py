"""Rows of the shown ranks → the timeline of the page.

Each rank is a group of lanes. The page is one file to be sent around, so there is a limit to its
rows. Where there are more, whole groups are left out, those with least of the critical path first.
Where that would leave less than half of them, all groups are kept and the middle of the step is
left out instead: there rounds of micro-batches follow each other that are much the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import numbered
from ..base.text import duration
from ..mpi.parallel import collective_errors
from ..program import Phase, Program
from .rows import Gap, RankRows, begun_before, rank_rows
from .shown import RankGroups, ShownRun

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["MOST_ROWS", "Timeline", "timeline_of"]

MOST_ROWS = 600_000
"""Rows of all groups: what a browser shows without delay."""
MOST_BYTES = 3_200_000
"""Of their times, about, as they are in the file. Those of a prediction repeat and take less than a
byte a row; random factors and recordings take up to 15."""
MAX_SAMPLE_ROWS = 20_000
"""Rows of a rank that tell how many bytes one takes."""
PARTS_OF_STEP = 1_000
"""Where the middle of the step is left out, it begins and ends at one of these."""
SHARE_AT_BEGIN = 0.75
"""Share of the rows that are then of the begin of the step."""

KINDS = ("kernel", "copy", "collective", "send", "recv", "host", "host wait")
"""What each `Kind` is called."""

Ints = NDArray[np.int64]


class Timeline(NamedTuple):
    """The section of the page, and where the rows of each rank lie in it.

    Attributes
    ----------
    section : dict
    place : mapping of int to (int64, int64)
        Of each shown rank: numbers of its rows, ascending, and the entry in ``rows`` of each.
    """

    section: dict[str, Any]
    place: Mapping[int, tuple[Ints, Ints]]


def timeline_of(
    shown: ShownRun,
    groups: RankGroups | None,
    window: tuple[int, int],
    numbers: Sequence[int],
    comm: Intracomm,
    most: int = MOST_ROWS,
) -> Timeline | None:
    """Rows of the shown ranks → the timeline of the page. **Collective.**

    Parameters
    ----------
    shown : ShownRun
    groups : RankGroups or None
        On process 0.
    window : tuple of int
        Begin and end of the step, in ps from the begin of the run; on process 0.
    numbers : sequence of int
        Number of each rank in its job; on process 0.
    comm : mpi4py.MPI.Intracomm
    most : int
        Rows of all groups, at most.

    Returns
    -------
    Timeline or None
        On process 0; None on the others.
    """
    choice = None
    if groups is not None:  # those that matter most first
        order = sorted(zip(groups.on_path, groups.shown, strict=True), key=lambda each: -each[0])
        choice = [rank for _, rank in order], window
    ranks, window = comm.bcast(choice, root=0)
    mine = [rank for rank in ranks if shown.run.placement[rank] == comm.rank]
    with collective_errors(comm):
        sizes = {rank: _size(shown, rank, window) for rank in mine}
    everyone = {rank: size for part in comm.allgather(sizes) for rank, size in part.items()}
    kept, gap = _that_fit([everyone[rank] for rank in ranks], window, most)
    chosen = {ranks[i] for i in kept}
    with collective_errors(comm):
        parts = [rank_rows(shown, rank, window, gap) for rank in mine if rank in chosen]
    found = comm.gather(parts, root=0)
    if found is None or groups is None:
        return None
    by_rank = {part.rank: part for process in found for part in process}
    return _joined(
        shown.run.program,
        groups,
        by_rank,
        numbers,
        _left_out(by_rank, groups, numbers, window, gap),
    )


# --- what fits ------------------------------------------------------------------------------------


class _Size(NamedTuple):
    """What a rank takes of the page.

    Attributes
    ----------
    begun : int64, shape (PARTS_OF_STEP + 1,)
        Rows that have begun before each part of the step, and in all.
    bytes_a_row : float
        Of their times, in the file.
    """

    begun: Ints
    bytes_a_row: float

    @property
    def rows(self) -> int:
        """All rows."""
        return int(self.begun[-1])

    @property
    def bytes(self) -> float:
        """All bytes."""
        return self.rows * self.bytes_a_row


def _edges(window: tuple[int, int]) -> list[int]:
    """Return where the parts of the step begin, and its end, in ps from the begin of the run."""
    begin, end = window
    return [begin + i * (end + 1 - begin) // PARTS_OF_STEP for i in range(PARTS_OF_STEP + 1)]


def _size(shown: ShownRun, rank: int, window: tuple[int, int]) -> _Size:
    """Return what a rank that this process hosts takes of the page. Local."""
    begun = begun_before(shown, rank, np.array(_edges(window), np.int64))
    rows = shown.run.rows(int(np.searchsorted(shown.run.hosted, rank)))
    here = np.flatnonzero((rows.end >= window[0]) & (rows.begin <= window[1]))
    middle = max(len(here) - MAX_SAMPLE_ROWS, 0) // 2
    some = here[middle : middle + MAX_SAMPLE_ROWS]
    columns = (np.diff(rows.begin[some]), (rows.end - rows.begin)[some])
    packed = sum(len(zlib.compress(column.tobytes(), 1)) for column in columns)
    return _Size(begun - begun[0], packed * 4 / 3 / max(len(some), 1))  # as text


def _that_fit(
    sizes: Sequence[_Size], window: tuple[int, int], most: int
) -> tuple[list[int], Gap | None]:
    """Return the ranks that are shown, and the time window that is cut from the step of each.

    Parameters
    ----------
    sizes : sequence of _Size
        Of the ranks, those that matter most first.
    window : tuple of int
        Begin and end of the step.
    most : int
        Rows of all.
    """
    kept: list[int] = []
    rows, taken = 0, 0.0
    for i, size in enumerate(sizes):
        if rows + size.rows <= most and taken + size.bytes <= MOST_BYTES:
            kept.append(i)
            rows, taken = rows + size.rows, taken + size.bytes
    if 2 * len(kept) >= len(sizes):
        return kept, None
    begun = np.sum([size.begun for size in sizes], axis=0)
    share = MOST_BYTES / max(sum(size.bytes for size in sizes), 1.0)
    most = min(most, int(share * begun[-1]))
    first = int(np.searchsorted(begun, SHARE_AT_BEGIN * most, side="right")) - 1
    last = int(np.searchsorted(-(begun[-1] - begun), -(most - begun[first])))
    edges = _edges(window)
    return list(range(len(sizes))), Gap(edges[first], edges[last])


def _left_out(
    parts: Mapping[int, RankRows],
    groups: RankGroups,
    numbers: Sequence[int],
    window: tuple[int, int],
    gap: Gap | None,
) -> str:
    """Say what is not in the timeline; empty if all is."""
    missing = [
        f"{title} (rank {numbers[rank]})" if groups.stages[0] >= 0 else title
        for title, rank in zip(groups.titles, groups.shown, strict=True)
        if rank not in parts
    ]
    texts = []
    if missing:
        texts.append(f"Left out, since a page does not hold all rows: {', '.join(missing)}.")
    if gap is not None:
        begin, end = (duration(time - window[0]) for time in gap)
        texts.append(
            f"What begins from {begin} to {end} of the step's {duration(window[1] - window[0])} is "
            "left out, since a page does not hold all rows."
        )
    if groups.left_out:
        texts.append(f"{groups.left_out:,} more groups of ranks are not shown.")
    return " ".join(texts)


# --- all ranks ------------------------------------------------------------------------------------


def _joined(
    program: Program,
    groups: RankGroups,
    parts: Mapping[int, RankRows],
    numbers: Sequence[int],
    cut: str,
) -> Timeline:
    """Return the timeline of all ranks that are shown, on process 0."""
    names: dict[str, int] = {}
    lanes: list[dict[str, Any]] = []
    columns: dict[str, list[NDArray[Any]]] = {}
    place: dict[int, tuple[Ints, Ints]] = {}
    at, sizes = 0, groups.sizes.tolist()
    for i, rank in enumerate(groups.shown):
        part = parts.get(rank)
        if part is None:
            continue
        own = np.array([names.setdefault(name, len(names)) for name in part.names], np.int32)
        streams, first = [], at
        for title, count in part.lanes:
            streams.append({"name": title, "first": at, "count": count})
            at += count
        for name, column in part.columns.items():
            columns.setdefault(name, []).append(own[column] if name == "name" else column)
        order = np.argsort(part.numbers, kind="stable")
        place[rank] = part.numbers[order], first + order
        equal = f"rank {numbers[rank]}"
        if sizes[i] > 1:
            equal += f", one of {sizes[i]:,}"
        lanes.append(
            {
                "title": groups.titles[i],
                "subtitle": equal,
                "rank": numbers[rank],
                "stage": groups.stages[i],
                "streams": streams,
            }
        )
    rows = {name: np.concatenate(column) for name, column in columns.items()}
    used, _, communicator = numbered(rows["communicator"])
    known = used[used >= 0]
    rows["communicator"] = (communicator - (len(used) - len(known))).astype(np.int32)  # -1 stays
    section = {
        "names": list(names),
        "phases": [phase.name.lower() for phase in Phase],
        "groups": lanes,
        "rows": rows,
        "kinds": list(KINDS),
        "communicators": [program.communicators.names[i] for i in known.tolist()],
        "cut": cut,
    }
    return Timeline(section, place)
