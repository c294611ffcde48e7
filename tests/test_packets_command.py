"""`mpisim packets`: what it prints and writes, its options, tables of flows, and settings."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

from mpisim.base.errors import InputError
from mpisim.base.presets import packaged
from mpisim.base.quantity import Quantity
from mpisim.base.schema import build
from mpisim.cli import main
from mpisim.topo.packets import (
    packet_settings,
)
from mpisim.topo.packets.parameters import PARAMETER_SETS

CLUSTER = """\
title = "8 H100 a node, leaves of 2 NICs of one rail"
gpu = "h100-sxm"
gpus_per_node = 8
[node]
kind = "nvswitch"
link_bandwidth = { value = 370.8, unit = "GB/s", error = 0.03, source = "made up" }
nics = 8
nic_bandwidth = { value = 400, unit = "Gb/s", error = 0, source = "made up" }
nic_path = "pxb"
pcie_bandwidth = { value = 54, unit = "GB/s", error = 0.1, source = "made up" }
numa_nodes = 2
socket_bandwidth = { value = 22, unit = "GB/s", error = 0.3, source = "made up" }
[fabric]
kind = "rail-fat-tree"
leaf = 2
nic_efficiency = { value = 0.97, unit = "1", error = 0.05, source = "made up" }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(CLUSTER)
    (tmp_path / "incast.csv").write_text(
        "sender,receiver,bytes,start\n" + "".join(f"{8 * n},31,1e6,{n}e-6\n" for n in range(3))
    )
    return tmp_path


COMMAND = ["packets", "all_to_all", "--cluster", "mine.toml", "--nodes", "4", "--size", "1M"]


def test_it_prints_and_writes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = ["-o", "run.h5", "--csv", "flows.csv", "--json", "run.json"]
    assert main([*COMMAND, "--spines", "2", *outputs]) == 0
    text = capsys.readouterr().out
    assert "ECMP over up to 2 paths" in text
    assert "links, as hashed" in text
    assert "paused (PFC)" in text
    numbers = json.loads((folder / "run.json").read_text())["runs"][0]
    assert numbers["links_even_seconds"] <= numbers["links_hashed_seconds"] <= numbers["seconds"]
    with (folder / "flows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert max(float(row["end"]) for row in rows) == pytest.approx(numbers["seconds"])
    with h5py.File(folder / "run.h5") as file:
        assert file["flows/end"][:].max() / 1e12 == pytest.approx(numbers["seconds"])
        assert len(file["links/name"]) == len(numbers["links"])
        kept = dict(file["settings"].attrs)
    assert kept["routing"] == "ecmp"
    assert kept["seed"] == 0
    assert {name: kept[name] for name in numbers["parameters"]} == numbers["parameters"]


def test_seeds_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--spines", "2", "--draws", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "in the mean" in lines[-1]
    for seed in range(3):
        assert main([*COMMAND, "--spines", "2", "--seed", str(seed), "--json", f"{seed}.json"]) == 0
        (alone,) = json.loads((folder / f"{seed}.json").read_text())["runs"]
        (line,) = (each for each in lines if each.split()[:1] == [str(seed)])
        assert f"{alone['links_hashed_seconds'] * 1e3:.3f} ms" in line
        assert f"{alone['seconds'] * 1e3:.3f} ms" in line


def test_losses_are_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--cluster", "mine.toml", "--nodes", "4", "--spines", "2"]
    many = ["packets", "incast.csv", *place, "--recovery", "selective-repeat"]
    many += ["--congestion", "none"]
    assert main([*many, "--set", "buffer=200kB", "--json", "run.json", "-o", "run.h5"]) == 0
    text = capsys.readouterr().out
    assert "losses, selective-repeat" in text
    assert "paused" not in text
    numbers = json.loads((folder / "run.json").read_text())["runs"][0]
    assert f"lost              {numbers['dropped']:,} packets" in text
    assert f"sent again        {numbers['resent']:,} packets" in text
    assert numbers["dropped"] == sum(link["dropped"] for link in numbers["links"]) > 0
    with h5py.File(folder / "run.h5") as file:
        assert file["settings"].attrs["recovery"] == "selective-repeat"
        assert file["links/dropped"][:].sum() == numbers["dropped"]
    assert main([*many, "--draws", "2"]) == 0
    assert "dropped" in capsys.readouterr().out
    assert main([*many]) == 0
    assert "lost              nothing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--congestion", "hpcc"], "HPCC, PFC"),
        (["--congestion", "hpcc-pint"], "HPCC-PINT, PFC"),
        (["--congestion", "timely"], "TIMELY, PFC"),
        (["--congestion", "dctcp"], "DCTCP, PFC"),
        (["--routing", "adaptive"], "packets over the emptiest of up to 2 paths"),
    ],
)
def test_controls_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert main([*COMMAND, "--spines", "2", *options]) == 0
    text = capsys.readouterr().out
    assert says in text
    # Marks are told of where senders heed them.
    heeded = not {"hpcc", "hpcc-pint", "timely"} & set(options)
    assert ("marked (ECN)" in text) is heeded
    assert ("in the mean  marked" in text) is heeded


def test_a_table_of_flows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["packets", "incast.csv", "--cluster", "mine.toml", "--nodes", "4"]) == 0
    text = capsys.readouterr().out
    assert "3 flows" in text
    assert "one path for each flow" in text  # without spines
    exported = ["comm", "all_gather", *COMMAND[2:], "--flows", "--csv", "exported.csv"]
    assert main(exported) == 0
    capsys.readouterr()
    same = []
    for what in (["exported.csv"], ["all_gather", "--size", "1M"]):
        options = ["--cluster", "mine.toml", "--nodes", "4", "--json", "x.json", "--overwrite"]
        assert main(["packets", *what, *options]) == 0
        same.append(json.loads((folder / "x.json").read_text())["runs"][0]["seconds"])
    assert same[0] == same[1]


def test_options_without_effect_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    below = [
        "packets",
        "incast.csv",
        "--cluster",
        "mine.toml",
        "--nodes",
        "4",
        "--routing",
        "spray",
    ]
    assert main(below) == 0
    captured = capsys.readouterr()
    assert "--routing spray changed nothing" in captured.err
    assert "as hashed" not in captured.out
    assert main([*COMMAND, "--spines", "2", "--routing", "spray"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "as hashed" not in captured.out
    assert main([*COMMAND, "--spines", "2", "--routing", "spray", "--draws", "2"]) == 0
    assert "as hashed" not in capsys.readouterr().out


def test_a_table_is_read_as_it_is_meant(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def seconds(text: str) -> float:
        (folder / "same.csv").write_text(text)
        options = ["--cluster", "mine.toml", "--nodes", "4", "--json", "x.json", "--overwrite"]
        assert main(["packets", "same.csv", *options]) == 0
        return float(json.loads((folder / "x.json").read_text())["runs"][0]["seconds"])

    plain = seconds("sender,receiver,bytes\n0,31,1e6\n8,31,1000000\n")
    assert seconds("\ufeffsender, receiver, bytes\r\n0,31,1e6\r\n\r\n8, 31 ,1e6\r\n  \n") == plain
    assert seconds("bytes,receiver,sender\n1e6,31,0\n1e6,31,8\n") == plain
    many = " " * 200_000  # more than csv takes by default
    assert seconds(f"sender,receiver,bytes,links\n0,31,1e6,{many}\n8,31,1e6,\n") == plain


def test_processes_change_nothing(folder: Path, run_mpisim: Callable[..., Any]) -> None:
    outputs = [run_mpisim(COMMAND, processes).stdout for processes in (1, 2)]
    assert outputs[0] == outputs[1] != ""


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--size", "1M", "--spines", "0"], "--spines is 0"),
        (["--size", "1M", "--set", "mtuu=1"], "unknown parameter 'mtuu' (did you mean 'mtu'?)"),
        (["--size", "1M", "--set", "mtu=9 s"], "mtu is '9 s'"),
        (["--size", "1M", "--set", "mtu=1"], "mtu is 1; it must be 64 to"),
        (
            ["--size", "1M", "--routing", "spray", "--congestion", "hpcc"],
            "error: --congestion hpcc: hpcc follows the links of one path; routing is 'spray'",
        ),
        (
            ["--size", "1M", "--recovery", "go-back-n", "--set", "buffer=1kB"],
            "an empty queue takes",
        ),
        (["--size", "1M", "--set", "hpcc_target=2"], "hpcc_target is 2.0; it must be 0.01 to 1"),
        (["--size", "1M", "--set", "pint_base=1"], "pint_base is 1.0; it must be 1.0001 to 16"),
        (
            ["--size", "1M", "--congestion", "hpcc-pint", "--set", "pint_base=1.0001"],
            "pint_base is 1.0001 and pint_unit 0.00195312: codes go to 124,773; they must be below",
        ),
        (["--size", "1M", "--set", "timely_high=0"], "timely_high is 0 s; it must be above 0"),
        (["--size", "1M", "--set", "timeout=2000 s"], "timeout is 2,000"),
        (
            ["--size", "1M", "--congestion", "hpcc", "--set", "pint_base=1.1"],
            "pint_base has no effect with congestion 'hpcc'; it is of hpcc-pint",
        ),
        (["--size", "1M", "--set", "hpcc_stages=1"], "hpcc_stages has no effect with congestion"),
        (
            ["--size", "1M", "--congestion", "none", "--set", "rate_ai=1"],
            "it is of dcqcn, hpcc, hpcc-pint, timely",
        ),
        (["--size", "1M", "--no-pfc", "--set", "pfc_share=1"], "has no effect without PFC"),
        (["--size", "1M", "--no-pfc", "--set", "buffer=1MB"], "buffers have no end"),
        (["--size", "1M", "--set", "drop_share=1"], "has no effect with recovery 'none'"),
        (["--size", "1M", "--draws", "2", "-o", "x.h5"], "give them without --draws"),
        (["--size", "1M", "--draws", "0"], "--draws is 0"),
        (["--size", "1G", "--max-hops", "10"], "are more than 10"),
        (["--size", "1G", "--max-hops", "0"], "--max-hops is 0; it must be 1 or more"),
        ([], "--size is missing"),
    ],
)
def test_options_are_checked(
    folder: Path, capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    assert main(["packets", "all_to_all", "--cluster", "mine.toml", "--nodes", "4", *args]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sender,receiver\n0,1\n", "the column 'bytes' is missing"),
        ("sender,receiver,bites\n0,1,2\n", "unknown column 'bites'"),
        ("sender,receiver,bytes\n0,99,2\n", "line 2: receiver is '99'"),
        ("sender,receiver,bytes\n0,0,2\n", "GPU 0 sends to itself"),
        ("sender,receiver,bytes\n0,1\n", "line 2: it must have 3 fields"),
        ("sender,receiver,bytes,links\n0,1,5,a->b\n", "there is no link 'a->b'"),
        ("sender,receiver,bytes\n", "it has no flows"),
        ("sender;receiver;bytes\n0;1;2\n", "separated by commas"),
        ("sender,receiver,bytes,bytes\n0,1,2,3\n", "there are two columns 'bytes'"),
        ("sender,receiver,bytes\n0.5,1,2\n", "line 2: sender is '0.5'; it must be a whole number"),
        ("sender,receiver,bytes\n0,16,2\n", "it must be a number of one of 16 GPUs, from 0 to 15"),
        ("sender,receiver,bytes\n0,1,10M\n", "a number of bytes, without a unit, from 1"),
        ("sender,receiver,bytes,start\n0,1,10,5us\n", "a number of seconds from 0 to 1,000"),
        ("sender,receiver,bytes,step\n0,1,10,1.5\n", "step is '1.5'; it must be a whole number"),
        ("sender,receiver,bytes\n\n\n0,1,-1\n", "line 4: bytes is '-1'"),
        ('sender,receiver,bytes\n0,1,"2\n', "unexpected end of data"),
        (
            "sender,receiver,bytes,links\nx,8,5,node0.nic0->leaf0.rail0\n",
            "line 2: sender is 'x'",
        ),
    ],
)
def test_tables_are_checked(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    (folder / "flows.csv").write_text(text)
    assert main(["packets", "flows.csv", "--cluster", "mine.toml", "--nodes", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert "flows.csv" in line


def test_a_table_must_be_called_csv(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "incast.csv").rename("incast.txt")
    assert main(["packets", "incast.txt", "--cluster", "mine.toml", "--nodes", "4"]) == 2
    assert "whose name ends in .csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"timer": "0"}, "timer is 0; it must be above 0"),
        ({"timer": "1e5 s"}, "it must be at most 1000 s"),
        ({"timer": "-3"}, r"timer is '-3'; .* in ns or us or ms or s \(us if none is given\)"),
        ({"kmin": "1 GB"}, "kmin is 1,000,000,000; it must be 0 to 200,000, which is kmax"),
        ({"window_scales": "2"}, r"window_scales is 2; it must be 0 \(no\) or 1 \(yes\)"),
        ({"kmax": "1e400"}, "kmax is '1e400', which is too large"),
        ({"gain": "2"}, "gain is 2.0; it must be 0 to 1"),
        ({"pmax": "10%"}, "pmax is '10%'; it must be a number from 0 on, without a unit"),
        ({"min_rate": "50 Gb/s"}, "min_rate is 50 Gb/s, more than the reference_rate of 40 Gb/s"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        packet_settings(changes=changes)


def test_parameters_have_units() -> None:
    with pytest.raises(InputError, match="unknown parameters 'simay'"):
        packet_settings("simay")
    for same in ("300", "300us", "300 us", "0.3 ms", "3e5 ns"):
        assert packet_settings(changes={"timer": same}).control.timer == 300_000_000  # ps
    for same in ("1", "1 Gb/s", "1000Mb/s", "125 MB/s"):
        found = packet_settings(changes={"rate_ai": same}).control.additive
        assert found == pytest.approx(1e9 / 8 / 1e12)
    found = packet_settings(changes={"kmin": "100kB", "kmax": "400 KiB"})
    assert (found.kmin, found.kmax) == (100_000, 409_600)


@pytest.mark.parametrize("name", PARAMETER_SETS)
def test_parameters_are_those_of_the_file(name: str) -> None:
    tables = packaged("packets.toml")
    stored = {
        key: build(Quantity, row, "", key).si
        for key, row in (tables["switch"] | tables[name]).items()
    }
    assert packet_settings(name).parameters == pytest.approx(stored, abs=1e-12)
