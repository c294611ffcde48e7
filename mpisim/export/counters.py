"""What changes over a step beside rows: memory of a rank, use of links.

Memory is that of `mpisim.prediction.memory_course`; the use of links is that of the results file,
in hundredths of the step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..prediction.memory_course import MemoryParts
from ..results.link_use import BINS, LinkUse

__all__ = ["Counter", "link_counters", "memory_counter"]

MOST_LINKS = 16
"""Links, or sets of links used alike, that are shown: the most used ones."""


class Counter(NamedTuple):
    """A quantity over time.

    Attributes
    ----------
    name, unit : str
    time : int64, shape (n,)
        ps, ascending.
    value : float64, shape (n,)
        From that time on.
    """

    name: str
    unit: str
    time: NDArray[np.int64]
    value: NDArray[np.float64]


def memory_counter(found: MemoryParts) -> Counter:
    """Memory of a rank by part → the counter of all of it."""
    return Counter("GPU memory", "bytes", found.time, found.total.astype(np.float64))


def link_counters(links: LinkUse, step_time_ps: int) -> list[Counter]:
    """Use of links → a counter each, in percent of its capacity; the most used first.

    Parameters
    ----------
    links : LinkUse
    step_time_ps : int
    """
    edges = np.arange(BINS + 1) * step_time_ps // BINS
    return [
        Counter(
            links.links["name"][i] + (f" and {count - 1} alike" if count > 1 else ""),
            "%",
            edges,
            np.append(100 * links.utilisation[i], 0.0),
        )
        for i, count in enumerate(links.links["count"][:MOST_LINKS].tolist())
    ]
