"""The published Chakra schema, compiled by protoc: what other tools read and write files with.

Numbers and types as in MLCommons Chakra, ``schema/protobuf/et_def.proto``. Kept apart from the
table in `mpisim.formats`, so that a slip there does not slip in here.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

LISTS = {
    "DoubleList": "double",
    "FloatList": "float",
    "Int32List": "int32",
    "Int64List": "int64",
    "Uint32List": "uint32",
    "Uint64List": "uint64",
    "Sint32List": "sint32",
    "Sint64List": "sint64",
    "Fixed32List": "fixed32",
    "Fixed64List": "fixed64",
    "Sfixed32List": "sfixed32",
    "Sfixed64List": "sfixed64",
    "BoolList": "bool",
    "StringList": "string",
    "BytesList": "bytes",
}
VALUES = """
double double_val 3, DoubleList double_list 4, float float_val 5, FloatList float_list 6,
int32 int32_val 7, Int32List int32_list 8, int64 int64_val 9, Int64List int64_list 10,
uint32 uint32_val 11, Uint32List uint32_list 12, uint64 uint64_val 13, Uint64List uint64_list 14,
sint32 sint32_val 15, Sint32List sint32_list 16, sint64 sint64_val 17, Sint64List sint64_list 18,
fixed32 fixed32_val 19, Fixed32List fixed32_list 20, fixed64 fixed64_val 21,
Fixed64List fixed64_list 22, sfixed32 sfixed32_val 23, Sfixed32List sfixed32_list 24,
sfixed64 sfixed64_val 25, Sfixed64List sfixed64_list 26, bool bool_val 27, BoolList bool_list 28,
string string_val 29, StringList string_list 30, bytes bytes_val 31, BytesList bytes_list 32
"""
NODE = """
uint64 id 1, string name 2, NodeType type 3, repeated uint64 ctrl_deps 4,
repeated uint64 data_deps 5, uint64 start_time_micros 6, uint64 duration_micros 7, IOInfo inputs 8,
IOInfo outputs 9, repeated AttributeProto attr 10, bytes storage 11
"""
NODE_TYPES = [
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
    "STORAGE_NODE",
    "BATCH_NODE",
    "CHECKPOINT_NODE",
]
COMM_TYPES = [
    "ALL_REDUCE",
    "REDUCE",
    "ALL_GATHER",
    "GATHER",
    "SCATTER",
    "BROADCAST",
    "ALL_TO_ALL",
    "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK",
    "BARRIER",
]


def _fields(text: str) -> str:
    return "".join(
        "{} = {};".format(*field.strip().rsplit(" ", 1)) for field in text.strip().split(",")
    )


def _enum(name: str, values: list[str]) -> str:
    return f"enum {name} {{{''.join(f'{v} = {i};' for i, v in enumerate(values))}}}\n"


def proto() -> str:
    """Return the schema as protoc reads it."""
    lists = "".join(f"message {n} {{repeated {t} values = 1;}}\n" for n, t in LISTS.items())
    head = "string name = 1; string doc_string = 2;"
    return (
        'syntax = "proto3"; package ChakraProtoMsg;\n'
        + lists
        + f"message AttributeProto {{{head} oneof value {{{_fields(VALUES)}}}}}\n"
        + "message GlobalMetadata {string version = 1; repeated AttributeProto attr = 2;}\n"
        + "message IOInfo {string values = 1; string shapes = 2; string types = 3;}\n"
        + _enum("NodeType", NODE_TYPES)
        + _enum("CollectiveCommType", COMM_TYPES)
        + f"message Node {{{_fields(NODE)}}}\n"
    )


@cache
def _compiled(folder: Path) -> Any:
    protoc = pytest.importorskip("grpc_tools.protoc")
    (folder / "oracle_et_def.proto").write_text(proto())
    arguments = ["protoc", f"-I{folder}", f"--python_out={folder}", "oracle_et_def.proto"]
    assert protoc.main(arguments) == 0
    sys.path.insert(0, str(folder))
    try:
        import oracle_et_def_pb2
    finally:
        sys.path.remove(str(folder))
    return oracle_et_def_pb2


@pytest.fixture(scope="session")
def chakra(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The compiled module: classes GlobalMetadata, Node and the others."""
    return _compiled(tmp_path_factory.mktemp("chakra"))


def parse(chakra: Any, path: Path) -> tuple[Any, list[Any]]:
    """Read a file as other tools do."""
    raw, at, parts = path.read_bytes(), 0, []
    while at < len(raw):
        length = shift = 0
        while True:
            byte = raw[at]
            length |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                break
        parts.append(raw[at : at + length])
        at += length
    metadata = chakra.GlobalMetadata.FromString(parts[0])
    return metadata, [chakra.Node.FromString(part) for part in parts[1:]]


def write(chakra: Any, path: Path, *nodes: dict[str, Any], version: str = "") -> Path:
    """Write a file as other tools do; attributes by name, the type by the value's."""
    parts = [chakra.GlobalMetadata(version=version)]
    for described in nodes:
        values = dict(described)
        attributes = values.pop("attr", {})
        if isinstance(values.get("type"), str):
            values["type"] = NODE_TYPES.index(values["type"])
        node = chakra.Node(**values)
        for name, value in attributes.items():
            kind, value = value if isinstance(value, tuple) else (_kind(value), value)
            setattr(node.attr.add(name=name), kind, value)
        parts.append(node)
    with path.open("wb") as file:
        for part in parts:
            body = part.SerializeToString()
            length = len(body)
            while length > 127:
                file.write(bytes([length & 127 | 128]))
                length >>= 7
            file.write(bytes([length]) + body)
    return path


def _kind(value: Any) -> str:
    return {bool: "bool_val", int: "int64_val", str: "string_val", float: "double_val"}[type(value)]
