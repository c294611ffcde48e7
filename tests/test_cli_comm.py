"""mpisim comm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mpisim.cli import main

USUAL = ["comm", "all_reduce", "--cluster", "dgx-h100", "--size", "1M:4M"]


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(USUAL) == 0
    out = capsys.readouterr().out.splitlines()
    assert "all_reduce on 1 × 8 GPUs of DGX H100" in out[0]
    rows = [line.split() for line in out[4:7]]
    assert [row[0] for row in rows] == ["1048576", "2097152", "4194304"]
    assert [row[7] for row in rows] == ["ring", "nvls", "nvls"]
    size, time, algbw, busbw = (float(rows[0][i]) for i in (0, 3, 5, 6))
    assert algbw == pytest.approx(size / time / 1e3, rel=1e-2)
    assert busbw == pytest.approx(algbw * 14 / 8, rel=1e-2)


def test_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*USUAL, "--set", "NCCL_ALGO=tree", "--set", "NCCL_PROTO=simple"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[4:7]]
    assert {(row[7], row[8]) for row in rows} == {("tree", "simple")}


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "comm.json"
    assert main([*USUAL, "--nodes", "4", "--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert (found["gpus"], len(found["rows"])) == (32, 3)
    assert found["rows"][0]["busbw"] == pytest.approx(found["rows"][0]["algbw"] * 62 / 32)


@pytest.mark.parametrize("operation", ["alltoall", "sendrecv", "all-gather", "broadcast"])
def test_names_of_operations(operation: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["comm", operation, *USUAL[2:]]) == 0


def test_alpha_beta(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*USUAL, "--model", "alpha-beta", "--nodes", "2", "--type", "bfloat16"]) == 0
    row = capsys.readouterr().out.splitlines()[4].split()
    assert row[1:3] == ["524288", "bfloat16"]
    assert float(row[4]) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["comm", "all_reduces", *USUAL[2:]], "did you mean 'all_reduce'"),
        ([*USUAL, "--nodes", "0"], "at least 1 node"),
        ([*USUAL, "--gpus-per-node", "9"], "1 to 8 GPUs"),
        ([*USUAL, "--gpus-per-node", "1"], "nobody to communicate with"),
        ([*USUAL, "--set", "NCCL_ALGO"], "NAME=VALUE"),
        ([*USUAL, "--set", "NCCL_ALGO=rign"], "did you mean 'ring'"),
        ([*USUAL, "--model", "alpha-beta", "--set", "NCCL_ALGO=ring"], "only --model nccl"),
        ([*USUAL[:4], "--size", "big"], "'big' is no size"),
        ([*USUAL[:4], "--size", "8M:1M"], "below the first"),
        ([*USUAL[:4], "--size", "1M:8M:1"], "above 1"),
        ([*USUAL[:4], "--size", "1:8G:1.001"], "more than 1000 sizes"),
        ([*USUAL[:4], "--size", "1:2:3:4"], "FIRST:LAST:FACTOR"),
        (["comm", "all_reduce", "--cluster", "a40-4gpu", *USUAL[4:], "--nodes", "2"], "no NIC"),
    ],
)
def test_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1


# nccl-tests on machines of computing centres, bus bandwidth in GB/s; nothing was fitted to them (to
# Alps it was, whose nodes and cards Isambard-AI's are).
@pytest.mark.parametrize(
    ("name", "nodes", "size", "gigabytes"),
    [
        ("perlmutter", "8", "4G", 68.9),  # github:dingp/communication-libraries-image
        ("isambard-ai", "8", "1G", 85),  # "about", a log on GitHub
        ("isambard-ai", "2", "1G", 139),
    ],
)
def test_measured_on_machines_of_centres(
    name: str, nodes: str, size: str, gigabytes: float, tmp_path: Path
) -> None:
    target = tmp_path / "comm.json"
    words = ["comm", "all_reduce", "--cluster", name, "--nodes", nodes, "--size", size]
    assert main([*words, "--json", str(target)]) == 0
    (row,) = json.loads(target.read_text())["rows"]
    assert row["busbw"] == pytest.approx(gigabytes * 1e9, rel=0.1)
