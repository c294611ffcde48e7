"""Shapes of many groups against those of one at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpisim.topo.nccl.shape import Shape
from mpisim.topo.nccl.system import System
from mpisim.topo.traffic.groups import arrangements, group_equal_rows, shapes_of

GROUPS = st.lists(
    st.lists(st.integers(0, 50), min_size=1, max_size=9, unique=True), min_size=1, max_size=12
)


@given(GROUPS, st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]))
def test_they_are_those_of_each_group(groups: list[list[int]], gpus: int, nics: int) -> None:
    system = System("hopper", gpus, link_bandwidth=370e9, nics=nics, nic_bandwidth=50e9)
    index = np.cumsum([0, *map(len, groups)])
    members = np.array([rank for group in groups for rank in group], np.int32)
    label, shapes = shapes_of(index, members, system)
    assert [shapes[i] for i in label] == [Shape.of(group, system) for group in groups]
    assert len(set(shapes)) == len(shapes)


@given(GROUPS, st.sampled_from([1, 2, 4, 8]))
def test_arrangements_are_the_groups_that_are_shifts_and_lie_on_nodes_alike(
    groups: list[list[int]], gpus: int
) -> None:
    def seen(group: list[int]) -> list[tuple[int, int]]:
        return [(rank - group[0], rank // gpus - group[0] // gpus) for rank in group]

    index = np.cumsum([0, *map(len, groups)])
    members = np.array([rank for group in groups for rank in group], np.int32)
    found = arrangements(index, members, gpus)
    assert sorted(i for each in found for i in each.groups.tolist()) == list(range(len(groups)))
    for each in found:
        assert each.base.min() >= 0
        assert 0 <= each.members[0] < gpus
        rows, which = each.by_seat(gpus)
        for number, base, row in zip(each.groups.tolist(), each.base, rows[which], strict=True):
            group = groups[number]
            assert (each.members + base).tolist() == group
            assert seen(row.tolist()) == seen(each.members.tolist()) == seen(group)
            assert row[0] == group[0] % gpus
    kinds = [seen(groups[each.groups[0]]) for each in found]
    assert len({tuple(kind) for kind in kinds}) == len(kinds)


@given(
    st.lists(st.tuples(st.integers(-5, 9), st.integers(-40, 90)), min_size=1, max_size=60),
    st.integers(0, 10**7),
)
def test_pairs_are_sorted_as_longer_rows_are(pairs: list[tuple[int, int]], far: int) -> None:
    rows = np.array([*pairs, (0, far)], np.int64)
    longer = np.concatenate([rows, rows[:, :1]], axis=1)
    found, others = ({tuple(one.tolist()) for one in group_equal_rows(r)} for r in (rows, longer))
    assert found == others
    assert all((rows[list(one)] == rows[one[0]]).all() for one in found)
    assert sorted(i for one in found for i in one) == list(range(len(rows)))
