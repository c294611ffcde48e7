"""Groups of measured plans: regret, order, and how far stated errors of differences hold."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_steps import VTRAIN, table
from mpi4py import MPI

from mpisim.base.errors import InputError
from mpisim.experiment import Transformer
from mpisim.prediction.uncertainty import difference_error, unshared_share
from mpisim.validate.plans import (
    ComparablePlans,
    Noise,
    Ranking,
    Sweeps,
    as_json,
    compare_plans,
    layer_times,
    reliability,
    render,
)
from mpisim.validate.plans.ranking import Expected, dimensions, unshared_error

ROW: dict[str, Any] = {**VTRAIN, "vocab": 51200, "step_time_ms": 100.0}

PLANS = ((1, 1, 8), (2, 1, 4), (4, 1, 2), (1, 2, 4), (1, 4, 2), (2, 2, 2))


def rows_of(**changes: Any) -> list[dict[str, Any]]:
    """A row for each of `PLANS`."""
    return [
        {**ROW, "id": f"{tp}-{pp}", "tp": tp, "pp": pp, "dp": dp, **changes} for tp, pp, dp in PLANS
    ]


def sweeps_of(path: Path, rows: list[dict[str, Any]], **options: Any) -> Sweeps:
    found = compare_plans(table(path / "t.csv", *rows), MPI.COMM_SELF, **options)
    assert found is not None
    return found


def groups_of(path: Path, rows: list[dict[str, Any]], **options: Any) -> list[ComparablePlans]:
    return sweeps_of(path, rows, **options).groups


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Milliseconds of the step that is predicted for each of `PLANS`, by row."""
    (group,) = groups_of(tmp_path_factory.mktemp("plans"), rows_of())
    return {plan.rows[0].row.id: plan.predicted * 16e3 for plan in group.plans}


def test_a_perfect_prediction_has_no_regret(tmp_path: Path, predicted: dict[str, float]) -> None:
    rows = [{**row, "step_time_ms": 1.3 * predicted[row["id"]]} for row in rows_of()]
    (group,) = groups_of(tmp_path, rows)
    found = Ranking.of(group)
    assert (found.plans, found.regret) == (6, 0.0)
    assert found.spearman == pytest.approx(1) == found.kendall
    assert found.right == found.clear > 0
    assert all(each.right == each.pairs for each in reliability([group]))
    assert unshared_error([group]) == 0.0


def test_a_reversed_order_has_the_whole_regret(tmp_path: Path, predicted: dict[str, float]) -> None:
    rows = [{**row, "step_time_ms": 1e4 / predicted[row["id"]]} for row in rows_of()]
    (group,) = groups_of(tmp_path, rows)
    found = Ranking.of(group)
    times = predicted.values()
    assert found.spearman == pytest.approx(-1)
    assert found.regret == pytest.approx(max(times) / min(times) - 1)
    assert found.right == 0
    assert unshared_error([group]) > 0


def test_repetitions_are_one_plan_and_batches_count_by_sequence(
    tmp_path: Path, predicted: dict[str, float]
) -> None:
    rows = [{**row, "step_time_ms": predicted[row["id"]]} for row in rows_of()]
    again = {**rows[0], "id": "again", "step_time_ms": 3 * predicted["1-1"]}
    larger = {**rows[1], "id": "larger", "global_batch": 32, "step_time_ms": 64.0}
    found = sweeps_of(tmp_path, [*rows, again, larger])
    (group,) = found.groups
    # Two times that differ by a factor of 3: both are half of its logarithm from their mean.
    noise = math.log(3) / math.sqrt(2)
    assert [each.source for each in found.noise] == ["", "vtrain"]
    assert [each.plans for each in found.noise] == [1, 1]
    assert [each.error for each in found.noise] == pytest.approx([noise, noise])
    assert group.noise == pytest.approx(noise)
    assert "all sources" in render(found, 4)
    by_row = {plan.rows[0].row.id: plan for plan in group.plans}
    assert len(group.plans) == 7
    assert by_row["1-1"].measured * 16e3 == pytest.approx(2 * predicted["1-1"])
    assert by_row["larger"].measured == pytest.approx(64e-3 / 32)
    assert group.described(by_row["larger"]) == "global_batch 32, tp 2, pp 1, dp 4"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("source_version", "2"),
        ("precision", "bf16"),
        ("framework", "Megatron-DeepSpeed of 2024"),
        ("gpu", "A100-SXM-40GB"),
        ("hidden", 2048),
        ("seq_len", 512),
    ],
)
def test_other_conditions_are_other_groups(tmp_path: Path, column: str, value: Any) -> None:
    other = [{**row, "id": f"other {row['id']}", column: value} for row in rows_of()]
    changed = {"node_network_gbps": 1600} if column == "gpu" else {}
    groups = groups_of(tmp_path, [*rows_of(), *({**row, **changed} for row in other)])
    assert [len(each.plans) for each in groups] == [6, 6]


def test_other_gpus_alone_are_other_groups(tmp_path: Path) -> None:
    """A GPU on its own is named beside the cluster: equal plans on two kinds are no repetition."""
    one = {"num_gpus": 1, "gpus_per_node": "", "tp": 1, "pp": 1, "dp": 1, "node_network_gbps": ""}
    batches = (2, 4, 8, 16)
    rows = [
        {**ROW, **one, "id": f"{gpu} {n}", "gpu": gpu, "micro_batch": n, "global_batch": n}
        for gpu in ("A100-PCIe-80GB", "L4")
        for n in batches
    ]
    found = sweeps_of(tmp_path, rows)
    assert [len(each.plans) for each in found.groups] == [4, 4]
    assert found.noise == [Noise("", 0, 0.0)]


def test_rows_that_are_no_measurements_are_left_out(tmp_path: Path) -> None:
    rows = rows_of()
    for row, trust in zip(rows, "FCABAB", strict=True):
        row["trust"] = trust
    (group,) = groups_of(tmp_path, rows)
    assert len(group.plans) == 4
    with pytest.raises(InputError, match="has no 5 plans of one model"):
        groups_of(tmp_path, rows, least=5)


def test_suspect_rows_are_counted_with_and_without(tmp_path: Path) -> None:
    rows = rows_of()
    rows[0]["suspect"] = "slow"
    groups = sweeps_of(tmp_path, rows)
    figures = as_json(groups, 4, "t.csv")
    assert (figures["mean"]["plans"], figures["mean_without_suspect_rows"]["plans"]) == (6, 5)
    assert "without suspect rows" in render(groups, 4)
    assert figures["mean_without_suspect_rows"]["groups"] == 1
    assert as_json(groups, 6, "t.csv")["mean_without_suspect_rows"]["groups"] == 0


def plan_of(measured: float, predicted: float) -> Any:
    return SimpleNamespace(measured=measured, predicted=predicted)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=2, max_size=8, unique=True)
)
def test_figures_are_those_by_definition(times: list[tuple[int, int]]) -> None:
    found = Ranking.of(ComparablePlans("", [plan_of(float(m), float(p)) for m, p in times]))
    best = min(m for m, _ in times)
    least = min(p for _, p in times)
    worst_chosen = max(m for m, p in times if p == least)
    assert found.regret == pytest.approx(worst_chosen / best - 1)
    assert found.blind == pytest.approx(sum(m for m, _ in times) / len(times) / best - 1)
    pairs = list(itertools.combinations(times, 2))
    clear = [(a, b) for a, b in pairs if max(a[0], b[0]) > 1.05 * min(a[0], b[0])]
    assert found.clear == len(clear)
    assert found.right == sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in clear)
    signs = [(a[0] - b[0]) * (a[1] - b[1]) for a, b in pairs]
    ties = [sum(a[i] == b[i] for a, b in pairs) for i in (0, 1)]
    scale = math.sqrt((len(pairs) - ties[0]) * (len(pairs) - ties[1]))
    if scale:
        tau = sum((sign > 0) - (sign < 0) for sign in signs) / scale
        assert found.kendall == pytest.approx(tau)


def test_noise_by_hand() -> None:
    times = [[1.0, 1.1], [5.0], [2.0, 2.0], [3.0, 3.3, 3.6]]
    square = 2 * (math.log(1.1) / 2) ** 2
    logs = [math.log(each) for each in times[3]]
    square += sum((each - sum(logs) / 3) ** 2 for each in logs)
    assert Noise.of(times) == Noise("", 2, pytest.approx(math.sqrt(square / 3)))
    assert Noise.of([[1.0], [2.0, 2.0]]) == Noise("", 0, 0.0)


def test_pairs_within_noise_do_not_count() -> None:
    # 1 and 1.02 are the wrong way round, but within two standard deviations of their difference.
    plans = [plan_of(1.0, 2.0), plan_of(1.02, 1.9), plan_of(1.5, 3.0), plan_of(2.0, 3.0)]
    exact, noisy = (
        Ranking.of(ComparablePlans("", plans)),
        Ranking.of(ComparablePlans("", plans, noise=0.01)),
    )
    assert (exact.beyond, noisy.beyond) == (6, 5)
    assert exact.gamma == pytest.approx((4 - 1) / 5)  # of the last pair nothing is said
    assert noisy.gamma == 1.0
    assert exact.ceiling == pytest.approx(1.0)
    # Only the first two change places, in so many of the draws; a swap of neighbours costs 0.2.
    swapped = 0.5 * math.erfc(math.log(1.02) / 0.01 / 2)
    assert noisy.ceiling == pytest.approx(1 - 0.2 * swapped, abs=0.01)
    assert noisy.spearman == exact.spearman
    assert math.isnan(Ranking.of(ComparablePlans("", plans, noise=1.0)).gamma)


def erring(measured: float, **effects: float) -> Any:
    return SimpleNamespace(measured=measured, effects=effects)


def test_expected_order_of_two_plans_is_that_of_their_stated_difference() -> None:
    """Of two plans the order is right with the normal probability of z: closed form."""
    one, other = erring(1.0, gemm=0.1), erring(1.1, gemm=0.04, wire=0.03)
    noise = 0.02
    difference = math.hypot(unshared_share(), math.sqrt(2) * noise, 0.1 - 0.04, 0.03)
    right = 0.5 * (1 + math.erf(math.log(1.1) / difference / math.sqrt(2)))
    found = Expected.of([ComparablePlans("", [one, other], noise=noise)])
    assert found.mean == pytest.approx(2 * right - 1, abs=0.1)  # 1000 draws of -1 and 1
    assert (found.low, found.high) == (-1.0, 1.0)


def test_errors_that_all_plans_share_cost_no_order() -> None:
    far = [erring(3.0**i, clock=0.5) for i in range(4)]
    assert Expected.of([ComparablePlans("", far)]) == Expected(1.0, 1.0, 1.0)
    near = [erring(1.0 + i / 1e6) for i in range(4)]
    alone = Expected.of([ComparablePlans("", near)])
    assert abs(alone.mean) < 0.1  # no order to be told
    assert alone.low < -0.7
    assert alone.high > 0.7
    both = Expected.of(
        [ComparablePlans("", near), ComparablePlans("", far)]
    )  # the mean of two groups varies less
    assert both == Expected(*(pytest.approx((1 + each) / 2) for each in vars(alone).values()))
    equal = Expected.of([ComparablePlans("", [erring(1.0), erring(1.0)])])
    assert math.isnan(equal.mean)


def test_keys_are_priced_one_at_a_time() -> None:
    def plan(measured: float, predicted: float, **keys: int) -> Any:
        return SimpleNamespace(measured=measured, predicted=predicted, keys=keys)

    plans = [
        plan(1.0, 1.0, tp=1, pp=1, dp=8),
        plan(2.0, 4.0, tp=2, pp=1, dp=4),  # tp alone: twice the difference
        plan(1.5, 0.5, tp=1, pp=2, dp=4),  # pp alone: the wrong way round
        plan(1.01, 3.0, tp=4, pp=1, dp=2),  # tp alone, but as long as the first: with it no pair
    ]
    by_pp, by_tp = sorted(
        dimensions([ComparablePlans("", plans, noise=0.02)]), key=lambda each: each.key
    )
    assert (by_pp.key, by_pp.pairs, by_pp.right) == ("pp", 1, 0)
    assert by_pp.priced == pytest.approx(-math.log(2) / math.log(1.5))
    assert (by_tp.key, by_tp.pairs, by_tp.right) == ("tp", 2, 2)
    shares = [2.0, math.log(4 / 3) / math.log(2 / 1.01)]
    assert by_tp.priced == pytest.approx(sum(shares) / 2)
    assert math.isnan(by_pp.low)  # of a single pair
    assert (by_tp.low, by_tp.high) == pytest.approx((min(shares), max(shares)))


def test_a_price_is_as_sure_as_its_plans_are_many() -> None:
    def plans(number: int, off: int) -> list[Any]:
        """So many plans twice as long one after the other, one of them predicted to be longer."""
        return [
            SimpleNamespace(
                measured=2.0**i, predicted=2.0**i * (2 if i == off else 1), keys={"tp": i}
            )
            for i in range(number)
        ]

    (exact,) = dimensions([ComparablePlans("", plans(4, off=-1))])
    assert (exact.pairs, exact.priced, exact.low, exact.high) == (6, 1.0, 1.0, 1.0)
    # Half of the pairs are with the plan that is off, but it is one of four: often not drawn.
    (few,) = dimensions([ComparablePlans("", plans(4, off=3))])
    (many,) = dimensions(
        [
            ComparablePlans("", plans(4, off=3)),
            *(ComparablePlans("", plans(4, off=-1)) for _ in "12"),
        ]
    )
    shares = [math.log(2 * 2 ** (3 - i)) / math.log(2 ** (3 - i)) for i in range(3)]
    assert few.priced == pytest.approx((1 + min(shares)) / 2)
    assert few.low == 1.0
    assert few.priced < few.high <= max(shares)
    assert (many.priced, many.low) == (1.0, 1.0)
    assert many.high <= few.high


def test_what_two_plans_share_cancels() -> None:
    one, other = {"products": 0.2, "network": 0.1}, {"products": 0.1, "launches": 0.05}
    shared = difference_error(one, 1.0, one, 1.0, unshared=0.0)
    assert shared == 0
    expected = math.hypot(0.2 * 1.0 - 0.1 * 2.0, 0.1 * 1.0, 0.05 * 2.0)
    assert difference_error(one, 1.0, other, 2.0, unshared=0.0) == pytest.approx(expected)
    assert difference_error(one, 1.0, one, 1.0, unshared=0.03) == pytest.approx(0.03)
    stated = difference_error(one, 1.0, one, 1.0)
    assert 0.02 < stated < 0.08  # data/plans.toml


def test_the_command(tmp_path: Path, run_mpisim: Any) -> None:
    file = table(tmp_path / "t.csv", *rows_of())
    first = run_mpisim(["validate", "plans", file, "--json", "one.json", "--markdown", "p.md"])
    assert first.rc == 0, first.stderr
    assert "mean of 1 " in first.stdout
    figures = json.loads((tmp_path / "one.json").read_text())
    assert [group["plans"] for group in figures["groups"]] == [6]
    assert "| mean of 1 |" in (tmp_path / "p.md").read_text()
    spread = run_mpisim(["validate", "plans", file], nprocs=2)
    assert (spread.rc, spread.stdout) == (0, first.stdout)
    assert run_mpisim(["validate", "e2e", file, "--json", "e2e.json"]).rc == 0
    again = run_mpisim(["validate", "plans", file, "--predicted", "e2e.json"])
    assert (again.rc, again.stdout) == (0, first.stdout)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--least", "1"], "--least is 1; it must be 2 or more"),
        (["--least", "7"], "has no 7 plans of one model"),
        (["--where", "planet=mars"], "there is no such column"),
        (["--json", "no/x"], "no/x"),
    ],
)
def test_bad_options_are_one_line(
    tmp_path: Path, arguments: list[str], said: str, call_mpisim: Any
) -> None:
    file = table(tmp_path / "t.csv", *rows_of())
    found = call_mpisim(["validate", "plans", file, *arguments])
    assert found.rc == 2, found.stderr
    assert said in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


LAYERS, HIDDEN, LENGTH, VOCABULARY, BATCH = 48, 8192, 2048, 51200, 1536


def pipeline(
    pp: int, micro_batch: int, times: tuple[Any, Any], *, schedule: str = "1f1b", vpp: int = 1
) -> Any:
    """A plan of `pp` stages on 64 x `pp` GPUs, whose step follows the closed form.

    `times`: fixed, sequence and once, of the measured and of the predicted step.
    """
    dp = 64 // pp
    batches = BATCH // (dp * micro_batch)
    # FLOPs of the scores, forward and backward, over those of a layer with its forward twice,
    # causal attention counted once for each pair of tokens.
    head = 6 * VOCABULARY / (96 * HIDDEN * (1 + LENGTH / (12 * HIDDEN)))
    passes = (batches + pp - 1) * LAYERS / pp + batches * head

    def of_sequence(fixed: float, sequence: float, once: float) -> float:
        return (passes * (fixed + micro_batch * sequence) + once / pp) / BATCH

    own = SimpleNamespace(
        pp=pp,
        vpp=vpp,
        micro_batch=micro_batch,
        global_batch=BATCH,
        pipeline=SimpleNamespace(schedule=schedule),
        recompute=SimpleNamespace(granularity="full"),
    )
    model = Transformer(
        layers=LAYERS, hidden=HIDDEN, heads=64, seq_len=LENGTH, vocab=VOCABULARY, family="gpt"
    )
    row = SimpleNamespace(mapped=SimpleNamespace(experiment=SimpleNamespace(model=model, plan=own)))
    return SimpleNamespace(
        rows=[row],
        measured=of_sequence(*times[0]),
        predicted=of_sequence(*times[1]),
        keys={"tp": 8, "pp": pp, "dp": dp, "micro_batch": micro_batch},
    )


SWEEP = [(pp, each) for pp in (2, 4, 8, 16) for each in (2, 4, 6)]


def test_times_of_layers_are_those_that_steps_were_made_of() -> None:
    times = (2e-3, 10e-3, 1.5), (1e-3, 12e-3, 2.5)
    plans = [pipeline(pp, each, times) for pp, each in SWEEP]
    other = [pipeline(4, 2, times), pipeline(8, 2, times)]
    for each in other:
        each.keys["tp"] = 4  # too few of their own, and none of the others
    (found,) = layer_times([ComparablePlans("sweep", [*plans, *other])])
    assert (found.group, found.sets, found.plans) == ("sweep", "tp 8", len(SWEEP))
    assert found.fixed == pytest.approx((2e-3, 1e-3))
    assert found.sequence == pytest.approx((10e-3, 12e-3))
    assert max(found.scatter, found.fixed_error, found.sequence_error) < 1e-9


def test_scatter_of_steps_is_the_error_of_times_of_layers() -> None:
    """One step that is 3 % longer than the closed form: by hand from the residual's norm."""
    times = (2e-3, 10e-3, 1.5), (2e-3, 10e-3, 1.5)
    plans = [pipeline(pp, each, times) for pp, each in SWEEP]
    plans[5].measured *= 1.03
    (found,) = layer_times([ComparablePlans("", plans)])
    assert 0.5 * 0.03 < found.scatter * math.sqrt(len(SWEEP) - 3) < 0.03
    assert abs(found.fixed[0] - 2e-3) < 3 * found.fixed_error
    assert abs(found.sequence[0] - 10e-3) < 3 * found.sequence_error
    assert found.sequence[1] == pytest.approx(10e-3)


@pytest.mark.parametrize(
    "plans",
    [
        [(pp, each, {}) for pp, each in SWEEP[:5]],  # too few
        [(pp, 2, {}) for pp in (1, 2, 4, 8, 16, 16)],  # of one size of micro-batches
        [(pp, each, {"schedule": "gpipe"}) for pp, each in SWEEP],
        [(pp, each, {"vpp": 2}) for pp, each in SWEEP],
        [(5, each, {}) for _, each in SWEEP],  # 48 layers on 5 stages
    ],
)
def test_steps_that_do_not_tell_times_of_layers(plans: list[tuple[int, int, Any]]) -> None:
    times = (2e-3, 10e-3, 1.5), (2e-3, 10e-3, 1.5)
    group = ComparablePlans(
        "", [pipeline(pp, each, times, **options) for pp, each, options in plans]
    )
    assert layer_times([group]) == []
