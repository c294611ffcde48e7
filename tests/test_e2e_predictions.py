"""Stored predictions of measured steps: what moved is told, the largest change first."""

from __future__ import annotations

from e2e_predictions import TABLE, moved, read


def test_what_moved_is_told_the_largest_first() -> None:
    before = {"a": 1.0, "b": 2.0, "c": 3.0, "gone": 4.0}
    now = {"a": 1.00001, "b": 1.5, "c": 3.03, "new": 5.0}
    assert moved(before, now) == [
        "b: -25.00 %, 2 s before, 1.5 s now",
        "c: +1.00 %, 3 s before, 3.03 s now",
        "new: new, 5 s",
        "gone: no longer predicted",
    ]


def test_the_table_has_times() -> None:
    found = read(TABLE)
    assert len(found) > 900
    assert min(found.values()) > 0
