"""What a step depends on: closed forms, and the derivative beside the step simulated again."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import changed
from tornados import US, bars, elasticities, reducing, saved

from mpisim import sensitivity, simulate
from mpisim.experiment import load, load_any
from mpisim.experiment.choices import ScaleChoice
from mpisim.kernels import Roofline, find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.operations import Elementwise, Gemm, Kernel
from mpisim.kernels.scaled import GPU_SCALES, rated_gpu, scaled_gpu
from mpisim.prediction.execution import execute
from mpisim.prediction.path_shares import PathShares
from mpisim.prediction.prepared import prepare
from mpisim.prediction.quantities import NAMES, name_of
from mpisim.prediction.sensitivities import _PathParts, path_sensitivities
from mpisim.program import Operation, ProgramBuilder
from mpisim.report.tornado import render_tornado
from mpisim.results.sensitivities import TIMES, first_order
from mpisim.results.tornado import agree
from mpisim.topo import find_cluster
from mpisim.topo.scaled import LINK_SCALES, scaled_cluster

pytestmark = pytest.mark.two_processes

BANDWIDTHS = (
    "hbm_bandwidth",
    "link_bandwidth",
    "nic_bandwidth",
    "switch_bandwidth",
    "pcie_bandwidth",
)

REASONS = re.compile(
    r"critical path moves: |the path stays; (NCCL chooses otherwise|another limit takes over|"
    r"its pieces are not in proportion): "
)


# --- closed forms ---------------------------------------------------------------------------------


def test_a_step_of_one_all_reduce_by_two_latencies_and_bandwidths(tmp_path: Path) -> None:
    size, compute = 1 << 28, 4000 * US
    path = saved(tmp_path, reducing(16, size, compute))
    changes = ["cluster.preset=dgx-h100", "network.model=alpha-beta"]
    _, experiment = load_any(path, changes)
    measured = find_cluster("dgx-h100").alpha_beta
    assert measured is not None
    assert measured.network_bandwidth is not None
    assert measured.network_latency is not None
    flowing = 2 * 15 / 16 * size / measured.network_bandwidth.si * 1e12
    latency = measured.network_latency.si * 1e12
    step = 5 * US + compute + latency + flowing
    found = elasticities(experiment)
    assert found["nic_bandwidth"] == pytest.approx(-flowing / step, rel=1e-6)
    assert found["latency"] == pytest.approx(latency / step, rel=1e-6)
    assert found["speeds"] == pytest.approx(-compute / step, rel=1e-6)
    assert found["launch_time"] == pytest.approx(5 * US / step, rel=1e-6)
    assert found["link_bandwidth"] == 0
    for bar in bars(sensitivity(experiment, factors=(0.5, 1.1, 2.0))).values():
        for effect in bar.effects:
            assert effect.step_ps is not None
            assert effect.first_order == pytest.approx(effect.step_ps / step - 1, abs=1e-9)
            assert effect.agrees
            assert not effect.moved


@pytest.mark.parametrize("ranks", [8, 32])
def test_all_of_a_large_all_reduce_is_bandwidth_or_latency(tmp_path: Path, ranks: int) -> None:
    path = saved(tmp_path, reducing(ranks, 1 << 32))
    _, experiment = load_any(path, ["cluster.preset=dgx-a100"])
    found = elasticities(experiment)
    limit = "link_bandwidth" if ranks == 8 else "nic_bandwidth"
    assert found[limit] < -0.9
    rest = 1 + found["link_bandwidth"] + found.get("nic_bandwidth", 0.0)
    assert rest == pytest.approx(found["latency"] + found["launch_time"], abs=0.01)


def test_memory_bound_kernels_answer_to_the_memory_alone() -> None:
    gpu = find_gpu("h100-sxm")
    kernel = Elementwise(1 << 30)
    plain = Roofline(gpu).estimate(kernel)
    faster = Roofline(gpu).scaled({"hbm_bandwidth": 2}).estimate(kernel)
    assert faster.duration == pytest.approx(plain.duration * (1 - plain.shares["bandwidth"] / 2))
    assert Roofline(gpu).scaled({"matrix_rate": 2}).estimate(kernel) == plain


def test_derivatives_of_a_roofline_are_the_shares_that_its_error_bars_have() -> None:
    _, experiment = load("llama3-8b-8-h100", ["kernels.model=roofline", "overlap.model=off"])
    prepared = prepare(experiment)
    from mpi4py import MPI

    run, _ = execute(prepared, MPI.COMM_SELF, critical_path=True)
    lengths = PathShares(prepared, run).lengths()
    known = path_sensitivities(prepared, run)
    by_key = dict(zip(known.keys, known.elasticity.tolist(), strict=True))
    of_memory = -lengths["bandwidth"] / run.step_time
    assert by_key["scale.hbm_bandwidth"] == pytest.approx(of_memory, rel=1e-5)
    of_units = -lengths["peak_bf16"] / run.step_time
    assert by_key["scale.matrix_rate"] == pytest.approx(of_units, rel=1e-3)


@given(st.sampled_from(list(NAMES)), st.floats(-1, 1), st.floats(0.01, 100))
def test_first_order_is_exact_for_what_is_proportional(
    name: str, share: float, factor: float
) -> None:
    part = factor if name in TIMES else 1 / factor
    sign = 1 if name in TIMES else -1
    assert first_order(name, sign * share, factor) == pytest.approx(share * (part - 1), abs=1e-12)


# --- what is scaled -------------------------------------------------------------------------------

KERNELS: list[Kernel] = [Gemm(m=4096, n=4096, k=4096), Gemm(m=64, n=64, k=64), Elementwise(1 << 28)]


@pytest.mark.parametrize("gpu", ["h100-sxm", "a100-sxm", "v100-sxm2-16gb", "a40", "h20", "mi300x"])
@pytest.mark.parametrize("key", ["hbm_bandwidth", "matrix_rate"])
def test_a_scaled_gpu_keeps_its_constants_and_is_no_slower(gpu: str, key: str) -> None:
    model = Analytical(find_gpu(gpu))
    for factor in (1.01, 2.0):
        faster = model.scaled({key: factor})
        again = Analytical(scaled_gpu(find_gpu(gpu), {key: factor}))
        assert rated_gpu(faster.gpu) == find_gpu(gpu)
        for formula in ("gemm", "memory_bound"):
            dtype = "fp16" if formula == "gemm" else "any"
            assert faster.look_up(formula, dtype) == model.look_up(formula, dtype)
            assert again.look_up(formula, dtype) == model.look_up(formula, dtype)
        for kernel in KERNELS:
            before, after = (each.estimate(_as(kernel, "fp16")) for each in (model, faster))
            assert again.estimate(_as(kernel, "fp16")).duration == after.duration
            assert before.duration / factor <= after.duration * (1 + 1e-9)
            assert after.duration <= before.duration


def _as(kernel: Kernel, dtype: Any) -> Kernel:
    return replace(kernel, dtype=dtype) if isinstance(kernel, Gemm) else kernel


def test_every_key_of_the_table_scales_something() -> None:
    keys = set(ScaleChoice().__dataclass_fields__)
    others = {"communications", "data_loading", "host_memory_bandwidth"}
    assert keys == {*GPU_SCALES, *LINK_SCALES, *others}
    assert keys | {"speeds", "micro_batch"} == set(NAMES)
    gpu, cluster = find_gpu("h100-sxm"), find_cluster("dgx-h100")
    for key in keys:
        changed = scaled_gpu(gpu, {key: 2.0}) != gpu, scaled_cluster(cluster, {key: 2.0}) != cluster
        assert changed == (key in GPU_SCALES, key in LINK_SCALES), key


@pytest.mark.parametrize(
    ("name", "cluster", "called"),
    [
        ("link_bandwidth", "mi300x-8gpu", "xGMI bandwidth"),
        ("link_bandwidth", "dgx-h100", "NVLink bandwidth"),
        ("nic_bandwidth", "mi300x-8gpu", "NIC bandwidth"),
    ],
)
def test_links_are_called_as_the_maker_does(name: str, cluster: str, called: str) -> None:
    assert name_of(name, find_cluster(cluster)) == called


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("key", ["switch_bandwidth", "nic_bandwidth"])
def test_the_links_of_a_dragonfly_plus_are_scaled(key: str, own: bool) -> None:
    """Twice the switches: all links between them; twice the NICs: those as wide as NICs."""
    cluster = find_cluster("juwels-booster")
    assert cluster.fabric is not None
    if not own:
        cluster = replace(cluster, fabric=replace(cluster.fabric, link_bandwidth=None))
    plain, scaled = (
        dict(zip(found.link_names, found.bandwidth, strict=True))
        for found in (c.topology(60) for c in (cluster, scaled_cluster(cluster, {key: 2.0})))
    )
    leaf, far, card = "group0.leaf0->group0.spine", "group0.spine->group1.spine", "node0.nic0->"
    (card,) = [name for name in plain if name.startswith(card + "group")]
    factors = [scaled[name] / plain[name] for name in (leaf, far, card)]
    between = 1 if key == "nic_bandwidth" and own else 2
    assert factors == pytest.approx([2, between, 2 if key == "nic_bandwidth" else 1])


# --- agreement with simulation ----------------------------------------------------------------

LLAMA = str(Path(__file__).parent / "unnamed_framework.toml")
NODES = ("cluster.nodes=4", "plan.dp=32", "plan.global_batch=64")

EXPERIMENTS = {
    "fsdp": (LLAMA,),
    "fsdp, 4 nodes": (LLAMA, *NODES),
    "fsdp, a100": (LLAMA, "cluster.preset=dgx-a100", *NODES),
    "fsdp, roofline": (LLAMA, "kernels.model=roofline"),
    "tensor parallel": (LLAMA, "plan.dp=1", "plan.tp=8", "plan.zero=1"),
    "tensor and data parallel": (LLAMA, *NODES, "plan.dp=8", "plan.tp=4", "plan.zero=1"),
    "pipeline": (LLAMA, *NODES, "plan.dp=4", "plan.tp=2", "plan.pp=4", "plan.zero=1"),
    "alps": (LLAMA, "cluster.preset=alps", *NODES, "cluster.nodes=8"),
    "rack": (LLAMA, "cluster.preset=gb200-nvl72", "cluster.gpus=8"),
    "mi300x": (LLAMA, "cluster.preset=mi300x-8gpu"),
    "coupled": (LLAMA, "overlap.model=coupled"),
    "no overlap": (LLAMA, *NODES, "overlap.model=off"),
    "alpha-beta": (LLAMA, "network.model=alpha-beta", "framework.name=none"),
    "slow GPU": (LLAMA, "variation.speeds.3=0.8"),
    "experts": ("qwen3-30b-a3b-16-h100", "framework.cuda_graphs=true"),
    "experts, launched one by one": ("qwen3-30b-a3b-16-h100",),
    "experts on a100": ("simai-mixtral-8x7b-128-a100",),
    "megatron, folded": ("megatron-18.4b-256-a100", "plan.global_batch=384"),
    "sequence parallel": ("korthikanti-22b-8-a100",),
    "bert": ("lin-bert-base-4-gv100",),
    "gpt2": ("lin-gpt2-4-a100",),
    "dlrm": ("lin-dlrm-ddp-4-a100",),
    "cnn": ("echo-resnet152-128-a100",),
    "cnn over pcie": ("triosim-p1-vgg16-ddp",),
    "pipeline of gpt2": ("triosim-p2-gpt2-pp",),
    "tensor parallel 1b": ("triosim-p3-llama-3.2-1b-tp",),
    "a40, pipeline": ("distsim-gpt2-345m-2m2p4d-16-a40",),
    "calibrated": ("lin-bert-base-4-gv100", "calibration.file=ours"),
}


@pytest.mark.parametrize("case", EXPERIMENTS)
def test_bandwidths_agree_with_simulation_or_it_is_said_why(case: str) -> None:
    name, *changes = EXPERIMENTS[case]
    _, experiment = load(name, [*changes, "run.allow_oom=true"])
    found = sensitivity(experiment, only=BANDWIDTHS, factors=(0.9, 1.1))
    text = render_tornado(found)  # type: ignore[arg-type]
    for bar in bars(found).values():
        for effect in bar.effects:
            assert effect.step_ps is not None
            assert effect.first_order is not None
            change = effect.step_ps / found.step_ps - 1  # type: ignore[union-attr]
            assert effect.agrees == agree(effect.first_order, change)
            if not effect.agrees:
                assert REASONS.match(effect.note), effect.note
                assert f"* {bar.name} x {effect.factor:g}: " in text
    # What has no better reason is small: the slowdown of what overlaps is not linear.
    for bar in bars(found).values():
        for effect in bar.effects:
            if effect.agrees is False and "not in proportion" in effect.note:
                change = effect.step_ps / found.step_ps - 1  # type: ignore[operator, union-attr]
                assert abs(change - effect.first_order) < 0.01  # type: ignore[operator]
    if case in ("alpha-beta", "experts", "dlrm", "calibrated", "bert", "cnn"):
        assert all(effect.agrees for bar in bars(found).values() for effect in bar.effects)


def test_links_that_are_shared_count_as_such(tmp_path: Path) -> None:
    spine = tmp_path / "spine.toml"
    text = (Path(__file__).parent.parent / "data/clusters/dgx-h100.toml").read_text()
    text = re.sub(r"aliases = \[[^]]*\]\n", "", text)
    fabric = 'kind = "fat-tree"\nleaf = 16\noversubscription = 4.0'
    text = re.sub(r'kind = "rail-fat-tree"\nleaf = 32', fabric, text)
    spine.write_text(text)
    changes = [f"cluster.preset={spine}", "cluster.nodes=8", "cluster.gpus=64"]
    _, experiment = load(LLAMA, [*changes, "plan.global_batch=64", "plan.tp=8"])
    found = bars(sensitivity(experiment, only=BANDWIDTHS, factors=(0.9, 1.1)))
    assert found["switch_bandwidth"].elasticity < -0.5  # type: ignore[operator]
    assert found["nic_bandwidth"].elasticity == pytest.approx(0, abs=1e-3)
    assert all(effect.agrees for bar in found.values() for effect in bar.effects)


def test_communications_are_of_the_slot_that_their_own_table_has() -> None:
    # Equal pieces of ranks 0 and 1, whose tables call one kind of group by other slots and rows.
    tables = [SimpleNamespace(slot=np.array([0, 1])), SimpleNamespace(slot=np.array([2]))]
    program = SimpleNamespace(
        slots=np.array([7, 8, 4, 5, 9]), slot_index=np.array([0, 2, 5]), table_of=tables.__getitem__
    )
    path = SimpleNamespace(rank=np.array([0, 1, 0]), row=np.array([1, 0, 0]))
    parts = _PathParts.__new__(_PathParts)
    parts._shares, parts._prepared = SimpleNamespace(path=path), SimpleNamespace(program=program)  # type: ignore[assignment]
    assert parts._groups_of(np.array([0, 1])).tolist() == [8, 9]


def test_a_path_that_moves_is_said_to(tmp_path: Path) -> None:
    """A kernel beside an all-reduce that is shorter, until its links are slow."""
    builder = ProgramBuilder()
    group = builder.communicator(tuple(range(8)), "dp")
    rows = builder.table("step")
    reduced = rows.collective(Operation.ALL_REDUCE, slot=0, stream=1, bytes=1 << 28, name="grads")
    kernel = rows.kernel("gemm", stream=0, duration=3000 * US)
    rows.host_wait([kernel, reduced])
    table = builder.add_table(rows.build())
    for _ in range(8):
        builder.add_rank(table, slots=[group])
    path = saved(tmp_path, builder.build({"source": "by hand"}))
    _, experiment = load_any(path, ["cluster.preset=dgx-a100"])
    found = sensitivity(experiment, only=["link_bandwidth", "speeds"], factors=(0.25, 2.0))
    slow, fast = bars(found)["link_bandwidth"].effects
    assert slow.agrees is False
    assert slow.moved
    assert re.search(r"critical path moves: \+\S+ .s communication grads, -3.000 ms", slow.note)
    assert fast.agrees
    assert not fast.moved
    slow, fast = bars(found)["speeds"].effects
    assert slow.agrees
    assert not slow.moved
    assert fast.moved
    assert "communication grads" in fast.note


def test_another_limit_is_named() -> None:
    _, experiment = load("megatron-18.4b-256-a100", ["plan.global_batch=384"])
    (effect,) = bars(sensitivity(experiment, only=["nic_bandwidth"], factors=(2.0,)))[
        "nic_bandwidth"
    ].effects
    assert not effect.agrees
    assert "another limit takes over" in effect.note
    assert "PCIe, not NIC" in effect.note


def test_memory_and_micro_batches() -> None:
    _, experiment = load("qwen3-30b-a3b-16-h100")
    found = bars(sensitivity(experiment, only=["memory", "micro_batch"], factors=(0.5, 2.0)))
    less, more = found["memory"].effects
    assert (less.fits, more.fits) == (False, True)
    assert less.headroom < 0 < more.headroom  # type: ignore[operator]
    assert less.step_ps is None
    half, twice = found["micro_batch"].effects
    assert "cannot be halved" in half.note
    assert twice.step_ps is not None
    assert twice.fits is False
    halved = replace(experiment, plan=changed(experiment.plan, micro_batch=2))
    again = simulate(replace(halved, run=replace(halved.run, allow_oom=True)))
    assert again is not None
    assert twice.step_ps == again.step_time_ps


def test_factors_act_on_what_is_scaled_already() -> None:
    _, experiment = load(LLAMA, ["scale.hbm_bandwidth=2"])
    bar = bars(sensitivity(experiment, only=["hbm_bandwidth"], factors=(0.5,)))["hbm_bandwidth"]
    plain = simulate(load(LLAMA)[1])
    assert plain is not None
    assert bar.effects[0].step_ps == plain.step_time_ps
    assert bar.now == "6700 GB/s"
