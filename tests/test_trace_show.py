"""``mpisim trace show``."""

import json

import pytest
from execution_traces import MM, Writer, tensor


def test_an_execution_trace(call_mpisim, tmp_path):
    writer = Writer()
    config = [
        {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "backend_config": "cuda:nccl",
            "ranks": [],
            "group_size": 2,
            "group_count": 1,
        }
    ]
    writer.add("## process_group:init ##", [json.dumps(config)])
    writer.add("ProfilerStep#5")
    writer.add("aten::mm", [tensor(1), tensor(2)], [tensor(3)], MM)
    whole = [[tensor(3)], 5, ["0", "default_pg"], 1, "allreduce", [], [], 0, 1, 2]
    writer.add("record_param_comms", whole, [[tensor(3)]])
    writer.write(tmp_path / "et.json")
    done = call_mpisim(["trace", "show", "et.json"])
    assert (done.rc, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    for expected in (
        "schema 1.1.1-chakra.0.0.4",
        "rank 1 of 2",
        "steps ProfilerStep#5",
        "nodes 6 on 1 thread",
        "data 2 nodes compute, 1 dependencies",
        "all_reduce float 1 16 2 0",
        "0 2 0,1 default_pg cuda:nccl",
    ):
        assert expected.split() in lines


@pytest.mark.parametrize("nprocs", [1, 2])
def test_bad_files_are_one_line(run_mpisim, tmp_path, nprocs):
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "other.json").write_text('{"schema": "1.0.1", "nodes": [{"id": 1}]}')
    (tmp_path / "empty").mkdir()
    et = Writer()
    et.add("aten::mm", [tensor(1)], [tensor(3)], MM)
    et.write(tmp_path / "et.json")
    for words, message in (
        (["missing.json"], "missing.json: no such file or directory"),
        (["text.json"], "text.json: not valid JSON"),
        (["other.json"], "other.json: not a PyTorch execution trace: Object missing required"),
        (["empty"], "empty: no trace in this folder, which holds 0 JSON files"),
        (["et.json", "--join"], "nothing to join among 1 execution traces and 0 Kineto traces"),
        (["et.json", "--joined"], "unknown option '--joined' (did you mean '--join'?)"),
    ):
        done = run_mpisim(["trace", "show", *words], nprocs)
        assert done.rc == 2
        assert len(done.errors) == 1
        assert message in done.errors[0]
        assert "Traceback" not in done.stdout + done.stderr


def test_recorded_traces_joined(run_mpisim, shared):
    folder = shared / "traces/dlrm_v100_8rank"
    files = [folder / f"{kind}_rank0.json.gz" for kind in ("et", "kineto")]
    done = run_mpisim(["trace", "show", *files, "--join"], 2)
    assert (done.rc, done.stderr) == (0, "")
    assert done.stdout.count("kind        Kineto trace") == 1  # one process prints
    assert "Tesla V100-SXM2-32GB" in done.stdout
    assert "joined by names: 1672 pairs" in done.stdout
    assert "202 of 202 data dependencies hold (100.00 %)" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 200
