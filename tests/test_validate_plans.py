"""Groups of measured plans: regret, order, and how far stated errors of differences hold."""

from __future__ import annotations

import csv
import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from mpisim.base.errors import InputError
from mpisim.prediction.uncertainty import difference_error
from mpisim.validate.e2e.rows import COLUMNS
from mpisim.validate.plans import Group, Ranking, as_json, compare_plans, reliability, render
from mpisim.validate.plans.ranking import unshared_error

EXTRA = (
    "notes",
    "precision_as_printed",
    "zero_stage_as_printed",
    "activation_recompute_as_printed",
    "overlap_as_printed",
    "cpu_offload",
    "source_version",
)

ROW: dict[str, Any] = {
    "source": "VIA-Research/vTrain data/ground_truth_multi.csv (MICRO 2024)",
    "model": "GPT",
    "layers": 4,
    "hidden": 1024,
    "heads": 16,
    "kv_heads": 16,
    "ffn_hidden": 4096,
    "vocab": 51200,
    "seq_len": 1024,
    "gpu": "A100-SXM-80GB",
    "gpus_per_node": 8,
    "num_gpus": 8,
    "vpp": 1,
    "cp": 1,
    "ep": 1,
    "sp": "False",
    "zero_stage": 0,
    "micro_batch": 2,
    "global_batch": 16,
    "precision": "fp16",
    "activation_recompute": "full",
    "framework": "Megatron-DeepSpeed",
    "step_time_basis": "printed",
    "trust": "A",
    "tp_overlap": "False",
    "dp_overlap": "False",
    "node_network_gbps": 800,
    "step_time_ms": 100.0,
}

PLANS = ((1, 1, 8), (2, 1, 4), (4, 1, 2), (1, 2, 4), (1, 4, 2), (2, 2, 2))


def rows_of(**changes: Any) -> list[dict[str, Any]]:
    """A row for each of `PLANS`."""
    return [
        {**ROW, "id": f"{tp}-{pp}", "tp": tp, "pp": pp, "dp": dp, **changes} for tp, pp, dp in PLANS
    ]


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*COLUMNS, *EXTRA], restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def groups_of(path: Path, rows: list[dict[str, Any]], **options: Any) -> list[Group]:
    found = compare_plans(table(path / "t.csv", rows), MPI.COMM_SELF, **options)
    assert found is not None
    return found


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
    (group,) = groups_of(tmp_path, [*rows, again, larger])
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
    groups = groups_of(tmp_path, rows)
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
    found = Ranking.of(Group("", [plan_of(float(m), float(p)) for m, p in times]))
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
    file = table(tmp_path / "t.csv", rows_of())
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
    tmp_path: Path, arguments: list[str], said: str, run_mpisim: Any
) -> None:
    file = table(tmp_path / "t.csv", rows_of())
    found = run_mpisim(["validate", "plans", file, *arguments])
    assert found.rc == 2, found.stderr
    assert said in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
