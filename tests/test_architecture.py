"""docs/architecture.md and CONTRIBUTING.md: files that they name exist, and have what is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = ("docs/architecture.md", "CONTRIBUTING.md")

FILE = r"[\w.-]+(?:/[\w.*-]*)*"
QUOTED = re.compile(rf"`(?:python |bash )?({FILE}(?:/|\.(?:py|pyx|toml|sh)))[` ]")
"""A file or folder in back quotes, or the script of a command."""

DEFINED_IN = re.compile(rf"`(\w+)(?:\.\w+)?` \(`({FILE}\.py)`")
"""``NAME`` (``file.py``): a name, and where it is."""


def files(name: str) -> list[Path]:
    """Name, from the repository or of a file somewhere in it → what it stands for."""
    folders = ("mpisim", "kernels", "topo", "data", "run_scripts", "tests")
    found = list(REPOSITORY.glob(name))
    return found or [path for folder in folders for path in (REPOSITORY / folder).rglob(name)]


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page: str) -> None:
    text = (REPOSITORY / page).read_text()
    names = set(QUOTED.findall(text))
    assert len(names) > 5
    assert [name for name in sorted(names) if not files(name)] == []


def test_names_stand_in_the_files_that_are_said_to_have_them() -> None:
    pairs = DEFINED_IN.findall((REPOSITORY / PAGES[0]).read_text())
    assert len(pairs) > 15
    wrong = [
        f"{name} is not in {file}"
        for file, name in sorted((file, name) for name, file in pairs)
        if not any(
            re.search(rf"^\s*(?:class |def )?{name}\b", path.read_text(), re.M)
            for path in files(file)
        )
    ]
    assert wrong == []
