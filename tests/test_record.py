"""`mpisim.record`: what two ranks record on the CPU, and its replay with GPU work put in."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from captures import needs_torch

import mpisim
from mpisim.base.errors import UsageError
from mpisim.cli import main
from mpisim.traces.et import read_et
from mpisim.traces.kineto_file import read_kineto
from mpisim.traces.sources import find_sources

pytestmark = needs_torch

RANKS, STEPS = 2, 3
WORKER = Path(__file__).with_name("record_worker.py")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that two processes have recorded into."""
    folder = tmp_path_factory.mktemp("record") / "traces"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(folder), str(STEPS)],
            env={**os.environ, **common, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    for process in started:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    return folder


def test_every_rank_writes_its_files_and_nothing_else(recorded: Path) -> None:
    assert sorted(path.name for path in recorded.iterdir()) == sorted(
        f"{what}_rank{rank}.{suffix}"
        for rank in range(RANKS)
        for what, suffix in (("kineto", "json.gz"), ("et", "json.gz"), ("times", "json"))
    )


def test_times_are_of_the_batches_before_the_profiler(recorded: Path) -> None:
    for rank in range(RANKS):
        times = json.loads((recorded / f"times_rank{rank}.json").read_text())
        assert (times["rank"], times["world_size"], times["warmup"]) == (rank, RANKS, 2)
        assert len(times["seconds"]) == 3
        assert times["mean"] == pytest.approx(sum(times["seconds"]) / 3)
        assert min(times["seconds"]) > 0


def test_replay_finds_ranks_steps_and_shapes(recorded: Path) -> None:
    sources = find_sources([recorded])
    assert [(each.rank, each.world_size) for each in sources] == [(0, RANKS), (1, RANKS)]
    for each in sources:
        trace = read_kineto(each.path)
        steps = [name for name in trace.annotations.name if name.startswith("ProfilerStep")]
        assert len(steps) == STEPS
        assert trace.groups == {"0": (0, 1)}
        products = [
            bytes(arguments.dims)
            for name, arguments in zip(trace.operators.name, trace.operators.args, strict=True)
            if name == "aten::addmm" and arguments is not None
        ]
        assert len(products) == 3 * STEPS
        assert b"[64, 256]" in products[0]


def test_execution_traces_are_of_the_same_batches(recorded: Path) -> None:
    for rank in range(RANKS):
        et = read_et(recorded / f"et_rank{rank}.json.gz")
        assert sum(name.startswith("ProfilerStep") for name in et.name) == STEPS


def with_gpu_work(path: Path, ends: list[float]) -> list[float]:
    """Put a kernel behind every product, and one of NCCL behind every all-reduce of gloo.

    The all-reduces end at the given times, in µs, on all ranks. Returns when they may begin.
    """
    with gzip.open(path) as file:
        trace = json.load(file)
    events: list[dict[str, Any]] = trace["traceEvents"]
    begins = []
    correlation = 0
    free = 0.0
    reduces = sorted(
        (e for e in events if e["name"] == "gloo:all_reduce"), key=lambda each: each["ts"]
    )
    steps = sorted(
        (e for e in events if e["name"].startswith("ProfilerStep")), key=lambda each: each["ts"]
    )

    def launch(span: dict[str, Any], at: float) -> dict[str, Any]:
        nonlocal correlation
        correlation += 1
        arguments = {"correlation": correlation, "External id": span["args"]["External id"]}
        events.append(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "ts": at,
                "dur": 2.0,
                "pid": span["pid"],
                "tid": span["tid"],
                "args": arguments,
            }
        )
        return arguments

    def kernel(name: str, stream: int, begin: float, end: float, more: dict[str, Any]) -> None:
        arguments = {"device": 0, "stream": stream, **more}
        place = {"pid": 0, "tid": stream, "args": arguments}
        events.append(
            {"ph": "X", "cat": "kernel", "name": name, "ts": begin, "dur": end - begin, **place}
        )

    for span in sorted((e for e in events if e["name"] == "aten::addmm"), key=lambda e: e["ts"]):
        arguments = launch(span, span["ts"] + 1)
        begin = max(free, span["ts"] + 5)
        free = begin + 30
        kernel("gemm", 7, begin, free, arguments)
    for i, (step, reduce) in enumerate(zip(steps, reduces, strict=True)):
        at = step["ts"] + step["dur"] - 20
        arguments = launch({**step, "args": reduce["args"]}, at)
        begins.append(at + 10)
        if ends:
            more = {
                "Collective name": "allreduce",
                "In msg nelems": 133640,
                "dtype": "Float",
                "Out msg nelems": 133640,
                "Group size": RANKS,
                "Process Group Name": "0",
                "Process Group Ranks": "[0, 1]",
            }
            kernel(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                20,
                at + 10,
                ends[i],
                {**arguments, **more},
            )
    if ends:
        trace["deviceProperties"] = [{"id": 0, "name": "made up", "numSms": 100}]
        path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    return begins


def test_what_is_recorded_is_replayed(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(recorded)]) == 2  # there was no GPU
    assert "no GPU kernels in this trace" in capsys.readouterr().err
    for name in ("kineto_rank0.json.gz", "kineto_rank1.json.gz", "et_rank0.json.gz"):
        (tmp_path / name).write_bytes((recorded / name).read_bytes())
    files = [tmp_path / f"kineto_rank{rank}.json.gz" for rank in range(RANKS)]
    begins = [with_gpu_work(path, []) for path in files]
    ends = [max(both) + 100 for both in zip(*begins, strict=True)]
    for path in files:
        with_gpu_work(path, ends)
    figures = tmp_path / "figures.json"
    assert main(["replay", str(tmp_path), "--json", str(figures)]) == 0
    found = json.loads(figures.read_text())
    assert sorted(found["rank_steps"]) == ["0", "1"]
    assert [len(steps) for steps in found["rank_steps"].values()] == [STEPS - 1] * RANKS
    measured = (ends[-1] - ends[0]) * 1e-6 / (STEPS - 1)
    assert found["step_time"] == pytest.approx(measured, rel=0.02)


def test_a_loop_that_ends_too_early(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="ended after 4 batches of the 42 that are needed"),
        mpisim.record(tmp_path / "t") as recording,
    ):
        for _ in range(4):
            assert not recording.step()
    assert list((tmp_path / "t").iterdir()) == []


def test_an_error_in_the_loop_stays_the_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), mpisim.record(tmp_path, warmup=0, timed=1) as recording:
        recording.step()
        recording.step()
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_one_rank_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    for _ in range(2):
        with mpisim.record(
            tmp_path, warmup=0, timed=1, modules=True, execution_trace=False, overwrite=True
        ) as recording:
            while not recording.step():
                torch.nn.Linear(4, 4)(torch.zeros(4, 4))
            assert recording.step()  # does nothing
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "kineto_rank5.json.gz",
        "times_rank5.json",
    ]
    assert len(json.loads((tmp_path / "times_rank5.json").read_text())["seconds"]) == 1
    with gzip.open(tmp_path / "kineto_rank5.json.gz", "rt") as file:
        assert "nn.Module: Linear" in file.read()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": 0}, "steps is 0; it must be 1 or more"),
        ({"warmup": -1}, "warmup is -1"),
        ({"timed": 2.5}, "timed is 2.5"),
        ({}, "exists already"),
    ],
)
def test_wrong_recordings(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    (tmp_path / "kineto_rank0.json.gz").write_text("mine")
    with pytest.raises(UsageError, match=said):
        mpisim.record(tmp_path, **options)


def test_memory_needs_a_gpu(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UsageError, match="memory=True needs a GPU"):
        mpisim.record(tmp_path, memory=True)
