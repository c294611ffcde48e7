"""Which files are the traces of one job, and which sets of files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from traces import HandMade

from mpisim.base.errors import TraceError
from mpisim.traces import find_sources


def write(folder: Path, rank: int | None = None, world: int | None = None, name: str = "") -> Path:
    info = {"backend": "nccl"}
    more = {k: v for k, v in (("rank", rank), ("world_size", world)) if v is not None}
    made = HandMade(distributedInfo=info | more) if more else HandMade()
    made.launch(0, 5, 9, 20)
    return made.write(folder, name or f"trace_{rank}.json.gz")


def test_ranks_come_from_the_files(tmp_path: Path) -> None:
    # Names and order say something else.
    paths = [write(tmp_path, rank, 3, f"rank{9 - rank}.json") for rank in (2, 0, 1)]
    found = find_sources(paths)
    assert [(source.rank, source.world_size) for source in found] == [(0, 3), (1, 3), (2, 3)]
    assert [source.path.name for source in found] == ["rank9.json", "rank8.json", "rank7.json"]
    assert found[0].size == (tmp_path / "rank9.json").stat().st_size


def test_ranks_come_from_names_otherwise(tmp_path: Path) -> None:
    for rank in (1, 0):
        write(tmp_path, name=f"host3_rank{rank}_step7.json")
    assert [source.rank for source in find_sources([tmp_path])] == [0, 1]


def test_a_single_file_needs_no_rank(tmp_path: Path) -> None:
    (source,) = find_sources([write(tmp_path, name="trace.json")])
    assert (source.rank, source.world_size) == (0, 0)


def test_one_rank_of_a_job_alone(tmp_path: Path) -> None:
    (source,) = find_sources([write(tmp_path, 3, 8)])
    assert (source.rank, source.world_size) == (3, 8)


def test_other_files_in_a_folder_are_passed_over(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, 2)
    (tmp_path / "notes.txt").write_text("traceEvents")
    (tmp_path / "metrics.json").write_text('{"loss": 1.0}')
    (tmp_path / "et_rank0.json").write_text('{"schema": "1.0.1", "nodes": [{"name": "a"}]}')
    assert len(find_sources([tmp_path])) == 2


def test_a_bare_list_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps([{"ph": "X", "cat": "Kernel", "name": "a", "ts": 1, "dur": 1}]))
    assert len(find_sources([tmp_path])) == 1


# --- refused ------------------------------------------------------------------------------------


def test_missing_ranks(tmp_path: Path) -> None:
    for rank in (0, 2, 3):
        write(tmp_path, rank, 8)
    with pytest.raises(TraceError, match="3 of 8 ranks are here; missing: 1, 4, 5, 6, 7"):
        find_sources([tmp_path])
    assert [source.rank for source in find_sources([tmp_path], allow_missing=True)] == [0, 2, 3]


def test_a_rank_twice(tmp_path: Path) -> None:
    write(tmp_path, 0, 2, "a.json")
    write(tmp_path, 0, 2, "b.json")
    with pytest.raises(TraceError, match=r"b\.json: rank 0 is already given by .*a\.json"):
        find_sources([tmp_path])


def test_two_jobs(tmp_path: Path) -> None:
    write(tmp_path, 0, 2)
    write(tmp_path, 1, 4)
    with pytest.raises(TraceError, match=r"from a job of 4 ranks, but .* is from one of 2"):
        find_sources([tmp_path])


def test_a_rank_outside_its_job(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="rank 9"):
        find_sources([write(tmp_path, 9, 8)])


def test_no_rank_at_all(tmp_path: Path) -> None:
    write(tmp_path, name="a.json")
    write(tmp_path, name="b.json")
    with pytest.raises(TraceError, match="neither in 'distributedInfo' nor in its name"):
        find_sources([tmp_path])


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trace was named"):
        find_sources([])
    with pytest.raises(TraceError, match="no such file or directory"):
        find_sources([tmp_path / "nowhere"])
    (tmp_path / "other.json").write_text('{"loss": 1.0}')
    with pytest.raises(TraceError, match=r"no Kineto trace .* holds 1 JSON file$"):
        find_sources([tmp_path])
    (tmp_path / "job").mkdir()
    with pytest.raises(TraceError, match=r"1 JSON file; folders in it are not searched$"):
        find_sources([tmp_path])


def test_an_execution_trace_is_no_kineto_trace(tmp_path: Path) -> None:
    path = tmp_path / "et.json"
    node = '{"id": 1, "name": "[pytorch|profiler|execution_trace|process]"}'
    path.write_text('{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [' + node + "]}")
    with pytest.raises(TraceError, match="execution trace"):
        find_sources([path])
