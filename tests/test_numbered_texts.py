"""Texts made when asked for are those that would have been written down."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.base.numbered_texts import NumberedTexts

PARTS = st.lists(
    st.tuples(st.sampled_from(("tp ", "", "größe ", "activation+ ")), st.integers(0, 120)),
    max_size=4,
)


@given(parts=PARTS)
def test_texts_are_those_of_a_list(parts: list[tuple[str, int]]) -> None:
    expected = [f"{begin}{i}" for begin, count in parts for i in range(count)]
    found = NumberedTexts(parts)
    assert len(found) == len(expected)
    assert list(found) == expected
    assert found == expected
    assert tuple(expected) == found
    assert found[1:7:2] == tuple(expected[1:7:2])
    assert [found[-1 - i] for i in range(len(found))] == expected[::-1]
    assert [text.decode() for text in found.encoded().tolist()] == expected
    assert found != [*expected, "one more"]


def test_numbers_of_any_length() -> None:
    found = NumberedTexts([("dp ", 12_345)])
    assert [text.decode() for text in found.encoded().tolist()] == list(found)
    with pytest.raises(IndexError):
        found[12_345]
