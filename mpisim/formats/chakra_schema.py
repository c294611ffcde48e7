"""The schema of Chakra execution traces, and the files that hold their messages.

A file is a sequence of protobuf messages, each behind its length as a varint: one
``GlobalMetadata``, then ``Node`` until the end; plain or gzip. The schema is MLCommons Chakra's
``schema/protobuf/et_def.proto``. It is built here from a table of its fields, so that no compiler
of protocol buffers is needed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from ..base.errors import InputError
from ..base.frozen import frozen
from ..program import Operation
from ..traces.raw import open_text

__all__ = [
    "COLUMNS",
    "COMM_TYPE",
    "PREFIX",
    "VERSION",
    "CollectiveType",
    "Messages",
    "NodeType",
    "add",
    "attributes",
    "delimited",
    "looks_like_chakra",
    "messages",
    "read_nodes",
    "write_delimited",
]


class NodeType(IntEnum):
    """What a node is."""

    INVALID_NODE = 0
    METADATA_NODE = 1
    MEM_LOAD_NODE = 2
    MEM_STORE_NODE = 3
    COMP_NODE = 4
    COMM_SEND_NODE = 5
    COMM_RECV_NODE = 6
    COMM_COLL_NODE = 7
    STORAGE_NODE = 8
    BATCH_NODE = 9
    CHECKPOINT_NODE = 10


class CollectiveType(IntEnum):
    """What a collective does (attribute ``comm_type``)."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


PACKAGE = "ChakraProtoMsg"
_SCALARS = (
    "double",
    "float",
    "int32",
    "int64",
    "uint32",
    "uint64",
    "sint32",
    "sint64",
    "fixed32",
    "fixed64",
    "sfixed32",
    "sfixed64",
    "bool",
    "string",
    "bytes",
)
"""Types of an attribute's value, in the order of their field numbers: the value itself from 3 on,
and behind each the list of such values."""

_FIELDS: dict[str, tuple[tuple[str, int, str], ...]] = {
    "GlobalMetadata": (("version", 1, "string"), ("attr", 2, "AttributeProto*")),
    "IOInfo": (("values", 1, "string"), ("shapes", 2, "string"), ("types", 3, "string")),
    "Node": (
        ("id", 1, "uint64"),
        ("name", 2, "string"),
        ("type", 3, "NodeType"),
        ("ctrl_deps", 4, "uint64*"),
        ("data_deps", 5, "uint64*"),
        ("start_time_micros", 6, "uint64"),
        ("duration_micros", 7, "uint64"),
        ("inputs", 8, "IOInfo"),
        ("outputs", 9, "IOInfo"),
        ("attr", 10, "AttributeProto*"),
        # A message of its own in the schema; nothing here looks into it, and bytes are alike.
        ("storage", 11, "bytes"),
    ),
}
"""Fields of the messages: name, number, type (``*``: repeated)."""


@frozen
class Messages:
    """The message classes."""

    GlobalMetadata: Any
    Node: Any


@cache
def messages() -> Messages:
    """Return the message classes; the ``protobuf`` package is loaded here."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="mpisim/et_def.proto", package=PACKAGE, syntax="proto3"
    )
    for enum in (NodeType, CollectiveType):
        # Names of enum values are global in a package, and two enums of it would collide.
        described = file.enum_type.add(
            name="CollectiveCommType" if enum is CollectiveType else enum.__name__
        )
        for value in enum:
            described.value.add(name=value.name, number=value)

    def add(message: Any, name: str, number: int, type_: str) -> Any:
        scalar = type_.rstrip("*")
        field = message.field.add(
            name=name,
            number=number,
            label=kinds.LABEL_REPEATED if type_.endswith("*") else kinds.LABEL_OPTIONAL,
        )
        if scalar in _SCALARS:
            field.type = getattr(kinds, f"TYPE_{scalar.upper()}")
        else:
            field.type = kinds.TYPE_ENUM if scalar == "NodeType" else kinds.TYPE_MESSAGE
            field.type_name = f".{PACKAGE}.{scalar}"
        return field

    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field in fields:
            add(message, *field)
    attribute = file.message_type.add(name="AttributeProto")
    add(attribute, "name", 1, "string")
    add(attribute, "doc_string", 2, "string")
    attribute.oneof_decl.add(name="value")
    for i, scalar in enumerate(_SCALARS):
        listed = f"{scalar.capitalize()}List"
        add(file.message_type.add(name=listed), "values", 1, f"{scalar}*")
        add(attribute, f"{scalar}_val", 3 + 2 * i, scalar).oneof_index = 0
        add(attribute, f"{scalar}_list", 4 + 2 * i, listed).oneof_index = 0

    pool = descriptor_pool.DescriptorPool()  # another Chakra package may have filled the default
    pool.Add(file)
    return Messages(
        *(
            message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
            for name in ("GlobalMetadata", "Node")
        )
    )


def attributes(message: Any, names: Container[str] | None = None) -> dict[str, Any]:
    """Return the attributes of a node or of the metadata by name: scalars and lists.

    Writers differ in which integer type they choose, so that the type is not looked at.

    Parameters
    ----------
    message : Node or GlobalMetadata
    names : container of str, optional
        Those to be returned; by default all.
    """
    found: dict[str, Any] = {}
    for attribute in message.attr:
        if names is not None and attribute.name not in names:
            continue
        kind = attribute.WhichOneof("value")
        if kind is None:
            continue
        value = getattr(attribute, kind)
        found[attribute.name] = list(value.values) if kind.endswith("_list") else value
    return found


# --- files --------------------------------------------------------------------------------------


def delimited(message: Any) -> bytes:
    """Return a message behind its length."""
    body = message.SerializeToString()
    length, head = len(body), bytearray()
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + body


def write_delimited(file: BinaryIO, parts: Iterable[Any]) -> None:
    """Write messages, each behind its length.

    Parameters
    ----------
    file : BinaryIO
        Open for writing; the caller closes it.
    parts : iterable of protobuf messages
        Taken one by one, so that a generator's messages are never held together.
    """
    for part in parts:
        file.write(delimited(part))


def looks_like_chakra(head: bytes) -> bool:
    """Whether the beginning of a file, decompressed, can be that of a Chakra execution trace.

    The metadata and the first node, as far as the head has them, must decode and have known fields
    only; text does not.
    """
    found = False
    try:
        for place, body in _frames(Path(), head):
            message = messages().GlobalMetadata() if place < 0 else messages().Node()
            _parse(Path(), message, body, "")
            found = bool(body)
            if place == 0:
                return found
    except InputError:
        return found and len(head) >= 1 << 16  # the first node is cut off with the head
    return found


def read_nodes(path: Path, raw: bytes | None = None) -> tuple[Any, list[Any]]:
    """Read a Chakra execution trace (``.et``, plain or gzip).

    Parameters
    ----------
    path : Path
    raw : bytes, optional
        The contents of the file, unpacked, where they have been read already.

    Returns
    -------
    metadata, nodes
        Messages.

    Raises
    ------
    InputError
        If the file cannot be read, is truncated, or is none; the message names the node by its
        place in the file, from 0.
    """
    metadata, nodes = messages().GlobalMetadata(), []
    for place, body in _frames(path, open_text(path) if raw is None else raw):
        message = metadata if place < 0 else messages().Node()
        _parse(path, message, body, _what(place))
        if place >= 0:
            nodes.append(message)
    return metadata, nodes


def _frames(path: Path, raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the messages of a file as bytes, numbered from -1 (the metadata) on."""
    at, place = 0, -1
    while at < len(raw):
        start, length, shift = at, 0, 0
        while True:
            if at >= len(raw) or shift > 63:
                raise InputError(f"{path}: {_what(place)}, at byte {start}, has no valid length")
            byte = raw[at]
            length |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        if at + length > len(raw):
            raise InputError(
                f"{path}: truncated, or no Chakra execution trace: {_what(place)} should have "
                f"{length} bytes, {len(raw) - at} are left"
            )
        yield place, raw[at : at + length]
        at, place = at + length, place + 1


def _what(place: int) -> str:
    return "the metadata" if place < 0 else f"node {place}"


def _parse(path: Path, message: Any, body: bytes, what: str) -> None:
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    try:
        message.ParseFromString(body)
    except DecodeError:
        raise InputError(f"{path}: no Chakra execution trace: {what} cannot be decoded") from None
    for unknown in UnknownFieldSet(message):
        known = [field.number for field in message.DESCRIPTOR.fields]
        raise InputError(
            f"{path}: {what} has an unknown field, number {unknown.field_number}; "
            f"the schema has {min(known)} to {max(known)}"
        )


PREFIX = "mpisim."
VERSION = 1
"""Of these attributes."""

COLUMNS: dict[str, int] = {
    "kind": -1,
    "flags": 0,
    "operation": 0,
    "slot": -1,
    "host": 0,
    "launch": 0,
    "launch_cost": 0,
    "gap": 0,
    "duration": 0,
    "bytes": -1,
    "phase": 0,
    "layer": -1,
    "micro_batch": -1,
    "step": -1,
}
"""Columns of a table kept as attributes, and the value that is left out. The stream is Chakra's own
attribute ``stream`` and the name is the node's; every row has a kind, which marks its node."""

COMM_TYPE: dict[Operation, CollectiveType] = {
    Operation.ALL_REDUCE: CollectiveType.ALL_REDUCE,
    Operation.ALL_GATHER: CollectiveType.ALL_GATHER,
    Operation.REDUCE_SCATTER: CollectiveType.REDUCE_SCATTER,
    Operation.BROADCAST: CollectiveType.BROADCAST,
    Operation.REDUCE: CollectiveType.REDUCE,
    Operation.ALL_TO_ALL: CollectiveType.ALL_TO_ALL,
    Operation.GATHER: CollectiveType.GATHER,
    Operation.SCATTER: CollectiveType.SCATTER,
    Operation.BARRIER: CollectiveType.BARRIER,
}


def add(message: Any, name: str, kind: str, value: Any) -> None:
    """Append an attribute to a node or the metadata.

    Parameters
    ----------
    message
    name : str
    kind : str
        Field of ``AttributeProto`` that holds the value: ``int64_val``, ``string_list``, ….
    value
    """
    attribute = message.attr.add(name=name)
    if kind.endswith("_list"):
        target = getattr(attribute, kind)
        target.SetInParent()  # an empty list is a list, too
        target.values.extend(value)
    else:
        setattr(attribute, kind, value)
