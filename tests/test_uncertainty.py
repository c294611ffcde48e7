"""Error bars carried along the critical path."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mpisim.base.quantity import Quantity
from mpisim.engine.critical_path import CriticalPath, PieceKind
from mpisim.prediction.uncertainty import propagate

NUMBERS = {
    "rate": Quantity(1, "1", 0.1, "here"),
    "floor": Quantity(1, "us", 0.5, "there"),
    "peak": Quantity(1, "1", 0.0, "datasheet"),
}


def path(*lengths: int) -> CriticalPath:
    end = np.cumsum(np.array(lengths, np.int64))
    n = len(lengths)
    return CriticalPath(
        kind=np.full(n, PieceKind.COMPUTE, np.uint8),
        rank=np.zeros(n, np.int32),
        row=np.arange(n, dtype=np.int32),
        begin=end - np.array(lengths, np.int64),
        end=end,
        name=np.zeros(n, np.int32),
        names=("kernel",),
    )


def test_pieces_of_one_number_change_together() -> None:
    # 60 + 20 of 100 rest on a rate known to 10 %: 8 % together, not the root of squares.
    pieces = [{"rate": 1.0}, {}, {"rate": 1.0}]
    found = propagate(path(60, 20, 20), pieces.__getitem__, NUMBERS)
    assert found.relative == pytest.approx(0.08)
    assert [(e.name, e.share, e.error) for e in found.effects] == [("rate", 0.8, 0.1)]


def test_different_numbers_add_in_squares() -> None:
    # 60 × 0.9 rests on the rate, 60 × 0.1 + 40 on the floor; an exact number adds nothing.
    pieces = [{"rate": 0.9, "peak": 0.9, "floor": 0.1}, {"floor": 1.0}]
    found = propagate(path(60, 40), pieces.__getitem__, NUMBERS)
    assert [e.name for e in found.effects] == ["floor", "rate"]
    assert found.effects[0].effect == pytest.approx(0.46 * 0.5)
    assert found.relative == pytest.approx(math.hypot(0.46 * 0.5, 0.54 * 0.1))


def test_an_empty_step_has_no_error() -> None:
    assert propagate(path(), [].__getitem__, NUMBERS).relative == 0
    assert propagate(path(0), [{"rate": 1.0}].__getitem__, NUMBERS).relative == 0
