"""Flow lists: against closed forms, and against what the same communications put on links."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path

import fabrics
import numpy as np
import pytest

from mpisim.base.errors import InputError
from mpisim.cli import main
from mpisim.experiment import NetworkChoice
from mpisim.prediction.network import network_of
from mpisim.program import Operation
from mpisim.topo import find_cluster
from mpisim.topo.flows import FlowList, flow_list
from mpisim.topo.nccl_network import NcclNetwork
from mpisim.topo.network import WEIGHT_ONE, bus_factor
from mpisim.topo.topology import LinkKind
from mpisim.topo.traffic.steps import Part, collective_steps
from mpisim.topo.traffic.transfers import ALGORITHMS, transfers

SIZE = 3 << 22


def network(name: str, nodes: int, **variables: str) -> NcclNetwork:
    found = network_of(find_cluster(name), nodes, NetworkChoice(nccl=variables))
    assert isinstance(found, NcclNetwork)
    return found


def sent(found: FlowList, ranks: int) -> np.ndarray:
    """Bytes that each rank sends for itself: of relayed transfers the first leg."""
    total = np.zeros(ranks)
    for flow in found.flows:
        if flow.sender.isdigit() and flow.sender == flow.origin:
            total[int(flow.sender)] += flow.bytes * flow.repeats
    return total


def legs(found: FlowList) -> list[tuple[str, str]]:
    return [(flow.sender, flow.receiver) for flow in found.flows if flow.channel == 0]


@pytest.mark.parametrize("level", ["1", "2"])
def test_pxn_relays_a_send_as_simai_describes(level: str) -> None:
    found = flow_list(
        network("dgx-h100", 2, NCCL_P2P_PXN_LEVEL=level), Operation.SEND_RECV, SIZE, [1, 8]
    )
    assert legs(found) == [("1", "0"), ("0", "8")]
    assert {(flow.origin, flow.destination) for flow in found.flows} == {("1", "8")}
    assert sum(flow.bytes for flow in found.flows if flow.sender == "1") == SIZE


@pytest.mark.parametrize("off", [{"NCCL_PXN_DISABLE": "1"}, {"NCCL_P2P_PXN_LEVEL": "0"}])
def test_without_pxn_a_gpu_uses_its_own_nic(off: dict[str, str]) -> None:
    found = flow_list(network("dgx-h100", 2, **off), Operation.SEND_RECV, SIZE, [1, 8])
    assert legs(found) == [("1", "8")]
    names = [found.topology.link_name(link) for link in found.flows[0].links]
    assert any("node0.nic1" in name for name in names)


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize(
    "operation", [Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER]
)
def test_each_rank_of_a_ring_sends_the_closed_form(operation: Operation, nodes: int) -> None:
    n = 8 * nodes
    found = flow_list(network("dgx-h100", nodes, NCCL_ALGO="ring"), operation, SIZE, range(n))
    assert sent(found, n) == pytest.approx(np.full(n, SIZE * bus_factor(operation, n)))
    steps = (2 if operation is Operation.ALL_REDUCE else 1) * (n - 1)
    assert {flow.repeats for flow in found.flows} == {steps}


def test_an_all_to_all_sends_all_but_its_own_part() -> None:
    found = flow_list(network("dgx-h100", 2), Operation.ALL_TO_ALL, SIZE, range(16))
    assert sent(found, 16) == pytest.approx(np.full(16, SIZE * 15 / 16))


def test_in_the_switch_a_gpu_sends_its_buffer_and_its_share_of_the_sum() -> None:
    found = flow_list(
        network("dgx-h100", 1, NCCL_ALGO="nvls"), Operation.ALL_REDUCE, SIZE, range(8)
    )
    assert sent(found, 8) == pytest.approx(np.full(8, SIZE * (1 + 1 / 8)))
    assert {flow.step for flow in found.flows} == {0, 1, 2, 3}
    ups = [flow for flow in found.flows if flow.receiver == "node0.nvswitch"]
    assert 2 * len(ups) == len(found.flows)


def test_variables_of_nccl_change_flows() -> None:
    def of(**variables: str) -> FlowList:
        found = network("dgx-h100", 2, **variables)
        return flow_list(found, Operation.ALL_REDUCE, SIZE, range(16))

    ring, tree = of(NCCL_ALGO="ring"), of(NCCL_ALGO="tree")
    assert (ring.choice.algorithm, tree.choice.algorithm) == ("ring", "tree")
    assert set(ring.flows) != set(tree.flows)
    # Up and down each edge of a tree, for every tree.
    assert {flow.repeats for flow in tree.flows} == {1}
    few, many = (
        of(NCCL_ALGO="ring", NCCL_MIN_NCHANNELS=n, NCCL_MAX_NCHANNELS=n) for n in ("8", "32")
    )
    channels = [len({flow.channel for flow in each.flows}) for each in (few, many)]
    assert channels == [8, 32]
    assert few.link_bytes() == pytest.approx(many.link_bytes())


GROUPS = {
    "all": (range(24), range(0, 24, 8), [1, 9, 3, 17, 12], [0, 1]),
    "one node": (range(4),),
}


@pytest.mark.parametrize(
    ("name", "nodes", "groups"),
    [
        ("dgx-h100", 3, "all"),
        ("mi300x-8gpu", 3, "all"),
        ("dgx-v100", 3, "all"),
        ("gb200-nvl72", 1, "all"),
        ("a100-4gpu", 1, "one node"),
    ],
)
def test_links_carry_what_the_network_loads_them_with(name: str, nodes: int, groups: str) -> None:
    found = network(name, nodes)
    check_loads(found, GROUPS[groups])


def test_loads_of_grids_and_spread_paths() -> None:
    for fabric in (
        {"kind": "torus", "dims": (4, 3)},
        {"kind": "wafer", "dims": (4, 3)},
    ):
        direct = network_of(fabrics.direct(**fabric), 12)
        assert isinstance(direct, NcclNetwork)
        check_loads(direct, (range(12), range(5), range(0, 12, 3)))
    spread = fabrics.cluster(kind="fat-tree", leaf=2, oversubscription=2, spines=2, ecmp="adaptive")
    several = network_of(spread, 4)
    assert isinstance(several, NcclNetwork)
    check_loads(several, (range(8),))


def check_loads(network: NcclNetwork, groups: tuple[object, ...]) -> None:
    """Bytes of all flows on each link = weights of `link_loads`, for all choices of a library."""
    every = np.ones(network.topology.n_links, bool)
    for group in groups:
        members = np.array(group, np.int64)
        for operation in (
            Operation.ALL_REDUCE,
            Operation.ALL_GATHER,
            Operation.BROADCAST,
            Operation.ALL_TO_ALL,
            Operation.GATHER,
        ):
            choice, _ = network.steps(operation, SIZE, members.tolist())
            found = flow_list(network, operation, SIZE, members.tolist())
            base = members[:1] // network.library.system.gpus_per_node
            base = base * network.library.system.gpus_per_node
            pattern = network.price(operation, SIZE, network.placement(members.tolist())).pattern
            traffic = network._links._traffic
            _, link, weight = traffic.weights(
                pattern, members - base, base, every, network.topology.paths
            )
            expected = np.zeros(len(every))
            expected[link] = weight * (SIZE / WEIGHT_ONE)
            slack = SIZE / WEIGHT_ONE  # weights are rounded up to their unit
            assert np.abs(found.link_bytes() - expected).max() <= slack, (operation, choice)
            # The engine gets those of the fabric as they are.
            _, links, loads = network.loads(np.array([0, len(members)]), members, pattern)
            fabric = network.topology.kind[links] == LinkKind.FABRIC
            assert loads[fabric] * (SIZE / WEIGHT_ONE) == pytest.approx(
                found.link_bytes()[links[fabric]], abs=slack
            )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("meshed", [False, True])
@pytest.mark.parametrize(
    "members", [(0, 1), (3, 1, 2), tuple(range(8)), (0, 4, 8, 12, 16), (0, 1, 2, 5, 6, 7, 9, 10)]
)
def test_steps_add_up_to_transfers(algorithm: str, meshed: bool, members: tuple[int, ...]) -> None:
    for operation in Operation:
        if operation in (Operation.NONE, Operation.UNKNOWN):
            continue
        whole = transfers(operation, algorithm, members, 4, meshed=meshed)
        steps = collective_steps(operation, algorithm, members, 4, meshed=meshed)
        for part in (Part.UP, Part.DOWN):
            sums: dict[tuple[int, int], float] = defaultdict(float)
            for a, b, amount in zip(whole.source, whole.target, whole.bytes, strict=True):
                sums[a, b] -= amount
            taken = (steps.part == Part.WHOLE) | (steps.part == part)
            for a, b, amount in zip(
                steps.source[taken],
                steps.target[taken],
                (steps.bytes * steps.count)[taken],
                strict=True,
            ):
                sums[a, b] += amount
            assert max(map(abs, sums.values()), default=0.0) < 1e-12, operation


@pytest.mark.parametrize("algorithm", ["ring", "tree", "nvls-tree", "two-way-ring"])
def test_the_sum_reaches_everyone_in_the_order_of_steps(algorithm: str) -> None:
    """Run the steps of an all-reduce with sets of ranks for sums: at the end all have all."""
    members = [0, 1, 2, 4, 5, 6, 8, 9, 12, 13]
    steps = collective_steps(Operation.ALL_REDUCE, algorithm, members, 4)
    for way in range(steps.ways):
        held = {rank: {rank} for rank in members}
        switch: dict[int, set[int]] = defaultdict(set)
        last = int((steps.first + steps.count).max())
        for step in range(last):
            now = (steps.way == way) & (steps.first <= step)
            now &= step < steps.first + steps.count
            before = {rank: set(values) for rank, values in held.items()}
            inside = {node: set(values) for node, values in switch.items()}
            for a, b, part in zip(steps.source[now], steps.target[now], steps.part[now]):
                if part == Part.UP:
                    switch[a // 4] |= before[a]
                elif part == Part.DOWN:
                    held[b] |= inside[b // 4]
                else:
                    held[b] |= before[a]
        assert all(held[rank] == set(members) for rank in members)


def test_the_command_prints_and_writes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, whole = tmp_path / "flows.csv", tmp_path / "flows.json"
    usual = ["comm", "sendrecv", "--cluster", "dgx-h100", "--nodes", "2", "--size", "1M"]
    usual += ["--ranks", "1,8", "--flows", "--csv", str(table), "--json", str(whole)]
    assert main(usual) == 0
    assert "node0.gpu1->node0.nvswitch" in capsys.readouterr().out
    rows = list(csv.DictReader(table.read_text().splitlines()))
    listed = json.loads(whole.read_text())
    assert [(row["sender"], row["receiver"]) for row in rows[:2]] == [("1", "0"), ("0", "8")]
    assert len(rows) == len(listed["flows"]) == 4
    assert listed["flows"][0]["links"] == rows[0]["links"].split()
    assert main(usual) == 2  # files are there
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--flows", "--size", "1M:4M"], "--flows lists one size"),
        (["--size", "1M", "--csv", "x.csv"], "--csv x.csv"),
        (["--flows", "--size", "1M", "--model", "alpha-beta"], "--model nccl"),
        (["--flows", "--size", "1M", "--why"], "--why"),
    ],
)
def test_what_does_not_go_together(
    more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["comm", "all_reduce", "--cluster", "dgx-h100", *more]) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_kind_has_no_flows() -> None:
    with pytest.raises(InputError, match="UNKNOWN"):
        flow_list(network("dgx-h100", 1), Operation.UNKNOWN, 1, [0, 1])
