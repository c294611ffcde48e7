"""How a program's own facts are kept in Chakra files: attributes that other tools pass over.

Chakra has whole microseconds, one device and no CPU clock; what it cannot say is written beside
it under names that begin with ``mpisim.``, so that a program comes back as it was.
"""

from __future__ import annotations

from typing import Any

from ..program import Operation
from .chakra_schema import CollectiveType

__all__ = ["COLUMNS", "COMM_TYPE", "PREFIX", "VERSION", "add"]

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
