"""``mpisim topo show``."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from mpisim.cli import main
from mpisim.data import text

DGX_H100 = "clusters/dgx-h100.toml"


def test_a_cluster_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topo", "show", "dgx-h100"]) == 0
    out = capsys.readouterr().out
    assert "8 GPUs, 1 NVSwitch domain, 8 PCIe switches, 2 CPUs, 8 NICs" in out
    assert "NVLink, xGMI          16  370.8" in out


def test_what_nodes_carry(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    assert main(["topo", "show", "dgx-a100", "--nodes", "4", "--test", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    # 2 nodes of 8 cards of 200 Gb/s, of which 0.948 are payload.
    assert "bisection: 379.2 GB/s" in out
    assert "GPU 0 to GPU 31: 23.7 GB/s" in out
    assert "a node's ports into the fabric: 8 of 23.7 GB/s" in out
    found = json.loads(path.read_text())
    assert found["gpus"] == found["nics"] == 32
    assert found["test"]["bisection"] == pytest.approx(2 * 8 * 23.7e9, rel=1e-3)
    assert sum(row["count"] for row in found["links"]) == found["n_links"]


def test_links_are_set_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "net.svg"
    slow = "links.node0.nic3->*.bandwidth=1 GB/s"
    assert (
        main(
            [
                "topo",
                "show",
                "dgx-h100",
                "--test",
                "--set",
                slow,
                "--nodes",
                "2",
                "--draw",
                str(path),
            ]
        )
        == 0
    )
    assert "7 of 48.9 GB/s, 1 of 1.0 GB/s" in capsys.readouterr().out
    assert path.read_text().startswith("<?xml")


@pytest.mark.parametrize(("nodes", "unused"), [(4, True), (8, False)])
def test_oversubscription_above_one_leaf(
    nodes: int, unused: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of 8 NICs a node four nodes fill a leaf of 32; then nothing goes up, as the flow says."""
    path, flows = tmp_path / "mine.toml", {}
    for share in (1, 3):
        tree = f'kind = "fat-tree"\nleaf = 32\noversubscription = {share}\n'
        path.write_text(re.sub(r'kind = "rail-.*\n(?s:.*?)(?=nic_eff)', tree, text(DGX_H100)))
        figures = tmp_path / f"{share}.json"
        options = ["--nodes", str(nodes), "--test", "--json", str(figures)]
        assert main(["topo", "show", str(path), *options]) == 0
        said = capsys.readouterr().err
        flows[share] = json.loads(figures.read_text())["test"]["bisection"]
    note = "oversubscription 3 has no effect: all 32 NICs are below one leaf switch"
    assert (note in said) == unused == (flows[1] == flows[3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dgx-h10"], "unknown cluster 'dgx-h10' (did you mean 'dgx-h100'?)"),
        (["a40-4gpu", "--nodes", "2"], "2 nodes, but its GPUs have no NIC"),
        (["dgx-h100", "--nodes", "0"], "--nodes is 0; it must be 1 or more"),
        (["dgx-h100", "--nodes", "999999"], "7,999,992 GPUs; a topology has 1,048,576 at most"),
        (["dgx-h100", "--set", "links.x"], "--set 'links.x': it must be LINK=VALUE"),
        (["dgx-h100", "--set", "links.x=cut"], "has no such link"),
        (["dgx-h100", "--draw", "net.gif"], "net.gif: pictures end in .svg, .png or .pdf"),
        (["missing.toml"], "missing.toml: cannot be read: No such file"),
        (["missing.graphml"], "missing.graphml: cannot be read: No such file"),
        (["missing.graphml", "--nodes", "2"], "--nodes 2: missing.graphml lists its nodes itself"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topo", "show", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_the_examples_of_the_documentation_work(tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "docs" / "topologies.md").read_text()
    changes, own, wafer, two, net = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    files = {"own": own + changes, "net": net, "wafer": wafer, "two": two}
    for name, contents in files.items():
        (tmp_path / f"{name}.toml").write_text(contents)
    for name, nodes in (("own", []), ("net", []), ("wafer", ["--nodes", "84"]), ("two", [])):
        assert main(["topo", "show", str(tmp_path / f"{name}.toml"), "--test", *nodes]) == 0
    for name, nodes in (("wafer", "84"), ("two", "1")):
        asked = ["--cluster", str(tmp_path / f"{name}.toml"), "--nodes", nodes, "--size", "1G"]
        assert main(["comm", "all_reduce", *asked]) == 0


def test_pictures_of_pixels(tmp_path: Path) -> None:
    path = tmp_path / "net.png"
    assert main(["topo", "show", "dgx-h100", "--draw", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_pictures_need_matplotlib(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    path = tmp_path / "net.png"
    assert main(["topo", "show", "dgx-h100", "--draw", str(path)]) == 2
    assert "needs matplotlib, which is not installed" in capsys.readouterr().err
    assert not path.exists()
