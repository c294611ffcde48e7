"""Constants fitted to steps: their file, what they multiply, what a step rests on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from plans import changed

from mpisim import engine
from mpisim.base.errors import InputError
from mpisim.base.quantity import Quantity
from mpisim.experiment import CalibrationChoice, Cnn, Dlrm, Experiment, NetworkChoice, load
from mpisim.prediction.path_shares import PathShares
from mpisim.prediction.prepared import prepare
from mpisim.prediction.statements import statements
from mpisim.prediction.step_constants import (
    AppliedConstants,
    StepConstants,
    chip,
    gpu_key,
    model_class,
    packaged_constants,
)

UNNAMED = Path(__file__).parent / "unnamed_framework.toml"

CHANGES = ["plan.tp=2", "plan.dp=4", "plan.zero=1", "plan.global_batch=32"]


def times(value: float) -> Quantity:
    return Quantity(value, "1", 0.1, "a test")


def step(experiment: Experiment, constants: StepConstants) -> tuple[int, dict[str, float]]:
    case = prepare(experiment, constants)
    run = engine.simulate(case.program, network=case.network, critical_path=True)
    return run.step_time, PathShares(case, run).lengths()


EXPERIMENT = dataclasses.replace(
    load(UNNAMED, CHANGES)[1], calibration=CalibrationChoice(file="ours")
)
EXPERIMENT = dataclasses.replace(EXPERIMENT, plan=changed(EXPERIMENT.plan, name="torchtitan"))


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("products", "h100 bf16"),
        ("attention", "h100"),
        ("memory", "h100"),
        ("inside", "dgx-h100"),
        ("host", "torchtitan"),
    ],
)
def test_a_constant_changes_the_step_by_what_rests_on_it(kind: str, key: str) -> None:
    whole, lengths = step(EXPERIMENT, StepConstants())
    changed, _ = step(EXPERIMENT, StepConstants(**{kind: {key: times(1.001)}}))
    resting = lengths.get(f"{kind} of {key}", 0.0)
    assert changed - whole == pytest.approx(0.001 * resting, rel=0.02, abs=2e-6 * whole)
    assert kind == "host" or resting > 0


def test_the_overhead_of_a_step_comes_before_it() -> None:
    whole, _ = step(EXPERIMENT, StepConstants())
    late = StepConstants(overhead={"torchtitan": Quantity(3, "ms", 0.1, "a test")})
    changed, lengths = step(EXPERIMENT, late)
    assert changed - whole == 3_000_000_000
    assert lengths["overhead of torchtitan"] == 3_000_000_000


def test_lengths_of_pieces_that_are_alike_add_up() -> None:
    case = prepare(EXPERIMENT, StepConstants())
    run = engine.simulate(case.program, network=case.network, critical_path=True)
    path, shares = run.critical_path, PathShares(case, run)
    assert path is not None
    one_by_one: dict[str, float] = {}
    for piece, length in enumerate((path.end - path.begin).tolist()):
        for name, share in shares(piece).items():
            one_by_one[name] = one_by_one.get(name, 0.0) + share * length
    assert shares.lengths() == pytest.approx(one_by_one)


def test_what_a_fitted_constant_covers_rests_on_nothing_else() -> None:
    def resting(constants: StepConstants) -> dict[str, float]:
        return step(EXPERIMENT, constants)[1]

    plain = resting(StepConstants())
    of_products = resting(StepConstants(products={"h100 bf16": times(1.0)}))
    assert set(plain) - set(of_products) == {"gemm model (bf16)"}
    assert of_products["products of h100 bf16"] == plain["products of h100 bf16"]
    # What is only a framework's says nothing about the GPU.
    assert set(resting(StepConstants(attention={"torchtitan on any gpu": times(1.0)}))) == set(
        plain
    )
    inside = resting(StepConstants(inside={"dgx-h100": times(1.0)}))
    assert inside["inside of dgx-h100"] == plain["inside of dgx-h100"]
    assert not any("collectives" in name for name in inside)


def test_constants_of_one_change_nothing() -> None:
    plain = prepare(dataclasses.replace(EXPERIMENT, calibration=CalibrationChoice()))
    run = engine.simulate(plain.program, network=plain.network)
    assert step(EXPERIMENT, StepConstants())[0] == run.step_time


def test_a_file_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        '[memory]\nh100 = { value = 2, unit = "1", error = 0.1, source = "me" }\n'
    )
    source = str(tmp_path / "experiment.toml")
    choice = CalibrationChoice("mine.toml")
    case = prepare(dataclasses.replace(EXPERIMENT, calibration=choice, source=source))
    assert case.constants is not None
    assert case.constants.number("memory", "h100")[1].value == 2
    bad = dataclasses.replace(
        EXPERIMENT, calibration=choice, source=source, network=NetworkChoice("alpha-beta")
    )
    with pytest.raises(InputError, match="'alpha-beta' has no use for it"):
        prepare(bad)
    with pytest.raises(InputError, match=r"no\.toml: cannot be read"):
        StepConstants.read(tmp_path / "no.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[memory]\nh100 = { value = 0, unit = "1", error = 0, source = "x" }', "above 0"),
        ('[memory]\nh100 = { value = 1, unit = "s", error = 0, source = "x" }', "the unit '1'"),
        ('[overhead]\nx = { value = 1, unit = "B", error = 0, source = "x" }', "it is a time"),
        ("[memry]\n", "did you mean 'memory'"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        StepConstants.read(file)


def test_ours() -> None:
    assert packaged_constants().model_error is not None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a100-sxm-40gb", "a100"),
        ("H100-SXM-96GB-500W", "h100"),
        ("rtx-4090", "4090"),
        ("titan-xp", "titan-xp"),
        ("V100-PCIe-32GB", "v100"),
        ("b300", "b300"),
    ],
)
def test_kinds_of_gpus(name: str, kind: str) -> None:
    assert chip(name) == kind


def test_a_framework_has_constants_beside_those_of_the_gpu() -> None:
    constants = StepConstants(
        products={"h100 bf16": times(1.2)},
        attention={"h100": times(1.2), "torchtitan on any gpu": times(1.1)},
        inside={"dgx-h100": times(1.4)},
        across={"dgx-h100": times(1.3), "torchtitan on any network": times(0.8)},
        host={"torchtitan": times(2.0)},
    )
    theirs = AppliedConstants(constants, "h100", "dgx-h100", "torchtitan")
    name, number = theirs.number("attention", "h100")
    assert name == "attention of h100"
    assert number.value == pytest.approx(1.2 * 1.1)
    assert number.error == pytest.approx(0.1 * 2**0.5)
    # Also GPUs and platforms that nothing was fitted of have the framework's.
    assert theirs.number("attention", "b200")[1].value == pytest.approx(1.1)
    assert theirs.number("across", "other")[1].value == pytest.approx(0.8)
    assert theirs.number("host", "torchtitan")[1].value == 2
    for framework in ("new", None):
        new = AppliedConstants(constants, "h100", "dgx-h100", framework)
        assert new.number("attention", "h100")[1].value == pytest.approx(1.2)
        assert new.number("across", "dgx-h100")[1].value == pytest.approx(1.3)
    # Products and communications in nodes are the GPU's and the platform's alone.
    assert theirs.number("products", "h100 bf16")[1].value == pytest.approx(1.2)
    assert theirs.number("inside", "dgx-h100")[1].value == pytest.approx(1.4)


def test_models_that_are_no_transformers_have_constants_of_their_own() -> None:
    assert gpu_key("H100-SXM-80GB", EXPERIMENT.model) == "h100"
    assert gpu_key("H100-SXM-80GB", Cnn(family="resnet", depth=50)) == "h100-other"
    tables = Dlrm("dlrm", (10,), embedding=8, bottom_mlp=(8,), top_mlp=(1,), dense_features=4)
    assert model_class(tables) == "recommendation"
    assert gpu_key("H100-SXM-80GB", tables) == "h100-recommendation"


def test_models_with_experts_have_none() -> None:
    slow = StepConstants(products={"h100 bf16": times(1.5)}, inside={"dgx-h100": times(2.0)})
    changes = ["model.preset=mixtral-8x7b", "model.layers=2", "plan.global_batch=8"]
    mixture = load(changes=changes)[1]
    assert step(mixture, slow)[0] == step(mixture, StepConstants())[0]
    assert step(EXPERIMENT, slow)[0] > step(EXPERIMENT, StepConstants())[0]
    case = prepare(dataclasses.replace(mixture, calibration=CalibrationChoice(file="ours")))
    run = engine.simulate(case.program, network=case.network, critical_path=True)
    said = statements(case, run, {})["assumptions"]
    assert any(line.startswith("calibration.file: constants fitted to steps") for line in said)
