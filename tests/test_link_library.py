"""GPUs that are joined to a fabric themselves: closed forms, bounds, and whole experiments."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fabrics import LINK, direct, gb
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fold import check

from mpisim.base.errors import InputError
from mpisim.experiment import NetworkChoice, load
from mpisim.prediction.network import network_of
from mpisim.prediction.prepared import prepare
from mpisim.program import Operation
from mpisim.topo import class_of, find_cluster
from mpisim.topo.bounds import cut_bound
from mpisim.topo.nccl_network import NcclNetwork

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.two_processes

SIZE = 1 << 32
OPERATIONS = [o for o in Operation if o not in (Operation.NONE, Operation.UNKNOWN)]
MOVING = [o for o in OPERATIONS if o is not Operation.BARRIER]


def network(
    nodes: int, gpus: int = 1, choice: dict[str, Any] | None = None, **fabric: Any
) -> NcclNetwork:
    found = network_of(direct(gpus, **fabric), nodes, NetworkChoice(**(choice or {})))
    assert isinstance(found, NcclNetwork)
    return found


def seconds(
    net: NcclNetwork, operation: Operation, size: int = SIZE, members: list[int] | None = None
) -> float:
    ranks = list(range(net.topology.n_gpus)) if members is None else members
    return net.price(operation, size, class_of(net, ranks, operation)).duration / 1e12


@pytest.mark.parametrize("speed", [60.0, 6.0, 0.6])
def test_an_all_reduce_on_a_wafer_takes_what_its_corners_take(speed: float) -> None:
    """A corner has two links in.

    In the reduce-scatter, as in the all-gather, 83 of 84 shares of
    the buffer have to come through them: S × 83 / 84 / 2 each, twice. Parts that begin with either
    dimension keep both links busy all the time; x of the data begins along 12, where
    11/12 (x + (1 - x) / 7) = 6/7 (1 - x + x / 12)."""
    net = network(84, injection=4 * speed, kind="wafer", dims=(12, 7), link_bandwidth=gb(speed))
    bound = SIZE * 83 / 84 / (speed * 1e9)
    assert bound < seconds(net, Operation.ALL_REDUCE) < 1.002 * bound
    group = class_of(net, range(84))
    assert net.price(Operation.ALL_REDUCE, SIZE, group).pattern.algorithm == "dimensions"  # type: ignore[attr-defined]


def test_a_ring_goes_round_a_torus_both_ways() -> None:
    """Every hop is to a neighbour; each direction carries 2 (n - 1) / n of a half of the data."""
    net = network(16, choice={"algorithm": "ring"}, kind="torus", dims=(4, 4))
    bound = SIZE * 15 / 16 / LINK
    assert bound < seconds(net, Operation.ALL_REDUCE) < 1.001 * bound
    by_ranks = network(
        16, choice={"algorithm": "ring", "ring_order": "ranks"}, kind="torus", dims=(4, 4)
    )
    # 3 -> 4 and so on pass (0, 3) -> (0, 0) -> (1, 0), the rows' own way round: that is all there
    # is in a row; along the columns each link has one hop in four.
    assert seconds(by_ranks, Operation.ALL_REDUCE) >= seconds(net, Operation.ALL_REDUCE)


@pytest.mark.parametrize(
    ("kind", "dims", "cables"),
    [
        ("torus", (4, 4), 2 * 4),
        ("torus", (8, 4, 2), 2 * 8),
        ("mesh", (4, 4), 4),
        ("mesh", (8, 2, 3), 6),
        ("torus", (6, 4), 2 * 4),
    ],
)
def test_an_all_to_all_takes_what_the_bisection_takes(
    kind: str, dims: tuple[int, ...], cables: int
) -> None:
    """n/2 × n/2 pairs send S / n each over the middle of the longest dimension.

    On a torus both
    ways round carry the same if half of a ring is even. If it is odd, the pairs farthest apart,
    from even places up and from odd ones down, load neighbouring links by one more and one less:
    of a ring of 6 a link up carries 1 + 2 pairs and 1 or 2 of the farthest, 4.5 on average."""
    n = prod(dims)
    net = network(n, kind=kind, dims=dims)
    bound = SIZE * n / 4 / (cables * LINK)
    uneven = 5 / 4.5 if dims[0] == 6 else 1
    assert bound * uneven * 0.999999 < seconds(net, Operation.ALL_TO_ALL) < 1.001 * bound * uneven


GRIDS = st.one_of(
    st.builds(
        lambda kind, dims: {"kind": kind, "dims": tuple(dims)},
        st.sampled_from(["torus", "mesh"]),
        st.lists(st.integers(1, 4), min_size=2, max_size=3),
    ),
    st.just({"kind": "wafer", "dims": (3, 2), "edge_bandwidth": gb(2)}),
    st.just({"kind": "dragonfly", "router_ports": 2, "routers": 2, "global_links": 1}),
    st.just({"kind": "fat-tree", "leaf": 4, "oversubscription": 2.0}),
    st.just({"kind": "switch"}),
)


@st.composite
def asked(draw: st.DrawFn) -> tuple[dict[str, Any], int, int, Operation, list[int]]:
    """Return a fabric, its nodes, GPUs of each, an operation and a group."""
    fabric = draw(GRIDS)
    nodes = {"wafer": 12, "dragonfly": 12}.get(fabric["kind"], prod(fabric.get("dims", (3, 4))))
    gpus = draw(st.integers(1, 2))
    if fabric["kind"] == "dragonfly":
        gpus = 1
    total = nodes * gpus
    operation = draw(st.sampled_from(MOVING))
    if total < 2:
        nodes, total, gpus = nodes, 2 * nodes, 2
    most = 2 if operation is Operation.SEND_RECV else total
    group = draw(st.lists(st.integers(0, total - 1), min_size=2, max_size=most, unique=True))
    if draw(st.booleans()) and operation is not Operation.SEND_RECV:
        group = list(range(total))
    return fabric, nodes, gpus, operation, group


@given(
    case=asked(),
    size=st.integers(1, 1 << 34),
    seed=st.integers(0, 99),
    choice=st.sampled_from([{}, {"algorithm": "ring"}, {"ring_order": "ranks"}]),
)
@settings(deadline=None, max_examples=120)
def test_no_communication_beats_a_cut(
    case: tuple[dict[str, Any], int, int, Operation, list[int]],
    size: int,
    seed: int,
    choice: dict[str, Any],
) -> None:
    """For any members S: what must leave S over the largest flow out of it (`bounds.crossing`)."""
    fabric, nodes, gpus, operation, group = case
    net = network(nodes, gpus, choice, **fabric)
    rng = np.random.default_rng(seed)
    sides = [rng.permutation(group)[: rng.integers(1, len(group))].tolist() for _ in range(4)]
    sides += [[group[0]], group[:-1], [group[-1]], group[1:]]
    bound = cut_bound(net.topology, operation, size, group, sides).seconds
    assert seconds(net, operation, size, group) >= bound * (1 - 1e-9)


@given(
    case=asked(),
    size=st.integers(0, 1 << 32),
    link=st.integers(0, 1 << 20),
    factor=st.sampled_from(["50 %", "99 %", "3 x"]),
    key=st.sampled_from(["bandwidth", "latency"]),
)
@settings(deadline=None, max_examples=80)
def test_more_never_slows_and_less_never_speeds(
    case: tuple[dict[str, Any], int, int, Operation, list[int]],
    size: int,
    link: int,
    factor: str,
    key: str,
) -> None:
    fabric, nodes, gpus, operation, group = case
    plain = network(nodes, gpus, **fabric)
    names = plain.topology.link_names
    name = f"links.{names[link % len(names)]}.{key}"
    other = network(nodes, gpus, {"changes": {name: factor}}, **fabric)
    before, after = (seconds(net, operation, size, group) for net in (plain, other))
    better = (factor == "3 x") == (key == "bandwidth")
    assert after <= before if better else after >= before


@given(case=asked(), sizes=st.lists(st.integers(0, 1 << 34), min_size=2, max_size=2))
@settings(deadline=None, max_examples=60)
def test_more_bytes_take_no_less(
    case: tuple[dict[str, Any], int, int, Operation, list[int]], sizes: list[int]
) -> None:
    fabric, nodes, gpus, operation, group = case
    net = network(nodes, gpus, **fabric)
    one, other = (seconds(net, operation, size, group) for size in sorted(sizes))
    assert 0 < one <= other


def test_the_fastest_algorithm_is_taken() -> None:
    fabric = {"kind": "torus", "dims": (4, 4)}
    net = network(16, **fabric)
    for operation in (Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.BROADCAST):
        for size in (1, 1 << 14, 1 << 20, 1 << 30):
            found = seconds(net, operation, size)
            for choice in (
                {"algorithm": "ring"},
                {"algorithm": "dimensions"},
                {"ring_order": "ranks"},
                {"ring_order": "fabric"},
            ):
                assert found <= seconds(network(16, choice=choice, **fabric), operation, size)


def test_a_group_that_fills_no_block_goes_in_rings() -> None:
    net = network(16, choice={"algorithm": "dimensions"}, kind="torus", dims=(4, 4))
    for group, expected in (([0, 1, 4, 5], {"dimensions"}), ([0, 1, 4], {"tour", "two-way-ring"})):
        price = net.price(Operation.ALL_REDUCE, SIZE, class_of(net, group, Operation.ALL_REDUCE))
        assert price.pattern.algorithm in expected  # type: ignore[attr-defined]


def test_a_lone_gpu_costs_nothing_and_a_barrier_no_bytes() -> None:
    net = network(16, kind="torus", dims=(4, 4))
    assert net.price(Operation.ALL_REDUCE, SIZE, class_of(net, (3,))).duration == 0
    barrier = net.price(Operation.BARRIER, 0, class_of(net, range(16)))
    assert (barrier.volume, barrier.pattern) == (0, None)
    assert barrier.duration > 6.6e6  # the launch of a kernel


def test_dimensions_on_a_torus_of_nodes_with_cards() -> None:
    """Rings among the nodes of a torus in order of ranks meet on its links; dimensions do not."""
    from fabrics import cluster

    torus = cluster(2, kind="torus", dims=(4, 4), link_bandwidth=gb(1))
    times = []
    for choice in ({}, {"ring_order": "fabric"}, {"algorithm": "dimensions"}):
        net = network_of(torus, 16, NetworkChoice(**choice))
        assert isinstance(net, NcclNetwork)
        times.append(seconds(net, Operation.ALL_REDUCE))
    ranks, fabric, dimensions = times
    assert dimensions < fabric <= ranks
    # Both GPUs of a node sum up first; then 15/16 of the buffer twice over 4 links of a node.
    assert dimensions == pytest.approx(SIZE * 2 * 15 / 16 / 4e9, rel=0.01)


@pytest.mark.parametrize(
    ("fabric", "choice", "message"),
    [
        ({"kind": "switch"}, {"algorithm": "dimensions"}, "needs a fabric with dimensions: torus"),
        ({"kind": "switch"}, {"ring_order": "fabric"}, "on this network is the order of ranks"),
        ({"kind": "torus", "dims": (2, 2)}, {"nccl": {"NCCL_ALGO": "ring"}}, "network.nccl is giv"),
        ({"kind": "torus", "dims": (2, 2)}, {"calibration": "a.toml"}, "network.calibration is gi"),
    ],
)
def test_keys_without_a_meaning_are_refused(
    fabric: dict[str, Any], choice: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        network(4, choice=choice, **fabric)


def test_keys_that_exclude_each_other() -> None:
    with pytest.raises(InputError, match="NCCL_ALGO is given; give one"):
        NetworkChoice(algorithm="ring", nccl={"NCCL_ALGO": "tree"})
    for choice in ({"algorithm": "ring"}, {"ring_order": "ranks"}):
        with pytest.raises(InputError, match="model = 'alpha-beta' has no use for it"):
            NetworkChoice(model="alpha-beta", **choice)  # type: ignore[arg-type]


# --- whole experiments --------------------------------------------------------------------------

WAFER = """
title = "A small wafer"
gpu = "h100-sxm"
gpus_per_node = 1

[node]
kind = "direct"
link_bandwidth = {{ value = 100, unit = "GB/s", error = 0.1, source = "a test" }}

[fabric]
kind = "{kind}"
dims = [4, 4]
link_bandwidth = {{ value = 25, unit = "GB/s", error = 0.1, source = "a test" }}
"""

GRAPH = """
title = "Two GPUs that bypass a switch"
nodes = [
    { name = "a", kind = "gpu" }, { name = "b", kind = "gpu" }, { name = "box", kind = "switch" },
]

[[links]]
ends = ["a", "b"]
bandwidth = "25 GB/s"
latency = "1 us"
one_way = true

[[links]]
ends = ["a", "box"]
bandwidth = "100 Gb/s"

[[links]]
ends = ["b", "box"]
bandwidth = "100 Gb/s"
"""

EXPERIMENT = """
[model]
family = "gpt"
layers = 4
hidden = 512
heads = 8
seq_len = 256
vocab = 8192

[plan]
{plan}
micro_batch = 1
global_batch = {batch}

[cluster]
preset = "{folder}/cluster.toml"
nodes = {nodes}
"""

PLANS = {
    "tp = 4\ndp = 4\nzero = 1": 16,
    "tp = 2\npp = 2\ndp = 4": 16,
    "tp = 2\ncp = 2\ndp = 4\nzero = 3": 16,
}


def written(folder: Path, cluster: str, plan: str, nodes: int = 16, batch: int = 16) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cluster.toml").write_text(cluster)
    (folder / "net.toml").write_text(GRAPH)
    path = folder / "mine.toml"
    path.write_text(EXPERIMENT.format(plan=plan, nodes=nodes, batch=batch, folder=folder))
    return path


@pytest.mark.mpi
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", ["wafer", "torus"])
def test_folded_is_unfolded(
    tmp_path_factory: pytest.TempPathFactory, comm: Intracomm, kind: str, plan: str
) -> None:
    folder = tmp_path_factory.mktemp("direct")
    case = prepare(load(written(folder, WAFER.format(kind=kind), plan))[1])
    check(case.program, comm, case.network)  # type: ignore[arg-type]


def test_a_step_on_a_wafer(tmp_path: Path, run_mpisim: Callable[..., Any]) -> None:
    """The same on one process and on two; what it rests on is said."""
    path = written(tmp_path, WAFER.format(kind="wafer"), "tp = 4\ndp = 4")
    said = []
    for processes in (1, 2):
        found = run_mpisim(["run", "--details", str(path)], processes)
        assert found.rc == 0, found.stderr
        said.append(found.stdout)
    digests = {line for out in said for line in out.splitlines() if line.startswith("digest")}
    assert len(digests) == 1
    assert "no library was measured on GPUs that are joined without NICs" in " ".join(
        said[0].split()
    )
    table = run_mpisim(
        [
            "comm",
            "all_reduce",
            "--cluster",
            str(tmp_path / "cluster.toml"),
            "--size",
            "1M:1G:32",
            "--nodes",
            "16",
            "--why",
        ]
    )
    assert table.rc == 0, table.stderr
    assert "dimensions" in table.stdout


def test_a_graph_without_nics_needs_no_node(
    tmp_path: Path, call_mpisim: Callable[..., Any]
) -> None:
    """From a to b the link between them is the way, from b to a the switch: 12.5 GB/s."""
    text = 'title = "Two"\ngpu = "h100-sxm"\ngpus_per_node = 2\ngraph = "net.toml"\n'
    path = written(tmp_path, text, "tp = 2\ndp = 1", nodes=1, batch=2)
    found = call_mpisim(["run", str(path)])
    assert found.rc == 0, found.stderr
    net = network_of(find_cluster(tmp_path / "cluster.toml"), 1)
    assert isinstance(net, NcclNetwork)
    for pair, speed in (([0, 1], 25e9), ([1, 0], 12.5e9)):
        took = seconds(net, Operation.SEND_RECV, SIZE, pair)
        assert took == pytest.approx(SIZE / speed, rel=1e-3)


def test_a_cluster_needs_a_node_or_a_graph(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('title = "None"\ngpu = "h100-sxm"\ngpus_per_node = 2\n')
    with pytest.raises(InputError, match=r"\[node\] is missing; only a cluster with a 'graph'"):
        find_cluster(path)


def test_a_group_may_begin_on_a_later_node_than_it_ends() -> None:
    """Trees repeat leaf by leaf; what stands before a group's first member counts as it is."""
    fabric = {"kind": "fat-tree", "leaf": 4, "oversubscription": 2.0}
    plain = network(12, **fabric)
    same = network(12, choice={"changes": {"links.*.bandwidth": "1 x"}}, **fabric)
    for group in ([4, 0, 1], [5, 1, 2, 9], [11, 10, 0]):
        for size in (0, 1 << 10, SIZE):
            found = seconds(plain, Operation.ALL_REDUCE, size, group)
            assert found == seconds(same, Operation.ALL_REDUCE, size, group)
