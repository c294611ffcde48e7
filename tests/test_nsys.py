"""Nsight Systems exports: read like Kineto traces, a rank for every process."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from mpisim.base.errors import TraceError
from mpisim.program import Kind, Operation
from mpisim.replay import read_job, replay
from mpisim.traces import find_sources
from mpisim.traces.nsys import nsys_processes, read_nsys

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
TABLES = {
    "META_DATA_EXPORT": "name, value",
    "StringIds": "id, value",
    KERNEL: "start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName, "
    "gridX, gridY, gridZ",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start, end, deviceId, contextId, greenContextId, streamId, "
    "correlationId, globalPid, graphId, graphExecId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start, end, deviceId, contextId, streamId, correlationId, "
    "globalPid, bytes, copyKind, srcKind, dstKind",
    RUNTIME: "start, end, globalTid, correlationId, nameId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start, end, deviceId, contextId, streamId, "
    "correlationId, globalPid, syncType, eventId, eventSyncId",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "deviceId, contextId, streamId, correlationId, globalPid, "
    "eventId, eventSyncId",
    "NVTX_EVENTS": "start, end, eventType, text, textId, globalTid",
    "TARGET_INFO_GPU": "id, name, smCount",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs",
}


class Writer:
    """Writes an export row by row, as nsys does: tables only if they have rows."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple[Any, ...]]] = {}
        self.texts: dict[str, int] = {}
        self.add("META_DATA_EXPORT", "EXPORT_SCHEMA_VERSION", "3.25.0")
        self.correlation = 0

    def add(self, table: str, *values: Any) -> None:
        self.rows.setdefault(table, []).append(values)

    def text(self, value: str) -> int:
        return self.texts.setdefault(value, len(self.texts) + 1)

    def call(self, process: int, name: str, start: int, end: int, thread: int = 1) -> int:
        self.correlation += 1
        row = (start, end, process << 24 | thread, self.correlation, self.text(name))
        self.add(RUNTIME, *row)
        return self.correlation

    def kernel(
        self,
        process: int,
        name: str,
        start: int,
        end: int,
        *,
        stream: int = 7,
        launch: int = 0,
        correlation: int = 0,
    ) -> None:
        """Add a kernel, with its launch just before `launch` or its start."""
        begin = launch or start - 10_000
        number = correlation or self.call(process, "cudaLaunchKernel_v7000", begin, begin + 5_000)
        self.add(
            KERNEL,
            start,
            end,
            process,
            process,
            stream,
            number,
            process << 24,
            self.text(name),
            132,
            2,
            1,
        )

    def write(self, path: Path, without: Iterable[str] = ()) -> Path:
        rows = self.rows | {"StringIds": [(i, text) for text, i in self.texts.items()]}
        with sqlite3.connect(path) as connection:
            for table, columns in TABLES.items():
                if table in rows and table not in without:
                    connection.execute(f"CREATE TABLE {table} ({columns})")
                    marks = ", ".join("?" * len(columns.split(",")))
                    connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows[table])
        connection.close()
        return path


US = 1000


def two_ranks() -> Writer:
    """Two processes; each computes, then both reduce. Times in ns."""
    export = Writer()
    for process in (2, 1):
        late = 50 * US * process
        export.kernel(process, "gemm", 100 * US, 200 * US + late)
        export.kernel(
            process,
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)",
            210 * US + late,
            400 * US,
            stream=9,
        )
        export.kernel(process, "gelu", 420 * US, 500 * US)
    return export


def test_every_process_is_a_rank(tmp_path: Path) -> None:
    path = two_ranks().write(tmp_path / "run.sqlite")
    assert nsys_processes(path) == [1, 2]  # by GPU
    sources = find_sources([tmp_path])
    assert [(s.rank, s.process, s.path.name) for s in sources] == [
        (0, 1, "run.sqlite"),
        (1, 2, "run.sqlite"),
    ]


def test_ranks_of_several_exports(tmp_path: Path) -> None:
    for name in ("a", "b"):
        two_ranks().write(tmp_path / f"{name}.sqlite")
    assert [s.rank for s in find_sources([tmp_path])] == [0, 1, 2, 3]
    alone = tmp_path / "alone"
    alone.mkdir()
    for rank in (1, 0):
        export = Writer()
        export.kernel(1, "gemm", 100 * US, 200 * US)
        export.write(alone / f"run_rank{rank}.sqlite")
    assert [(s.rank, s.path.name[:9]) for s in find_sources([alone])] == [
        (0, "run_rank0"),
        (1, "run_rank1"),
    ]


def test_the_replay_is_the_recording(tmp_path: Path) -> None:
    job = read_job([two_ranks().write(tmp_path / "run.sqlite")], MPI.COMM_SELF)
    done = replay(job, MPI.COMM_SELF)
    for step in done.steps:
        assert step.replayed == pytest.approx(step.measured, rel=1e-3)
    table = job.program.table_of(0)
    reduce = int(np.flatnonzero(table.kind == Kind.COLLECTIVE)[0])
    assert table.operation[reduce] == Operation.ALL_REDUCE
    # Rank 1 came last, at 310 µs: the wire took the rest.
    assert table.duration[reduce] == 90 * 10**6


def test_graphs_that_were_recorded_whole(tmp_path: Path) -> None:
    """As nsys records them by default: no row of a kernel, one row for each launch."""
    export = Writer()
    export.kernel(1, "gemm", 100 * US, 200 * US)
    for start in (210 * US, 510 * US):
        number = export.call(1, "cudaGraphLaunch_v10000", start - 10 * US, start - 5 * US)
        times = (start, start + 250 * US)
        export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", *times, 1, 1, None, 7, number, 1 << 24, 4, 9)
    path = export.write(tmp_path / "run.sqlite")
    trace = read_nsys(path, 1)
    assert trace.device.name == ["gemm", "CUDA graph 4", "CUDA graph 4"]
    assert "2 launches of CUDA graphs recorded whole" in trace.warnings[0]
    done = replay(read_job([path], MPI.COMM_SELF), MPI.COMM_SELF)
    (step,) = done.steps
    assert step.measured == pytest.approx(660e-6)
    assert step.replayed == pytest.approx(660e-6, rel=1e-3)


def test_compressed_exports(tmp_path: Path) -> None:
    path = two_ranks().write(tmp_path / "run.sqlite")
    packed = tmp_path / "packed" / "run.sqlite.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(path.read_bytes()))
    plain, zipped = (read_nsys(p, 1) for p in (path, packed))
    assert plain.device.name == zipped.device.name
    assert np.array_equal(plain.device.begin, zipped.device.begin)
    assert [p.name for p in packed.parent.iterdir()] == ["run.sqlite.gz"]


def test_names_as_kineto_has_them(tmp_path: Path) -> None:
    export = two_ranks()
    number = export.call(1, "cudaMemcpyAsync_v3020", 600 * US, 605 * US)
    export.add(
        "CUPTI_ACTIVITY_KIND_MEMCPY", 610 * US, 620 * US, 1, 1, 7, number, 1 << 24, 4096, 2, 2, 0
    )
    export.add("TARGET_INFO_GPU", 1, "NVIDIA H100", 132)
    export.add("TARGET_INFO_SESSION_START_TIME", 1_700_000_000_000_000_123)
    trace = read_nsys(export.write(tmp_path / "run.sqlite"), 1)
    assert "Memcpy DtoH (Device -> Pageable)" in trace.device.name
    assert set(trace.calls.name) == {"cudaLaunchKernel", "cudaMemcpyAsync"}
    assert trace.device.blocks_per_sm[0] == 2
    assert trace.device_name == "NVIDIA H100"
    gemm = trace.device.name.index("gemm")
    begin = trace.origin * 10**6 + int(trace.device.begin[gemm])
    assert begin == (1_700_000_000_000_000_123 + 100 * US) * 1000


def test_ranges_are_operators_and_steps(tmp_path: Path) -> None:
    export = two_ranks()
    push, thread = 59, 1 << 24 | 1
    for start, end, kind, text in (
        (80, 300, push, "aten::mm, seq = 4, op_id = 12, sizes = [[2, 3], [3, 4]], input_op_ids ="),
        (60, 310, push, "iteration_3"),
        (320, 490, 60, "step 4"),
        (85, 110, push, "nccl:all_reduce, op_id = 14"),
        (90, 100, push, "my range"),
        (90, 100, push, "ncclSend"),
        (90, None, push, "never ended"),
    ):
        export.add("NVTX_EVENTS", start * US, end and end * US, kind, text, None, thread)
    export.add(
        "NVTX_EVENTS", 95 * US, 98 * US, push, None, export.text("aten::to, op_id = 7"), thread
    )
    export.add("NVTX_EVENTS", 95 * US, 98 * US, push, "aten::other, op_id = 8", None, 2 << 24 | 1)
    trace = read_nsys(export.write(tmp_path / "run.sqlite"), 1)
    assert trace.operators.name == ["aten::mm", "c10d::send", "aten::to"]
    dims = trace.operators.args[0].dims  # type: ignore[union-attr]
    assert bytes(dims) == b"[[2, 3], [3, 4]]"
    assert trace.annotations.name == [
        "ProfilerStep#3",
        "nccl:all_reduce",
        "my range",
        "ProfilerStep#4",
    ]
    assert set(trace.operators.thread.tolist()) == set(trace.calls.thread.tolist())


def test_waits_that_were_recorded(tmp_path: Path) -> None:
    """Events tell which stream waits for which; without them that is left to inference."""
    for events in (True, False):
        export = Writer()
        export.kernel(1, "gemm", 100 * US, 200 * US, stream=7)
        record = export.call(1, "cudaEventRecord_v3020", 110 * US, 111 * US)
        wait = export.call(1, "cudaStreamWaitEvent_v3020", 112 * US, 113 * US)
        export.kernel(1, "copyback", 205 * US, 250 * US, stream=8, launch=115 * US)
        sync = export.call(1, "cudaStreamSynchronize_v3020", 130 * US, 260 * US)
        table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
        export.add(table, 112 * US, 113 * US, 0, 1, 8, wait, 1 << 24, 2, 5, 6)
        export.add(table, 131 * US, 259 * US, 0, 1, 8, sync, 1 << 24, 3, None, None)
        if events:
            export.add("CUPTI_ACTIVITY_KIND_CUDA_EVENT", 0, 1, 7, record, 1 << 24, 5, 6)
        trace = read_nsys(export.write(tmp_path / f"run{events}.sqlite"), 1)
        found = {s.name: (s.stream, s.source, s.record) for s in trace.syncs}
        expected = {"Stream Sync": (1, -1, -1)}
        assert found == (expected | {"Stream Wait Event": (1, 0, record)} if events else expected)


def test_clocks_of_cpu_and_gpu(tmp_path: Path) -> None:
    """A wait for a stream cannot return before its last kernel has ended: the GPU's clock leads."""
    export = Writer()
    export.kernel(1, "gemm", 100 * US, 200 * US, launch=60 * US)
    sync = export.call(1, "cudaStreamSynchronize_v3020", 70 * US, 195 * US)
    export.add(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        70 * US,
        195 * US,
        0,
        1,
        7,
        sync,
        1 << 24,
        3,
        None,
        None,
    )
    trace = read_nsys(export.write(tmp_path / "run.sqlite"), 1)
    assert trace.device.end[0] == trace.calls.end[1]
    assert trace.device.begin[0] - trace.calls.begin[0] == 35 * 10**6


# --- real exports -------------------------------------------------------------------------------


def test_a_real_export_with_communication(shared: Path) -> None:
    path = shared / "traces" / "nsys_mfu_before_2gpu" / "export.sqlite.gz"
    job = read_job([path], MPI.COMM_SELF)
    assert job.kernels == 1993 + 2017
    table = job.program.table_of(0)
    operations = table.operation[table.kind == Kind.COLLECTIVE].tolist()
    # 33 of Ulysses' all-to-alls a rank; of one, the launch is before the window.
    assert (len(operations), operations.count(Operation.ALL_TO_ALL)) == (33, 32)
    assert job.counts["kernels matched"] == 66
    done = replay(job, MPI.COMM_SELF)
    assert all(abs(step.error) < 2e-3 for step in done.steps)
    assert all(step.baseline < step.replayed for step in done.steps)
    # The CPU is blocked half of the time, and it is known by what.
    assert sum(seconds for _, seconds, _ in job.stalls) < 1e-3


def test_a_real_export_without_communication(shared: Path) -> None:
    job = read_job([shared / "traces" / "nsys_h100_2gpu_1s" / "export.sqlite.gz"], MPI.COMM_SELF)
    assert job.kernels == 2 * 1721
    assert all(abs(step.error) < 1e-3 for step in replay(job, MPI.COMM_SELF).steps)


# --- bad files ----------------------------------------------------------------------------------


def _bad(folder: Path, what: str) -> Path:
    export, path = two_ranks(), folder / "run.sqlite"
    if what == "negative":
        export.kernel(1, "odd", 900 * US, 800 * US)
    elif what == "text":
        export.kernel(1, "odd", "soon", 800 * US, launch=1)  # type: ignore[arg-type]
    elif what == "no kernels":
        return export.write(path, without=[KERNEL])
    elif what == "foreign":
        return export.write(path, without=["META_DATA_EXPORT"])
    elif what == "old":
        with sqlite3.connect(export.write(path)) as connection:
            connection.execute(f"ALTER TABLE {KERNEL} DROP COLUMN globalPid")
        connection.close()
        return path
    export.write(path)
    if what == "truncated":
        path.write_bytes(path.read_bytes()[:5000])
    elif what == "gzip":
        packed = folder / "run.sqlite.gz"
        packed.write_bytes(gzip.compress(path.read_bytes())[:-20])
        return packed
    elif what == "mixed":
        (folder / "kineto_rank0.json").write_text('{"traceEvents": []}')
    return path


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("negative", f"{KERNEL}: the row from 900000 to 800000 ns has an impossible time"),
        ("text", f"{KERNEL}: a time is 'soon'"),
        ("no kernels", "no GPU kernels in this export"),
        ("foreign", "an SQLite database, but no export of Nsight Systems"),
        ("old", f"table {KERNEL} has no column 'globalPid'; this is export schema 3.25.0"),
        ("truncated", "damaged or truncated SQLite file"),
        ("gzip", "damaged or truncated gzip file"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, what: str, says: str) -> None:
    path = _bad(tmp_path, what)
    with pytest.raises(TraceError, match=says) as caught:
        read_job([path], MPI.COMM_SELF)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_one_kind_of_trace_at_a_time(tmp_path: Path) -> None:
    path = _bad(tmp_path, "mixed")
    with pytest.raises(TraceError, match="an Nsight Systems export among Kineto traces"):
        find_sources([path, tmp_path / "kineto_rank0.json"])
