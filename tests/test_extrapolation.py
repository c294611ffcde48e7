"""Tests of steps that two shorter ones tell the time of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from plans import plan_text

from mpisim.base.errors import InputError
from mpisim.experiment import Experiment
from mpisim.experiment import read as read_experiment
from mpisim.prediction import extrapolation
from mpisim.prediction.execution import execute
from mpisim.prediction.extrapolation import (
    MAX_EXTRAPOLATION_ERROR,
    ShortenedRun,
    SteadyRun,
    extrapolate,
    is_periodic,
    shortened_run,
    shortened_runs,
    steady_run,
    step_time,
    with_micro_batches,
)
from mpisim.prediction.memory_fit import verdict
from mpisim.prediction.prepared import prepare

pytestmark = pytest.mark.two_processes


def experiment(micro_batches: int, nodes: int = 1, extra: str = "", **plan: Any) -> Experiment:
    """A small GPT on A100s, so many micro-batches a replica."""
    plan = {"tp": 2, "pp": 4, "schedule": "1f1b", "micro_batch": 1, **plan}
    replicas = nodes * 8 // (plan["tp"] * plan["pp"])
    plan["global_batch"] = micro_batches * replicas * plan["micro_batch"]
    return read_experiment(
        "[model]\nfamily = 'gpt'\nlayers = 8\nhidden = 2048\nheads = 16\nvocab = 51200\n"
        f"seq_len = 1024\n{plan_text(**plan)}"
        f"[cluster]\npreset = 'dgx-a100'\nnodes = {nodes}\n{extra}",
        "long.toml",
    )


def test_what_is_simulated_instead() -> None:
    # 4 stages are full with 4 micro-batches; rounds of 2.
    assert shortened_run(experiment(64)) == (4, 6, 64)
    assert shortened_run(experiment(65)) == (5, 7, 65)
    assert shortened_run(experiment(12)) is None  # 4 and 6 are nearly as many
    # Groups of as many as there are stages; DualPipe needs twice as many to begin with.
    assert shortened_run(experiment(64, schedule="interleaved", vpp=2)) == (4, 8, 64)
    assert shortened_run(experiment(64, schedule="dualpipe")) == (12, 14, 64)
    # A stage of its own: no pipeline to fill.
    assert shortened_run(experiment(64, tp=2, pp=1)) == (4, 6, 64)


def test_two_longer_steps_are_asked_where_shorter_ones_do_not_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = experiment(64)
    first, later = shortened_runs(one)
    assert (first, later) == ((4, 6, 64), (12, 14, 64))
    assert shortened_runs(experiment(24)) == [(4, 6, 24)]  # 12 and 14 are nearly as many
    assert shortened_runs(experiment(12)) == []
    whole = step_time(one, MPI.COMM_SELF, every=True)
    told: list[ShortenedRun] = []
    monkeypatch.setattr(extrapolation, "steady_run", lambda _: None)
    monkeypatch.setattr(extrapolation, "is_periodic", lambda *_: _[-1] in told)
    assert step_time(one, MPI.COMM_SELF) == whole
    told.append(later)
    found = step_time(one, MPI.COMM_SELF)
    assert found.rounds == later
    assert found.picoseconds == pytest.approx(whole.picoseconds, rel=MAX_EXTRAPOLATION_ERROR)


def test_what_is_simulated_in_full() -> None:
    one = experiment(64)
    assert shortened_run(with_micro_batches(one, 64)) == shortened_run(one)
    assert with_micro_batches(one, 8).plan.global_batch == 8
    assert shortened_run(experiment(64, extra="[variation]\nkernels = 0.02\n")) is None
    uneven = experiment(64, nodes=2, replica_batch=[48, 80])
    assert shortened_run(uneven) is None
    assert shortened_run(experiment(64, schedule="zb-h1")) is None
    # Gradients reduced in every micro-batch, in a pipeline and without one.
    assert shortened_run(experiment(64, zero=2, dp_style="deepspeed")) is None
    assert shortened_run(experiment(64, pp=1, zero=2, dp_style="deepspeed")) == (4, 6, 64)


def test_extended() -> None:
    assert extrapolate(8.0, 12.0, ShortenedRun(8, 12, 64)) == 64.0


def test_a_stream_that_falls_behind_is_not_periodic() -> None:
    rounds = ShortenedRun(4, 6, 106)  # 50 further times what lies between
    at_first, one, more = np.array([[90, 100]]), np.array([[110, 130]]), np.array([[111, 131]])
    # A round takes 30, and the step 1,630. Nothing takes longer than that …
    assert is_periodic(at_first, one, (100.0, 130.0), rounds)
    # … and a stream that takes 31 would make it longer by 50, if it had no lead.
    assert MAX_EXTRAPOLATION_ERROR * 1630 < 50
    assert not is_periodic(at_first, more, (100.0, 130.0), rounds)


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"tp": 8, "pp": 1},
        {"zero": 1, "recompute": "full"},
        {"schedule": "interleaved", "vpp": 2},
        {"schedule": "gpipe", "overlap_p2p": True},
        {"schedule": "dualpipe", "pp": 2},
        {"tp": 4, "pp": 2, "cuda_graphs": True},
    ],
    ids=lambda plan: "-".join(map(str, plan.values())) or "1f1b",
)
def test_as_all_micro_batches(plan: dict[str, Any]) -> None:
    one = experiment(32, nodes=2, **plan)
    found = step_time(one, MPI.COMM_SELF)
    every = step_time(one, MPI.COMM_SELF, every=True)
    assert every.rounds is None
    assert found.picoseconds == pytest.approx(every.picoseconds, rel=MAX_EXTRAPOLATION_ERROR)
    assert (found.memory, found.tokens) == (every.memory, every.tokens)
    assert ("32 micro-batches from" in found.assumption) == (found.rounds is not None)


def test_a_plan_that_does_not_fit_is_refused() -> None:
    # The two shorter steps would fit: GPipe keeps activations of all micro-batches.
    large = experiment(512, schedule="gpipe", micro_batch=8)
    assert not verdict_of(large)
    assert verdict_of(with_micro_batches(large, 6))
    with pytest.raises(InputError, match=r"long.toml: the plan does not fit"):
        step_time(large, MPI.COMM_SELF)


def verdict_of(one: Experiment) -> bool:
    """Whether it fits."""
    try:
        return verdict(one).fits
    except InputError:
        return False


@pytest.mark.mpi
def test_how_long_rows_take() -> None:
    """Without the timeline: the same, where links are shared and rows are slowed, too."""
    prepared = prepare(experiment(8, nodes=2, tp=4, pp=2))
    run, _ = execute(prepared, MPI.COMM_SELF, digest=False)
    assert not run.digest
    assert run.contended > 0
    for i in run.simulated.tolist():
        rows, device = run.rows(i), run.program.table_of(int(run.hosted[i])).is_device
        assert np.array_equal(run.lasting(i)[device], (rows.end - rows.wire)[device])


@pytest.mark.mpi
def test_any_number_of_processes() -> None:
    one = experiment(32, nodes=2)
    assert step_time(one, MPI.COMM_WORLD) == step_time(one, MPI.COMM_SELF)


def test_steps_that_differ_in_batch_alone_share_shorter_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long, longer, another = experiment(64), experiment(96), experiment(64, zero=0)
    alone = [step_time(one, MPI.COMM_SELF) for one in (long, longer, another)]
    runs: list[int] = []
    simulated = extrapolation.execute

    def counted(prepared: Any, *args: Any, **options: Any) -> Any:
        runs.append(prepared.experiment.plan.global_batch)
        return simulated(prepared, *args, **options)

    monkeypatch.setattr(extrapolation, "execute", counted)
    steps = extrapolation.StepCache()
    shared = [step_time(one, MPI.COMM_SELF, steps=steps) for one in (long, longer, another)]
    assert shared == alone
    assert shared[0].picoseconds < shared[1].picoseconds
    assert runs == [6, 6]  # of `longer` none
    runs.clear()
    monkeypatch.setattr(extrapolation, "steady_run", lambda _: None)
    pairs = [step_time(one, MPI.COMM_SELF, steps=steps) for one in (long, longer, another)]
    assert [each.picoseconds for each in pairs] == [each.picoseconds for each in alone]
    assert runs == [4, 6, 4, 6]


def test_what_is_simulated_instead_where_forwards_and_backwards_alternate() -> None:
    assert steady_run(experiment(64)) == (6, 64)
    assert steady_run(experiment(7)) == (6, 7)
    assert steady_run(experiment(6)) is None
    assert steady_run(experiment(64, pp=1)) == (4, 64)
    for key in (
        "overlap]\nmodel = 'coupled'",
        "variation]\nkernels = 0.02",
        "variation]\ngpus = 0.02",
    ):
        assert steady_run(experiment(64, extra=f"[{key}\n")) is None
    for plan in (
        {"schedule": "interleaved", "vpp": 2},
        {"schedule": "gpipe"},
        {"overlap_p2p": True},
        {"zero": 2, "dp_style": "deepspeed"},
    ):
        assert steady_run(experiment(64, **plan)) is None


@st.composite
def alternating(draw: st.DrawFn) -> Experiment:
    """Draw a plan whose forwards and backwards alternate, of more micro-batches than stages."""
    stages = draw(st.sampled_from([1, 2, 4]))
    zero = draw(st.integers(0, 3 if stages == 1 else 1))
    plan: dict[str, Any] = {
        "tp": draw(st.sampled_from([1, 2])),
        "pp": stages,
        "zero": zero,
        "micro_batch": draw(st.sampled_from([1, 2])),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "cuda_graphs": draw(st.booleans()),
    }
    if zero >= 2:
        plan["dp_style"] = "deepspeed"
    if plan["tp"] > 1:
        plan["sp"] = draw(st.booleans())
    extra = draw(st.sampled_from(["", "[overlap]\nmodel = 'off'\n"]))
    extra += draw(st.sampled_from(["", "[network]\ncontention = false\n"]))
    micro_batches = draw(st.integers(stages + 4, 3 * stages + 9))
    return experiment(micro_batches, draw(st.sampled_from([1, 2])), extra, **plan)


@settings(max_examples=40, deadline=None)
@given(alternating())
def test_one_shorter_step_tells_the_time_of_a_longer_one_exactly(one: Experiment) -> None:
    found, whole = (step_time(one, MPI.COMM_SELF, every=every) for every in (False, True))
    event("exactly" if isinstance(found.rounds, SteadyRun) else "not told")
    if isinstance(found.rounds, SteadyRun):
        assert found.picoseconds == whole.picoseconds
        assert "to the picosecond" in found.assumption
    assert found.tokens == whole.tokens
