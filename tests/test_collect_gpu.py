"""The collector: what it would measure, and that its tables are read as kernels."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from gpu_collector import sweep

from mpisim.base.errors import InputError
from mpisim.kernels import measured
from mpisim.kernels.measured.formats import COLLECTED_FAMILIES, collected_kernel
from mpisim.kernels.operations import BYTES, Attention, Copy, Embedding, Gemm, Norm

SCRIPTS = Path(__file__).resolve().parent.parent / "run_scripts"
COLLECTOR = SCRIPTS / "collect_gpu.py"


def cells(case) -> dict[str, str]:
    """Return a case as a table has it."""
    written = {key: int(v) if isinstance(v, bool) else v for key, v in case.fields.items()}
    return {"family": case.family} | {key: str(value) for key, value in written.items()}


def collect(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(COLLECTOR), *arguments], capture_output=True, text=True, timeout=300
    )


def table(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, sweep.COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_every_case_has_a_description():
    for name, cases in sweep.SWEEPS.items():
        for case in cases(False):
            kernel = collected_kernel(cells(case))
            for key, value in case.fields.items():
                assert getattr(kernel, key) == value, (name, case)
            assert set(case.fields) <= set(sweep.DESCRIPTION)


def test_sweeps_are_the_same_every_time():
    for cases in sweep.SWEEPS.values():
        assert list(cases(False)) == list(cases(False))


def test_sweeps_cover_what_they_name():
    cases = [case for cases in sweep.SWEEPS.values() for case in cases(False)]
    assert {case.family for case in cases} == set(COLLECTED_FAMILIES) - {"grouped_gemm"}
    products = [case for case in cases if case.family == "gemm"]
    assert {case.fields["dtype"] for case in products} == set(BYTES)
    assert len(products) > 2000
    assert {case.fields["direction"] for case in cases if case.family == "convolution"} == {
        "forward",
        "input",
        "weight",
    }


def test_elementwise_bytes():
    moved = {
        case.operation: case.fields["bytes"] / case.extra["count"]
        for case in sweep.elementwise(False)
        if case.extra["dtype"] == "bf16"
    }
    assert moved["add"] == 6
    assert moved["gelu"] == 4
    assert moved["gelu backward"] == 6
    assert moved["dropout"] == 5
    assert moved["cast"] == 6


def test_small_sweeps_have_every_operation():
    for name, cases in sweep.SWEEPS.items():
        small, whole = ({case.operation for case in cases(each)} for each in (True, False))
        assert small == whole, name


def test_tables_are_read(tmp_path):
    cases = [case for cases in sweep.SWEEPS.values() for case in cases(True)]
    rows = [
        {"gpu": "h100-sxm", "operation": case.operation, "median_us": "12.5", "repeats": "10"}
        | cells(case)
        for case in cases
    ]
    found, skipped = measured.read(table(tmp_path / "all.csv", *rows))
    assert not skipped
    kernels = [kernel for each in found for kernel in each.kernels]
    assert len(kernels) == len(cases)
    assert Norm(64, 32, "rms", backward=True, dtype="bf16") in kernels
    assert Embedding(16, 8, 64, 16, dtype="fp32") in kernels
    assert Copy(1024, "fill") in kernels
    assert Gemm(64, 32, 16, dtype="fp8", output="bf16") in kernels
    attention = Attention(1, 2, 2, 16, 16, 16, 16, causal=True, backward=True, dtype="bf16")
    assert attention in kernels
    assert not any(each.launched for each in found)
    assert all(each.seconds[0] == pytest.approx(12.5e-6) for each in found)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"family": "gem"}, "unknown family 'gem' (did you mean 'gemm'?)"),
        ({"m": ""}, "m of a gemm kernel: empty"),
        ({"m": "12.5"}, "m is '12.5'; it must be a whole number"),
        ({"m": "0"}, "'m' is 0"),
        ({"dtype": "bf17"}, "dtype is 'bf17' (did you mean 'bf16'?)"),
        ({"accumulate": "yes"}, "accumulate is 'yes'; it must be 0 or 1"),
    ],
)
def test_refusals(changed, message):
    row = {"family": "gemm", "m": "1", "n": "2", "k": "3", "dtype": "bf16"} | changed
    with pytest.raises(InputError) as error:
        collected_kernel(row)
    assert message in str(error.value)


def test_dry_run_needs_no_torch():
    found = collect("--dry-run", "--only", "gemm", "copies", "training")
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert len(lines) == 3
    assert "matmul nt" in lines[0]
    assert "copy to host 11" in lines[1]


def test_needs_an_output_or_a_dry_run():
    found = collect("--only", "gemm")
    assert found.returncode == 2
    assert "-o FOLDER is needed" in found.stderr


def test_refuses_unknown_sweeps():
    found = collect("--dry-run", "--only", "gem")
    assert found.returncode == 2
    assert "invalid choice: 'gem'" in found.stderr


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_runs_small_sweeps_on_the_cpu(tmp_path):
    out = tmp_path / "out"
    found = collect("--dry-run", "-o", str(out), "--gpu", "t4")
    assert found.returncode == 0, found.stderr
    assert json.loads((out / "hardware.json").read_text())["preset"] == "t4"
    for name, cases in sweep.SWEEPS.items():
        batches, _ = measured.read(out / "kernels" / f"{name}.csv")
        assert sum(map(len, batches)) == len(list(cases(True)))
    assert len(list((out / "traces").glob("*_kineto.json.gz"))) == 3
    assert len(list((out / "traces").glob("*_et.json.gz"))) == 3
    again = collect("--dry-run", "-o", str(out))
    assert again.returncode == 2
    assert "is not empty" in again.stderr
