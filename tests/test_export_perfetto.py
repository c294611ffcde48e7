"""Runs exported as Perfetto traces: the schema, and what a reader makes of the packets."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from exported import DENSE, PIPELINE, exported_run, saved_run

from mpisim.export.perfetto_schema import (
    FIELDS,
    ChildOrdering,
    CounterUnit,
    EventType,
    SequenceFlags,
    trace,
)

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.two_processes

PS_PER_NS = 1_000


class Slice(NamedTuple):
    """A slice as read: times in ns."""

    track: int
    name: str
    category: str
    begin: int
    end: int
    args: dict[str, Any]
    flows: list[int]
    ended_flows: list[int]
    depth: int


class Read(NamedTuple):
    """A trace as read."""

    tracks: dict[int, Any]
    slices: list[Slice]
    counters: dict[int, list[tuple[int, float]]]

    def process(self, uuid: int) -> str:
        """The process of a track."""
        return str(self.tracks[self.tracks[uuid].parent_uuid].process.process_name)


INTERNED = {
    "event_names": "name",
    "event_categories": "name",
    "debug_annotation_names": "name",
    "debug_annotation_string_values": "str",
}


def read(path: Path) -> Read:
    """Read a trace by the rules of trace_processor, and refuse what it would drop."""
    raw = path.read_bytes()
    made = trace().FromString(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    names: dict[int, dict[tuple[str, int], Any]] = {}
    found = Read({}, [], {})
    open_slices: dict[int, list[tuple[Any, int, str, str, dict[str, Any]]]] = {}
    last: dict[int, int] = {}
    for packet in made.packet:
        sequence = packet.trusted_packet_sequence_id
        if packet.sequence_flags & SequenceFlags.INCREMENTAL_STATE_CLEARED:
            names[sequence] = {}
        known = names[sequence]
        for kind, field in INTERNED.items():
            for each in getattr(packet.interned_data, kind):
                known[kind, each.iid] = getattr(each, field)
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in found.tracks
            assert not track.parent_uuid or track.parent_uuid in found.tracks
            found.tracks[track.uuid] = track
            continue
        event, at = packet.track_event, packet.timestamp
        uuid = event.track_uuid
        assert uuid in found.tracks
        assert at >= last.get(uuid, 0)
        last[uuid] = at
        if event.type == EventType.COUNTER:
            found.counters.setdefault(uuid, []).append((at, event.double_counter_value))
        elif event.type == EventType.SLICE_BEGIN:
            args = {
                known["debug_annotation_names", each.name_iid]: (
                    known["debug_annotation_string_values", each.string_value_iid].decode()
                    if each.HasField("string_value_iid")
                    else each.int_value
                    if each.HasField("int_value")
                    else each.double_value
                )
                for each in event.debug_annotations
            }
            name = known["event_names", event.name_iid]
            (category,) = (known["event_categories", iid] for iid in event.category_iids)
            open_slices.setdefault(uuid, []).append((event, at, name, category, args))
        else:
            assert event.type == EventType.SLICE_END
            begun, begin, name, category, args = open_slices[uuid].pop()
            found.slices.append(
                Slice(
                    uuid,
                    name,
                    category,
                    begin,
                    at,
                    args,
                    list(begun.flow_ids),
                    list(begun.terminating_flow_ids),
                    len(open_slices[uuid]),
                )
            )
    assert not any(open_slices.values())
    return found


def published() -> Iterator[tuple[str, Any]]:
    """Messages of Perfetto's own package."""
    pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    for name in FIELDS:
        yield name, getattr(pb2, name).DESCRIPTOR


def test_the_schema_is_the_published_one() -> None:
    for name, message in published():
        for field, number, type_ in FIELDS[name]:
            theirs = message.fields_by_name[field]
            assert theirs.number == number
            scalar = type_.rstrip("*")
            if theirs.message_type is not None:
                assert theirs.message_type.name == scalar
            elif scalar == "enum":
                assert theirs.enum_type is not None
            else:
                assert theirs.type == getattr(theirs, f"TYPE_{scalar.upper()}")
    messages = dict(published())
    for enum, message, name in (
        (EventType, "TrackEvent", "Type"),
        (CounterUnit, "CounterDescriptor", "Unit"),
        (ChildOrdering, "TrackDescriptor", "ChildTracksOrdering"),
        (SequenceFlags, "TracePacket", "SequenceFlags"),
    ):
        theirs = messages[message].enum_types_by_name[name].values_by_number
        for value in enum:
            assert theirs[value.value].name.endswith(value.name)


def test_a_whole_pipeline(comm: Intracomm, tmp_path: Path) -> None:
    saved = saved_run(comm, tmp_path / "run.h5", *PIPELINE)
    again = exported_run(comm, saved, "perfetto", tmp_path / "run.pftrace")
    found = read(tmp_path / "run.pftrace")
    processes = [t for t in found.tracks.values() if t.HasField("process")]
    names = [track.process.process_name for track in processes]
    assert names == ["critical path", "links", *(f"rank {rank}" for rank in range(8))]
    assert len({track.process.pid for track in processes}) == len(processes)
    assert [list(t.process.process_labels) for t in processes[2:4]] == [
        ["training step, stage 0"],
        ["training step, stage 0"],
    ]
    for rank in range(8):
        i = again.run.hosted.tolist().index(rank)
        table, rows = again.run.program.table_of(rank), again.run.rows(i)
        mine = [s for s in found.slices if found.process(s.track) == f"rank {rank}"]
        kernels = {s.args["Row"]: s for s in mine if s.category in ("kernel", "gpu_memcpy")}
        device = np.flatnonzero(table.is_device & ((table.flags & 1) == 0))
        assert sorted(kernels) == device.tolist()
        for row, each in kernels.items():
            assert each.begin == rows.begin[row] // PS_PER_NS
            assert found.tracks[each.track].name == f"stream {7 + 4 * table.stream[row]}"
        passes = [s.name for s in mine if s.category == "pass" and "micro-batch" in s.name]
        assert sorted(passes) == sorted(
            f"{phase} of micro-batch {i}" for i in range(8) for phase in ("forward", "backward")
        )
        layers = {s.name for s in mine if s.category == "layer"}
        assert layers == {f"layer {2 * (rank // 2) + i}" for i in (0, 1)}
        assert all(s.depth == 1 for s in mine if s.category == "layer")
        waited = device[table.is_communication[device] & (rows.wire > rows.begin)[device]]
        wires = [s for s in mine if s.category == "wire"]
        assert len(wires) == len(waited) > 0
        assert all(s.depth == 1 for s in wires)


def test_arrows(comm: Intracomm, tmp_path: Path) -> None:
    """Each leads from one slice to a later one; from every launch to its operation."""
    saved = saved_run(comm, tmp_path / "run.h5", *PIPELINE)
    again = exported_run(comm, saved, "perfetto", tmp_path / "run.pftrace.gz")
    found = read(tmp_path / "run.pftrace.gz")
    begins = {flow: each for each in found.slices for flow in each.flows}
    ends = {flow: each for each in found.slices for flow in each.ended_flows}
    assert begins.keys() == ends.keys()
    for flow, source in begins.items():
        assert source.begin <= ends[flow].begin
    launches = [s for s in found.slices if s.category == "cuda_runtime" and "Launch" in s.name]
    assert all(s.flows for s in launches)
    on_path = [flow for flow in begins if flow >= 1 << 62]
    path = again.kept.critical_path
    assert path is not None
    assert len(on_path) > 100
    ranks = [(found.process(begins[f].track), found.process(ends[f].track)) for f in on_path]
    assert sum(one != other for one, other in ranks) >= 3  # a step goes over all stages

    chain = [s for s in found.slices if found.process(s.track) == "critical path"]
    assert len(chain) == len(path.kind)
    assert chain[-1].end == again.run.step_time // PS_PER_NS
    assert [s.begin for s in chain[1:]] == [s.end for s in chain[:-1]]


def test_counters(comm: Intracomm, tmp_path: Path) -> None:
    saved = saved_run(comm, tmp_path / "run.h5", *PIPELINE)
    again = exported_run(comm, saved, "perfetto", tmp_path / "run.pftrace", None)
    found = read(tmp_path / "run.pftrace")
    assert again.prepared is not None
    memory = {
        found.process(uuid): max(value for _, value in points)
        for uuid, points in found.counters.items()
        if found.tracks[uuid].name == "GPU memory"
    }
    stages = again.prepared.memory.stages
    assert memory == {f"rank {2 * stage}": stages[stage].total for stage in range(4)}
    links = [uuid for uuid in found.counters if found.process(uuid) == "links"]
    assert [found.tracks[uuid].name.split(" ")[0] for uuid in links] == again.kept.links.links[
        "name"
    ].tolist()[: len(links)]
    for uuid in links:
        values = [value for _, value in found.counters[uuid]]
        assert 0 < max(values) <= 100.001


def test_a_run_without_shared_links(comm: Intracomm, tmp_path: Path) -> None:
    saved = saved_run(comm, tmp_path / "run.h5", *DENSE, "network.model=alpha-beta")
    exported_run(comm, saved, "perfetto", tmp_path / "run.pftrace", "3")
    found = read(tmp_path / "run.pftrace")
    names = [t.process.process_name for t in found.tracks.values() if t.HasField("process")]
    assert names == ["critical path", "rank 3"]
    reduced = [s.args for s in found.slices if s.args.get("Collective name")]
    assert reduced
    assert not any("Algorithm" in args or "Links" in args for args in reduced)


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["run.pftrace", "run.csv.gz"])
def test_files_are_the_same_on_any_number_of_processes(
    comm: Intracomm, shared_folder: Path, name: str
) -> None:
    from mpi4py import MPI

    format_ = "csv" if "csv" in name else "perfetto"
    saved = saved_run(comm, shared_folder / "run.h5", *PIPELINE)
    exported_run(comm, saved, format_, shared_folder / name, "0,3-5")
    if comm.rank == 0:
        alone = shared_folder / f"alone_{name}"
        exported_run(MPI.COMM_SELF, saved, format_, alone, "0,3-5")
        assert alone.read_bytes() == (shared_folder / name).read_bytes()
    comm.barrier()
