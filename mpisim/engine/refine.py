"""Colour refinement: the coarsest equivalence classes of ranks, communicators and links.

Three sides of a graph are labelled: ranks, groups (communicators) and, where communications share
links, links. Edges between ranks and groups are *incidences* (this rank binds this group by its
slot s); edges between groups and links are *loads* (this group loads this link, of such a kind).

==========  =================================================================================
side        signature
==========  =================================================================================
rank        its label, and the labels of its groups, slot by slot
group       its label, the **set** of (label, slot) of its members, and the **multiset** of
            (label, kind) of the links that it loads
link        its label, and the multiset of (label, kind) of the groups that load it
==========  =================================================================================

Sides take turns to split labels whose bearers differ in signature until none does. The result is
the coarsest stable (equitable) partition that refines the initial labels (Cardon and Crochemore
1982; Paige and Tarjan 1987). LinkLoads are multisets since two equal flows over a link are not one.

Three invariants make this fast and exact:

1. *Only neighbours of items with a new label are examined.* When all items of a label are examined,
   its largest part keeps the label; when only some are, all that are examined get new labels, and
   those that are not keep it: no neighbour of theirs has a new label, so their signature is
   unchanged, while every examined item has a neighbour with a label that is in no other signature.
   One odd rank among many therefore costs little more than none, O(m log m) altogether.
2. *A signature need only hold what changed.* Items of one label agreed in signature before, so the
   entries whose labels are new tell them apart (multisets count, so the rest follows).
3. *Nothing is hashed.* `partition` compares signatures themselves: equal labels, equal signatures.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import dense, numbered
from ..base.frozen import frozen
from . import _core

__all__ = [
    "Incidences",
    "Labels",
    "LinkLoads",
    "multisets",
    "partition",
    "ranges",
    "refine",
]

Ints = NDArray[np.int64]


@frozen(eq=False)
class Incidences:
    """Which ranks bind which groups: `m` incidences, sorted by rank and slot.

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


@frozen(eq=False)
class LinkLoads:
    """Which groups load which links: `e` loads.

    Attributes
    ----------
    group, link : int64, shape (e,)
    kind : int64, shape (e,)
        Loads of one kind are of the same pattern and weight; numbered from 0.
    label : int64, shape (n_links,)
        Initial labels of links, dense.
    """

    group: Ints
    link: Ints
    kind: Ints
    label: Ints


class Labels(NamedTuple):
    """Stable labels, dense, in no particular order; int64, shapes (n,), (n_groups,), (n_links,)."""

    rank: Ints
    group: Ints
    link: Ints


MIN_SHARE_FOR_WHOLE = 0.25
"""Part of all loads from which on the whole of each signature is looked at."""

NO_LOADS = LinkLoads(*(np.empty(0, np.int64) for _ in range(4)))


def refine(
    rank: Ints,
    group: Ints,
    incidences: Incidences,
    max_labels: int | None = None,
    loads: LinkLoads = NO_LOADS,
) -> Labels | None:
    """Initial labels → the coarsest stable labels that refine them.

    Parameters
    ----------
    rank, group : int64, shape (n,) and (n_groups,)
        Initial labels, dense: 0 to the number of labels - 1. Ranks of one label have
        incidences by the same slots.
    incidences : Incidences
    max_labels : int, optional
        Give up when ranks have more labels than this.
    loads : LinkLoads, optional
        None by default: no links are shared.

    Returns
    -------
    Labels or None
        None if it gave up.

    Examples
    --------
    Four ranks in two pairs, one of them slow: its partner gets a label of its own as well.

    >>> incidences = Incidences(np.arange(5), np.zeros(4, int), np.array([0, 0, 1, 1]), 2)
    >>> refine(np.array([0, 0, 0, 1]), np.zeros(2, int), incidences).rank.tolist()
    [0, 0, 2, 1]
    """
    ranks, groups, links = _Side(rank), _Side(group), _Side(loads.label)
    of_rank = np.repeat(np.arange(len(rank), dtype=np.int32), np.diff(incidences.index))
    members = _Edges(incidences.group, of_rank, incidences.slot, incidences.n_groups)
    by_links = _Edges(loads.link, loads.group, loads.kind, len(loads.label))
    by_groups = _Edges(loads.group, loads.link, loads.kind, incidences.n_groups)

    def split_by_members(examined: Ints) -> Ints:
        return groups.split(examined, *members.signatures(examined, ranks.label, counted=False))

    new_groups, first = [np.arange(incidences.n_groups)], True
    split_by_members(new_groups[0])
    examined = np.arange(len(rank))
    while True:
        # Ranks and groups first, until they are stable: there are more loads than incidences.
        while len(examined):
            at, _ = ranges(incidences.index, examined)
            index = np.append(
                0, np.cumsum(incidences.index[examined + 1] - incidences.index[examined])
            )
            changed = ranks.split(examined, groups.label[incidences.group[at]], index)
            if max_labels is not None and ranks.n_labels > max_labels:
                return None
            changed = split_by_members(
                _distinct(incidences.group[ranges(incidences.index, changed)[0]])
            )
            new_groups.append(changed)
            examined = members.met_by(changed)
        if not len(loads.label):
            break
        changed = _distinct(np.concatenate(new_groups))
        changed = links.split(*by_groups.split_met(changed, by_links, groups.label))
        new_links = np.arange(len(loads.label)) if first else changed
        changed = groups.split(*by_links.split_met(new_links, by_groups, links.label))
        if not len(changed):
            break
        new_groups, first = [changed], False
        examined = members.met_by(changed)
    return Labels(ranks.label, groups.label, links.label)


class _Edges:
    """Incidences or loads, by the side they start from.

    Parameters
    ----------
    here : int64, shape (e,)
        The item that each starts from, 0 to n - 1.
    there : int, shape (e,)
        The item of the other side.
    kind : int64, shape (e,)
        Kinds, or slots; at least 0.
    n : int
    """

    def __init__(self, here: Ints, there: NDArray[Any], kind: Ints, n: int) -> None:
        # There are millions of loads: half of the memory will do.
        self.there, self.kind = there.astype(np.int32), kind.astype(np.int32)
        self.n_kinds = int(kind.max(initial=-1)) + 1
        if (here[1:] >= here[:-1]).all():  # as routes come
            self.index = np.append(0, np.cumsum(np.bincount(here, minlength=n)))
            return
        self.index, order = _core.by_end(here, n)
        self.there, self.kind = self.there[order], self.kind[order]

    def met_by(self, items: Ints) -> Ints:
        """Return the items there that some items here meet, ascending."""
        every = len(items) == len(self.index) - 1
        return _distinct(self.there if every else self.there[ranges(self.index, items)[0]])

    def signatures(self, items: Ints, label: Ints, *, counted: bool) -> tuple[Ints, Ints]:
        """Return the set or, if `counted`, the multiset of (label, kind) that each item meets.

        As values, at least 0 and ascending, and the index of the first value of each item.
        """
        found: tuple[Ints, Ints]
        found = _core.signatures(
            items, self.index, self.there, self.kind, self.n_kinds, label, counted
        )
        return found

    def split_met(self, items: Ints, back: _Edges, label: Ints) -> tuple[Ints, Ints, Ints]:
        """Items here with new labels → arguments of `_Side.split` for the items they meet there.

        By invariant 2 labels that are not new may be left out. Where most are new they are not:
        edges then need not be sorted by the other side.

        Parameters
        ----------
        items : int64
        back : _Edges
            The same edges by the other side.
        label : int64
            Of all items here.
        """
        count = self.index[items + 1] - self.index[items]
        if count.sum() >= MIN_SHARE_FOR_WHOLE * len(self.there):
            met = self.met_by(items)
            return met, *back.signatures(met, label, counted=True)
        at, _ = ranges(self.index, items)
        entries = np.repeat(label[items], count) * self.n_kinds + self.kind[at]
        return multisets(self.there[at].astype(np.int64), entries)


class _Side:
    """Labels of one side, and the number of items with each."""

    def __init__(self, label: Ints) -> None:
        self.label = label.astype(np.int64)
        self.count = np.bincount(label)
        self.n_labels = len(self.count)

    def split(self, items: Ints, values: Ints, index: Ints) -> Ints:
        """Split labels by the signatures of some items; return the items with a new label.

        ``values[index[i]:index[i + 1]]`` is the signature of ``items[i]``, besides its label. Items
        that are not examined keep their labels (invariant 1).
        """
        old = self.label[items]
        part, n_parts = partition(old, values, index)
        size = np.bincount(part, minlength=n_parts)
        of_part = np.zeros(n_parts, np.int64)
        of_part[part] = old
        # The largest part of a label comes first, and keeps it if all its items are examined.
        order = np.lexsort((-size, of_part))
        labels, first, _ = numbered(of_part[order])
        n_examined = np.add.reduceat(size[order], first) if len(labels) else size
        # Otherwise those that are not examined keep it.
        keeps = np.zeros(n_parts, bool)
        keeps[order[first[n_examined == self.count[labels]]]] = True
        new = np.flatnonzero(~keeps)
        label = of_part.copy()
        label[new] = self.n_labels + np.arange(len(new))
        np.subtract.at(self.count, of_part[new], size[new])
        self.count = np.concatenate([self.count, size[new]])
        self.n_labels += len(new)
        self.label[items] = label[part]
        return items[~keeps[part]]


def partition(label: Ints, values: Ints, index: Ints) -> tuple[Ints, int]:
    """Number items by label and sequence of values; equal numbers mean that both are equal.

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


def ranges(index: Ints, items: Ints) -> tuple[Ints, Ints]:
    """CSR index, items → their entries, one item after another, and the item of each entry.

    The entries of item i are ``index[i]`` to ``index[i + 1]``; items are counted 0, 1, ... in the
    order given.

    Parameters
    ----------
    index : int64, shape (n + 1,)
        Ascending.
    items : int64, shape (k,)
        Each from 0 to n - 1, in any order.

    Returns
    -------
    int64, shape (m,)
        Numbers of entries.
    int64, shape (m,)
        Positions in `items`.

    Examples
    --------
    >>> ranges(np.array([0, 2, 3, 5]), np.array([0, 2]))
    (array([0, 1, 3, 4]), array([0, 0, 1, 1]))
    """
    at, owner = _core.ranges(index, items)
    return at, owner


def multisets(owner: Ints, entries: Ints) -> tuple[Ints, Ints, Ints]:
    """Entries with their owners → the multiset of each owner, as arguments for `partition`.

    Parameters
    ----------
    owner, entries : int64, shape (m,)
        ``owner[i]`` has ``entries[i]``; pairs may repeat.

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


def _distinct(values: NDArray[Any]) -> Ints:
    """Return the distinct values, at least 0, ascending; numpy.unique takes longer for these."""
    end = int(values.max(initial=-1)) + 1
    if end > 8 * len(values) + 4096:
        values = np.sort(values)
        return values[np.diff(values, prepend=-1) != 0].astype(np.int64)
    present = np.zeros(end, bool)
    present[values] = True
    return np.flatnonzero(present)
