"""Colour refinement against its definition, applied naively until nothing changes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.engine.refine import Incidences, dense, partition, refine


def naive(rank: list[int], group: list[int], met: list[list[int]]) -> tuple[list[int], list[int]]:
    """All signatures anew, pass after pass; ``met[r][s]`` is the group of rank r at slot s."""

    def renamed(signatures: list[object]) -> list[int]:
        names: dict[object, int] = {}
        return [names.setdefault(signature, len(names)) for signature in signatures]

    while True:
        members: list[set[tuple[int, int]]] = [set() for _ in group]
        for r, groups in enumerate(met):
            for slot, g in enumerate(groups):
                members[g].add((rank[r], slot))
        new_group = renamed([(g, frozenset(m)) for g, m in zip(group, members, strict=True)])
        signatures = [(rank[r], *(new_group[g] for g in met[r])) for r in range(len(rank))]
        new_rank = renamed(signatures)
        if len(set(new_rank)) == len(set(rank)) and len(set(new_group)) == len(set(group)):
            return new_rank, new_group
        rank, group = new_rank, new_group


def same_partition(a: list[int], b: list[int]) -> bool:
    return len(set(a)) == len(set(b)) == len(set(zip(a, b, strict=True)))


@given(
    seed=st.integers(0, 2**32), n=st.integers(1, 30), n_groups=st.integers(1, 20),
    n_slots=st.integers(0, 4), n_labels=st.integers(1, 3), cyclic=st.booleans(),
)  # fmt: skip
def test_the_coarsest_stable_labels(
    seed: int, n: int, n_groups: int, n_slots: int, n_labels: int, cyclic: bool
) -> None:
    rng = random.Random(seed)
    rank = [0] * n if cyclic else [rng.randrange(n_labels) for _ in range(n)]
    group = [rng.randrange(n_labels) if rng.random() < 0.3 else 0 for _ in range(n_groups)]
    # Ranks of one label meet as many groups; in a cyclic graph symmetries survive for long.
    shifts = [rng.randrange(n_groups) for _ in range(n_slots)]
    met = [
        [(r + shift) % n_groups if cyclic else rng.randrange(n_groups)
         for shift in shifts[: n_slots - label % 2]]
        for r, label in enumerate(rank)
    ]  # fmt: skip
    if cyclic and rng.random() < 0.5:
        rank[rng.randrange(n)] = 2  # one odd rank
    incidences = Incidences(
        index=np.cumsum([0, *map(len, met)]),
        slot=np.array([slot for groups in met for slot in range(len(groups))], np.int64),
        group=np.array([g for groups in met for g in groups], np.int64),
        n_groups=n_groups,
    )
    begin = [dense(np.array(labels, np.int64))[0] for labels in (rank, group)]
    found = refine(begin[0], begin[1], incidences)
    assert found is not None
    for labels, expected in zip(found, naive(rank, group, met), strict=True):
        assert same_partition(labels.tolist(), expected)
        assert set(labels.tolist()) == set(range(len(set(expected))))
    n_classes = len(set(found[0].tolist()))
    assert refine(begin[0], begin[1], incidences, most=n_classes) is not None
    if n_classes > len(set(rank)):
        assert refine(begin[0], begin[1], incidences, most=n_classes - 1) is None


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
