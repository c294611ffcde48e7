"""Predictions that name no framework have a wide error bar, and say so."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import unnamed_framework

from mpisim.base.presets import packaged
from mpisim.experiment import load
from mpisim.prediction.prepared import prepare
from mpisim.prediction.uncertainty import (
    UNCOMPARED_FILE,
    UNNAMED,
    UNNAMED_FILE,
    design_name,
    unnamed_class,
)
from mpisim.simulate import simulate

OLDER = [
    ("dgx-a100", 1, "dense_before_2022"),
    ("dgx-a100", 3, "sharded_before_2022"),
    ("dgx-h100", 1, "dense"),
    ("dgx-h100", 3, "sharded"),
]

HERE = Path(__file__).parent
PLAIN = HERE / "unnamed_framework.toml"


def test_the_error_bar_is_wide_until_a_framework_is_named() -> None:
    plain = simulate(load(PLAIN)[1])
    recipe = ["framework.name=torchtitan", "framework.recipe=performance"]
    named = simulate(load(PLAIN, recipe)[1])
    library = simulate(load(PLAIN, ["framework.name=fsdp"])[1])
    told = simulate(load(PLAIN, ["framework.fused=false", "framework.kernels=flash"])[1])
    assert plain is not None
    assert named is not None
    assert library is not None
    assert told is not None
    runs = (plain, named, library)
    errors = [float(each.attributes["uncertainty"]) for each in runs]  # type: ignore[arg-type]
    assert errors[0] > 2 * errors[1]
    # A library leaves the code of the model open: who names nothing knows no more, nor much less.
    assert 0.99 * errors[2] < errors[0] < 1.4 * errors[2]
    open_code = packaged(UNCOMPARED_FILE)["left_open"]["error"]
    spread = max(packaged(UNNAMED_FILE)["sharded"]["error"], open_code)
    rest = [math.sqrt(errors[0] ** 2 - spread**2), math.sqrt(errors[2] ** 2 - open_code**2)]
    assert rest[0] == pytest.approx(rest[1], rel=0.03)
    assert errors[2] > 1.5 * errors[1]
    assert any(line.startswith(UNNAMED) for line in plain.attributes["uncertainty_sources"])
    assert any(
        "at least a library's; [framework] name" in x for x in plain.attributes["assumptions"]
    )
    for other in (named, library, told):
        assert not any(UNNAMED in line for line in other.attributes["uncertainty_sources"])


@pytest.mark.parametrize(("zero", "kind"), [("3", "sharded"), ("", "dense")])
def test_spreads_are_of_ratios(zero: str, kind: str) -> None:
    def case(name: str, seconds: float, trust: str = "A") -> dict[str, object]:
        model = {"kind": "dense transformer", "gpu": "A100" if name == "b" else "H100-SXM-80GB"}
        return {"id": name, "predicted": seconds, "trust": trust, **model}

    named = [case("a", 1.0), case("b", 1.0), case("c", 1.0, "C"), case("d", 1.0)]
    unnamed = [case("a", 2.0), case("b", 0.5), case("c", 9.0, "C")]
    found = unnamed_framework.spreads(dict.fromkeys("abcd", zero), named, unnamed)
    # An A100 is of 2020, so that its row also counts apart.
    assert found == {
        kind: (pytest.approx(math.log(2)), 2),
        f"{kind}_before_2022": (pytest.approx(math.log(2)), 1),
    }


@pytest.mark.parametrize(("gpu", "zero", "key"), OLDER)
def test_older_gpus_have_an_error_of_their_own(gpu: str, zero: int, key: str) -> None:
    """A framework of their time had kernels that common practice of today has not."""
    changes = [f"cluster.preset={gpu}", f"plan.zero={zero}", "run.allow_oom=true"]
    shown = simulate(load(PLAIN, changes)[1])
    assert shown is not None
    (line,) = (x for x in shown.attributes["uncertainty_sources"] if x.startswith(UNNAMED))  # type: ignore[union-attr]
    case = prepare(load(PLAIN, changes)[1])
    designs = [design_name(each.model.gpu) for each in case.workload.pricings]
    assert unnamed_class("dense", zero, designs) == key
    # No less than what the name of a library leaves open.
    open_code = packaged(UNCOMPARED_FILE)["left_open"]["error"]
    error = max(packaged(UNNAMED_FILE)[key]["error"], open_code)
    assert f"± {100 * error:.0f} % on 100.0 %" in line
    assert any("at least a library's" in each for each in shown.attributes["assumptions"])  # type: ignore[union-attr]


def test_gpus_that_were_not_compared_have_no_library_s_error() -> None:
    shown = simulate(load(PLAIN, ["cluster.preset=rtx-4090-8gpu", "run.allow_oom=true"])[1])
    assert shown is not None
    (line,) = (x for x in shown.attributes["assumptions"] if x.startswith("framework: none"))  # type: ignore[union-attr]
    assert "the error bar is wide; [framework] name tells" in line
