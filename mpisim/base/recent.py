"""Answers that are kept for a while: those that were not asked for longest make room for others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Recent"]

Answer = TypeVar("Answer")


class Recent(Generic[Answer]):
    """What was answered lately, by what was asked.

    Parameters
    ----------
    most : int
        Bytes that all answers together may take. The latest is kept even if it takes more.
    size : callable
        Bytes of an answer.

    Examples
    --------
    >>> squares = Recent(most=2, size=lambda answer: 1)
    >>> [squares.answer(n, lambda: n * n) for n in (1, 2, 1, 3)]
    [1, 4, 1, 9]
    >>> 1 in squares, 2 in squares
    (True, False)
    """

    def __init__(self, most: int, size: Callable[[Answer], int]) -> None:
        self._most, self._size = most, size
        self._known: OrderedDict[Hashable, Answer] = OrderedDict()
        self._held = 0

    def __contains__(self, question: Hashable) -> bool:
        return question in self._known

    def __len__(self) -> int:
        return len(self._known)

    def answer(self, question: Hashable, make: Callable[[], Answer]) -> Answer:
        """Return what is known, or make it."""
        if question in self._known:
            self._known.move_to_end(question)
            return self._known[question]
        found = self._known[question] = make()
        self._held += self._size(found)
        while self._held > self._most and len(self._known) > 1:
            self._held -= self._size(self._known.popitem(last=False)[1])
        return found
