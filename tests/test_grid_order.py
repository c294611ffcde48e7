"""Round trips, blocks of grids, and what goes along each dimension."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from fabrics import direct
from hypothesis import given, settings
from hypothesis import strategies as st

from mpisim.program import Operation
from mpisim.topo import Topology
from mpisim.topo.fabrics.grid import grid_tour
from mpisim.topo.topology import all_pairs_routes
from mpisim.topo.traffic.grid_order import (
    Subgrid,
    bytes_along_axes,
    data_parts,
    order_by_subgrid,
    order_by_tour,
)
from mpisim.topo.traffic.hops import HopChains, hop_chains
from mpisim.topo.traffic.transfers import TWO_WAY_RINGS, transfers

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=3)
KINDS = st.sampled_from(["torus", "mesh"])


def topology(kind: str, dims: list[int], gpus: int = 1) -> Topology:
    return direct(gpus, kind=kind, dims=tuple(dims)).topology(prod(dims))


@given(dims=SIZES, kind=KINDS)
def test_a_round_trip_passes_no_link_twice(dims: list[int], kind: str) -> None:
    wraps = [kind == "torus" and size > 2 for size in dims]
    trip = grid_tour(dims, wraps)
    assert sorted(trip.tolist()) == list(range(prod(dims)))
    if len(trip) < 2:
        return
    found = topology(kind, dims)
    index, links = found.routes(trip, np.roll(trip, -1))
    assert len(set(links.tolist())) == len(links)
    # In and out, and one hop; but for a line's way back, and that of a mesh with odd sides alone.
    hops = np.diff(index) - 2
    wide = [size for size in dims if size > 1]
    if kind == "torus" or (len(wide) > 1 and any(size % 2 == 0 for size in wide)):
        assert (hops == 1).all()
    else:
        assert (hops > 1).sum() <= 1


@given(data=st.data(), dims=SIZES, kind=KINDS, gpus=st.integers(1, 2))
@settings(deadline=None)
def test_what_all_pairs_have_in_common(
    data: st.DataObject, dims: list[int], kind: str, gpus: int
) -> None:
    """What is told without looking at pairs is what their routes add up to."""
    found = topology(kind, dims, gpus)
    if found.n_gpus < 2:
        return
    some = st.lists(st.integers(0, found.n_gpus - 1), min_size=2, unique=True)
    group = np.array(data.draw(some))
    a, b = np.repeat(group, len(group)), np.tile(group, len(group))
    index, links = found.routes(a[a != b], b[a != b])
    crowd = all_pairs_routes(found.paths)
    assert crowd is not None
    counts = crowd.pairs_per_link(group)
    assert counts is not None
    assert counts.tolist() == np.bincount(links, minlength=found.n_links).tolist()
    value = np.random.default_rng(len(links)).integers(0, 1000, found.n_links)
    assert crowd.max_route_sum(group, value) == np.add.reduceat(value[links], index[:-1]).max()


@given(data=st.data(), kind=KINDS)
@settings(deadline=None)
def test_blocks_are_found_wherever_they_are(data: st.DataObject, kind: str) -> None:
    dims = data.draw(st.lists(st.integers(2, 6), min_size=1, max_size=3))
    found = topology(kind, dims)
    axes = [data.draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True)) for n in dims]
    members = np.ravel_multi_index(np.meshgrid(*axes, indexing="ij"), dims).reshape(-1)
    order = np.array(data.draw(st.permutations(range(len(members)))), np.int64)
    (each,) = order_by_subgrid(found, members[order], np.zeros(1, np.int64), 1)
    assert sorted(each.members.tolist()) == sorted(members.tolist())
    assert each.subgrid is not None
    assert sorted(each.subgrid.sizes) == sorted(len(axis) for axis in axes if len(axis) > 1)
    # One GPU less, and what is left of two axes or more is no subgrid.
    if len(each.subgrid.sizes) > 1 and len(members) > 1:
        (less,) = order_by_subgrid(found, each.members[:-1], np.zeros(1, np.int64), 1)
        assert less.subgrid is None


def test_neighbours_across_the_end_of_a_torus_are_a_line() -> None:
    (each,) = order_by_subgrid(
        topology("torus", [8]), np.array([7, 0, 1]), np.zeros(1, np.int64), 1
    )
    assert each.members.tolist() == [7, 0, 1]
    assert each.subgrid == Subgrid((3,), (False,), inside=False)
    (whole,) = order_by_subgrid(
        topology("torus", [8]), np.arange(0, 8, 2), np.zeros(1, np.int64), 1
    )
    assert whole.subgrid == Subgrid((4,), (True,), inside=False)


def test_groups_of_one_arrangement_may_be_ordered_differently() -> None:
    """Two rows of a mesh: the comb goes through them from opposite ends."""
    found = order_by_tour(topology("mesh", [4, 4]), np.array([1, 2, 3]), np.array([4, 8]))
    assert [(each.which.tolist(), each.members.tolist()) for each in found] == [
        ([0], [1, 3, 2]),
        ([1], [1, 2, 3]),
    ]


@given(
    sizes=st.lists(st.integers(2, 6), min_size=1, max_size=4),
    rings=st.booleans(),
    inside=st.booleans(),
    operation=st.sampled_from(
        [Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER]
    ),
)
@settings(deadline=None)
def test_everyone_sends_and_receives_what_it_has_to(
    sizes: list[int], rings: bool, inside: bool, operation: Operation
) -> None:
    """(n - 1) / n of the buffer, twice for an all-reduce; no axis is left out, no part is lost."""
    n = prod(sizes)
    subgrid = Subgrid(tuple(sizes), tuple(rings and size > 2 for size in sizes), inside)
    assert sum(share for share, _ in data_parts(subgrid)) == pytest.approx(1)
    assert all(share >= 0 for share, _ in data_parts(subgrid))
    expected = (n - 1) / n * (2 if operation is Operation.ALL_REDUCE else 1)
    for algorithm in ("dimensions", *TWO_WAY_RINGS):
        found = transfers(operation, algorithm, range(n), 1, subgrid=subgrid)
        assert np.bincount(found.source, found.bytes, n) == pytest.approx(np.full(n, expected))
        assert np.bincount(found.target, found.bytes, n) == pytest.approx(np.full(n, expected))


@given(st.lists(st.integers(2, 6), min_size=2, max_size=3), st.booleans())
@settings(deadline=None)
def test_parts_leave_no_axis_busier_than_it_must_be(sizes: list[int], ring: bool) -> None:
    """Against equal parts, which are one way to split; and all axes together do a fixed work."""
    subgrid = Subgrid(tuple(sizes), tuple(ring and size > 2 for size in sizes), inside=False)

    def busiest(shares: list[float]) -> float:
        busy = np.zeros(len(sizes))
        for share, (_, order) in zip(shares, data_parts(subgrid), strict=True):
            for axis, amount in bytes_along_axes(subgrid, order):
                busy[axis] += share * amount / (2 if subgrid.rings[axis] else 1)
        return float(busy.max())

    found = busiest([share for share, _ in data_parts(subgrid)])
    d, n = len(sizes), prod(sizes)
    assert found <= busiest([1 / d] * d) * (1 + 1e-5)
    ways = sum(2 if closed else 1 for closed in subgrid.rings)
    assert found >= (n - 1) / n / ways * (1 - 1e-5)


def test_steps_go_axis_by_axis() -> None:
    """12 by 7: an all-gather takes 11 steps of one ring and 6 of the other."""
    subgrid = Subgrid((12, 7), (False, False), inside=False)
    found = hop_chains(Operation.ALL_GATHER, "dimensions", range(84), 1, subgrid)
    lengths = []
    for phase in found:
        assert isinstance(phase, HopChains)
        ring = int((phase.chain == 0).sum())
        lengths.append((ring, ring * phase.rounds - phase.short, int(phase.chain.max()) + 1))
    assert lengths == [(12, 11, 7), (7, 6, 12)]
