"""Stale binaries: what is compiled is known in one place, and a change of it is noticed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mpisim.base.errors import UsageError
from mpisim.built import STAMP, check_built, cores, digest, sources

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture
def checkout(tmp_path):
    """A copy of what is compiled, with the digest that a build leaves."""
    for path in sources(REPOSITORY):
        copy = tmp_path / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    (tmp_path / STAMP).write_text(digest(tmp_path))
    return tmp_path


def test_every_source_is_known():
    known = set(sources(REPOSITORY))
    there = {
        path
        for folder in ("mpisim", "kernels", "topo")
        for ending in ("pyx", "pxd", "pxi", "h")
        for path in (REPOSITORY / folder).rglob(f"*.{ending}")
    }
    assert there <= known
    assert REPOSITORY / "setup.py" in known
    assert len(cores(REPOSITORY)) >= 3


@pytest.mark.parametrize("path", sources(REPOSITORY), ids=lambda path: path.name)
def test_a_change_of_any_source_is_noticed(checkout, path):
    check_built(checkout)
    with (checkout / path.relative_to(REPOSITORY)).open("a") as file:
        file.write("\n")
    with pytest.raises(UsageError, match=r"made from other sources .*run_scripts/setup\.sh"):
        check_built(checkout)


def test_a_new_source_is_noticed(checkout):
    (cores(checkout)[-1] / "new.h").write_text("")
    with pytest.raises(UsageError):
        check_built(checkout)


def test_an_installation_without_sources_is_not_looked_at(tmp_path):
    check_built(tmp_path)


def test_the_digest_needs_nothing_but_python(checkout):
    """As setup.sh calls it, before anything is installed."""
    (checkout / "mpisim").mkdir(exist_ok=True)
    shutil.copy(REPOSITORY / "mpisim" / "built.py", checkout / "mpisim")
    command = [sys.executable, "-S", "-I", "mpisim/built.py"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    assert done.stdout == digest(checkout) + "\n"
    script = (REPOSITORY / "run_scripts" / "setup.sh").read_text()
    assert '"$python" mpisim/built.py' in script


def test_a_setup_that_cannot_list_what_is_required_installs_nothing(tmp_path):
    """A pyproject.toml without the extra ``test`` ends setup.sh before pip is called."""
    for name in ("run_scripts/setup.sh", "mpisim/built.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    (tmp_path / "pyproject.toml").write_text(
        "[project]\ndependencies = []\n[project.optional-dependencies]\nopenmpi = []\n"
    )
    called, programs = tmp_path / "called", tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "pip"):
        (programs / name).write_text(
            f'#!/bin/sh\n[ "$1" != --version ] || exec "{sys.executable}" --version\n'
            f'echo "$@" >> "{called}"\n'
        )
        (programs / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "run_scripts/setup.sh"],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "KeyError: 'test'" in done.stderr
    assert not called.exists()
    assert not (tmp_path / ".venv" / "mpisim.stamp").exists()


def test_other_mpis_run_every_kind_of_call():
    """Processes are put into groups (``Comm.Split``) by what test_samples.py calls."""
    texts = [path.read_text() for path in sorted((REPOSITORY / "tests").glob("test_*.py"))]
    marked = [each for each in texts if re.search(r"^pytestmark = .*mark\.mpi_calls", each, re.M)]
    assert any("sampled_steps" in each for each in marked)
    assert all(re.search(r"mark\.mpi\b", each) for each in marked)
    assert not any("mark.two_processes" in each for each in marked)


def test_these_binaries_are_those_of_these_sources():
    check_built()
