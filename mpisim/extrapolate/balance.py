"""Layers and their measured times → the stages of a pipeline, as even as they can be.

The longest stage sets the pace of a pipeline, so that is made as short as consecutive layers allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

__all__ = ["balanced"]


def balanced(times: Sequence[int], parts: int) -> list[int]:
    """Return how many consecutive layers each part has, so that the longest part is shortest.

    Parameters
    ----------
    times : sequence of int
        Of each layer.
    parts : int
        At most as many as there are layers; none is left empty.

    Examples
    --------
    >>> balanced([4, 1, 1, 2, 2, 2], 3)
    [1, 3, 2]
    """
    n = len(times)
    sums = [0, *accumulate(times)]
    # best[p][i]: the longest of p parts of the first i layers, at its shortest.
    best = [[0] + [sums[-1] + 1] * n]
    cut: list[list[int]] = [[0] * (n + 1)]
    for part in range(1, parts + 1):
        row, where = [sums[-1] + 1] * (n + 1), [0] * (n + 1)
        for i in range(part, n + 1):
            for j in range(part - 1, i):
                longest = max(best[-1][j], sums[i] - sums[j])
                if longest < row[i]:
                    row[i], where[i] = longest, j
        best.append(row)
        cut.append(where)
    counts, end = [], n
    for part in range(parts, 0, -1):
        begin = cut[part][end]
        counts.append(end - begin)
        end = begin
    return counts[::-1]
