"""Examples of the pages on the library and on results run, and the page has all there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("page", ["docs/results.md", "docs/library.md", "README.md"])
def test_examples_run(results_file: Path, page: str, capsys: Any) -> None:
    """One after another, as a reader would type them; what is printed is not compared."""
    examples = re.findall(r"```python\n(.*?)```", (REPOSITORY / page).read_text(), re.DOTALL)
    assert examples
    names: dict[str, Any] = {}
    for example in examples:
        exec(compile(example, page, "exec"), names)
    assert capsys.readouterr().out


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
