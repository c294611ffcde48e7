"""Chakra traces of other tools → programs: streams, dependencies, process groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..base.errors import InputError
from ..kernels.counted import RooflinePricer
from ..program import UNPRICED, Kind, Operation, Program, ProgramBuilder, Table
from .chakra_graph import GraphNode, ordered_nodes
from .chakra_groups import ChakraGroup, Pair, ProcessGroups, Reference
from .chakra_likeness import TraceNodes, is_whole
from .chakra_schema import COMM_TYPE, CollectiveType, NodeType

__all__ = ["read_foreign"]

Trace = tuple[int, Path, TraceNodes]
"""A file: rank, path and nodes."""

_OPERATION = {kind: operation for operation, kind in COMM_TYPE.items()} | {
    CollectiveType.REDUCE_SCATTER_BLOCK: Operation.REDUCE_SCATTER
}


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
    job = _Job(builder, ranks, groups, counts)
    tables: list[Table] = []
    of_rank: list[int] = []
    slots: list[list[int]] = []
    known: dict[Hashable, _Known] = {}
    for rank, path, trace in traces:
        own_groups = job.groups.known_with(trace.group_texts)
        like = trace.likeness(rank, job.groups, own_groups) if len(traces) > 1 else None
        before = known.get(like.key) if like is not None else None
        if like is not None and before is not None:
            references = [like.references[place] for place in before.slots]
            job.count(before.counts, before.priced)
        else:
            reader = _RankReader(job, rank, path, trace, own_groups)
            tables.append(reader.table())
            references = list(reader.slots)
            job.count(reader.counts)
            before = _Known(len(tables) - 1, [], reader.counts, reader.priced)
            if like is not None:
                place = {each: i for i, each in enumerate(like.references)}
                known[like.key] = before._replace(slots=[place[each] for each in references])
        of_rank.append(before.table)
        slots.append([job.communicator(each) for each in references])
    tables, of_rank = _with_wire_times(tables, of_rank, slots)
    for table in tables:
        builder.add_table(table)
    for number, own in zip(of_rank, slots):
        builder.add_rank(number, own)
    counted = {name: str(count) for name, count in sorted(job.counts.items()) if count}
    priced = {} if counts is None else counts.attributes()
    return builder.build(
        {"source": "Chakra", "ranks": " ".join(map(str, ranks)), **counted, **priced}
    )


class _Known(NamedTuple):
    """Table, slots and counts of a rank that was read, for others with equal nodes."""

    table: int
    slots: list[int]  # of each slot the place of its reference
    counts: Counter[str]
    priced: int


class _Job:
    """State of reading a job, shared by its ranks: builder, groups, prices, counts."""

    def __init__(
        self,
        builder: ProgramBuilder,
        ranks: list[int],
        groups: Mapping[str, tuple[int, ...]],
        prices: RooflinePricer | None,
    ) -> None:
        self.builder, self.prices = builder, prices
        self.groups = ProcessGroups(ranks, groups)
        self.index = self.groups.number
        self.counts: Counter[str] = Counter()
        self._numbers: dict[Reference, int] = {}

    def count(self, found: Counter[str], priced: int = 0) -> None:
        """Count what was passed over, and nodes that are priced like others before."""
        self.counts.update(found)
        if priced and self.prices is not None:
            self.prices.count_again(priced)

    def communicator(self, reference: Reference) -> int:
        """Return the number of the communicator of a group, or of a pair with a rank that is here.

        Both ranks of a pair need not be here.
        """
        if reference not in self._numbers:
            if isinstance(reference, ChakraGroup):
                members = reference.here
            else:
                both = (reference.source, reference.target)
                members = tuple(self.index[rank] for rank in both if rank in self.index)
            self._numbers[reference] = self.builder.communicator(members, reference.title)
        return self._numbers[reference]


class _RankReader:
    """The rows of one rank."""

    def __init__(
        self, job: _Job, rank: int, path: Path, trace: TraceNodes, groups: Mapping[str, ChakraGroup]
    ) -> None:
        if not trace.nodes:
            raise InputError(f"{path}: a Chakra execution trace without nodes")
        self.job, self.rank, self.path, self.groups = job, rank, path, groups
        self.nodes, self.counts = ordered_nodes(path, trace.nodes)
        self.priced = 0  # nodes without a duration
        self.recorded = any(
            node.type is NodeType.COMP_NODE and not node.on_cpu and node.duration
            for node in self.nodes
        )
        self.rows = job.builder.table(f"rank {rank}")
        self.slots: dict[Reference, int] = {}
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
            self.priced += 1
            return self.job.prices.duration(node.name, operations, max(size, 0), memory=memory)
        if self.recorded and not memory:
            self.counts["kernels recorded as 0 µs"] += 1
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
            operation, group = self._collective(node)
            if operation is Operation.ALL_GATHER and size > 0:
                size *= len(group.ranks)
            stream = self._stream(node, group)
            if len(group.here) < len(group.ranks) and duration == UNPRICED:
                raise self._error(
                    node, f"group {group.name!r} has ranks that are not here, and no time"
                )
            row = self.rows.collective(
                operation,
                self._slot(group),
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

    def _collective(self, node: GraphNode) -> tuple[Operation, ChakraGroup]:
        kind = self._whole(node, "comm_type", -1)
        if kind not in list(CollectiveType):
            raise self._error(
                node,
                f"comm_type is {'missing' if kind < 0 else kind}; it must be from 0 "
                f"({CollectiveType(0).name}) to {max(CollectiveType)} ({CollectiveType(9).name})",
            )
        name = str(node.attributes.get("pg_name", ""))
        group = self.job.groups.find(self.groups, name)
        if group is None:
            known = ", ".join(map(repr, list(self.groups)[:8])) or "none"
            raise self._error(
                node,
                f"process group {name!r} is unknown (known: {known}); add its ranks, "
                f'as {{"{name}": [0, 1]}} in a .json file beside the traces',
            )
        if self.rank not in group:
            raise self._error(node, f"rank {self.rank} is not in process group {name!r}")
        return _OPERATION[CollectiveType(kind)], group

    def _pair(
        self, node: GraphNode, size: int, duration: int, before: Sequence[int]
    ) -> tuple[int, int]:
        """Append one half of a message; one whose other half is in no file is kept as recorded."""
        sends = node.type is NodeType.COMM_SEND_NODE
        kind = Kind.SEND if sends else Kind.RECV
        source = self._whole(node, "comm_src", self.rank if sends else -1)
        target = self._whole(node, "comm_dst", -1 if sends else self.rank)
        pair = Pair(source, target, self._whole(node, "comm_tag", 0))
        own, other = (source, target) if sends else (target, source)
        if own != self.rank or other < 0 or other == own:
            raise self._error(
                node, f"rank {self.rank} has a {kind.name} from rank {source} to rank {target}"
            )
        stream = self._stream(node, pair)
        waits = self._latest(before, stream)
        if other in self.job.index:
            return self.rows.point_to_point(
                kind, self._slot(pair), stream, size, duration=duration, name=node.name, waits=waits
            ), stream
        if duration == UNPRICED:
            raise self._error(node, f"its partner, rank {other}, is not here, and no time")
        return self.rows.collective(
            Operation.UNKNOWN,
            self._slot(pair),
            stream,
            size,
            duration=duration,
            name=node.name,
            waits=waits,
        ), stream

    def _slot(self, reference: Reference) -> int:
        return self.slots.setdefault(reference, len(self.slots))

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
        if not is_whole(value):
            raise self._error(node, f"{name} is {value!r}; it must be a whole number, 0 or more")
        return int(value)

    def _error(self, node: GraphNode, text: str) -> InputError:
        return InputError(f"{self.path}: node {node.place} ({node.name!r}): {text}")


def _with_wire_times(
    tables: Sequence[Table], of_rank: Sequence[int], slots: Sequence[Sequence[int]]
) -> tuple[list[Table], list[int]]:
    """Give all members of a communication the shortest of their recorded durations.

    What the others recorded beyond it they spent waiting for the last to come. Returns the tables
    that there are then, and which of them each rank has.
    """
    users: dict[int, dict[tuple[int, int], list[int]]] = {}  # ranks, by table and slot
    for rank, own in enumerate(slots):
        for slot, communicator in enumerate(own):
            of_table = users.setdefault(communicator, {})
            of_table.setdefault((of_rank[rank], slot), []).append(rank)
    changes: list[list[tuple[int, bytes]]] = [[] for _ in slots]
    for of_table in users.values():
        rows = [tables[number].rows_on(slot) for number, slot in of_table]
        shared = min(map(len, rows))  # the engine refuses ranks that communicate unequally often
        least = np.full(shared, np.iinfo(np.int64).max)
        recorded = [
            tables[number].duration[mine[:shared]] for (number, _), mine in zip(of_table, rows)
        ]
        for found in recorded:
            least = np.minimum(least, np.where(found == UNPRICED, least, found))
        least[least == np.iinfo(np.int64).max] = UNPRICED
        for (_, slot), ranks, found in zip(of_table, of_table.values(), recorded):
            if (found != least).any():
                for rank in ranks:
                    changes[rank].append((slot, least.tobytes()))
    made: dict[tuple[int, tuple[tuple[int, bytes], ...]], int] = {}
    kept: list[Table] = []
    numbers = []
    for number, changed in zip(of_rank, changes):
        key = number, tuple(changed)
        if key not in made:
            made[key] = len(kept)
            table = tables[number]
            duration = table.duration.copy()
            for slot, shortest in changed:
                found = np.frombuffer(shortest, np.int64)
                duration[table.rows_on(slot)[: len(found)]] = found
            kept.append(table.replace(duration=duration) if changed else table)
        numbers.append(made[key])
    return kept, numbers
