"""Execution trace → its process groups and communications.

NCCL's operations are nodes ``record_param_comms``. From schema 1.1.0 on their attributes name
everything; before, the facts are the node's positional inputs. Gloo writes no such nodes: its
operations are read from the ``c10d::`` operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..base.errors import TraceError
from .et_model import EtCommunication, ExecutionTrace, ProcessGroup
from .kineto import MOST_RANKS

if TYPE_CHECKING:
    from .et_model import Tensors, Values

__all__ = ["collective_name", "communications", "process_groups"]

# The first that matches counts.
_NAMES = (
    (re.compile(r"reduce_?scatter"), "reduce_scatter"),
    (re.compile(r"all_?reduce"), "all_reduce"),
    (re.compile(r"all_?gather"), "all_gather"),
    (re.compile(r"all_?to_?all"), "all_to_all"),
    (re.compile(r"broadcast"), "broadcast"),
    (re.compile(r"barrier"), "barrier"),
    (re.compile(r"reduce"), "reduce"),
    (re.compile(r"gather"), "gather"),
    (re.compile(r"scatter"), "scatter"),
    (re.compile(r"send"), "send"),
    (re.compile(r"recv"), "recv"),
)
_WITH_PEER = {"broadcast", "reduce", "gather", "scatter", "send", "recv"}
_SIZES = {
    "byte": 1,
    "char": 1,
    "bool": 1,
    "unsignedchar": 1,
    "signedchar": 1,
    "half": 2,
    "bfloat16": 2,
    "short": 2,
    "c10::half": 2,
    "c10::bfloat16": 2,
    "int": 4,
    "float": 4,
    "long": 8,
    "longint": 8,
    "double": 8,
    "complexfloat": 8,
    "complexdouble": 16,
}


def collective_name(recorded: str) -> str:
    """Name of a collective in any of its spellings → its one name.

    Examples
    --------
    >>> collective_name("all_to_allv"), collective_name("_allgather_base_"), collective_name("nop")
    ('all_to_all', 'all_gather', 'nop')
    """
    lower = recorded.lower()
    for pattern, name in _NAMES:
        if pattern.search(lower):
            return name
    return recorded


def process_groups(path: Path, records: Iterable[Any]) -> dict[str, ProcessGroup]:
    """Records ``process_group:init`` → all process groups, by name.

    An empty list of ranks means the whole world, ranks 0 to size - 1.

    Parameters
    ----------
    path : Path
        The trace's file, for messages; it is not read.
    records : iterable of str
        JSON text of each record: a list of groups. A later entry of a name replaces an earlier one.

    Raises
    ------
    TraceError
        If a record is not what PyTorch writes.
    """
    groups: dict[str, ProcessGroup] = {}
    for record in records:
        try:
            entries = msgspec.json.decode(record, type=list[dict[str, Any]])
            for entry in entries:
                size = int(entry["group_size"])
                if not 0 <= size <= MOST_RANKS:
                    raise ValueError(f"'group_size' is {size}")
                groups[str(entry["pg_name"])] = ProcessGroup(
                    name=str(entry["pg_name"]),
                    description=str(entry.get("pg_desc", "")),
                    backend=str(entry.get("backend_config", "")),
                    ranks=tuple(int(r) for r in entry["ranks"]) or tuple(range(size)),
                    size=size,
                )
        except (msgspec.DecodeError, TypeError, ValueError, KeyError, RecursionError) as error:
            raise TraceError(
                f"{path}: node '## process_group:init ##': not a list of process groups ({error})"
            ) from None
    return groups


def communications(
    et: ExecutionTrace, facts: Sequence[dict[str, Any]], inputs: Sequence[Values]
) -> list[EtCommunication]:
    """Execution trace → its communications in order of node.

    Parameters
    ----------
    et : ExecutionTrace
    facts : sequence of dict
        Attributes of every node.
    inputs : sequence
        Values and types of every node's inputs.

    Raises
    ------
    TraceError
        If a record holds text where a number must be.
    """
    found = []
    for node, name in enumerate(et.name):
        if name != "record_param_comms":
            continue
        try:
            found.append(_recorded(et, node, facts[node], inputs[node]))
        except (TypeError, ValueError) as error:
            raise TraceError(
                f"{et.path}: node {et.id[node]} ('record_param_comms'): {error}"
            ) from None
    if found:
        return [one for one in found if one is not None]
    return [
        _operator(et, node)
        for node, name in enumerate(et.name)
        if name.startswith("c10d::") and collective_name(name) != name
    ]


def _recorded(
    et: ExecutionTrace, node: int, facts: dict[str, Any], inputs: Values
) -> EtCommunication | None:
    """Node ``record_param_comms`` → its communication; None if it records a wait or has no name."""
    positional = _positional(et, node, inputs)
    name = str(facts.get("collective_name") or positional["name"])
    if not name or name == "wait":
        return None
    sizes = _sizes(et, node)
    collective = collective_name(name)
    has_peer = collective in _WITH_PEER
    dtype = facts.get("dtype") or sizes["dtype"]
    width = _SIZES.get(str(dtype).lower().replace(" ", ""), 0)
    for side, key in (("in", "in_msg_nelems"), ("out", "out_msg_nelems")):
        if key in facts:
            elements = int(facts[key])
            if elements != sizes[f"{side}_elements"]:
                sizes[f"{side}_bytes"] = elements * width
            sizes[f"{side}_elements"] = elements
    sizes["dtype"] = str(dtype)
    group = str(facts.get("pg_name", positional["group_name"]))
    known = et.groups.get(group)
    return EtCommunication(
        node=node,
        collective=collective,
        recorded_name=name,
        in_split=_split(facts.get("in_split_size", positional["in_split"])),
        out_split=_split(facts.get("out_split_size", positional["out_split"])),
        group_name=group,
        group_description=str(facts.get("pg_desc", positional["group_description"])),
        rank=-1 if has_peer else positional["rank"],
        peer=positional["rank"] if has_peer else -1,
        rank_start=int(facts.get("global_rank_start", positional["rank_start"])),
        rank_stride=int(facts.get("global_rank_stride", positional["rank_stride"])),
        group_size=int(
            facts.get("pg_size", positional["group_size"]) or (known.size if known else 0)
        ),
        sequence=positional["sequence"],
        **sizes,
    )


def _positional(et: ExecutionTrace, node: int, inputs: Values) -> dict[str, Any]:
    """Inputs of a node → facts: ``[tensors,] seq, group, rank, name, in split, out split, …``.

    Behind the splits come the number of ranks (schema 1.0.1, sometimes) or the group's first
    global rank, stride and number of ranks. Operations with a root or a peer have it for the rank.
    """
    facts: dict[str, Any] = {
        "name": "",
        "group_name": "",
        "group_description": "",
        "rank": -1,
        "rank_start": -1,
        "rank_stride": -1,
        "group_size": 0,
        "sequence": -1,
        "in_split": (),
        "out_split": (),
    }
    values = inputs.values
    at = next((i for i, kind in enumerate(inputs.types) if kind == "String"), -1)
    if not 3 <= at < len(values):
        return facts
    sequence, group, rank, facts["name"] = values[at - 3 : at + 1]
    if isinstance(sequence, int):
        facts["sequence"] = sequence
    elif isinstance(sequence, list) and sequence and isinstance(sequence[0], int):
        facts["sequence"] = sequence[0]
    if isinstance(rank, int):
        facts["rank"] = rank
    if isinstance(group, list) and len(group) == 2:
        facts["group_name"], facts["group_description"] = map(str, group)
    rest = values[at + 1 :]
    facts["in_split"], facts["out_split"] = [*rest, (), ()][:2]
    numbers = [v for v in rest[2:] if isinstance(v, int)]
    if len(numbers) >= 3:
        facts["rank_start"], facts["rank_stride"], facts["group_size"] = numbers[:3]
    elif len(numbers) == 1:
        facts["group_size"] = numbers[0]
    return facts


def _operator(et: ExecutionTrace, node: int) -> EtCommunication:
    """Operator ``c10d::…``, which names no group → its communication."""
    name = et.name[node].removeprefix("c10d::")
    collective = collective_name(name)
    schema = et.op_schema[node]
    declared = [
        a.split("=")[0].split()[-1] for a in schema.partition("(")[2].split(",") if a.split()
    ]
    # Operators that fill a buffer are given both; the results repeat the buffer, if at all.
    span = et.inputs.of(node)
    into, out = [0, 0], [0, 0]
    for i in range(span.start, span.stop):
        argument = int(et.inputs.argument[i])
        side = out if argument < len(declared) and declared[argument].startswith("output") else into
        side[0] += int(et.inputs.elements[i])
        side[1] += int(et.inputs.elements[i] * et.inputs.element_size[i])
    if out == [0, 0]:
        out = [0, 0] if collective == "send" else list(into)
    return EtCommunication(
        node=node,
        collective=collective,
        recorded_name=name,
        dtype=_dtype(et, node),
        in_elements=into[0],
        in_bytes=into[1],
        out_elements=out[0],
        out_bytes=out[1],
        in_split=(),
        out_split=(),
        group_name="",
        group_description="",
        rank=-1,
        peer=-1,
        rank_start=-1,
        rank_stride=-1,
        group_size=0,
        sequence=-1,
    )


def _sizes(et: ExecutionTrace, node: int) -> dict[str, Any]:
    """Node → elements, bytes and data type of its own tensors."""

    def total(tensors: Tensors) -> tuple[int, int]:
        span = tensors.of(node)
        elements = tensors.elements[span]
        return int(elements.sum()), int((elements * tensors.element_size[span]).sum())

    into, out = total(et.inputs), total(et.outputs)
    return {
        "dtype": _dtype(et, node),
        "in_elements": into[0],
        "in_bytes": into[1],
        "out_elements": out[0],
        "out_bytes": out[1],
    }


def _dtype(et: ExecutionTrace, node: int) -> str:
    """Node → data type of its first tensor; empty if it has none."""
    for tensors in (et.inputs, et.outputs):
        span = tensors.of(node)
        if span.stop > span.start:
            return str(tensors.dtypes[int(tensors.dtype[span.start])])
    return ""


def _split(given: Any) -> tuple[int, ...]:
    """Split sizes as recorded → numbers; none where a newer file has cut their text short."""
    if isinstance(given, str):
        given = given.strip("[]")
        if "..." in given:
            return ()
        return tuple(int(n) for n in re.findall(r"-?\d+", given))
    if isinstance(given, (list, tuple)):
        return tuple(n for n in given if isinstance(n, int))
    return ()
