"""Kineto files of all ages, as arrays; damaged ones, as one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import US, HandMade

from mpisim.base.errors import TraceError
from mpisim.traces import read_kineto
from mpisim.traces.kineto import KERNEL, MEMCPY, MEMSET
from mpisim.traces.shift import shift_second_half


def small() -> HandMade:
    made = HandMade(distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8})
    made.note("ProfilerStep#5", 100, 200)
    made.operator("aten::mm", 110, 130)
    made.launch(112, 118, 121, 150)
    made.launch(132, 136, 152, 160, stream=20, name="Memcpy HtoD (Pinned -> Device)", bytes=4096)
    return made


def test_columns(tmp_path: Path) -> None:
    trace = read_kineto(small().write(tmp_path))
    assert (trace.rank, trace.world_size, trace.backend) == (3, 8, "nccl")
    # The origin is one µs before the first event, so that no time is 0 by chance.
    assert trace.origin == 99
    assert trace.operators.name == ["aten::mm"]
    assert trace.annotations.name == ["ProfilerStep#5"]
    assert trace.calls.begin.tolist() == [13 * US, 33 * US]
    assert trace.calls.end.tolist() == [19 * US, 37 * US]
    device = trace.device
    assert device.name == ["gemm", "Memcpy HtoD (Pinned -> Device)"]
    assert device.kind.tolist() == [KERNEL, MEMCPY]
    assert device.begin.tolist() == [22 * US, 53 * US]
    assert device.end.tolist() == [51 * US, 61 * US]
    assert device.stream.tolist() == [0, 1]
    assert trace.streams == [7, 20]
    assert device.correlation.tolist() == [1, 2]
    assert device.args[1].bytes == 4096


def test_ns_resolution_and_base(tmp_path: Path) -> None:
    made = HandMade(baseTimeNanoseconds=1_700_000_000_000_000_000)
    made.launch(4458677009853.422, 4458677009860.0, 4458677009870.001, 4458677009880.123)
    trace = read_kineto(made.write(tmp_path))
    # A float64 of this size has steps of 1 ns or so: good to half a step.
    assert abs(int(trace.device.begin[0] - trace.calls.begin[0]) - 16_579_000) <= 1_000
    assert trace.origin == 4458677009852 + 1_700_000_000_000_000


def test_the_layout_of_2021(tmp_path: Path) -> None:
    event = {"ph": "X", "pid": 1, "tid": "stream 7", "ts": 10, "dur": 5}
    events = [
        {**event, "cat": "Operator", "name": "aten::mm", "args": {"external id": 4}},
        {**event, "cat": "Operator", "name": "ProfilerStep#0"},
        {**event, "cat": "Runtime", "name": "cudaLaunchKernel", "args": {"correlation": 9}},
        {**event, "cat": "Kernel", "name": "gemm", "args": {"correlation": 9}},
        {**event, "cat": "Memcpy", "name": "Memcpy DtoH", "args": {"correlation": 10}},
        {**event, "cat": "Memset", "name": "Memset", "args": {"correlation": 11}},
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        {"ph": "s", "cat": "ac2g", "id": 9, "pid": 1, "tid": 1, "ts": 10},
        {"ph": "i", "name": "Record Window End", "ts": "", "pid": "", "tid": ""},
    ]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(events))  # a bare list, as some files are
    trace = read_kineto(path)
    assert trace.operators.name == ["aten::mm"]
    assert trace.annotations.name == ["ProfilerStep#0"]
    assert trace.calls.name == ["cudaLaunchKernel"]
    assert sorted(trace.device.kind.tolist()) == [KERNEL, MEMCPY, MEMSET]
    assert trace.streams == [7]
    assert trace.rank is None


def test_hip_calls_launch(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(10, 14, 20, 30, call="hipExtLaunchKernel")
    trace, calls = made.read(tmp_path)
    assert [call.ops for call in calls] == [[0]]
    assert trace.calls.name == ["hipExtLaunchKernel"]


@pytest.mark.parametrize("category", ["xpu_driver", "privateuse1_runtime", "privateuse1_driver"])
def test_calls_of_other_devices_launch(tmp_path: Path, category: str) -> None:
    made = HandMade()
    made.launch(10, 14, 20, 30, call="launchKernel")
    for event in made.events:
        if event["cat"] == "cuda_runtime":
            event["cat"] = category
    _, calls = made.read(tmp_path)
    assert [call.ops for call in calls] == [[0]]


def test_process_groups(tmp_path: Path) -> None:
    config = [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": []},
        {"pg_name": "1", "pg_desc": "pair", "pg_size": 2, "ranks": [1, 3]},
    ]
    made = HandMade(distributedInfo={"rank": 1, "world_size": 4, "pg_config": config})
    made.launch(1, 2, 3, 4)
    trace = read_kineto(made.write(tmp_path))
    # No ranks: the whole world.
    assert trace.groups == {"0": (0, 1, 2, 3), "1": (1, 3)}


def test_recorded_synchronisation(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(1, 2, 3, 4, stream=7)
    made.launch(5, 6, 7, 8, stream=20)
    made.add(
        "cuda_sync",
        "Stream Wait Event",
        5,
        5,
        20,
        device=0,
        stream=20,
        wait_on_stream=7,
        wait_on_cuda_event_record_corr_id=77,
        correlation=78,
    )
    (sync,) = read_kineto(made.write(tmp_path)).syncs
    assert (sync.name, sync.stream, sync.source) == ("Stream Wait Event", 1, 0)
    assert (sync.record, sync.correlation) == (77, 78)


def test_gzip_and_plain_are_the_same(tmp_path: Path) -> None:
    plain = read_kineto(small().write(tmp_path))
    packed = read_kineto(small().write(tmp_path, "kineto_rank0.json.gz"))
    np.testing.assert_array_equal(plain.device.begin, packed.device.begin)
    assert plain.size == packed.size


def test_second_half_is_shifted(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 10, 20)
    made.launch(900, 905, 910, 920)
    trace = shift_second_half(read_kineto(made.write(tmp_path)), 1000 * US)
    assert np.diff(trace.device.begin).tolist() == [(900 + 1000) * US]
    assert (trace.device.end - trace.device.begin).tolist() == [10 * US, 10 * US]


# --- bad files ----------------------------------------------------------------------------------


def event(**changes: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "pid": 0,
        "tid": 7,
        "ts": 1,
        "dur": 2,
        **changes,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{not json", "not valid JSON"),
        (b"", "empty"),
        (b'{"other": 1}', "not a Kineto trace"),
        (b'{"traceEvents": {}}', "not a Kineto trace"),
        (b'{"traceEvents": []}', "not a Kineto trace"),
        (b"[1, 2]", "not a Kineto trace"),
        (json.dumps([event(dur=-3)]).encode(), "'gemm'.*negative.*-3"),
        (json.dumps([event(ts=None)]).encode(), "'gemm'.*'ts'"),
        (json.dumps([event(dur="long")]).encode(), "'dur'|float"),
        (json.dumps([event(ts=10**400)]).encode(), r"Expected `int` <= \d{19} - at `\$.*ts`"),
        (json.dumps([event(), event(ts=-(10**400))]).encode(), r"Expected `int` >= -\d{19} "),
        (json.dumps([event(dur=10**400)]).encode(), r"Expected `int` <= \d{19} - at `\$.*dur`"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": NaN, "dur": 1}]}', "JSON|NaN"),
    ],
)
def test_bad_text(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(text)
    with pytest.raises(TraceError, match=said) as caught:
        read_kineto(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_truncated_gzip(tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(small().text())[:-30])
    with pytest.raises(TraceError, match="damaged or truncated gzip file"):
        read_kineto(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_kineto(tmp_path / "nowhere.json")
