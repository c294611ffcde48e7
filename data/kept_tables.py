"""Packaged TOML → its tables, parsed when mpisim is built and not at every start.

Most of a megabyte of TOML takes a tenth of a second to parse, in every process. ``setup.py`` and
``run_scripts/setup.sh`` keep what this folder's files hold in one file, beside them, each with the
text it was parsed from: of a file that has been edited since nothing is kept, and it is parsed as
users' files are.

The form is that in which Python keeps byte code, and as there each Python has a file of its own.
Only the standard library is used: ``setup.py`` runs this file before anything is installed.
"""

from __future__ import annotations

import marshal
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["keep", "kept"]

NAME = f"tables.{sys.implementation.cache_tag}.kept"
"""The file that keeps tables, in the folder of the TOML."""

Kept = dict[str, tuple[str, bytes]]
"""By the name of a file: its text, and its tables in marshal's form."""


def kept(name: str, text: str) -> dict[str, Any] | None:
    """Return the tables of a packaged TOML file; None if they are not kept.

    Parameters
    ----------
    name : str
        Of the file, relative to this folder.
    text : str
        What the file holds now.

    Returns
    -------
    dict or None
        A copy, which may be changed.
    """
    then, tables = _own().get(name, ("", b""))
    found: dict[str, Any] | None = marshal.loads(tables) if tables and then == text else None
    return found


def keep(folder: Path) -> None:
    """Parse the TOML of a data folder, and keep its tables there.

    Parameters
    ----------
    folder : Path
        This one, or the copy of it that is going to be installed.
    """
    import tomllib

    before, now = _read(folder), {}
    for path in sorted(folder.rglob("*.toml")):
        name, text = path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")
        same = name in before and before[name][0] == text
        now[name] = before[name] if same else (text, marshal.dumps(tomllib.loads(text)))
    if now != before:
        part = folder / f".{NAME}.{os.getpid()}.part"
        part.write_bytes(marshal.dumps(now))
        part.replace(folder / NAME)


@cache
def _own() -> Kept:
    """Return what is kept in this folder, read once."""
    return _read(Path(__file__).parent)


def _read(folder: Path) -> Kept:
    try:
        found: Kept = marshal.loads((folder / NAME).read_bytes())
    except (OSError, EOFError, ValueError, TypeError):  # not built, or not whole
        return {}
    return found


if __name__ == "__main__":
    keep(Path(__file__).resolve().parent)
