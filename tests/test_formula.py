"""Functions that take numbers and arrays, and the time of work that overlaps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.kernels.analytical import formula
from mpisim.kernels.analytical.formula import PIPELINED, WAITING, divided_overlap, overlapped

TIMES = st.floats(1e-9, 1e3)


@pytest.mark.parametrize("name", ["ceil", "expm1", "log1p"])
@given(x=st.floats(1e-12, 50.0))
def test_one_number_is_an_array_of_one(name, x):
    function = getattr(formula, name)
    one, (row,) = function(x), function(np.array([x]))
    assert type(one) is float
    assert one == pytest.approx(row, rel=1e-14)


def test_choices():
    x, y = np.array([1.0, 4.0]), np.array([3.0, 2.0])
    assert formula.maximum(x, y).tolist() == [3.0, 4.0]
    assert formula.minimum(2.0, y).tolist() == [2.0, 2.0]
    assert formula.where(x > y, x, 0.0).tolist() == [0.0, 4.0]
    assert (formula.maximum(1.0, 3.0), formula.minimum(1.0, 3.0)) == (3.0, 1.0)
    assert (formula.where(True, 1.0, 2.0), formula.where(False, 1.0, 2.0)) == (1.0, 2.0)
    assert formula.filled_like(x, 7.0).tolist() == [7.0, 7.0]
    assert formula.filled_like(1.0, 7.0) == 7.0


def test_columns_as_floats():
    a, b = formula.columns_as_floats({"a": 3, "b": 2, "dtype": "fp32"}, "a", "b")
    assert (a, b) == (3.0, 2.0)
    assert type(a) is float
    (column,) = formula.columns_as_floats({"a": np.array([3, 4])}, "a")
    assert column.dtype == np.float64


@given(TIMES, TIMES)
def test_overlapping_work(first, second):
    assert overlapped(first, second, WAITING) == pytest.approx(math.hypot(first, second))
    fourth = (first**4 + second**4) ** 0.25
    assert overlapped(first, second, PIPELINED) == pytest.approx(fourth)
    for power in (WAITING, PIPELINED):
        a, b = divided_overlap(first, second, power)
        assert a + b == pytest.approx(overlapped(first, second, power))
        # The shares go as the powers.
        assert a * second**power == pytest.approx(b * first**power)
