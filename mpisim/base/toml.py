"""Writing TOML: the one writer of all files and messages; `mpisim.base.schema` reads it.

The library for it (tomli-w) writes no inline tables, in which data files keep a quantity on one
line, and no comments, with which they begin.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["toml_table", "toml_value"]

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_value(value: Any) -> str:
    """Return a value as TOML: a mapping as an inline table.

    Parameters
    ----------
    value : bool, int, float, str, sequence or mapping of these

    Examples
    --------
    >>> toml_value({"value": 0.5, "unit": "s", "files": ("a",)})
    '{ value = 0.5, unit = "s", files = ["a"] }'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):  # JSON escapes what TOML escapes, but for one character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inner = ", ".join(f"{toml_key(key)} = {toml_value(each)}" for key, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(toml_value, value))}]"
    return str(value)


def toml_key(key: str) -> str:
    """Return a key as TOML, in quotes if it needs them."""
    return key if _BARE.fullmatch(key) else toml_value(key)


def toml_table(table: Mapping[str, Any], path: str = "") -> str:
    """Return the lines of a table of values and tables, tables last under headings of their own.

    A quantity, a table with the key ``value``, stays on one line.

    Parameters
    ----------
    table : mapping
    path : str
        Of the table, such as ``"model_error.plain"``; empty at the top level.

    Examples
    --------
    >>> print(toml_table({"model": {"layers": 2}, "title": "toy"}), end="")
    title = "toy"
    <BLANKLINE>
    [model]
    layers = 2
    """
    lines, tables = [], []
    for key, value in table.items():
        if isinstance(value, Mapping) and "value" not in value:
            full = f"{path}.{toml_key(key)}" if path else toml_key(key)
            tables.append(f"\n[{full}]\n{toml_table(value, full)}")
        else:
            lines.append(f"{toml_key(key)} = {toml_value(value)}\n")
    return "".join(lines) + "".join(tables)
