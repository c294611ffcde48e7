"""Texts in HDF5 files: whichever way they are stored, they are read as they were."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import h5py
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpisim.base.hdf5_data import MAX_PLAIN_COLUMN, read_texts, write_texts

TEXTS = st.lists(st.text(st.characters(), max_size=6), max_size=8)


def stored(texts: Sequence[str]) -> tuple[tuple[str, ...], Any]:
    """What is read again, and the type it is stored as."""
    with h5py.File(io.BytesIO(), "w") as file:
        write_texts(file, "texts", texts)
        return read_texts(file, "texts", len(texts)), file["texts"].dtype


@given(texts=TEXTS, many=st.booleans())
@settings(max_examples=60, deadline=None)
def test_texts_are_read_as_they_were(texts: list[str], many: bool) -> None:
    texts = texts * (1 + MAX_PLAIN_COLUMN if many else 1)
    assert stored(texts)[0] == tuple(texts)


@pytest.mark.parametrize(
    ("texts", "length"),
    [
        (
            [f"group {i}" for i in range(2 * MAX_PLAIN_COLUMN)],
            len(f"group {2 * MAX_PLAIN_COLUMN - 1}"),
        ),
        (
            [f"groupe numéro {i:05}" for i in range(2 * MAX_PLAIN_COLUMN)],
            len("groupe numéro 00000") + 1,
        ),
        (["short"] * 2 * MAX_PLAIN_COLUMN + ["long " * 100], None),
        (["few"] * MAX_PLAIN_COLUMN, None),
    ],
)
def test_many_texts_of_like_lengths_have_one(texts: list[str], length: int | None) -> None:
    """They are compressed so: half a megabyte in place of fourteen for 131,072 GPUs."""
    found, dtype = stored(texts)
    assert found == tuple(texts)
    assert h5py.check_string_dtype(dtype).length == length
