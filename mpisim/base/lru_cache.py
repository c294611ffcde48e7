"""A least-recently-used cache of limited size, in bytes or entries.

`functools.lru_cache` bounds the number of entries, not their size; a cache of `cachetools` refuses
an entry that alone exceeds the budget, which would then be computed at every use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Generic, ParamSpec, TypeVar

__all__ = ["LruCache", "kept_by_size"]

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")


class LruCache(Generic[Value]):
    """Values by key; the least recently used make room for new ones.

    Parameters
    ----------
    capacity : int
        What all values together may take. The latest is kept even if it takes more.
    size_of : callable, optional
        Value → what it takes, such as its bytes; by default each takes 1.

    Examples
    --------
    >>> squares = LruCache(capacity=2)
    >>> [squares.get(n, lambda: n * n) for n in (1, 2, 1, 3)]
    [1, 4, 1, 9]
    >>> 1 in squares, 2 in squares
    (True, False)
    """

    def __init__(self, capacity: int, size_of: Callable[[Value], int] = lambda value: 1) -> None:
        self._capacity, self._size_of = capacity, size_of
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._taken = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return the value of a key; compute and keep it if it is not there.

        Parameters
        ----------
        key : hashable
        compute : callable
            Gives the value; called only if the key is not there. The cache keeps the value itself,
            no copy.
        """
        try:
            # Out and in again: to move it to the end would compare keys, which may be deep, twice.
            found = self._values[key] = self._values.pop(key)
        except KeyError:
            pass
        else:
            return found
        found = self._values[key] = compute()
        self._taken += self._size_of(found)
        while self._taken > self._capacity and len(self._values) > 1:
            self._taken -= self._size_of(self._values.popitem(last=False)[1])
        return found


def kept_by_size(
    capacity: int, size_of: Callable[[Value], int]
) -> Callable[[Callable[Arguments, Value]], Callable[Arguments, Value]]:
    """Capacity, size of a value → decorator of a function, as `functools.lru_cache` is one.

    Parameters
    ----------
    capacity, size_of
        As for `LruCache`.

    Examples
    --------
    >>> @kept_by_size(3, len)
    ... def letters(n):
    ...     print("made")
    ...     return "x" * n
    >>> letters(2), letters(2)
    made
    ('xx', 'xx')
    """

    def decorate(function: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
        kept: LruCache[Value] = LruCache(capacity, size_of)

        @wraps(function)
        def remembered(*args: Arguments.args, **keywords: Arguments.kwargs) -> Value:
            key = (args, tuple(sorted(keywords.items())))
            return kept.get(key, lambda: function(*args, **keywords))

        return remembered

    return decorate
