"""Frameworks and GPUs whose predictions met no measured step have wider intervals, and say so."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import uncompared_error

from mpisim.experiment import load
from mpisim.prediction.uncertainty import UNCOMPARED
from mpisim.simulate import simulate

HERE = Path(__file__).parent
PLAIN = HERE / "unnamed_framework.toml"


@pytest.mark.parametrize(
    ("changes", "wider"),
    [
        (["framework.name=torchtitan"], False),
        (["framework.name=deepspeed"], True),
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


def case(name: str, ratio: float, framework: str = "new", kind: str = "dense") -> dict[str, Any]:
    return {
        "id": name,
        "predicted": ratio,
        "measured": 1.0,
        "stated_error": 0.1,
        "suspect": "",
        "kind": "dense transformer" if kind == "dense" else kind,
        "gpu": "h100-sxm",
        "trust": "A",
        "outcome": {"lengths": {f"host of {framework}": 1.0, "memory of h100": 1.0}, "effects": {}},
    }


def test_residuals_are_as_large_as_their_error_bars() -> None:
    logs = [0.02 * i * (-1) ** i for i in range(1, 31)]
    cases = [case(f"r{i}", math.exp(log)) for i, log in enumerate(logs)]
    causes = {each["id"] for each in cases}
    others = [case("held back", 9.0), case("seen", 9.0, "old"), case("r3", 9.0, kind="other")]
    error, n = uncompared_error.missing_error(
        [*cases, *others], causes | {"seen"}, ["old"], ["hopper, 128 lanes"]
    )
    assert n == 30
    # All are stated with 0.1: what is missing is the rest of their mean square.
    assert error**2 + 0.1**2 == pytest.approx(sum(log * log for log in logs) / 30)
    small = [case(f"r{i}", 1.01) for i in range(20)]
    assert uncompared_error.missing_error(small, causes, ["old"], []) == (0.0, 20)
    with pytest.raises(ValueError, match="5 rows"):
        uncompared_error.missing_error(cases[:5], causes, ["old"], [])


def test_frameworks_are_those_of_many_rows() -> None:
    assert uncompared_error.often(["a"] * 10 + ["b"] * 9 + [None] * 20) == ["a"]
    assert uncompared_error.framework_of(case("a", 1.0)) == "new"
    assert uncompared_error.framework_of(case("a", 1.0, "any framework")) is None
