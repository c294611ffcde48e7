"""Colour refinement against its definition, applied naively until nothing changes."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.base.distinct import dense
from mpisim.engine._core import by_end, joined, signatures
from mpisim.engine.refine import Incidences, LinkLoads, multisets, partition, ranges, refine

Load = tuple[int, int, int]
"""Group, link, way."""


def naive(
    rank: list[int], group: list[int], link: list[int], met: list[list[int]], loads: list[Load]
) -> tuple[list[int], list[int], list[int]]:
    """All signatures anew, pass after pass; ``met[r][s]`` is the group of rank r at slot s."""

    def renamed(signatures: list[object]) -> list[int]:
        names: dict[object, int] = {}
        return [names.setdefault(signature, len(names)) for signature in signatures]

    while True:
        members: list[set[tuple[int, int]]] = [set() for _ in group]
        for r, groups in enumerate(met):
            for slot, g in enumerate(groups):
                members[g].add((rank[r], slot))
        loaded: list[Counter[tuple[int, int]]] = [Counter() for _ in group]
        loading: list[Counter[tuple[int, int]]] = [Counter() for _ in link]
        for g, k, way in loads:
            loaded[g][link[k], way] += 1
            loading[k][group[g], way] += 1
        before = rank, group, link
        signatures = [
            (g, frozenset(m), frozenset(c.items()))
            for g, m, c in zip(group, members, loaded, strict=True)
        ]
        link = renamed([(k, frozenset(c.items())) for k, c in zip(link, loading, strict=True)])
        rank = renamed([(rank[r], *(group[g] for g in met[r])) for r in range(len(rank))])
        group = renamed(signatures)
        if all(len(set(a)) == len(set(b)) for a, b in zip(before, (rank, group, link))):
            return rank, group, link


def same_partition(a: list[int], b: list[int]) -> bool:
    return len(set(a)) == len(set(b)) == len(set(zip(a, b, strict=True)))


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, 30),
    n_groups=st.integers(1, 20),
    n_slots=st.integers(0, 4),
    n_labels=st.integers(1, 3),
    cyclic=st.booleans(),
    n_links=st.integers(0, 8),
    n_loads=st.integers(0, 3),
)
def test_the_coarsest_stable_labels(
    seed: int,
    n: int,
    n_groups: int,
    n_slots: int,
    n_labels: int,
    cyclic: bool,
    n_links: int,
    n_loads: int,
) -> None:
    rng = random.Random(seed)
    rank = [0] * n if cyclic else [rng.randrange(n_labels) for _ in range(n)]
    group = [rng.randrange(n_labels) if rng.random() < 0.3 else 0 for _ in range(n_groups)]
    # Ranks of one label meet as many groups; in a cyclic graph symmetries survive for long.
    shifts = [rng.randrange(n_groups) for _ in range(n_slots)]
    met = [
        [
            (r + shift) % n_groups if cyclic else rng.randrange(n_groups)
            for shift in shifts[: n_slots - label % 2]
        ]
        for r, label in enumerate(rank)
    ]
    if cyclic and rng.random() < 0.5:
        rank[rng.randrange(n)] = 2  # one odd rank
    link = [rng.randrange(n_labels) if rng.random() < 0.2 else 0 for _ in range(n_links)]
    strides = [(rng.randrange(n_groups), rng.randrange(2)) for _ in range(n_loads)]
    loads: list[Load] = [
        ((k + stride) % n_groups if cyclic else rng.randrange(n_groups), k, way)
        for k in range(n_links)
        for stride, way in strides
    ]
    rng.shuffle(loads)
    incidences = Incidences(
        index=np.cumsum([0, *map(len, met)]),
        slot=np.array([slot for groups in met for slot in range(len(groups))], np.int64),
        group=np.array([g for groups in met for g in groups], np.int64),
        n_groups=n_groups,
    )
    begin = [dense(np.array(labels, np.int64))[0] for labels in (rank, group, link)]
    ends = np.array(loads, np.int64).reshape(-1, 3).T
    shared = LinkLoads(*ends, label=begin[2])
    found = refine(begin[0], begin[1], incidences, loads=shared)
    assert found is not None
    for labels, expected in zip(found, naive(rank, group, link, met, loads), strict=True):
        assert same_partition(labels.tolist(), expected)
        assert set(labels.tolist()) == set(range(len(set(expected))))
    n_classes = len(set(found.rank.tolist()))
    assert refine(begin[0], begin[1], incidences, n_classes, shared) is not None
    if n_classes > len(set(rank)):
        assert refine(begin[0], begin[1], incidences, n_classes - 1, shared) is None


def test_two_equal_flows_over_a_link_count_twice() -> None:
    """Four ranks alone in their groups; links carry groups 0 and 1, group 2, group 3."""
    met = Incidences(np.arange(5), np.zeros(4, np.int64), np.arange(4), 4)
    alike = np.zeros(4, np.int64)
    loads = LinkLoads(
        group=np.arange(4),
        link=np.array([0, 0, 1, 2]),
        kind=np.zeros(4, np.int64),
        label=np.zeros(3, np.int64),
    )
    found = refine(alike, alike, met, loads=loads)
    assert found is not None
    assert same_partition(found.rank.tolist(), [0, 0, 1, 1])
    assert same_partition(found.link.tolist(), [0, 1, 1])


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 3), max_size=4))))
def test_partition(items: list[tuple[int, list[int]]]) -> None:
    label = np.array([label for label, _ in items], np.int64)
    values = np.array([v for _, sequence in items for v in sequence], np.int64)
    index = np.cumsum([0, *(len(sequence) for _, sequence in items)])
    part, n = partition(label, values, index)
    expected = [(label, *sequence) for label, sequence in items]
    assert same_partition(part.tolist(), [expected.index(one) for one in expected])
    assert n == len(set(expected))


@pytest.mark.parametrize("keys", [[], [0], [5, 5, 0], [10**12, 3, 10**12]])
def test_dense(keys: list[int]) -> None:
    numbers, n = dense(np.array(keys, np.int64))
    assert numbers.tolist() == [sorted(set(keys)).index(key) for key in keys]
    assert n == len(set(keys))


edges = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=90)


@given(edges=edges)
def test_edges_sorted_by_one_end(edges: list[tuple[int, int]]) -> None:
    side, other = np.array(edges, np.int64).reshape(-1, 2).T
    index, order = by_end(side, 10)
    assert order.tolist() == np.argsort(side, kind="stable").tolist()
    assert np.diff(index).tolist() == np.bincount(side, minlength=10).tolist()
    at, owner = ranges(index, other)
    of_each = [list(range(index[i], index[i + 1])) for i in other.tolist()]
    assert at.tolist() == [e for some in of_each for e in some]
    assert owner.tolist() == [i for i, some in enumerate(of_each) for _ in some]


@given(edges=edges)
def test_multisets_of_edges(edges: list[tuple[int, int]]) -> None:
    owner, entries = np.array(edges, np.int64).reshape(-1, 2).T
    owners, values, index = multisets(owner, entries)
    counts = [Counter(e for o, e in edges if o == one) for one in owners.tolist()]
    assert owners.tolist() == sorted({o for o, _ in edges})
    most = max((max(count.values()) for count in counts), default=0)
    dense_ = {entry: i for i, entry in enumerate(sorted({e for _, e in edges}))}
    assert np.diff(index).tolist() == [len(count) for count in counts]
    assert values.tolist() == [
        dense_[entry] * (most + 1) + count[entry] for count in counts for entry in sorted(count)
    ]


@given(edges=edges)
def test_groups_joined_by_links(edges: list[tuple[int, int]]) -> None:
    group, link = np.array(edges, np.int64).reshape(-1, 2).T
    number = joined(np.ascontiguousarray(group), np.ascontiguousarray(link), 10, 4).tolist()
    sets = [{i} for i in range(10)]
    for one in range(4):
        users = {g for g, k in edges if k == one}
        met = set().union(*(each for each in sets if each & users))
        sets = [each for each in sets if not each & users] + ([met] if met else [])
    in_order = sorted(sets, key=min)
    assert number == [next(n for n, s in enumerate(in_order) if i in s) for i in range(10)]


@given(st.data())
def test_signatures_are_sets_and_multisets(data: st.DataObject) -> None:
    """Of items with few edges and with many, to labels that are few or far apart."""
    n_there, n_kinds = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    far = data.draw(st.sampled_from([1, 10**6]))
    label = np.array(data.draw(st.lists(st.integers(0, 4), min_size=n_there, max_size=n_there)))
    edge = st.tuples(st.integers(0, n_there - 1), st.integers(0, n_kinds - 1))
    edges = data.draw(st.lists(st.lists(edge, max_size=60), min_size=1, max_size=5))
    items = np.array(data.draw(st.permutations(range(len(edges)))), np.int64)
    index = np.cumsum([0, *map(len, edges)])
    there, kind = np.array([e for each in edges for e in each], np.int32).reshape(-1, 2).T
    for counted in (False, True):
        values, ends = signatures(
            items, index, there.copy(), kind.copy(), n_kinds, label * far, counted
        )
        found = [tuple(values[a:b].tolist()) for a, b in pairwise(ends)]
        assert all(list(one) == sorted(set(one)) for one in found)
        met = [Counter((int(label[e]), k) for e, k in edges[i]) for i in items.tolist()]
        expected = [frozenset(one.items() if counted else one) for one in met]
        assert [len(one) for one in found] == [len(one) for one in met]
        for one, mine in zip(found, expected, strict=True):
            for other, theirs in zip(found, expected, strict=True):
                assert (one == other) == (mine == theirs)
