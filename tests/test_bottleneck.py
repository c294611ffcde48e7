"""Faster hardware is never slower with NCCL's choice held; what limits; what would be faster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpisim.cli import main
from mpisim.experiment import NetworkChoice
from mpisim.prediction.network import nccl_model
from mpisim.program import Operation
from mpisim.topo import find_cluster
from mpisim.topo.nccl import Factors, Nccl, Settings, Shape, System
from mpisim.topo.nccl.bottleneck import BOTTLENECKS, bottleneck_of
from mpisim.topo.nccl.model import COLLECTIVES
from mpisim.topo.nccl.point_to_point import SEND_OPERATIONS
from mpisim.topo.nccl.system import INTRA

MiB, GiB = 1 << 20, 1 << 30
ALL_REDUCE, ALL_GATHER = Operation.ALL_REDUCE, Operation.ALL_GATHER
H100 = System("hopper", 8, "nvswitch", 370.8e9, 54e9, 22e9, nics=8, nic_bandwidth=50e9)
EVERY = st.sampled_from(sorted(COLLECTIVES | SEND_OPERATIONS))

SYSTEMS = st.builds(
    System,
    st.sampled_from(["volta", "ampere", "hopper", "blackwell", "cdna"]),
    st.integers(1, 12),
    st.sampled_from(INTRA),
    link_bandwidth=st.floats(20e9, 900e9),
    pcie_bandwidth=st.floats(8e9, 120e9),
    socket_bandwidth=st.floats(5e9, 120e9),
    nics=st.integers(1, 12),
    nic_bandwidth=st.floats(1e9, 200e9),
    nic_latency=st.floats(0, 20e-6),
    nic_path=st.sampled_from(["pix", "phb", "sys"]),
    cpu=st.sampled_from(["intel", "amd", "grace"]),
    gpudirect=st.booleans(),
)
FACTORS = st.builds(
    Factors, *(st.floats(0.3, 1.5) for _ in range(2)), *(st.floats(0.3, 9) for _ in range(3))
)
SETTINGS = st.sampled_from(
    [
        {},
        {"NCCL_ALGO": "ring"},
        {"NCCL_ALGO": "tree"},
        {"NCCL_PROTO": "ll128"},
        {"NCCL_P2P_NET_CHUNKSIZE": "16384"},
        {"NCCL_P2P_NET_CHUNKSIZE": "1048576"},
    ]
)


def shape_of(system: System, nodes: int, part: float) -> Shape:
    return Shape.regular(nodes, max(1, round(part * system.gpus_per_node)), system)


@settings(deadline=None)
@given(
    SYSTEMS,
    FACTORS,
    SETTINGS,
    EVERY,
    st.integers(1, 20),
    st.floats(0, 1),
    st.integers(0, 34),
    st.sampled_from(
        ["link_bandwidth", "pcie_bandwidth", "nic_bandwidth", "socket_bandwidth", "nic_latency"]
    ),
    st.floats(1.001, 8),
)
def test_faster_hardware_is_never_slower(
    system: System,
    factors: Factors,
    variables: dict[str, str],
    operation: Operation,
    nodes: int,
    part: float,
    log: int,
    number: str,
    times: float,
) -> None:
    """Of every enabled pair of algorithm and protocol, with the channels of NCCL's search."""
    shape, size = shape_of(system, nodes, part), 1 << log
    if number == "nic_latency":
        times = 1 / times
    faster = replace(system, **{number: times * getattr(system, number)})
    chosen = Settings.of(variables)
    before = Nccl(system, chosen, factors).candidates(operation, size, shape)
    after = Nccl(system, chosen, factors, faster).candidates(operation, size, shape)
    for old, new in zip(before, after, strict=True):
        assert (old.algorithm, old.protocol, old.channels) == (
            new.algorithm,
            new.protocol,
            new.channels,
        )
        assert new.seconds(size) <= old.seconds(size) * (1 + 1e-12)


@settings(deadline=None)
@given(
    SYSTEMS,
    FACTORS,
    EVERY,
    st.integers(1, 20),
    st.floats(0, 1),
    st.integers(0, 34),
    st.floats(1, 3),
)
def test_larger_takes_longer_with_the_choice_held(
    system: System,
    factors: Factors,
    operation: Operation,
    nodes: int,
    part: float,
    log: int,
    times: float,
) -> None:
    shape, model = shape_of(system, nodes, part), Nccl(system, None, factors)
    small, large = 1 << log, int((1 << log) * times)
    before = {(c.algorithm, c.protocol): c for c in model.candidates(operation, small, shape)}
    for each in model.candidates(operation, large, shape):
        other = before.get((each.algorithm, each.protocol))
        sends = each.algorithm == "send"
        if other is not None and not (sends and each.channels != other.channels):
            assert each.seconds(large) >= other.seconds(small) * (1 - 1e-12)


@settings(deadline=None)
@given(SYSTEMS, EVERY, st.integers(1, 20), st.floats(0, 1), st.integers(0, 34), st.floats(1, 3))
def test_longer_latencies_take_longer(
    system: System, operation: Operation, nodes: int, part: float, log: int, times: float
) -> None:
    shape, size = shape_of(system, nodes, part), 1 << log
    for name in ("latency_inside", "latency_across", "latency_bulk"):
        old = Nccl(system, None, Factors(latency_bulk=1)).candidates(operation, size, shape)
        factors = replace(Factors(latency_bulk=1), **{name: times})
        new = Nccl(system, None, factors).candidates(operation, size, shape)
        for fast, slow in zip(old, new, strict=True):
            assert slow.seconds(size) >= fast.seconds(size) * (1 - 1e-12)


@pytest.mark.parametrize("nodes", [2, 4, 16, 64])
def test_nics_of_twice_the_speed(nodes: int) -> None:
    """NCCL's search asks for what a GPU's own links carry: it has as many channels as before."""
    found = find_cluster("dgx-h100")
    model, _ = nccl_model(found, NetworkChoice())
    fast = replace(model.system, nic_bandwidth=100e9, pcie_bandwidth=108e9)
    faster = Nccl(fast, model.settings, model.factors)
    shape = Shape.regular(nodes, 8, model.system)
    sizes = 2.0 ** np.arange(10, 35, 0.5)
    for operation in (ALL_REDUCE, ALL_GATHER, Operation.ALL_TO_ALL):
        before, after = (each.seconds_of(operation, sizes, shape) for each in (model, faster))
        assert (after <= before * (1 + 1e-9)).all()


class TestLimits:
    def test_small_messages(self) -> None:
        shape = Shape.regular(4, 8, H100)
        assert bottleneck_of(Nccl(H100), ALL_REDUCE, 1024, shape) == "latency"

    def test_ports_inside_a_node(self) -> None:
        shape = Shape.regular(1, 8, H100)
        assert bottleneck_of(Nccl(H100), ALL_GATHER, 4 * GiB, shape) == "GPU port (NVLink)"

    def test_nics_and_then_pcie(self) -> None:
        shape = Shape.regular(2, 1, H100)
        assert bottleneck_of(Nccl(H100), ALL_REDUCE, 4 * GiB, shape) == "NIC"
        for rate in (100e9, 200e9):
            model = Nccl(replace(H100, nic_bandwidth=rate))
            assert bottleneck_of(model, ALL_REDUCE, 4 * GiB, shape) == "PCIe"

    def test_sockets(self) -> None:
        far = replace(H100, nic_path="sys")
        assert (
            bottleneck_of(Nccl(far), ALL_REDUCE, 4 * GiB, Shape.regular(2, 1, far)) == "CPU sockets"
        )

    def test_two_as_fast_as_each_other(self) -> None:
        even = System("ada", 4, "pcie", pcie_bandwidth=20e9, socket_bandwidth=20e9)
        found = bottleneck_of(Nccl(even), ALL_GATHER, 4 * GiB, Shape.regular(1, 4, even))
        assert found in ("PCIe", "CPU sockets")

    def test_protocol(self) -> None:
        model = Nccl(H100, Settings.of({"NCCL_ALGO": "ring", "NCCL_PROTO": "LL"}))
        assert bottleneck_of(model, ALL_REDUCE, GiB, Shape.regular(1, 8, H100)) == "protocol"

    @settings(deadline=None, max_examples=50)
    @given(SYSTEMS, EVERY, st.integers(1, 9), st.floats(0, 1), st.integers(0, 34))
    def test_there_is_always_one(
        self, system: System, operation: Operation, nodes: int, part: float, log: int
    ) -> None:
        shape = shape_of(system, nodes, part)
        if shape.ranks > 1:
            assert bottleneck_of(Nccl(system), operation, 1 << log, shape) in BOTTLENECKS


class TestBetter:
    def test_wide_all_gather(self) -> None:
        """Multicast of 32 GPUs pays every chunk; NCCL's tuner does not count filling."""
        model, _ = nccl_model(find_cluster("gb200-nvl72"), NetworkChoice())
        shape = Shape.regular(1, 32, model.system)
        chosen = model.choose(ALL_GATHER, 64 * MiB, shape)
        better = model.better(ALL_GATHER, 64 * MiB, shape)
        assert better is not None
        assert better.seconds(64 * MiB) < chosen.seconds(64 * MiB) / 1.05
        asked = Nccl(model.system, Settings.of(better.settings), model.factors)
        assert asked.choose(ALL_GATHER, 64 * MiB, shape) == better

    def test_none(self) -> None:
        assert Nccl(H100).better(Operation.ALL_TO_ALL, MiB, Shape.regular(2, 8, H100)) is None
        alone = Nccl(H100, Settings.of({"NCCL_ALGO": "ring", "NCCL_PROTO": "simple"}))
        assert alone.better(ALL_REDUCE, 1024, Shape.regular(2, 8, H100)) is None

    @settings(deadline=None, max_examples=50)
    @given(SYSTEMS, st.sampled_from(sorted(COLLECTIVES)), st.integers(1, 9), st.integers(0, 34))
    def test_settings_get_it(
        self, system: System, operation: Operation, nodes: int, log: int
    ) -> None:
        shape, model = shape_of(system, nodes, 1), Nccl(system)
        if shape.ranks == 1:
            return
        better = model.better(operation, 1 << log, shape)
        if better is not None:
            asked = Nccl(system, Settings.of(better.settings))
            assert asked.choose(operation, 1 << log, shape) == better


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "comm.json"
    assert (
        main(
            [
                "comm",
                "all_gather",
                "--cluster",
                "gb200-nvl72",
                "--gpus-per-node",
                "32",
                "--size",
                "64M:4G:64",
                "--json",
                str(target),
            ]
        )
        == 0
    )
    out = " ".join(capsys.readouterr().out.split())
    assert "67108864 B: NCCL's tuner takes nvls simple. By this model ring ll128" in out
    assert "(NCCL_ALGO=Ring NCCL_PROTO=LL128)" in out
    first, last = json.loads(target.read_text())["rows"]
    assert first["better"]["settings"] == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"}
    assert first["limit"] == last["limit"] == "GPU port (NVLink)"
    assert last["better"] is None


def test_amd_has_words_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--cluster", "mi300x-8gpu", "--nodes", "2", "--size", "1M:32M:32"]
    assert main(["comm", "all_reduce", *asked]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "GPU port (xGMI)" in out
    assert "bounds the time with RCCL's choice held." in out
    assert "1048576 B: RCCL's tuner takes tree ll." in out
    assert "NVLink" not in out
    assert " NCCL's" not in out


@pytest.mark.parametrize("gigabytes", [1, 4])
def test_one_nvlink_one_speed(gigabytes: int) -> None:
    """DGX B200 and B300, GB200 and GB300 have the same links: eight of them agree."""
    times = []
    for name in ("dgx-b200", "dgx-b300", "gb200-nvl72", "gb300-nvl72"):
        model, _ = nccl_model(find_cluster(name), NetworkChoice())
        times.append(model.seconds(ALL_REDUCE, gigabytes * GiB, Shape.regular(1, 8, model.system)))
    assert max(times) / min(times) < 1.03
