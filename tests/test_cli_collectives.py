"""``mpisim calibrate collectives`` and ``mpisim validate collectives``."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import pytest

from mpisim.cli import main
from mpisim.topo.collectives.calibration import CollectiveCalibration

PUBLISHED = Path(__file__).parents[1] / "data/validation/collectives.csv"

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
    assert "hopper-roce" in CollectiveCalibration.read(mine).tables

    command = ["validate", "collectives", str(rows), "--calibration", str(mine)]
    assert main([*command, "--split", "test", "--json", str(figures)]) == 0
    printed = capsys.readouterr().out
    found = json.loads(figures.read_text())
    assert "1 MiB and more, all_reduce" in printed
    assert found["kind"] == "collectives"
    assert found["predicted"] == len(found["cases"]) > 0
    assert {case["split"] for case in found["cases"]} == {"test"}

    assert main([*command, "--json", str(figures), "--overwrite"]) == 0
    whole = json.loads(figures.read_text())
    assert (whole["rows"], whole["predicted"]) == (36, 36)
    assert whole["skipped"] == {"GPU 'Z9' is unknown": 1}


LOGS = Path(__file__).parent / "nccl_logs"


def test_logs_of_a_users_own_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [str(LOGS / "all_reduce_8.log")]
    mine = tmp_path / "mine.cal.toml"
    machine = ["--cluster", "dgx-h100", "--platform", "my-cluster"]
    assert main(["calibrate", "collectives", *logs, *machine, "-o", str(mine)]) == 0
    printed = capsys.readouterr().out
    assert "inside a node: fitted to 8 rows" in printed
    assert "across nodes: not measured; numbers and errors of calibration/coll" in printed
    (table,) = CollectiveCalibration.read(mine).tables.items()
    assert table[0] == "my-cluster"
    assert table[1].behind == ("dgx-h100", "hopper", "any")

    figures = []
    for calibration in ([], ["--calibration", str(mine)]):
        path = tmp_path / "figures.json"
        command = ["validate", "collectives", *logs, *calibration, "--json", str(path)]
        assert main(command) == 0
        cases = json.loads(path.read_text())["cases"]
        figures.append(sum(abs(math.log(each["predicted"] / each["measured"])) for each in cases))
        path.unlink()
    assert figures[1] < figures[0] / 2

    capsys.readouterr()
    seconds = {}
    for nodes in ("1", "2"):
        for calibration in ([], ["--calibration", str(mine)]):
            path = tmp_path / "comm.json"
            command = ["comm", "all_reduce", "--cluster", "dgx-h100", "--size", "1K"]
            assert main([*command, "--nodes", nodes, *calibration, "--json", str(path)]) == 0
            (row,) = json.loads(path.read_text())["rows"]
            seconds[nodes, bool(calibration)] = row["seconds"], row["relative_error"]
            path.unlink()
    assert seconds["1", True][0] == pytest.approx(24.31e-6, rel=0.15)
    assert seconds["2", True][1] == seconds["2", False][1]


def test_a_table_of_one_platform_is_laid_over_ours(tmp_path: Path) -> None:
    """Eight rows of one node do not calibrate the network, in whatever form they come."""
    rows = [
        f"mine,all_reduce,NVIDIA H100 80GB HBM3,8,8,1,NVLink4,none,{1 << k},fp32,"
        f"{25 + (1 << k) / 250e3},0,0,2.27.7,"
        for k in range(10, 34, 3)
    ]
    path, mine = tmp_path / "mine.csv", tmp_path / "mine.toml"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    assert main(["calibrate", "collectives", str(path), "-o", str(mine)]) == 0
    (table,) = CollectiveCalibration.read(mine).tables.values()
    assert set(table.numbers) == {"bandwidth_inside", "latency_inside"}
    assert not table.covers("across")


@pytest.mark.parametrize("model", ["alpha-beta", "echo", "sigmoid"])
def test_other_models(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path)
    assert main(["validate", "collectives", str(path), "--model", model]) == 0
    assert "1 MiB and more" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["validate", "collectives", "{rows}", "--grades", "A"], "no row of"),
        (
            ["validate", "collectives", "{rows}", "--calibration", "{bad}"],
            "'numbers.latency_inside' is 0",
        ),
        (["validate", "collectives", "{bad}"], "no known table of measured communications"),
        (["calibrate", "collectives", "none.csv", "-o", "{new}"], "none.csv: cannot be read"),
        (["calibrate", "collectives", "{rows}", "-o", "{bad}"], "exists already"),
        (
            ["calibrate", "collectives", "{log}", "--platform", "any", "-o", "{new}"],
            "--platform is",
        ),
        (
            ["calibrate", "collectives", "{log}", "--cluster", "dgx-a100", "-o", "{new}"],
            "of the architecture hopper",
        ),
        (["validate", "collectives", "{log}", "--nodes", "0"], "--nodes is 0"),
        (["validate", "collectives", "{rows}", "--nodes", "2"], "tables have columns for it"),
        (["validate", "collectives", "{log}", "--operation", "x"], "operation 'x' is unknown"),
    ],
)
def test_mistakes(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(
        '[any]\nform = "nccl"\nnumbers = { latency_inside = 0 }\nsource = "s"\nfiles = []\n'
        'split = "all"\ncurves = 1\nrows = 1\nheld_out = "curves"\n'
        "errors = [{ decade = 6, rows = 1, bias = 0, median = 0, p90 = 0 }]\n"
    )
    names = {
        "{rows}": str(table(tmp_path)),
        "{bad}": str(bad),
        "{new}": str(tmp_path / "new.toml"),
        "{log}": str(LOGS / "all_reduce_8.log"),
    }
    assert main([names.get(each, each) for each in arguments]) != 0
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_published_curves_have_sources_that_can_be_looked_up() -> None:
    with PUBLISHED.open() as file:
        sources = {row["source"] for row in csv.DictReader(file)}
    known = re.compile(r"https://|github:[\w.-]+/[\w.-]+, |arXiv:|not traceable: ")
    assert [each for each in sources if not known.match(each)] == []
