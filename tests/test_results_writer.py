"""Results files, written: whole or not at all, and readable without mpisim."""

from __future__ import annotations

import errno
import os
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from bad_files import files_limited
from straggler import straggler

import mpisim
from mpisim.base.errors import InputError, OutputError
from mpisim.base.files import check_output
from mpisim.engine import simulate
from mpisim.engine.critical_path import PieceKind
from mpisim.engine.rows import Binding
from mpisim.experiment import load
from mpisim.program import Kind, Operation, Phase
from mpisim.results import schema, write_results
from mpisim.results.collect import collect

pytestmark = pytest.mark.mpi_calls

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.mark.mpi
@pytest.mark.parametrize("size", [0, 5_000])
@pytest.mark.parametrize("timeline", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_a_full_disk_on_one_process_fails_all(
    comm: Any, shared_folder: Path, size: int, timeline: bool, before: bool
) -> None:
    path = shared_folder / "run.h5"
    run = simulate(straggler(2 * comm.size, steps=9), comm, fold=False)
    if before:
        write_results(run, path, comm=comm, timeline=True, seed=1)
    with (
        files_limited(size) if comm.rank == 0 else nullcontext(),  # which alone writes
        pytest.raises(OutputError, match=r"run\.h5: File too large") as caught,
    ):
        write_results(run, path, comm=comm, timeline=timeline, overwrite=True, seed=2)
    assert caught.value.exit_code == 1
    assert ".part" not in str(caught.value)
    comm.Barrier()
    assert sorted(os.listdir(shared_folder)) == (["run.h5"] if before else [])
    if before:
        with mpisim.open_results(path) as results:
            assert results.seed == 1


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing/run.h5", "there is no folder"),
        ("x" * 300, "name too long"),
        ("/dev/full", "is not a regular file"),
    ],
)
def test_a_place_that_cannot_be_written(
    comm: Any, shared_folder: Path, name: str, said: str
) -> None:
    run = simulate(straggler(), comm)
    with pytest.raises(OutputError, match=f"(?i){said}"):
        write_results(run, shared_folder / name, comm=comm, timeline=True)
    with pytest.raises(OutputError, match=f"(?i){said}"):
        check_output(shared_folder / name)
    comm.Barrier()
    assert os.listdir(shared_folder) == []


@pytest.mark.mpi
def test_an_earlier_result_is_replaced_only_when_asked(comm: Any, shared_folder: Path) -> None:
    path = shared_folder / "run.h5"
    small, large = (simulate(straggler(n), comm) for n in (2, 5))
    write_results(large, path, comm=comm, timeline=True)
    with pytest.raises(OutputError, match=r"run\.h5: exists already"):
        write_results(small, path, comm=comm)
    for timeline in (True, False):
        write_results(small, path, comm=comm, timeline=timeline, overwrite=True)
        with mpisim.open_results(path) as results:
            assert results.n_ranks == 2
            assert (results.timeline is not None) == timeline
        comm.Barrier()
        assert os.listdir(shared_folder) == ["run.h5"]
        comm.Barrier()


@pytest.mark.parametrize("links", [True, False])
def test_a_file_made_in_the_meantime_stays(
    comm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Two runs write one file: the second to end fails, and has overwritten nothing."""
    path = tmp_path / "run.h5"
    run = simulate(straggler())
    fsync, link = os.fsync, os.link

    def other_ends(number: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        write_results(run, path, comm=comm, seed=1)

    def refuses(source: Any, target: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fsync", other_ends)
    monkeypatch.setattr(os, "link", link if links else refuses)  # FAT has no links
    with pytest.raises(OutputError, match=r"run\.h5: another program made it in the meantime"):
        write_results(run, path, comm=comm, seed=2)
    assert os.listdir(tmp_path) == ["run.h5"]
    with mpisim.open_results(path) as results:
        assert results.seed == 1


@pytest.mark.mpi
def test_plain_h5py_reads_the_rows_of_all_processes(
    comm: Any, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With small chunks: most of every column is copied chunk by chunk."""
    for module in ("base.hdf5", "base.hdf5_data", "results.write"):
        monkeypatch.setattr(f"mpisim.{module}.CHUNK", 4)
    monkeypatch.setattr("mpisim.base.hdf5_data.MAX_PLAIN_COLUMN", 1)
    run = simulate(straggler(3 * comm.size, steps=3), comm, fold=False)
    write_results(run, shared_folder / "run.h5", comm=comm, timeline=True)
    rows = [run.rows(i) for i in range(len(run.hosted))]
    everyone = [each for part in comm.allgather(rows) for each in part]
    comm.Barrier()
    with h5py.File(shared_folder / "run.h5") as file:
        for column in ("begin", "end", "wire", "binding"):
            expected = np.concatenate([getattr(each, column) for each in everyone])
            np.testing.assert_array_equal(file["timeline"][column][:], expected)
            assert file["timeline"][column].chunks == (4,)


def test_numbers_have_names_in_the_file(comm: Any, tmp_path: Path) -> None:
    write_results(
        simulate(straggler(), critical_path=True), tmp_path / "run.h5", comm=comm, timeline=True
    )
    enumerations = {
        "kernels/kind": {each.name: each.value for each in Kind},
        "timeline/kind": {each.name: each.value for each in Kind},
        "timeline/phase": {each.name: each.value for each in Phase},
        "communications/operation": {each.name: each.value for each in Operation},
        "critical_path/kind": {each.name: each.value for each in PieceKind},
        "classes/apart": {"NOT": 0, "SPEED": 1, "START": 2, "GROUPS": 3, "NEIGHBOURS": 4},
    }
    with h5py.File(tmp_path / "run.h5") as file:
        for name, names in enumerations.items():
            found = h5py.check_enum_dtype(file[name].dtype)
            assert found == names
        found = h5py.check_enum_dtype(file["timeline/binding"].dtype)
        assert len(found) == len(set(found.values())) == 256
        for name, number in (
            ("HOST", Binding.HOST),
            ("STREAM", Binding.STREAM),
            ("WAIT_3", Binding.WAIT + 3),
            ("STREAM_QUEUE", Binding.STREAM | Binding.QUEUE),
            ("WAIT_125_QUEUE", 255),
        ):
            assert found[name] == number
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        kinds = file["kernels/kind"][:]
        del file["kernels/kind"]
        file.create_dataset("kernels/kind", data=kinds.view(np.uint8))
    with pytest.raises(InputError, match="kernels/kind: its numbers do not have the names"):
        mpisim.open_results(tmp_path / "run.h5")


def test_a_failed_renaming_is_undone(
    comm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.h5"
    run = simulate(straggler())
    write_results(run, path, comm=comm, timeline=True, seed=1)
    replace = os.replace

    def fails(source: Any, target: Any) -> None:
        if Path(target) == path:
            raise PermissionError(1, "Operation not permitted")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OutputError, match=r"run\.h5: Operation not permitted"):
        write_results(run, path, comm=comm, timeline=True, seed=2, overwrite=True)
    assert os.listdir(tmp_path) == ["run.h5"]
    with mpisim.open_results(path) as results:
        assert results.seed == 1


def test_attributes_cannot_shadow_the_files_own(comm: Any, tmp_path: Path) -> None:
    run = simulate(straggler())
    with pytest.raises(InputError, match="attribute 'digest' belongs to the results file"):
        write_results(run, tmp_path / "run.h5", comm=comm, attributes={"digest": "mine"})


@pytest.mark.mpi
@pytest.mark.parametrize(
    "table", ["ranks", "classes", "steps", "kernels", "communications"], ids=str
)
def test_every_column_of_the_schema_is_collected(comm: Any, table: str) -> None:
    results = collect(simulate(straggler(), comm), comm=comm)
    if results is not None:
        unlike = set(getattr(schema, table.upper())) ^ set(getattr(results, table))
        assert not unlike, (
            f"mpisim/results/schema.py ({table.upper()}) and collect.py (Results.{table}) do not "
            f"have the same columns: {unlike}"
        )


def test_every_dataset_is_documented(tmp_path: Path) -> None:
    """docs/results.md has every dataset of a file, with its unit."""
    text, experiment = load()
    results_file = tmp_path / "run.h5"
    mpisim.simulate(experiment, output=results_file, timeline=True, text=text)
    page = (REPOSITORY / "docs/results.md").read_text()
    listed: dict[str, set[str]] = {}
    for cell in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE):
        found = re.findall(r"`([\w/]+)`", cell)
        group = found[0].rpartition("/")[0]
        listed.setdefault(group, set()).update(name.rpartition("/")[2] for name in found)
    with h5py.File(results_file) as file:
        for group, members in file.items():
            assert set(members) <= listed.get(group, set()), group
            assert listed.get(group, set()) <= set(members), group
        own = {"format", "format_version", "creator", "said", *file.attrs["said"]}
        assert set(file.attrs) - own <= listed[""]
        for cell, unit in re.findall(r"^\| (`[^|]*) \| [^|]*\| ([a-z/]+) \|", page, re.MULTILINE):
            first, *more = re.findall(r"`([\w/]+)`", cell)
            names = [first, *(f"{first.rpartition('/')[0]}/{name}" for name in more)]
            if all(isinstance(file.get(name), h5py.Dataset) for name in names):
                units = {file[name].attrs.get("units", "enum") for name in names}
                assert unit in units, (cell, unit, units)
