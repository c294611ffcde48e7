"""Colour refinement: which ranks can never be told apart, by what they do and whom they meet.

Ranks and groups are two sides of a graph whose edges, the *incidences*, say: this rank meets this
group by its slot s. A rank's signature is its label and the labels of its groups, slot by slot; a
group's the set of (label, slot) of its members. Where groups share links, those are a third side,
whose edges, the *loads*, say: this group loads this link in that way. Signatures are multisets of
(label, way) then: two equal flows over a link are not one. Sides take turns to split labels whose
bearers differ in signature, until none does: the coarsest equitable partition that refines the
labels given. (Cardon, Crochemore 1982; Paige, Tarjan 1987.)

Only neighbours of what has changed are looked at again, and the largest part of a split label
keeps it, so that one odd rank among many costs little more than none. Nothing is hashed: equal
labels mean equal signatures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _core

__all__ = ["Incidences", "Labels", "Loads", "dense", "multisets", "partition", "ranges", "refine"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Incidences:
    """Who meets where; `m` incidences of n ranks with `n_groups` groups, sorted by rank and slot.

    Attributes
    ----------
    index : int64, shape (n + 1,)
        Rank ``r`` has the incidences ``index[r]`` to ``index[r + 1]``.
    slot, group : int64, shape (m,)
    n_groups : int
    """

    index: Ints
    slot: Ints
    group: Ints
    n_groups: int


@dataclass(frozen=True, eq=False)
class Loads:
    """Which groups load which links; `e` loads.

    Attributes
    ----------
    group, link : int64, shape (e,)
    way : int64, shape (e,)
        What tells loads apart besides their ends: by which pattern, how heavily; 0 and up.
    label : int64, shape (n_links,)
        Labels of links to begin with, dense.
    """

    group: Ints
    link: Ints
    way: Ints
    label: Ints


class Labels(NamedTuple):
    """Final labels: dense, in no particular order; int64, shapes (n,), (n_groups,), (n_links,)."""

    rank: Ints
    group: Ints
    link: Ints


NO_LOADS = Loads(*(np.empty(0, np.int64) for _ in range(4)))


def refine(
    rank: Ints, group: Ints, met: Incidences, most: int | None = None, loads: Loads = NO_LOADS
) -> Labels | None:
    """Refine labels until they are stable.

    Parameters
    ----------
    rank, group : int64, shape (n,) and (n_groups,)
        Labels to begin with, dense: 0 to the number of labels - 1. Ranks of one label have
        incidences by the same slots.
    met : Incidences
    most : int, optional
        Give up when there are more labels of ranks than this.
    loads : Loads, optional
        None by default: no links are shared.

    Returns
    -------
    Labels or None
        None if given up.

    Examples
    --------
    Four ranks in two pairs, one of them slow: its partner is told apart as well.

    >>> met = Incidences(np.arange(5), np.zeros(4, int), np.array([0, 0, 1, 1]), 2)
    >>> refine(np.array([0, 0, 0, 1]), np.zeros(2, int), met).rank.tolist()
    [0, 0, 2, 1]
    """
    ranks, groups, links = _Side(rank), _Side(group), _Side(loads.label)
    of_rank = np.repeat(np.arange(len(rank)), np.diff(met.index))
    group_index, by_group = _core.by_end(met.group, met.n_groups)
    member, slot = of_rank[by_group], met.slot[by_group]
    n_slots = int(met.slot.max(initial=-1)) + 1
    by_links = _Edges(loads.link, loads.group, loads.way, len(loads.label))
    by_groups = _Edges(loads.group, loads.link, loads.way, met.n_groups)

    def split_by_members(asked: Ints) -> Ints:
        at, owner = ranges(group_index, asked)
        entries = ranks.label[member[at]] * n_slots + slot[at]
        return groups.split(asked, *_sets(owner, entries, len(asked)))

    new_groups, first = [np.arange(met.n_groups)], True
    split_by_members(new_groups[0])
    asked = np.arange(len(rank))
    while True:
        # Ranks and groups first, until they are stable: there are more loads than incidences.
        while len(asked):
            at, _ = ranges(met.index, asked)
            index = np.append(0, np.cumsum(met.index[asked + 1] - met.index[asked]))
            changed = ranks.split(asked, groups.label[met.group[at]], index)
            if most is not None and ranks.n_labels > most:
                return None
            changed = split_by_members(_distinct(met.group[ranges(met.index, changed)[0]]))
            new_groups.append(changed)
            asked = _distinct(member[ranges(group_index, changed)[0]])
        if not len(loads.label):
            break
        changed = _distinct(np.concatenate(new_groups))
        changed = links.split(*by_groups.signatures(changed, groups.label))
        new_links = np.arange(len(loads.label)) if first else changed
        changed = groups.split(*by_links.signatures(new_links, links.label))
        if not len(changed):
            break
        new_groups, first = [changed], False
        asked = _distinct(member[ranges(group_index, changed)[0]])
    return Labels(ranks.label, groups.label, links.label)


class _Edges:
    """Loads, from one side to the other."""

    def __init__(self, here: Ints, there: Ints, way: Ints, n: int) -> None:
        self.index, order = _core.by_end(here, n)
        # There are millions of loads: half of the memory will do.
        self.here, self.there, self.way = (
            each.astype(np.int32)[order] for each in (here, there, way)
        )
        self.n_ways = int(way.max(initial=-1)) + 1

    def signatures(self, items: Ints, label: Ints) -> tuple[Ints, Ints, Ints]:
        """Return what items here with new labels add to signatures there; as for `_Side.split`.

        What is not new can be left out: a signature counts, so what was there tells the rest.
        """
        at, _ = ranges(self.index, items)
        entries = label[self.here[at]] * self.n_ways + self.way[at]
        return multisets(self.there[at].astype(np.int64), entries)


class _Side:
    """The labels of one side, and how many bear each."""

    def __init__(self, label: Ints) -> None:
        self.label = label.astype(np.int64)
        self.count = np.bincount(label)
        self.n_labels = len(self.count)

    def split(self, items: Ints, values: Ints, index: Ints) -> Ints:
        """Split labels by the signatures of some items; return the items with a new label.

        ``values[index[i]:index[i + 1]]`` is the signature of ``items[i]``. Items not asked about
        that share a label with some that are have kept the signature of that label, and keep it.
        """
        old = self.label[items]
        part, n_parts = partition(old, values, index)
        size = np.bincount(part, minlength=n_parts)
        of_part = np.zeros(n_parts, np.int64)
        of_part[part] = old
        # The largest part of each label comes first, and keeps it if all items of it were asked.
        order = np.lexsort((-size, of_part))
        labels, first = np.unique(of_part[order], return_index=True)
        asked = np.add.reduceat(size[order], first) if len(labels) else size
        # Where some items were not asked, no part keeps the label: a neighbour of each asked item
        # has a new label, which is in none of the signatures of the others.
        keeps = np.zeros(n_parts, bool)
        keeps[order[first[asked == self.count[labels]]]] = True
        new = np.flatnonzero(~keeps)
        label = of_part.copy()
        label[new] = self.n_labels + np.arange(len(new))
        np.subtract.at(self.count, of_part[new], size[new])
        self.count = np.concatenate([self.count, size[new]])
        self.n_labels += len(new)
        self.label[items] = label[part]
        return items[~keeps[part]]


def partition(label: Ints, values: Ints, index: Ints) -> tuple[Ints, int]:
    """Number items by label and sequence of values: equal numbers mean both are equal.

    Parameters
    ----------
    label : int64, shape (n,)
    values : int64
        At least 0.
    index : int64, shape (n + 1,)
        Item i has the values ``index[i]`` to ``index[i + 1]``.

    Returns
    -------
    part : int64, shape (n,)
        0 to n_parts - 1, in the order of the first item of each.
    n_parts : int
    """
    part, n_parts = _core.partition(label, values, index)
    return part, n_parts


def dense(keys: Ints) -> tuple[Ints, int]:
    """Replace numbers, at least 0, by 0 to n - 1 in their order; return them and n.

    Examples
    --------
    >>> dense(np.array([7, 3, 7]))
    (array([1, 0, 1]), 2)
    """
    end = int(keys.max(initial=-1)) + 1
    if end > 8 * len(keys) + 4096:
        found, number = np.unique(keys, return_inverse=True)
        return number.reshape(-1).astype(np.int64), len(found)
    present = np.zeros(end, bool)
    present[keys] = True
    number = np.cumsum(present) - 1
    return number[keys], int(present.sum())


def ranges(index: Ints, items: Ints) -> tuple[Ints, Ints]:
    """Return all of ``index[i]`` to ``index[i + 1]`` for some i, and whose (0, 1, ...) each is.

    Examples
    --------
    >>> ranges(np.array([0, 2, 3, 5]), np.array([0, 2]))
    (array([0, 1, 3, 4]), array([0, 0, 1, 1]))
    """
    at, owner = _core.ranges(index, items)
    return at, owner


def _sets(owner: Ints, entries: Ints, n: int) -> tuple[Ints, Ints]:
    """Return the distinct entries of each owner, ascending, and where each owner's begin."""
    entries, n_entries = dense(entries)
    pairs = _distinct(owner * n_entries + entries)
    owners = pairs // max(n_entries, 1)
    return pairs - owners * n_entries, np.searchsorted(owners, np.arange(n + 1))


def multisets(owner: Ints, entries: Ints) -> tuple[Ints, Ints, Ints]:
    """Return all owners, and what each has, whatever the order: arguments for `partition`.

    Parameters
    ----------
    owner, entries : int64, shape (m,)
        ``owner[i]`` has ``entries[i]``, once more for each i.

    Returns
    -------
    owners : int64, shape (n,)
        Ascending.
    values : int64
        A number for each distinct entry and how often it is there, ascending by entry.
    index : int64, shape (n + 1,)
        Owner i has the values ``index[i]`` to ``index[i + 1]``.

    Examples
    --------
    >>> multisets(np.array([4, 2, 4, 2]), np.array([7, 7, 7, 9]))
    (array([2, 4]), array([1, 4, 2]), array([0, 2, 3]))
    """
    owners, entry, count, index = _core.multisets(owner, dense(entries)[0])
    return owners, entry * (count.max(initial=0) + 1) + count, index


def _distinct(values: Ints) -> Ints:
    """As numpy.unique, which puts them into a hash table first: slower for values such as these."""
    values = np.sort(values)
    return values[np.diff(values, prepend=-1) != 0]
