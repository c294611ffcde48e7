"""Presets: tables found by name in packaged data files, or in a file of the user's.

Both have the same form: one table a name. In packaged files the names are lower-case with hyphens,
and a table may list `aliases`, the names that others use. A user's file holds one table. Names are
found as tools print them, too: ``"NVIDIA H100 80GB HBM3"`` is the alias ``H100-80GB-HBM3``
(`normalized_name`), as `mpisim list` titles them (``"ViT-B/16"``), and however words and numbers
are put together (``"GPT-2 XL"`` is ``gpt2-xl``).

What takes more than a few lines has a folder, with one file a name; a user's file is like one of
those, and the name is the file's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..data import names as file_names
from ..data import text
from ..data.kept_tables import kept
from .errors import InputError, nearest
from .files import read_text
from .schema import parse

__all__ = [
    "SUFFIX",
    "Preset",
    "find_file",
    "find_table",
    "load_file",
    "match_name",
    "normalized_name",
    "packaged",
    "packaged_folder",
    "table_names",
]

SUFFIX = ".toml"
"""What a path to a user's file ends in; names of presets do not."""

MAKERS = ("nvidia", "amd", "tesla", "instinct", "geforce")
"""Makers' names that tools print before the name of a GPU."""


class Preset(NamedTuple):
    """A table, not yet checked.

    Attributes
    ----------
    name : str
        Of the table.
    table : dict
    source : str
        The file it stands in, for messages.
    """

    name: str
    table: dict[str, Any]
    source: str


@cache
def packaged(file: str) -> dict[str, dict[str, Any]]:
    """Return the tables of a packaged data file; they are shared: copy before changing one."""
    contents = text(file)
    found = kept(file, contents)
    return parse(contents, file) if found is None else found


def table_names(file: str) -> list[str]:
    """Return the names of the tables of a packaged data file, in its order."""
    return list(packaged(file))


def find_table(wanted: str | Path, file: str, kind: str) -> Preset:
    """Look up a table by name, by alias, or by the path of a file that holds it.

    Parameters
    ----------
    wanted : str or Path
        A name or alias, in any case of letters, or a path that ends in ``.toml``.
    file : str
        The packaged data file.
    kind : str
        What its tables describe (``"GPU"``), for messages.

    Raises
    ------
    InputError
        If there is no such name, or the file cannot be read or holds anything but one table.
    """
    if str(wanted).endswith(SUFFIX):
        return _from_file(Path(wanted), kind)
    tables = packaged(file)
    name = match_name(str(wanted), tables, kind, _choices(kind))
    return Preset(name, tables[name], file)


@cache
def packaged_folder(name: str) -> dict[str, dict[str, Any]]:
    """Return the contents of a packaged data folder by file name; copy before changing."""
    return {each: packaged(f"{name}/{each}{SUFFIX}") for each in file_names(name)}


def find_file(wanted: str | Path, name: str, kind: str) -> Preset:
    """Look up a file by name, by alias, or by path.

    Parameters
    ----------
    wanted : str or Path
        A name or alias, in any case of letters, or a path that ends in ``.toml``.
    name : str
        The packaged data folder.
    kind : str
        What its files describe (``"cluster"``), for messages.

    Raises
    ------
    InputError
        If there is no such name, or the file cannot be read.
    """
    if str(wanted).endswith(SUFFIX):
        path = Path(wanted)
        return Preset(path.stem, load_file(path), str(path))
    found = str(wanted).casefold()
    if found not in file_names(name):  # an alias, or a mistake: a look into every file
        tables = packaged_folder(name)
        found = match_name(str(wanted), tables, kind, _choices(kind))
    file = f"{name}/{found}{SUFFIX}"
    return Preset(found, packaged(file), file)


def _choices(kind: str) -> str:
    return f"'mpisim list {kind.lower()}s' shows them; or give the path of a {SUFFIX} file"


INSTANCE = re.compile(r"([a-z]+)\d+[a-z]*\.")
"""A cloud's instance, ``p5.48xlarge``: its letters are no slip of other letters."""


def normalized_name(name: str) -> str:
    """Return a name in lower case, with hyphens between its words and without its maker's.

    Examples
    --------
    >>> normalized_name("NVIDIA H100 80GB HBM3"), normalized_name("Tesla V100-SXM2-16GB")
    ('h100-80gb-hbm3', 'v100-sxm2-16gb')
    >>> normalized_name("AMD Instinct MI300X"), normalized_name("ViT-B/16")
    ('mi300x', 'vit-b-16')
    """
    words = re.split(r"[\s_/-]+", name.strip().casefold())
    while len(words) > 1 and words[0] in MAKERS:
        del words[0]
    return "-".join(words)


def _joined_name(name: str) -> str:
    """Name → its normalized form, hyphens left out but between digits: ``gpt-2-xl``, ``gpt2xl``.

    A hyphen between digits tells numbers apart: ``llama-2-7b`` is no ``llama-27b``.
    """
    return re.sub(r"(?<!\d)-|-(?!\d)", "", normalized_name(name))


def match_name(
    wanted: str, tables: Mapping[str, Mapping[str, Any]], kind: str, choices: str
) -> str:
    """Return the name of the table that has a name or alias.

    Parameters
    ----------
    wanted : str
        A name or alias in any case of letters or in any writing with the same `normalized_name`,
        or with words and numbers put together in another way; or a table's title.
    tables : mapping
        Tables by name, each perhaps with `aliases`.
    kind : str
        What the tables describe, for messages.
    choices : str
        What else could have been asked for, for messages.

    Raises
    ------
    InputError
        If none has it, with the nearest one that exists.
    """
    known = {name.casefold(): name for name in tables}
    for name, table in tables.items():
        known |= {alias.casefold(): name for alias in table.get("aliases", ())}
    found = known.get(wanted.casefold())
    if found is None:  # in its own case: ViT-G/14 is not ViT-g/14
        titles = {table["title"]: name for name, table in tables.items() if "title" in table}
        found = titles.get(wanted.strip())
    for written in (normalized_name, _joined_name):
        if found is None:
            found = {written(each): name for each, name in known.items()}.get(written(wanted))
    if found is None:
        family = INSTANCE.match(wanted.casefold())
        same_family = [each for each in known if family is None or each.startswith(family[1])]
        near = nearest(wanted.casefold(), same_family) or nearest(
            normalized_name(wanted), same_family
        )
        raise InputError(f"unknown {kind} {wanted!r}{near}; {choices}")
    return found


def load_file(path: Path) -> dict[str, Any]:
    """Return what a TOML file of the user's holds.

    Raises
    ------
    InputError
        If it cannot be read or is not TOML.
    """
    return parse(read_text(path), str(path))


def _from_file(path: Path, kind: str) -> Preset:
    tables = load_file(path)
    if len(tables) != 1 or not isinstance(next(iter(tables.values())), dict):
        found = ", ".join(tables) or "nothing"
        raise InputError(
            f"{path}: holds {found} at the top level; it must be one table, "
            f"[name] with the keys of a {kind}"
        )
    name, table = next(iter(tables.items()))
    return Preset(name, table, str(path))
