"""NCCL's choices and times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import NODES_OF_GPUS

from mpisim.base.errors import InputError
from mpisim.program import Operation
from mpisim.topo import find_cluster
from mpisim.topo.nccl import Factors, Nccl, Settings, Shape, System
from mpisim.topo.nccl_system import cluster_system

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
US = 1e-6

H200 = System("hopper", 8, "nvswitch", 370.8e9, 48e9, nics=8, nic_bandwidth=50e9)
A100 = System("ampere", 8, "nvswitch", 240e9, 24e9, nics=8, nic_bandwidth=25e9, cpu="amd")
L40S = System("ada", 4, "pcie", pcie_bandwidth=24e9, nics=2, nic_bandwidth=50e9, nic_path="phb")

ALL_REDUCE = Operation.ALL_REDUCE
COLLECTIVES = (
    Operation.ALL_REDUCE,
    Operation.ALL_GATHER,
    Operation.REDUCE_SCATTER,
    Operation.BROADCAST,
    Operation.REDUCE,
)
SENDS = (Operation.SEND_RECV, Operation.ALL_TO_ALL, Operation.GATHER, Operation.SCATTER)


def chosen(system: System, nodes: int, per_node: int, bytes: int, **variables: str) -> str:
    model = Nccl(system, Settings.of({f"NCCL_{key}": value for key, value in variables.items()}))
    found = model.choose(ALL_REDUCE, bytes, Shape.regular(nodes, per_node, system))
    return f"{found.algorithm} {found.protocol}"


def pair(model: Nccl, operation: Operation, bytes: int, shape: Shape, name: str, protocol: str):
    found = model.candidates(operation, bytes, shape)
    return next(each for each in found if (each.algorithm, each.protocol) == (name, protocol))


class TestChoice:
    def test_h200_switches_from_rings_to_multicast(self) -> None:
        # stas00/ml-engineering, NCCL 2.27.7: ring LL to 1 MiB, NVLS from 2 MiB.
        for kib in (32, 64, 128, 256, 512, 1024):
            assert chosen(H200, 1, 8, kib * KiB) == "ring ll"
        for mib in (2, 4, 64, 8192):
            assert chosen(H200, 1, 8, mib * MiB) == "nvls simple"

    def test_h200_without_multicast_uses_rings(self) -> None:
        assert chosen(H200, 1, 8, 8 * GiB, NVLS_ENABLE="0") == "ring simple"

    def test_h200_multicast_begins_at_five_gpus(self) -> None:
        # Four channels of the fastest speed, 60 GB/s, times 0.85 carry 204 GB/s; a ring of four
        # 360 × 4 / 6 = 240. Five carry 255; a ring of five 225.
        found = {n: chosen(H200, 1, n, 8 * GiB) for n in range(2, 9)}
        assert {n for n, each in found.items() if each.startswith("nvls")} == {5, 6, 7, 8}

    def test_gathers_of_more_ranks_than_multicast_has_heads_have_none(self) -> None:
        # src/enqueue.cc: not for `localRanks > NCCL_MAX_NVLS_ARITY`, 32, but for all-reduce.
        rack = cluster_system(find_cluster("gb200-nvl72"))
        for operation in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER, ALL_REDUCE):
            for per_node in (32, 36):
                found = Nccl(rack).candidates(operation, MiB, Shape.regular(1, per_node, rack))
                multicast = any(each.algorithm == "nvls" for each in found)
                assert multicast == (per_node == 32 or operation is ALL_REDUCE)

    def test_gathers_on_one_node_use_rings(self) -> None:
        model, shape = Nccl(H200), Shape.regular(1, 8, H200)
        for operation in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER):
            assert model.choose(operation, 8 * GiB, shape).algorithm == "ring"

    def test_small_messages_on_many_nodes_use_trees(self) -> None:
        assert chosen(A100, 16, 8, 8) == "tree ll"

    def test_no_ll128_without_nvlink(self) -> None:
        model, shape = Nccl(L40S), Shape.regular(1, 4, L40S)
        found = {each.protocol for each in model.candidates(ALL_REDUCE, MiB, shape)}
        assert found == {"ll", "simple"}

    def test_the_choice_comes_first_among_candidates(self) -> None:
        model, shape = Nccl(H200), Shape.regular(4, 8, H200)
        for bytes in (8, 100 * KiB, 3 * MiB, GiB):
            found = model.candidates(ALL_REDUCE, bytes, shape)
            assert found[0] == model.choose(ALL_REDUCE, bytes, shape)

    def test_pat_is_for_one_gpu_a_node(self) -> None:
        model = Nccl(H200)
        for per_node, expected in ((1, True), (2, False)):
            shape = Shape.regular(8, per_node, H200)
            found = model.candidates(Operation.ALL_GATHER, MiB, shape)
            assert ("pat" in {each.algorithm for each in found}) == expected


class TestLatency:
    @pytest.mark.parametrize("n", [2, 3, 8])
    def test_ring(self, n: int) -> None:
        # base + 2 (n - 1) hops over NVLink
        found = pair(Nccl(A100), ALL_REDUCE, 1, Shape.regular(1, n, A100), "ring", "ll")
        assert found.latency == pytest.approx((6.6 + 2 * (n - 1) * 0.6) * US, rel=2e-3)

    def test_ring_across(self) -> None:
        # 2 × 31 steps, of which 2 × 3 between nodes; inside, posting (Simple: 3 × 2 us) is slower
        # than the hop, 3.4.
        found = pair(Nccl(A100), ALL_REDUCE, 1, Shape.regular(4, 8, A100), "ring", "simple")
        assert found.latency == pytest.approx((8.4 + 56 * 6.0 + 6 * 14.0) * US, rel=2e-3)

    @pytest.mark.parametrize("protocol", ["ll", "ll128", "simple"])
    def test_a_platform_adds_the_same_to_all_protocols(self, protocol: str) -> None:
        # Tree on 2 nodes: 2 crossings of 5 us with LL.
        shape, slow = Shape.regular(2, 8, A100), Factors(latency_across=3)
        before = pair(Nccl(A100), ALL_REDUCE, 1, shape, "tree", protocol)
        after = pair(Nccl(A100, factors=slow), ALL_REDUCE, 1, shape, "tree", protocol)
        assert after.latency - before.latency == pytest.approx(2 * 2 * 5.0 * US, rel=0.01)

    def test_pipelines_lose_the_square_root_of_the_size(self) -> None:
        # Four times the size: twice the loss above the latency.
        model, shape = Nccl(A100), Shape.regular(1, 8, A100)
        small, large = (
            pair(model, ALL_REDUCE, size * GiB, shape, "ring", "simple").latency for size in (1, 4)
        )
        steps = (8.4 + 14 * 3.4) * US
        assert large - steps == pytest.approx(2 * (small - steps))

    @pytest.mark.parametrize("nodes", [4, 16])
    def test_flags_cost_more_in_large_messages_at_each_crossing(self, nodes: int) -> None:
        # Twice LL's 5 us at each of 2 log2(nodes) crossings, times (64 KiB / 4 KiB)^0.4.
        shape, bulk = Shape.regular(nodes, 8, A100), Factors(latency_bulk=2)
        small, large = (
            pair(Nccl(A100, factors=bulk), ALL_REDUCE, size * KiB, shape, "tree", "ll").latency
            for size in (1, 64)
        )
        crossings = 2 * np.log2(nodes)
        assert large - small == pytest.approx(2 * 5.0 * US * crossings * 16**0.4, rel=1e-6)

    def test_a_tree_loses_its_share_at_each_crossing(self) -> None:
        # 0.7 (h L t)^1/2 with h crossings, all of which take L.
        for nodes in (4, 16):
            shape = Shape.regular(nodes, 8, A100)
            free = pair(Nccl(A100), ALL_REDUCE, 1, shape, "tree", "ll128").latency
            found = pair(Nccl(A100), ALL_REDUCE, 16 * MiB, shape, "tree", "ll128")
            crossings = 2 * np.log2(nodes)
            lost = 0.7 * (crossings * free * 16 * MiB / found.bandwidth) ** 0.5
            assert found.latency == pytest.approx(free + lost, rel=0.01)

    def test_large_messages_have_their_own_latency_across(self) -> None:
        shape, bulk = Shape.regular(4, 8, A100), Factors(latency_bulk=2)
        for bytes, more in ((1024, False), (64 * MiB, True)):
            one, found = (
                pair(Nccl(A100, factors=factors), ALL_REDUCE, bytes, shape, "tree", "ll").latency
                for factors in (None, bulk)
            )
            assert (found > 1.5 * one) == more

    def test_tree(self) -> None:
        # base + 2 (7 hops inside + 3 between nodes)
        found = pair(Nccl(A100), ALL_REDUCE, 1, Shape.regular(8, 8, A100), "tree", "ll128")
        assert found.latency == pytest.approx((14.0 + 2 * (7 * 1.25 + 3 * 8.5)) * US, rel=5e-3)

    def test_older_versions_have_their_own_constants(self) -> None:
        old = replace(A100, version=(2, 17))
        found = pair(Nccl(old), ALL_REDUCE, 1, Shape.regular(1, 8, A100), "ring", "ll")
        assert found.latency == pytest.approx((3.6 + 14 * 0.6) * US, rel=2e-3)


class TestBandwidth:
    @pytest.mark.parametrize("n", [2, 4, 8])
    def test_large_rings_reach_the_links(self, n: int) -> None:
        # payload = bus n / (2 (n - 1))
        found = pair(Nccl(A100), ALL_REDUCE, 64 * GiB, Shape.regular(1, n, A100), "ring", "simple")
        assert found.bandwidth == pytest.approx(240e9 * n / (2 * (n - 1)))

    def test_multicast_carries_one_part_more_than_the_buffer(self) -> None:
        # 0.85 of the links, and n + 1 parts of an n-th over each port.
        shape = Shape.regular(1, 8, H200)
        found = pair(Nccl(H200), ALL_REDUCE, 64 * GiB, shape, "nvls", "simple")
        assert found.bandwidth == pytest.approx(370.8e9 * 0.85 * 8 / 9)

    def test_a_group_uses_the_nics_near_its_ranks(self) -> None:
        model = Nccl(H200)
        for per_node in (1, 2, 4):
            shape = Shape.regular(8, per_node, H200)
            found = pair(model, Operation.ALL_GATHER, 64 * GiB, shape, "ring", "simple")
            n = 8 * per_node
            assert found.bandwidth == pytest.approx(per_node * 50e9 * n / (n - 1))

    def test_trees_of_two_nodes_beat_the_nics_of_a_ring(self) -> None:
        # Between two nodes a tree sends the buffer once each way, a ring nearly twice: four NICs of
        # 25 GB/s carry 100 × 8 / 14 of a ring's payload, and 100 × 0.92 of a tree's.
        four = System("hopper", 4, "mesh", 370.8e9, 48e9, nics=4, nic_bandwidth=25e9)
        shape = Shape.regular(2, 4, four)
        rate = {
            name: pair(Nccl(four), ALL_REDUCE, 64 * GiB, shape, name, "simple").bandwidth
            for name in ("ring", "tree")
        }
        assert rate == pytest.approx({"ring": 100e9 * 8 / 14, "tree": 92e9})

    def test_a_mesh_of_two_has_one_link(self) -> None:
        mesh = System("ampere", 4, "mesh", 240e9, 24e9)
        found = Nccl(mesh).choose(ALL_REDUCE, 8 * GiB, Shape.regular(1, 2, mesh))
        assert found.bandwidth == pytest.approx(80e9)

    def test_bridges_join_pairs(self) -> None:
        bridged = System("volta", 4, "pairs", 80e9, 12e9)
        model = Nccl(bridged)
        rate = {
            members: model.choose(ALL_REDUCE, GiB, Shape.of(members, bridged)).bandwidth
            for members in ((0, 1), (2, 3), (1, 2))
        }
        assert rate[0, 1] == rate[2, 3] == pytest.approx(80e9)
        assert rate[1, 2] < 15e9

    def test_all_to_all_shares_the_nics(self) -> None:
        # 8 of 16 parts leave the node: each GPU sends half of its buffer over its own NIC.
        model, shape = Nccl(A100), Shape.regular(2, 8, A100)
        found = model.choose(Operation.ALL_TO_ALL, GiB, shape)
        assert found.bandwidth == pytest.approx(25e9 / 0.5)

    def test_factors_scale_what_they_name(self) -> None:
        shape = Shape.regular(1, 8, A100)
        one = Nccl(A100).choose(ALL_REDUCE, 8 * GiB, shape)
        found = Nccl(A100, factors=Factors(0.9, 1, 2, 1)).choose(ALL_REDUCE, 8 * GiB, shape)
        assert found.bandwidth == pytest.approx(0.9 * one.bandwidth)
        # What pipelines lose grows with the root of the latency times the transfer.
        small, slow = (
            Nccl(A100, factors=Factors(1, 1, more, 1)).choose(ALL_REDUCE, 1, shape).latency
            for more in (1, 2)
        )
        assert slow == pytest.approx(2 * small, rel=2e-3)

    def test_a_factor_is_above_0(self) -> None:
        with pytest.raises(InputError, match="latency_inside is 0"):
            Factors(latency_inside=0)


SYSTEMS = st.sampled_from([H200, A100, L40S])


class TestProperties:
    @settings(max_examples=60, deadline=None)
    @given(
        SYSTEMS,
        st.integers(1, 20),
        st.integers(1, 4),
        st.sampled_from(COLLECTIVES),
        st.integers(0, 34),
        st.floats(1.0, 4.0),
    )
    def test_larger_takes_longer(
        self, system: System, nodes: int, per_node: int, operation: Operation, log: int, more: float
    ) -> None:
        """By one algorithm and protocol; a switch between two may well pay off or not."""
        shape = Shape.regular(nodes, per_node, system)
        if shape.ranks == 1:
            return
        model, small = Nccl(system), 1 << log
        large = int(small * more)
        for each in model.candidates(operation, small, shape):
            other = pair(model, operation, large, shape, each.algorithm, each.protocol)
            assert other.seconds(large) >= each.seconds(small) * (1 - 1e-9)

    @settings(max_examples=30, deadline=None)
    @given(SYSTEMS, st.integers(1, 8), st.integers(1, 4), st.sampled_from([*COLLECTIVES, *SENDS]))
    def test_arrays_are_as_single_sizes(
        self, system: System, nodes: int, per_node: int, operation: Operation
    ) -> None:
        shape = Shape.regular(nodes, per_node, system)
        model, sizes = Nccl(system), [1, 7, 4096, 100_000, MiB, 3 * MiB, GiB]
        found = model.seconds_of(operation, np.array(sizes), shape)
        expected = [model.seconds(operation, size, shape) for size in sizes]
        assert found == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("operation", [*COLLECTIVES, *SENDS, Operation.BARRIER])
    def test_every_cluster_has_times(self, operation: Operation) -> None:
        for name in NODES_OF_GPUS:
            system = cluster_system(find_cluster(name))
            model = Nccl(system)
            for nodes in (1, 4) if system.nics else (1,):
                shape = Shape.regular(nodes, system.gpus_per_node, system)
                for size in (1, MiB, GiB):
                    found = model.seconds(operation, size, shape)
                    assert 1e-6 < found < 100 if shape.ranks > 1 else found == 0


class TestBuffers:
    @pytest.mark.parametrize(("size", "variables"), [(4, {}), (1, {"NCCL_BUFFSIZE": str(MiB)})])
    def test_a_send_inside_a_node_fits_into_the_buffers_of_its_channels(
        self, size: int, variables: dict[str, str]
    ) -> None:
        # 16 channels to a peer, whose 8 slots hold 4 MiB together, or what NCCL_BUFFSIZE says.
        model = Nccl(H200, Settings.of(variables))
        inside, across = Shape.regular(1, 2, H200), Shape.regular(2, 1, H200)
        assert model.fits_buffers(16 * size * MiB, inside)
        assert not model.fits_buffers(16 * size * MiB + 1, inside)
        assert not model.fits_buffers(size * MiB, across)


class TestShapes:
    def test_irregular_groups(self) -> None:
        found = Shape.of([0, 1, 2, 9], H200)
        assert (found.ranks, found.nodes, found.nics) == (4, 2, 1)
        assert (found.max_per_node, found.min_per_node) == (3, 1)

    @given(st.integers(1, 6), st.integers(1, 8))
    def test_regular_is_that_of_its_members(self, nodes: int, per_node: int) -> None:
        members = [8 * node + gpu for node in range(nodes) for gpu in range(per_node)]
        assert Shape.regular(nodes, per_node, H200) == Shape.of(members, H200)

    def test_impossible(self) -> None:
        with pytest.raises(InputError, match="1 to 8 GPUs"):
            Shape.regular(1, 9, H200)

    def test_one_alone_costs_nothing(self) -> None:
        assert Nccl(H200).seconds(ALL_REDUCE, GiB, Shape(1)) == 0


class TestErrors:
    @pytest.mark.parametrize("operation", [Operation.UNKNOWN, Operation.NONE])
    def test_unknown_operation(self, operation: Operation) -> None:
        with pytest.raises(InputError, match=f"kind {operation.name}; known are ALL_REDUCE"):
            Nccl(H200).seconds(operation, 1, Shape.regular(1, 8, H200))

    def test_several_nodes_without_nics(self) -> None:
        with pytest.raises(InputError, match="no NICs"):
            Nccl(System("volta", 8, "nvswitch", 120e9)).seconds(ALL_REDUCE, 1, Shape(2, 2))

    def test_unknown_arch(self) -> None:
        with pytest.raises(InputError, match="allowed: pascal"):
            System("kepler", 8, "pcie")

    def test_wafers_have_no_nccl(self) -> None:
        cluster = find_cluster("dgx-h100")
        node = replace(cluster.node, kind="direct", pcie_bandwidth=None, nics=0, nic_bandwidth=None)
        with pytest.raises(InputError, match="needs GPUs in nodes"):
            cluster_system(replace(cluster, node=node))
