"""``mpisim memory``, the files it reads and the snapshots it writes."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_blocks import match, memory_events

from mpisim.base.errors import InputError, UsageError
from mpisim.cli import main
from mpisim.formats.kineto_memory import read_kineto_memory
from mpisim.formats.torch_snapshot import BEFORE, read_snapshot, write_snapshot
from mpisim.memory.allocations import Action, Allocations, holders, replay
from mpisim.memory.allocator_settings import parse_settings
from mpisim.memory.configurations import Room, outcome

MIB, GIB = 1 << 20, 1 << 30


def event(action: str, addr: int, size: int, stream: int = 0, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": stream, **more}


def frame(filename: str, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": 7, "name": name}


HISTORY = [
    event(
        "alloc",
        0x1000,
        1000,
        frames=[
            frame("/usr/lib/python3/torch/nn/functional.py", "linear"),
            frame("/home/me/model.py", "forward"),
            frame("/home/me/train.py", "main"),
        ],
        time_us=1_000_000,
    ),
    event("free_requested", 0x9000, 2000, time_us=1_000_010),
    event("free_completed", 0x9000, 2000, time_us=1_000_010),
    event("segment_alloc", 0x7000000, 20 * MIB, 3, time_us=1_000_020),
    event("alloc", 0x7000000, 5 * MIB, 3, frames=[], time_us=1_000_020),
    event("free_requested", 0x7000000, 5 * MIB, 3, time_us=1_000_030),
    event("alloc", 0x7600000, 2 * MIB, 3, time_us=1_000_040),
    event("free_completed", 0x7000000, 5 * MIB, 3, time_us=1_000_050),
    event("free_requested", 0x7600000, 2 * MIB, 3, time_us=1_000_060),
    event("free_completed", 0x7600000, 2 * MIB, 3, time_us=1_000_060),
    event("segment_free", 0x7000000, 20 * MIB, 3, time_us=1_000_070),
]
"""One block from before is freed, one stays; one waits for another stream; the cache is emptied."""

SEGMENTS = [
    {
        "device": 1,
        "address": 0x1000,
        "total_size": 2 * MIB,
        "stream": 0,
        "blocks": [
            {"address": 0x1000, "size": 1024, "requested_size": 1000, "state": "active_allocated"},
            {"address": 0x1400, "size": 512, "requested_size": 12, "state": "active_allocated"},
            {"address": 0x1600, "size": 2 * MIB - 1536, "state": "inactive"},
        ],
    }
]


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return dumped(tmp_path, {"segments": SEGMENTS, "device_traces": [[], HISTORY, []]})


def dumped(folder: Path, contents: object) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(contents))
    return path


def test_a_snapshot_is_read(snapshot: Path) -> None:
    recorded = read_snapshot(snapshot)
    table = recorded.allocations
    assert recorded.device == 1
    assert recorded.before == 2012
    assert recorded.peak_reserved == 22 * MIB
    assert [Action(each).name for each in table.action] == [
        *("ALLOCATE", "ALLOCATE", "ALLOCATE", "FREE"),
        *("ALLOCATE", "USE", "FREE", "ALLOCATE", "PASS", "FREE", "EMPTY_CACHE"),
    ]
    assert table.bytes.tolist() == [12, 2000, 1000, 0, 5 * MIB, 0, 0, 2 * MIB, 0, 0, 0]
    assert table.labels == (BEFORE, "model.py:7 forward")
    assert table.time[-1] == 70_000_000
    usage = replay(table)
    assert usage.peak_reserved == 22 * MIB
    assert usage.reserved[-1] == 2 * MIB
    assert [each.label for each in holders(table, len(table) - 1)] == [
        "model.py:7 forward",
        BEFORE,
    ]


def made(seed: int, count: int = 3000) -> Allocations:
    """Allocations as a training step makes them, on two streams."""
    random = np.random.default_rng(seed)
    begin = np.sort(random.integers(0, 10 * count, count)) * 2
    end = begin + 2 * random.integers(1, count, count) + 1
    size = np.where(
        random.random(count) < 0.5,
        random.integers(1, MIB, count),
        random.integers(MIB, 60 * MIB, count),
    )
    return Allocations.of_lifetimes(
        begin * 1_000_000,
        np.where(random.random(count) < 0.1, -1, end) * 1_000_000,
        size,
        stream=random.integers(0, 2, count),
        label=random.integers(-1, 3, count),
        labels=["embedding", "layers.0", "head"],
        timed=True,
    )


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:40"])
def test_what_is_written_is_read_again(tmp_path: Path, conf: str) -> None:
    table, path = made(1), tmp_path / "s.pickle"
    usage = replay(table, parse_settings(conf))
    write_snapshot(path, table, conf)
    again = read_snapshot(path)
    assert again.allocations.action.tolist() == table.action.tolist()
    assert again.allocations.bytes.tolist() == table.bytes.tolist()
    assert again.allocations.stream.tolist() == table.stream.tolist()
    assert again.peak_reserved == usage.peak_reserved
    assert again.peak_allocated == usage.peak_allocated
    assert again.before == 0
    assert again.settings == conf
    assert set(again.allocations.labels) == set(table.labels)
    contents = pickle.loads(path.read_bytes())
    segments = contents["segments"]
    assert sum(each["total_size"] for each in segments) == usage.reserved[-1]
    assert sum(each["allocated_size"] for each in segments) == usage.allocated[-1]
    assert sum(each["requested_size"] for each in segments) == usage.requested[-1]


def test_pytorch_opens_what_is_written(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "s.pickle"
    write_snapshot(path, made(2, 500))
    program = f"""
import pickle
from torch.cuda import _memory_viz
snapshot = pickle.load(open({str(path)!r}, "rb"))
print(_memory_viz.trace(snapshot))
print(len(_memory_viz.trace_plot(snapshot)), len(_memory_viz.segment_plot(snapshot)))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "= cudaMalloc(" in done.stdout
    assert min(map(int, done.stdout.split("\n")[-2].split())) > 1000


def test_nothing_in_a_pickle_is_called(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "made"),)

    path = dumped(tmp_path, {"device_traces": [[Evil()]]})
    with pytest.raises(InputError, match=r"refers to posix\.mkdir, which no snapshot does"):
        read_snapshot(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        ([], "it has no 'device_traces'"),
        ({"device_traces": [[]]}, "_record_memory_history"),
        ({"device_traces": [[{"action": "alloc"}]]}, "no memory snapshot"),
        ({"device_traces": [[event("alloc", 1, -5)]]}, "an allocation of -5 bytes"),
        ({"device_traces": [7]}, "it has no 'device_traces'"),
        ({"device_traces": [[7]]}, "no memory snapshot"),
    ],
)
def test_wrong_snapshots(tmp_path: Path, contents: object, said: str) -> None:
    path = dumped(tmp_path, contents)
    with pytest.raises(InputError) as caught:
        read_snapshot(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_damaged_snapshots(snapshot: Path) -> None:
    whole = snapshot.read_bytes()
    for length in range(0, len(whole) - 1, 37):
        snapshot.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"damaged|no memory snapshot"):
            read_snapshot(snapshot)


# --- Kineto traces ---


def memory(ts: float, address: int, size: int, total: int, device: int = 0) -> dict[str, Any]:
    arguments = {
        "Device Type": 1,
        "Device Id": device,
        "Addr": address,
        "Bytes": size,
        "Total Allocated": total,
        "Total Reserved": 40 * MIB,
    }
    return {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts, "args": arguments}


def span(ts: float, dur: float, name: str, cat: str) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": 1, "ts": ts, "dur": dur}


TRACE = [
    span(0, 100, "nn.Module: Net_0", "python_function"),
    span(10, 50, "nn.Module: Linear_3", "python_function"),
    span(20, 20, "aten::linear", "cpu_op"),
    span(120, 50, "Optimizer.step", "cpu_op"),
    span(130, 10, "aten::add", "cpu_op"),
    memory(30, 0x5000, 2 * MIB, 12 * MIB),
    memory(90, 0x9000, 512, 12 * MIB + 512),
    memory(125, 0x100, -3 * MIB, 9 * MIB + 512),
    memory(135, 0x100, 3 * MIB, 12 * MIB + 512),
    memory(400, 0x5000, -2 * MIB, 10 * MIB + 512),
    memory(410, 0x77, 512, 512, device=1),
]


def written(folder: Path, events: list[dict[str, Any]]) -> Path:
    path = folder / "rank0.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path


def test_a_trace_is_read(tmp_path: Path) -> None:
    recorded = read_kineto_memory(written(tmp_path, TRACE))
    table = recorded.allocations
    assert (recorded.before, recorded.peak_allocated) == (10 * MIB, 12 * MIB + 512)
    assert (recorded.peak_reserved, recorded.device) == (40 * MIB, 0)
    assert table.bytes.tolist() == [7 * MIB, 3 * MIB, 2 * MIB, 512, 0, 3 * MIB, 0]
    assert [table.labels[i] if i >= 0 else "" for i in table.label] == [
        *(BEFORE, BEFORE, "Linear_3", "Net_0", "", "Optimizer.step", ""),
    ]
    assert replay(table).allocated.tolist()[2:] == [
        each["args"]["Total Allocated"] for each in TRACE[5:10]
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(-3, 3).filter(bool), st.integers(0, 9)),
        min_size=1,
        max_size=30,
    )
)
def test_events_that_contradict_themselves(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[int, int, int]]
) -> None:
    """Frees of nothing, addresses given twice, totals that do not add up."""
    path = written(
        tmp_path_factory.mktemp("trace"),
        [memory(ts, 64 * address, 512 * size, 99) for address, size, ts in events],
    )
    table = read_kineto_memory(path).allocations
    assert len(replay(table).reserved) == len(table)
    assert (np.diff(table.time) >= 0).all()


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (TRACE[:5], "no [memory] events of a GPU"),
        ([TRACE[0] | {"ts": 10**400}], "Expected `int` <= 9223372036854775807 - at `$"),
        ([memory(1, 2, 512, 512) | {"ts": "soon"}], "not understood"),
        ([memory(1, 2, 1 << 60, 512)], "not understood"),
        ([memory(1, 2, 512, 512), memory(1e13, 3, 512, 1024)], "span 1e+07 s; at most"),
        ([{**memory(1, 2, 512, 512), "args": {"Device Type": 1, "Bytes": 3}}], "no addresses"),
    ],
)
def test_wrong_traces(tmp_path: Path, events: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(InputError) as caught:
        read_kineto_memory(written(tmp_path, events))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("owlv2_h100_1gpu/kineto", 1.0),
        ("resnet50_ddp_v100_rank0of8/kineto_rank0", 0.98),
        ("opt1.3b_zero1_v100_rank0of8/kineto_rank0", 0.89),
        ("opt1.3b_zero2_v100_rank0of8/kineto_rank0", 0.84),
    ],
)
def test_addresses_are_those_of_gpus(shared: Path, name: str, share: float) -> None:
    """What is learnt is little, and another rule than best fit is told apart."""
    events = memory_events(shared / "traces" / f"{name}.json.gz")
    found = match(events)
    assert found.equal >= share * found.allocations
    assert 100 * (found.ends + found.tails) <= 1.2 * found.allocations
    another = match(events, first_fit=True)
    assert another.equal < 0.8 * found.equal


# --- verdicts and the command ---


def test_verdicts() -> None:
    table = Allocations.of_lifetimes([0, 1, 4], [2, 3, -1], [3 * GIB, 2 * GIB, 4 * GIB])

    def on(gib: float, conf: str = "", communicators: int = 0) -> str:
        return outcome(table, conf, Room.of("it", round(gib * GIB), communicators)).sentence()

    assert on(20).startswith("fits into it: the allocator, CUDA's context and NCCL take 9.6 GiB")
    assert on(20).endswith("10.4 GiB free")
    # 4 GiB fit once the other two are given back.
    assert "all cached memory is given back once" in on(8)
    assert on(8, communicators=1).startswith("fits")
    assert on(5.5).endswith("too close to call")
    assert on(3).startswith("does not fit into it")
    assert "3.00 GiB are asked for when 2.44 are free" in on(3)
    assert on(8, "expandable_segments:True").startswith("fits")
    with pytest.raises(UsageError, match="less than CUDA's context"):
        Room.of("it", 100 * MIB)


def test_command(snapshot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures, output = tmp_path / "f.json", tmp_path / "o.pickle"
    words = ["memory", str(snapshot), "--gpu-memory", "24GiB", "--communicators", "1"]
    assert main([*words, "--json", str(figures), "-o", str(output)]) == 0
    out = capsys.readouterr().out
    assert "The program fits into 24GiB" in out
    assert "model.py:7 forward" in out
    assert "expandable_segments:True" in out
    found = json.loads(figures.read_text())
    assert found["simulated"]["peak_reserved"] == found["recorded"]["peak_reserved"]
    assert len(found["others"]) == 4
    assert read_snapshot(output).peak_reserved == 22 * MIB
    assert main([*words, "-o", str(output)]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--conf", "expandable:True"], "--conf: there is no option 'expandable'"),
        (["--gpu-memory", "lots"], "--gpu-memory is 'lots'"),
        (["--gpu-memory", "0GiB"], "--gpu-memory is '0GiB'"),
        (["--gpu", "h100-sxm", "--gpu-memory", "1GiB"], "not allowed with"),
        (["--communicators", "2"], "--gpu or --gpu-memory"),
        (["--gpu-memory", "1GiB", "--communicators", "-1"], "must be 0 or more"),
        (["--top", "0"], "must be 1 or more"),
        (["--device", "7"], "no history of GPU 7; there is one of: 1"),
        (["-o", "snapshot.pickle"], "over the input"),
    ],
)
def test_wrong_commands(
    snapshot: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(snapshot.parent)
    assert main(["memory", "snapshot.pickle", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_files_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", str(tmp_path / "none.pickle")]) == 2
    assert "none.pickle: cannot be read: No such file" in capsys.readouterr().err
    assert main(["memory", str(tmp_path)]) == 2
    assert "cannot be read: Is a directory" in capsys.readouterr().err
