"""Execution trace and Kineto trace of one rank → which node is which operator.

Three ways, the first that holds is used and named in the result:

1. *record id*: newer Kineto files carry the node's ``rf_id`` as ``Record function id``;
2. *external id*: ``External id`` is ``rf_id`` plus one constant, if both files show the same step
   of the same process. The constant is found by majority;
3. *names*: thread by thread, the longest common subsequence of the operators' names in order of
   begin. If one file shows many more operators, the stretch of it where most names agree is used.

The first two are verified: a pair counts only if the names agree, and a way on which less than
nine in ten of the smaller file's operators agree does not hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..base.errors import TraceError
from ..base.frozen import frozen
from .et_model import ExecutionTrace
from .kineto import KinetoTrace, Spans

__all__ = ["Link", "best_offset", "common_subsequence", "link_traces"]

_MOST_BITS = 1 << 30
"""Above this many comparisons the table (one bit each) is not kept: 128 MiB."""


def common_subsequence(
    a: Sequence[Hashable], b: Sequence[Hashable], most_bits: int = _MOST_BITS
) -> list[tuple[int, int]]:
    """Two sequences → positions of a longest common subsequence.

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
    """Sequences → the first shift of `short` along `long` at which most items agree.

    Parameters
    ----------
    short, long : sequence of hashable
        Either may be the longer one.

    Returns
    -------
    int
        Position in `long` of the first item of `short`; negative if `short` begins before `long`.

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


_MIN_AGREEING_SHARE = 0.9
"""Share of the smaller file's operators that must agree for identities to be trusted."""
_MIN_MATCHED_SHARE = 0.5
"""Share below which two files are not of the same program."""
_MAX_LENGTH_RATIO = 1.25
"""From this ratio of lengths on, the longer list is cut to the stretch that fits the shorter."""


@frozen
class Link:
    """Which node of an execution trace is which operator of a Kineto trace.

    Attributes
    ----------
    method : str
        ``record id``, ``external id`` or ``names``.
    constant : int
        External id minus record id; 0 for the other methods.
    node_of_operator : int32, shape (n_operators,)
        Position of the node, for each of the Kineto trace's operators; -1 without.
    matched : int
        Pairs.
    unmatched_nodes, unmatched_operators : int
        What is left on either side (operators and annotations together).
    renamed : int
        Pairs of equal identity that were dropped because the names differ.
    """

    method: str
    constant: int
    node_of_operator: NDArray[np.int32]
    matched: int
    unmatched_nodes: int
    unmatched_operators: int
    renamed: int

    def describe(self) -> str:
        """Return one line on how the files were joined."""
        how = {"external id": f"External id - rf_id = {self.constant}"}.get(
            self.method, self.method
        )
        return (
            f"joined by {how}: {self.matched} pairs; unmatched: {self.unmatched_nodes} nodes of "
            f"the execution trace, {self.unmatched_operators} operators of the Kineto trace"
        )


@dataclass
class _Events:
    """Operators and annotations of a Kineto trace as one list, in order of begin."""

    name: list[str]
    thread: NDArray[np.int64]
    begin: NDArray[np.int64]
    external: NDArray[np.int64]
    record: NDArray[np.int64]
    origin: NDArray[np.int64]
    """Position among operators, then annotations."""


def link_traces(et: ExecutionTrace, trace: KinetoTrace) -> Link:
    """Join an execution trace and a Kineto trace of the same rank.

    Parameters
    ----------
    et : ExecutionTrace
    trace : KinetoTrace

    Raises
    ------
    TraceError
        If fewer than half of the smaller file's operators can be matched: the files are not of the
        same program.
    """
    events = _events(trace)
    nodes = np.array([i for i in range(len(et)) if not et.is_structure(i)], np.int64)
    smaller = min(len(nodes), len(events.name))
    method, constant, (pairs, renamed) = (
        "record id",
        0,
        _by_identity(et, nodes, events, events.record),
    )
    if len(pairs) < _MIN_AGREEING_SHARE * smaller:
        method, constant = "external id", _constant(et, nodes, events)
        identity = np.where(events.external < 0, -1, events.external - constant)
        pairs, renamed = _by_identity(et, nodes, events, identity)
    if len(pairs) < _MIN_AGREEING_SHARE * smaller:
        method, constant, renamed = "names", 0, 0
        pairs = _by_names(et, nodes, events)
    if len(pairs) < max(1.0, _MIN_MATCHED_SHARE * smaller):
        raise TraceError(
            f"{et.path}: does not belong to {trace.path}: only {len(pairs)} of "
            f"{smaller} operators have a counterpart"
        )
    node_of = np.full(len(events.name), -1, np.int32)
    for node, event in pairs:
        node_of[events.origin[event]] = node
    return Link(
        method=method,
        constant=constant,
        node_of_operator=node_of[: len(trace.operators)],
        matched=len(pairs),
        unmatched_nodes=len(nodes) - len(pairs),
        unmatched_operators=len(events.name) - len(pairs),
        renamed=renamed,
    )


def _events(trace: KinetoTrace) -> _Events:
    both: Sequence[Spans] = (trace.operators, trace.annotations)
    begin = np.concatenate([spans.begin for spans in both])
    end = np.concatenate([spans.end for spans in both])
    args = [a for spans in both for a in spans.args]
    external = np.array(
        [
            -1
            if a is None
            else _whole(a.external_id if a.external_id is not None else a.external_id_old)
            for a in args
        ],
        np.int64,
    )
    record = np.array([-1 if a is None else _whole(a.record_id) for a in args], np.int64)
    # Times of old files are whole µs. Where they are equal, external ids tell the order, and
    # without these the longer is the outer.
    order = np.lexsort((begin - end, external, begin))
    names = [name for spans in both for name in spans.name]
    return _Events(
        name=[names[i] for i in order],
        thread=np.concatenate([spans.thread for spans in both])[order].astype(np.int64),
        begin=begin[order],
        external=external[order],
        record=record[order],
        origin=order.astype(np.int64),
    )


def _whole(value: int | str | None) -> int:
    if isinstance(value, str):
        return int(value) if value.isdigit() else -1
    return -1 if value is None else value


def _by_identity(
    et: ExecutionTrace, nodes: NDArray[np.int64], events: _Events, identity: NDArray[np.int64]
) -> tuple[list[tuple[int, int]], int]:
    """Pair nodes and events of equal identity and name; also count those of other names."""
    node_of = {int(et.record_id[node]): int(node) for node in nodes if et.record_id[node] > 0}
    pairs, renamed = [], 0
    taken: set[int] = set()
    for event, number in enumerate(identity.tolist()):
        node = node_of.get(number, -1)
        if node < 0 or node in taken:
            continue
        if et.name[node] == events.name[event]:
            pairs.append((node, event))
            taken.add(node)
        else:
            renamed += 1
    return pairs, renamed


def _constant(et: ExecutionTrace, nodes: NDArray[np.int64], events: _Events) -> int:
    """Return the most frequent difference of external and record ids of equal names.

    Rare names vote first: they give few wrong differences. Frequent ones are left out once there
    are votes enough.
    """
    ours: dict[str, list[int]] = {}
    theirs: dict[str, list[int]] = {}
    for node in nodes.tolist():
        ours.setdefault(et.name[node], []).append(int(et.record_id[node]))
    for name, external in zip(events.name, events.external.tolist()):
        if external >= 0 and name in ours:
            theirs.setdefault(name, []).append(external)
    votes: Counter[int] = Counter()
    cast = 0
    for name in sorted(theirs, key=lambda name: len(ours[name]) * len(theirs[name])):
        cost = len(ours[name]) * len(theirs[name])
        if cast and cast + cost > 1_000_000:
            break
        cast += cost
        for external in theirs[name]:
            votes.update(external - record for record in ours[name])
    return max(votes, key=lambda c: (votes[c], -abs(c)), default=0)


def _by_names(
    et: ExecutionTrace, nodes: NDArray[np.int64], events: _Events
) -> list[tuple[int, int]]:
    """Pair nodes and events by the order of their names, thread by thread."""
    ours = {int(t): nodes[et.thread[nodes] == t] for t in np.unique(et.thread[nodes])}
    theirs = {int(t): np.flatnonzero(events.thread == t) for t in np.unique(events.thread)}
    counts = {t: Counter(et.name[i] for i in own) for t, own in ours.items()}
    others = {t: Counter(events.name[i] for i in own) for t, own in theirs.items()}
    pairs: list[tuple[int, int]] = []
    window: tuple[int, int] | None = None
    # The thread whose operators span the trace comes first: it says which step the others are of.
    for thread in sorted(ours, key=lambda t: int(ours[t][0] - ours[t][-1])):
        similarity = {t: _similarity(counts[thread], others[t]) for t in theirs if len(theirs[t])}
        if not similarity or not max(similarity.values()):
            continue
        chosen = max(similarity, key=lambda t: (similarity[t], -t))
        own, other = ours[thread], theirs.pop(chosen)
        if window is not None:
            inside = (events.begin[other] >= window[0]) & (events.begin[other] <= window[1])
            other = other[inside]
        found, cut = _aligned([et.name[i] for i in own], [events.name[i] for i in other])
        pairs += [(int(own[i]), int(other[j])) for i, j in found]
        if cut and window is None and found:
            begins = events.begin[other[[j for _, j in found]]]
            window = int(begins.min()), int(begins.max())
    return pairs


def _similarity(a: Counter[str], b: Counter[str]) -> float:
    """Similarity of the names on two threads, whatever the number of steps in each."""
    common = sum((a & b).values())
    return common / min(a.total(), b.total()) + len(a.keys() & b.keys()) / len(a.keys() | b.keys())


def _aligned(a: list[str], b: list[str]) -> tuple[list[tuple[int, int]], bool]:
    """Align two lists of names; also say whether `b` was cut to a stretch."""
    if not a or not b:
        return [], False
    if len(b) > _MAX_LENGTH_RATIO * len(a):
        begin, end = _stretch(a, b)
        return [(i, j + begin) for i, j in common_subsequence(a, b[begin:end])], True
    if len(a) > _MAX_LENGTH_RATIO * len(b):
        begin, end = _stretch(b, a)
        return [(i + begin, j) for i, j in common_subsequence(a[begin:end], b)], False
    return common_subsequence(a, b), False


def _stretch(short: list[str], long: list[str]) -> tuple[int, int]:
    """Return the part of a long list that a short one fits best, with some room round it."""
    offset = best_offset(short, long)
    room = len(short) // 50
    return max(0, offset - room), min(len(long), offset + len(short) + room)
