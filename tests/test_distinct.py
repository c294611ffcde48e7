"""Different values of arrays, beside numpy's."""

import numpy as np
import pytest

from mpisim.base.distinct import dense, equal_columns, numbered


@pytest.mark.parametrize("highest", [1, 8, 200, 2**62])
@pytest.mark.parametrize("n", [0, 1, 2, 25, 300, 30_000])
def test_numbers_are_those_of_numpy(n, highest):
    values = np.random.default_rng(n).integers(-highest, highest, n)
    expected = np.unique(values, return_index=True, return_inverse=True)
    for one, other in zip(numbered(values), expected, strict=True):
        assert one.dtype == np.int64
        np.testing.assert_array_equal(one, other)


def test_other_integers_and_views_are_numbered():
    values = np.array([[5, 0], [3, 0], [5, 0]], np.int32)[::-1, 0]
    assert [each.tolist() for each in numbered(values)] == [[3, 5], [1, 0], [1, 0, 1]]


def test_numbers_far_apart_are_dense():
    number, n = dense(np.array([2**60, 7, 2**60]))
    assert (number.tolist(), n) == ([1, 0, 1], 2)


@pytest.mark.parametrize("highest", [1, 300, 90_000, 2**40])
def test_long_arrays_without_negatives_are_numbered_as_by_numpy(highest):
    values = np.random.default_rng(highest).integers(0, highest, 30_000)
    expected = np.unique(values, return_index=True, return_inverse=True)
    for one, other in zip(numbered(values), expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("highest", [1, 3, 2**40])
def test_equal_columns_have_equal_numbers_in_lexicographic_order(highest):
    columns = np.random.default_rng(7).integers(0, highest, (3, 200))
    columns = columns[:, np.arange(300) % 200]
    number, count = equal_columns(columns)
    _, expected = np.unique(columns, axis=1, return_inverse=True)
    np.testing.assert_array_equal(number, expected.reshape(-1))
    assert count == expected.max() + 1
