"""Models by name: the files of ``data/models``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from ..base.errors import InputError
from ..base.presets import match_name, packaged
from ..data import names

__all__ = ["ModelPreset", "find_model", "model_presets", "preset_name"]

FOLDER = "models"

DESCRIPTION = ("title", "source", "aliases")
"""Keys of a preset that are no keys of ``[model]``."""


ORGANISATION = re.compile(r"^[\w.-]+/")
"""What the name of a checkpoint begins with on Hugging Face: ``meta-llama/Llama-3.1-8B``."""

CHECKPOINT = re.compile(r"([-_ ](hf|base|chat|instruct|it|uncased|cased|v0\.\d))+$", re.IGNORECASE)
"""What it ends with, which says how it was trained or stored: its shape is the same without."""


class ModelPreset(NamedTuple):
    """A published model.

    Attributes
    ----------
    title : str
        Its full name.
    source : str
        Where its numbers come from, and what they leave out.
    aliases : tuple of str
        Other names it goes by.
    table : mapping
        Keys of ``[model]``, `family` among them; what they leave out has the family's default
        (`mpisim.experiment.FAMILIES`).
    """

    title: str
    source: str
    aliases: tuple[str, ...]
    table: Mapping[str, Any]


@cache
def model_presets() -> Mapping[str, ModelPreset]:
    """Return the published models by name, in the order of the files of ``data/models``."""
    return MappingProxyType(
        {
            name: ModelPreset(
                table["title"],
                table["source"],
                tuple(table.get("aliases", ())),
                MappingProxyType(
                    {key: value for key, value in table.items() if key not in DESCRIPTION}
                ),
            )
            for name, table in _tables().items()
        }
    )


def find_model(name: str) -> dict[str, Any]:
    """Return the keys of ``[model]`` of a published model.

    Parameters
    ----------
    name : str
        A name, an alias or a title, in any case of letters, or that of a checkpoint on Hugging
        Face (``meta-llama/Llama-2-7b-hf``).

    Returns
    -------
    dict
        A copy, which may be changed.

    Raises
    ------
    InputError
        If there is none of that name, with the nearest one.

    Examples
    --------
    >>> model = find_model("llama-3-8b")
    >>> model["family"], model["layers"], model["hidden"]
    ('llama', 32, 4096)
    >>> find_model("GPT-3-175B") == find_model("gpt3-175b")
    True
    """
    return dict(model_presets()[preset_name(name)].table)


@cache
def preset_name(name: str) -> str:
    """Name or alias of a published model → the name by which it is listed.

    Parameters
    ----------
    name : str
        Also with its organisation in front, or a checkpoint's suffix.

    Returns
    -------
    str

    Raises
    ------
    InputError
        If there is no such model.
    """
    tables, choices = _tables(), "'mpisim list models' shows them"
    try:
        return match_name(name, tables, "model", choices)
    except InputError:
        own = ORGANISATION.sub("", name, count=1)
        for shorter in (own, CHECKPOINT.sub("", own)):
            with suppress(InputError):
                return match_name(shorter, tables, "model", choices)
        raise


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return {
        name: table
        for file in names(FOLDER)
        for name, table in packaged(f"{FOLDER}/{file}.toml").items()
    }
