"""Writing TOML: what is written is read back as it was."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mpisim.base.toml import toml_table, toml_value

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SINGLE = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), TEXTS
)
VALUES = st.recursive(
    SINGLE, lambda each: st.one_of(st.lists(each), st.dictionaries(TEXTS, each)), max_leaves=8
)


@given(value=VALUES)
def test_a_value_is_read_back(value: Any) -> None:
    found = tomllib.loads(f"value = {toml_value(value)}")["value"]
    assert found == value
    assert type(found) is type(value)


@given(table=st.dictionaries(TEXTS, VALUES))
def test_a_table_is_read_back(table: dict[str, Any]) -> None:
    assert tomllib.loads(toml_table(table)) == table


def test_a_quantity_stays_on_one_line() -> None:
    table = {"node": {"latency": {"value": 1.5, "unit": "us"}, "gpus": 8}}
    assert toml_table(table) == '\n[node]\nlatency = { value = 1.5, unit = "us" }\ngpus = 8\n'
