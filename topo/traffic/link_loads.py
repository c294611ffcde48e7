"""Transfers of many groups of one arrangement → bytes on each link.

A weight is the bytes over a link per byte of payload, in units of 2**-20 (`WEIGHT_ONE`), rounded
up. Sums are of integers with 20 more bits (`_FRACTION_BITS`), so that they do not depend on the
order of transfers, on the parts in which pairs are looked at, or on whether routes answer in closed
form. Each transfer is rounded once, by half of a last bit at most; `_ROUNDING` last bits, which
are less than 2**-8 of a unit, are subtracted before rounding up, so that a sum that is a whole
weight but for these errors is not raised to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ..network import WEIGHT_ONE
from ..topology import RouteFunction, all_pairs_routes
from .transfers import Transfers, UniformAllToAll

__all__ = ["link_weights"]

Ints = NDArray[np.int64]

PAIRS_PER_BATCH = 1 << 18
"""Pairs of GPUs at a time: their ways are held in memory."""

MIN_GPUS_IN_CLOSED_FORM = 32
"""GPUs from which on links are looked at rather than pairs."""

_FRACTION_BITS = 20
"""Bits of a weight below its unit, while it is summed up: a sum of integers has no order."""

_ROUNDING = 1 << 12
"""What rounding to those bits may add to a sum: more than this above a whole weight is the next."""


def link_weights(
    paths: RouteFunction,
    share: NDArray[np.float64],
    base: Ints,
    sent: Transfers | UniformAllToAll,
    seen: NDArray[np.bool_],
) -> tuple[Ints, Ints, Ints]:
    """Transfers and bases of groups of one arrangement → weights on links.

    Parameters
    ----------
    paths : callable
    share : float64, shape (n_links,)
        See `Topology`.
    base : int64, shape (g,)
        What is to be added to the ranks of the transfers, for each group.
    sent : Transfers or Everyone
        Of each of them.
    seen : bool, shape (n_links,)
        Links that count.

    Returns
    -------
    group : int64, shape (e,)
        0 to g - 1, ascending.
    link : int64, shape (e,)
        Ascending within each group, each once.
    weight : int64, shape (e,)
        Bytes over the link per byte of payload, in units of 2**-20, rounded up.
    """
    found: Iterable[tuple[Ints, Ints, Ints]] | None = None
    if isinstance(sent, UniformAllToAll):
        found = _uniform_loads(paths, base, sent)
    elif len(sent.source) == 1 and (single := _single_transfers(paths, share, base, sent, seen)):
        return single
    if found is None:
        found = (part for some in _summed_pairs(sent) for part in _pair_loads(paths, base, *some))
    parts: list[tuple[Ints, Ints, Ints]] = []
    for group, link, amount in found:
        used = link >= 0
        used[used] = seen[link[used]]
        parts.append((group[used], link[used], amount[used]))
    empty = np.empty(0, np.int64)
    group, link, amount = (np.concatenate([empty, *(part[i] for part in parts)]) for i in range(3))
    amount = np.rint(amount * share[link]).astype(np.int64)
    group, link, amount = sum_by_link(group, link, amount, len(share))
    return group, link, _rounded_up(amount)


def _rounded_up(amount: Ints) -> Ints:
    """Sums with more bits → weights."""
    return np.maximum((amount + (1 << _FRACTION_BITS) - 1 - _ROUNDING) >> _FRACTION_BITS, 1)


def _single_transfers(
    paths: RouteFunction,
    share: NDArray[np.float64],
    base: Ints,
    sent: Transfers,
    seen: NDArray[np.bool_],
) -> tuple[Ints, Ints, Ints] | None:
    """Return the result of `link_weights` where each group has one transfer, without any sum.

    There can be a hundred thousand such groups. None if a way goes twice over one link.
    """
    fine = int(np.rint(sent.bytes[0] * (WEIGHT_ONE << _FRACTION_BITS)))
    parts = []
    for first in range(0, len(base), PAIRS_PER_BATCH):
        some = base[first : first + PAIRS_PER_BATCH]
        ways = paths(some + sent.source[0], some + sent.target[0])
        used = ways >= 0
        np.logical_and(used, seen[ways], out=used)  # of the link -1 whatever is said of the last
        ways = np.where(used, ways, -1)
        if (ways[:, 1:] < ways[:, :-1]).any():
            ways.sort(axis=1)
            used = ways >= 0
        if (used[:, 1:] & (ways[:, 1:] == ways[:, :-1])).any():
            return None
        parts.append((np.repeat(np.arange(first, first + len(some)), used.sum(axis=1)), ways[used]))
    group, link = (np.concatenate([np.empty(0, np.int64), *each]) for each in zip(*parts))
    amount = np.rint(fine * share[link]).astype(np.int64)
    return group, link, _rounded_up(amount)


def _uniform_loads(
    paths: RouteFunction, base: Ints, sent: UniformAllToAll
) -> list[tuple[Ints, Ints, Ints]] | None:
    """Return (group, link, sum) of each group if paths know it without looking at pairs."""
    crowd = all_pairs_routes(paths)
    if len(sent.ranks) < MIN_GPUS_IN_CLOSED_FORM or crowd is None:
        return None
    fine, found = round(sent.each * (WEIGHT_ONE << _FRACTION_BITS)), []
    for i, first in enumerate(base.tolist()):
        crossings = crowd.pairs_per_link(sent.ranks + first)
        if crossings is None:
            return None
        links = np.flatnonzero(crossings)
        found.append((np.full(len(links), i), links, crossings[links] * fine))
    return found


def _summed_pairs(sent: Transfers | UniformAllToAll) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield pairs of GPUs, each once, by source and target, and the sum of what is sent, fine."""
    if isinstance(sent, UniformAllToAll):
        ranks = np.sort(sent.ranks)
        each = round(sent.each * (WEIGHT_ONE << _FRACTION_BITS))
        step = max(1, PAIRS_PER_BATCH // len(ranks))
        for low in range(0, len(ranks), step):
            some = ranks[low : low + step]
            source, target = np.repeat(some, len(ranks)), np.tile(ranks, len(some))
            others = source != target
            yield source[others], target[others], np.full(int(others.sum()), each)
        return
    fine = np.rint(sent.bytes * (WEIGHT_ONE << _FRACTION_BITS)).astype(np.int64)
    order = np.lexsort((sent.target, sent.source))
    source, target, fine = sent.source[order], sent.target[order], fine[order]
    new = np.ones(len(order), bool)
    new[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
    if not new.all():  # trees, for one
        fine = np.add.reduceat(fine, np.flatnonzero(new))
        source, target = source[new], target[new]
    for low in range(0, len(source), PAIRS_PER_BATCH):
        part = slice(low, low + PAIRS_PER_BATCH)
        yield source[part], target[part], fine[part]


def _pair_loads(
    paths: RouteFunction, base: Ints, source: Ints, target: Ints, fine: Ints
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield (group, link, sum) over some pairs of every group; link -1 represents none."""
    m = len(source)
    # Most hops depend on one end alone. Transfers of one end side by side are summed up at once.
    orders = [np.arange(m), np.argsort(target, kind="stable")]
    step = max(1, PAIRS_PER_BATCH // max(m, 1))
    for first in range(0, len(base), step):
        some = base[first : first + step, None]
        ways = paths((some + source).reshape(-1), (some + target).reshape(-1))
        for hop in ways.T:
            links = hop.reshape(len(some), m)
            order = min(orders, key=lambda order: _count_changes(links[0][order]))
            if order is not orders[0]:
                links = links[:, order]
            group, link, amount = _sum_runs(links, fine[order])
            yield group + first, link, amount


def _count_changes(links: Ints) -> int:
    return int(np.count_nonzero(links[1:] != links[:-1]))


def _sum_runs(links: Ints, fine: Ints) -> tuple[Ints, Ints, Ints]:
    """Sum up neighbours over one link; of shapes (g, m) and (m,)."""
    g, m = links.shape
    if m == 1:
        return np.arange(g), links.reshape(-1), np.repeat(fine, g)
    begins = np.ones((g, m), bool)
    np.not_equal(links[:, 1:], links[:, :-1], out=begins[:, 1:])
    group, at = np.nonzero(begins)
    before = np.concatenate([[0], np.cumsum(fine)])
    end = np.append(at[1:], m)
    end[end == 0] = m  # the next run is another group's
    return group, links[group, at], before[end] - before[at]


def sum_by_link(group: Ints, link: Ints, amount: Ints, n_links: int) -> tuple[Ints, Ints, Ints]:
    """Sort by group and link, and sum up entries of the same pair.

    Parameters
    ----------
    group, link : int64, shape (m,)
        0 or more, in any order.
    amount : int64, shape (m,)
        What to sum up, in any unit.
    n_links : int
        All numbers in `link` are below it.

    Returns
    -------
    group, link, amount : int64, shape (e,)
        Every pair of group and link once, ascending.
    """
    key = group * n_links + link
    # Parts are in order already, which this sort makes use of.
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(np.diff(key, prepend=-1))
    amount = np.add.reduceat(amount[order], first) if len(first) else amount
    first = order[first]
    return group[first], link[first], amount
