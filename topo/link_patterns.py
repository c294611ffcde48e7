"""Names of links, wildcard patterns → the links that match each pattern.

Nearly all links are called after their ends, and there are far fewer nodes than links: what stands
before and behind the arrow of a pattern is compared with names of nodes (`EndPatterns`).

A topology has tens of thousands of links, and changes may name each of them, so that no pattern
should be compared with all names. A name without wildcards is looked up. A pattern is compared with
the names that begin with its text before the first wildcard, or with those that end with its text
behind the last, whichever are fewer, and that have its longest text between somewhere; if it begins
and ends with wildcards, with these.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from fnmatch import translate
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["EndPatterns", "LinkPatterns"]

Ints = NDArray[np.int64]

_ARROW = "->"
_MAX_TEXTS_ONE_BY_ONE = 64
"""Names up to which they are looked at one by one."""

_WILDCARDS = re.compile(r"[*?]")
_SEPARATOR = "\n"


class LinkPatterns:
    """The links that patterns fit: in a pattern ``*`` represents any text, ``?`` any character.

    Parameters
    ----------
    names : sequence of str
        Of all links; several may have one name.

    Examples
    --------
    >>> LinkPatterns(["gpu0->nic0", "gpu1->nic1", "nic0->gpu0"]).matching("gpu*->*")
    array([0, 1])
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._parts: dict[str, Ints] = {}  # of many patterns few are different

    @property
    def names(self) -> Sequence[str]:
        """Names of all links, by their index."""
        return self._names

    def matching(self, pattern: str) -> NDArray[np.int64]:
        """Return the links that a pattern fits, ascending."""
        before, *rest = _WILDCARDS.split(pattern)
        if not rest:
            return np.array(self._by_name.get(pattern, ()), np.int64)
        after = rest[-1]
        found = self._forwards.starting_with(before) if before else None
        if after and (found is None or len(found) > 1):
            ending = self._backwards.starting_with(after[::-1])
            found = ending if found is None or len(ending) < len(found) else found
        if found is None:
            found = self._containing(max(rest, key=len))
        elif pattern in (f"{before}*", f"*{after}"):
            return np.sort(found)
        elif len(found) > _MAX_TEXTS_ONE_BY_ONE and (
            between := max(rest[:-1], key=len, default="")
        ):
            likely = np.zeros(len(self._names), bool)
            likely[self._containing(between)] = True
            found = found[likely[found]]
        # Names may have brackets, which are no sets of characters here.
        fits = re.compile(translate(pattern.replace("[", "[[]"))).match
        return np.sort([link for link in found.tolist() if fits(self._names[link])]).astype(
            np.int64
        )

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for link, name in enumerate(self._names):
            found.setdefault(name, []).append(link)
        return found

    @cached_property
    def _forwards(self) -> _SortedTexts:
        return _SortedTexts(self._names)

    @cached_property
    def _backwards(self) -> _SortedTexts:
        return _SortedTexts([name[::-1] for name in self._names])

    @cached_property
    def _together(self) -> tuple[str, list[int]]:
        """All names one after the other, and where each begins."""
        text = _SEPARATOR.join(self._names)
        lengths = np.fromiter(map(len, self._names), np.int64, len(self._names)) + 1
        return text, [0, *np.cumsum(lengths).tolist()]

    def _containing(self, part: str) -> NDArray[np.int64]:
        """Return the links that have a text in their names, ascending.

        And perhaps some more: a text with a separator may be found across two names.
        """
        if not part:
            return np.arange(len(self._names))
        if part not in self._parts:
            self._parts[part] = self._searched(part)
        return self._parts[part]

    def _searched(self, part: str) -> NDArray[np.int64]:
        text, begin = self._together
        found = []
        at = text.find(part)
        while at >= 0:
            link = bisect_right(begin, at) - 1
            found.append(link)
            at = text.find(part, begin[link + 1])
        return np.array(found, np.int64)


class EndPatterns:
    """The links of a graph that patterns fit; see `LinkPatterns`, which finds the same by names.

    Parameters
    ----------
    nodes : sequence of str
        Names of nodes.
    source, target : int32, shape (n_links,)
        The nodes of each link, which is called ``"source->target"``.
    labels : mapping of int to str
        Of links that have another name.

    Examples
    --------
    >>> ends = np.array([0, 1, 2]), np.array([1, 2, 0])
    >>> EndPatterns(["gpu0", "nic0", "leaf"], *ends, {}).matching("gpu*->*")
    array([0])
    """

    def __init__(
        self,
        nodes: Sequence[str],
        source: NDArray[np.int32],
        target: NDArray[np.int32],
        labels: Mapping[int, str],
    ) -> None:
        self._names = list(nodes)  # of a million nodes, perhaps, which make them on access
        self._nodes = LinkPatterns(self._names)
        self._ends = source, target
        self._labelled = np.array(sorted(labels), np.int64)
        self._labels = LinkPatterns([labels[link] for link in self._labelled.tolist()])
        self._known: dict[str, Ints] = {}

    def matching(self, pattern: str) -> Ints:
        """Return the links that a pattern fits, ascending."""
        before, arrow, behind = pattern.partition(_ARROW)
        if not arrow or _ARROW in behind or self._arrows:
            return self._whole.matching(pattern)
        # There is one arrow in such a name, and one in the pattern.
        found = self._between(*map(self._nodes_like, (before, behind)))
        if not len(self._labelled):
            return found
        plain = np.setdiff1d(found, self._labelled, assume_unique=True)
        return np.sort(np.append(plain, self._labelled[self._labels.matching(pattern)]))

    def _nodes_like(self, pattern: str) -> Ints:
        """Return the nodes that a pattern fits, ascending."""
        if pattern not in self._known:
            every = not pattern.strip("*") and pattern
            self._known[pattern] = (
                np.arange(len(self._names)) if every else self._nodes.matching(pattern)
            )
        return self._known[pattern]

    def _between(self, sources: Ints, targets: Ints) -> Ints:
        """Return the links from some nodes to some nodes, ascending."""
        wanted = sources, targets
        side = 0 if len(sources) <= len(targets) else 1
        if len(wanted[side]) <= _MAX_TEXTS_ONE_BY_ONE:
            order, index = self._by_end[side]
            parts = [order[index[node] : index[node + 1]] for node in wanted[side].tolist()]
            links = np.sort(np.concatenate([order[:0], *parts]))
            return links[self._is_among(self._ends[1 - side][links], wanted[1 - side])]
        here = [self._is_among(*each) for each in zip(self._ends, wanted, strict=True)]
        return np.flatnonzero(here[0] & here[1])

    def _is_among(self, nodes: NDArray[np.int32], wanted: Ints) -> NDArray[np.bool_]:
        if len(wanted) == len(self._names):
            return np.ones(len(nodes), bool)
        among = np.zeros(len(self._names), bool)
        among[wanted] = True
        return np.asarray(among[nodes])

    @cached_property
    def _by_end(self) -> list[tuple[Ints, Ints]]:
        """Links sorted by their source, and by their target, and where those of each node begin."""
        found = []
        for end in self._ends:
            count = np.bincount(end, minlength=len(self._names))
            index = np.concatenate([[0], np.cumsum(count)])
            found.append((np.argsort(end, kind="stable"), index))
        return found

    @cached_property
    def _arrows(self) -> bool:
        """Whether the name of any node has an arrow."""
        return any(_ARROW in name for name in self._names)

    @cached_property
    def _whole(self) -> LinkPatterns:
        names, labels = self._names, dict(zip(self._labelled.tolist(), self._labels.names))
        ends = zip(*(end.tolist() for end in self._ends), strict=True)
        found = [f"{names[a]}{_ARROW}{names[b]}" for a, b in ends]
        for link, own in labels.items():
            found[link] = own
        return LinkPatterns(found)


class _SortedTexts:
    """Texts in ascending order, with the range of those that begin with some text."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._order = np.array(sorted(range(len(texts)), key=texts.__getitem__), np.int64)
        self._texts = [texts[i] for i in self._order.tolist()]

    def starting_with(self, part: str) -> NDArray[np.int64]:
        """Return the places of the texts that begin with `part`."""
        first = bisect_left(self._texts, part)
        last = bisect_right(self._texts, part, first, key=lambda text: text[: len(part)])
        return self._order[first:last]
