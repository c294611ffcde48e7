"""Clock offsets between ranks, from communications that end together on all their members."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from .communications import Communication
from .kineto import PS_PER_US

__all__ = [
    "AGREE", "SHORT", "TIGHT", "TOLERANCE", "Line", "Pair", "differences", "estimate_offsets",
    "is_named", "stems",
]  # fmt: skip

TOLERANCE = 150 * PS_PER_US
"""Ends of one operation differ by less, before clock offsets are known."""
TIGHT = 25 * PS_PER_US
"""Ends of one synchronising operation differ by less, with clock offsets removed (median)."""
AGREE = 0.4
"""Share of the kernels of two lines that must agree: a clock that jumps spoils the rest."""
SHORT = 4
"""A line with fewer kernels than this says little about clocks."""

Line = list[Communication]
"""The kernels of one rank on one communicator, in order."""
Pair = tuple[Communication, Communication]
"""A send and its receive."""


def estimate_offsets(
    lines: list[Line], known: list[Pair], ranks: list[int]
) -> dict[int, int] | None:
    """Clock offsets of ranks, from the ends of long lines that run in step.

    Offsets spread from rank to rank along the line pairs with the least scatter (a minimum
    spanning tree), so a poor pair is used only where no better one exists. Sends and receives of
    known partners connect only ranks that no collective does: a send may end before its receive.

    Parameters
    ----------
    lines : list of Line
        Collectives of every rank and communicator.
    known : list of Pair
    ranks : list of int

    Returns
    -------
    dict of int to int, or None
        What to subtract from each rank's clock, in ps; None where offsets would contradict the
        short lines.
    """
    none = dict.fromkeys(ranks, 0)
    edges = []
    for i, a in enumerate(lines):
        for b in lines[i + 1 :]:
            if a[0].rank == b[0].rank or min(len(a), len(b)) < SHORT:
                continue
            if (a[0].group, a[0].group_name) != (b[0].group, b[0].group_name):
                continue
            wide = np.array(differences(a, b, none))
            if len(wide) < AGREE * min(len(a), len(b)) or len(wide) < SHORT:
                continue
            middle = int(np.median(wide))
            scatter = int(np.median(np.abs(wide - middle)))
            near = np.abs(wide - middle) <= TIGHT
            if near.mean() >= AGREE and (is_named(a) or abs(middle) <= TOLERANCE):
                middle = int(np.median(wide[near]))
                edges.append((False, scatter, -len(wide), a[0].rank, b[0].rank, middle))
    apart: dict[tuple[int, int], list[int]] = defaultdict(list)
    for pair in known:
        x, y = sorted(pair, key=lambda item: item.rank)
        apart[x.rank, y.rank].append(x.end - y.end)
    for (a_rank, b_rank), found_apart in apart.items():
        wide = np.array(found_apart)
        middle = int(np.median(wide))
        near = np.abs(wide - middle) <= TIGHT
        if len(wide) >= SHORT and near.mean() >= AGREE:
            scatter = int(np.median(np.abs(wide - middle)))
            edges.append((True, scatter, -len(wide), a_rank, b_rank, middle))
    parent = {rank: rank for rank in ranks}

    def root(rank: int) -> int:
        while parent[rank] != rank:
            rank = parent[rank]
        return rank

    tree: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for _, _, _, a_rank, b_rank, middle in sorted(edges):
        if root(a_rank) != root(b_rank):
            parent[root(a_rank)] = root(b_rank)
            tree[a_rank].append((b_rank, -middle))
            tree[b_rank].append((a_rank, middle))
    found = dict(none)
    seen: set[int] = set()
    for first in sorted(found):
        stack = [] if first in seen else [first]
        seen.add(first)
        while stack:
            rank = stack.pop()
            for other, difference in tree[rank]:
                if other not in seen:
                    seen.add(other)
                    found[other] = found[rank] + difference
                    stack.append(other)
    # Short lines are independent evidence: in some jobs one member always ends later, which looks
    # like an offset of its clock but is none.
    return found if _nearest(lines, found) <= _nearest(lines, none) else None


def _nearest(lines: list[Line], offset: dict[int, int]) -> int:
    """Sum over short lines of the distance to the nearest other that could be the same, in ps."""
    short = [line for line in lines if len(line) < SHORT and not is_named(line)]
    total = 0
    for a in short:
        total += min(
            (
                max(abs(d) for d in found)
                for b in short
                if b[0].rank != a[0].rank and stems(a) == stems(b)
                for found in [differences(a, b, offset)]
            ),
            default=0,
        )
    return total


def stems(line: Line) -> list[str]:
    """What the kernels of a line do."""
    return [item.stem for item in line]


def differences(a: Line, b: Line, offset: dict[int, int]) -> list[int]:
    """Differences of ends of kernels that could be the same operation, in ps."""
    shift = offset[a[0].rank] - offset[b[0].rank]
    if is_named(a) and all(item.sequence >= 0 for item in (*a, *b)):
        ends = {(y.sequence, y.stem): y.end for y in b}
        return [x.end - ends[x.sequence, x.stem] - shift for x in a if (x.sequence, x.stem) in ends]
    if stems(a) == stems(b):
        return [x.end - y.end - shift for x, y in zip(a, b, strict=True)]
    found, at = [], 0
    for x in a:
        while at < len(b) and b[at].end + shift < x.end - TOLERANCE:
            at += 1
        for y in b[at : at + 4]:
            if y.stem == x.stem and abs(x.end - y.end - shift) <= TOLERANCE:
                found.append(x.end - y.end - shift)
                break
    return found


def is_named(line: Line) -> bool:
    """Whether the file names the communicator of a line."""
    return line[0].group is not None
