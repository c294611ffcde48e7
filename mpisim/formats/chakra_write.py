"""Program → Chakra execution traces, one a rank, for ASTRA-sim and other tools."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import DestinationError, UsageError
from ..base.files import hidden_name, os_errors_reported
from ..base.quantity import PS_PER_US
from ..program import UNPRICED, Flag, Kind, Operation, Program
from .chakra_schema import (
    COLUMNS,
    COMM_TYPE,
    PREFIX,
    VERSION,
    NodeType,
    add,
    messages,
    write_delimited,
)

__all__ = ["check_folder", "write_chakra"]

SCHEMA = "0.0.4"
_OURS = re.compile(r".+\.\d+\.et|.+\.json")


def write_chakra(
    program: Program, folder: str | Path, name: str = "program", *, overwrite: bool = False
) -> list[Path]:
    """Write ``NAME.<rank>.et`` for every rank and ``NAME.json`` with the communicators. Local.

    ASTRA-sim reads them with ``--workload-configuration=FOLDER/NAME`` and
    ``--comm-group-configuration=FOLDER/NAME.json``. Times are whole µs there: a kernel's is rounded
    up; CPU time is rounded up as a running total, so that many small launches do not add up to much
    more than they take. Launch latencies and gaps on the device are in the attributes alone.
    Communicator ``c`` is the process group ``c + 1`` (to ASTRA-sim, 0 is the whole world). An
    all-gather's size is that of one member's share there. A communication of unknown kind becomes a
    compute node of its recorded duration.

    Parameters
    ----------
    program : Program
        Whole. Tables that no rank executes are left out.
    folder : str or Path
        Created; its parent must exist.
    name : str
    overwrite : bool
        Whether a folder that holds such files already may be replaced.

    Returns
    -------
    list of Path
        The files, the groups last.

    Raises
    ------
    OutputError
        If the folder exists, or cannot be written; it then is as it was before.
    UsageError
        If the program is partial, or the name is none for a file.
    """
    if program.is_partial:
        raise UsageError(f"{folder}: a program whose tables are spread over processes is not saved")
    if not name or name != os.path.basename(name):
        raise UsageError(f"{name!r} is no name for files")
    with _staged_folder(Path(folder), overwrite) as stage:
        for rank in range(program.n_ranks):
            with open(stage / f"{name}.{rank}.et", "wb") as file:
                write_delimited(file, _rank_messages(program, rank))
        _write_groups(program, stage / f"{name}.json")
    ranks = [Path(folder) / f"{name}.{rank}.et" for rank in range(program.n_ranks)]
    return [*ranks, Path(folder) / f"{name}.json"]


@contextlib.contextmanager
def _staged_folder(folder: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a new folder that gets its name when the block ends without an error."""
    target = check_folder(folder, overwrite=overwrite)
    with os_errors_reported(folder):
        stage, aside = hidden_name(target), hidden_name(target)
        stage.mkdir()
        try:
            yield stage
            if overwrite and target.exists():
                os.rename(target, aside)
            os.rename(stage, target)  # fails if another program has filled it by now
        except BaseException:
            shutil.rmtree(stage, ignore_errors=True)
            if aside.exists() and not target.exists():
                os.rename(aside, target)
            raise
        shutil.rmtree(aside, ignore_errors=True)


def check_folder(folder: str | Path, *, overwrite: bool = False) -> Path:
    """Check that traces can be written as a folder, and return what its name leads to. Local.

    Parameters
    ----------
    folder : str or Path
        Its parent must exist.
    overwrite : bool
        Whether a folder that holds such files already may be replaced.

    Raises
    ------
    OutputError
        If it cannot be made, holds other files, or such files that are not to be replaced.
    """
    folder = Path(folder)
    with os_errors_reported(folder):
        target = Path(os.path.realpath(folder))
        if target.exists():
            _check_replaceable(folder, target, overwrite)
        elif not target.parent.is_dir():
            raise DestinationError(f"{folder}: there is no folder {target.parent}")
    return target


def _check_replaceable(folder: Path, target: Path, overwrite: bool) -> None:
    """Refuse to replace what was not asked to be replaced, or is not such a folder."""
    if not target.is_dir():
        raise DestinationError(f"{folder}: is not a folder; name another for the exported traces")
    inside = sorted(target.iterdir())
    if inside and not overwrite:
        raise DestinationError(
            f"{folder}: holds {inside[0].name} already; name another folder or empty it"
        )
    foreign = [path for path in inside if not (_OURS.fullmatch(path.name) and path.is_file())]
    if foreign:
        raise DestinationError(
            f"{folder}: holds {foreign[0].name}, which is no Chakra file; name another folder"
        )


def _write_groups(program: Program, path: Path) -> None:
    import orjson

    groups = program.communicators
    data = {str(c + 1): list(groups.group(c)) for c in range(len(groups))}
    path.write_bytes(orjson.dumps(data, option=orjson.OPT_APPEND_NEWLINE))


# --- one rank -----------------------------------------------------------------------------------


def _rank_messages(program: Program, rank: int) -> Iterator[Any]:
    """Yield the messages of one rank's file."""
    yield _metadata(program, rank)
    yield from _RankWriter(program, rank).nodes()


def _metadata(program: Program, rank: int) -> Any:
    """Return what is known of the rank; the first rank's file also has what is known of all."""
    used = sorted(set(program.table.tolist()))
    number = int(program.table[rank])
    table = program.table_of(rank)
    metadata = messages().GlobalMetadata(version=SCHEMA)
    facts: list[tuple[str, str, Any]] = [
        ("version", "int64_val", VERSION),
        ("rank", "int64_val", rank),
        ("n_ranks", "int64_val", program.n_ranks),
        ("table", "int64_val", used.index(number)),
        ("label", "string_val", _text(table.label)),
        ("queue_depth", "int64_val", table.queue_depth),
        ("rows", "int64_val", len(table)),
        ("slots", "int64_list", program.slots_of(rank).tolist()),
        ("speed", "double_val", float(program.speed[rank])),
        ("start", "int64_val", int(program.start[rank])),
    ]
    if rank == 0:
        groups = program.communicators
        facts += [
            ("names", "string_list", map(_text, program.names)),
            ("communicators", "string_list", map(_text, groups.names)),
            ("communicator_index", "int64_list", groups.index.tolist()),
            ("communicator_members", "int64_list", groups.members.tolist()),
            ("attribute_keys", "string_list", map(_text, program.attributes.keys())),
            ("attribute_values", "string_list", map(_text, program.attributes.values())),
        ]
    for name, kind, value in facts:
        add(metadata, PREFIX + name, kind, value)
    return metadata


def _text(text: str) -> str:
    """Return a text that can be encoded; what is no valid unicode becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


class _RankWriter:
    """The nodes of one rank in the order of its rows.

    A row is a node. It depends on the node before it on its stream and on those it waits for; and
    on the CPU, which is a chain of nodes of its own: CPU work, waits, and between them the time
    that launches take.
    """

    def __init__(self, program: Program, rank: int) -> None:
        self.program, self.rank = program, rank
        self.table = program.table_of(rank)
        self.speed = float(program.speed[rank])
        self.columns = {c: getattr(self.table, c).tolist() for c in (*COLUMNS, "stream", "name")}
        # A batch of sends and receives is one kernel: each of it follows what is before the batch.
        joined = (self.table.flags & Flag.JOINED) != 0
        self.batch = np.cumsum(~joined).tolist()
        self.of_batch: dict[int, list[int]] = {}
        self.on_stream: dict[int, int] = {}  # last batch
        self.before: dict[int, int] = {}  # batch on the stream before this one
        self.cpu = 0  # last node
        self.cpu_time = int(program.start[rank])  # ps so far, and the µs written for them
        self.cpu_written = 0
        self.last = 0
        first: dict[str, int] = {}
        for i, text in enumerate(program.names):
            first.setdefault(_text(text), i)
        self.first_name = first
        self.members = [program.communicators.group(c) for c in program.slots_of(rank).tolist()]

    def nodes(self) -> Iterator[Any]:
        """Yield the nodes."""
        index, waits = self.table.wait_index.tolist(), self.table.wait_row.tolist()
        for row, kind in enumerate(self.columns["kind"]):
            awaited = waits[index[row] : index[row + 1]]
            self.cpu_time += self.columns["host"][row]
            if kind == Kind.HOST:
                yield self._row(row, self._cpu_node("", NodeType.COMP_NODE), awaited)
                continue
            if self._unwritten() > 0:
                # Nothing of the row's own: the CPU's time between two calls.
                yield self._cpu_node("cpu", NodeType.COMP_NODE)
            self.cpu_time += self.columns["launch_cost"][row]
            if kind == Kind.HOST_WAIT:
                node = self._cpu_node("", NodeType.COMP_NODE)
            else:
                node = self._device_node(row)
            yield self._row(row, node, awaited)

    def _unwritten(self) -> int:
        return -(-self.cpu_time // PS_PER_US) - self.cpu_written

    def _new(self, type_: NodeType) -> Any:
        self.last += 1
        node = messages().Node(id=self.last, type=int(type_))
        if self.cpu:
            node.ctrl_deps.append(self.cpu)
        return node

    def _cpu_node(self, name: str, type_: NodeType) -> Any:
        """Return a node of the CPU's chain, with the time not yet written."""
        node = self._new(type_)
        node.name = name
        node.duration_micros = self._unwritten()
        self.cpu_written += self._unwritten()
        if self.cpu:
            node.data_deps.append(self.cpu)
        add(node, "is_cpu_op", "bool_val", True)
        self.cpu = node.id
        return node

    def _device_node(self, row: int) -> Any:
        columns, kind = self.columns, Kind(self.columns["kind"][row])
        node = self._new(self._type(row))
        if self.cpu:
            node.data_deps.append(self.cpu)
        node.duration_micros = self._micros(columns["duration"][row], kind)
        add(node, "is_cpu_op", "bool_val", False)
        add(node, "stream", "int64_val", columns["stream"][row])
        batch, stream = self.batch[row], columns["stream"][row]
        if self.on_stream.get(stream) != batch:
            self.before[batch] = self.on_stream.get(stream, 0)
            self.on_stream[stream] = batch
        node.data_deps.extend(self.of_batch.get(self.before[batch], ()))
        self.of_batch.setdefault(batch, []).append(node.id)
        if kind.is_communication:
            self._communication(node, row, kind)
        return node

    def _type(self, row: int) -> NodeType:
        kind = Kind(self.columns["kind"][row])
        if kind is Kind.SEND:
            return NodeType.COMM_SEND_NODE
        if kind is Kind.RECV:
            return NodeType.COMM_RECV_NODE
        if kind is Kind.COLLECTIVE and self.columns["operation"][row] != Operation.UNKNOWN:
            return NodeType.COMM_COLL_NODE
        return NodeType.COMP_NODE

    def _micros(self, duration: int, kind: Kind) -> int:
        if duration == UNPRICED:
            return 0
        if kind in (Kind.KERNEL, Kind.COPY) and self.speed != 1.0:
            duration = round(duration / self.speed)
        return -(-duration // PS_PER_US)

    def _communication(self, node: Any, row: int, kind: Kind) -> None:
        """Add what other tools need to know of a communication."""
        slot = self.columns["slot"][row]
        number, members = int(self.program.slots_of(self.rank)[slot]), self.members[slot]
        operation = Operation(self.columns["operation"][row])
        size = max(self.columns["bytes"][row], 0)
        if operation is Operation.ALL_GATHER:
            size //= len(members)
        add(node, "comm_size", "int64_val", size)
        if kind is Kind.COLLECTIVE:
            add(node, "pg_name", "string_val", str(number + 1))
            if operation in COMM_TYPE:
                add(node, "comm_type", "int64_val", int(COMM_TYPE[operation]))
        else:
            add(node, "comm_src", "int32_val", members[0])
            add(node, "comm_dst", "int32_val", members[1])
            add(node, "comm_tag", "int32_val", number)

    def _row(self, row: int, node: Any, awaited: list[int]) -> Any:
        """Complete the node of a row: its name, what it waits for, and all its columns."""
        number = self.columns["name"][row]
        text = _text(self.program.names[number])
        node.name = text
        known = set(node.data_deps)
        for each in awaited:
            for other in self.of_batch[self.batch[each]]:
                if other not in known:
                    known.add(other)
                    node.data_deps.append(other)
        for column, default in COLUMNS.items():
            value = self.columns[column][row]
            if value != default:
                add(node, PREFIX + column, "int64_val", value)
        if self.first_name[text] != number:  # two names of one text
            add(node, f"{PREFIX}name", "int64_val", number)
        if awaited:
            add(node, f"{PREFIX}waits", "int64_list", awaited)
        return node
