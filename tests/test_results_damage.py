"""Results files that are damaged: named errors in one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from straggler import straggler

import mpisim
from mpisim.base.errors import InputError
from mpisim.engine import simulate
from mpisim.results import write_results


@pytest.fixture
def written(comm: Any, tmp_path: Path) -> Path:
    """A results file with a timeline."""
    if comm.size > 1:
        pytest.skip("in one process")
    run = simulate(straggler(4), critical_path=True)
    write_results(run, tmp_path / "run.h5", comm=comm, timeline=True)
    return tmp_path / "run.h5"


def changed(path: Path, change: Callable[[h5py.File], object]) -> None:
    with h5py.File(path, "r+") as file:
        change(file)


def shortened(file: h5py.File) -> None:
    begin = file["timeline/begin"][:-1]
    del file["timeline/begin"]
    file["timeline/begin"] = begin


DAMAGES = [
    (lambda p: p.unlink(), "run.h5: there is no such file"),
    (lambda p: p.write_text("x"), "run.h5: is not an HDF5 file"),
    (lambda p: p.write_bytes(p.read_bytes()[:-9000]), "run.h5: is truncated"),
    (lambda p: changed(p, lambda f: f.attrs.update(format="x")), "its format is 'x'"),
    (lambda p: changed(p, lambda f: f.attrs.update(format_version=9)), "reads up to 5"),
    (
        lambda p: changed(p, lambda f: f.attrs.update(format_version=4)),
        r"older mpisim \(format version 4; .*\); simulate again",
    ),
    (
        lambda p: changed(p, lambda f: f["ranks/class"].write_direct(np.full(4, 3, np.int32))),
        "ranks/class is 3 in entry 0; it must be from 0 to",
    ),
    (
        lambda p: changed(p, lambda f: f.attrs.__delitem__("digest")),
        "the file is damaged .*digest",
    ),
    (lambda p: changed(p, lambda f: f.__delitem__("ranks/idle")), "ranks/idle: there is no such"),
    (lambda p: changed(p, lambda f: f.__delitem__("steps")), "there is no group 'steps'"),
    (
        lambda p: changed(p, lambda f: f["ranks/idle"].attrs.update(units="us")),
        "ranks/idle: has units 'us'; expected 'ps'",
    ),
    (
        lambda p: changed(p, lambda f: f.__delitem__("timeline/end")),
        "the file is damaged .*'timeline/end'|the file is damaged .*'end'",
    ),
    (
        lambda p: changed(p, shortened),
        r"timeline/begin has shape \(\d+,\); it must have \d+ rows",
    ),
    (
        lambda p: changed(p, lambda f: f.__delitem__("parts/time")),
        "parts/time is missing or not of",
    ),
    (
        lambda p: changed(p, lambda f: f["parts/time"].write_direct(np.zeros((2, 5), np.int64))),
        "parts/time: the parts of each class must add up to 241000000 ps",
    ),
    (
        lambda p: changed(p, lambda f: f["parts/time"].attrs.update(units="s")),
        "parts/time: its attribute 'units' must be 'ps'",
    ),
    (
        lambda p: changed(p, lambda f: f["parts/kind"].write_direct(np.full(5, 9, np.uint8))),
        "parts/kind is 9 in entry 0; it must be from 0 to 4",
    ),
    (lambda p: p.write_bytes(b""), "run.h5: is empty; mpisim-results files are HDF5"),
    (lambda p: p.chmod(0) or os.geteuid() or p.unlink(), "Permission denied|no such file"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES)
def test_a_bad_file_is_named(written: Path, damage: Callable[[Path], None], said: str) -> None:
    mpisim.open_results(written).close()
    damage(written)
    with pytest.raises(InputError, match=said) as caught:
        mpisim.open_results(written)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_a_missing_file_has_a_near_one(written: Path) -> None:
    with pytest.raises(
        InputError, match=r"rum\.h5: there is no such file \(did you mean 'run\.h5'"
    ):
        mpisim.open_results(written.with_name("rum.h5"))


def test_files_without_parts_are_read(written: Path) -> None:
    changed(written, lambda f: f.__delitem__("parts"))
    with mpisim.open_results(written) as results:
        assert results.parts is None


def test_damage_anywhere_is_one_line(written: Path) -> None:
    """Bytes overwritten somewhere: read as they were, or refused in one line that says so."""
    image = written.read_bytes()
    rng = np.random.default_rng(0)
    said = [""]
    for at in rng.integers(0, len(image), 60).tolist():
        written.write_bytes(image[:at] + rng.bytes(40) + image[at + 40 :])
        try:
            with mpisim.open_results(written) as results:
                assert results.timeline is not None
                for rank in range(results.n_ranks):
                    results.timeline.rank(rank)
        except InputError as error:
            said.append(str(error).removeprefix(f"{written}: "))
    assert len(said) > 10
    for line in said:
        assert str(written) not in line
        assert "\n" not in line
        assert "HDF5: " not in line or line.startswith(("the file is damaged", "timeline/"))
