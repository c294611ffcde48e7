"""Communication kernels of all ranks → groups of kernels that are one communication.

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

from ..base.quantity import PS_PER_US
from ..program import Operation
from .clocks import (
    MAX_MEDIAN_SCATTER,
    MAX_RAW_DIFFERENCE,
    MAX_RECEIVE_LAG,
    MIN_AGREEING_SHARE,
    MIN_LINE_KERNELS,
    Line,
    Pair,
    differences,
    estimate_offsets,
    is_named,
    stems,
)
from .communications import Communication

__all__ = ["Matched", "Matching", "match_communications"]

_MAX_SCATTER_OF_SHORT_LINES = 50 * PS_PER_US
"""The same for lines with very few kernels."""
_SYNCHRONISING = (
    Operation.ALL_REDUCE,
    Operation.ALL_GATHER,
    Operation.REDUCE_SCATTER,
    Operation.BARRIER,
)


@dataclass
class Matched:
    """One operation over its members (those whose traces are at hand).

    `wire` is each member's time from the moment the last member was ready to its own end, in ps;
    `eager` tells which members did not wait for the others; `line` numbers the communicators that
    were found, so that two of the same ranks stay apart.
    """

    members: list[Communication]
    wire: list[int]
    eager: list[bool]
    is_pair: bool = False
    line: int = 0


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
    pairs = [line for line in lines if line[0].directions]
    known = _known_pairs(pairs)
    _set_clocks(collectives, known, result)
    chosen, distance = _choose_pairs(pairs, known, result.offset)
    if chosen:
        _set_clocks(collectives, known + chosen, result)
        chosen, distance = _choose_pairs(pairs, known, result.offset)
    groups = _group_lines(collectives, result)
    for number, group in enumerate(groups):
        for members in _align(group, result):
            _add_operation(members, number, result)
    result.counts["send/receive pairs named in the files"] += len(known)
    if distance:
        result.counts[f"send/receive pairs at a distance of {distance} ranks"] += len(chosen)
    _add_pairs(pairs, known + chosen, len(groups), result)
    return result


def _set_clocks(collectives: list[Line], pairs: list[Pair], result: Matching) -> None:
    """Estimate clock offsets, or leave clocks as they are where that contradicts itself."""
    found = estimate_offsets(collectives, pairs, list(result.offset))
    result.counts["clock offsets rejected"] = int(found is None)
    result.offset = dict.fromkeys(result.offset, 0) if found is None else found


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


def _group_lines(lines: list[Line], result: Matching) -> list[list[Line]]:
    """Lines that are one communicator; at most one line of each rank in a group."""
    named: dict[tuple[tuple[int, ...] | None, str], list[Line]] = defaultdict(list)
    for line in lines:
        if is_named(line):
            named[line[0].group, line[0].group_name].append(line)
    result.counts["communicators named in the files"] += len(named)
    return list(named.values()) + _join([line for line in lines if not is_named(line)], result)


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
    signed = np.array(differences(a, b, offset), np.int64)
    if not len(signed):
        return None
    found = np.abs(signed)
    if min(len(a), len(b)) < MIN_LINE_KERNELS:
        if (found <= _MAX_SCATTER_OF_SHORT_LINES).all() and len(found) == max(len(a), len(b)):
            return int(np.median(found)), -len(found)
        return None
    middle = (
        int(np.median(signed[found <= MAX_RAW_DIFFERENCE]))
        if (found <= MAX_RAW_DIFFERENCE).any()
        else 0
    )
    scatter = np.abs(signed - middle)
    near = scatter <= MAX_MEDIAN_SCATTER
    if near.sum() < MIN_AGREEING_SHARE * min(len(a), len(b)):
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
    if all(_in_step(line, group[0], result.offset) for line in group[1:]):
        result.counts["operations matched by order"] += len(group[0])
        return [list(items) for items in zip(*group, strict=True)]
    return _align_by_time(group, result)


def _in_step(a: Line, b: Line, offset: dict[int, int]) -> bool:
    """Whether the n-th kernel of one line is the n-th of the other."""
    if stems(a) != stems(b):
        return False
    apart = [(x.end - offset[x.rank]) - (y.end - offset[y.rank]) for x, y in zip(a, b, strict=True)]
    # A short line of a named communicator says nothing about clocks that may be far apart.
    return abs(float(np.median(apart))) <= MAX_RAW_DIFFERENCE or (
        is_named(a) and len(a) < MIN_LINE_KERNELS
    )


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
            i
            for end, i in heads
            if end - earliest <= MAX_RAW_DIFFERENCE and group[i][at[i]].stem == stem
        ]
        aligned.append([group[i][at[i]] for i in together])
        for i in together:
            at[i] += 1
    result.counts["operations matched by name and end"] += sum(len(a) > 1 for a in aligned)
    return aligned


def _add_operation(members: list[Communication], line: int, result: Matching) -> None:
    """Add an operation to the result: its members' kernels → their times on the wire."""
    members = sorted(members, key=lambda item: item.rank)
    length = [item.end - item.begin for item in members]
    if len(members) == 1:
        result.operations.append(Matched(members, length, [False], line=line))
        result.counts["kernels without a partner"] += 1
        return
    result.counts["kernels matched"] += len(members)
    begin = [item.begin - result.offset[item.rank] for item in members]
    end = [item.end - result.offset[item.rank] for item in members]
    last = max(begin)
    eager = [e <= last for e in end]
    together = all(item.operation in _SYNCHRONISING for item in members)
    if together or all(eager):
        # All end together, so the shortest is the last to come: no clock is needed. The same where
        # clocks that contradict each other would have no one wait.
        wire, eager = [min(length)] * len(members), [False] * len(members)
        result.counts["operations with contradicting clocks"] += not together
    else:
        wire = [n if e else at - last for n, e, at in zip(length, eager, end, strict=True)]
        result.counts["kernels that did not wait for all members"] += sum(eager)
    result.operations.append(Matched(members, wire, eager, line=line))


def _known_pairs(lines: list[Line]) -> list[Pair]:
    """Sends and receives whose files name both ends, in order: the n-th send is the n-th receive.

    Only where there are as many sends as receives; a cut window is left to the times.
    """
    found: dict[tuple[int, int, str], tuple[Line, Line]] = {}
    for line in lines:
        for item in line:
            if item.peer >= 0:
                sends = item.directions == "S"
                ends = (item.rank, item.peer) if sends else (item.peer, item.rank)
                key = (*ends, item.group_name)
                found.setdefault(key, ([], []))[not sends].append(item)
    pairs: list[Pair] = []
    for sent, received in found.values():
        if len(sent) == len(received):
            pairs += zip(sent, received, strict=True)
    return pairs


Candidate = tuple[int, int, int, int, int, Communication, Communication]
"""Distance of ends, ranks and operations of two kernels that could be a pair, and the kernels."""

_COMPLEMENT = str.maketrans("SR", "RS")


def _choose_pairs(
    lines: list[Line], known: list[Pair], offset: dict[int, int]
) -> tuple[list[Pair], int]:
    """Pair sends with receives: complementary directions, ends close, one distance of ranks.

    Returns the pairs and the distance that decided, 0 if none did.
    """
    sure = {(item.rank, item.op, item.part) for pair in known for item in pair}
    items = [i for line in lines for i in line if (i.rank, i.op, i.part) not in sure]
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
            if a.group is not None and b.group is not None and a.rank not in b.group:
                continue  # where files name groups, partners are members of each other's
            if a.group is not None and b.group is not None and b.rank not in a.group:
                continue
            ends = (a.end - offset[a.rank]) - (b.end - offset[b.rank])
            if abs(ends) <= MAX_RECEIVE_LAG or (a.peer >= 0 and b.peer >= 0):
                candidates.append((abs(ends), a.rank, b.rank, a.op, b.op, a, b))
    candidates.sort(key=lambda c: c[:5])
    votes = Counter(abs(c[1] - c[2]) for c in candidates)
    chosen = _pairs_at(candidates, None)
    if votes and all(item.peer < 0 for item in items):
        known_strides = Counter(abs(a.rank - b.rank) for a, b in known)
        best = max(votes, key=lambda d: (known_strides[d] + len(_pairs_at(candidates, d)), -d))
        strided = _pairs_at(candidates, best)
        if len(strided) >= 0.8 * len(chosen):
            return strided, best
    return chosen, 0


def _add_pairs(lines: list[Line], pairs: list[Pair], first: int, result: Matching) -> None:
    """Work out the wire times of pairs; what is in none stands alone.

    Pairs of the same two lines are one communicator; these are numbered from `first`.
    """
    line_of = {(i.rank, i.op, i.part): n for n, line in enumerate(lines) for i in line}
    taken = set()
    number: dict[tuple[int, ...], int] = {}
    for a, b in pairs:
        taken |= {(i.rank, i.op, i.part) for i in (a, b)}
        begin = [i.begin - result.offset[i.rank] for i in (a, b)]
        end = [i.end - result.offset[i.rank] for i in (a, b)]
        shortest = min(i.end - i.begin for i in (a, b))
        after = [e - max(begin) for e in end]
        wire = [
            max(shortest, t) if abs(t - shortest) <= MAX_RECEIVE_LAG else shortest for t in after
        ]
        between = tuple(line_of[i.rank, i.op, i.part] for i in (a, b))
        line = first + number.setdefault(between, len(number))
        result.operations.append(Matched([a, b], wire, [False, False], is_pair=True, line=line))
        result.counts["kernels matched"] += 2
    for item in (item for line in lines for item in line):
        if (item.rank, item.op, item.part) not in taken:
            result.operations.append(Matched([item], [item.end - item.begin], [False]))
            result.counts["kernels without a partner"] += 1


def _pairs_at(candidates: list[Candidate], distance: int | None) -> list[Pair]:
    """Closest candidates first, each kernel once; only at one distance of ranks if given."""
    taken: set[tuple[int, int, int]] = set()
    chosen = []
    for _, rank_a, rank_b, _, _, a, b in candidates:
        if distance is not None and abs(rank_a - rank_b) != distance:
            continue
        own = {(item.rank, item.op, item.part) for item in (a, b)}
        if own & taken:
            continue
        taken |= own
        chosen.append((a, b))
    return chosen
