"""``mpisim calibrate collectives`` and ``mpisim validate collectives``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mpisim.cli import main
from mpisim.topo.collectives.calibration import Calibration

HEADER = (
    "source,op,gpu,gpus_per_node,num_gpus,num_nodes,intra_link,inter_link,size_bytes,dtype,"
    "out_of_place_time_us,algbw_GBps,busbw_GBps,nccl_version,notes"
)


def table(folder: Path) -> Path:
    """Curves of 20 us + S / 100 GB/s on four numbers of nodes, and one that nobody knows."""
    rows = [HEADER]
    for run in range(3):
        for nodes in (2, 4, 8, 16):
            for size in (1 << 12, 1 << 20, 1 << 28):
                time = 20 * nodes + size / 100e3
                rows.append(
                    f"github:a/b:run{run},all_reduce,H100-SXM-80GB,8,{8 * nodes},{nodes},NVLink4,"
                    f"8x200G RoCE,{size},fp32,{time},{size / time / 1e3},,2.27.7,"
                )
    rows.append("s,all_reduce,Z9,8,16,2,x,y,1024,fp32,30,0.03,,,")
    path = folder / "rows.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_fit_and_validate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, mine, figures = table(tmp_path), tmp_path / "mine.toml", tmp_path / "figures.json"
    assert main(["calibrate", "collectives", str(rows), "-o", str(mine)]) == 0
    assert "hopper-roce" in capsys.readouterr().out
    assert "hopper-roce" in Calibration.read(mine).tables

    command = ["validate", "collectives", str(rows), "--calibration", str(mine)]
    assert main([*command, "--split", "test", "--json", str(figures)]) == 0
    printed = capsys.readouterr().out
    found = json.loads(figures.read_text())
    assert "1 MiB and more, all_reduce" in printed
    assert found["kind"] == "collectives"
    assert found["predicted"] == len(found["cases"]) > 0
    assert {case["split"] for case in found["cases"]} == {"test"}

    assert main([*command, "--json", str(figures)]) == 0
    whole = json.loads(figures.read_text())
    assert (whole["rows"], whole["predicted"]) == (36, 36)
    assert whole["skipped"] == {"GPU 'Z9' is unknown": 1}


@pytest.mark.parametrize("model", ["alpha-beta", "echo", "sigmoid"])
def test_other_models(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path)
    assert main(["validate", "collectives", str(path), "--model", model]) == 0
    assert "1 MiB and more" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["validate", "collectives", "{rows}", "--grades", "A"], "no row of"),
        (["validate", "collectives", "{rows}", "--calibration", "{bad}"], "'numbers.latency' is 0"),
        (["validate", "collectives", "{bad}"], "no known table of measured communications"),
        (["calibrate", "collectives", "none.csv", "-o", "{new}"], "none.csv: cannot be read"),
        (["calibrate", "collectives", "{rows}", "-o", "{bad}"], "exists already"),
    ],
)
def test_mistakes(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(
        '[any]\nform = "nccl"\nnumbers = { latency = 0 }\nsource = "s"\nfiles = []\n'
        'split = "all"\ncurves = 1\nrows = 1\nheld_out = "curves"\n'
        "errors = [{ decade = 6, rows = 1, bias = 0, median = 0, p90 = 0 }]\n"
    )
    names = {"{rows}": str(table(tmp_path)), "{bad}": str(bad), "{new}": str(tmp_path / "new.toml")}
    assert main([names.get(each, each) for each in arguments]) != 0
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
