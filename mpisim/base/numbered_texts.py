"""Texts that differ in a number at their end, made on access: there can be millions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["NumberedTexts"]


class NumberedTexts(Sequence[str]):
    """A sequence of texts, each the prefix of its part and the place in that part.

    Parameters
    ----------
    parts : iterable of (str, int)
        A prefix, and how many texts have it.

    Examples
    --------
    >>> list(NumberedTexts([("tp ", 2), ("dp ", 1)]))
    ['tp 0', 'tp 1', 'dp 0']
    """

    def __init__(self, parts: Iterable[tuple[str, int]]) -> None:
        self._parts = tuple(parts)
        self._ends = tuple(accumulate(count for _, count in self._parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(len(self))))
        at = range(len(self))[at]
        part = bisect_right(self._ends, at)
        begin, count = self._parts[part]
        return f"{begin}{at - self._ends[part] + count}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    @property
    def part(self) -> NDArray[np.int64]:
        """Which part each text is of, from 0; shape (n,)."""
        return np.repeat(np.arange(len(self._parts)), [count for _, count in self._parts])

    def encoded(self) -> NDArray[np.bytes_]:
        """Return all texts in UTF-8; shape (n,)."""
        begins = [begin.encode() for begin, _ in self._parts]
        longest = [
            len(begin) + len(str(count - 1))
            for begin, (_, count) in zip(begins, self._parts, strict=True)
        ]
        letters = np.zeros((len(self), max(longest, default=1)), np.uint8)
        at = 0
        for begin, (_, count) in zip(begins, self._parts, strict=True):
            part = letters[at : at + count]
            part[:, : len(begin)] = np.frombuffer(begin, np.uint8)
            least, digits = 0, 1
            while least < count:  # numbers of 1, 2, 3, ... digits
                most = min(10**digits, count)
                numbers = np.arange(least, most, dtype=np.int32)
                for place in range(len(begin) + digits - 1, len(begin) - 1, -1):
                    numbers, digit = np.divmod(numbers, np.int32(10))
                    part[least:most, place] = digit + ord("0")
                least, digits = most, digits + 1
            at += count
        return letters.view(f"S{letters.shape[1]}").reshape(-1)
