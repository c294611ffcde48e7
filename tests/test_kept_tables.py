"""Constants parsed when mpisim is built: the same as their TOML, and never older than it."""

import marshal
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mpisim.base import presets
from mpisim.data import FOLDER, kept_tables, text
from mpisim.data.kept_tables import NAME, keep, kept

FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.toml"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder of one's own, in place of the packaged one."""
    for name in ("gpus.toml", "models/llama.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(FOLDER / name, tmp_path / name)
    monkeypatch.setattr(kept_tables, "__file__", str(tmp_path / "kept_tables.py"))
    kept_tables._own.cache_clear()
    yield tmp_path
    kept_tables._own.cache_clear()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """What a build of all packaged files keeps."""
    folder = tmp_path_factory.mktemp("built") / "data"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("*.csv", "*.gz", "*.kept"))
    keep(folder)
    return kept_tables._read(folder)


@pytest.mark.parametrize("name", FILES)
def test_tables_are_those_of_the_text(name, built):
    """Types and order included; nan, which equals nothing, is compared as text."""
    contents, tables = built[name]
    assert contents == text(name)
    assert repr(marshal.loads(tables)) == repr(tomllib.loads(contents))


def test_a_file_that_was_edited_since_is_not_kept(folder):
    keep(folder)
    contents = (folder / "gpus.toml").read_text()
    assert kept("gpus.toml", contents) == tomllib.loads(contents)
    assert kept("gpus.toml", contents + " ") is None
    assert kept("models/llama.toml", contents) is None
    assert kept("new.toml", "") is None


def test_only_what_was_edited_is_parsed_again(folder, monkeypatch):
    keep(folder)
    before = (folder / NAME).read_bytes()
    parsed = []
    loads = tomllib.loads
    monkeypatch.setattr(tomllib, "loads", lambda each: parsed.append(each) or loads(each))
    keep(folder)
    assert (parsed, (folder / NAME).read_bytes()) == ([], before)
    (folder / "gpus.toml").write_text("[toy]\nmemory = 1\n")
    (folder / "models/llama.toml").unlink()
    keep(folder)
    assert parsed == ["[toy]\nmemory = 1\n"]
    assert kept("gpus.toml", parsed[0]) == {"toy": {"memory": 1}}
    assert sorted(kept_tables._read(folder)) == ["gpus.toml"]


@pytest.mark.parametrize("damage", [b"", b"\xff" * 40, b"{\xda\x04gpus"])
def test_a_damaged_or_missing_file_is_done_without(folder, damage):
    contents = text("gpus.toml")
    assert kept("gpus.toml", contents) is None
    (folder / NAME).write_bytes(damage)
    kept_tables._own.cache_clear()
    assert kept("gpus.toml", contents) is None


def test_a_copy_is_returned(folder):
    keep(folder)
    contents = text("gpus.toml")
    first = kept("gpus.toml", contents)
    assert first is not None
    first.clear()
    assert kept("gpus.toml", contents)


def test_presets_are_the_same_whether_kept_or_not(folder):
    unbuilt = presets.packaged.__wrapped__("gpus.toml")
    keep(folder)
    kept_tables._own.cache_clear()
    assert repr(unbuilt) == repr(presets.packaged.__wrapped__("gpus.toml"))


def test_keeping_needs_nothing_but_python(tmp_path):
    """As setup.py and setup.sh do it."""
    shutil.copy(Path(kept_tables.__file__), tmp_path)
    shutil.copy(FOLDER / "gpus.toml", tmp_path)
    subprocess.run([sys.executable, "-S", "-I", "kept_tables.py"], cwd=tmp_path, check=True)
    assert (tmp_path / NAME).is_file()
