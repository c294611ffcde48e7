"""Captured steps of one rank, extrapolated: beside their own programs, and beside captured jobs.

The recordings at the head are written by hand and need no PyTorch; the scripts of
``tests/captured`` at the end are captured alone and as a job.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from captures import SCRIPTS, alone, needs, script
from mpi4py import MPI

from mpisim import engine
from mpisim.base.errors import InputError
from mpisim.base.kinds import Kind, Operation, Phase
from mpisim.capture.kept_step import kept_step, recording_of
from mpisim.capture.lower import Part, program_of
from mpisim.capture.recording import (
    Completed,
    Item,
    ItemKind,
    Origin,
    Recording,
)
from mpisim.cli import main
from mpisim.experiment import ProgramExperiment
from mpisim.export.captured_operators import captured_operators_around
from mpisim.extrapolate import Target, TracedStep, extrapolate, read_step
from mpisim.extrapolate.tensor_parallel import splits_of
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import analytical_model
from mpisim.operators import OperatorCall, TensorSpec
from mpisim.prediction.prepared_program import prepare_captured
from mpisim.program import Program, load, save
from mpisim.simulate import simulate
from mpisim.traces.export import Added, export_kineto

ROWS, WIDTH, LAYERS = 256, 512, 4
GPU = "h100-sxm"
H100 = analytical_model(find_gpu(GPU))


def spec(*shape: int) -> TensorSpec:
    return TensorSpec("float32", shape)


class Written:
    """A recording that is written by hand: blocks of a square matrix and a ReLU, trained by SGD."""

    def __init__(self, world: int = 1) -> None:
        blocks = [("Net_0", f"Block_{i}") for i in range(LAYERS)]
        self.recording = Recording(0, world, groups=[tuple(range(world))], steps=1, torch="2")
        self.recording.modules += blocks
        self.recording.parameters += [spec(WIDTH, WIDTH) for _ in blocks]
        self.node = 10

    def call(self, name: str, phase: Phase, origin: Origin, *inputs: object) -> None:
        """Add a call that has its first input's shape as its result."""
        call = OperatorCall(name, inputs, (spec(ROWS, WIDTH),))  # type: ignore[arg-type]
        recording = self.recording
        if call not in recording.calls:
            recording.calls.append(call)
        recording.items.append(
            Item(
                *(ItemKind.CALL, recording.calls.index(call), 0, (), -1, -1, -1, False, phase),
                *(-1, name.removeprefix("aten::"), 0),
                origin=origin,
            )
        )

    def step(self, passes: int = 1) -> Recording:
        """Return a step of so many forward and backward passes."""
        x, w = spec(ROWS, WIDTH), spec(WIDTH, WIDTH)
        for _ in range(passes):
            for layer in range(LAYERS):
                made = Origin(self.node + 2, False, layer + 1, (layer,))
                self.call("aten::mm", Phase.FORWARD, made, x, w)
                self.call("aten::relu", Phase.FORWARD, made._replace(node=self.node + 3,
                          parameters=()), x)  # fmt: skip
                self.node += 3
            for layer in reversed(range(LAYERS)):
                of = 10 + 3 * layer
                back = Phase.BACKWARD
                self.call("aten::threshold_backward", back, Origin(of + 2, True), x, x, 0)
                if layer:
                    self.call("aten::mm", back, Origin(of + 1, True, 0, (layer,)), x, w)
                gradient = OperatorCall("aten::mm", (spec(WIDTH, ROWS), x), (w,))
                self.call(gradient.name, back, Origin(of + 1, True), *gradient.inputs)
                self.recording.completed.append(Completed(len(self.recording.items), layer))
        weights = tuple(self.recording.parameters)
        self.call("aten::_foreach_add_", Phase.OPTIMIZER, Origin(), weights, weights, -0.1)
        return self.recording


def saved(recording: Recording, path: Path) -> Program:
    """Save the program of a job whose ranks all do the same, and return it."""
    program = program_of([Part(recording, tuple(range(recording.world)))], H100)
    save(program, path)
    return program


def length(program: Program) -> int:
    return engine.simulate(program).step_time


def sent(program: Program, rank: int = 0) -> Counter[str]:
    """Bytes of a rank by kind of communication."""
    table = program.table_of(rank)
    found: Counter[str] = Counter()
    for row in np.flatnonzero(table.is_communication).tolist():
        kind = Kind(int(table.kind[row]))
        name = Operation(int(table.operation[row])).name if kind is Kind.COLLECTIVE else kind.name
        found[name] += int(table.bytes[row])
    return found


def predicted(program: Program) -> float:
    """Step of a program on one DGX H100, with slowdown, in seconds."""
    tables = {"cluster": {"preset": "dgx-h100", "nodes": 1}}
    prepared = prepare_captured(ProgramExperiment("", tables, source="program"), program)
    results = simulate(prepared, MPI.COMM_SELF)
    assert results is not None
    return results.step_time_ps / 1e12


# --- written by hand ------------------------------------------------------------------------------


def test_what_is_kept_is_read_again() -> None:
    recording = Written().step()
    again = recording_of(kept_step(recording), "here")
    for name in ("calls", "items", "modules", "parameters", "completed", "groups", "steps"):
        assert getattr(again, name) == getattr(recording, name), name


def test_a_captured_step_takes_its_own_time(tmp_path: Path) -> None:
    program = saved(Written().step(), tmp_path / "one.h5")
    step = read_step(tmp_path / "one.h5")
    assert step.priced
    assert step.batch == ROWS
    assert len(step.layers()) == LAYERS
    found = extrapolate(step, Target("dgx-h100", {}))
    assert length(found.program) == length(program)
    assert any("no kernel was measured" in line for line in found.assumptions)


def test_an_exported_run_is_read_as_the_captured_step(tmp_path: Path) -> None:
    """Kineto's file has the operators, nodes, modules and gradients, and times besides."""
    path = tmp_path / "one.h5"
    program = saved(Written().step(), path)
    run = engine.simulate(program)
    around = captured_operators_around(program)
    export_kineto(
        program, run, tmp_path / "traces", added=lambda _, rank: Added(step=0, around=around)
    )
    steps = read_step(path), read_step(tmp_path / "traces", gpu=GPU)
    assert [each.batch for each in steps] == [ROWS, ROWS]

    def told(step: TracedStep) -> list[object]:
        names = [(each.name, each.layer, each.parameters) for each in step.operators]
        counts = [(len(each.forward), len(each.backward)) for each in step.operators]
        return [*names, *counts, len(step.optimizer), step.accumulates]

    assert told(steps[0]) == told(steps[1])
    for plan in ({}, {"dp": 8}, {"dp": 8, "zero": 3}, {"tp": 2}, {"pp": 2}):
        first, second = (extrapolate(step, Target("dgx-h100", plan)).program for step in steps)
        assert sent(first) == sent(second), plan
        assert predicted(second) == pytest.approx(predicted(first), rel=0.005), plan


def test_a_program_without_its_step_has_no_operators(tmp_path: Path) -> None:
    program = saved(Written(world=8).step(), tmp_path / "eight.h5")
    assert captured_operators_around(program) == {}


def test_another_gpu_is_priced_anew(tmp_path: Path) -> None:
    recording = Written().step()
    saved(recording, tmp_path / "one.h5")
    found = extrapolate(read_step(tmp_path / "one.h5"), Target("dgx-a100", {}))
    a100 = analytical_model(find_gpu("a100-sxm"))
    assert found.step.gpu == "a100-sxm"
    assert length(found.program) == length(program_of([Part(recording, (0,))], a100))


def test_bytes_are_those_of_the_plan(tmp_path: Path) -> None:
    saved(Written().step(), tmp_path / "one.h5")
    step = read_step(tmp_path / "one.h5")
    weights = 4 * LAYERS * WIDTH * WIDTH
    message = 4 * ROWS * WIDTH

    def bytes_of(**plan: object) -> Counter[str]:
        return sent(extrapolate(step, Target("dgx-h100", plan)).program)

    assert bytes_of(dp=8) == {"ALL_REDUCE": weights}
    assert bytes_of(dp=8, zero=3)["REDUCE_SCATTER"] == weights
    assert bytes_of(pp=2) == {"SEND": message, "RECV": message}
    # Columns, rows, twice: each pair sums its output, and the second its input's gradient.
    assert bytes_of(tp=2) == {"ALL_REDUCE": 3 * message}


def test_a_batch_that_is_twice_as_large(tmp_path: Path) -> None:
    saved(Written().step(), tmp_path / "one.h5")
    found = extrapolate(read_step(tmp_path / "one.h5"), Target("dgx-h100", {}, batch=2 * ROWS))
    # Forward, and both gradients of each layer but for the first input's.
    products = (3 * LAYERS - 1) * 2 * (2 * ROWS * WIDTH * WIDTH)
    assert found.workload.flops == products


def test_a_job_of_many_ranks_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "eight.h5"
    saved(Written(world=8).step(), path)
    assert main(["extrapolate", str(path), "--plan", "dp=8"]) == 2
    error = capsys.readouterr().err
    assert "a captured job of 8 ranks" in error
    assert "mpisim capture --world-size 1" in error
    assert error.count("\n") == 1


def test_passes_that_take_turns_are_refused(tmp_path: Path) -> None:
    saved(Written().step(passes=2), tmp_path / "two.h5")
    with pytest.raises(InputError, match="take turns in a step"):
        read_step(tmp_path / "two.h5")


def test_lines_are_fitted_to_measured_times_alone(tmp_path: Path) -> None:
    saved(Written().step(), tmp_path / "one.h5")
    with pytest.raises(InputError, match="--scaling li"):
        extrapolate(read_step(tmp_path / "one.h5"), Target("dgx-h100", {}, scaling="li"))


def test_a_damaged_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="damaged"):
        recording_of(kept_step(Written().step())[:-9], "here.h5")


def test_an_experiment_and_a_search_take_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(Written().step(), tmp_path / "one.h5")
    toml = tmp_path / "grown.toml"
    toml.write_text(
        '[workload]\ntrace = "one.h5"\n[plan]\nglobal_batch = 2048\n'
        '[cluster]\npreset = "dgx-h100"\nnodes = 1\n[search]\nvary = {"plan.zero" = [0, 3]}\n'
    )
    assert main(["run", str(toml)]) == 0
    assert re.search(r"^ranks +8 ", capsys.readouterr().out, re.MULTILINE)
    assert main(["search", str(toml)]) == 0
    assert "plan.zero" in capsys.readouterr().out


# --- captured -------------------------------------------------------------------------------------


def captured(
    folder: Path, name: str, *arguments: str, world: int = 1, without: tuple[str, ...] = ()
) -> Program:
    """Capture a script of ``tests/captured``, save its program, and return it."""
    parts = alone(script(SCRIPTS / name, *arguments, world=world, without=without))
    path = folder / f"{world}.h5"
    save(program_of(parts, H100), path, overwrite=True)
    return load(path)


def grown(folder: Path, batch: int | None = None, **plan: object) -> Program:
    return extrapolate(read_step(folder / "1.h5"), Target("dgx-h100", plan, batch)).program


BUFFERS = 256
"""Bytes of RoPE's frequencies, which DistributedDataParallel broadcasts."""


@needs("transformers")
@pytest.mark.timeout(900)
def test_llama_grown_is_the_captured_job(in_scripts: None, tmp_path: Path) -> None:
    alone_ = captured(tmp_path, "hf_llama.py", "4", "none", "6")
    assert length(grown(tmp_path)) == length(alone_)
    replicated = captured(tmp_path, "hf_llama.py", "4", "ddp", "6", world=8)
    assert sent(replicated) - Counter(BROADCAST=BUFFERS) == sent(grown(tmp_path, dp=8))
    assert predicted(grown(tmp_path, dp=8)) == pytest.approx(predicted(replicated), rel=0.03)
    sharded = captured(tmp_path, "hf_llama.py", "4", "fsdp2", "6", world=8)
    assert sent(sharded) == sent(grown(tmp_path, dp=8, zero=3))
    assert predicted(grown(tmp_path, dp=8, zero=3)) == pytest.approx(predicted(sharded), rel=0.03)


@needs()
def test_queries_of_a_decoder_have_an_input_of_their_own(in_scripts: None, tmp_path: Path) -> None:
    """Each layer reduces two gradients of attention's inputs, a decoder's cross attention two."""
    layers = 3
    captured(tmp_path, "encoder_decoder.py", str(layers))
    splits = splits_of(read_step(tmp_path / "1.h5"), 2)
    first = [each.first for each in splits.values() if each.kind == "column" and each.inputs == 512]
    own = [True, False, False, True]  # queries, keys and values; up
    cross = [True, True, False]  # queries; keys and values
    head = [True]
    assert first == layers * own + layers * (own[:3] + cross + own[3:]) + head
    activation = 2 * 4 * 256 * 512
    table = grown(tmp_path, tp=2).table_of(0)
    sizes = table.bytes[table.operation == Operation.ALL_REDUCE]
    # Forward 2 outputs of a layer, 3 with cross attention; backward 2 and 4 gradients of inputs,
    # one of the head's; both embeddings.
    assert (sizes == activation).sum() == layers * (2 + 2) + layers * (3 + 4) + 1 + 2


@needs("timm")
@pytest.mark.timeout(900)
def test_resnet_grown_is_the_captured_job(in_scripts: None, tmp_path: Path) -> None:
    captured(tmp_path, "resnet50.py")  # of one rank, in DistributedDataParallel
    job = captured(tmp_path, "resnet50.py", world=8)
    found = grown(tmp_path, dp=8)
    assert sent(found) == sent(job)
    assert predicted(found) == pytest.approx(predicted(job), rel=0.03)


@needs("megatron-core")
@pytest.mark.timeout(900)
def test_megatron_grown_is_the_captured_job(in_scripts: None, tmp_path: Path) -> None:
    def of(tp: int, pp: int, micro_batches: int) -> Program:
        words = map(str, (tp, pp, 1, 4, micro_batches))
        return captured(
            tmp_path,
            "megatron_gpt.py",
            *words,
            "gpt_unsharded",
            world=tp * pp,
            without=("apex", "transformer_engine"),
        )

    of(1, 1, 1)
    norm = Counter(ALL_REDUCE=4)  # of the gradients
    split, found = of(2, 1, 1), grown(tmp_path, tp=2)
    assert sent(split) - norm == sent(found)
    assert predicted(found) == pytest.approx(predicted(split), rel=0.03)
    cut, found = of(1, 2, 4), grown(tmp_path, batch=4, pp=2, micro_batch=1)
    assert [sent(cut, rank) - norm for rank in (0, 1)] == [sent(found, rank) for rank in (0, 1)]
    assert predicted(found) == pytest.approx(predicted(cut), rel=0.03)
