"""The schema of Perfetto's traces, as far as it is written here.

A file is one message ``Trace``: packets one after the other, so that parts of a file are joined by
appending them. Names and numbers are those of Perfetto's ``protos/perfetto/trace``
(``trace_packet.proto``, ``track_event/*.proto``, ``interned_data/interned_data.proto``). It is
built here from a table of its fields, so that no compiler of protocol buffers is needed;
`tests/test_export_perfetto.py` holds the table against the published schema.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Any

__all__ = ["FIELDS", "EventType", "SequenceFlags", "trace"]

PACKAGE = "perfetto.protos"


class EventType(IntEnum):
    """``TrackEvent.Type``."""

    SLICE_BEGIN = 1
    SLICE_END = 2
    COUNTER = 4


class SequenceFlags(IntEnum):
    """``TracePacket.SequenceFlags``: names are interned anew, or known from earlier packets."""

    INCREMENTAL_STATE_CLEARED = 1
    NEEDS_INCREMENTAL_STATE = 2


class ChildOrdering(IntEnum):
    """``TrackDescriptor.ChildTracksOrdering``."""

    EXPLICIT = 3


class CounterUnit(IntEnum):
    """``CounterDescriptor.Unit``."""

    UNSPECIFIED = 0
    COUNT = 2
    SIZE_BYTES = 3


FIELDS: dict[str, tuple[tuple[str, int, str], ...]] = {
    "Trace": (("packet", 1, "TracePacket*"),),
    "TracePacket": (
        ("timestamp", 8, "uint64"),
        ("trusted_packet_sequence_id", 10, "uint32"),
        ("track_event", 11, "TrackEvent"),
        ("interned_data", 12, "InternedData"),
        ("sequence_flags", 13, "uint32"),
        ("track_descriptor", 60, "TrackDescriptor"),
    ),
    "TrackDescriptor": (
        ("uuid", 1, "uint64"),
        ("name", 2, "string"),
        ("process", 3, "ProcessDescriptor"),
        ("parent_uuid", 5, "uint64"),
        ("counter", 8, "CounterDescriptor"),
        ("child_ordering", 11, "enum"),
        ("sibling_order_rank", 12, "int32"),
    ),
    "ProcessDescriptor": (
        ("pid", 1, "int32"),
        ("legacy_sort_index", 3, "int32"),
        ("process_name", 6, "string"),
        ("process_labels", 8, "string*"),
    ),
    "CounterDescriptor": (("unit", 3, "enum"), ("unit_name", 6, "string")),
    "TrackEvent": (
        ("category_iids", 3, "uint64*"),
        ("debug_annotations", 4, "DebugAnnotation*"),
        ("type", 9, "enum"),
        ("name_iid", 10, "uint64"),
        ("track_uuid", 11, "uint64"),
        ("double_counter_value", 44, "double"),
        ("flow_ids", 47, "fixed64*"),
        ("terminating_flow_ids", 48, "fixed64*"),
    ),
    "DebugAnnotation": (
        ("name_iid", 1, "uint64"),
        ("int_value", 4, "int64"),
        ("double_value", 5, "double"),
        ("string_value_iid", 17, "uint64"),
    ),
    "InternedData": (
        ("event_categories", 1, "EventCategory*"),
        ("event_names", 2, "EventName*"),
        ("debug_annotation_names", 3, "DebugAnnotationName*"),
        ("debug_annotation_string_values", 29, "InternedString*"),
    ),
    "EventCategory": (("iid", 1, "uint64"), ("name", 2, "string")),
    "EventName": (("iid", 1, "uint64"), ("name", 2, "string")),
    "DebugAnnotationName": (("iid", 1, "uint64"), ("name", 2, "string")),
    "InternedString": (("iid", 1, "uint64"), ("str", 2, "bytes")),
}
"""Fields of the messages: name, number, type (``*``: repeated). The values of enumerations are
written as int32, which they are in a file."""

_SCALARS = ("uint64", "uint32", "int64", "int32", "fixed64", "double", "string", "bytes")


@cache
def trace() -> Any:
    """Return the message class ``Trace``; the ``protobuf`` package is loaded here."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="mpisim/perfetto_trace.proto", package=PACKAGE, syntax="proto2"
    )
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, type_ in fields:
            scalar = type_.rstrip("*")
            made = message.field.add(
                name=field,
                number=number,
                label=kinds.LABEL_REPEATED if type_.endswith("*") else kinds.LABEL_OPTIONAL,
            )
            if scalar in (*_SCALARS, "enum"):
                made.type = getattr(
                    kinds, f"TYPE_{'INT32' if scalar == 'enum' else scalar.upper()}"
                )
            else:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{scalar}"
    pool = descriptor_pool.DescriptorPool()  # Perfetto's own package fills the default one
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.Trace"))
