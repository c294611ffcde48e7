"""A traced step whose images the CPUs of a node prepare, and what a trace shows of its loader."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import mpi4py.MPI
import pytest
from bench import extrapolate_closed_loop as loop

from mpisim import engine
from mpisim.base.errors import InputError, UsageError
from mpisim.cli import main
from mpisim.experiment import DataChoice, ProgramExperiment, load_any
from mpisim.experiment.serialization import deserialize_any, serialize_any
from mpisim.extrapolate import Extrapolated, Target, TracedStep, extrapolate, read_step
from mpisim.extrapolate.prepare import prepare_workload
from mpisim.extrapolate.traced_input import shows_upload, side_of_images
from mpisim.prediction.prepared_program import PreparedProgram, prepare_captured
from mpisim.simulate import simulate
from mpisim.workloads.input_pipeline import PREPARE, UPLOAD, preparation_times

SLOW = DataChoice(images="jpeg", loader="pillow", cores=8)
"""So few cores that 8 GPUs wait for their images."""

KEYS = '[data]\nimages = "jpeg"\nloader = "pillow"\ncores = 8'
"""The same in an experiment."""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> TracedStep:
    """A generated step of synthetic images."""
    return loop.traced(loop.MODELS["resnet-50"], tmp_path_factory.mktemp("traces") / "trace")


@pytest.fixture(scope="module")
def recorded(shared: Path) -> TracedStep:
    """A step of a DataLoader without workers."""
    trace = shared / "traces/resnet50_v100_1gpu_workers0/kineto.json.gz"
    return read_step(trace, gpu="v100-sxm2-32gb", step=6)


def seconds(found: Extrapolated) -> float:
    cluster = {"preset": found.target.cluster, "nodes": found.nodes}
    prepared = prepare_captured(
        ProgramExperiment("", {"cluster": cluster}, source="trace"), found.program
    )
    return engine.simulate(found.program, network=prepared.network).step_time / 1e12


@pytest.mark.parametrize(
    ("plan", "gpus"), [({"dp": 1}, 1), ({"dp": 8}, 8), ({"dp": 16, "zero": 1}, 16)]
)
def test_images_as_in_a_generated_experiment(
    generated: TracedStep, plan: dict[str, Any], gpus: int
) -> None:
    model = loop.MODELS["resnet-50"]
    found = extrapolate(generated, Target(loop.A100[0], plan, data=SLOW))
    with_input = model._replace(keys=f"{model.keys}\n{KEYS}")
    ours = loop.generated(
        with_input, {**plan, "micro_batch": model.batch}, gpus * model.batch, gpus
    )
    run = engine.simulate(ours.program, network=ours.network)
    assert seconds(found) == pytest.approx(run.step_time / 1e12, rel=0.005)
    names = {*found.program.names}
    assert {PREPARE, UPLOAD} <= names
    assert preparation_times(found.program) == preparation_times(ours.program)


def test_gpus_of_a_node_share_its_cores(generated: TracedStep) -> None:
    """Cores at work are 8, less half a core for each GPU's process; 8 GPUs have a twelfth each."""
    one, eight = (
        preparation_times(extrapolate(generated, Target("dgx-a100", {"dp": dp}, data=SLOW)).program)
        for dp in (1, 8)
    )
    assert max(eight) / max(one) == pytest.approx(8 * 7.5 / 4)
    step = seconds(extrapolate(generated, Target("dgx-a100", {"dp": 8}, data=SLOW)))
    assert step == pytest.approx(max(eight) / 1e12, rel=0.01)  # GPUs wait for images


def test_what_the_trace_loads_is_taken_out(recorded: TracedStep) -> None:
    assert recorded.loader == "process"
    assert (side_of_images(recorded), shows_upload(recorded)) == (224, 4 * 32 * 3 * 224**2)
    dgx = "dgx-v100"
    as_traced = extrapolate(recorded, Target(dgx, {"dp": 8}))
    without = extrapolate(recorded, Target(dgx, {"dp": 8}, data=DataChoice()))
    ends = [seconds(each) for each in (as_traced, without)]
    assert ends[0] - ends[1] == pytest.approx(recorded.loading / 1e12, rel=0.01)
    loads = extrapolate(recorded, Target(dgx, {"dp": 8}, data=DataChoice("jpeg", "dali-cpu")))
    assert UPLOAD not in loads.program.names  # the trace has that copy
    said = {
        what: next(line for line in found.assumptions if "DataLoader" in line)
        for what, found in (("kept", as_traced), ("out", without))
    }
    assert "a DataLoader without workers: kept" in said["kept"]
    assert "not to share its cores" in said["kept"]
    assert "taken out" in said["out"]
    assert any(line.startswith("input: DALI on the CPU prepares") for line in loads.assumptions)


def test_waiting_for_workers_is_kept_as_traced(shared: Path, tmp_path: Path) -> None:
    """Of a batch twice as large the workers' wait is not known."""
    trace = shared / "traces/resnet50_v100_1gpu_workers0/kineto.json.gz"
    with gzip.open(trace, "rt") as file:
        text = file.read()
    (tmp_path / "kineto.json").write_text(text.replace("_SingleProcess", "_MultiProcessing"))
    step = read_step(tmp_path / "kineto.json", gpu="v100-sxm2-32gb", step=6)
    assert step.loader == "workers"
    grown = [extrapolate(step, Target("dgx-v100", {}, n * step.batch)) for n in (1, 2)]
    once, twice = (int(each.program.table_of(0).host.sum()) for each in grown)
    assert once == twice
    lines = extrapolate(step, Target("dgx-v100", {})).assumptions
    assert any("for the workers of a DataLoader: kept as traced" in line for line in lines)


def test_an_experiment_says_where_samples_come_from(shared: Path, tmp_path: Path) -> None:
    trace = shared / "traces/resnet50_v100_1gpu_workers0/kineto.json.gz"
    file = tmp_path / "grown.toml"
    file.write_text(
        f'[workload]\ntrace = "{trace}"\ntraced_gpu = "v100-sxm2-32gb"\ntraced_step = 6\n'
        f'[cluster]\npreset = "dgx-v100"\ngpus = 8\n{KEYS}\n'
    )
    experiment = load_any(file, ["data.cores=6"])[1]
    assert isinstance(experiment, ProgramExperiment)
    assert experiment.data == DataChoice(images="jpeg", loader="pillow", cores=6)
    again = deserialize_any(serialize_any(experiment), "results")
    assert isinstance(again, ProgramExperiment)
    assert again.data == experiment.data

    def run(*changes: str) -> Any:
        experiment = load_any(file, changes)[1]
        assert isinstance(experiment, ProgramExperiment)
        prepared = prepare_workload(experiment)
        assert isinstance(prepared, PreparedProgram)
        return simulate(prepared, mpi4py.MPI.COMM_SELF)

    slow, fast = run(), run("scale.data_loading=1.25")
    assert slow.step_time_ps / fast.step_time_ps == pytest.approx(1.25, rel=0.01)
    for each in (slow, fast):  # a rate of a core, and what else it is proportional to
        assert any("rate of pillow" in line for line in each.attributes["uncertainty_sources"])
        assert 0.4 < each.attributes["uncertainty"] < 0.9


def test_images_of_a_model_without_any(tmp_path: Path) -> None:
    step = loop.traced(loop.MODELS["gpt2"], tmp_path / "trace")
    with pytest.raises(InputError, match=r"takes no images: its first layer .*embedding"):
        extrapolate(step, Target("dgx-a100", {}, data=SLOW))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("cluster.nodes=2", "--cluster says this"),
        ("plan.dp=2", "--plan says this"),
        ("framework.name=ddp", "--plan says this"),
        ("dat.images=jpeg", "no table 'dat' (did you mean 'data'?)"),
        ("data.image=jpeg", "did you mean 'images'"),
        ("data.images=png", "allowed: synthetic, jpeg"),
        ("data.workers=4", "data.workers has no effect: data.images is 'synthetic'"),
        ("scale.data_loading=2", "the program prepares no images"),
    ],
)
def test_what_cannot_be_set(
    shared: Path, change: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = shared / "traces/triosim_vgg13_h100_1gpu/kineto.json.gz"
    assert main(["extrapolate", str(trace), "--set", change]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_program_has_no_input_to_choose(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('[workload]\nprogram = "p.h5"\n[data]\nimages = "jpeg"\n')
    with pytest.raises(UsageError, match=r"key 'data.images' is given, but the program file"):
        load_any(tmp_path / "p.toml")


def test_results_of_set_keys_can_be_exported(shared: Path, tmp_path: Path) -> None:
    """The run is made again with the same images."""
    trace = str(shared / "traces/resnet50_v100_1gpu_workers0/kineto.json.gz")
    options = ["--step", "6", "--traced-gpu", "v100-sxm2-32gb", "--cluster", "dgx-v100"]
    keys = ["--plan", "dp=2", "--set", "data.images=jpeg", "-o", str(tmp_path / "run.h5")]
    assert main(["extrapolate", trace, *options, *keys]) == 0
    out = ["--format", "chrome", "-o", str(tmp_path / "out")]
    assert main(["export", str(tmp_path / "run.h5"), *out]) == 0
    with gzip.open(min((tmp_path / "out").glob("*.gz")), "rt") as file:
        events = json.load(file)["traceEvents"]
    assert any(PREPARE in str(each.get("name")) for each in events)
