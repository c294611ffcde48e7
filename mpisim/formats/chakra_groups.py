"""Process groups of Chakra traces, and the communicators that nodes name by them.

A node says with whom it communicates by the name of a process group, or by sender, receiver and
tag. Either is a `Reference`; ranks that execute the same nodes differ in these alone.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..base.errors import InputError
from ..base.frozen import frozen

__all__ = ["ChakraGroup", "Pair", "ProcessGroups", "Reference", "groups_of"]

_WORLD = ("", "0")
"""Process groups that are the whole world where nothing says otherwise, as to ASTRA-sim."""


@frozen(eq=False)
class ChakraGroup:
    """A process group, as some ranks of a job know it.

    Attributes
    ----------
    name : str
    ranks : tuple of int
        Its members as the files number them.
    here : tuple of int
        Those of them that are read, numbered from 0.
    """

    name: str
    ranks: tuple[int, ...]
    here: tuple[int, ...]

    def __contains__(self, rank: int) -> bool:
        return rank in self._ranks

    @cached_property
    def _ranks(self) -> frozenset[int]:
        return frozenset(self.ranks)

    @property
    def title(self) -> str:
        """Name of the communicator."""
        return f"group {self.name}" if self.name else "world"


class Pair(NamedTuple):
    """A sender and a receiver, as the files number them."""

    source: int
    target: int
    tag: int

    @property
    def title(self) -> str:
        """Name of the communicator."""
        return f"{self.source} to {self.target}, tag {self.tag}"


Reference = ChakraGroup | Pair


class ProcessGroups:
    """The process groups of a job.

    Parameters
    ----------
    ranks : sequence of int
        All that are read, as the files number them.
    named : mapping of str to tuple of int
        Ranks of groups by name, known to all ranks.
    """

    def __init__(self, ranks: Sequence[int], named: Mapping[str, tuple[int, ...]]) -> None:
        self.number = {rank: i for i, rank in enumerate(ranks)}
        self._named = named
        self._known: dict[tuple[str, ...], dict[str, ChakraGroup]] = {}
        self._world = {name: self._group(name, ()) for name in _WORLD}

    def known_with(self, texts: Iterable[str]) -> dict[str, ChakraGroup]:
        """Return the named groups that a rank knows; those of equal texts are the same objects.

        Parameters
        ----------
        texts : iterable of str
            Inputs of the rank's nodes ``process_group:init``.
        """
        key = tuple(texts)
        if key not in self._known:
            named = dict(self._named)
            for text in key:
                named.update(_groups_of_node(text))
            self._known[key] = {name: self._group(name, ranks) for name, ranks in named.items()}
        return self._known[key]

    def find(self, known: Mapping[str, ChakraGroup], name: str) -> ChakraGroup | None:
        """Return a group by name; None if there is none of that name.

        Parameters
        ----------
        known : mapping of str to ChakraGroup
            From `known_with`.
        name : str
        """
        return known.get(name, self._world.get(name))

    def _group(self, name: str, ranks: tuple[int, ...]) -> ChakraGroup:
        if not ranks:  # PyTorch writes no ranks for the whole world
            ranks = tuple(self.number)
        return ChakraGroup(name, ranks, tuple(self.number[r] for r in ranks if r in self.number))


def groups_of(path: Path, data: Any) -> dict[str, tuple[int, ...]]:
    """Return the process groups of a parsed JSON file: ``{"1": [0, 1], …}``.

    Parameters
    ----------
    path : Path
        The file, for messages; it is not read.
    data : Any
        What its JSON decodes to.

    Returns
    -------
    dict of str to tuple of int
        Global ranks of each group, in the file's order.

    Raises
    ------
    InputError
        If it holds anything else.
    """
    if not isinstance(data, dict):
        raise InputError(f"{path}: process groups are an object of lists of ranks")
    for name, ranks in data.items():
        if not isinstance(ranks, list) or any(
            isinstance(r, bool) or not isinstance(r, int) or r < 0 for r in ranks
        ):
            raise InputError(f"{path}: process group {name!r} must be a list of ranks, 0 or more")
    return {name: tuple(ranks) for name, ranks in data.items()}


def _groups_of_node(values: str) -> dict[str, tuple[int, ...]]:
    """Return the groups that PyTorch's node ``process_group:init`` names.

    Its input is a Python list of one JSON text.
    """
    try:
        listed = json.loads(ast.literal_eval(values)[0])
        return {str(entry["pg_name"]): tuple(map(int, entry["ranks"])) for entry in listed}
    except (ValueError, SyntaxError, LookupError, TypeError, RecursionError, MemoryError):
        return {}  # the parser's words for nested too deeply are the last two
