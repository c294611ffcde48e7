"""What is known to be predicted, ``golden.csv``: times to the picosecond, digests and choices.

Where a change of the model moves figures on purpose: ``python run_scripts/golden.py --refresh``.
"""

from __future__ import annotations

from pathlib import Path

import golden
import pytest
from golden import Figure

TABLE = golden.read()


def test_the_table_is_complete() -> None:
    assert list(TABLE) == golden.wanted(TABLE)
    assert None not in TABLE.values()
    assert sum(command.startswith("run ") for command in TABLE) >= 86
    assert sum(command.startswith("comm ") for command in TABLE) >= 40


@pytest.mark.parametrize("command", TABLE)
def test_nothing_moved(command: str) -> None:
    assert golden.moved(command, TABLE[command], golden.compute(command)) == ""


OLD = Figure(1_000_000_000, "aa")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (OLD, OLD, ""),
        (OLD, Figure(1_000_000_001, "aa"), "run x: 1.000000 -> 1.000000 ms, +1e-07 %"),
        (OLD, Figure(990_000_000, "bb"), "run x: 1.000000 -> 0.990000 ms, -1 %"),
        (OLD, Figure(1_000_000_000, "bb"), "run x: same time, aa -> bb"),
        (None, OLD, "run x: new"),
        (OLD, None, "run x: gone"),
    ],
)
def test_what_moved_is_said(old: Figure | None, new: Figure | None, line: str) -> None:
    assert golden.moved("run x", old, new) == line


def test_a_table_is_read_as_it_is_written(tmp_path: Path) -> None:
    figures = {"run x": OLD, "comm a --ranks 0,8": Figure(5, "ring ll 1 channels, limit: NIC")}
    golden.write(figures, tmp_path / "golden.csv")
    assert golden.read(tmp_path / "golden.csv") == figures
