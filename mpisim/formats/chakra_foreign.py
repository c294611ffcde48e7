"""Chakra traces of other tools → programs: streams, dependencies, process groups."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..kernels.counted import RooflinePricer
from ..program import UNPRICED, Kind, Operation, Program, ProgramBuilder, Table
from .chakra_graph import GraphNode, ordered_nodes
from .chakra_schema import COMM_TYPE, CollectiveType, NodeType

__all__ = ["groups_of", "read_foreign"]

Trace = tuple[int, Path, list[Any]]
"""A file: rank, path and nodes."""

_OPERATION = {kind: operation for operation, kind in COMM_TYPE.items()} | {
    CollectiveType.REDUCE_SCATTER_BLOCK: Operation.REDUCE_SCATTER
}
_WORLD = ("", "0")
"""Process groups that are the whole world where nothing says otherwise, as to ASTRA-sim."""
_MOST_BYTES = 2**53


def read_foreign(
    traces: Sequence[Trace],
    groups: Mapping[str, tuple[int, ...]],
    counts: RooflinePricer | None = None,
) -> Program:
    """Return the program of Chakra traces that another tool wrote.

    Streams: the attribute ``stream`` where there is one; otherwise computation is on one stream,
    remote memory on another, and every process group, sender and receiver has its own. CPU
    operators share one CPU; one that depends on the device waits for it. An all-gather's size is
    one member's share in these files. A communication with a recorded duration takes the shortest
    that any of its members recorded, since the others waited longer; one without is unpriced.
    Computation without a duration takes what a GPU takes for its ``num_ops`` and ``tensor_size``,
    remote memory what the GPU's way to the host's takes.

    Parameters
    ----------
    traces : sequence of (rank, path, nodes)
        In order of rank; all ranks of a job, or one alone.
    groups : mapping of str to tuple of int
        Ranks of process groups by name. Those that the traces name themselves are added.
    counts : RooflinePricer, optional
        Prices nodes without a duration.

    Raises
    ------
    InputError
        If the traces cannot be understood, or a node has no duration and nothing that prices it.
    """
    ranks = [rank for rank, _, _ in traces]
    if len(ranks) > 1 and ranks != list(range(len(ranks))):
        absent = next(rank for rank in range(max(ranks) + 1) if rank not in ranks)
        raise InputError(
            f"{traces[0][1].parent}: {len(ranks)} ranks are here, rank {absent} is missing"
        )
    builder = ProgramBuilder()
    job = _Job(builder, ranks, dict(groups), counts)
    tables, slots = [], []
    for rank, path, nodes in traces:
        reader = _RankReader(job, rank, path, nodes)
        tables.append(reader.table())
        slots.append(list(reader.slots))
    for rank, table in enumerate(_with_wire_times(tables, slots)):
        builder.add_table(table)
        builder.add_rank(rank, slots[rank])
    said = {name: str(count) for name, count in sorted(job.counts.items()) if count}
    priced = {} if counts is None else counts.attributes()
    return builder.build({"source": "Chakra", "ranks": " ".join(map(str, ranks)), **said, **priced})


class _Job:
    """What the ranks of a job share."""

    def __init__(
        self,
        builder: ProgramBuilder,
        ranks: list[int],
        groups: dict[str, tuple[int, ...]],
        prices: RooflinePricer | None,
    ) -> None:
        self.builder, self.groups, self.prices = builder, groups, prices
        self.index = {rank: i for i, rank in enumerate(ranks)}
        self.counts: Counter[str] = Counter()

    @property
    def alone(self) -> bool:
        """Whether one rank represents a job whose other ranks are not here."""
        return len(self.index) == 1


class _RankReader:
    """The rows of one rank."""

    def __init__(self, job: _Job, rank: int, path: Path, nodes: Sequence[Any]) -> None:
        if not nodes:
            raise InputError(f"{path}: a Chakra execution trace without nodes")
        self.job, self.rank, self.path = job, rank, path
        self.groups = dict(job.groups)
        for node in nodes:
            if "process_group:init" in node.name or node.type == NodeType.METADATA_NODE:
                self.groups.update(_groups_of_node(node.inputs.values))
        self.nodes, counts = ordered_nodes(path, nodes)
        job.counts.update(counts)
        self.recorded = any(
            node.type is NodeType.COMP_NODE and not node.on_cpu and node.duration
            for node in self.nodes
        )
        self.rows = job.builder.table(f"rank {rank}")
        self.slots: dict[int, int] = {}
        self.streams: dict[Hashable, int] = {}
        self.stream_of: list[int] = []  # of each row
        self.host_waited: dict[int, int] = {}  # last row of each stream that the CPU waited for

    def table(self) -> Table:
        """Return the table."""
        ends: dict[int, tuple[int, ...]] = {}
        for node in self.nodes:
            before = [row for place in node.before for row in ends[place]]
            if node.type in (NodeType.INVALID_NODE, NodeType.METADATA_NODE):
                ends[node.place] = self._latest(before)
            elif node.on_cpu:
                self._cpu(node, self._latest(before))
                ends[node.place] = ()
            else:
                ends[node.place] = (self._device(node, before),)
        return self.rows.build()

    def _latest(self, rows: Sequence[int], stream: int = -1) -> tuple[int, ...]:
        """Leave out what is sure to have ended: before another on its stream, or waited for."""
        last: dict[int, int] = {}
        for row in rows:
            own = self.stream_of[row]
            if own != stream and row > self.host_waited.get(own, -1):
                last[own] = max(row, last.get(own, -1))
        return tuple(sorted(last.values()))

    def _cpu(self, node: GraphNode, waits: tuple[int, ...]) -> None:
        if waits:
            self.rows.host_wait(waits, tail=node.duration, name=node.name)
            for row in waits:
                self.host_waited[self.stream_of[row]] = row
        elif node.duration:
            self.rows.host(node.duration, node.name)
        else:
            return
        self.stream_of.append(-1)

    def _device(self, node: GraphNode, before: Sequence[int]) -> int:
        is_comm = node.type in (
            NodeType.COMM_COLL_NODE,
            NodeType.COMM_SEND_NODE,
            NodeType.COMM_RECV_NODE,
        )
        if is_comm:
            row = self._communication(node, before)
        else:
            memory = node.type in (NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE)
            copies = memory or node.name.startswith(("Memcpy", "Memset"))
            stream = self._stream(node, "memory" if memory else "compute")
            size = self._whole(node, "tensor_size", -1) if memory else -1
            row = self.rows.kernel(
                node.name,
                stream,
                self._lasts(node, size, memory),
                waits=self._latest(before, stream),
                bytes=size,
                kind=Kind.COPY if copies else Kind.KERNEL,
            )
            self.stream_of.append(stream)
        return row

    def _lasts(self, node: GraphNode, size: int, memory: bool) -> int:
        """Return how long computation or a use of memory takes, in ps."""
        if node.duration:
            return node.duration
        operations = 0 if memory else self._whole(node, "num_ops", 0)
        size = size if memory else self._whole(node, "tensor_size", 0)
        if operations or size > 0:
            if self.job.prices is None:
                raise self._error(
                    node,
                    "duration_micros is missing or 0; name a GPU (--gpu) whose roofline "
                    "prices its num_ops and tensor_size",
                )
            return self.job.prices.duration(node.name, operations, max(size, 0), memory=memory)
        if self.recorded and not memory:
            self.job.counts["kernels recorded as 0 µs"] += 1
            return 0
        raise self._error(
            node,
            "duration_micros is missing or 0, and it has neither num_ops nor tensor_size "
            "that a GPU's roofline could price",
        )

    def _communication(self, node: GraphNode, before: Sequence[int]) -> int:
        size = self._whole(node, "comm_size", -1)
        duration = node.duration or UNPRICED
        if node.type is NodeType.COMM_COLL_NODE:
            operation, name, members = self._collective(node)
            if operation is Operation.ALL_GATHER and size > 0:
                size *= len(members)
            stream = self._stream(node, ("group", name))
            here = tuple(self.job.index[rank] for rank in members if rank in self.job.index)
            if len(here) < len(members) and duration == UNPRICED:
                raise self._error(node, f"group {name!r} has ranks that are not here, and no time")
            row = self.rows.collective(
                operation,
                self._slot(here, f"group {name}" if name else "world"),
                stream,
                size,
                duration=duration,
                name=node.name,
                waits=self._latest(before, stream),
            )
        else:
            row, stream = self._pair(node, size, duration, before)
        barrier = node.attributes.get("comm_type") == CollectiveType.BARRIER
        if duration == UNPRICED and size < 0 and not barrier:
            raise self._error(node, "it has neither duration_micros nor comm_size, which price it")
        self.stream_of.append(stream)
        return row

    def _collective(self, node: GraphNode) -> tuple[Operation, str, tuple[int, ...]]:
        kind = self._whole(node, "comm_type", -1)
        if kind not in list(CollectiveType):
            raise self._error(
                node,
                f"comm_type is {'missing' if kind < 0 else kind}; it must be from 0 "
                f"({CollectiveType(0).name}) to {max(CollectiveType)} ({CollectiveType(9).name})",
            )
        name = str(node.attributes.get("pg_name", ""))
        members = self.groups.get(name)
        if members is None:
            if name not in _WORLD:
                known = ", ".join(map(repr, list(self.groups)[:8])) or "none"
                raise self._error(
                    node,
                    f"process group {name!r} is unknown (known: {known}); add its ranks, "
                    f'as {{"{name}": [0, 1]}} in a .json file beside the traces',
                )
            members = tuple(self.job.index)
        if not members:  # PyTorch writes no ranks for the whole world
            members = tuple(self.job.index)
        if self.rank not in members:
            raise self._error(node, f"rank {self.rank} is not in process group {name!r}")
        return _OPERATION[CollectiveType(kind)], name, members

    def _pair(
        self, node: GraphNode, size: int, duration: int, before: Sequence[int]
    ) -> tuple[int, int]:
        """Append one half of a message; one whose other half is in no file is kept as recorded."""
        sends = node.type is NodeType.COMM_SEND_NODE
        kind = Kind.SEND if sends else Kind.RECV
        source = self._whole(node, "comm_src", self.rank if sends else -1)
        target = self._whole(node, "comm_dst", -1 if sends else self.rank)
        tag = self._whole(node, "comm_tag", 0)
        own, other = (source, target) if sends else (target, source)
        if own != self.rank or other < 0 or other == own:
            raise self._error(
                node, f"rank {self.rank} has a {kind.name} from rank {source} to rank {target}"
            )
        stream = self._stream(node, (source, target, tag))
        waits = self._latest(before, stream)
        if other in self.job.index:
            pair = (self.job.index[source], self.job.index[target])
            slot = self._slot(pair, f"{source} to {target}, tag {tag}")
            return self.rows.point_to_point(
                kind, slot, stream, size, duration=duration, name=node.name, waits=waits
            ), stream
        if duration == UNPRICED:
            raise self._error(node, f"its partner, rank {other}, is not here, and no time")
        here = self._slot((self.job.index[self.rank],), f"{source} to {target}, tag {tag}")
        return self.rows.collective(
            Operation.UNKNOWN, here, stream, size, duration=duration, name=node.name, waits=waits
        ), stream

    def _slot(self, members: tuple[int, ...], name: str) -> int:
        number = self.job.builder.communicator(members, name)
        return self.slots.setdefault(number, len(self.slots))

    def _stream(self, node: GraphNode, otherwise: Hashable) -> int:
        """Return the number of a node's stream, in order of appearance."""
        key: Hashable = otherwise
        if "stream" in node.attributes:
            key = self._whole(node, "stream", -1)
        return self.streams.setdefault(key, len(self.streams))

    def _whole(self, node: GraphNode, name: str, default: int) -> int:
        """Return an attribute that is a number from 0 on, whichever integer type it has."""
        value = node.attributes.get(name, default)
        if value is default:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_BYTES:
            raise self._error(node, f"{name} is {value!r}; it must be a whole number, 0 or more")
        return value

    def _error(self, node: GraphNode, text: str) -> InputError:
        return InputError(f"{self.path}: node {node.place} ({node.name!r}): {text}")


def _with_wire_times(tables: Sequence[Table], slots: Sequence[Sequence[int]]) -> list[Table]:
    """Give all members of a communication the shortest of their recorded durations.

    What the others recorded beyond it they spent waiting for the last to come.
    """
    users: dict[int, list[tuple[int, int]]] = {}
    for rank, own in enumerate(slots):
        for slot, communicator in enumerate(own):
            users.setdefault(communicator, []).append((rank, slot))
    durations = [table.duration.copy() for table in tables]
    for members in users.values():
        rows = [tables[rank].rows_on(slot) for rank, slot in members]
        shared = min(map(len, rows))  # the engine refuses ranks that communicate unequally often
        least = np.full(shared, np.iinfo(np.int64).max)
        for (rank, _), mine in zip(members, rows):
            found = durations[rank][mine[:shared]]
            least = np.minimum(least, np.where(found == UNPRICED, least, found))
        least[least == np.iinfo(np.int64).max] = UNPRICED
        for (rank, _), mine in zip(members, rows):
            durations[rank][mine[:shared]] = least
    return [table.replace(duration=own) for table, own in zip(tables, durations)]


# --- process groups -----------------------------------------------------------------------------


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
