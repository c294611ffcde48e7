"""Constants fitted to steps: found where they are known; what few families say counts less."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from mpisim.base.errors import InputError
from mpisim.base.quantity import Quantity
from mpisim.prediction.step_constants import AppliedConstants, ModelError, StepConstants
from mpisim.validate.e2e import (
    as_json,
    calibrate,
    compare,
    cross_validate,
    markdown,
    render,
    stored,
    written,
)
from mpisim.validate.e2e.compare import Z_90
from mpisim.validate.e2e.composition import composed
from mpisim.validate.e2e.fit import Linear, covered, fit, relative_error, seconds_with
from mpisim.validate.e2e.interval_errors import FOUND, KEPT, counted_by, publisher, sufficient_error
from mpisim.validate.e2e.pairs import KINDS, SUMMARIES, pair_figures
from mpisim.validate.e2e.predict import predict
from mpisim.validate.e2e.report import BEGIN, END
from mpisim.validate.e2e.rows import Row, read

NO_CONSTANTS = StepConstants()

NAMES = ("products of h100 bf16", "memory of h100", "host of theirs", "overhead of theirs")

ATTENTION = "attention of h100"


def step(family: str, measured: float, *lengths: float, framework: str = "theirs") -> Linear:
    """A step that was predicted to take what its parts take together."""
    names = [name.replace("theirs", framework) for name in NAMES]
    known = dict(zip(names, lengths, strict=False))
    predicted = math.fsum(lengths[:3])
    return Linear("row", (family, "", ""), measured, predicted, known, framework)


def made(products: float, memory: float, overhead: float, families: int) -> list[Linear]:
    """Steps as they would be with these constants: parts in different proportions."""
    parts = [(1.0, 0.1, 0.0), (0.2, 1.0, 0.0), (0.5, 0.5, 0.0), (0.1, 0.05, 0.0)]
    return [
        step(
            f"theirs {i}",
            a * products + b * memory + overhead,
            a,
            b,
            c,
            0.0,
            framework="theirs",
        )
        for i in range(families)
        for a, b, c in parts
    ]


def whole(found: StepConstants, kind: str, gpu: str, framework: str) -> float:
    """The multiplier of times with a framework."""
    return AppliedConstants(found, gpu.split()[0], "dgx-h100", framework).number(kind, gpu)[1].value


def test_constants_are_found_again() -> None:
    found = fit(made(1.2, 1.5, 0.01, 30), NO_CONSTANTS)
    assert whole(found, "products", "h100 bf16", "theirs") == pytest.approx(1.2, rel=0.02)
    assert whole(found, "memory", "h100", "theirs") == pytest.approx(1.5, rel=0.03)
    assert found.overhead["theirs"].si == pytest.approx(0.01, rel=0.2)
    # Nothing rests on launches here.
    assert found.host["theirs"].value == 1
    assert found.host["theirs"].error == pytest.approx(0.4, rel=0.05)  # what is declared
    assert found.fitted_to("theirs", "h100")
    assert not found.fitted_to("theirs", "a100")


def test_steps_of_models_with_experts_tell_nothing() -> None:
    dense = made(1.2, 1.5, 0.01, 8)
    experts = [one._replace(sort="experts") for one in made(2.0, 1.0, 0.0, 8)]
    assert fit(dense + experts, NO_CONSTANTS) == fit(dense, NO_CONSTANTS)
    assert fit(experts, NO_CONSTANTS) == NO_CONSTANTS


def test_what_one_framework_shows_is_not_all_the_gpus() -> None:
    def attending(framework: str, times: float) -> list[Linear]:
        return [
            Linear(
                "row",
                (f"{framework} {i}", "", ""),
                a * times + b,
                a + b,
                {ATTENTION: a, "memory of h100": b},
                framework,
            )
            for i in range(5)
            for a, b in [(1.0, 0.1), (0.2, 1.0), (0.5, 0.5), (0.1, 0.05)]
        ]

    odd = attending("odd", 1.6)
    alone = fit(odd, NO_CONSTANTS)
    found = fit(odd + [one for name in "abcdef" for one in attending(name, 1.0)], NO_CONSTANTS)
    assert whole(found, "attention", "h100", "odd") == pytest.approx(1.6, rel=0.03)
    assert whole(found, "attention", "h100", "a") == pytest.approx(1.0, rel=0.03)
    # A framework that was not seen has what the seven have in common: 1.6^(1/7) = 1.07.
    assert whole(found, "attention", "h100", "new") == pytest.approx(1.07, abs=0.06)
    # Of one framework alone it cannot be known what is the GPU's.
    assert 1.1 < whole(alone, "attention", "h100", "new") < 1.6


def test_families_pull_and_rows_do_not() -> None:
    def value(families: int, rows: int) -> float:
        steps = [step(f"{i}", 1.3, 1.0, 0.0, 0.0) for i in range(families) for _ in range(rows)]
        # A step of another kind keeps the spread of what is left from vanishing.
        other = [
            Linear("x", (f"x{i}", "", ""), 1.0 + 0.2 * (-1) ** i, 1.0, {"memory of a100": 1.0})
            for i in range(20)
        ]
        found = fit(steps + other, NO_CONSTANTS)
        return whole(found, "products", "h100 bf16", "theirs")

    assert 1 < value(1, 1) < value(10, 1) < 1.31
    assert value(1, 100) < value(10, 1)


def test_what_is_far_off_pulls_no_harder() -> None:
    steps = made(1.1, 1.1, 0.0, 10)
    wild = [*steps, step("wild", 100.0, 1.0, 0.1, 0.0, 0.0)]
    found, pulled = fit(steps, NO_CONSTANTS), fit(wild, NO_CONSTANTS)
    values = [whole(each, "products", "h100 bf16", "theirs") for each in (found, pulled)]
    assert values[1] == pytest.approx(values[0], rel=0.02)


@given(st.floats(0.5, 2), st.floats(0.5, 2), st.floats(0, 0.05))
def test_foretelling_is_exact_where_the_path_stays(a: float, b: float, late: float) -> None:
    constants = StepConstants(
        products={"h100 bf16": Quantity(a, "1", 0, "x")},
        memory={"h100": Quantity(b, "1", 0, "x")},
        overhead={"theirs": Quantity(late, "s", 0, "x")},
    )
    one = step("f", 1.0, 0.7, 0.3, 0.0, 0.0)
    assert seconds_with(one, NO_CONSTANTS, constants) == pytest.approx(0.7 * a + 0.3 * b + late)


def test_error_bars_of_constants_are_those_of_the_step() -> None:
    constants = StepConstants(
        products={"h100 bf16": Quantity(2, "1", 0.1, "x")},
        memory={"h100": Quantity(1, "1", 0.2, "x")},
        host={"theirs": Quantity(1, "1", 0.4, "x")},
    )
    one = step("f", 1.0, 0.5, 0.6, 0.0)  # 1.6 s with them
    assert relative_error(one, NO_CONSTANTS, constants) == pytest.approx(
        math.hypot(0.1, 0.12) / 1.6
    )
    assert covered(one, constants)
    assert not covered(one, NO_CONSTANTS)


@given(
    st.lists(
        st.tuples(st.floats(-1, 1), st.floats(0, 0.3)).filter(lambda each: abs(each[0]) > 1e-6),
        min_size=1,
        max_size=60,
    )
)
def test_intervals_hold_nine_of_ten(rows: list[tuple[float, float]]) -> None:
    residuals, inputs = [a for a, _ in rows], [b for _, b in rows]
    error = sufficient_error(residuals, inputs)

    def held(error: float) -> float:
        half = Z_90 * np.hypot(np.array(inputs), error)
        return float((np.abs(residuals) <= half * (1 + 1e-9)).mean())

    assert held(error) >= 0.9
    if error > 1e-6:
        assert held(0.999 * error - 1e-9) < 0.9 or len(rows) == 0


def test_intervals_hold_by_rows_and_by_publishers() -> None:
    # Forty publishers, off by 0.01 to 0.4: 36 are to be held.
    names = [f"publisher {i}" for i in range(40)]
    residuals = [0.01 * (i + 1) for i in range(40)]
    error = sufficient_error(residuals, [0.0] * 40, names)
    assert error == pytest.approx(0.36 / Z_90)
    assert sufficient_error(residuals, [0.0] * 40) == pytest.approx(error)
    # More rows of one that is near do not make others count less.
    near = sufficient_error([*residuals, *[0.01] * 99], [0.0] * 139, [*names, *names[:1] * 99])
    assert near == pytest.approx(error)
    # More rows of one that is far off count as rows do: 125 of 139 are to be held.
    far = sufficient_error([*residuals, *[0.4] * 99], [0.0] * 139, [*names, *names[-1:] * 99])
    assert far == pytest.approx(0.4 / Z_90)


def test_fewer_than_three_publishers_are_not_counted() -> None:
    # Of the second publisher one row is far off, of a hundred.
    residuals, names = [0.01] * 99 + [0.4], ["near"] * 99 + ["far"]
    assert sufficient_error(residuals, [0.0] * 100, names) == pytest.approx(0.01 / Z_90)
    assert sufficient_error(residuals, [0.0] * 100, ["other", *names[1:]]) == pytest.approx(
        0.4 / Z_90
    )
    assert counted_by(names) == ""
    assert counted_by(["other", *names[1:]]) == ", by rows and by publishers (3)"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("QwenLM/Qwen README.md, Profiling of Memory and Speed", "QwenLM"),
        ("NVIDIA/NeMo docs/performance.md", "NVIDIA"),
        ("NVIDIA-NeMo/Megatron-Bridge docs/performance-summary.md", "NVIDIA"),
        ("mlcommons/training_results_v4.0 NVIDIA/results/h200_ngc23.09_pytorch/bert", "NVIDIA"),
        ("mlcommons/training_results_v4.0 Dell/results/R760xax4L40S/bert", "Dell"),
        ("NVIDIA/DeepLearningExamples, run by lambdal/deeplearning-benchmark x.csv", "Lambda"),
        ("lambdalabs.com/blog/2080-ti-deep-learning-benchmarks (2019-03-04)", "Lambda"),
        ("'Numerical precision' of a book on MaxText on MI355X", "a book on MaxText on MI355X"),
        ("'Sharding' of the same book (ROCm/maxtext v26.6)", "a book on MaxText on MI355X"),
        ("'B200 MFU Scaling Issue', 2025-11-20", "'B200 MFU Scaling Issue'"),
        ("gist.github.com/chenyaofo/d4cd6a20ab4b95cb3a49491747e2139a", "chenyaofo"),
        ("someone/NVIDIA/README.md", "someone"),  # a name matches where a word begins
    ],
)
def test_publishers_are_owners_and_authors(source: str, name: str) -> None:
    assert publisher(source) == name


# --- the whole way ------------------------------------------------------------------------------


def rows_of(tmp_path: Path) -> Path:
    from measured_steps import NEUSIGHT, TITAN, VTRAIN, table

    one = {**TITAN, "source_version": "1"}
    return table(
        tmp_path / "t.csv",
        VTRAIN,
        {**VTRAIN, "id": "mb4", "micro_batch": 4, "step_time_ms": 55.0},
        one,
        {**one, "id": "later", "source_version": "2", "step_time_ms": 2800.0},
        NEUSIGHT,
        {**VTRAIN, "id": "f", "trust": "F", "hidden": 2048},
    )


def test_calibrated_and_crossed(tmp_path: Path) -> None:
    file = rows_of(tmp_path)
    found = compare(file, MPI.COMM_SELF)
    assert found is not None
    constants = calibrate(found, MPI.COMM_SELF)
    assert constants is not None
    mine = tmp_path / "mine.toml"
    mine.write_text(written(constants))
    again = StepConstants.read(mine)
    assert again == constants
    assert {"megatron-deepspeed", "torchtitan"} == set(again.host)
    fitted = compare(file, MPI.COMM_SELF, constants=again)
    assert fitted is not None

    def error(rows: Any) -> float:
        trusted = [row for row in rows if row.row.texts["trust"] == "A"]
        return float(np.mean([abs(math.log(row.predicted / row.measured)) for row in trusted]))

    assert error(fitted.compared) < error(found.compared)
    cross_validate(found)
    assert len(found.cross_validated) == 5  # all but the one of trust F
    # Without its family there is nothing left about the GPU of either.
    assert not any(each.outcome.known for each in found.cross_validated)
    assert len(found.other_sources) == 5
    assert "fitted: mean" in render(found)
    assert "new source: mean" in render(found)
    page = markdown(found, f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "\nold\n" not in page
    assert "| torchtitan |" in page
    assert markdown(found, page) == page


def test_what_was_simulated_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = rows_of(tmp_path)
    found = compare(file, MPI.COMM_SELF)
    assert found is not None
    out = tmp_path / "out.json"
    out.write_text(json.dumps(as_json(found, str(file))))
    known = stored(out)
    counted: list[int] = []

    def counting(rows: Any, *args: Any, **keys: Any) -> Any:
        counted.append(len(rows))
        return predict(rows, *args, **keys)

    module = importlib.import_module("mpisim.validate.e2e.compare")
    monkeypatch.setattr(module, "predict", counting)
    again = compare(file, MPI.COMM_SELF, known=known)
    assert again is not None
    assert [each.predicted for each in again.compared] == [
        each.predicted for each in found.compared
    ]
    assert [each.uncertainty for each in again.compared] == [
        each.uncertainty for each in found.compared
    ]
    compare(file, MPI.COMM_SELF, known=known, changes=["framework.fused=false"])
    assert counted[0] == 0 < counted[1]  # some experiments are so already
    first, second = calibrate(found, MPI.COMM_SELF, 0), calibrate(again, MPI.COMM_SELF, 0)
    assert first is not None
    # Errors of the model become no smaller than those of a file before, which stay with its source.
    errors = first.model_error
    assert errors is not None
    wide = {sort: Quantity(1, "1", 9.0, "before") for sort in errors.plain}
    none = {sort: Quantity(1, "1", 0.0, "before") for sort in errors.plain}
    kept = calibrate(found, MPI.COMM_SELF, 0, ModelError(wide, none, none))
    assert kept is not None
    assert kept.model_error is not None
    dense = kept.model_error.plain["dense"]
    assert dense.error == 9.0
    later = f"{errors.plain['dense'].error:.3f} ({errors.plain['dense'].source})"
    assert dense.source == f"{FOUND}before{KEPT}{later}"
    assert kept.model_error.known == errors.known
    assert first == second


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cases": [{}]}', '{"cases": 3}', "\udcff"])
def test_files_without_outcomes(tmp_path: Path, text: str) -> None:
    file = tmp_path / "out.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=r"out\.json") as caught:
        stored(file)
    assert "\n" not in str(caught.value)


def test_noise_is_no_pair(tmp_path: Path) -> None:
    from mpisim.validate.e2e.pairs import pairs

    found = compare(rows_of(tmp_path), MPI.COMM_SELF)
    assert found is not None
    figures = pair_figures(pairs(found.compared))
    assert figures["software release (noise)"]["n"] == 1
    assert figures["all but noise"]["n"] == figures["micro-batch"]["n"] == 1
    assert set(figures) <= {*KINDS, *SUMMARIES}


# --- composition --------------------------------------------------------------------------------


def test_a_step_of_1f1b_is_composed_as_its_formula_says() -> None:
    # step = m (L/p a + c) + (p - 1) L/p a, with a = 3 ms and c = 5 ms.
    def row(p: int, layers: int, m: int) -> Row:
        seconds = (m * (layers / p * 3 + 5) + (p - 1) * layers / p * 3) / 1e3
        integers = {
            "layers": layers,
            "hidden": 64,
            "tp": 1,
            "pp": p,
            "dp": 1,
            "micro_batch": 1,
            "global_batch": m,
        }
        return Row(
            "here",
            {"id": f"{p} {layers} {m}", "trust": "F"},
            {"step_time_ms": seconds * 1e3},
            integers,
            {},
        )

    rows = [row(p, layers, m) for p in (1, 2, 4) for layers in (8, 16) for m in (4, 8, 16)]
    for each in composed(rows):
        assert each.seconds == pytest.approx(each.row.seconds, rel=1e-6)


def test_rows_that_follow_the_formula(shared: Path) -> None:
    file = shared / "groundtruth" / "e2e" / "all.csv"
    if not file.exists():
        pytest.skip("no table of measurements")
    rows = [row for row in read(file) if row.texts["trust"] == "F"]
    errors = np.abs([each.error for each in composed(rows)])
    assert errors.mean() < 0.002
    assert (errors <= 0.01).mean() > 0.98
