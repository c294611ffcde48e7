"""Models by name: the files of ``data/models``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from ..base.presets import match_name, packaged
from ..data import names

__all__ = ["ModelPreset", "find_model", "model_presets", "preset_name"]

FOLDER = "models"

DESCRIPTION = ("title", "source", "aliases")
"""Keys of a preset that are no keys of ``[model]``."""


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
        A name or alias, in any case of letters.

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
    """Name or alias of a published model → the name it is listed by; errors as of `find_model`."""
    return match_name(name, _tables(), "model", "'mpisim list models' shows them")


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return {
        name: table
        for file in names(FOLDER)
        for name, table in packaged(f"{FOLDER}/{file}.toml").items()
    }
