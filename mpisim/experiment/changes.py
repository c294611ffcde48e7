"""``--set TABLE.KEY=VALUE`` → the tables of an experiment with that key set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..base.errors import UsageError
from .plan_keys import key_path, with_sub_tables

__all__ = ["changed_key", "with_changes"]

NCCL_VARIABLES = ["network", "nccl"]
"""The table of environment variables, whose values are texts."""

_ASSIGNMENT = re.compile(r"""(?:[^"'=]|"[^"]*"|'[^']*')*=""")
"""A key, whose parts may be in quotes, and the sign behind it."""


def with_changes(table: dict[str, Any], source: str, changes: Sequence[str]) -> dict[str, Any]:
    """Tables of a file and ``--set`` texts → the tables with these keys set.

    Parameters
    ----------
    table : dict
        All tables of the file; not changed.
    source : str
        The file, for messages.
    changes : sequence of str
        As ``plan.tp=8``: the value is TOML, or else a text.

    Raises
    ------
    UsageError
        If a change has another form, or sets a key of what is no table.
    """
    if not changes:
        return table
    table = with_sub_tables(table, source)
    for change in changes:
        value = _value(change)
        given = changed_key(change)
        *path, last = given if isinstance(value, dict) else key_path(given)
        within = table
        for name in path:
            within = within.setdefault(name, {})
            if not isinstance(within, dict):
                raise UsageError(f"--set {change}: {name!r} is no table")
        # As one writes them in a shell.
        number = path == NCCL_VARIABLES and type(value) is int
        if number or ([*path, last] == ["framework", "version"] and not isinstance(value, str)):
            value = _written(change)
        within[last] = value
    return table


def _value(change: str) -> Any:
    """Return the value of a change: TOML, or else a text."""
    import tomllib

    try:
        return tomllib.loads(f"value = {_written(change)}")["value"]
    except (ValueError, RecursionError):
        return _written(change)


def _written(change: str) -> str:
    """Return the value of a change as it is written."""
    return _ASSIGNMENT.sub("", change, count=1).strip()


def changed_key(change: str) -> list[str]:
    """``--set`` text → the parts of its key: ``plan.tp``, ``network.changes."links.a.b"``.

    Parameters
    ----------
    change : str
        As ``--set`` takes it, TABLE.KEY=VALUE; parts may be quoted as in TOML.

    Returns
    -------
    list of str
        From the table to the innermost key.

    Raises
    ------
    UsageError
        If it has no such form.

    Examples
    --------
    >>> changed_key('network.changes."links.a.b"=2')
    ['network', 'changes', 'links.a.b']
    """
    import tomllib

    found = _ASSIGNMENT.match(change)
    path: list[str] = []
    try:
        within: Any = tomllib.loads(f"{found[0]} 0") if found else {}
    except (ValueError, RecursionError):
        within = {}
    while isinstance(within, dict) and within:
        ((name, within),) = within.items()
        path.append(name)
    if len(path) < 1 or within != 0:
        raise UsageError(f"--set {change}: not of the form TABLE.KEY=VALUE")
    return path
