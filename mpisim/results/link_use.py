"""Use of links that can saturate: bytes, utilisation over time, and communicators that share them.

The bytes of a communication are spread evenly from the time they begin to flow to its end. Where
its rate changes meanwhile, the bytes of a bin are an approximation; those of the step are exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..engine._core import carried, depths, flows_by_link, pair_depths
from ..engine.flows import Flows, SharedLinks
from ..engine.refine import ranges
from ..topo.network import RATE_BITS, WEIGHT_ONE

if TYPE_CHECKING:
    from ..engine.repetition import Repetition

__all__ = ["BINS", "LinkUse", "use_of_links"]

Ints = NDArray[np.int64]

BINS = 100
"""Equal parts of the step."""

FLOWS_AT_ONCE = 1 << 18
"""Flows that are added up at once where they follow from a part of the step."""

MAX_PAIRED = 32
"""Communicators on one link up to which pairs of them that share it are listed."""


@frozen(eq=False)
class LinkUse:
    """Use of links; one entry for all links that are used equally at the same times.

    Attributes
    ----------
    links : mapping of str to array, shape (n,)
        name (of one of them), count (how many there are), capacity (bytes/s), bytes (over the step,
        of one), busy and shared (ps in which one or more, and two or more communications used it);
        the highest bytes/capacity first.
    utilisation : float64, shape (n, BINS)
        Share of the capacity that was used in each part of the step.
    sharing : mapping of str to array
        link (an entry above), communicator, other, time (ps in which both used it).
    """

    links: dict[str, NDArray[Any]]
    utilisation: NDArray[np.float64]
    sharing: dict[str, NDArray[Any]]

    @classmethod
    def none(cls) -> LinkUse:
        """Return the use of no links."""
        empty = np.empty(0, np.int64)
        links = dict.fromkeys(("count", "capacity", "bytes", "busy", "shared"), empty)
        sharing = dict.fromkeys(("link", "communicator", "other", "time"), empty)
        return cls({"name": np.empty(0, object), **links}, np.empty((0, BINS)), sharing)


def use_of_links(
    shared: SharedLinks, flows: Flows, step_time: int, repetition: Repetition | None = None
) -> LinkUse:
    """Flows of a run → the use of links.

    Parameters
    ----------
    shared : SharedLinks
    flows : Flows
        Of all processes.
    step_time : int
        ps.
    repetition : Repetition, optional
        Of a run of which flows repeat.
    """
    routes = shared.routes
    n = len(routes.capacity)
    bytes, utilisation = _carried(shared, flows, step_time, repetition)
    capacity = routes.capacity * (1e12 / (1 << RATE_BITS))
    utilisation *= BINS / max(step_time * 1e-12, 1e-12) / capacity[:, None]
    parts = [(1, _Depths.of(shared, flows))]
    if repetition is not None:
        period = repetition.flows_of_period(flows)
        parts.append((repetition.times, _Depths.of(shared, period)))
    busy = np.sum([times * each.busy for times, each in parts], axis=0)
    both = np.sum([times * each.both for times, each in parts], axis=0)

    simulated, lowest, count = np.unique(
        routes.simulated_link, return_index=True, return_counts=True
    )
    assert len(simulated) == n  # every simulated link is simulated for one at least
    # Links that were used equally are one entry, in folded and unfolded runs. The weighted sum
    # tells when in the step they were used.
    when = np.round(utilisation @ np.linspace(1, 2, BINS), 4)
    columns = (lowest, when, both, busy, capacity, -bytes / capacity)
    order = np.lexsort(columns)
    differ = np.any([np.diff(each[order], prepend=np.nan) != 0 for each in columns[1:]], axis=0)
    first = np.flatnonzero(differ)
    kept = order[first]
    names = [shared.link_name(routes.names[i]) for i in lowest[kept].tolist()]
    return LinkUse(
        links={
            "name": np.array(names, object),
            "count": np.add.reduceat(count[order], first),
            "capacity": capacity[kept],
            "bytes": bytes[kept],
            "busy": busy[kept],
            "shared": both[kept],
        },
        utilisation=utilisation[kept],
        sharing=_sharing(np.flatnonzero(both[kept] > 0), kept, parts),
    )


def _carried(
    shared: SharedLinks, flows: Flows, step_time: int, repetition: Repetition | None
) -> tuple[Ints, NDArray[np.float64]]:
    """Flows of a run → bytes that each link carried in the step, and in each of its bins.

    Parameters
    ----------
    shared, flows, step_time, repetition
        As of `use_of_links`.

    Returns
    -------
    int64, shape (n,)
    float64, shape (n, BINS)
    """
    routes = shared.routes
    n, width = len(routes.capacity), max(step_time, 1) / BINS
    moved, value, slope = np.zeros(n), np.zeros((2, n, BINS + 1)), np.zeros((2, n, BINS + 1))
    weight = routes.weight / WEIGHT_ONE
    for part in [flows] if repetition is None else repetition.flows(flows, FLOWS_AT_ONCE):
        found = carried(
            routes.index,
            routes.link,
            weight,
            *(part.route, part.begin, part.end, part.volume),
            n,
            width,
            BINS,
        )
        for total, more in zip((moved, value, slope), found, strict=True):
            total += more
    value[0] += value[1]  # in place: there may be many links
    slope[0] += slope[1]
    return np.rint(moved).astype(np.int64), _spread(value[0], slope[0], width)


@frozen
class _Depths:
    """How many communications use each link, and when.

    Attributes
    ----------
    busy, both : int64, shape (n,)
        ps in which one or more, and two or more communications used each link.
    by_link : int64
        Flows over link i are ``by_link[first[i]:first[i + 1]]``.
    first : int64, shape (n + 1,)
    communicator, begin, end : int64, shape (k,)
        Of each flow.
    """

    busy: Ints
    both: Ints
    by_link: Ints
    first: Ints
    communicator: Ints
    begin: Ints
    end: Ints

    @classmethod
    def of(cls, shared: SharedLinks, flows: Flows) -> _Depths:
        """Flows → how many of them use each link, and when."""
        routes = shared.routes
        by_begin = np.argsort(flows.begin, kind="stable")
        by_link, first = flows_by_link(
            routes.index, routes.link, flows.route, by_begin, len(routes.capacity)
        )
        busy, both = depths(flows.begin, flows.end, by_link, first)
        used_by = shared.communicator[flows.route]
        return cls(busy, both, by_link, first, used_by, flows.begin, flows.end)

    def sharing(self, entries: Ints, links: Ints) -> Ints:
        """Links → pairs of communicators that used one of them at the same time.

        Parameters
        ----------
        entries : int64, shape (m,)
            Of `links` that are looked at.
        links : int64

        Returns
        -------
        int64, shape (k, 4)
            Entry of `links`, communicator, another with a higher number, and for how long, in ps.
        """
        at, owner = ranges(self.first, links[entries])
        index = np.searchsorted(owner, np.arange(len(entries) + 1))
        flows = self.by_link[at]
        rows = pair_depths(self.begin, self.end, self.communicator, flows, index, MAX_PAIRED)
        rows[:, 0] = entries[rows[:, 0]]
        return rows


def _spread(
    value: NDArray[np.float64], slope: NDArray[np.float64], width: float
) -> NDArray[np.float64]:
    """What `carried` adds up → the bytes that each link carried in each bin.

    Both arrays are changed in place.
    """
    np.cumsum(slope, axis=1, out=slope)
    slope *= width
    value[:, 1:] += slope[:, :-1]
    return value[:, 1:]


def _sharing(
    entries: Ints, links: Ints, parts: list[tuple[int, _Depths]]
) -> dict[str, NDArray[Any]]:
    """Parts of the step → communicators that used a link at the same time, and how long.

    Parameters
    ----------
    entries : int64, shape (m,)
        Of `links` that are looked at.
    links : int64
    parts : list of tuple of int and _Depths
        Parts of the step, and how often each occurs.
    """
    rows = np.concatenate(
        [part.sharing(entries, links) * [1, 1, 1, times] for times, part in parts]
    )
    if len(parts) > 1:
        pairs, number = np.unique(rows[:, :3], axis=0, return_inverse=True)
        time = np.zeros(len(pairs), np.int64)
        np.add.at(time, number.reshape(-1), rows[:, 3])
        rows = np.concatenate([pairs, time[:, None]], axis=1)
    rows = rows[rows[:, 3] > 0]
    rows = rows[np.argsort(-rows[:, 3], kind="stable")]
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    return dict(zip(("link", "communicator", "other", "time"), rows.T.copy(), strict=True))
