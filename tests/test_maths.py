"""Functions that take numbers and arrays, and the time of work that overlaps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.kernels.analytical import maths
from mpisim.kernels.analytical.overlap import PIPELINED, WAITING, divided, together

TIMES = st.floats(1e-9, 1e3)


@pytest.mark.parametrize("name", ["ceil", "expm1", "log1p"])
@given(x=st.floats(1e-12, 50.0))
def test_one_number_is_an_array_of_one(name, x):
    function = getattr(maths, name)
    one, (row,) = function(x), function(np.array([x]))
    assert type(one) is float
    assert one == pytest.approx(row, rel=1e-14)


def test_choices():
    x, y = np.array([1.0, 4.0]), np.array([3.0, 2.0])
    assert maths.maximum(x, y).tolist() == [3.0, 4.0]
    assert maths.minimum(2.0, y).tolist() == [2.0, 2.0]
    assert maths.where(x > y, x, 0.0).tolist() == [0.0, 4.0]
    assert (maths.maximum(1.0, 3.0), maths.minimum(1.0, 3.0)) == (3.0, 1.0)
    assert (maths.where(True, 1.0, 2.0), maths.where(False, 1.0, 2.0)) == (1.0, 2.0)
    assert maths.like(x, 7.0).tolist() == [7.0, 7.0]
    assert maths.like(1.0, 7.0) == 7.0


def test_columns_as_floats():
    a, b = maths.floats({"a": 3, "b": 2, "dtype": "fp32"}, "a", "b")
    assert (a, b) == (3.0, 2.0)
    assert type(a) is float
    (column,) = maths.floats({"a": np.array([3, 4])}, "a")
    assert column.dtype == np.float64


@given(TIMES, TIMES)
def test_overlapping_work(first, second):
    assert together(first, second, WAITING) == pytest.approx(math.hypot(first, second))
    fourth = (first**4 + second**4) ** 0.25
    assert together(first, second, PIPELINED) == pytest.approx(fourth)
    for power in (WAITING, PIPELINED):
        a, b = divided(first, second, power)
        assert a + b == pytest.approx(together(first, second, power))
        # The shares go as the powers.
        assert a * second**power == pytest.approx(b * first**power)
