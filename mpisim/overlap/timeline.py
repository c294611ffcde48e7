"""Timelines of one GPU: the load that communications put on it, and how far slowed rows get.

A row with slowdown factor f progresses at rate 1 / f; it is done when its progress adds up to the
time that it takes alone. All formulas are those of one rank, from integer times, in a fixed order:
every process that works them out gets the same bits. Sums of integers below 2^53 ps (2.5 hours) are
exact in float64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..kernels.slowdown import Load
from ._core import progress, rows
from ._core.intervals import interval_loads
from ._core.progress import KernelFactors

__all__ = [
    "USE_ONE",
    "KernelFactors",
    "LoadIntervals",
    "distinct_rows",
    "load_intervals",
    "memory_use",
    "slowed_communications",
    "slowed_kernels",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

USE_ONE = 1 << 20
"""Memory use is added up in these units, as integers, so that sums return to 0."""


def distinct_rows(*columns: Ints) -> tuple[Ints, Ints]:
    """Rows of columns → the distinct rows.

    Parameters
    ----------
    columns : int64, shape (n,) each

    Returns
    -------
    first : int64, shape (k,)
        The first of each distinct row, ascending.
    kind : int64, shape (n,)
        The entry of `first` that equals each row.

    Examples
    --------
    >>> first, kind = distinct_rows(np.array([1, 0, 1]), np.array([5, 9, 5]))
    >>> first.tolist(), kind.tolist()
    ([0, 1], [0, 1, 0])
    """
    found: tuple[Ints, Ints] = rows.distinct_rows(np.stack(columns, axis=1, dtype=np.int64))
    return found


@frozen(eq=False)
class LoadIntervals:
    """Load of communications on a GPU, in `n` consecutive intervals.

    Attributes
    ----------
    time : int64, shape (n + 1,)
        ps; the last entry ends the last interval. Before and after, there is no load.
    load : Load
        Shape (n,) each; the last interval has no load.
    """

    time: Ints
    load: Load


def load_intervals(
    begin: Ints, wire: Ints, end: Ints, taken: Ints, bandwidth: Ints
) -> LoadIntervals:
    """Communications of a rank → their load on the GPU over time.

    Parameters
    ----------
    begin, wire, end : int64, shape (m,)
        When the kernel of each communication begins to occupy the GPU and to move data, and when
        it ends, in ps.
    taken : int64, shape (m,)
        Multiprocessors that it occupies.
    bandwidth : int64, shape (m,)
        Memory bandwidth that it uses while it moves data, in bytes/s.

    Examples
    --------
    >>> one = [np.array([v]) for v in (0, 4, 10, 16, 50)]
    >>> found = load_intervals(*one)
    >>> found.time.tolist(), found.load.taken.tolist(), found.load.bandwidth.tolist()
    ([0, 4, 10], [16, 16, 0], [0.0, 50.0, 0.0])
    """
    moments = np.concatenate([begin, wire, end])
    # A stable sort is fast here, since each stream is in order.
    order = np.argsort(moments, kind="stable")
    moments = moments[order]
    new = np.diff(moments, prepend=moments[:1] - 1) != 0
    time = moments[new]
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(new) - 1
    first, moving, last = place.reshape(3, -1)
    # Of several, `Load.which` is the one that occupies most: the last in this order.
    order = np.argsort(taken, kind="stable")
    return LoadIntervals(
        time, Load(*interval_loads(first, moving, last, taken, bandwidth, order, len(time)))
    )


def slowed_kernels(
    begin: Ints, kernel: Ints, lasting: Floats, loads: LoadIntervals, factors: KernelFactors
) -> tuple[Floats, Ints, Floats]:
    """Times of kernels alone → beside communications.

    A kernel that needs the time t alone is done once its progress, dt / factor in each interval,
    adds up to t.

    Parameters
    ----------
    begin : int64, shape (k,)
        ps.
    kernel : int64, shape (k,)
        Which kernel each is, as `factors` numbers them.
    lasting : float64, shape (k,)
        Time of each alone, in ps.
    loads : LoadIntervals
    factors : KernelFactors

    Returns
    -------
    float64, shape (k,)
        ps. Exactly `lasting` where there is no load meanwhile.
    int64, shape (g,)
        Entries that run beside a load.
    float64, shape (g, n_terms)
        The dependence of their factors, times the time spent with each, in ps.
    """
    found: tuple[Floats, Ints, Floats] = factors.slowed(
        begin, kernel, lasting, loads.time, *loads.load
    )
    return found


def memory_use(begin: Ints, end: Ints, parts: Ints) -> tuple[Ints, Floats]:
    """Kernels → the use of memory bandwidth over time.

    Parameters
    ----------
    begin, end : int64, shape (k,)
        ps.
    parts : int64, shape (k,)
        Share of the memory's bandwidth, times `USE_ONE`.

    Returns
    -------
    int64, shape (n,)
        Times at which the use changes, ascending; of equal ones the last counts.
    float64, shape (n,)
        The use from there on, 1 at most; the last is 0, as before the first.
    """
    found: tuple[Ints, Floats] = progress.memory_use(begin, end, parts, USE_ONE)
    return found


def slowed_communications(begin: Ints, lasting: Floats, time: Ints, factor: Floats) -> Floats:
    """Wire times without slowdown → with a factor in each interval.

    Parameters
    ----------
    begin : int64, shape (m,)
        When each begins to move data, in ps.
    lasting : float64, shape (m,)
        Wire time of each without slowdown, in ps.
    time : int64, shape (n,)
        When factors change.
    factor : float64, shape (n,)
        From each of these times on; 1 before the first and from the last on.

    Returns
    -------
    float64, shape (m,)
        ps.
    """
    if not len(time) or not len(begin):
        return lasting
    found: Floats = progress.slowed_communications(begin, lasting, time, factor)
    return found
