"""Values for keys that the sources of rows leave out: ``data/validation/e2e.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import field
from functools import cache
from typing import Annotated, Any

from ...base.frozen import frozen
from ...base.presets import packaged
from ...base.schema import Limits, build
from .rows import Row

__all__ = ["ClusterFor", "Fact", "Settings", "assigned", "settings"]

FILE = "validation/e2e.toml"

OTHER = "other"
"""The source of rows whose source has no short name."""

Count = Annotated[int, Limits(least=0)]


@frozen
class Source:
    """A short name of a source."""

    name: str
    text: str


@frozen
class ModelName:
    """A preset by what a model's name begins with; `note` says what is not the same."""

    text: str
    preset: str
    note: str = ""


@frozen
class Refused:
    """Rows that cannot be predicted, by a text that a column contains (one of those between |)."""

    column: str
    text: str
    why: str


class _OfRows:
    """Keys of the rows of some sources that have some texts in some columns."""

    sources: tuple[str, ...]
    where: dict[str, str]

    def holds(self, row: Row, source: str) -> bool:
        """Whether it is about a row.

        Parameters
        ----------
        row : Row
        source : str
            Short name of the row's source.
        """
        if self.sources and source not in self.sources:
            return False
        return all(_contains(row, column, text) for column, text in self.where.items())


@frozen
class Unjudged(_OfRows):
    """Rows that are not refused for memory: what saves some is not modelled, or not known.

    Those that fit without do so with it, too.

    Attributes
    ----------
    why : str
    sources, where
        As of `Fact`.
    """

    why: str
    sources: tuple[str, ...] = ()
    where: dict[str, str] = field(default_factory=dict)


@frozen
class KnownNetwork(_OfRows):
    """Rows that do not state their network, but were run on machines that are known.

    Attributes
    ----------
    why : str
        Which, and who says so.
    sources, where
        As of `Fact`.
    """

    why: str
    sources: tuple[str, ...] = ()
    where: dict[str, str] = field(default_factory=dict)


@frozen
class PrecisionName:
    """Our precision for one that is not modelled; `note` says so."""

    text: str
    precision: str
    note: str


@frozen
class ClusterFor:
    """A cluster for rows with a GPU.

    Attributes
    ----------
    gpu : str
        As in the table.
    preset : str
    gpus_per_node : int
        Of rows it fits; 0 fits any.
    network : int
        Gb/s of a node, to be compared with a row's.
    sources : tuple of str
        Short names of the sources it is for; all if empty.
    changes : tuple of str
        Keys to set besides, as for ``--set``.
    why : str
        What the changes depend on.
    """

    gpu: str
    preset: str
    gpus_per_node: Count
    network: Count
    sources: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    why: str = ""


@frozen
class Fact(_OfRows):
    """Keys of an experiment for rows that do not state them.

    Attributes
    ----------
    set : tuple of str
        As for ``--set``.
    why : str
        The evidence.
    sources : tuple of str
        Short names; all if empty.
    where : mapping of str to str
        By column, what it must contain: one of the texts between ``|``; an empty text means that
        the column is blank.
    instead : bool
        Whether it holds also where the row states the key.
    drop : tuple of str
        Keys that the row states in a word of its framework, which the profile explains.
    """

    why: str
    set: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    where: dict[str, str] = field(default_factory=dict)
    instead: bool = False
    drop: tuple[str, ...] = ()


@frozen
class Settings:
    """All of the file, in its order."""

    sources: tuple[Source, ...]
    models: tuple[ModelName, ...]
    refused: tuple[Refused, ...]
    precisions: tuple[PrecisionName, ...]
    clusters: tuple[ClusterFor, ...]
    facts: tuple[Fact, ...]
    memory: tuple[Unjudged, ...] = ()
    networks: tuple[KnownNetwork, ...] = ()

    def source(self, row: Row) -> str:
        """Return the short name of a row's source."""
        found = (each.name for each in self.sources if each.text in row.texts["source"])
        return next(found, OTHER)

    def refuses(self, row: Row) -> str | None:
        """Return why a row cannot be predicted, if the file says so."""
        found = (each.why for each in self.refused if _contains(row, each.column, each.text))
        return next(found, None)

    def unjudged(self, row: Row, source: str) -> str:
        """Row → its savings of memory that are not modelled; empty if there are none.

        Parameters
        ----------
        row : Row
        source : str
            Short name of the row's source.
        """
        return next((each.why for each in self.memory if each.holds(row, source)), "")

    def knows_network(self, row: Row, source: str) -> bool:
        """Whether the machines are known on which a row was run that states no network.

        Parameters
        ----------
        row : Row
        source : str
            Short name of the row's source.
        """
        return any(each.holds(row, source) for each in self.networks)


@cache
def settings() -> Settings:
    """``data/validation/e2e.toml`` → the settings that come with mpisim."""
    return build(Settings, packaged(FILE), FILE)


def assigned(assignment: str) -> tuple[str, Any]:
    """Text ``key=value`` → key and value.

    Parameters
    ----------
    assignment : str
        The value is TOML, or a text without quotes.

    Returns
    -------
    key : str
    value : object
    """
    key, _, value = assignment.partition("=")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return key, value


def _contains(row: Row, column: str, text: str) -> bool:
    found = row.texts.get(column, "")
    return any(each in found for each in text.split("|")) if text else not found
