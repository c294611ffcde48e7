"""Which communication kernels of different ranks are one operation.

Where the files name process groups and count operations, those decide. Older files do not; then

- one NCCL stream of a rank is one communicator (a *line* of kernels);
- lines of different ranks are one communicator when they hold the same sequence of kernels and
  the ends agree, after each rank's clock offset, in most of them: all members of a synchronising
  collective end together, however late some of them began;
- send/receive kernels are pairs with complementary directions; peers tie within 100 µs in
  tensor-parallel groups, so one distance between ranks is taken for the whole job.

What finds no partner is reported and replayed as recorded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from ..program import Operation
from .communications import Communication
from .kineto import PS_PER_US

__all__ = ["Matched", "Matching", "match_communications"]

_TOLERANCE = 150 * PS_PER_US
"""Ends of one operation differ by less, before clock offsets are known."""
_TIGHT = 25 * PS_PER_US
"""Ends of one synchronising operation differ by less, with clock offsets removed (median)."""
_SHORT_TIGHT = 50 * PS_PER_US
"""The same for lines with very few kernels."""
_PAIR = 400 * PS_PER_US
"""A send and its receive end within this."""
_AGREE = 0.4
"""Share of the kernels of two lines that must agree: a clock that jumps spoils the rest."""
_SHORT = 4
"""A line with fewer kernels than this says little about clocks."""
_SYNCHRONISING = (Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER,
                  Operation.BARRIER)  # fmt: skip

Line = list[Communication]


@dataclass
class Matched:
    """One operation over its members (those whose traces are at hand).

    `wire` is each member's time from the moment the last member was ready to its own end, in ps;
    `eager` tells which members did not wait for the others.
    """

    members: list[Communication]
    wire: list[int]
    eager: list[bool]
    is_pair: bool = False


@dataclass
class Matching:
    """What was matched, and how.

    Attributes
    ----------
    operations : list of Matched
        Every communication of every rank is in exactly one; those without a partner alone.
    offset : dict of int to int
        What to subtract from each rank's clock, in ps.
    counts : Counter
        Rules used, and what stayed unmatched.
    """

    operations: list[Matched]
    offset: dict[int, int]
    counts: Counter[str] = field(default_factory=Counter)


def match_communications(ranks: dict[int, list[Communication]]) -> Matching:
    """Match the communications of all ranks; the same result from any order of files.

    Parameters
    ----------
    ranks : dict
        The communications of every rank, in device order.
    """
    result = Matching([], dict.fromkeys(ranks, 0))
    lines = _lines(ranks)
    collectives = [line for line in lines if not line[0].directions]
    _estimate_offsets(collectives, result)
    for group in _group_lines(collectives, result):
        for members in _align(group, result):
            _settle(members, result)
    _match_pairs([line for line in lines if line[0].directions], result)
    return result


def _lines(ranks: dict[int, list[Communication]]) -> list[Line]:
    """Kernels by rank and communicator: the one the file names, else that of the stream.

    Collectives and pairs on one communicator are lines of their own.
    """
    found: dict[tuple[int, int, bool, str], Line] = defaultdict(list)
    for rank in sorted(ranks):
        for item in ranks[rank]:
            named = item.group is not None
            name = f"{item.group_name} {item.group}" if named else ""
            found[rank, -1 if named else item.stream, bool(item.directions), name].append(item)
    return list(found.values())


def _stems(line: Line) -> list[str]:
    return [item.stem for item in line]


def _differences(a: Line, b: Line, offset: dict[int, int]) -> list[int]:
    """Differences of ends of kernels that could be the same operation, in ps."""
    shift = offset[a[0].rank] - offset[b[0].rank]
    if _stems(a) == _stems(b):
        return [x.end - y.end - shift for x, y in zip(a, b, strict=True)]
    found, at = [], 0
    for x in a:
        while at < len(b) and b[at].end + shift < x.end - _TOLERANCE:
            at += 1
        for y in b[at : at + 4]:
            if y.stem == x.stem and abs(x.end - y.end - shift) <= _TOLERANCE:
                found.append(x.end - y.end - shift)
                break
    return found


def _named(line: Line) -> bool:
    return line[0].group is not None


def _estimate_offsets(lines: list[Line], result: Matching) -> None:
    """Clock offsets of ranks, from the ends of long lines that run in step.

    Offsets spread from rank to rank along the line pairs with the least scatter (a minimum
    spanning tree), so a poor pair is used only where no better one exists.
    """
    edges = []
    for i, a in enumerate(lines):
        for b in lines[i + 1 :]:
            if a[0].rank == b[0].rank or min(len(a), len(b)) < _SHORT:
                continue
            if _named(a) and _named(b) and a[0].group != b[0].group:
                continue
            wide = np.array(_differences(a, b, result.offset))
            if len(wide) < _AGREE * min(len(a), len(b)) or len(wide) < _SHORT:
                continue
            middle = int(np.median(wide))
            scatter = int(np.median(np.abs(wide - middle)))
            near = np.abs(wide - middle) <= _TIGHT
            if near.mean() >= _AGREE and (_named(a) or abs(middle) <= _TOLERANCE):
                middle = int(np.median(wide[near]))
                edges.append((scatter, -len(wide), a[0].rank, b[0].rank, middle))
    parent = {rank: rank for rank in result.offset}

    def root(rank: int) -> int:
        while parent[rank] != rank:
            rank = parent[rank]
        return rank

    tree: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for _, _, a_rank, b_rank, middle in sorted(edges):
        if root(a_rank) != root(b_rank):
            parent[root(a_rank)] = root(b_rank)
            tree[a_rank].append((b_rank, -middle))
            tree[b_rank].append((a_rank, middle))
    found = dict(result.offset)
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
    if _nearest(lines, found) <= _nearest(lines, result.offset):
        result.offset = found
    else:
        result.counts["clock offsets rejected"] += 1


def _nearest(lines: list[Line], offset: dict[int, int]) -> int:
    """Sum over short lines of the distance to the nearest other that could be the same, in ps."""
    short = [line for line in lines if len(line) < _SHORT and not _named(line)]
    total = 0
    for a in short:
        total += min(
            (
                max(abs(d) for d in found)
                for b in short
                if b[0].rank != a[0].rank and _stems(a) == _stems(b)
                for found in [_differences(a, b, offset)]
            ),
            default=0,
        )
    return total


def _group_lines(lines: list[Line], result: Matching) -> list[list[Line]]:
    """Lines that are one communicator; at most one line of each rank in a group."""
    named: dict[tuple[tuple[int, ...] | None, str], list[Line]] = defaultdict(list)
    for line in lines:
        if _named(line):
            named[line[0].group, line[0].group_name].append(line)
    result.counts["communicators named in the files"] += len(named)
    return list(named.values()) + _join([line for line in lines if not _named(line)], result)


def _join(lines: list[Line], result: Matching) -> list[list[Line]]:
    """Join lines of different ranks by their ends, the best fits first."""
    edges: dict[tuple[int, int], tuple[int, int]] = {}
    for i, a in enumerate(lines):
        for k in range(i + 1, len(lines)):
            quality = _same_line(a, lines[k], result.offset)
            if quality is not None:
                edges[i, k] = quality
    groups = {i: [i] for i in range(len(lines))}
    group_of = list(range(len(lines)))
    for i, k in sorted(edges, key=lambda pair: (edges[pair], pair)):
        if group_of[i] == group_of[k]:
            continue
        left, right = groups[group_of[i]], groups[group_of[k]]
        if {lines[x][0].rank for x in left} & {lines[x][0].rank for x in right}:
            continue
        # Most pairs across must agree, so that two groups are not chained by one coincidence.
        across = [(min(x, y), max(x, y)) in edges for x in left for y in right]
        if 2 * sum(across) < len(across):
            continue
        for x in groups.pop(group_of[k]):
            group_of[x] = group_of[i]
            left.append(x)
    result.counts["communicators found by equal ends"] += sum(len(g) > 1 for g in groups.values())
    return [[lines[x] for x in sorted(group)] for group in groups.values()]


def _same_line(a: Line, b: Line, offset: dict[int, int]) -> tuple[int, int] | None:
    """How well two lines fit as one communicator (scatter, -kernels), or None if they do not."""
    if a[0].rank == b[0].rank:
        return None
    signed = np.array(_differences(a, b, offset), np.int64)
    if not len(signed):
        return None
    found = np.abs(signed)
    if min(len(a), len(b)) < _SHORT:
        if (found <= _SHORT_TIGHT).all() and len(found) == max(len(a), len(b)):
            return int(np.median(found)), -len(found)
        return None
    middle = int(np.median(signed[found <= _TOLERANCE])) if (found <= _TOLERANCE).any() else 0
    scatter = np.abs(signed - middle)
    near = scatter <= _TIGHT
    if near.sum() < _AGREE * min(len(a), len(b)):
        return None
    return int(np.median(scatter[near])), -int(near.sum())


def _align(group: list[Line], result: Matching) -> list[list[Communication]]:
    """Kernels of the lines of one communicator that are one operation each."""
    if len(group) == 1:
        return [[item] for item in group[0]]
    if all(item.sequence >= 0 for line in group for item in line):
        by_sequence: dict[tuple[int, str], list[Communication]] = defaultdict(list)
        for line in group:
            for item in line:
                by_sequence[item.sequence, item.stem].append(item)
        if all(len({i.rank for i in items}) == len(items) for items in by_sequence.values()):
            result.counts["operations matched by sequence number"] += len(by_sequence)
            return list(by_sequence.values())
    if all(_stems(line) == _stems(group[0]) for line in group[1:]):
        result.counts["operations matched by order"] += len(group[0])
        return [list(items) for items in zip(*group, strict=True)]
    return _align_by_time(group, result)


def _align_by_time(group: list[Line], result: Matching) -> list[list[Communication]]:
    """March through all lines together; a head far behind the earliest has no partner there."""
    offset, at = result.offset, [0] * len(group)
    aligned = []
    while True:
        heads = [
            (line[k].end - offset[line[k].rank], i)
            for i, (line, k) in enumerate(zip(group, at, strict=True))
            if k < len(line)
        ]
        if not heads:
            break
        earliest, first = min(heads)
        stem = group[first][at[first]].stem
        together = [
            i for end, i in heads
            if end - earliest <= _TOLERANCE and group[i][at[i]].stem == stem
        ]  # fmt: skip
        aligned.append([group[i][at[i]] for i in together])
        for i in together:
            at[i] += 1
    result.counts["operations matched by name and end"] += sum(len(a) > 1 for a in aligned)
    return aligned


def _settle(members: list[Communication], result: Matching) -> None:
    """Work out the wire time of one operation and add it to the result."""
    members = sorted(members, key=lambda item: item.rank)
    length = [item.end - item.begin for item in members]
    if len(members) == 1:
        result.operations.append(Matched(members, length, [False]))
        result.counts["kernels without a partner"] += 1
        return
    result.counts["kernels matched"] += len(members)
    if all(item.operation in _SYNCHRONISING for item in members):
        # All end together, so the shortest is the last to come: no clock is needed.
        shortest = min(length)
        result.operations.append(
            Matched(members, [shortest] * len(members), [False] * len(members))
        )
        return
    begin = [item.begin - result.offset[item.rank] for item in members]
    end = [item.end - result.offset[item.rank] for item in members]
    last = max(begin)
    eager = [e <= last for e in end]
    if all(eager) or min(last - e for e in end) > _TOLERANCE or sum(eager) == len(members):
        # The clocks disagree about everything: fall back on the rule without clocks.
        shortest = min(length)
        result.operations.append(
            Matched(members, [shortest] * len(members), [False] * len(members))
        )
        result.counts["operations with contradicting clocks"] += 1
        return
    wire = [n if e else at - last for n, e, at in zip(length, eager, end, strict=True)]
    result.counts["kernels that did not wait for all members"] += sum(eager)
    result.operations.append(Matched(members, wire, eager))


Candidate = tuple[int, int, int, int, int, Communication, Communication]
"""Distance of ends, ranks and operations of two kernels that could be a pair, and the kernels."""

_COMPLEMENT = str.maketrans("SR", "RS")


def _match_pairs(lines: list[Line], result: Matching) -> None:
    """Pair sends with receives: complementary directions, ends close, one distance of ranks."""
    items = [item for line in lines for item in line]
    candidates: list[Candidate] = []
    by_way: dict[str, list[Communication]] = defaultdict(list)
    for item in items:
        by_way["".join(sorted(item.directions))].append(item)
    for a in items:
        if "S" not in a.directions:
            continue
        wanted = "".join(sorted(a.directions.translate(_COMPLEMENT)))
        for b in by_way[wanted]:
            if b.rank == a.rank or (wanted == "RS" and b.rank < a.rank):
                continue
            if (a.peer >= 0 and a.peer != b.rank) or (b.peer >= 0 and b.peer != a.rank):
                continue
            ends = (a.end - result.offset[a.rank]) - (b.end - result.offset[b.rank])
            if abs(ends) <= _PAIR or (a.peer >= 0 and b.peer >= 0):
                candidates.append((abs(ends), a.rank, b.rank, a.op, b.op, a, b))
    candidates.sort(key=lambda c: c[:5])
    votes = Counter(abs(c[1] - c[2]) for c in candidates)
    chosen = _pairs_at(candidates, None)
    if votes and all(item.peer < 0 for item in items):
        best = max(votes, key=lambda d: (len(_pairs_at(candidates, d)), -d))
        strided = _pairs_at(candidates, best)
        if len(strided) >= 0.8 * len(chosen):
            chosen = strided
            result.counts[f"send/receive pairs at a distance of {best} ranks"] += len(strided)
    taken = set()
    for a, b in chosen:
        taken |= {(a.rank, a.op), (b.rank, b.op)}
        begin = [i.begin - result.offset[i.rank] for i in (a, b)]
        end = [i.end - result.offset[i.rank] for i in (a, b)]
        shortest = min(i.end - i.begin for i in (a, b))
        after = [e - max(begin) for e in end]
        wire = [max(shortest, t) if abs(t - shortest) <= _PAIR else shortest for t in after]
        result.operations.append(Matched([a, b], wire, [False, False], is_pair=True))
        result.counts["kernels matched"] += 2
    for item in items:
        if (item.rank, item.op) not in taken:
            result.operations.append(Matched([item], [item.end - item.begin], [False]))
            result.counts["kernels without a partner"] += 1


def _pairs_at(
    candidates: list[Candidate], distance: int | None
) -> list[tuple[Communication, Communication]]:
    """Closest candidates first, each kernel once; only at one distance of ranks if given."""
    taken: set[tuple[int, int]] = set()
    chosen = []
    for _, rank_a, rank_b, op_a, op_b, a, b in candidates:
        if distance is not None and abs(rank_a - rank_b) != distance:
            continue
        if (rank_a, op_a) in taken or (rank_b, op_b) in taken:
            continue
        taken |= {(rank_a, op_a), (rank_b, op_b)}
        chosen.append((a, b))
    return chosen
