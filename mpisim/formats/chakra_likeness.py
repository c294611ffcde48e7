"""Chakra trace of another tool → a key that is equal for ranks that execute equal rows.

Generators write a file for every rank of thousands, and most of these differ in nothing but what
they must: the numbers of nodes, the names of process groups, senders and receivers. Nodes are
compared without these: a number becomes the place of its node in the file, a name or a pair of
ranks the number of a `Reference` in order of appearance. The key also has all that rows, or their
errors, take from a reference: the size of a group, and whether the rank is in it.

Two ranks with one key, of which the first was read without an error, hence have equal rows, on the
communicators that their own references name.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

from ..base.frozen import frozen
from .chakra_groups import ChakraGroup, Pair, ProcessGroups, Reference
from .chakra_schema import NodeType, attributes, messages

__all__ = ["Likeness", "TraceNodes", "is_whole"]

MAX_NUMBER = 2**53
"""The largest number of an attribute that is read."""

_MESSAGES = (NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE)
_PAIR = ("comm_src", "comm_dst", "comm_tag")


def is_whole(value: object) -> bool:
    """Whether an attribute is a number from 0 on, whichever integer type it has."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER


class _Message(NamedTuple):
    """A send or receive, and the ranks it names; None for those that it leaves out."""

    sends: bool
    source: int | None
    target: int | None
    tag: int

    def pair(self, rank: int) -> Pair:
        """Return the pair, if it is that of a rank."""
        source = self.source if self.source is not None else rank if self.sends else -1
        target = self.target if self.target is not None else -1 if self.sends else rank
        return Pair(source, target, self.tag)


class Likeness(NamedTuple):
    """Key of a rank's rows, equal for ranks with equal rows, and the rank's own references.

    Attributes
    ----------
    key : hashable
        Equal for ranks with equal rows.
    references : tuple of Reference
        Of the communications, in order of appearance in the file.
    """

    key: Hashable
    references: tuple[Reference, ...]


@frozen(eq=False)
class TraceNodes:
    """The nodes of a file, or of several files of equal bytes.

    Attributes
    ----------
    metadata : GlobalMetadata
    nodes : sequence of Node
    """

    metadata: Any
    nodes: Sequence[Any]

    @cached_property
    def group_texts(self) -> tuple[str, ...]:
        """Inputs of the nodes that name process groups."""
        return tuple(
            node.inputs.values
            for node in self.nodes
            if "process_group:init" in node.name or node.type == NodeType.METADATA_NODE
        )

    def likeness(
        self, rank: int, groups: ProcessGroups, known: Mapping[str, ChakraGroup]
    ) -> Likeness | None:
        """Return the key of a rank with these nodes; None where only reading them tells.

        Parameters
        ----------
        rank : int
            As the files number it.
        groups : ProcessGroups
        known : mapping of str to ChakraGroup
            Those that the rank knows, of `groups`.
        """
        if self._skeleton is None:
            return None
        content, names = self._skeleton
        number: dict[Reference, int] = {}
        memberships: list[tuple[int, ...]] = []
        for name in names:
            if isinstance(name, _Message):
                pair = name.pair(rank)
                own, other = pair[:2] if name.sends else pair[1::-1]
                at = number.setdefault(pair, len(number))
                memberships.append((at, own == rank, other == own, other in groups.number))
            else:
                group = groups.find(known, name)
                if group is None:
                    return None
                at = number.setdefault(group, len(number))
                memberships.append((at, rank in group, len(group.ranks), len(group.here)))
        return Likeness((content, tuple(memberships)), tuple(number))

    @property
    def content(self) -> bytes | None:
        """A digest of the nodes without what ranks differ in; None as with `likeness`."""
        return None if self._skeleton is None else self._skeleton[0]

    @cached_property
    def _skeleton(self) -> tuple[bytes, tuple[str | _Message, ...]] | None:
        """A digest of the nodes without what ranks differ in, and what their communications name.

        None where two nodes have one number, or a message's pair is not in numbers.
        """
        place_of = {node.id: place for place, node in enumerate(self.nodes)}
        if len(place_of) < len(self.nodes):
            return None
        names: dict[str | _Message, int] = {}
        digest = blake2b(digest_size=16)
        plain = messages().Node()
        for node in self.nodes:
            plain.CopyFrom(node)
            for part in ("id", "data_deps", "ctrl_deps"):
                plain.ClearField(part)
            name: str | _Message | None = None
            if node.type == NodeType.COMM_COLL_NODE:
                name = str(_take(plain, ("pg_name",)).get("pg_name", ""))
            elif node.type in _MESSAGES:
                taken = _take(plain, _PAIR)
                if not all(map(is_whole, taken.values())):
                    return None
                source, target, tag = map(taken.get, _PAIR)
                name = _Message(node.type == NodeType.COMM_SEND_NODE, source, target, tag or 0)
            at = -1 if name is None else names.setdefault(name, len(names))
            deps = [
                [place_of.get(other, -1) for other in part]
                for part in (node.data_deps, node.ctrl_deps)
            ]
            body = plain.SerializeToString(deterministic=True)
            digest.update(b"%d %s %d " % (at, repr(deps).encode(), len(body)))
            digest.update(body)
        by_number = sorted(place_of)
        if by_number != list(place_of):  # then the order of numbers is not that of the file
            digest.update(repr([place_of[number] for number in by_number]).encode())
        return digest.digest(), tuple(names)


def _take(message: Any, names: Sequence[str]) -> dict[str, Any]:
    """Remove attributes from a node and return their values."""
    found = attributes(message, names)
    for at in reversed([i for i, each in enumerate(message.attr) if each.name in names]):
        del message.attr[at]
    return found
