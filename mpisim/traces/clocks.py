"""Matched communications → clock offsets between ranks (their members end together)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..base.quantity import PS_PER_US
from .communications import Communication

__all__ = [
    "MAX_MEDIAN_SCATTER",
    "MAX_RAW_DIFFERENCE",
    "MAX_RECEIVE_LAG",
    "MIN_AGREEING_SHARE",
    "MIN_LINE_KERNELS",
    "Line",
    "Pair",
    "differences",
    "estimate_offsets",
    "is_named",
    "stems",
]

MAX_RAW_DIFFERENCE = 150 * PS_PER_US
"""Ends of one operation differ by less, before clock offsets are known."""

MAX_MEDIAN_SCATTER = 25 * PS_PER_US
"""Ends of one synchronising operation differ by less, with clock offsets removed (median)."""

MIN_AGREEING_SHARE = 0.4
"""Share of the kernels of two lines that must agree: a clock that jumps spoils the rest."""

MIN_LINE_KERNELS = 4
"""A line with fewer kernels than this says little about clocks."""

MAX_RECEIVE_LAG = 400 * PS_PER_US
"""A send and its receive end within this."""

Line = list[Communication]
"""The kernels of one rank on one communicator, in order."""

Pair = tuple[Communication, Communication]
"""A send and its receive."""

Edge = tuple[bool, int, int, int, int, int]
"""Two ranks whose clocks can be compared: whether only by pairs, scatter of the differences, minus
their number, the ranks, and by how much the first rank's clock is ahead (times in ps)."""


def estimate_offsets(
    lines: list[Line], pairs: list[Pair], ranks: list[int]
) -> dict[int, int] | None:
    """Ends of long lines that run in step → clock offsets of ranks.

    Offsets spread from rank to rank along the line pairs with the least scatter (a minimum
    spanning tree), so a poor pair is used only where no better one exists. Sends and receives
    connect only ranks that no collective does.

    Parameters
    ----------
    lines : list of Line
        Collectives of every rank and communicator.
    pairs : list of Pair
        Sends with their receives.
    ranks : list of int

    Returns
    -------
    dict of int to int, or None
        What to subtract from each rank's clock, in ps; None where offsets would contradict the
        short lines.
    """
    none = dict.fromkeys(ranks, 0)
    compared = (_between_lines(a, b, none) for i, a in enumerate(lines) for b in lines[i + 1 :])
    edges = [edge for edge in compared if edge is not None] + _between_pairs(pairs)
    found = _offsets_along(_spanning_tree(edges, ranks), ranks)
    # Short lines are independent evidence: in some jobs one member always ends later, which looks
    # like an offset of its clock but is none.
    return found if _nearest(lines, found) <= _nearest(lines, none) else None


def _between_lines(a: Line, b: Line, none: dict[int, int]) -> Edge | None:
    """Two lines → how far their ranks' clocks are apart; None where they do not run in step.

    Parameters
    ----------
    a, b : Line
    none : dict of int to int
        Every rank, without an offset.
    """
    if a[0].rank == b[0].rank or min(len(a), len(b)) < MIN_LINE_KERNELS:
        return None
    if (a[0].group, a[0].group_name) != (b[0].group, b[0].group_name):
        return None
    wide = np.array(differences(a, b, none))
    if len(wide) < MIN_AGREEING_SHARE * min(len(a), len(b)) or len(wide) < MIN_LINE_KERNELS:
        return None
    middle = int(np.median(wide))
    scatter = int(np.median(np.abs(wide - middle)))
    near = np.abs(wide - middle) <= MAX_MEDIAN_SCATTER
    if near.mean() < MIN_AGREEING_SHARE:
        return None
    if not is_named(a) and abs(middle) > MAX_RAW_DIFFERENCE:
        return None
    return (False, scatter, -len(wide), a[0].rank, b[0].rank, int(np.median(wide[near])))


def _spanning_tree(edges: Iterable[Edge], ranks: Iterable[int]) -> dict[int, list[tuple[int, int]]]:
    """Edges → minimum spanning forest (Kruskal): neighbours of each rank, with their offsets."""
    parent = {rank: rank for rank in ranks}

    def root(rank: int) -> int:
        while parent[rank] != rank:
            rank = parent[rank]
        return rank

    tree: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for _, _, _, a, b, middle in sorted(edges):
        if root(a) != root(b):
            parent[root(a)] = root(b)
            tree[a].append((b, -middle))
            tree[b].append((a, middle))
    return tree


def _offsets_along(
    tree: Mapping[int, Sequence[tuple[int, int]]], ranks: Iterable[int]
) -> dict[int, int]:
    """Spanning forest → offset of each rank; the lowest rank of each tree has 0."""
    found = dict.fromkeys(ranks, 0)
    seen: set[int] = set()
    for first in sorted(found):
        stack = [] if first in seen else [first]
        seen.add(first)
        while stack:
            rank = stack.pop()
            for other, difference in tree.get(rank, ()):
                if other not in seen:
                    seen.add(other)
                    found[other] = found[rank] + difference
                    stack.append(other)
    return found


def _between_pairs(pairs: list[Pair]) -> list[Edge]:
    """Sends and receives → how far clocks of ranks are apart.

    A send ends some 100 µs before its receive. Where messages go both ways this cancels; where
    they do not, only a greater difference is one of clocks.
    """
    apart: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for sent, received in pairs:
        x, y = sorted((sent, received), key=lambda item: item.rank)
        ways = apart.setdefault((x.rank, y.rank), ([], []))
        if len(sent.directions) > 1:
            for way in ways:
                way.append(x.end - y.end)
        else:
            ways[sent.rank > received.rank].append(x.end - y.end)
    edges: list[Edge] = []
    for (a, b), ways in apart.items():
        found = [np.array(way) for way in ways if way]
        middles = [int(np.median(way)) for way in found]
        far = np.concatenate([abs(way - at) for way, at in zip(found, middles, strict=True)])
        middle = sum(middles) // len(middles)
        telling = len(found) == 2 or abs(middle) > MAX_RECEIVE_LAG
        if (
            telling
            and len(far) >= MIN_LINE_KERNELS
            and (far <= MAX_MEDIAN_SCATTER).mean() >= MIN_AGREEING_SHARE
        ):
            edges.append((True, int(np.median(far)), -len(far), a, b, middle))
    return edges


def _nearest(lines: list[Line], offset: dict[int, int]) -> int:
    """Sum over short lines of the distance to the nearest other that could be the same, in ps."""
    short = [line for line in lines if len(line) < MIN_LINE_KERNELS and not is_named(line)]
    total = 0
    for a in short:
        total += min(
            (
                max((abs(d) for d in found), default=MAX_RAW_DIFFERENCE)
                for b in short
                if b[0].rank != a[0].rank and stems(a) == stems(b)
                for found in [differences(a, b, offset)]
            ),
            default=0,
        )
    return total


def stems(line: Line) -> list[str]:
    """Line → the stem of each kernel's name: what the kernel does."""
    return [item.stem for item in line]


def differences(a: Line, b: Line, offset: dict[int, int]) -> list[int]:
    """Differences of ends of kernels that could be the same operation, in ps.

    Parameters
    ----------
    a, b : Line
        Of two ranks on one communicator; neither is empty.
    offset : dict of int to int
        By rank, what its clock shows too much, in ps.

    Returns
    -------
    list of int
        By how much each end in `a` is later than its counterpart in `b`, `offset` removed; empty if
        no kernels match.
    """
    shift = offset[a[0].rank] - offset[b[0].rank]
    if is_named(a) and all(item.sequence >= 0 for item in (*a, *b)):
        ends = {(y.sequence, y.stem): y.end for y in b}
        return [x.end - ends[x.sequence, x.stem] - shift for x in a if (x.sequence, x.stem) in ends]
    if stems(a) == stems(b):
        by_order = np.array([x.end - y.end - shift for x, y in zip(a, b, strict=True)], np.int64)
        middle = int(np.median(by_order))
        # Windows cut at different times can hold equal numbers of equal kernels.
        steady = (
            is_named(a)
            and (np.abs(by_order - middle) <= MAX_MEDIAN_SCATTER).mean() >= MIN_AGREEING_SHARE
        )
        if steady or abs(middle) <= MAX_RAW_DIFFERENCE:
            return by_order.tolist()
    found, at = [], 0
    for x in a:
        while at < len(b) and b[at].end + shift < x.end - MAX_RAW_DIFFERENCE:
            at += 1
        for y in b[at : at + 4]:
            if y.stem == x.stem and abs(x.end - y.end - shift) <= MAX_RAW_DIFFERENCE:
                found.append(x.end - y.end - shift)
                break
    return found


def is_named(line: Line) -> bool:
    """Whether the file names the communicator of a line."""
    return line[0].group is not None
