"""A traced step at another scale: reading it, the unchanged plan, plans, batch, and bad input."""

from __future__ import annotations

import csv
import math
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpisim import engine
from mpisim.base.errors import InputError, OutputError
from mpisim.experiment import ProgramExperiment
from mpisim.extrapolate import Extrapolated, Target, TracedStep, extrapolate, read_step
from mpisim.extrapolate.error_sources import several_gpus
from mpisim.extrapolate.layers import balanced
from mpisim.extrapolate.step import TracedKernel
from mpisim.extrapolate.triosim_write import write_tables
from mpisim.formats import triosim_program
from mpisim.kernels import find_gpu
from mpisim.kernels.counted import COUNTED, PricedShares
from mpisim.prediction.prepared_program import prepare_captured
from mpisim.program import Kind, Operation, Phase

VGG13 = 133_047_848
"""Parameters of torchvision's VGG-13."""


@pytest.fixture(scope="module")
def kineto(shared: Path) -> TracedStep:
    return read_step(shared / "traces/triosim_vgg13_h100_1gpu/kineto.json.gz")


@pytest.fixture(scope="module")
def tables(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> TracedStep:
    folder = tmp_path_factory.mktemp("triosim")
    for name in ("trace.csv.gz", "tensor.csv.gz"):
        shutil.copy(shared / "traces/triosim_vgg13_h100_1gpu" / name, folder)
    return read_step(folder, gpu="h100")


@pytest.fixture(scope="module")
def resnet(shared: Path) -> Path:
    return shared / "traces/resnet50_v100_1gpu_workers0/kineto.json.gz"


def grown(step: TracedStep, plan: dict[str, Any] | None = None, **target: Any) -> Extrapolated:
    cluster = target.pop("cluster", "dgx-h100")
    return extrapolate(step, Target(cluster, plan or {}, **target))


def run_of(found: Extrapolated) -> engine.Run:
    cluster = {"preset": found.target.cluster, "nodes": found.nodes}
    prepared = prepare_captured(
        ProgramExperiment("", {"cluster": cluster}, source="trace"), found.program
    )
    return engine.simulate(found.program, network=prepared.network)


def seconds(found: Extrapolated) -> float:
    return run_of(found).step_time / 1e12


def collectives(found: Extrapolated) -> Counter[tuple[str, int]]:
    """Bytes of each kind of collective of rank 0, and how often."""
    table = found.program.table_of(0)
    rows = np.flatnonzero(table.kind == Kind.COLLECTIVE)
    return Counter(
        (Operation(int(table.operation[row])).name, int(table.bytes[row])) for row in rows
    )


# --- reading --------------------------------------------------------------------------------------


def test_a_step_of_kineto(kineto: TracedStep) -> None:
    assert (kineto.gpu, kineto.batch, kineto.format) == ("h100-sxm", 512, "fp32")
    assert sum(each.elements for each in kineto.parameters) == VGG13
    shapes = [each.shape for each in kineto.parameters if len(each.shape) > 1]
    assert shapes[0] == (64, 3, 3, 3)
    assert shapes[-1] == (1000, 4096)
    assert len(kineto.layers()) == 13  # weights
    # All that the device did is in one pass or another.
    assert kineto.kernel_time == pytest.approx(346.37e9, rel=1e-4)
    optimizer = {each.operator for each in kineto.optimizer if isinstance(each, TracedKernel)}
    assert "aten::_foreach_addcdiv_" in optimizer
    assert all(name.startswith("aten::_foreach") for name in optimizer)


def test_a_step_of_triosims_tables(tables: TracedStep) -> None:
    assert tables.batch == 128
    assert sum(each.elements for each in tables.parameters) == VGG13
    # Gradients of every weight: each operator with one has a row of the backward pass.
    assert all(each.backward for each in tables.operators if each.parameters)


def test_the_same_model_is_found_in_both(kineto: TracedStep, tables: TracedStep) -> None:
    ours, theirs = (
        sorted(each.shape for each in step.parameters if len(each.shape) > 1)
        for step in (kineto, tables)
    )
    assert ours == theirs


def test_tables_are_read_again(kineto: TracedStep, tables: TracedStep, tmp_path: Path) -> None:
    for name, step in (("kineto", kineto), ("tables", tables)):
        folder = tmp_path / name
        write_tables(step, folder)
        again = read_step(folder, gpu="h100")
        assert [each.shape for each in again.parameters] == [each.shape for each in step.parameters]
        assert again.kernel_time == again.measured == step.kernel_time
        for ours, theirs in zip(step.operators, again.operators, strict=True):
            assert ours.duration == theirs.duration
        with pytest.raises(OutputError):
            write_tables(step, folder)
        write_tables(step, folder, overwrite=True)
        # ... and by TrioSim's own rules, as any such table.
        assert engine.simulate(triosim_program(folder)).step_time == step.kernel_time


# --- the unchanged plan ---------------------------------------------------------------------------


def test_the_unchanged_plan_takes_the_traces_own_time(
    kineto: TracedStep, tables: TracedStep
) -> None:
    for step in (kineto, tables):
        assert seconds(grown(step)) == pytest.approx(step.measured / 1e12, rel=1e-4)


@pytest.mark.parametrize("number", range(6, 11))
def test_steps_that_the_cpu_sets_the_pace_of(resnet: Path, number: int) -> None:
    # 57 % kernels; the rest is loading of data and launches, ahead of the device by 12 ms.
    step = read_step(resnet, gpu="v100-sxm2-32gb", step=number)
    assert sum(each.elements for each in step.parameters) == 25_557_032  # torchvision's ResNet-50
    assert seconds(grown(step, cluster="dgx-v100")) == pytest.approx(step.measured / 1e12, rel=1e-4)


def test_scaling_beside_published_steps(resnet: Path) -> None:
    # NVIDIA's DeepLearningExamples, ResNet-50 in fp32, 112 images a GPU: 367 images/s on one V100
    # and 2,855 on eight (16 GB); 356 and 2,766 (32 GB).
    step = read_step(resnet, gpu="v100-sxm2-32gb")
    one, eight = (
        seconds(grown(step, {"dp": n}, batch=112 * n, cluster="dgx-v100")) for n in (1, 8)
    )
    for alone, together in ((367, 2855), (356, 2766)):
        assert eight / one == pytest.approx(8 * alone / together, rel=0.02)


# --- data parallelism -----------------------------------------------------------------------------


def test_gradients_are_reduced_whole(kineto: TracedStep) -> None:
    found = collectives(grown(kineto, {"dp": 4}))
    assert {name for name, _ in found} == {"ALL_REDUCE"}
    assert sum(size * n for (_, size), n in found.items()) == 4 * VGG13
    assert len(found) > 1  # in buckets


def test_data_parallelism_after_the_iteration(tables: TracedStep) -> None:
    # TrioSim's rule: compute, then all gradients. One bucket is full with the last of them.
    plan = {"dp": 4, "framework.bucket": 10**12, "framework.broadcast_buffers": False}
    found = grown(tables, plan)
    assert collectives(found) == Counter({("ALL_REDUCE", 4 * VGG13): 1})
    run = run_of(found)
    table, rows = found.program.table_of(0), run.rows(0)
    row = int(np.flatnonzero(table.kind == Kind.COLLECTIVE)[0])
    reduced = int(rows.end[row] - rows.begin[row])
    kernels = table.duration[table.kind == Kind.KERNEL]
    copies = sum(
        int(each)
        for each, name in zip(table.duration, table.name, strict=True)
        if "bucket" in found.program.names[name]
    )
    assert run.step_time == pytest.approx(int(kernels.sum()) + reduced, rel=1e-3)
    # Products at the pace of the slowest of four GPUs: 1 % more.
    assert int(kernels.sum()) - copies == pytest.approx(tables.measured, rel=0.015)
    # ... at the bandwidth of a ring: 2 (n - 1) / n of the bytes, 360 to 450 GB/s on NVLink 4.
    rate = 2 * 3 / 4 * 4 * VGG13 / (reduced / 1e12)
    assert 300e9 < rate < 450e9


def test_overlap_helps(kineto: TracedStep) -> None:
    beside = seconds(grown(kineto, {"dp": 4}))
    behind = seconds(grown(kineto, {"dp": 4, "overlap.dp": False}))
    assert beside < behind


def test_sharding_of_states_and_parameters(kineto: TracedStep) -> None:
    states = collectives(grown(kineto, {"dp": 4, "zero": 1}))
    assert sum(n * size for (name, size), n in states.items() if name == "BROADCAST") == 4 * VGG13
    whole = collectives(grown(kineto, {"dp": 4, "zero": 3}))
    assert {name for name, _ in whole} == {"ALL_GATHER", "REDUCE_SCATTER"}
    scattered = sum(n * size for (name, size), n in whole.items() if name == "REDUCE_SCATTER")
    assert 4 * VGG13 <= scattered < 4 * VGG13 * 1.001  # with padding


@pytest.mark.parametrize("own", [True, False], ids=["PyTorch", "other frameworks"])
def test_several_gpus_state_no_less_than_published_factors_are_missed_by(own: bool) -> None:
    with (Path(__file__).parents[1] / "data/validation/factors.csv").open() as file:
        errors = [
            float(row["extrapolated"]) / float(row["measured"]) - 1
            for row in csv.DictReader(file)
            if row["kind"] == "one GPU" and ("PyTorch" in row["framework"]) == own
        ]
    assert len(errors) > 30
    stated = several_gpus("ddp" if own else None).error
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) <= stated
    assert stated > 0.05


def test_what_several_gpus_leave_out_is_that_of_the_framework(kineto: TracedStep) -> None:
    def left_out(found: Extrapolated) -> float:
        return PricedShares.read(found.program.attributes[COUNTED], "trace").left_out

    assert left_out(grown(kineto)) == left_out(grown(kineto, batch=64)) == 0
    assert left_out(grown(kineto, {"dp": 8})) == several_gpus("ddp").error == 0.068
    assert left_out(grown(kineto, {"dp": 8, "zero": 3})) == several_gpus("fsdp").error == 0.068
    megatron = grown(kineto, {"dp": 8, "framework.dp_style": "megatron"})
    assert left_out(megatron) == several_gpus("megatron").error == several_gpus(None).error > 0.1
    horovod = grown(kineto, {"dp": 8, "framework.cycle_time": 5.0})
    assert left_out(horovod) == several_gpus("ddp", others=True).error == several_gpus(None).error
    named = grown(kineto, {"dp": 8, "framework.name": "paddlepaddle"})
    assert left_out(named) == several_gpus(None).error
    assert left_out(grown(kineto, {"dp": 8, "framework.name": "ddp"})) == several_gpus("ddp").error


def test_threads_of_one_process(tables: TracedStep) -> None:
    found = grown(tables, {"dp": 4}, threads=True)
    said = collectives(found)
    by_name: Counter[str] = Counter()
    for (name, size), n in said.items():
        by_name[name] += n * size
    # Parameters to all GPUs, gradients to the first; images there, scores back, their gradient.
    assert by_name["BROADCAST"] == by_name["REDUCE"] == 4 * VGG13
    assert max(size for name, size in said if name == "REDUCE") == 10 * 2**20
    images, scores = 4 * 128 * 3 * 224**2 * 4, 4 * 128 * 1000 * 4
    assert by_name["SCATTER"] == images + scores
    assert by_name["GATHER"] == scores
    # TrioSim: no faster than processes, which reduce beside the backward pass.
    assert seconds(found) > seconds(grown(tables, {"dp": 4}))
    with pytest.raises(InputError, match="--threads"):
        grown(tables, {"dp": 2, "pp": 2}, threads=True)


def test_stages_are_threads_of_one_process(kineto: TracedStep) -> None:
    """As clock cycles of ``Pipe``: the CPU's forward passes of all stages one after the other."""
    keys = {"pp": 4, "micro_batch": kineto.batch // 2}
    threads, processes = (grown(kineto, keys, threads=chosen) for chosen in (True, False))
    assert threads.workload.layout.experiment.plan.pipeline.schedule == "gpipe"
    assert collectives(threads) == collectives(processes)

    def launches(found: Extrapolated, rank: int) -> int:
        table = found.program.table_of(rank)
        forward = ["forward" in found.program.names[name] for name in table.name.tolist()]
        return int((table.host + table.launch_cost)[np.array(forward)].sum())

    alone = launches(processes, 1)
    assert launches(threads, 1) == pytest.approx(alone * 8 / 5, rel=1e-6)
    assert alone > 0
    assert seconds(threads) >= seconds(processes)
    for wrong in ({"pp": 4, "pipeline.schedule": "1f1b"}, {"pp": 2, "vpp": 2}, {"tp": 2}):
        with pytest.raises(InputError, match="--threads"):
            grown(kineto, wrong, threads=True)


def test_threads_keep_the_activations_of_the_last_micro_batch(kineto: TracedStep) -> None:
    """``checkpoint="except_last"`` of ``Pipe``; stages in processes compute all of them again."""
    keys = {"pp": 2, "micro_batch": kineto.batch // 4, "recompute": "full"}
    for threads, computed in ((True, {0, 1, 2}), (False, {0, 1, 2, 3})):
        found = grown(kineto, keys, threads=threads)
        for table in found.program.tables:
            assert table is not None
            again = table.phase == Phase.RECOMPUTE
            assert set(table.micro_batch[again].tolist()) == computed
        told = any("except_last" in line for line in found.assumptions)
        assert told == threads


def test_the_input_is_uploaded(kineto: TracedStep, resnet: Path, tables: TracedStep) -> None:
    size = 128 * 3 * 224**2 * 4
    gpu = find_gpu("h100-sxm")
    rate = gpu.pcie.si * gpu.pcie_fraction.si
    for plan, times in (({}, 1), ({"pp": 2, "micro_batch": 32}, 4)):
        found = grown(tables, dict(plan), batch=128, upload=True)
        plain = grown(tables, dict(plan), batch=128)
        for rank in range(plan.get("pp", 1)):
            table = found.program.table_of(rank)
            names = [found.program.names[name] for name in table.name]
            copies = [int(table.duration[i]) for i, n in enumerate(names) if n == "input upload"]
            assert len(copies) == (times if rank == 0 else 0)
            if rank == 0:
                assert sum(copies) == pytest.approx(size / rate * 1e12, rel=0.1)
        assert seconds(found) > seconds(plain)
    step = read_step(resnet, gpu="v100-sxm2-32gb", step=6)  # which loads its images itself
    with pytest.raises(InputError, match="uploaded already"):
        grown(step, upload=True, cluster="dgx-v100")
    with pytest.raises(InputError, match="--threads scatters"):
        grown(kineto, {"dp": 2}, upload=True, threads=True)


# --- other sizes ----------------------------------------------------------------------------------


def test_another_batch_beside_a_measured_one(kineto: TracedStep, tables: TracedStep) -> None:
    # The same model on the same GPU, traced at 512 and, by TrioSim, at 128 samples.
    fewer = seconds(grown(kineto, batch=128))
    assert fewer == pytest.approx(tables.measured / 1e12, rel=0.06)
    more = seconds(grown(tables, batch=512))
    assert more == pytest.approx(kineto.kernel_time / 1e12, rel=0.06)


# --- pipelines ------------------------------------------------------------------------------------


def test_gpus_of_two_kinds(kineto: TracedStep) -> None:
    plan = {"dp": 16, "micro_batch": 64}
    alike = seconds(grown(kineto, plan, batch=6144))
    mixed = {"batch": 6144, "other_gpus": {"1": "a100-sxm-80gb"}}
    even = seconds(grown(kineto, plan, **mixed))
    shares = [512] * 8 + [256] * 8
    uneven = seconds(grown(kineto, {**plan, "replica_batch": shares}, **mixed))
    assert alike < uneven < even


def test_micro_batches_of_gpipe(tables: TracedStep) -> None:
    times = [
        seconds(grown(tables, {"pp": 4, "pipeline": "gpipe", "micro_batch": 128 // n}, batch=128))
        for n in (1, 2, 4)
    ]
    assert times == sorted(times, reverse=True)
    # With one micro-batch the stages take turns, and send up to 1.6 GB of activations.
    assert tables.measured / 1e12 < times[0] < 1.13 * tables.measured / 1e12


def test_layers_are_balanced() -> None:
    assert balanced([1, 1, 1, 1], 2) == [2, 2]
    assert balanced([5, 1, 1, 1, 1, 1], 2) == [1, 5]
    assert balanced([1, 2, 3], 3) == [1, 1, 1]


def test_layers_are_cut_where_the_cpu_sets_the_pace(kineto: TracedStep) -> None:
    """16 micro-batches of VGG-13: the CPU launches all kernels for each, in 31 ms as recorded."""
    plan = grown(kineto, {"pp": 4}).workload.layout.experiment.plan
    times = [
        (sum(one.duration for one in ops) // 16, sum(one.cpu for one in ops))
        for _, ops in kineto.layers()
    ]

    def longest(counts: Sequence[int]) -> int:
        ends = np.cumsum((0, *counts)).tolist()
        parts = [np.array(times[a:b]).sum(axis=0) for a, b in pairwise(ends)]
        return max(int(part.max()) for part in parts)

    n = len(times)
    every = [longest(np.diff((0, *cuts, n)).tolist()) for cuts in combinations(range(1, n), 3)]
    assert longest(plan.pipeline.stages) < 1.2 * min(every)
    step = seconds(grown(kineto, {"pp": 4}))
    assert step == pytest.approx(16 * longest(plan.pipeline.stages) / 1e12, rel=0.4)
    assert step < kineto.measured / 1e12


def test_a_loader_in_the_process_goes_with_samples(resnet: Path) -> None:
    """Its annotations in the trace take 68.7, 68.8, 73.4, 71.4, 70.8 and 62.6 ms."""
    step = read_step(resnet, gpu="v100-sxm2-32gb", step=6)
    first = step.operators[0].forward[0]
    assert isinstance(first, TracedKernel)
    assert first.loading < first.host
    # The CPU is 11.9 ms ahead of the device where the step begins.
    assert first.loading / 1e9 == pytest.approx(68.8 - 11.9, abs=3)

    def cpu(step: TracedStep, plan: dict[str, Any], batch: int | None = None) -> int:
        program = grown(step, plan, batch=batch, cluster="dgx-v100").program
        return int(program.table_of(0).host.sum())

    zeroed = replace(first, host=first.host - first.loading, loading=0)
    operator = replace(step.operators[0], forward=(zeroed, *step.operators[0].forward[1:]))
    without = replace(step, operators=(operator, *step.operators[1:]))
    micro_batched = {"pp": 2, "micro_batch": step.batch // 8}
    for plan, batch, times in (({}, None, 1), (micro_batched, None, 1), ({}, 2 * step.batch, 2)):
        loaded = cpu(step, plan, batch) - cpu(without, plan, batch)
        assert loaded == pytest.approx(times * first.loading, rel=1e-6)


# --- bad input ------------------------------------------------------------------------------------


def test_plans_that_do_not_fit(kineto: TracedStep) -> None:
    for plan, said in (
        ({"dq": 2}, "did you mean|unknown key"),
        ({"dp": 0}, "dp"),
        ({"pp": 40}, "13 layers"),
        ({"ep": 2}, "ep"),
        ({"tp": 3}, "tp is 3"),
        ({"tp": 2, "sp": True}, "sp"),
        ({"offload.activations": 2}, "offload.activations is given"),
    ):
        with pytest.raises(InputError, match=said):
            grown(kineto, plan)
    with pytest.raises(InputError, match="cannot be shared"):
        grown(kineto, {"dp": 3}, batch=128)
