"""docs/results.md has every dataset of a results file, with its unit."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import pytest

from mpisim import simulate
from mpisim.experiment import load

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture
def results_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``run.h5`` with a timeline, in the working folder."""
    monkeypatch.chdir(tmp_path)
    text, experiment = load()
    simulate(experiment, output="run.h5", timeline=True, text=text)
    return tmp_path / "run.h5"


def test_every_dataset_is_on_the_page(results_file: Path) -> None:
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
