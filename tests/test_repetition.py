"""Tests of steps that follow from two shorter ones: they are those of the whole step, exactly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from contended import random_links
from mpi4py import MPI
from plans import plan_text
from programs import repeating_program

from mpisim import engine, simulate
from mpisim.cli import main
from mpisim.engine.periodic_window import periodic_window
from mpisim.engine.repetition import Repetition, path_cycle, repeated
from mpisim.experiment import Experiment
from mpisim.experiment import read as read_experiment
from mpisim.prediction.long_steps import long_step
from mpisim.program import Program, ProgramBuilder

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.two_processes

ROUNDS = 16
"""Of the shorter of two runs."""


def simulated(program: Program, network: Any = None) -> engine.Run:
    return engine.simulate(program, network=network, critical_path=True)


def follows(
    programs: tuple[Program, Program], times: int, network: Any = None
) -> Repetition | None:
    """Return what follows from two programs of which the second has a round more."""
    shorter, longer = (simulated(program, network) for program in programs)
    window = periodic_window(shorter, longer, None)
    cycle = None if window is None else path_cycle(longer, window)
    if window is None or cycle is None or times % cycle.periods:
        return None
    cycle = cycle._replace(times=times // cycle.periods)
    return Repetition(shorter, longer, window, times, cycle)


def same_as_whole(repetition: Repetition, whole: engine.Run) -> None:
    found = repeated(repetition, None)
    assert found.step_time == whole.step_time
    assert (found.rank_end == whole.rank_end).all()
    assert found.digest == whole.digest
    assert found.critical_path is not None
    assert whole.critical_path is not None
    path = repetition.whole_path(found.critical_path)
    for field in dataclasses.fields(path):
        one, other = getattr(path, field.name), getattr(whole.critical_path, field.name)
        assert np.array_equal(one, other), field.name
    assert found.critical_path.lengths.sum() == whole.step_time


@pytest.mark.parametrize("part", range(4))
def test_programs_with_equal_rounds(part: int) -> None:
    n_found = 0
    for seed in range(part, 240, 4):
        more, times = 1 + seed % 3, 12  # rounds of a period, and how often it is inserted
        shorter, longer, whole = (
            repeating_program(seed, rounds)
            for rounds in (ROUNDS, ROUNDS + more, ROUNDS + more + more * times)
        )
        network = random_links(seed, whole.n_ranks)
        found = follows((shorter, longer), times, network)
        if found is not None:
            n_found += 1
            same_as_whole(found, simulated(whole, network))
    assert n_found >= 30


def loop(rounds: int, host: int, kernel: int, lead: int = 0) -> Program:
    """A CPU that launches a kernel a round, after it could begin so much before the device."""
    builder = ProgramBuilder()
    rows = builder.table()
    rows.kernel("first", 0, duration=lead)
    for _ in range(rounds):
        rows.kernel("kernel", 0, duration=kernel, host=host)
    builder.add_table(rows.build())
    builder.add_rank(0)
    return builder.build()


def test_a_cpu_that_falls_behind_is_not_periodic() -> None:
    """It begins a long time ahead of its device, and every round it is a little less so."""
    for lead, periodic in ((0, True), (1000, False)):
        runs = [simulated(loop(rounds, host=11, kernel=10, lead=lead)) for rounds in (10, 11)]
        assert (periodic_window(runs[0], runs[1], None) is not None) == periodic
    runs = [simulated(loop(rounds, host=9, kernel=10, lead=1000)) for rounds in (10, 11)]
    assert periodic_window(runs[0], runs[1], None) is not None


def test_a_stream_that_falls_behind_is_not_periodic() -> None:
    def program(rounds: int) -> Program:
        builder = ProgramBuilder()
        rows = builder.table()
        rows.kernel("early", 0, duration=1000)
        for _ in range(rounds):
            rows.kernel("kernel", 0, duration=10)
            last = rows.kernel("beside", 1, duration=11)  # may lag for 90 rounds
        rows.kernel("end", 0, duration=10, waits=[last])
        builder.add_table(rows.build())
        builder.add_rank(0)
        return builder.build()

    shorter, longer, whole = (simulated(program(rounds)) for rounds in (20, 21, 2000))
    assert longer.step_time - shorter.step_time == 10
    assert whole.step_time == 2000 * 11 + 10
    assert periodic_window(shorter, longer, None) is None


# --- steps of experiments -------------------------------------------------------------------------


def experiment(micro_batches: int, text: str = "", tokens: int = 2048, **plan: Any) -> Experiment:
    """A small GPT on two nodes of A100s."""
    plan = {"tp": 2, "pp": 4, "micro_batch": 1, **plan}
    replicas = 16 // (plan["tp"] * plan["pp"])
    plan["global_batch"] = micro_batches * replicas * plan["micro_batch"]
    return read_experiment(
        "[model]\nfamily = 'gpt'\nlayers = 8\nhidden = 2048\nheads = 16\nvocab = 51200\n"
        f"seq_len = {tokens}\n{plan_text(**plan)}[cluster]\npreset = 'dgx-a100'\nnodes = 2\n{text}",
        "long.toml",
        ["framework.name=none"],
    )


def differences(one: Any, other: Any, name: str = "") -> list[str]:
    """Return what differs between two results, but for what each says of its own making."""
    if dataclasses.is_dataclass(one):
        left_out = {"wall", "close", "rounds", "n_processes"}
        names = [field.name for field in dataclasses.fields(one) if field.name not in left_out]
        pairs = [(each, getattr(one, each), getattr(other, each)) for each in names]
    elif hasattr(one, "_asdict"):
        return differences(one._asdict(), other._asdict(), name)
    elif isinstance(one, Mapping):
        assert one.keys() == other.keys()
        pairs = [(each, one[each], other[each]) for each in one]
    elif isinstance(one, np.ndarray) and one.dtype.kind == "f":
        return [] if np.allclose(one, other, rtol=1e-9, equal_nan=True) else [name]
    elif isinstance(one, np.ndarray):
        return [] if np.array_equal(one, other) else [name]
    elif isinstance(one, float):
        return [] if one == pytest.approx(other, rel=1e-12) else [name]
    else:
        return [] if one == other else [name]
    return [each for key, *pair in pairs for each in differences(*pair, f"{name}.{key}")]


@pytest.mark.parametrize(
    "made",
    [
        lambda: experiment(128),
        lambda: experiment(131, schedule="1f1b", recompute="full"),
        lambda: experiment(256, schedule="interleaved", vpp=2),
        lambda: experiment(128, schedule="dualpipe"),
        lambda: experiment(96, tp=2, pp=1),  # links shared at the end
        lambda: experiment(96, tp=1, pp=1, zero=3),
        lambda: experiment(128, "[overlap]\nmodel = 'off'\n"),
        lambda: experiment(128, "[variation.speeds]\n3 = 0.9\n", 1024, tp=4),
        lambda: experiment(96, tp=8, pp=1, cuda_graphs=True),
    ],
)
def test_results_of_a_long_step_are_those_of_the_whole(made: Callable[[], Experiment]) -> None:
    one = made()
    assert long_step(one, MPI.COMM_SELF) is not None
    found, whole = simulate(one), simulate(one, repeat=False)
    assert found is not None
    assert whole is not None
    notes = [line for line in found.attributes["assumptions"] if "micro-batches from" in line]
    assert len(notes) == 1
    found.attributes["assumptions"].remove(notes[0])
    assert differences(found, whole) == []


@pytest.mark.parametrize(
    "made",
    [
        lambda: experiment(24),  # short
        lambda: experiment(128, schedule="gpipe"),
        lambda: experiment(128, schedule="zb-h1"),
        lambda: experiment(128, "[variation]\nkernels = 0.02\n"),
        lambda: experiment(128, "[variation.speeds]\n3 = 0.9\n", 1024),  # one replica is slower
        lambda: experiment(128, "[overlap]\nmodel = 'coupled'\n"),
    ],
)
def test_what_does_not_repeat_is_simulated_as_a_whole(made: Callable[[], Experiment]) -> None:
    assert long_step(made(), MPI.COMM_SELF) is None


@pytest.mark.mpi
def test_a_long_step_on_several_processes(comm: Intracomm) -> None:
    one = experiment(128)
    digests = []
    for fold in (None, False):
        for repeat in (True, False):
            found = simulate(one, comm, fold=fold, repeat=repeat)
            if found is not None:
                digests.append((found.step_time_ps, found.digest))
    assert len(set(digests)) == (comm.rank == 0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "long.toml"
    file.write_text(
        "[model]\npreset = 'llama3-8b'\n[plan]\nglobal_batch = 1024\n"
        "[cluster]\npreset = 'dgx-h100'\nnodes = 1\n[run]\nallow_oom = true\n"
    )
    reports = []
    for options in ([], ["--no-repeat"]):
        assert main(["run", "--details", str(file), *options]) == 0
        reports.append(capsys.readouterr().out)
    texts = ["128 micro-batches from" in report for report in reports]
    assert texts == [True, False]
    assert reports[0].splitlines()[:2] == reports[1].splitlines()[:2]  # step time and digest
