"""A ``config.json`` of Hugging Face as a table whose values are checked as they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..base.errors import InputError, nearest
from ..base.files import read_text

__all__ = ["Config", "read_config"]


def read_config(file: Path) -> Config:
    """Path of a ``config.json`` → its table.

    Parameters
    ----------
    file : Path

    Returns
    -------
    Config
        With the file's path, for messages.

    Raises
    ------
    InputError
        If it cannot be read, is not JSON, or holds no table.
    """
    contents = read_text(file)
    try:
        table = json.loads(contents)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(table, dict):
        raise InputError(f"{file}: holds no table; is it a config.json?")
    return Config(table, file)


class Config:
    """A table of a ``config.json``: typed access by key, errors that name file and key.

    The first key of several that the table has counts: older files have other names.
    """

    def __init__(self, table: Mapping[str, Any], file: Path, within: str = "") -> None:
        self.table, self.file, self.within = table, file, within

    def size(self, *keys: str, default: Any = None) -> Any:
        """Return a positive integer; without a default it must be there. Null is absence."""
        key, found = self._first(keys)
        if found is None:
            if default is not None:
                return default
            others = f" (nor {', '.join(map(repr, keys[1:]))})" if keys[1:] else ""
            raise InputError(f"{self.file}: key {self._full(keys[0])!r} is missing{others}")
        if type(found) is not int or found < 1:
            raise self.refuse(key, "it must be an integer, 1 or more")
        return found

    def count(self, key: str) -> int:
        """Return an integer that may be 0, which is also its default."""
        found = self.table.get(key)
        if found is None:
            return 0
        if type(found) is not int or found < 0:
            raise self.refuse(key, "it must be an integer, 0 or more")
        return found

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false.

        Parameters
        ----------
        key : str
        default : bool
            Returned where the key is absent or null.
        """
        found = self.table.get(key)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise self.refuse(key, "it must be true or false")
        return found

    def text(self, key: str, default: str) -> str:
        """Return a text.

        Parameters
        ----------
        key : str
        default : str
            Returned where the key is absent or null.
        """
        found = self.table.get(key)
        if found is None:
            return default
        if not isinstance(found, str):
            raise self.refuse(key, "it must be a text")
        return found

    def choice(self, key: str, choices: Mapping[str, str], default: str) -> str:
        """Return the value of `choices` for one of its texts.

        Parameters
        ----------
        key : str
        choices : mapping of str to str
            Text in the file → value to return.
        default : str
            The text that counts where the key is absent or null; one of `choices`.
        """
        found = self.text(key, default)
        if found not in choices:
            raise InputError(
                f"{self.file}: key {self._full(key)!r} is {found!r}{nearest(found, choices)}; "
                f"known: {', '.join(choices)}"
            )
        return choices[found]

    def words(self, key: str, words: Mapping[str, str]) -> list[str]:
        """Return a list of texts by what each stands for, empty if there is none.

        Parameters
        ----------
        key : str
        words : mapping of str to str
            Text in the file → value to return.
        """
        found = self.table.get(key) or []
        if not isinstance(found, list):
            raise self.refuse(key, "it must be a list of texts")
        for word in found:
            if not isinstance(word, str) or word not in words:
                raise InputError(
                    f"{self.file}: key {self._full(key)!r} holds {word!r}; known: "
                    f"{', '.join(words)}"
                )
        return [words[word] for word in found]

    def filled(self, defaults: Mapping[str, Any]) -> Config:
        """Return the same table with values for keys that are absent or null."""
        present = {key: value for key, value in self.table.items() if value is not None}
        return Config({**defaults, **present}, self.file, self.within)

    def any(self, keys: Mapping[str, float]) -> bool:
        """Whether any of the numbers under `keys` (dropout rates) is above 0; values: defaults."""
        rates = {key: self.table.get(key, default) for key, default in keys.items()}
        for key, found in rates.items():
            if isinstance(found, bool) or not isinstance(found, int | float):
                raise self.refuse(key, "it must be a number")
        return any(found > 0 for found in rates.values())

    def part(self, key: str) -> Config:
        """Return a table inside this table, empty if there is none."""
        found = self.table.get(key) or {}
        if not isinstance(found, dict):
            raise self.refuse(key, "it must be a table")
        return Config(found, self.file, self._full(key))

    def refuse(self, key: str, why: str) -> InputError:
        """Return the error that the value of a key cannot be used, and why.

        Parameters
        ----------
        key : str
            One that the table has.
        why : str
            The end of the message, without a full stop: ``"it must be a text"``.
        """
        return InputError(f"{self.file}: key {self._full(key)!r} is {self.table[key]!r}; {why}")

    def _first(self, keys: tuple[str, ...]) -> tuple[str, Any]:
        for key in keys:
            if self.table.get(key) is not None:
                return key, self.table[key]
        return keys[0], None

    def _full(self, key: str) -> str:
        return f"{self.within}.{key}" if self.within else key
