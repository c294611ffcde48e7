"""Frameworks, plans and GPUs whose predictions met no measured step have wider intervals."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import uncompared_error

from mpisim.experiment import Plan, load
from mpisim.prediction.uncertainty import LEFT_OPEN, UNCOMPARED, is_part
from mpisim.simulate import simulate
from mpisim.validate.e2e.interval_errors import FOUND, KEPT, not_narrower

HERE = Path(__file__).parent
PLAIN = HERE / "unnamed_framework.toml"


@pytest.mark.parametrize(
    ("changes", "wider"),
    [
        (["framework.name=torchtitan"], False),
        (["framework.name=composer"], False),  # FSDP, too
        (["framework.name=torchtitan", "model.hidden=512", "model.heads=8"], True),  # narrow
        (["framework.name=torchtitan", "plan.tp=2", "plan.dp=4"], True),
        (["framework.name=torchtitan", "framework.version=2024-12"], False),
        (["framework.name=torchtitan", "framework.version=2023-01"], True),  # before its profile
        (["framework.name=deepspeed"], True),
        # Mixtures of experts by what was compared of them.
        (["framework.name=megatron-core", "model.experts=8", "model.topk=2", "plan.zero=1"], False),
        (["framework.name=torchtitan", "model.experts=8", "model.topk=2"], True),
        # Of pipelines with tensor parallelism on Hopper, and of one GPU, which is part of all.
        (
            [
                "framework.name=nemo",
                "framework.version=25.04",
                "plan.zero=1",
                "plan.pp=2",
                "plan.dp=4",
            ],
            False,
        ),
        (["framework.name=torchtitan", "cluster.gpus_per_node=1", "plan.dp=1"], False),
        (["framework.name=maxtext", "plan.tp=2", "plan.dp=4"], True),
        (["framework.name=torchtitan", "cluster.preset=rtx-4090-8gpu"], True),
        (["framework.name=torchtitan", "cluster.preset=dgx-h200"], False),
        ([], False),
    ],
)
def test_what_was_not_compared_says_so(changes: list[str], wider: bool) -> None:
    found = simulate(load(PLAIN, [*changes, "run.allow_oom=true"])[1])
    assert found is not None
    lines = found.attributes["uncertainty_sources"]
    assert any(line.startswith(UNCOMPARED) for line in lines) == wider
    if wider:
        assert float(found.attributes["uncertainty"]) > 0.15  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "recipe", "wider"),
    [
        ("fsdp", "none", True),
        ("pytorch-fsdp", "none", True),
        ("torchtitan", "none", True),  # which has a recipe
        ("torchtitan", "performance", False),
        ("composer", "none", False),  # which has none
    ],
)
def test_libraries_and_unnamed_recipes_leave_something_open(
    name: str, recipe: str, wider: bool
) -> None:
    changes = [f"framework.name={name}", f"framework.recipe={recipe}", "run.allow_oom=true"]
    found = simulate(load(PLAIN, changes)[1])
    assert found is not None
    lines = found.attributes["uncertainty_sources"]
    assert any(line.startswith(LEFT_OPEN) for line in lines) == wider
    assert not any(line.startswith(UNCOMPARED) for line in lines)


def case(name: str, ratio: float, framework: str = "new", kind: str = "dense") -> dict[str, Any]:
    return {
        "id": name,
        "predicted": ratio,
        "measured": 1.0,
        "stated_error": 0.1,
        "suspect": "",
        "kind": "dense transformer" if kind == "dense" else kind,
        "gpu": "h100-sxm",
        "parallelism": "dp",
        "hidden": 4096,
        "trust": "A",
        "outcome": {"lengths": {f"host of {framework}": 1.0, "memory of h100": 1.0}, "effects": {}},
    }


def test_intervals_hold_nine_tenths_of_what_was_not_compared() -> None:
    logs = [0.02 * i * (-1) ** i for i in range(1, 31)]
    cases = [case(f"r{i}", math.exp(log)) for i, log in enumerate(logs)]
    causes = {each["id"] for each in cases} | {"seen", "older"}
    others = [case("held back", 9.0), case("seen", 9.0, "old"), case("r3", 9.0, kind="other")]
    ways = [("old", "hopper, 128 lanes", "dp", 4096)]
    older = case("older", 1.0, "old")  # of a version that was not compared
    older["stated_error"], older["outcome"]["effects"][UNCOMPARED] = 0.3, 0.2
    used = uncompared_error.judged([*cases, *others, older], causes, uncompared_error.DENSE)
    new = [each for each in used if uncompared_error.unlike(each, ways)]
    assert [each["id"] for each in new] == [*(each["id"] for each in cases), "older"]
    # All are stated with 0.1: with what is missing three of thirty stay outside.
    alone = {each["id"]: each["id"] for each in cases}
    error = uncompared_error.missing_error(new[:30], alone)
    bar = 1.6448536 * math.hypot(error, 0.1)
    assert sum(abs(log) > bar * 1.001 for log in logs) == 3
    assert sum(abs(log) > bar * 0.999 for log in logs) == 4
    near = [case(f"r{i}", 1.01) for i in range(20)]
    assert uncompared_error.missing_error(near, alone) == 0.0
    with pytest.raises(ValueError, match="5 rows; at least 15"):
        uncompared_error.missing_error(cases[:5], alone)


def test_publishers_count_the_same() -> None:
    # Five publishers are far off, with one row each, of twenty; the others' many rows are near.
    near, far = [case(f"n{i}", 1.0) for i in range(150)], [case(f"f{i}", 9.0) for i in range(5)]
    names = {f"n{i}": f"near {i % 15}" for i in range(150)} | {
        each["id"]: each["id"] for each in far
    }
    assert uncompared_error.missing_error([*near, *far], dict.fromkeys(names, "one")) == 0.0
    assert uncompared_error.missing_error([*near, *far], names) > 1
    # Far rows of one publisher count as rows do.
    one = {**names, **dict.fromkeys((each["id"] for each in far), "far")}
    assert uncompared_error.missing_error([*near, *far], one) == 0.0
    assert uncompared_error.missing_error([*near[:20], *far], one) > 1


def test_errors_become_no_narrower() -> None:
    before = {"error": 0.327, "source": "first"}
    assert not_narrower(0.2834, "of 91", None) == (0.283, "of 91")
    assert not_narrower(0.3275, "of 91", before) == (0.328, "of 91")
    assert not_narrower(0.3268, "of 91", before) == (0.327, "of 91")
    error, source = not_narrower(0.2834, "of 91", before)
    assert (error, source) == (0.327, f"{FOUND}first{KEPT}0.283 (of 91)")
    # Once more: what was found in between is replaced.
    again = {"error": error, "source": source}
    assert not_narrower(0.2834, "of 91", again) == (error, source)
    assert not_narrower(0.29, "of 95", again)[1].endswith("later: 0.290 (of 95)")


def test_a_run_keeps_the_larger_error_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "uncompared.toml"
    new = [case(f"n{i}", math.exp(0.04 * i)) for i in range(20)]
    own = [case(f"o{i}", math.exp(0.04 * i), "old") for i in range(20)]
    for each in own:
        each["outcome"]["effects"][LEFT_OPEN] = 0.0
    mixtures = [case(f"e{i}", math.exp(0.03 * i), kind="mixture of experts") for i in range(20)]
    cases = [*new, *own, *mixtures]
    compared = [case(f"c{i}", 1.0, "old") for i in range(uncompared_error.MIN_COMPARED)]
    tables = {"big": compared, "small": cases}
    monkeypatch.setattr(uncompared_error, "FILE", file)
    monkeypatch.setattr(uncompared_error, "compared_cases", lambda path: tables[path.name])
    halves = {each["id"]: "causes" for each in cases}
    columns = {"half": halves, "source": {each["id"]: f"{each['id']}/a" for each in cases}}
    monkeypatch.setattr(uncompared_error, "column_of", lambda _, name: columns[name])
    monkeypatch.setattr("sys.argv", ["uncompared_error.py", "big", "small"])
    uncompared_error.main()
    found = tomllib.loads(file.read_text())
    assert 0.1 < found["experts"]["error"] < found["dense"]["error"] < 0.9
    assert KEPT not in file.read_text()
    file.write_text(
        file.read_text().replace(f"error = {found['dense']['error']:.3f}", "error = 0.9")
    )
    uncompared_error.main()
    kept = tomllib.loads(file.read_text())
    assert kept["dense"]["error"] == 0.9
    assert kept["experts"]["error"] == found["experts"]["error"]
    assert f"later: {found['dense']['error']:.3f} (with it" in kept["dense"]["source"]
    first = file.read_text()
    uncompared_error.main()
    assert file.read_text() == first


def test_rows_that_count_are_all_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "uncompared.toml"
    monkeypatch.setattr(uncompared_error, "FILE", file)
    monkeypatch.setattr(uncompared_error, "compared_cases", lambda _: [case("here", 1.0)])
    halves = {"here": "causes", "absent": "causes", "also": "causes", "held back": "check"}

    def column_of(path: Path, name: str) -> dict[str, str]:
        newest = path.name == uncompared_error.TABLES[-1]
        return halves if newest and name == "half" else {}

    monkeypatch.setattr(uncompared_error, "column_of", column_of)
    monkeypatch.setattr("sys.argv", ["uncompared_error.py", "big", "small"])
    assert uncompared_error.main() == 2
    assert not file.exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert "2 rows that count are not in the files of steps, as absent" in line


def test_ways_are_those_of_many_rows() -> None:
    many, few = ("a", "hopper, 128 lanes", "dp"), ("a", "hopper, 128 lanes", "dp+tp")
    rows = [*((*many, 512 * i) for i in range(2, 12)), *[(*few, 512)] * 9]
    assert uncompared_error.often(rows) == [(*many, 1024)]
    assert uncompared_error.way_of(case("a", 1.0)) == ("new", "hopper, 128 lanes", "dp", 4096)
    assert uncompared_error.way_of(case("a", 1.0, "nemo"))[0] == "megatron-core"
    assert uncompared_error.way_of(case("a", 1.0, kind="mixture of experts"))[3] == 0
    assert uncompared_error.framework_of(case("a", 1.0, "any framework")) is None


@pytest.mark.parametrize(
    ("division", "other", "part"),
    [
        ("dp+tp", "dp+tp+pp", True),
        ("dp+pp", "dp+tp+pp", True),
        ("one GPU", "dp", True),
        ("dp", "dp", True),
        ("dp+tp+cp", "dp+tp+pp", False),
        ("dp+tp+pp", "dp+tp", False),
        ("tp", "dp", False),
    ],
)
def test_a_part_of_a_compared_division_is_compared(division: str, other: str, part: bool) -> None:
    assert is_part(division, other) == part
    ways = [("old", "hopper, 128 lanes", other, 4096)]
    assert uncompared_error.covered(("old", "hopper, 128 lanes", division, 2048), ways) == part
    assert not uncompared_error.covered(("old", "hopper, 128 lanes", division, 2047), ways)
    assert not uncompared_error.covered(("new", "hopper, 128 lanes", division, 4096), ways)
    assert not uncompared_error.covered(("old", "volta, 64 lanes", division, 4096), ways)


def test_a_row_of_no_framework_counts_by_its_gpu() -> None:
    unnamed = case("r", 1.5, "any framework")
    assert not uncompared_error.unlike(unnamed, [("old", "hopper, 128 lanes", "dp", 4096)])
    assert uncompared_error.unlike(unnamed, [("old", "volta, 64 lanes", "dp", 4096)])


@pytest.mark.parametrize(
    ("sizes", "dp", "division"),
    [({}, 1, "one GPU"), ({}, 8, "dp"), ({"tp": 2, "pp": 4}, 1, "tp+pp"), ({"ep": 8}, 8, "dp+ep")],
)
def test_divisions(sizes: dict[str, int], dp: int, division: str) -> None:
    assert Plan(global_batch=64, micro_batch=1, **sizes).division(dp) == division
