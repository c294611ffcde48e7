"""Searches over traces: the answer is that of every candidate extrapolated by itself."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import extrapolate_closed_loop as closed_loop
import numpy as np
import pytest
from mpi4py import MPI
from test_extrapolate_parallel import calibration_file

from mpisim import engine
from mpisim.base.errors import InputError
from mpisim.experiment import ProgramExperiment
from mpisim.extrapolate import Target, TracedStep, extrapolate, read_step
from mpisim.extrapolate.parallel import extrapolate_parallel
from mpisim.prediction.prepared_program import prepare_captured
from mpisim.replay import TraceJob
from mpisim.search import answer, explore, read_search
from mpisim.search.answer import answer_lines
from mpisim.search.records import Status
from mpisim.search.space import SearchSpace
from mpisim.search.traced import TracedCandidates, extrapolate_command
from mpisim.topo import find_cluster

MEGATRON = "traces/megatron_gpt_tp2pp2dp2_a800_8rank"
TABLES = "traces/triosim_vgg13_h100_1gpu/trace.csv.gz"


def tables(trace: Path, vary: dict[str, Any] | str, **search: Any) -> dict[str, Any]:
    return {
        "workload": {"trace": str(trace), "traced_gpu": "h100-sxm"},
        "plan": {"global_batch": 128},
        "cluster": {"preset": "dgx-h100", "nodes": 1, "gpus": 4},
        "search": {"vary": vary, **search},
    }


@pytest.fixture(scope="module")
def vgg(shared: Path) -> Path:
    return shared / TABLES


@pytest.fixture(scope="module")
def step(vgg: Path) -> TracedStep:
    return read_step(vgg, gpu="h100-sxm")


def step_ps(step: TracedStep, plan: dict[str, Any]) -> int:
    """Extrapolate to a plan and simulate it, without the search."""
    found = extrapolate(step, Target("dgx-h100", plan, 128))
    prepared = prepare_captured(
        ProgramExperiment("", {"cluster": {"preset": "dgx-h100"}}, source="trace"), found.program
    )
    return engine.simulate(found.program, network=prepared.network).step_time


def test_the_best_are_those_of_all_plans(vgg: Path, step: TracedStep) -> None:
    vary = {"plan.tp": [1, 2, 4], "plan.pp": [1, 2, 4], "plan.micro_batch": [16, 32, 64]}
    space = read_search(tables(vgg, vary, top=5), "x.toml")
    records = explore(space, MPI.COMM_SELF)
    times = {}
    for number, (tp, pp, micro_batch) in enumerate(product(*vary.values())):
        plan = {"tp": tp, "pp": pp, "micro_batch": micro_batch}
        try:
            times[number] = step_ps(
                step, {**plan, "dp": 4 // (tp * pp)} if 4 % (tp * pp) == 0 else {"dp": 0}
            )
        except InputError:
            assert records.status[number] == Status.INVALID
    assert records.numbers(Status.SIMULATED).tolist() == sorted(times)
    assert {n: int(records.step[n]) for n in times} == times
    found = answer(space, records, MPI.COMM_SELF)
    assert [each.number for each in found.best] == sorted(times, key=lambda n: (times[n], n))[:5]
    assert all(each.step_ps == times[each.number] for each in found.best)
    said = "\n".join(answer_lines(space, found))
    assert "none is left out by a bound" in said
    assert "--set plan.dp=" in said


def test_triosims_ranking(vgg: Path) -> None:
    """At 128 samples in all data parallelism is fastest, tensor parallelism poor for a CNN.

    ISCA 2025, figure 12.
    """
    vary = {"plan.tp": [1, 4], "plan.pp": [1, 4], "plan.micro_batch": [32, 64, 128]}
    given = tables(vgg, vary)
    given["plan"]["pipeline"] = "gpipe"
    space = read_search(given, "x.toml")
    found = answer(space, explore(space, MPI.COMM_SELF), MPI.COMM_SELF)
    place = {
        tuple(each.settings[f"plan.{key}"] for key in ("tp", "pp", "micro_batch")): i
        for i, each in enumerate(found.best)
    }
    assert place[1, 1, 32] == 0
    assert place[1, 4, 64] < place[4, 1, 128]
    assert len(found.best) == 1 + 3 + 3  # a replica of four has 32 samples


def test_the_front_and_limits(vgg: Path) -> None:
    vary = {"plan.zero": [0, 3], "cluster.gpus": [1, 2, 4, 8]}
    given = tables(vgg, vary, objectives=["step_time", "gpus"], max_gpus=4)
    space = read_search(given, "x.toml")
    records = explore(space, MPI.COMM_SELF)
    assert records.count(Status.OVER_LIMIT) == 2
    found = answer(space, records, MPI.COMM_SELF)
    values = {(each.step_ps, each.gpus) for each in found.front}
    every = [
        (int(records.step[n]), int(records.gpus[n])) for n in records.numbers(Status.SIMULATED)
    ]
    assert values == {
        one
        for one in every
        if not any(a <= one[0] and b <= one[1] and (a, b) != one for a, b in every)
    }


def test_a_plan_beyond_memory_is_left_out(vgg: Path) -> None:
    # 1 GiB of parameters and gradients, and CUDA's context, of 80 GB.
    given = tables(vgg, {"plan.zero": [0, 3]}, memory_headroom=78.0)
    records = explore(read_search(given, "x.toml"), MPI.COMM_SELF)
    assert records.status.tolist() == [Status.TOO_LARGE, Status.SIMULATED]


@pytest.mark.mpi
def test_the_same_on_any_number_of_processes(vgg: Path, comm: Any) -> None:
    vary = {"plan.tp": "auto", "plan.pp": "auto", "plan.zero": "auto", "plan.micro_batch": [32]}
    space = read_search(tables(vgg, vary), "x.toml")
    found, alone = (explore(space, each) for each in (comm, MPI.COMM_SELF))
    for name, column in alone.columns.items():
        assert np.array_equal(column, found.columns[name]), name
    assert found.why == alone.why


def test_the_automatic_space(vgg: Path) -> None:
    space = read_search(tables(vgg, "auto"), "x.toml")
    assert dict(zip(space.keys, space.values, strict=True)) == {
        "plan.tp": (1, 2, 4),  # of 4 GPUs
        "plan.pp": (1, 2, 4),
        "plan.vpp": (1, 2, 4),  # of 13 layers
        "plan.micro_batch": (1, 2, 4, 8, 16, 32, 64, 128),
        "plan.zero": (0, 1, 2, 3),
    }


def test_a_context_is_shared_where_attention_is_fused(vgg: Path, tmp_path: Path) -> None:
    closed_loop.traced(closed_loop.MODELS["gpt2"], tmp_path)
    given = {
        "workload": {"trace": str(tmp_path), "traced_gpu": "a100-sxm", "seq_len": 8192},
        "plan": {"global_batch": 16},
        "cluster": {"preset": "dgx-a100", "nodes": 1, "gpus": 4},
        "search": {"vary": {"plan.cp": "auto"}},
    }
    assert read_search(given, "x.toml").values == ((1, 2, 4),)
    given["workload"]["seq_len"] = 2048
    assert read_search(given, "x.toml").values == ((1, 2),)
    assert read_search(tables(vgg, {"plan.cp": "auto"}), "x.toml").values == ((1,),)


def job_space(shared: Path, vary: dict[str, Any], **search: Any) -> SearchSpace:
    workload = {"trace": str(shared / MEGATRON), "traced_cluster": "a800-8gpu", "traced_batch": 128}
    given = {
        "workload": workload,
        "cluster": {"preset": "a800-8gpu"},
        "search": {"vary": vary, **search},
    }
    return read_search(given, "x.toml")


def test_a_job_of_several_ranks(shared: Path, megatron: TraceJob) -> None:
    vary = {"plan.dp": [1, 4], "cluster.preset": ["a800-8gpu", "dgx-h100"]}
    space = job_space(shared, vary, objectives=["tokens_per_second"])
    found = answer(space, explore(space, MPI.COMM_SELF), MPI.COMM_SELF)
    traced = find_cluster("a800-8gpu")
    for each in found.best:
        dp, preset = each.settings["plan.dp"], each.settings["cluster.preset"]
        alone = extrapolate_parallel(
            megatron, MPI.COMM_SELF, dp=dp, cluster=find_cluster(preset), traced_cluster=traced
        )
        assert each.step_ps == round(alone.step * 1e12)
        assert (each.gpus, each.tokens) == (4 * dp, 64 * dp)
    assert [each.settings["plan.dp"] for each in found.best[:2]] == [4, 4]
    said = answer_lines(space, found)
    assert said[-1].strip().startswith("mpisim extrapolate")
    assert "--dp 4 --traced-cluster a800-8gpu" in said[-1]


def test_measured_collectives_of_a_job(shared: Path, megatron: TraceJob, tmp_path: Path) -> None:
    """``[network] calibration``: as ``mpisim extrapolate --calibration``, and in its command."""
    file = calibration_file(tmp_path, bandwidth_across=0.1)
    space = read_search(
        {
            "workload": {"trace": str(shared / MEGATRON), "traced_cluster": "a800-8gpu"},
            "cluster": {"preset": "dgx-h100"},
            "network": {"calibration": file.name},
            "search": {"vary": {"plan.dp": [4]}},
        },
        str(tmp_path / "x.toml"),
    )
    found = TracedCandidates(space).of(0)
    alone = extrapolate_parallel(
        megatron,
        MPI.COMM_SELF,
        dp=4,
        cluster=find_cluster("dgx-h100"),
        traced_cluster=find_cluster("a800-8gpu"),
        calibration=str(file),
    )
    assert found.step_ps == round(alone.step * 1e12)
    assert extrapolate_command(space, 0)[-2:] == ["--calibration", str(file)]


def test_stages_of_a_job(shared: Path) -> None:
    """Stages and replicas at once; stages that layers do not divide into are left out."""
    vary = {"plan.pp": [4, 5], "plan.dp": [1, 2]}
    space = job_space(shared, vary, objectives=["tokens_per_second"])
    found = answer(space, explore(space, MPI.COMM_SELF), MPI.COMM_SELF)
    sizes = {(each.settings["plan.pp"], each.settings["plan.dp"]) for each in found.best}
    assert sizes == {(4, 1), (4, 2)}
    for each in found.best:
        dp, pp = each.settings["plan.dp"], each.settings["plan.pp"]
        assert (each.gpus, each.tokens) == (2 * pp * dp, 64 * dp)
    said = answer_lines(space, found)[-1]
    best = found.best[0].settings
    assert f"--dp {best['plan.dp']} --pp {best['plan.pp']}" in said


def test_micro_batches_of_a_job(tmp_path: Path) -> None:
    from parallel_jobs import GPT, recorded

    recorded(GPT, 32, tmp_path)
    given = {
        "workload": {"trace": str(tmp_path / "traces"), "traced_batch": 32},
        "cluster": {"preset": "dgx-h100"},
        "search": {
            "objectives": ["tokens_per_second"],
            "vary": {"workload.micro_batches": [4, 8], "plan.dp": [2, 4]},
        },
    }
    space = read_search(given, "x.toml")
    found = answer(space, explore(space, MPI.COMM_SELF), MPI.COMM_SELF)
    for each in found.best:
        dp, micro = each.settings["plan.dp"], each.settings["workload.micro_batches"]
        assert each.tokens == 32 * dp // 2 * micro // 4
    assert "--micro-batches 8" in answer_lines(space, found)[-1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"search": {"vary": {"plan.dq": [1]}}}, None),
        ({"search": {"vary": {"model.layers": [1]}}}, "no key of an experiment"),
        ({"search": {"vary": {"plan.order": "auto"}}}, "that is for plan.tp"),
        ({"search": {"vary": {"plan.tp": [0]}}}, "plan.tp"),
        (
            {"search": {"vary": {"workload.layout": ["tp=2"]}}},
            "cannot vary over a trace of one GPU",
        ),
        ({"search": {"vary": "auto", "objectives": ["memory"]}}, "which a trace does not tell"),
        ({"search": {"vary": "auto", "max_price": 5.0}}, "max_price"),
        ({"workload": {"program": "x.h5"}}, "a program's plan is fixed"),
        ({"workload": {"trace": "nowhere.json"}}, "nowhere.json"),
        ({"cluster": {"preset": "dgx-h100", "nodes": "1"}}, "cluster.nodes' is '1'"),
    ],
)
def test_bad_tables_are_one_line(vgg: Path, change: dict[str, Any], said: str | None) -> None:
    given = tables(vgg, {"plan.tp": [1]}) | change
    with pytest.raises(InputError, match=said) as error:
        explore(read_search(given, "x.toml"), MPI.COMM_SELF)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ({"plan.tp": [1, 2]}, "several ranks, whose plan is as recorded"),
        ({"plan.dp": "auto"}, "a trace of several ranks has none"),
        ({"plan.dp": [0]}, "plan.dp"),
    ],
)
def test_what_a_job_cannot_vary(shared: Path, vary: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        job_space(shared, vary)


@pytest.mark.parametrize("nodes", ["2", 0, 1.5])
def test_the_nodes_of_a_job_are_a_number(shared: Path, nodes: object) -> None:
    space = job_space(shared, {"cluster.preset": ["a800-8gpu"]})
    space.tables["cluster"]["nodes"] = nodes
    with pytest.raises(InputError, match=r"key 'cluster\.nodes' is") as error:
        explore(space, MPI.COMM_SELF)
    assert "\n" not in str(error.value)


def test_the_command(vgg: Path, tmp_path: Path, run_mpisim: Any) -> None:
    file, store = tmp_path / "grown.toml", tmp_path / "s.h5"
    file.write_text(
        f"""
        [workload]
        trace = "{vgg}"
        traced_gpu = "h100-sxm"
        [plan]
        global_batch = 128
        [cluster]
        preset = "dgx-h100"
        nodes = 1
        gpus = 4
        [search.vary]
        plan.zero = [0, 1, 3]
        """
    )
    first = run_mpisim(["search", file, "-o", store, "--json", tmp_path / "s.json"])
    assert first.rc == 0, first.stderr
    said = first.stdout.removesuffix("\n").rsplit("\n", 1)[0]
    for again in (["search", "-o", store, "--resume"], ["report", store]):
        found = run_mpisim(again)
        assert (found.rc, found.stdout) == (0, f"{said}\n")
    spread = run_mpisim(["search", file], nprocs=2)
    assert (spread.rc, spread.stdout) == (0, f"{said}\n")
    best = json.loads((tmp_path / "s.json").read_text())["best"][0]
    run = run_mpisim(["run", file, "--set", f"plan.zero={best['settings']['plan.zero']}"])
    assert f"{best['step_ps'] / 1e9:,.3f} ms" in run.stdout
    job = run_mpisim(
        ["run", file, "--set", f"workload.trace={vgg.parents[1] / Path(MEGATRON).name}"]
    )
    assert job.rc == 2
    assert "of several ranks" in job.stderr
