"""Program files: exact round trips, and one clear line for everything that can be wrong."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from bad_files import files_limited
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpisim.base.errors import InputError, OutputError, ProgramError, UsageError
from mpisim.base.files import check_output, write_json, write_whole
from mpisim.program import Flag, Operation, Phase, Program, ProgramBuilder
from mpisim.program.show import overview, rows
from mpisim.program.store import load, save

TEXTS = st.text(st.characters(exclude_categories=()), max_size=12)  # surrogates and nulls too
TIMES = st.integers(0, 10**13)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs with every kind of row and any text; they need not be executable."""
    builder = ProgramBuilder()
    n_ranks = draw(st.integers(1, 4))
    groups = [
        builder.communicator(members, draw(TEXTS))
        for members in draw(
            st.lists(st.permutations(range(n_ranks)), min_size=1, max_size=2, unique_by=tuple)
        )
    ]
    for _ in range(draw(st.integers(1, 3))):
        table = builder.table(draw(TEXTS))
        for _ in range(draw(st.integers(0, 12))):
            table.tags(
                phase=draw(st.sampled_from(Phase)),
                layer=draw(st.integers(-1, 99)),
                step=draw(st.integers(-1, 9)),
            )
            on_device = table.device_rows
            waits = draw(st.lists(st.sampled_from(on_device), max_size=3)) if on_device else []
            common: dict[str, Any] = {
                "host": draw(TIMES),
                "launch_cost": draw(TIMES),
                "gap": draw(TIMES),
            }
            match draw(st.sampled_from(("kernel", "collective", "host", "host_wait"))):
                case "kernel":
                    table.kernel(
                        draw(TEXTS), draw(st.integers(0, 3)), draw(TIMES), waits=waits, **common
                    )
                case "collective":
                    table.collective(
                        draw(st.sampled_from([Operation.ALL_REDUCE, Operation.UNKNOWN])),
                        draw(st.integers(0, len(groups) - 1)),
                        5,
                        draw(st.integers(-1, 10**12)),
                        launch=draw(st.integers(-(10**9), 10**9)),
                        waits=waits,
                        flags=draw(st.sampled_from([Flag.NONE, Flag.EAGER])),
                        **common,
                    )
                case "host":
                    table.host(draw(TIMES), draw(TEXTS))
                case "host_wait":
                    table.host_wait(waits, host=draw(TIMES), tail=draw(TIMES))
        number = builder.add_table(table.build(draw(st.integers(0, 5))))
    for _ in range(n_ranks):
        speed = draw(st.floats(1e-3, 1e3))
        builder.add_rank(draw(st.integers(0, number)), groups, speed, draw(st.integers(-5, 10**12)))
    return builder.build(draw(st.dictionaries(TEXTS, TEXTS, max_size=3)))


def small() -> Program:
    """Two ranks, one table: a kernel, an all-reduce that waits for it, a wait of the CPU."""
    builder = ProgramBuilder()
    pair = builder.communicator((0, 1), "data parallel")
    table = builder.table("train").tags(phase=Phase.FORWARD, layer=2, step=7)
    first = table.kernel("gemm", 0, 5_000_000, host=1_500_000, launch=2_000_000)
    last = table.collective(Operation.ALL_REDUCE, 0, 1, 4096, waits=[first], flags=Flag.EAGER)
    table.host_wait([last])
    number = builder.add_table(table.build(queue_depth=3))
    builder.add_rank(number, [pair])
    builder.add_rank(number, [pair], speed=0.5, start=10_000)
    return builder.build({"source": "by hand"})


def assert_same(a: Program, b: Program) -> None:
    """Every part of two programs is equal, types included."""
    assert (a.names, a.attributes) == (b.names, b.attributes)
    assert a.communicators.names == b.communicators.names
    assert len(a.tables) == len(b.tables)
    pairs: list[tuple[Any, Any]] = [
        (a, b),
        (a.communicators, b.communicators),
        *zip(a.tables, b.tables),
    ]
    for one, other in pairs:
        for field in fields(one):
            x, y = getattr(one, field.name), getattr(other, field.name)
            if isinstance(x, np.ndarray):
                assert x.dtype == y.dtype
                np.testing.assert_array_equal(x, y)
            elif isinstance(x, int | str):
                assert x == y


# --- round trip ---------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(program=programs())
def test_round_trip_is_exact(program: Program, tmp_path: Path) -> None:
    save(program, tmp_path / "program.h5", overwrite=True)
    assert_same(load(tmp_path / "program.h5"), program)
    assert os.listdir(tmp_path) == ["program.h5"]


def test_long_columns_are_compressed(tmp_path: Path) -> None:
    builder = ProgramBuilder()
    table = builder.table("long")
    for _ in range(100_000):
        table.kernel("k", 0, 1_000_000)
    builder.add_rank(builder.add_table(table.build()))
    program = builder.build()
    save(program, tmp_path / "long.h5")
    assert (tmp_path / "long.h5").stat().st_size < 200_000  # 80 bytes a row as it is
    assert_same(load(tmp_path / "long.h5"), program)


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    save(small(), tmp_path / "p.h5")
    with h5py.File(tmp_path / "p.h5") as file:
        assert file.attrs["format"] == "mpisim-program"
        assert file.attrs["format_version"] == 2
        assert file["rows/duration"].attrs["units"] == "ps"
        assert file["rows/bytes"].attrs["units"] == "bytes"
        assert list(file["names"].asstr()) == ["gemm", "all_reduce", "wait"]
        # Superblock 0: the oldest tools can read it.
        assert file.id.get_create_plist().get_version()[0] == 0


def test_a_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "p.h5"
    path.write_text("precious")
    with pytest.raises(OutputError, match=r"p\.h5: exists already"):
        save(small(), path)
    assert path.read_text() == "precious"
    save(small(), path, overwrite=True)
    assert load(path).n_ranks == 2


def test_a_link_survives(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "p.h5").symlink_to(tmp_path / "data" / "real.h5")
    save(small(), tmp_path / "p.h5")
    assert (tmp_path / "p.h5").is_symlink()
    assert load(tmp_path / "data" / "real.h5").n_ranks == 2


def test_partial_programs_are_refused(tmp_path: Path) -> None:
    program = small()
    builder = ProgramBuilder()
    table = builder.add_table(builder.table().build())
    builder.add_rank(table)
    builder.add_rank(builder.add_table(builder.table().build()))
    partial = builder.build().replace(tables=(program.table_of(0).replace(kind=[], **EMPTY), None))
    with pytest.raises(UsageError, match="spread over processes"):
        save(partial, tmp_path / "p.h5")
    assert os.listdir(tmp_path) == []


EMPTY: dict[str, Any] = {
    column: []
    for column in (
        "stream",
        "flags",
        "operation",
        "slot",
        "host",
        "launch",
        "launch_cost",
        "gap",
        "duration",
        "bytes",
        "name",
        "phase",
        "layer",
        "micro_batch",
        "step",
        "wait_row",
    )
} | {"wait_index": [0]}


# --- failures to write --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1000, 8000])
def test_a_full_disk_leaves_nothing(tmp_path: Path, size: int) -> None:
    with files_limited(size), pytest.raises(OutputError, match=r"p\.h5: ") as caught:
        save(small(), tmp_path / "p.h5")
    assert caught.value.exit_code == 1
    assert os.listdir(tmp_path) == []


def test_a_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    save(small(), tmp_path / "p.h5")
    before = (tmp_path / "p.h5").read_bytes()
    with files_limited(1000), pytest.raises(OutputError):
        save(small(), tmp_path / "p.h5", overwrite=True)
    assert (tmp_path / "p.h5").read_bytes() == before
    assert os.listdir(tmp_path) == ["p.h5"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("missing/p.h5", "there is no folder"),
        (".", "is a folder"),
        ("x" * 300, "[Nn]ame too long"),
        ("a\0b", "null"),
        ("/dev/full", "is not a regular file"),
    ],
)
def test_a_place_that_cannot_be_written(tmp_path: Path, path: str, said: str) -> None:
    with pytest.raises(OutputError, match=said):
        save(small(), tmp_path / path)
    with pytest.raises(OutputError, match=said):
        check_output(tmp_path / path)
    assert os.listdir(tmp_path) == []


def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests may run as root, who may write anywhere: let the system call say no.
    def no(*args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", no)
    with pytest.raises(OutputError, match=r"p\.h5: Permission denied"):
        save(small(), tmp_path / "p.h5")


def test_an_error_in_the_block_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), write_whole(tmp_path / "f") as file:
        file.write(b"half")
        _ = 1 // 0
    assert os.listdir(tmp_path) == []


def test_json_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_json(path, {"step_time": np.float64(0.5), "ranks": np.arange(3), 1: float("nan")})
    assert path.read_text().split() == [
        "{",
        '"step_time":',
        "0.5,",
        '"ranks":',
        "[",
        "0,",
        "1,",
        "2",
        "],",
        '"1":',
        "null",
        "}",
    ]
    with pytest.raises(OutputError, match="exists already; name another file, or --overwrite it"):
        write_json(path, {})
    with files_limited(10), pytest.raises(OutputError):
        write_json(path, list(range(1000)), overwrite=True)
    assert path.read_text().startswith("{")
    assert os.listdir(tmp_path) == ["out.json"]
    with pytest.raises(OutputError, match="No space left"):
        write_json("/dev/full", {})
    assert not Path("/dev/full").is_file()


# --- files that cannot be read ------------------------------------------------------------------


def text_file(path: Path) -> None:
    path.write_text("not HDF5")


def empty_file(path: Path) -> None:
    path.write_bytes(b"")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def no_file(path: Path) -> None:
    path.unlink()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5000])


def edited(change: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            change(file)

    return edit


def replaced(name: str, values: object) -> Callable[[Path], None]:
    def change(file: h5py.File) -> None:
        attributes = dict(file[name].attrs)
        del file[name]
        file[name] = values
        file[name].attrs.update(attributes)

    return edited(change)


DAMAGES = [
    (text_file, "is not an HDF5 file"),
    (empty_file, "is empty; mpisim-program files are HDF5"),
    (folder, "is not a file"),
    (no_file, "there is no such file"),
    (truncated, "is truncated"),
    (edited(lambda f: f.attrs.__delitem__("format")), "it has no attribute 'format'"),
    (edited(lambda f: f.attrs.update(format="mpisim-results")), "its format is 'mpisim-results'"),
    (edited(lambda f: f.attrs.update(format_version=3)), "has version 3 .* reads up to 2"),
    (
        edited(lambda f: f.attrs.update(format_version=1)),
        r"by an older mpisim \(format version 1; this one reads 2\); save or import the program",
    ),
    (edited(lambda f: f.attrs.update(format_version="new")), "format_version is new"),
    (edited(lambda f: f.attrs.update(attributes="{")), "the file is damaged"),
    (edited(lambda f: f.attrs.update(attributes="[]")), "not a JSON object"),
    (edited(lambda f: f.__delitem__("ranks")), "there is no group 'ranks'"),
    (edited(lambda f: f.__delitem__("names")), "there is no such dataset"),
    (edited(lambda f: f.__delitem__("rows/kind")), "rows/kind: there is no such dataset"),
    (edited(lambda f: f.__delitem__("tables/queue_depth")), "queue_depth: there is no such data"),
    (replaced("tables/n_rows", [4]), "tables/n_rows: the file is damaged: these .* 3 together"),
    (replaced("tables/n_rows", [4, -1]), "tables/label: has 1 entries; expected 2"),
    (replaced("rows/n_waits", [0, 1, 2]), "rows/n_waits: the file is damaged: .* 2 together"),
    (replaced("rows/n_waits", [-1, 2, 1]), "rows/n_waits: the file is damaged: .* 2 together"),
    (replaced("waits/row", np.array([0, 2], np.int32)), "row 2: waits for row 2, which is not an"),
    (
        edited(lambda f: f["rows/duration"].attrs.update(units="us")),
        "rows/duration: has units 'us'; expected 'ps'",
    ),
    (replaced("rows/duration", np.ones(3)), "has type float64 .* expected int64"),
    (replaced("rows/duration", np.ones((3, 1), np.int64)), r"shape \(3, 1\)"),
    (replaced("rows/duration", np.full(3, -7)), "row 0: the duration is negative"),
    (replaced("rows/duration", np.ones(4, np.int64)), "rows/duration: has 4 entries; expected 3"),
    (replaced("ranks/table", np.array([0, 9], np.int32)), r"p\.h5: rank 1: table 9 does not exist"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES)
def test_a_bad_file_is_named(tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    path = tmp_path / "p.h5"
    save(small(), path)
    damage(path)
    with pytest.raises(InputError, match=said) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


# --- showing ------------------------------------------------------------------------------------


def test_overview_counts_what_is_there() -> None:
    text = overview(small())
    assert "ranks          2\n" in text
    assert "rows           6 over all ranks" in text
    assert "source         by hand" in text
    assert "data parallel: 0, 1" in text
    assert max(map(len, text.splitlines())) <= 100


def test_overview_lists_the_members_of_each_communicator() -> None:
    builder = ProgramBuilder()
    builder.add_table(builder.table("all").build())
    groups = [[0, 1], [2, 3], [3, 2, 1, 0], list(range(30))]
    numbers = [builder.communicator(tuple(each), f"group {i}") for i, each in enumerate(groups)]
    for rank in range(30):
        builder.add_rank(0, [n for n, each in zip(numbers, groups, strict=True) if rank in each])
    lines = [line.strip() for line in overview(builder.build()).splitlines()]
    listed = [line.split(None, 2)[2] for line in lines if ": " in line and "group" in line]
    assert listed[:3] == ["group 0: 0, 1", "group 1: 2, 3", "group 2: 3, 2, 1, 0"]
    assert listed[3].startswith("group 3: 0, 1, 2, 3, ")


def test_rows_of_a_rank() -> None:
    lines = rows(small(), 1).splitlines()
    assert lines[0].startswith("rank 1: table 0 'train', 3 rows, 2 streams, speed 0.5")
    assert lines[2].split() == [
        "0",
        "kernel",
        "0",
        "1.500",
        "2.000",
        "0",
        "0",
        "5.000",
        "forward",
        "l2",
        "s7",
        "gemm",
    ]
    assert lines[3].split()[:3] == ["1", "all_reduce+eager", "1"]
    assert "unpriced" in lines[3]
    assert "0#0" in lines[3]
    assert rows(small(), 0, 1, 1).splitlines()[-1] == "... 1 more rows"
    with pytest.raises(UsageError, match="there is no rank 2; this program has ranks 0 to 1"):
        rows(small(), 2)


@settings(max_examples=60)
@given(program=programs())
def test_anything_can_be_shown(program: Program) -> None:
    text = overview(program) + rows(program, 0)
    assert all(line.isprintable() for line in text.splitlines())


def test_bad_programs_name_themselves() -> None:
    with pytest.raises(ProgramError):
        small().replace(speed=[0.0, 1.0])


@pytest.mark.parametrize("nprocs", [1, 2])
def test_show_command(tmp_path: Path, run_mpisim: Callable, nprocs: int) -> None:
    save(small(), tmp_path / "p.h5")
    done = run_mpisim(["program", "show", "p.h5", "--rank", "0", "--rows", "2"], nprocs)
    assert done.rc == 0, done.stderr
    assert done.stdout.count("data parallel: 0, 1") == 1
    assert "all_reduce" in done.stdout
    assert "... 1 more rows" in done.stdout
    for words, said in (
        (["q.h5"], "q.h5: there is no such file"),
        (["p.h5", "--rank", "7"], "there is no rank 7; this program has ranks 0 to 1"),
        (["p.h5", "--rows", "-1"], "--rows is -1; it must be 0 or more"),
    ):
        done = run_mpisim(["program", "show", *words], nprocs)
        assert (done.rc, len(done.errors)) == (2, 1)
        assert said in done.errors[0]
        assert "Traceback" not in done.stderr
