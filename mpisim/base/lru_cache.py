"""A cache of bounded size in bytes, which drops what was used least recently.

`functools.lru_cache` bounds the number of entries, not their size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["LruCache"]

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """Values by key; the least recently used are dropped when all together are too large.

    Parameters
    ----------
    max_bytes : int
        Bytes that all values together may take. The latest is kept even if it takes more.
    size : callable
        Value → bytes.

    Examples
    --------
    >>> squares = LruCache(max_bytes=2, size=lambda value: 1)
    >>> [squares.get(n, lambda: n * n) for n in (1, 2, 1, 3)]
    [1, 4, 1, 9]
    >>> 1 in squares, 2 in squares
    (True, False)
    """

    def __init__(self, max_bytes: int, size: Callable[[Value], int]) -> None:
        self._max_bytes, self._size = max_bytes, size
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._bytes = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key; `make` it if there is none."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = make()
        self._bytes += self._size(value)
        while self._bytes > self._max_bytes and len(self._values) > 1:
            self._bytes -= self._size(self._values.popitem(last=False)[1])
        return value
