"""Names of links and patterns → the links that each pattern fits.

A topology has tens of thousands of links, and changes may name each of them, so that no pattern
should be compared with all names. A name without wildcards is looked up. A pattern is compared with
the names that begin with its text before the first wildcard, or with those that end with its text
behind the last, whichever are fewer; if it begins and ends with wildcards, with those that have the
longest text between somewhere.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from fnmatch import translate
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["LinkPatterns"]

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
        text, begin = self._together
        found = []
        at = text.find(part)
        while at >= 0:
            link = bisect_right(begin, at) - 1
            found.append(link)
            at = text.find(part, begin[link + 1])
        return np.array(found, np.int64)


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
