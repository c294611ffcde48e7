"""Experiments made ready, what a prediction says of itself, and the hall they go through."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from plans import changed, plan_of
from toys import instant

import mpisim
from mpisim import engine
from mpisim.base.errors import InputError, MpisimError, OutputError
from mpisim.base.presets import packaged
from mpisim.base.quantity import Quantity
from mpisim.engine.critical_path import PieceKind
from mpisim.experiment import (
    ClusterChoice,
    Experiment,
    KernelChoice,
    NetworkChoice,
    Transformer,
    VariationChoice,
    defaulted,
    load,
    read,
)
from mpisim.kernels import Roofline
from mpisim.kernels.operations import Kernel
from mpisim.prediction.framework_lines import PRACTICE
from mpisim.prediction.path_shares import PathShares
from mpisim.prediction.prepared import PreparedExperiment, prepare
from mpisim.prediction.statements import statements
from mpisim.prediction.step_constants import packaged_constants
from mpisim.prediction.uncertainty import UNCOMPARED_FILE, error_bar, propagate
from mpisim.program import Operation, Program, ProgramBuilder
from mpisim.simulate import simulate
from mpisim.topo import AlphaBeta, class_of, find_cluster
from mpisim.workloads import training_step

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.two_processes

GPT = {"layers": 2, "hidden": 1024, "heads": 8, "vocab": 32_000, "seq_len": 512}

SMALL = Experiment(
    model=Transformer("gpt", **GPT),
    plan=plan_of(tp=2, dp=4, micro_batch=2, global_batch=16),
    cluster=ClusterChoice("dgx-h100"),
)


def run_of(case: PreparedExperiment) -> engine.Run:
    return engine.simulate(case.program, network=case.network, critical_path=True)


def small(**plan: object) -> Experiment:
    return dataclasses.replace(SMALL, plan=changed(SMALL.plan, **plan))  # type: ignore[arg-type]


def test_too_few_gpus() -> None:
    with pytest.raises(InputError, match=r"the plan needs 16 GPUs .* but the cluster has 8"):
        prepare(small(tp=4))


def test_a_step_takes_at_least_its_kernels_and_its_work() -> None:
    case = prepare(SMALL)
    run = run_of(case)
    table = case.program.tables[0]
    assert table is not None
    assert run.step_time > table.duration[table.stream == 0].sum()
    assert run.step_time > case.workload.flops / (8 * case.gpu.peak("bf16").si) * 1e12
    assert case.workload.executed_flops == pytest.approx(case.workload.flops, rel=0.05)


@pytest.mark.parametrize("sp", [False, True])
def test_a_step_without_overlap_takes_the_sum(sp: bool) -> None:
    # Forward, nothing overlaps: kernels and exchanges of the first micro-batch, one after the
    # other. A CPU that takes no time never holds them up.
    case = prepare(small(sp=sp))
    program = training_step(case.workload.layout, Roofline(instant())).program
    run = engine.simulate(program, network=case.network)
    table = program.tables[0]
    assert table is not None
    first = (table.micro_batch == 0) & (table.phase == 1)
    pair, met = class_of(case.network, (0, 1)), np.flatnonzero(first & table.is_communication)
    wire = [
        case.network.price(Operation(int(operation)), int(size), pair).duration
        for operation, size in zip(table.operation[met], table.bytes[met], strict=True)
    ]
    kernels = table.duration[first & ~table.is_communication].sum()
    before = int(table.duration[(table.phase == 0) & (table.stream == 0)].sum())
    assert run.rows(0).end[first].max() == before + kernels + sum(wire)


def numbers_scaled(case: PreparedExperiment, name: str, factor: float) -> int:
    """Step time with one number of the GPU or the cluster scaled."""
    hardware: dict[str, Any] = {"gpu": case.gpu, "cluster": case.cluster.alpha_beta}
    for key, part in hardware.items():
        if name in vars(part):
            old = getattr(part, name)
            new = dataclasses.replace(old, value=old.value * factor)
            hardware[key] = dataclasses.replace(part, **{name: new})
    cluster = dataclasses.replace(case.cluster, alpha_beta=hardware["cluster"])
    workload = training_step(case.workload.layout, Roofline(hardware["gpu"]))
    return engine.simulate(workload.program, network=cluster.cost(1)).step_time


UNNAMED = Path(__file__).parent / "unnamed_framework.toml"

LARGE = load(UNNAMED, ["plan.tp=2", "plan.dp=4", "plan.zero=1", "plan.global_batch=32"])[1]
"""As Megatron-LM trains it."""

HOST_BOUND = small(tp=1, dp=1, micro_batch=1, global_batch=4)


@pytest.mark.parametrize("experiment", [LARGE, SMALL, HOST_BOUND], ids=["large", "small", "host"])
def test_shares_of_the_step_are_its_derivatives(experiment: Experiment) -> None:
    # Each number is made 0.1 % larger in turn, and everything simulated again: the step changes by
    # 0.1 % of the share that was said, less for rates and more for times.
    plain = {
        "kernels": KernelChoice("roofline"),
        "network": NetworkChoice("alpha-beta"),
        "variation": VariationChoice(slowest=False),
    }
    case = prepare(dataclasses.replace(experiment, **plain))  # type: ignore[arg-type]
    run = run_of(case)
    exact = {
        name: dataclasses.replace(number, error=1.0)
        for part in (case.gpu, case.cluster.alpha_beta)
        for name, number in vars(part).items()
        if isinstance(number, Quantity)
    }
    found = propagate(run.critical_path, PathShares(case, run), exact)  # type: ignore[arg-type]
    shares = {each.name: each.share for each in found.effects}
    rates = {n for n in exact if n.startswith("peak") or n.endswith(("fraction", "bandwidth"))}
    for name in exact:
        change = numbers_scaled(case, name, 1.001) / run.step_time - 1
        expected = 0.001 * shares.get(name, 0.0) * (-1 if name in rates else 1)
        assert change == pytest.approx(expected, rel=0.02, abs=2e-6), name


def test_errors_of_unlike_kernels_average_out() -> None:
    case = prepare(LARGE)
    run = run_of(case)
    path = run.critical_path
    assert path is not None
    pricing = case.workload.pricing_of(0)
    name = "gemm model (bf16)"
    moved: dict[Kernel, float] = {}
    for piece, length in enumerate((path.end - path.begin).tolist()):
        if path.kind[piece] == PieceKind.COMPUTE:
            table, row = case.program.table_of(int(path.rank[piece])), int(path.row[piece])
            key = case.program.names[table.name[row]], int(table.duration[row])
            kernel = pricing.kernels.get(key)
            if kernel is not None:
                share = pricing.model.estimate(kernel).shares.get(name, 0.0)
                moved[kernel] = moved.get(kernel, 0.0) + share * length
    own = {kernel: pricing.model.estimate(kernel).own.get(name, 0.0) for kernel in moved}
    # Of each pair of kernels: what both have together, and a kernel has with itself.
    variance = sum(
        moved[one] * moved[other] * (own[one] if one is other else 0.0)
        + moved[one] * moved[other] * math.sqrt((1 - own[one]) * (1 - own[other]))
        for one in moved
        for other in moved
    )
    factors = PathShares(case, run).averaging()
    assert factors[name] == pytest.approx(math.sqrt(variance) / sum(moved.values()))
    assert 0.3 < factors[name] < 0.9
    effects = error_bar(case, run, model_error=False).effects
    stated = next(each for each in effects if each.name == name)
    assert stated.error == pytest.approx(factors[name] * pricing.model.numbers[name].error)
    assert "slowest GPU" not in factors  # off together in all


def test_statements() -> None:
    case = prepare(LARGE)
    run = run_of(case)
    said = statements(
        case, run, {"plan.overlap.dp": True, "framework.cp_style": "ring", "plan.pp": 1}
    )
    inputs = error_bar(case, run, model_error=False).relative
    left_out = packaged_constants().model_error
    assert left_out is not None
    # Nearly all of it is from not knowing the framework, as little known as what a library runs.
    unnamed = packaged(UNCOMPARED_FILE)["left_open"]["error"]
    assert unnamed < inputs < math.hypot(unnamed, 0.1)
    assert said["uncertainty"] == pytest.approx(math.hypot(inputs, left_out.plain["dense"].error))
    assert said["uncertainty_sources"][0].startswith("framework not named")
    assert said["uncertainty_sources"][1].startswith("model error")
    assert said["utilisation"] == pytest.approx(
        case.workload.flops / (run.step_time * 1e-12 * 8 * 989.4e12)
    )
    assert 0.3 < said["utilisation"] < 0.6  # what Megatron-LM reaches on H100
    assert case.cluster.title in said["assumptions"]
    assert "plan.overlap.dp = true (default)" in said["assumptions"]
    idle = "cp_style", "plan.pp", "plan.moe", "image_layout", "unaligned", "broadcast_buffers"
    assert not any(key in line for line in said["assumptions"] for key in idle)
    assert said["memory_peak"] == case.memory.peak < said["memory_capacity"]
    assert any("worst moment" in line for line in said["memory"])
    assert any("packets" in line for line in said["not_modelled"])
    assert all(
        len(line) <= 100
        for lines in said.values()
        if isinstance(lines, list)
        for line in lines
        if PRACTICE not in line  # with its source
    )


@pytest.mark.parametrize(
    ("kernels", "said"), [("analytical", "gemm model (bf16)"), ("roofline", "gemm_fraction")]
)
def test_the_error_of_the_kernel_model_is_in_the_answer(kernels: str, said: str) -> None:
    choice = KernelChoice(kernels)  # type: ignore[arg-type]
    case = prepare(dataclasses.replace(LARGE, kernels=choice))
    found = statements(case, run_of(case), {})
    assert any(line.startswith(said) for line in found["uncertainty_sources"])
    assert 0.02 < found["uncertainty"] < 0.5


def test_a_calibration_of_the_users(tmp_path: Path) -> None:
    from mpisim.data import text

    (tmp_path / "mine.toml").write_text(text("calibration/kernels.toml"))
    source = str(tmp_path / "experiment.toml")
    choice = KernelChoice(calibration="mine.toml")
    case = prepare(dataclasses.replace(SMALL, kernels=choice, source=source))
    assert run_of(case).digest == run_of(prepare(SMALL)).digest
    with pytest.raises(InputError, match=r"no\.toml"):
        prepare(dataclasses.replace(SMALL, kernels=KernelChoice(calibration="no.toml")))
    with pytest.raises(InputError, match="'roofline' has none"):
        prepare(dataclasses.replace(SMALL, kernels=KernelChoice("roofline", "mine.toml")))


def test_defaults_are_told_apart_from_what_was_given() -> None:
    text, _ = load()
    given = defaulted(text)
    assert "plan.micro_batch" not in given
    assert given["plan.pp"] == 1
    assert defaulted(text.replace("micro_batch =", "# =")) == given | {"plan.micro_batch": 1}


BIG = """
[model]
preset = "llama-3-8b"
[plan]
global_batch = 8
[cluster]
preset = "dgx-h100"
"""


def test_a_plan_that_does_not_fit_is_said_before_the_simulation() -> None:
    with pytest.raises(InputError) as error:
        prepare(read(BIG, "big.toml"))
    said = str(error.value)
    assert said.startswith("big.toml: the plan does not fit into NVIDIA H100 SXM5 80 GB")
    assert "GiB missing" in said
    assert "It fits with any of: " in said
    assert 'dp_style = "fsdp", zero = 3 (' in said
    assert said.endswith("--allow-oom simulates it all the same")
    assert "\n" not in said


def test_changes_that_fit_together_alone_are_no_choice() -> None:
    """LoRA of 30 billion numbers on two GPUs of 32 GB: every change at once, on more of them."""
    text = BIG.replace("llama-3-8b", 'qwen3-30b-a3b"\nlora_rank = 16\nseq_len = 4096\n# "')
    text += 'nodes = 1\ngpus = 2\n[kernels]\ngpu = "rtx-5090"\n'
    with pytest.raises(InputError, match=r"No single change .* fits with all of: tp = 2, pp = 2, "):
        prepare(read(text, "big.toml"))


def test_it_can_be_simulated_all_the_same() -> None:
    case = prepare(read(BIG, "big.toml", ["run.allow_oom=true"]))
    assert not case.memory.fits
    said = statements(case, run_of(case), {})
    assert "Any of these makes it fit:" in said["memory"]


PLAN_OF_EVENTS = ("plan.tp=4", "plan.dp=2", "framework.fully_shard=false")
"""A plan whose shared links passes of dataflow do not settle."""


def test_communications_share_links_unless_told_otherwise() -> None:
    shared, alone = (
        simulate(load(changes=[*PLAN_OF_EVENTS, f"network.contention={value}"])[1])
        for value in ("true", "false")
    )
    assert shared is not None
    assert alone is not None
    assert (shared.mode, alone.mode) == ("events", "dataflow")
    assert len(shared.links.links["name"])
    assert not len(alone.links.links["name"])


def test_communication_shares() -> None:
    # All-gather of 352e6 bytes over 4 GPUs of a node: 3/4 × 352e6 / 352e9 s = 750 us and 30 us.
    model = find_cluster("dgx-h100").cost()
    found = model.shares(Operation.ALL_GATHER, 352_000_000, class_of(model, (0, 1, 2, 3)))
    assert found == pytest.approx({"node_latency": 30 / 780, "node_bandwidth": 750 / 780})
    across = model.shares(Operation.ALL_REDUCE, 1000, class_of(model, (0, 8)))
    assert set(across) == {"network_latency", "network_bandwidth"}
    assert model.shares(Operation.ALL_REDUCE, 1000, class_of(model, (0,))) == {}


# --- the hall -----------------------------------------------------------------------------------


def pair() -> Program:
    """Two ranks compute 5 us, and all-reduce 1 MB."""
    programs = ProgramBuilder()
    rows = programs.table("pair")
    kernel = rows.kernel("work", stream=0, duration=5_000_000)
    rows.collective(Operation.ALL_REDUCE, slot=0, stream=1, bytes=1_000_000, waits=[kernel])
    table = programs.add_table(rows.build())
    group = programs.communicator([0, 1])
    for _ in range(2):
        programs.add_rank(table, [group])
    return programs.build()


def test_the_hall_takes_programs() -> None:
    # 10 us + 1 MB × 2 × 1/2 at 1 GB/s = 1,010 us, after 5 us.
    results = simulate(pair(), network=AlphaBeta(1e-5, 1e9), attributes={"source": "by hand"})
    assert results is not None
    assert results.step_time_ps == 1_015_000_000
    assert results.attributes["source"] == "by hand"


def test_the_library_name_is_the_hall() -> None:
    assert mpisim.simulate is simulate


def test_the_hall_takes_experiments_and_writes_files(tmp_path: Path) -> None:
    text, experiment = load()
    path = tmp_path / "run.h5"
    written = simulate(experiment, output=path, text=text)
    assert written is not None
    with mpisim.open_results(path) as results:
        assert results.digest == written.digest
        assert results.experiment == text
        assert results.attributes["uncertainty"] == written.attributes["uncertainty"]
    with pytest.raises(OutputError, match="exists already"):
        simulate(experiment, output=path)
    again = simulate(experiment, output=path, overwrite=True)
    assert again is not None
    assert again.digest == written.digest


@pytest.mark.mpi
def test_the_result_is_on_the_first_process(comm: Intracomm) -> None:
    results = simulate(SMALL, comm)
    assert (results is not None) == (comm.rank == 0)
    alone = simulate(SMALL)
    assert alone is not None
    if results is not None:
        assert results.digest == alone.digest
        assert dict(results.attributes) == dict(alone.attributes)


@pytest.mark.mpi
def test_errors_reach_all_processes(comm: Intracomm, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="raise 'nodes'"):
        simulate(small(tp=4), comm)
    # Only the first process looks at the output.
    with pytest.raises(MpisimError, match="there is no folder"):
        simulate(SMALL, comm, output=tmp_path / "missing" / "run.h5")
