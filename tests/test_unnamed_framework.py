"""Predictions that name no framework have a wide error bar, and say so."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import unnamed_framework

from mpisim.experiment import load
from mpisim.prediction.uncertainty import UNNAMED
from mpisim.simulate import simulate

HERE = Path(__file__).parent
PLAIN = HERE / "unnamed_framework.toml"


def test_the_error_bar_is_wide_until_a_framework_is_named() -> None:
    plain = simulate(load(PLAIN)[1])
    named = simulate(load(PLAIN, ["framework.name=fsdp"])[1])
    told = simulate(load(PLAIN, ["framework.fused=false", "framework.kernels=flash"])[1])
    assert plain is not None
    assert named is not None
    assert told is not None
    errors = [float(each.attributes["uncertainty"]) for each in (plain, named)]  # type: ignore[arg-type]
    assert errors[0] > 2 * errors[1]
    assert any(line.startswith(UNNAMED) for line in plain.attributes["uncertainty_sources"])
    assert any("[framework] name" in line for line in plain.attributes["assumptions"])
    for other in (named, told):
        assert not any(UNNAMED in line for line in other.attributes["uncertainty_sources"])


@pytest.mark.parametrize(("zero", "kind"), [("3", "sharded"), ("", "dense")])
def test_spreads_are_of_ratios(zero: str, kind: str) -> None:
    def case(name: str, seconds: float, trust: str = "A") -> dict[str, object]:
        return {"id": name, "predicted": seconds, "trust": trust, "kind": "dense transformer"}

    named = [case("a", 1.0), case("b", 1.0), case("c", 1.0, "C"), case("d", 1.0)]
    unnamed = [case("a", 2.0), case("b", 0.5), case("c", 9.0, "C")]
    found = unnamed_framework.spreads(dict.fromkeys("abcd", zero), named, unnamed)
    assert found == {kind: (pytest.approx(math.log(2)), 2)}
