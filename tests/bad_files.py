"""Good traces and programs, small, ways to spoil them, and a disk that is full."""

from __future__ import annotations

import gzip
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from mpisim.program import Operation, ProgramBuilder
from mpisim.program.store import save


def kineto(rank: int | None = 0, world: int = 2, **info: Any) -> dict[str, Any]:
    """One rank's trace: a kernel, then an all-reduce on a stream of its own."""
    events = []

    def launch(number: int, at: float, kernel: str, stream: int, length: float) -> None:
        events.append(trace_event("cuda_runtime", "cudaLaunchKernel", at, 3.0, correlation=number))
        events.append(
            trace_event("kernel", kernel, at + 10, length, correlation=number, stream=stream)
        )

    events.append(trace_event("cpu_op", "aten::mm", 1000.0, 8.0))
    launch(1, 1002.0, "gemm", 7, 9.5)
    launch(2, 1010.0, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 13, 30.0)
    events.append(trace_event("cuda_runtime", "cudaDeviceSynchronize", 1020.0, 41.0, correlation=3))
    about = {"backend": "nccl", "rank": rank, "world_size": world} | info
    about = {key: value for key, value in about.items() if value is not None}
    return {"distributedInfo": about, "traceEvents": events}


def trace_event(category: str, name: str, ts: float, dur: float, **args: int) -> dict[str, Any]:
    """One complete event of a Kineto trace; times in us."""
    event: dict[str, Any] = {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur}
    return event | {"pid": 1, "tid": 1, "args": args}


def changed(event: int, **values: Any) -> dict[str, Any]:
    """Rank 0 of a job of one, with one event changed; a value of None takes the key away."""
    trace = kineto(0, 1)
    trace["traceEvents"][event].update(values)
    for key in [key for key, value in values.items() if value is None]:
        del trace["traceEvents"][event][key]
    return trace


def write(path: Path, content: Any) -> Path:
    """Write text or bytes as they are, anything else as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def job(folder: Path, *ranks: Any) -> Path:
    """Write a folder with one file a rank."""
    for rank, content in enumerate(ranks):
        write(folder / f"rank{rank}.json", content)
    return folder


def program(path: Path, *ranks: list[tuple[int, Operation, int]]) -> Path:
    """Write a program: each rank's collectives, as (communicator, operation, bytes).

    There are two communicators of all ranks.
    """
    builder = ProgramBuilder()
    everyone = list(range(len(ranks)))
    both = [builder.communicator(everyone, name) for name in ("tensor", "data")]
    for own in ranks:
        rows = builder.table(f"table of rank {len(builder._ranks)}")
        rows.kernel("gemm", 0, 1000)
        for slot, operation, size in own:
            rows.collective(operation, slot, 0, size, duration=500)
        builder.add_rank(builder.add_table(rows.build()), both)
    save(builder.build(), path)
    return path


AG, AR = Operation.ALL_GATHER, Operation.ALL_REDUCE
GOOD = [(0, AR, 8), (1, AR, 8)]


def spoiled(path: Path, dataset: str, at: int, value: int) -> Path:
    """Write a good program file and change one number in it."""
    program(path, GOOD, GOOD)
    with h5py.File(path, "r+") as file:
        file[dataset][at] = value
    return path


def file_of(trace: Any) -> bytes:
    return gzip.compress(json.dumps(trace).encode())


def whole_job(folder: Path) -> None:
    job(folder / "job", kineto(0), kineto(1))


def blocked(folder: Path) -> None:
    """A good job, and a file and a folder where outputs would go."""
    whole_job(folder)
    write(folder / "there.h5", "precious")
    (folder / "folder").mkdir()


def listing(folder: Path) -> dict[str, int]:
    """Everything below a folder, with sizes."""
    return {str(path): path.lstat().st_size for path in folder.rglob("*")}


@contextmanager
def files_limited(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
