"""What runs on one GPU at what time, and how far rows get when what runs beside them slows them.

All formulas are those of one rank alone, from integer times, in one order: every process that works
them out comes to the same bits. Sums of integers below 2^53 ps (2.5 hours) are exact in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..kernels.slowdown import Load
from ._core import rows
from ._core.intervals import advanced, begun, held

__all__ = ["Loads", "alike", "kernels_last", "loads_of", "moved", "use_of"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

Factor = Callable[[Ints, Load], tuple[Floats, Floats]]
"""From rows and what is loaded beside each to the factors of their time, shape (p,), and what these
rest on, shape (p, c)."""

USE_ONE = 1 << 20
"""Use of the memory is added up in these parts, so that sums come back to 0."""


def alike(*columns: Ints) -> tuple[Ints, Ints]:
    """Find rows that agree in all columns.

    Parameters
    ----------
    columns : int64, shape (n,) each

    Returns
    -------
    first : int64, shape (k,)
        The first of each kind of row, ascending.
    kind : int64, shape (n,)

    Examples
    --------
    >>> first, kind = alike(np.array([1, 0, 1]), np.array([5, 9, 5]))
    >>> first.tolist(), kind.tolist()
    ([0, 1], [0, 1, 0])
    """
    found: tuple[Ints, Ints] = rows.alike(np.stack(columns, axis=1, dtype=np.int64))
    return found


@dataclass(frozen=True, eq=False)
class Loads:
    """What communications hold of a GPU, in `n` intervals one after the other.

    Attributes
    ----------
    time : int64, shape (n + 1,)
        ps; the last entry ends the last interval. Before and after, nothing is held.
    load : Load
        Shape (n,) each; the last interval holds nothing.
    """

    time: Ints
    load: Load


def loads_of(begin: Ints, wire: Ints, end: Ints, taken: Ints, bandwidth: Ints) -> Loads:
    """Add up what the communications of a rank hold.

    Parameters
    ----------
    begin, wire, end : int64, shape (m,)
        Of each communication: from when its kernel occupies the GPU, from when it moves data, and
        until when, in ps.
    taken : int64, shape (m,)
        Multiprocessors.
    bandwidth : int64, shape (m,)
        B/s of the memory, while it moves data.

    Examples
    --------
    >>> one = [np.array([v]) for v in (0, 4, 10, 16, 50)]
    >>> found = loads_of(*one)
    >>> found.time.tolist(), found.load.taken.tolist(), found.load.bandwidth.tolist()
    ([0, 4, 10], [16, 16, 0], [0.0, 50.0, 0.0])
    """
    moments = np.concatenate([begin, wire, end])
    # Fast: of each stream the three are in order. Then the distinct ones, and which each is.
    order = np.argsort(moments, kind="stable")
    moments = moments[order]
    new = np.diff(moments, prepend=moments[:1] - 1) != 0
    time = moments[new]
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(new) - 1
    first, moving, last = place.reshape(3, -1)
    # The one with the most channels matters most: it comes last, and stays.
    order = np.argsort(taken, kind="stable")
    return Loads(time, Load(*held(first, moving, last, taken, bandwidth, order, len(time))))


def kernels_last(
    begin: Ints, lasting: Floats, loads: Loads, factor: Factor, n_terms: int
) -> tuple[Floats, Floats]:
    """Return how long kernels last beside communications.

    A kernel that needs the time t alone is done once its progress, dt / factor in each interval,
    adds up to t.

    Parameters
    ----------
    begin : int64, shape (k,)
        ps.
    lasting : float64, shape (k,)
        How long each lasts alone, in ps.
    loads : Loads
    factor : callable
        A `Factor`; rows are entries of `begin`.
    n_terms : int
        How many numbers it says that factors rest on.

    Returns
    -------
    float64, shape (k,)
        ps. Exactly `lasting` where nothing is held meanwhile.
    float64, shape (k, n_terms)
        What the factors rest on, times the time spent with each.
    """
    terms = np.zeros((len(begin), n_terms))
    busy = (loads.load.taken > 0) | (loads.load.bandwidth > 0)
    # The first interval from each on in which something is held.
    which = np.append(np.flatnonzero(busy), len(busy))
    following = which[np.searchsorted(which, np.arange(-1, len(busy)))]
    interval = np.searchsorted(loads.time, begin, side="right") - 1
    intervals = loads.time, busy.view(np.uint8), following
    spent, left, going = begun(begin, lasting, interval, *intervals)
    while len(going):
        slower, rests_on = factor(going, loads.load.at(interval[going]))
        count = advanced(
            going,
            slower,
            np.ascontiguousarray(rests_on),
            begin,
            spent,
            left,
            terms,
            interval,
            *intervals,
        )
        going = going[:count]
    return spent, terms


def use_of(begin: Ints, end: Ints, use: Floats) -> tuple[Ints, Floats]:
    """Add up how kernels use the memory.

    Parameters
    ----------
    begin, end : int64, shape (k,)
        ps.
    use : float64, shape (k,)
        Share of the memory's bandwidth.

    Returns
    -------
    int64, shape (n,)
        Times at which the use changes, ascending; of equal ones the last counts.
    float64, shape (n,)
        The use from there on, 1 at most; the last is 0, as before the first.
    """
    time = np.concatenate([begin, end])
    parts = np.rint(use * USE_ONE).astype(np.int64)
    order = np.argsort(time, kind="stable")  # fast: rows begin and end in order, for the most part
    change = np.concatenate([parts, -parts])[order]
    return time[order], np.minimum(np.cumsum(change) / USE_ONE, 1.0)


def moved(begin: Ints, lasting: Floats, time: Ints, factor: Floats) -> Floats:
    """Return how long communications last if each interval slows them by a factor.

    Parameters
    ----------
    begin : int64, shape (m,)
        From when each moves data, in ps.
    lasting : float64, shape (m,)
        How long each lasts where nothing slows it, in ps.
    time : int64, shape (n,)
        When factors change.
    factor : float64, shape (n,)
        From there on; 1 before the first and from the last on.

    Returns
    -------
    float64, shape (m,)
        ps.
    """
    if not len(time) or not len(begin):
        return lasting
    # Progress at each time, since the first of them; before and after, it goes with the clock.
    far = max(int(begin.max()), int(time[-1])) + int(lasting.max()) + 1
    near = min(int(begin.min()), int(time[0])) - 1
    clock = np.concatenate([[near], time, [far]])
    rate = np.concatenate([[1.0], 1 / factor])
    progress = np.concatenate([[0.0], np.cumsum(np.diff(clock) * rate)])
    start = np.interp(begin, clock, progress)
    found: Floats = np.interp(start + lasting, progress, clock) - begin
    return found
