"""``mpisim calibrate kernels`` and ``mpisim validate kernels``, end to end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import toy_formula

from mpisim.cli import main
from mpisim.kernels import gpu_name
from mpisim.kernels.analytical import KernelCalibration
from mpisim.kernels.gpu_parameters import gpu_parameters
from mpisim.kernels.operations import Gemm
from mpisim.validate.whole_models import steps

TIMES = {"A100-SXM-80GB": 0.9, "H100-SXM-80GB": 0.6}
"""Efficiency of the toy's products on each GPU."""


@pytest.fixture
def table(tmp_path, monkeypatch) -> Path:
    """A table in Vidur's form, with the toy's times and 5 % noise."""
    toy_formula.install(monkeypatch)
    lines = ["gpu,model,op,tp,M,N,K,median_ms,min_ms"]
    random = np.random.default_rng(7)
    for gpu, efficiency in TIMES.items():
        for m, n, k in random.integers(64, 8192, (150, 3)).tolist():
            kernel = Gemm(m, n, k, dtype="fp16", output="fp16")
            columns = {
                "flops": np.array([kernel.flops]),
                "traffic": np.array([kernel.traffic]),
                "dtype": "fp16",
            }
            constants = {"efficiency": efficiency, "memory": 0.8, "floor": 5e-6}
            seconds = toy_formula.seconds(columns, gpu_parameters(gpu_name(gpu)), constants)[0]
            ms = 1e3 * seconds * np.exp(0.05 * random.standard_normal())
            lines.append(f"{gpu},m,op,1,{m},{n},{k},{ms:.9f},0")
    path = tmp_path / "gemm.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


Run = Callable[..., str]


@pytest.fixture
def run(capsys) -> Run:
    """Run the program here, where the toy is, and return what it prints."""

    def call(*words: object, rc: int = 0) -> str:
        assert main([str(word) for word in words]) == rc
        printed = capsys.readouterr()
        return printed.out if rc == 0 else printed.err

    return call


def test_calibrate_then_validate(table, run, tmp_path):
    mine = tmp_path / "mine.toml"
    out = run("calibrate", "kernels", table, "-o", mine)
    assert "gemm.h100-sxm.fp16" in out
    found = KernelCalibration.read(mine).tables
    for gpu, efficiency in (("a100-sxm", 0.9), ("h100-sxm", 0.6)):
        fitted = found["gemm", gpu, "fp16"]
        assert fitted.constants["efficiency"] == pytest.approx(efficiency, rel=0.03)
        assert fitted.splits == ("train",)
        assert fitted.files == ("gemm.csv",)

    figures = tmp_path / "figures.json"
    out = run(
        "validate", "kernels", table, "--calibration", mine, "--split", "test", "--json", figures
    )
    assert "linear, h100-sxm" in out
    data = json.loads(figures.read_text())
    assert data["kind"] == "kernels"
    assert data["rows"] == data["predicted"] == len(data["cases"])
    # 5 % of noise: a mean of 0.05 × sqrt(2 / pi) = 4 %, nine tenths within 8 %.
    assert data["mape"] == pytest.approx(0.04, abs=0.015)
    assert 0.8 <= data["covered"] <= 1.0
    groups = {"operator=linear", "dtype=fp16", "operator, gpu=linear, a100-sxm"}
    assert groups <= set(data["groups"])
    case = data["cases"][0]
    assert case["id"].startswith("gemm.csv:")
    assert case["error"] == pytest.approx(case["predicted"] / case["measured"] - 1)


def test_a_gpu_that_was_not_measured(table, run, tmp_path):
    mine = tmp_path / "mine.toml"
    run("calibrate", "kernels", table, "-o", mine, "--gpus", "A100-SXM-80GB")
    assert ("gemm", "hopper", "fp16") not in KernelCalibration.read(mine).tables
    out = run("validate", "kernels", table, "--calibration", mine, "--test-gpus", "H100")
    # 0.9 of the peak foretold, 0.6 measured.
    (line,) = [each for each in out.splitlines() if each.startswith("linear, h100-sxm")]
    assert float(line.split()[3].rstrip("%")) == pytest.approx(30, abs=6)


def test_each_chip_by_the_others(table, run, tmp_path):
    figures = tmp_path / "unseen.json"
    out = run("validate", "kernels", table, "--unseen", "--json", figures)
    data = json.loads(figures.read_text())
    # Arithmetic at 0.6 of the peak in place of 0.9, and the reverse; less where memory binds.
    a100, h100 = (data["groups"][f"chip={name}"] for name in ("a100-sxm", "h100-sxm"))
    assert 0.25 < a100["bias"] < 0.55
    assert -0.36 < h100["bias"] < -0.15
    assert data["worst"] == max(a100["mape"], h100["mape"])
    assert data["mean"] == pytest.approx((a100["mape"] + h100["mape"]) / 2)
    assert data["chips"] == 2
    assert "2 chips, each by the others alone" in out
    # What each states of itself is how far off the other was: as far.
    assert data["least_covered"] > 0.7


def test_each_chip_needs_others(table, run, tmp_path):
    alone = tmp_path / "one.csv"
    alone.write_text("".join(line for line in table.open() if not line.startswith("H100")))
    said = run("validate", "kernels", alone, "--unseen", rc=2)
    assert "no kernel family was measured on two chips" in said
    said = run("validate", "kernels", table, "--unseen", "--split", "test", "--model", "li", rc=2)
    assert "leave out --model, --split" in said


@pytest.mark.parametrize("model", ["roofline", "li", "simai", "database"])
def test_other_models(table, run, tmp_path, model):
    mine = tmp_path / "mine.toml"
    run("calibrate", "kernels", table, "-o", mine)
    words = ("validate", "kernels", table, "--calibration", mine, "--model", model)
    assert "linear, h100-sxm" in run(*words, "--test-gpus", "H100")


def test_messages(table, run, tmp_path):
    mine = tmp_path / "mine.toml"
    calibrate = ("calibrate", "kernels", table, "-o", mine)
    assert "unknown GPU 'H1000'" in run(*calibrate, "--gpus", "H1000", rc=2)
    assert "no row of" in run(*calibrate, "--train", "nothing", rc=2)
    assert "learns from measured rows" in run(
        "validate", "kernels", table, "--model", "li", "--train-gpus", "T4", rc=2
    )
    assert "is not one of analytical" in run(
        "validate", "kernels", table, "--model", "habitat", rc=2
    )
    assert "would write over the input" in run("calibrate", "kernels", table, "-o", table, rc=2)
    mine.write_text("")
    assert "exists already" in run(*calibrate, rc=2)
    run(*calibrate, "--overwrite")


HEADER = "gpu,model,mode,seq_len,batch,option,num_layer,e2e_ms,fwd_ms,bwd_ms,dtype"


def test_whole_models(run, tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text(
        f"{HEADER}\n"
        "H100-SXM-80GB,bert_large,inf,512,8,,24,69.8,69.8,0,fp32\n"
        "V100-PCIe-32GB,bert_large,train,512,8,,24,841.1,298.7,542.4,fp32\n"
        "H100-SXM-80GB,gpt2_large,train,1024,4,dp4,0,452,0,0,fp32\n"
        "H100-SXM-80GB,switchxl4,inf,512,1,,0,96,96,0,fp32\n"
    )
    figures = tmp_path / "figures.json"
    out = run("validate", "kernels", path, "--model", "roofline", "--json", figures)
    assert "skipped: 1 × four GPUs" in out
    data = json.loads(figures.read_text())
    assert data["predicted"] == 2
    assert data["mape"] < 0.2
    training = data["cases"][1]
    assert training["forward"] + training["backward"] == pytest.approx(training["predicted"])
    assert 0 < training["stated_error"] < 0.5


def test_mixed_tables_are_refused(table, run, tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text(f"{HEADER}\n")
    assert "one at a time" in run("validate", "kernels", table, path, rc=2)
    said = run("validate", "kernels", path, "--model", "roofline", rc=2)
    assert "has headings, but no rows" in said


def test_kernels_of_whole_models():
    forward, backward = steps("gpt2_large", 4, 1024, training=False)
    assert not backward
    # 36 layers of four products and two of attention, and the projection on the vocabulary.
    products = [each for each in forward if isinstance(each, Gemm)]
    assert len(products) == 36 * 6 + 1
    tokens, h = 4 * 1024, 1280
    scores = 4 * 20 * 1024 * 1024
    assert sum(each.flops for each in products) == (
        36 * (24 * tokens * h * h + 4 * scores * 64) + 2 * tokens * h * 50257
    )
    # Dropout only in training; the gradient of a product is two products.
    trained, backward = steps("gpt2_large", 4, 1024, training=True)
    assert len(trained) > len(forward)
    assert len([each for each in backward if isinstance(each, Gemm)]) == 2 * len(products)
    # torch.compile launches fewer kernels.
    assert len(steps("gpt2_large", 4, 1024, training=False, fused=True)[0]) < len(forward)


def test_bert_has_no_vocabulary_in_inference():
    forward, _ = steps("bert_large", 8, 512, training=False)
    assert not [each for each in forward if isinstance(each, Gemm) and each.n > 10_000]
    trained, _ = steps("bert_large", 8, 512, training=True)
    assert [each for each in trained if isinstance(each, Gemm) and each.n > 10_000]
