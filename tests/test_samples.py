"""Experiments with slow GPUs, other GPUs, uneven batches, jitter, and many seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from mpisim import engine, simulate
from mpisim.base.errors import InputError, UsageError
from mpisim.base.rank_ranges import parse_ranges
from mpisim.engine.fold import SplitReason
from mpisim.experiment import VariationChoice, read
from mpisim.prediction.execution import sample_statements, sampled_steps
from mpisim.prediction.prepared import PreparedExperiment, prepare
from mpisim.prediction.variation import with_variation

pytestmark = pytest.mark.mpi_calls

TEXT = """
[model]
preset = "gpt3-350m"
[plan]
tp = 2
pp = 2
micro_batch = 1
global_batch = 16
[cluster]
preset = "dgx-h100"
nodes = 2
"""
MIXED = ['cluster.other_gpus={"1"="a100-sxm"}']


def case(*changes: str) -> PreparedExperiment:
    return prepare(read(TEXT, "x.toml", changes))


def step(*changes: str) -> int:
    made = case(*changes)
    return engine.simulate(made.program, network=made.network).step_time


@pytest.mark.parametrize(
    ("text", "found"), [("3", [3]), ("0-2,8", [0, 1, 2, 8]), ("4, 1 - 2", [1, 2, 4])]
)
def test_numbers_as_people_write_them(text: str, found: list[int]) -> None:
    assert parse_ranges(text, "speeds", "rank") == found


@pytest.mark.parametrize("text", ["", "a", "3-", "-3", "5-2", "1,,2", "1.5"])
def test_what_names_no_numbers_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="speeds"):
        parse_ranges(text, "speeds", "rank")


def test_a_slow_gpu_slows_the_step_and_is_told_apart() -> None:
    large = ["plan.micro_batch=4", "plan.global_batch=64"]  # CPUs are not in the way
    made = case('variation.speeds={"5"=0.25}', *large)
    run = engine.simulate(made.program, network=made.network)
    # Its stage takes four times as long, the rest of its replica waits for it.
    assert 1.5 * step(*large) < run.step_time < 4 * step(*large)
    assert SplitReason.SPEED in run.classes.split_reason
    assert run.digest == engine.simulate(made.program, network=made.network, fold=False).digest


def test_speeds_of_ranks_that_are_not_there_or_twice() -> None:
    with pytest.raises(InputError, match="rank 16; there are ranks 0 to 15"):
        case('variation.speeds={"16"=0.5}')
    with pytest.raises(InputError, match="rank 3 is given a speed twice"):
        case('variation.speeds={"3"=0.5,"2-4"=0.7}')


def test_gpus_differ_by_chance_and_seeds_are_reproducible() -> None:
    program = case().program
    one = with_variation(program, VariationChoice(gpus=0.05, seed=4))
    assert len(set(one.speed.tolist())) == program.n_ranks
    assert np.array_equal(one.speed, with_variation(program, VariationChoice(gpus=0.05), 4).speed)
    assert not np.array_equal(one.speed, with_variation(program, VariationChoice(gpus=0.05)).speed)
    assert with_variation(program, VariationChoice()).jitter is None


def test_mixed_gpus_have_tables_of_their_own() -> None:
    plan = ["plan.tp=8", "plan.pp=1"]
    made, plain = case(*plan, *MIXED), case(*plan)
    assert len(made.program.tables) == 2 * len(plain.program.tables)
    older = case(*plan, "cluster.preset=dgx-a100")
    # Ranks of replicas on node 1 compute as long as on a cluster of such GPUs.
    assert made.workload.layout.gpu_of is not None
    for rank in (0, 15):
        kind = int(made.workload.layout.gpu_of[rank])
        table = made.program.table_of(rank)
        there = (older if kind else plain).program.table_of(rank)
        assert np.array_equal(table.duration, there.duration)
    assert plain.peak > made.peak > older.peak
    assert made.peak == pytest.approx((plain.peak + older.peak) / 2)
    assert step(*plan) < step(*plan, *MIXED)


def test_uneven_batches_by_hand() -> None:
    """On equal GPUs the longest replica decides; m micro-batches of p stages take m + p - 1."""
    even, uneven = (
        case("plan.pp=4", "plan.tp=2"),
        case("plan.pp=4", "plan.tp=2", "plan.replica_batch=[12,4]"),
    )
    twelve = case("plan.pp=4", "plan.tp=2", "plan.global_batch=24")
    times = [
        engine.simulate(each.program, network=each.network).step_time
        for each in (even, uneven, twelve)
    ]
    assert times[1] == pytest.approx(times[2], rel=2e-3)  # sending shares links, barely
    assert times[0] < times[1]
    assert uneven.workload.flops == even.workload.flops
    assert uneven.workload.executed_flops == even.workload.executed_flops


def test_slow_replicas_are_helped_by_smaller_batches() -> None:
    """dp is outermost but for pp: with tp = 8 and one stage node 1 is the second replica."""
    plan = ["plan.tp=8", "plan.pp=1", *MIXED]
    assert step(*plan, "plan.replica_batch=[11,5]") < step(*plan)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["plan.replica_batch=[8,4,4]"], "adds up|has 3 entries; dp is 4"),
        (["plan.replica_batch=[8,8]"], "has 2 entries; dp is 4"),
        (["plan.replica_batch=[8,4,2,1]"], "adds up to 15; global_batch is 16"),
        (["plan.replica_batch=[7,1,4,4]", "plan.micro_batch=2"], "replica 0 7 sequences"),
        (["plan.replica_batch=[4,4,4,4]", "plan.zero=2", "plan.pp=1"], "allowed: zero = 0, 1"),
        (['cluster.other_gpus={"2"="a100-sxm"}'], "node 2; there are nodes 0 to 1"),
        (['cluster.other_gpus={"0"="a100-sxm","0-1"="h200"}'], "node 0 is given GPUs twice"),
        (['cluster.other_gpus={"0"="a1000"}'], "unknown GPU 'a1000'"),
        (["variation.kernels=2"], "variation.kernels"),
        (["variation.speeds.3=0"], "variation.speeds"),
    ],
)
def test_bad_choices(changes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        case(*changes)


def test_the_slowest_of_a_stage_decides() -> None:
    """With jitter on every kernel the mean step is longer than without, and grows with it."""
    means = [
        sampled_steps(case(f"variation.kernels={spread}"), MPI.COMM_SELF, 6).mean()
        for spread in (0.02, 0.1)
    ]
    assert step() < means[0] < means[1] < 1.3 * step()


@pytest.mark.mpi
def test_samples_are_the_same_on_any_number_of_processes() -> None:
    made = case("variation.kernels=0.05", "variation.gpus=0.02", "variation.seed=9")
    comm = MPI.COMM_WORLD
    for count in (1, 3, 8):
        steps = sampled_steps(made, comm, count)
        assert steps.tolist() == sampled_steps(made, MPI.COMM_SELF, count).tolist()
    assert steps[0] == engine.simulate(made.program, network=made.network).step_time


def test_a_summary_by_hand() -> None:
    said = sample_statements(np.arange(1, 101))
    assert said["sampled_mean"] == 50.5
    assert [said[f"sampled_p{q}"] for q in (50, 95, 99)] == [50, 95, 99]


def test_results_keep_every_sample(tmp_path: Path) -> None:
    from mpisim import open_results
    from mpisim.report import render

    experiment = read(TEXT, "x.toml", ["variation.kernels=0.05"])
    simulate(experiment, output=tmp_path / "r.h5", seeds=3)
    with open_results(tmp_path / "r.h5") as results:
        assert len(results.attributes["sampled_steps"]) == 3
        assert results.attributes["sampled_steps"][0] == results.step_time_ps
        text = render(results)
    assert "3 seeds" in text
    assert "p95" in text
    assert "jitter and slow GPUs" not in text


def test_seeds_without_chance_are_refused() -> None:
    with pytest.raises(UsageError, match=r"set variation\.kernels"):
        simulate(read(TEXT, "x.toml"), seeds=3)
