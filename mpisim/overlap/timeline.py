"""Timelines of one GPU: the load that communications put on it, and how far slowed rows get.

A row with slowdown factor f progresses at rate 1 / f; it is done when its progress adds up to the
time that it takes alone. All formulas are those of one rank, from integer times, in a fixed order:
every process that works them out gets the same bits. Sums of integers below 2^53 ps (2.5 hours) are
exact in float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import dense
from ..base.frozen import frozen
from ..kernels.slowdown import Load
from ._core import rows
from ._core.intervals import interval_loads
from ._core.progress import CommunicationFactors, KernelFactors

__all__ = [
    "USE_ONE",
    "CommunicationFactors",
    "KernelFactors",
    "LoadIntervals",
    "Orders",
    "distinct_rows",
    "load_intervals",
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


class Orders(NamedTuple):
    """Orders of the communications of a rank.

    Attributes
    ----------
    by_taken : int64, shape (m,)
        By the multiprocessors that they take: of several the last counts as `Load.which`.
    by_stream : int64, shape (m,)
        Stream by stream, those with few communications first.
    streams : int64, shape (n_streams + 1,)
        Where each stream begins there.
    """

    by_taken: Ints
    by_stream: Ints
    streams: Ints

    @classmethod
    def of(cls, taken: Ints, stream: NDArray[np.integer[Any]]) -> Orders:
        """Sort communications by what they take, and by their streams.

        Parameters
        ----------
        taken : int64, shape (m,)
            Multiprocessors that each takes.
        stream : int, shape (m,)
            Stream of each, -1 or more.
        """
        stream = stream + 1
        count = np.bincount(stream)
        (present,) = np.nonzero(count)
        by_count = present[np.argsort(count[present], kind="stable")]
        rank = np.zeros(len(count), np.int64)
        rank[by_count] = np.arange(len(by_count))
        return cls(
            rows.stable_order(*dense(taken)),
            rows.stable_order(rank[stream], len(by_count)),
            np.concatenate([[0], np.cumsum(count[by_count])]),
        )


def load_intervals(
    begin: Ints,
    wire: Ints,
    end: Ints,
    taken: Ints,
    bandwidth: Ints,
    which: Ints | None = None,
    orders: Orders | None = None,
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
    which : int64, shape (m,), optional
        What `Load.which` says of each; by default its number.
    orders : Orders, optional
        Of these communications, where they are known.

    Examples
    --------
    >>> one = [np.array([v]) for v in (0, 4, 10, 16, 50)]
    >>> found = load_intervals(*one)
    >>> found.time.tolist(), found.load.taken.tolist(), found.load.bandwidth.tolist()
    ([0, 4, 10], [16, 16, 0], [0.0, 50.0, 0.0])
    """
    orders = Orders.of(taken, np.zeros(len(taken), np.int64)) if orders is None else orders
    numbers = np.arange(len(begin)) if which is None else which
    time, *load = interval_loads(begin, wire, end, taken, bandwidth, numbers, *orders)
    return LoadIntervals(time, Load(*load))


def slowed_kernels(
    begin: Ints,
    rows: Ints,
    kernel: Ints,
    alone: Ints,
    scale: Floats,
    loads: LoadIntervals,
    factors: KernelFactors,
) -> tuple[Ints, Floats, Floats]:
    """Times of kernels alone → beside communications.

    A kernel that needs the time t alone is done once its progress, dt / factor in each interval,
    adds up to t.

    Parameters
    ----------
    begin : int64, shape (n,)
        Of all rows, in ps.
    rows : int64, shape (k,)
        Kernels.
    kernel : int64, shape (k,)
        Which kernel each is, as `factors` numbers them.
    alone : int64, shape (k,)
        Time of each alone at speed 1, in ps.
    scale : float64, shape (k,)
        How many times as long it takes on its rank.
    loads : LoadIntervals
    factors : KernelFactors

    Returns
    -------
    int64, shape (g,)
        Kernels, of the k, that run beside a load, or so long that rounding shows. The others take
        exactly as long as alone.
    float64, shape (g,)
        Their times on the rank, in ps.
    float64, shape (g, n_terms)
        The dependence of their factors, times the time spent with each, in ps.
    """
    found: tuple[Ints, Floats, Floats] = factors.slowed(
        begin, rows, kernel, alone, scale, loads.time, *loads.load
    )
    return found


def slowed_communications(
    begin: Ints, lasting: Floats, time: Ints, use: Ints, factors: CommunicationFactors
) -> Floats:
    """Wire times without slowdown → beside kernels.

    Parameters
    ----------
    begin : int64, shape (m,)
        When each begins to move data, in ps.
    lasting : float64, shape (m,)
        Wire time of each without slowdown, in ps.
    time : int64, shape (n,)
        When the use of the memory's bandwidth changes: see `CommunicationFactors.memory_use`.
    use : int64, shape (n,)
        From each of these times on; nothing before the first and from the last on.
    factors : CommunicationFactors

    Returns
    -------
    float64, shape (m,)
        ps.
    """
    if not len(time) or not len(begin):
        return lasting
    found: Floats = factors.slowed(begin, lasting, time, use)
    return found
