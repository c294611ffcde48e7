"""Longest common subsequences: which items of two nearly equal lists belong together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["best_offset", "common_subsequence"]

_MOST_BITS = 1 << 30
"""Above this many comparisons the table (one bit each) is not kept: 128 MiB."""


def common_subsequence(
    a: Sequence[Hashable], b: Sequence[Hashable], most_bits: int = _MOST_BITS
) -> list[tuple[int, int]]:
    """Return the positions of a longest common subsequence.

    Computed exactly, a whole row of the table at a time in the bits of one integer (Hyyrö 2004).

    Parameters
    ----------
    a, b : sequences of hashable items
    most_bits : int
        Size of the table that is kept; longer lists are halved first (Hirschberg 1975).

    Returns
    -------
    list of (int, int)
        Positions in `a` and `b`, both ascending.

    Examples
    --------
    >>> common_subsequence("abcd", "xbd")
    [(1, 1), (3, 2)]
    """
    codes: dict[Hashable, int] = {}
    first = [codes.setdefault(item, len(codes)) for item in a]
    second = [codes.setdefault(item, len(codes)) for item in b]
    pairs: list[tuple[int, int]] = []
    _align(first, second, 0, 0, most_bits, pairs)
    return pairs


def _align(
    a: list[int], b: list[int], i: int, j: int, most_bits: int, pairs: list[tuple[int, int]]
) -> None:
    """Append the pairs of two lists that begin at i and j of the whole ones."""
    head = 0
    while head < min(len(a), len(b)) and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < min(len(a), len(b)) - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    pairs.extend((i + k, j + k) for k in range(head))
    left, right = a[head : len(a) - tail], b[head : len(b) - tail]
    if left and right:
        if len(left) * len(right) <= most_bits or len(left) == 1:
            pairs.extend((i + head + p, j + head + q) for p, q in _table(left, right))
        else:
            half = len(left) // 2
            forward = _lengths(left[:half], right)
            backward = _lengths(left[half:][::-1], right[::-1])[::-1]
            cut = int(np.argmax(forward + backward))
            _align(left[:half], right[:cut], i + head, j + head, most_bits, pairs)
            _align(left[half:], right[cut:], i + head + half, j + head + cut, most_bits, pairs)
    pairs.extend((i + len(a) - k, j + len(b) - k) for k in range(tail, 0, -1))


def _rows(a: list[int], b: list[int]) -> list[int]:
    """Return the rows of the table; bit j of row i is 0 where b[j] lengthens the subsequence."""
    where: dict[int, int] = {}
    for j, item in enumerate(b):
        where[item] = where.get(item, 0) | 1 << j
    full = (1 << len(b)) - 1
    row, rows = full, []
    for item in a:
        used = row & where.get(item, 0)
        row = ((row + used) | (row - used)) & full
        rows.append(row)
    return rows


def _table(a: list[int], b: list[int]) -> list[tuple[int, int]]:
    rows = _rows(a, b)
    found = []
    i, j = len(a), len(b)
    while i and j:
        if rows[i - 1] >> (j - 1) & 1:
            j -= 1
            continue
        i -= 1
        if i and not rows[i - 1] >> (j - 1) & 1:
            continue
        j -= 1
        found.append((i, j))
    return found[::-1]


def _lengths(a: list[int], b: list[int]) -> NDArray[np.int64]:
    """Return the length of the common subsequence of `a` with each beginning of `b`."""
    row = full = (1 << len(b)) - 1
    where: dict[int, int] = {}
    for j, item in enumerate(b):
        where[item] = where.get(item, 0) | 1 << j
    for item in a:
        used = row & where.get(item, 0)
        row = ((row + used) | (row - used)) & full
    bits = np.frombuffer(row.to_bytes(len(b) // 8 + 1, "little"), np.uint8)
    zeros = 1 - np.unpackbits(bits, count=len(b), bitorder="little").astype(np.int64)
    return np.concatenate([[0], np.cumsum(zeros)])


def best_offset(short: Sequence[Hashable], long: Sequence[Hashable]) -> int:
    """Return the shift of `short` along `long` at which most items agree; the first such shift.

    Examples
    --------
    >>> best_offset("bc", "abcbd")
    1
    """
    votes = np.zeros(len(short) + len(long), np.int64)
    places: dict[Hashable, list[int]] = {}
    for j, item in enumerate(long):
        places.setdefault(item, []).append(j)
    known = {item: np.array(where) for item, where in places.items()}
    for i, item in enumerate(short):
        if item in known:
            votes[known[item] - i + len(short)] += 1
    return int(np.argmax(votes)) - len(short)
