"""Memory of the shown ranks and use of links, over the step → columns of the page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..mpi.parallel import collective_errors
from ..prediction.memory_course import MemoryCourse, MemoryParts
from ..results import Results
from ..results.link_use import BINS
from .shown import RankGroups, ShownRun

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["links_of", "memory_of"]

MOST_TIMES = 4_000
"""Times at which the memory of a rank is shown; of more the highest of each part of the step."""

MOST_LINKS = 400
"""Most lines of links that are shown; links with equal use share one."""

LABELS = {
    "optimizer": "optimizer states",
    "gathered": "gathered parameters",
    "buckets": "gradient buckets",
    "messages": "message buffers",
    "context": "CUDA context",
    "working": "buffers of the optimizer's step",
}
"""What parts of memory are called, where their name does not say it."""

Ints = NDArray[np.int64]


# --- memory ---------------------------------------------------------------------------------------


def memory_of(
    shown: ShownRun, groups: RankGroups | None, capacity: int, comm: Intracomm
) -> dict[str, Any] | None:
    """Memory over the step of the shown ranks, by part. **Collective.**

    Parameters
    ----------
    shown : ShownRun
        With what was prepared of an experiment.
    groups : RankGroups or None
        On process 0.
    capacity : int
        Bytes of a GPU, on process 0.
    comm : mpi4py.MPI.Intracomm

    Returns
    -------
    dict or None
        None on processes other than 0, and where no rank's passes can be distinguished.
    """
    assert shown.prepared is not None
    ranks: Sequence[int] = comm.bcast(None if groups is None else groups.shown, root=0)
    run = shown.run
    with collective_errors(comm):
        course = MemoryCourse(shown.prepared)
        mine = {}
        for rank in ranks:
            if run.placement[rank] == comm.rank:
                rows = run.rows(int(np.searchsorted(run.hosted, rank)))
                found = course.of(rank, run.program.table_of(rank), rows)
                if found is not None:
                    mine[rank] = _short(_whole(shown, found))
    everyone = comm.gather(mine, root=0)
    if everyone is None or groups is None:
        return None
    by_rank = {rank: found for part in everyone for rank, found in part.items()}
    sections = [
        {
            "title": title,
            "times": by_rank[rank].time,
            "parts": [
                {"name": LABELS.get(name, name), "bytes": values}
                for name, values in by_rank[rank].bytes.items()
                if values.any()
            ],
        }
        for title, rank in zip(groups.titles, groups.shown, strict=True)
        if rank in by_rank
    ]
    if not sections:
        return None
    return {
        "capacity": capacity,
        "groups": sections,
        "note": "Of the memory model, at the times of the run: from the first kernel of a pass to "
        "its last the most that the pass holds, and behind it what it keeps.",
    }


def _whole(shown: ShownRun, found: MemoryParts) -> MemoryParts:
    """Return the memory over the whole step: rounds that repeat hold the same each time."""
    repetition = shown.repetition
    if repetition is None:
        return found
    end, period, times = repetition.window.end, repetition.window.period, repetition.times
    first, last = np.searchsorted(found.time, [end - period, end]).tolist()
    again = np.arange(first, last)
    at = np.concatenate([np.arange(last), np.tile(again, times), np.arange(last, len(found.time))])
    later = np.arange(times + 2).clip(max=times)
    later = np.repeat(later, [last, *[len(again)] * times, len(found.time) - last])
    return MemoryParts(
        found.time[at] + later * period, {name: each[at] for name, each in found.bytes.items()}
    )


def _short(found: MemoryParts) -> MemoryParts:
    """Return memory at no more than `MOST_TIMES` times, its highest values included."""
    n = len(found.time)
    if n <= MOST_TIMES:
        return found
    total = found.total
    first = np.arange(MOST_TIMES) * n // MOST_TIMES
    highest = np.repeat(np.maximum.reduceat(total, first), np.diff(first, append=n))
    at = np.flatnonzero(total == highest)
    kept = at[np.searchsorted(at, first)]  # the first of the highest of each part
    return MemoryParts(found.time[kept], {name: each[kept] for name, each in found.bytes.items()})


# --- links ----------------------------------------------------------------------------------------


def links_of(results: Results) -> dict[str, Any] | None:
    """Results → use of links that can be full, over the step; None where there are none.

    Parameters
    ----------
    results : Results
    """
    use = results.links
    n = len(use.links["name"])
    if not n:
        return None
    shown = min(n, MOST_LINKS)
    names = use.links["name"][:shown].tolist()
    note = "Links that are used alike are one line, called by one of them."
    if shown < n:
        note += f" The {shown:,} most used of {n:,} lines."
    return {
        "names": names,
        "levels": [level_of(name) for name in names],
        "counts": use.links["count"][:shown],
        "capacity": use.links["capacity"][:shown],
        "busy": use.links["busy"][:shown] / max(results.shown_ps, 1),
        "utilisation": _rounded(use.utilisation[:shown]).reshape(-1),
        "bins": BINS,
        "note": note,
    }


def _rounded(shares: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round shares so that they are the same on any number of processes, folded or not.

    What adds them up does so in another order there: their last digits differ, and some of what is
    nothing has a sign.
    """
    return (shares.round(5) + 0.0).astype(np.float32)


def level_of(link: str) -> str:
    """Return the level of the fabric that a link belongs to: its name without numbers.

    Examples
    --------
    >>> level_of("node12.nic3->leaf0.rail3")
    'node.nic->leaf.rail'
    """
    return re.sub(r"\d+", "", link)
