"""Examples in docstrings print what they say, but for those marked ``doctest: +SKIP``."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import mpisim

REPOSITORY = Path(__file__).resolve().parents[1]

MODULES = sorted(
    str(file.relative_to(REPOSITORY).with_suffix("")).replace("/", ".")
    for folder in ("mpisim", "kernels", "topo")
    for file in (REPOSITORY / folder).rglob("*.py")
    if "\n    >>> " in (text := file.read_text(encoding="utf-8")) or "\n>>> " in text
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # examples may write files
    inside = name if name.startswith("mpisim.") else f"{mpisim.__name__}.{name}"
    module = importlib.import_module(inside)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert not failed, f"{inside}: an example prints something else; see above"
