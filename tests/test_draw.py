"""Pictures of topologies and programs: what they say, of whom, and when there is none."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import random_program

from mpisim.base.errors import DestinationError, UsageError
from mpisim.base.picture import check_picture, name_text
from mpisim.cli import main
from mpisim.program import Program, save
from mpisim.program import draw as program_picture
from mpisim.topo import draw as topology_picture
from mpisim.topo import find_cluster
from mpisim.topo.picture_contents import shown
from mpisim.topo.topology import NodeKind, Topology

START = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}
HOSTILE = "a $\\frac{1}{0}$ <b> & \" ' \x1b[2J \u202e \ud800 %s {x} _^ "


def texts(path: Path) -> list[str]:
    """Picture (SVG) → its texts."""
    root = ElementTree.parse(path).getroot()
    return [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]


def topology(kind: str = "torus", dims: str = "[4, 4, 4]", nodes: int = 64) -> Topology:
    table = f"""
title = "a grid"
gpu = "h100-sxm"
gpus_per_node = 1
[node]
kind = "direct"
link_bandwidth = {{ value = 240, unit = "GB/s", error = 0.1, source = "none" }}
[fabric]
kind = "{kind}"
dims = {dims}
link_bandwidth = {{ value = 60, unit = "GB/s", error = 0.1, source = "none" }}
"""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "grid.toml"
        path.write_text(table)
        return find_cluster(path).topology(nodes)


# --- topologies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", START)
def test_files(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"net{ending}"
    assert main(["topo", "show", "dgx-h100", "--nodes", "2", "--draw", str(path)]) == 0
    assert path.read_bytes().startswith(START[ending])
    program = tmp_path / "p.h5"
    save(random_program(1), program)
    path = tmp_path / f"program{ending}"
    assert main(["program", "show", str(program), "--draw", str(path)]) == 0
    assert path.read_bytes().startswith(START[ending])


def test_every_node_of_a_small_cluster_has_its_name(tmp_path: Path) -> None:
    path = tmp_path / "net.svg"
    small = find_cluster("dgx-v100").topology(2)
    topology_picture.draw(small, path)
    found = Counter(texts(path))
    assert found[small.title] == 1
    assert found["node0"] == found["node1"] == 1
    for name in small.names:
        own = name.partition(".")[2] or name
        assert found[own] >= (2 if name.startswith("node") else 1)


def test_large_clusters_show_equal_machines_once(tmp_path: Path) -> None:
    path = tmp_path / "net.svg"
    large = find_cluster("dgx-h100").topology(1024)
    topology_picture.draw(large, path)
    found = texts(path)
    assert {"8,192 GPUs", "8,192 NICs", "256 switches", "node0 and 1,023 like it"} <= set(found)
    assert [text for text in found if re.fullmatch(r"gpu\d", text)] == [f"gpu{i}" for i in range(8)]
    (switches,) = [text for text in found if text.startswith("between switches:")]
    assert switches == "between switches: 1,565 GB/s one way, 512 links (a cable is two)"
    assert path.stat().st_size < 100_000


@pytest.mark.parametrize(
    ("name", "nodes"),
    [("dgx-h100", 1), ("dgx-h100", 33), ("gb200-nvl72", 3), ("alps", 40), ("p5", 9)],
)
def test_all_nodes_and_cables_are_shown_or_counted(name: str, nodes: int) -> None:
    whole = find_cluster(name).topology(nodes)
    found = shown(whole)
    assert found.hidden == 0
    stands_for = Counter(found.unit.tolist())
    assert -1 not in stands_for
    of_machine = {u: machine.count for machine in found.machines for u in machine.units}
    for u, unit in enumerate(found.units):
        assert stands_for[u] == unit.count * of_machine.get(u, 1)
        assert (whole.node_kind[found.unit == u] == unit.kind).all()
    assert sum(each.count for each in found.cables) == whole.n_links / 2
    assert sum(machine.count for machine in found.machines) == nodes


def test_machines_that_differ_are_shown_beside_each_other() -> None:
    changes = {"links.node3.nic3->*.bandwidth": "1 GB/s"}
    from mpisim.topo.changes import apply_changes

    whole = apply_changes(find_cluster("dgx-h100").topology(64), changes)
    found = shown(whole)
    assert [machine.count for machine in found.machines] == [63, 1]
    assert found.machines[1].name == "node3"


@pytest.mark.parametrize(
    ("kind", "dims", "nodes"),
    [
        ("torus", "[4, 4, 4]", 64),
        ("torus", "[8, 8]", 64),
        ("mesh", "[30]", 30),
        ("wafer", "[12, 7]", 84),
    ],
)
def test_grids(tmp_path: Path, kind: str, dims: str, nodes: int) -> None:
    path = tmp_path / "net.svg"
    topology_picture.draw(topology(kind, dims, nodes), path)
    found = texts(path)
    assert f"{nodes:,} routers," in found
    shape = dims.strip("[]").replace(", ", " × ")
    assert f"{shape} {'torus' if kind == 'torus' else 'mesh'}" in found
    if nodes == 64:
        places = [text for text in found if re.fullmatch(r"\d+(,\d+)+", text)]
        assert len(set(places)) == len(places) == 64


def test_a_dragonfly(tmp_path: Path) -> None:
    path = tmp_path / "net.svg"
    topology_picture.draw(find_cluster("alps").topology(200), path)
    found = texts(path)
    assert {"group0", "group1", "1 cable between them", "2 switches, level 2"} <= set(found)


def test_a_list_of_links_with_hostile_names(tmp_path: Path) -> None:
    name = (
        HOSTILE.replace("\\", "\\\\").replace('"', '\\"').replace("\x1b", "").replace("\ud800", "")
    )
    net = tmp_path / "net.toml"
    net.write_text(
        f'title = "{name}"\n'
        f'nodes = [{{ name = "{name}", kind = "gpu", rank = 0 }}, '
        '{ name = "b", kind = "gpu", rank = 1 }]\n'
        f'[[links]]\nends = ["{name}", "b"]\nbandwidth = "25 GB/s"\n'
    )
    path = tmp_path / "net.svg"
    assert main(["topo", "show", str(net), "--draw", str(path)]) == 0
    assert any("$\\frac{1}{0}$ <b> &" in text for text in texts(path))
    assert "\u202e" not in "".join(texts(path))


# --- programs -----------------------------------------------------------------------------------


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), n_events=st.sampled_from([0, 5, 200]))
def test_any_program(tmp_path_factory: pytest.TempPathFactory, seed: int, n_events: int) -> None:
    program = random_program(seed, n_events=n_events)
    path = tmp_path_factory.mktemp("draw") / "p.svg"
    program_picture.draw(program, path)
    found = texts(path)
    for number, table in enumerate(program.tables):
        assert table is not None
        uses = int((program.table == number).sum())
        assert f"table {number}: {uses} rank{'s' if uses != 1 else ''}" in found
    total = len(program.communicators)
    assert any(f"{total:,} communicator" in text for text in found)


def test_rows_lanes_and_categories_are_those_of_the_table() -> None:
    program = random_program(7, n_events=100)
    for table in program.tables:
        assert table is not None
        names, lane = program_picture.lanes(table)
        device = table.is_device
        assert len(names) == table.n_streams + (not device.all())
        for row in range(len(table)):
            expected = f"stream {table.stream[row]}" if device[row] else "CPU"
            assert names[lane[row]] == expected
        known = {category.name for category in program_picture._CATEGORIES}
        of_row = [program_picture._CATEGORIES[c].name for c in program_picture.categories(table)]
        assert set(of_row) <= known
        for name, kind in zip(of_row, table.kind.tolist()):
            words = ("kernel", "copy", "collective", "send", "receive", "CPU work", "CPU waits")
            assert name.startswith(words[kind])


def test_rows_of_one_rank_have_names_and_partners(tmp_path: Path) -> None:
    program = tmp_path / "p.h5"
    assert main(["run", "--save-program", str(program)]) == 0
    path = tmp_path / "p.svg"
    words = ["program", "show", str(program), "--rank", "3", "--first", "25", "--rows", "20"]
    assert main([*words, "--draw", str(path)]) == 0
    found = texts(path)
    assert "rank 3, table 0" in found
    assert "rows 25 to 44 of 2,798" in found
    assert "dp 0" in found
    assert main(["program", "show", str(program), "--draw", str(tmp_path / "all.svg")]) == 0
    found = texts(tmp_path / "all.svg")
    assert {"table 0: 8 ranks", "ranks 0-7", "dp 0", "kernel, forward", "collective"} <= set(found)


def test_families_of_communicators() -> None:
    names = ["tp 0", "tp 1", "dp 0", "pp 3-4", "pp 4-5", "all"]
    assert program_picture.families(names) == {
        "tp #": [0, 1],
        "dp #": [2],
        "pp #-#": [3, 4],
        "all": [5],
    }


def test_hostile_names_of_programs(tmp_path: Path) -> None:
    plain = random_program(3, n_events=6)
    groups = plain.communicators
    program = Program(
        names=tuple(f"{HOSTILE}{i}" for i in range(len(plain.names))),
        tables=plain.tables,
        communicators=type(groups)(
            groups.index, groups.members, [f"{HOSTILE}{i}" for i in range(len(groups))]
        ),
        table=plain.table,
        slot_index=plain.slot_index,
        slots=plain.slots,
        speed=plain.speed,
        start=plain.start,
        attributes={"title": HOSTILE},
    )
    path = tmp_path / "p.svg"
    program_picture.draw(program, path)
    assert any("$\\frac{1}{0}$ <b> &" in text for text in texts(path))
    program_picture.draw(program, tmp_path / "p.png")


# --- files --------------------------------------------------------------------------------------


@given(st.text(), st.integers(5, 60))
def test_names_are_one_line_that_can_be_written(name: str, width: int) -> None:
    text = name_text(name, width)
    assert len(text) <= width
    assert text.isprintable() or text == ""
    text.encode()


@pytest.mark.parametrize("name", ["net", "net.gif", "net.svgz", ".svg"])
def test_other_endings(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"pictures end in \.svg, \.png or \.pdf"):
        check_picture("--draw", tmp_path / name, overwrite=False)


@pytest.mark.parametrize("command", ["topo", "program"])
def test_nothing_is_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    save(random_program(1), tmp_path / "p.h5")
    what = "dgx-h100" if command == "topo" else str(tmp_path / "p.h5")
    path = tmp_path / "x.png"
    path.write_text("mine")
    words = [command, "show", what, "--draw", str(path)]
    assert main(words) == 2
    assert "exists already" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main([*words, "--overwrite"]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(DestinationError):
        check_picture("--draw", path, overwrite=False)


@pytest.mark.parametrize("ending", START)
def test_without_matplotlib(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    save(random_program(1), tmp_path / "p.h5")
    for words in (["topo", "show", "dgx-h100"], ["program", "show", str(tmp_path / "p.h5")]):
        path = tmp_path / f"x{ending}"
        assert main([*words, "--draw", str(path)]) == 2
        said = capsys.readouterr()
        assert "needs matplotlib, which is not installed: pip install 'mpisim[draw]'" in said.err
        assert said.out == ""
        assert not path.exists()


def test_a_disk_that_is_full_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    def full(self: Figure, file: object, **_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    assert main(["topo", "show", "dgx-h100", "--draw", str(tmp_path / "x.svg")]) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_same_picture_is_the_same_file(tmp_path: Path) -> None:
    whole = find_cluster("dgx-h100").topology(2)
    for name in ("a.svg", "b.svg"):
        topology_picture.draw(whole, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_levels_of_switches() -> None:
    whole = find_cluster("dgx-h100").topology(64)
    levels = {unit.label: unit.level for unit in shown(whole).units}
    assert levels["spine"] == 2
    assert levels["leaf0.rail0"] == 1
    assert levels["gpu0"] == levels["nic0"] == 0
    assert int(np.sum(whole.node_kind == NodeKind.SWITCH)) == 17
