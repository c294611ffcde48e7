"""Shapes of many groups against those of one at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpisim.topo.nccl.shape import Shape
from mpisim.topo.nccl.system import System
from mpisim.topo.traffic.groups import shapes_of

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
