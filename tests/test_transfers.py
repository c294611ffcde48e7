"""Transfers of collectives against what the algorithms move, rank by rank."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.base.errors import InputError
from mpisim.program import Operation
from mpisim.topo.traffic.transfers import ALGORITHMS, Transfers, double_tree, transfers

GPUS = 4


def sent(found: Transfers, ranks: int, crossing: bool | None = None) -> np.ndarray:
    """Bytes that each rank sends, over nodes' borders or not."""
    crosses = found.source // GPUS != found.target // GPUS
    kept = np.full(len(crosses), True) if crossing is None else crosses == crossing
    return np.bincount(found.source[kept], found.bytes[kept], ranks)


def received(found: Transfers, ranks: int) -> np.ndarray:
    return np.bincount(found.target, found.bytes, ranks)


def test_a_ring_moves_the_bytes_of_its_closed_form() -> None:
    found = transfers(Operation.ALL_REDUCE, "ring", range(8), GPUS)
    # 2 (n - 1) / n from every rank to its neighbour; of 4 channels one leaves the node at each.
    assert sent(found, 8) == pytest.approx(np.full(8, 2 * 7 / 8))
    assert received(found, 8) == pytest.approx(np.full(8, 2 * 7 / 8))
    assert sent(found, 8, crossing=True) == pytest.approx(np.full(8, 2 * 7 / 8 / 4))
    gathered = transfers(Operation.ALL_GATHER, "ring", (0, 4, 8), GPUS)
    assert gathered.target.tolist() == [4, 8, 0]
    assert gathered.bytes == pytest.approx([2 / 3] * 3)


@given(st.integers(2, 300))
def test_double_trees_reach_all_and_share_the_work(n: int) -> None:
    edges = double_tree(n)
    assert len(edges) == 2 * n - 2
    inner = []
    for half in (edges[: n - 1], edges[n - 1 :]):
        graph = nx.Graph(half.tolist())
        assert nx.is_tree(graph)
        assert graph.number_of_nodes() == n
        children = np.bincount(half[:, 1], minlength=n)
        assert children.max() <= 2
        inner.append(children == 2)
    assert (inner[0] & inner[1]).sum() <= 1


def test_a_tree_between_nodes() -> None:
    # 4 nodes of one: every tree moves half of the bytes up and down each of its 3 edges.
    found = transfers(Operation.ALL_REDUCE, "tree", (0, 4, 8, 12), GPUS)
    assert found.bytes.sum() == pytest.approx(2 * 3 * 2 * 0.5)
    # In one node a chain up and down.
    inside = transfers(Operation.ALL_REDUCE, "tree", range(4), GPUS)
    assert sorted(zip(inside.source.tolist(), inside.target.tolist(), strict=True)) == [
        (0, 1),
        (1, 0),
        (1, 2),
        (2, 1),
        (2, 3),
        (3, 2),
    ]


def test_in_the_switch_every_port_carries_the_buffer_once() -> None:
    found = transfers(Operation.ALL_REDUCE, "nvls", range(4), GPUS)
    assert sent(found, 4) == pytest.approx(np.full(4, 1 + 1 / 4))
    across = transfers(Operation.ALL_REDUCE, "nvls-tree", range(8), GPUS)
    # Between two nodes both trees are one edge: half of the bytes each, up and down.
    assert sent(across, 8, crossing=True).sum() == pytest.approx(2 * 2 * 0.5)


def test_all_to_all_keeps_its_own_share() -> None:
    found = transfers(Operation.ALL_TO_ALL, "send", range(8), GPUS)
    assert sent(found, 8) == pytest.approx(np.full(8, 7 / 8))
    assert sent(found, 8, crossing=True) == pytest.approx(np.full(8, 4 / 8))


@given(st.integers(2, 70))
def test_pat_gathers_all_but_the_own_share(n: int) -> None:
    found = transfers(Operation.ALL_GATHER, "pat", range(n), GPUS)
    assert sent(found, n) == pytest.approx(np.full(n, (n - 1) / n))


def test_roots() -> None:
    group = (5, 2, 9)
    chain = transfers(Operation.BROADCAST, "ring", group, GPUS)
    assert (chain.source.tolist(), chain.target.tolist()) == ([5, 2], [2, 9])
    chain = transfers(Operation.REDUCE, "ring", group, GPUS)
    assert (chain.source.tolist(), chain.target.tolist()) == ([9, 2], [2, 5])
    assert received(transfers(Operation.GATHER, "send", group, GPUS), 10)[5] == pytest.approx(2 / 3)
    assert sent(transfers(Operation.SCATTER, "send", group, GPUS), 10)[5] == pytest.approx(2 / 3)


@given(
    st.sampled_from([o for o in Operation if o not in (Operation.NONE, Operation.UNKNOWN)]),
    st.sampled_from(ALGORITHMS),
    st.sets(st.integers(0, 40), min_size=2, max_size=12).map(sorted),
)
def test_only_members_send_and_nobody_to_itself(
    operation: Operation, algorithm: str, members: list[int]
) -> None:
    found = transfers(operation, algorithm, members, GPUS)
    assert set(found.source.tolist()) | set(found.target.tolist()) <= set(members)
    assert (found.source != found.target).all()
    assert (found.bytes > 0).all()


def test_uneven_nodes_use_as_many_channels_as_the_smallest_has_members() -> None:
    found = transfers(Operation.ALL_REDUCE, "ring", (0, 1, 2, 4), GPUS)
    assert sent(found, 5, crossing=True)[4] == pytest.approx(2 * 3 / 4)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_mesh_uses_all_links_of_a_node_alike(nodes: int) -> None:
    n = GPUS * nodes
    mesh = transfers(Operation.ALL_REDUCE, "ring", range(n), GPUS, meshed=True)
    ring = transfers(Operation.ALL_REDUCE, "ring", range(n), GPUS)
    for crossing in (True, False):
        assert sent(mesh, n, crossing) == pytest.approx(sent(ring, n, crossing))
    inside = mesh.bytes[mesh.source // GPUS == mesh.target // GPUS]
    assert len(inside) == nodes * GPUS * (GPUS - 1)
    assert inside == pytest.approx(np.full(len(inside), inside[0]))


def test_nothing_and_the_unknown() -> None:
    assert not len(transfers(Operation.ALL_REDUCE, "ring", (3,), GPUS).source)
    assert not len(transfers(Operation.BARRIER, "ring", (3, 4), GPUS).source)
    with pytest.raises(InputError, match="unknown algorithm 'rings'"):
        transfers(Operation.ALL_REDUCE, "rings", (3, 4), GPUS)
    with pytest.raises(InputError, match="no transfers are known for a communication of kind UNK"):
        transfers(Operation.UNKNOWN, "ring", (3, 4), GPUS)
