"""Sources of data are named as a reader can find them."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[1] / "data"

FILES = sorted(path for path in DATA.rglob("*") if path.suffix in {".csv", ".toml", ".md", ".py"})

COMPARED = ("collectives", "kernels")
"""Tables of measurements, each row with its source."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DATA)))
def test_no_source_is_the_number_of_an_index(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r".*\b(?:file index|index id|github's index|id \d{6,}).*", text) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DATA)))
def test_no_source_is_told_by_its_size(path: Path) -> None:
    """Versions of a file differ by what they hold, which a reader can look for."""
    text = path.read_text(encoding="utf-8")
    assert re.findall(r".*(?:\w\.\w+|\bversion) of [\d.]+ kB.*", text) == []


@pytest.mark.parametrize("name", COMPARED)
def test_every_measurement_has_a_source(name: str) -> None:
    """A repository and a path, an address, a paper, or words by which a page can be found."""
    with (DATA / "validation" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        sources = {row["source"] for row in csv.DictReader(file)}
    found = re.compile(r"github:[\w.-]+/[\w.-]+|https://|arXiv:|'[^']+'|hosts |documentation")
    assert [each for each in sorted(sources) if not found.search(each)] == []
