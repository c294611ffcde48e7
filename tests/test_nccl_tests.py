"""Outputs of nccl-tests and rccl-tests: which runs, which rows, and what must be said of them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.base.errors import InputError, UsageError
from mpisim.program import Operation
from mpisim.topo.collectives.measurement import Measurement
from mpisim.topo.collectives.nccl_tests import read_json, read_output, version_text
from mpisim.topo.collectives.platforms import platform_of
from mpisim.topo.collectives.read import read
from mpisim.topo.collectives.runs import PROGRAM_OPERATIONS, RunOverrides, measurements, settings_of
from mpisim.topo.network import bus_factor

LOGS = Path(__file__).parent / "nccl_logs"

TITLE = (
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     "
    "time   algbw   busbw  #wrong"
)


def found_in(text: str, overrides: RunOverrides | None = None) -> list[Measurement | str]:
    runs = read_output(text, "my.log")
    return [row for run in runs for row in measurements(run, overrides or RunOverrides())]


def log(
    program: str,
    *,
    gpus: int = 8,
    hosts: int = 1,
    size: int = 1 << 30,
    time: float = 5000.0,
    gpu: str = "NVIDIA H100 80GB HBM3",
    name: bool = True,
    devices: bool = True,
    title: str = TITLE,
) -> str:
    """The output of one program with one row, as nccl-tests 2.17 prints it."""
    operation = PROGRAM_OPERATIONS[program]
    split = program in ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")
    reduces = program in ("all_reduce", "reduce_scatter", "reduce")
    rooted = program in ("broadcast", "reduce", "gather", "scatter")
    lines = [f"# Collective test starting: {program}_perf"] if name else []
    lines += ["# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20"]
    if devices:
        lines += ["#", "# Using devices"]
        lines += [
            f"#  Rank {i:2d} Group  0 Pid {400 + i:6d} on {f'node-{i * hosts // gpus}':>10s} "
            f"device {i % (gpus // hosts):2d} [0000:{i:02x}:00] {gpu}"
            for i in range(gpus)
        ]
    algbw = size / time / 1e3
    busbw = algbw * bus_factor(operation, gpus)
    count = size // 4 // (gpus if split else 1)
    values = f"{time:7.2f}  {algbw:6.2f}  {busbw:6.2f}"
    reduction, root = ("sum" if reduces else "none"), (0 if rooted else -1)
    row = f"{size:12d}  {count:12d}  {'float':>8s}  {reduction:>6s}  {root:6d}  {values}  {0:6d}"
    lines += [title, f"{row}  {values}  {'N/A':>6s}", "# Out of bounds values : 0 OK"]
    return "\n".join([*lines, ""])


class TestPrinted:
    def test_a_run_on_one_node(self) -> None:
        rows, skipped = read([LOGS / "all_reduce_8.log"])
        assert not skipped
        assert {each.operation for each in rows} == {Operation.ALL_REDUCE}
        assert [each.bytes for each in rows] == [1 << k for k in range(10, 32, 3)]
        assert rows[0].seconds == pytest.approx(24.31e-6)
        assert {(each.gpus, each.nodes, each.gpu) for each in rows} == {(8, 1, "h100-sxm")}
        assert {(each.version, each.across, each.library) for each in rows} == {
            ("2.27.7", "none", "nccl")
        }
        assert rows[0].line == 20
        assert len({each.curve for each in rows}) == 1

    def test_two_runs_of_mpirun_with_messages_between(self) -> None:
        rows, skipped = read([LOGS / "two_nodes.log"])
        assert skipped == {
            "a size of 0": 1,
            "results with wrong values": 1,
            "a row that is cut off": 1,
        }
        gather = [each for each in rows if each.operation is Operation.ALL_GATHER]
        assert [each.bytes for each in gather] == [1 << 10, 1 << 15, 1 << 20, 1 << 30]
        assert {(each.gpus, each.nodes, each.gpu) for each in rows} == {(4, 2, "a100-sxm-40gb")}
        assert {each.across for each in gather} == {"RoCE"}
        assert {each.settings for each in gather} == {(("NCCL_ALGO", "Ring"),)}
        assert {each.version for each in gather} == {"2.22.3"}
        sends = [each for each in rows if each.operation is Operation.SEND_RECV]
        assert [(each.bytes, each.settings) for each in sends] == [(1 << 22, ()), (1 << 24, ())]

    def test_older_versions_without_root_or_reduction(self) -> None:
        rows, skipped = read([LOGS / "old.log"])
        assert not skipped
        assert Counter(each.operation for each in rows) == {
            Operation.REDUCE_SCATTER: 2,
            Operation.BROADCAST: 2,
            Operation.ALL_GATHER: 1,
        }
        assert (rows[1].line, rows[1].bytes) == (14, 1 << 27)
        assert rows[1].seconds == pytest.approx(1154.6e-6)
        assert platform_of(rows[0]).name == "dgx-v100"

    def test_rccl(self) -> None:
        ((row,), _) = read([LOGS / "rccl.log"])
        assert (row.library, row.gpu, row.version) == ("rccl", "mi300x", "2.22.3")
        assert platform_of(row).name == "mi300x"

    @pytest.mark.parametrize("program", PROGRAM_OPERATIONS)
    def test_each_program(self, program: str) -> None:
        (row,) = found_in(log(program, hosts=2))
        assert isinstance(row, Measurement)
        assert row.operation is PROGRAM_OPERATIONS[program]
        assert (row.bytes, row.gpus, row.nodes) == (1 << 30, 8, 2)

    @pytest.mark.parametrize("program", ["all_reduce", "reduce_scatter", "broadcast", "sendrecv"])
    def test_columns_tell_the_operation_where_no_name_does(self, program: str) -> None:
        (row,) = found_in(log(program, name=False))
        assert isinstance(row, Measurement)
        assert row.operation is PROGRAM_OPERATIONS[program]

    def test_only_times_out_of_place(self) -> None:
        title = "#       size    count   type  redop  root   time   algbw   busbw  #wrong"
        text = re.sub(r"  \S+  +\S+  +\S+ +N/A\n", "\n", log("all_reduce", title=title))
        assert "N/A" not in text
        (row,) = found_in(text)
        assert isinstance(row, Measurement)
        assert row.seconds == pytest.approx(5e-3)

    def test_the_group_of_rank_0_is_the_one_of_the_table(self) -> None:
        text = log("all_reduce", gpus=16, hosts=2)
        text = re.sub(  # as NCCL_TESTS_SPLIT_MASK=0x7 makes them: one GPU of each node
            r"Rank +(\d+) Group  0", lambda rank: f"Rank {rank[1]} Group {int(rank[1]) % 8}", text
        )
        (row,) = found_in(text)
        assert isinstance(row, Measurement)
        assert (row.gpus, row.nodes) == (2, 2)

    @pytest.mark.parametrize(
        ("command", "settings"),
        [
            ("-x NCCL_IB_HCA=mlx5_2\\,mlx5_3 -x NCCL_DEBUG=WARN", {"NCCL_IB_HCA": "mlx5_2,mlx5_3"}),
            (
                "--export=ALL,NCCL_ALGO=Ring,NCCL_PROTO=LL",
                {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
            ),
            ("NCCL_ALGO='ring,tree' ", {"NCCL_ALGO": "ring,tree"}),
            ("h:1:1 [0] NCCL INFO NCCL_PROTO set by environment to LL.", {"NCCL_PROTO": "LL"}),
        ],
    )
    def test_variables(self, command: str, settings: dict[str, str]) -> None:
        (row,) = found_in(f"{command} ./all_reduce_perf\n{log('all_reduce')}")
        assert isinstance(row, Measurement)
        assert dict(row.settings) == settings

    def test_headers_without_their_mark(self) -> None:
        (row,) = found_in(log("all_reduce", title=TITLE.removeprefix("#")))
        assert isinstance(row, Measurement)

    def test_programs_without_an_operation_here_are_left_out(self) -> None:
        text = log("all_reduce").replace("all_reduce_perf", "hypercube_perf")
        assert found_in(text) == ["hypercube_perf measures no operation that is known here"]

    def test_aggregated_launches_are_left_out(self) -> None:
        text = log("all_reduce").replace("iters: 20", "iters: 20 agg iters: 4 validation: 1")
        assert found_in(text) == ["4 operations in one launch (option -m)"]

    @given(
        program=st.sampled_from([*PROGRAM_OPERATIONS]),
        prefix=st.sampled_from(["", "[1,0]<stdout>:", "0: ", "    ", "(head, rank=0, pid=3808) "]),
        size=st.integers(3, 34).map(lambda k: 1 << k),
        time=st.floats(1, 9e5),
        hosts=st.sampled_from([1, 2, 4]),
    )
    def test_what_was_printed_comes_back(
        self, program: str, prefix: str, size: int, time: float, hosts: int
    ) -> None:
        text = log(program, size=size, time=time, hosts=hosts)
        (row,) = found_in("".join(f"{prefix}{line}\n" for line in text.splitlines()))
        assert isinstance(row, Measurement)
        assert (row.operation, row.bytes, row.nodes) == (PROGRAM_OPERATIONS[program], size, hosts)
        assert row.seconds == pytest.approx(time * 1e-6, abs=0.006e-6)


class TestSaid:
    def test_what_a_log_leaves_out(self) -> None:
        bare = log("alltoall", gpus=16, name=False, devices=False)
        overrides = RunOverrides(
            operation="all-to-all", gpus=16, nodes=2, gpu="h100-sxm", network="RoCE"
        )
        (row,) = found_in(bare, overrides)
        assert isinstance(row, Measurement)
        assert row.operation is Operation.ALL_TO_ALL
        assert (row.gpus, row.nodes, row.across) == (16, 2, "RoCE")

    @pytest.mark.parametrize(
        ("text", "overrides", "message"),
        [
            (
                log("alltoall", name=False),
                RunOverrides(),
                "line 12: no name of a program.*all_gather, all",
            ),
            (log("gather", name=False), RunOverrides(), "--operation: gather, scatter"),
            (log("all_reduce", devices=False), RunOverrides(), "line 3: no list of devices"),
            (log("all_reduce", devices=False), RunOverrides(gpus=8), "say on how many nodes"),
            (log("all_reduce"), RunOverrides(nodes=9), "8 GPUs on 9 nodes"),
            (log("all_reduce"), RunOverrides(operation="gossip"), "'gossip' is unknown; allowed"),
            (log("all_reduce", gpu=""), RunOverrides(), "no name of a GPU.*--cluster"),
            (
                log("all_reduce").replace("all_reduce_perf", "broadcast_perf"),
                RunOverrides(),
                "the table of broadcast_perf has the columns of all_reduce, sendrecv",
            ),
            (
                log("all_reduce").replace("Rank  3", "Rank 11"),
                RunOverrides(),
                "ranks 0, 1, 2, 4, 5, 6, …, not all up to 11",
            ),
            (
                re.sub(r"node-\d device +\d", "pod device 0", log("all_reduce", hosts=2)).replace(
                    "[0000:07:00]", "[0000:00:00]"
                ),
                RunOverrides(),
                "2 ranks use device 0 .* say how many there are with --nodes",
            ),
            (log("all_reduce").replace(" time ", " cputime "), RunOverrides(), "times of the CPU"),
            (
                log("all_gather").replace(f"{1 << 30:12d}", f"{1 << 27:12d}"),
                RunOverrides(),
                "the table of all_gather_perf has the columns of sendrecv",
            ),
            (
                log("all_reduce").replace(" redop", " operator"),
                RunOverrides(),
                r"line 13: no known table of nccl-tests: its columns are size count type operator",
            ),
            (log("all_reduce").split("#       size")[0], RunOverrides(), "ends before a table"),
            (log("all_reduce").split("float")[0], RunOverrides(), "no row of size"),
        ],
    )
    def test_unclear_logs(self, text: str, overrides: RunOverrides, message: str) -> None:
        with pytest.raises(InputError, match=message) as caught:
            found_in(text, overrides)
        assert "\n" not in str(caught.value)

    def test_tables_have_columns_for_it(self, tmp_path: Path) -> None:
        path = tmp_path / "spread.csv"
        path.write_text("gpu,num_gpus,size_bytes,time_us\nA100,8,1024,30\n")
        with pytest.raises(UsageError, match="tables have columns"):
            read([path], RunOverrides(nodes=2))


class TestJson:
    def test_a_file_of_the_option(self) -> None:
        rows, skipped = read([LOGS / "alltoall_16.json"])
        assert not skipped
        assert [each.bytes for each in rows] == [1 << 20, 1 << 23, 1 << 26]
        assert {(each.operation, each.gpus, each.nodes) for each in rows} == {
            (Operation.ALL_TO_ALL, 16, 2)
        }
        assert rows[0].seconds == pytest.approx(92.5e-6)
        assert rows[0].settings == (("NCCL_NVLS_ENABLE", "0"),)
        assert (rows[0].version, rows[0].gpu) == ("2.27.7", "h100-sxm")

    def test_one_process_lists_its_first_device_alone(self) -> None:
        contents = json.loads((LOGS / "alltoall_16.json").read_text())
        contents["config"] |= {"ngpus": 8, "devices": contents["config"]["devices"][:1]}
        (run,) = read_json(json.dumps(contents), "one.json")
        (row, *_) = measurements(run, RunOverrides())
        assert isinstance(row, Measurement)
        assert (row.gpus, row.nodes) == (8, 1)

    def test_several_in_one_file(self) -> None:
        text = (LOGS / "alltoall_16.json").read_text()
        assert len(read_json(f"{text}\n{text}", "two.json")) == 2

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "x.json, line 1: not valid JSON"),
            ("{}", "line 1: not a JSON file of nccl-tests .* no 'config'"),
            ('{"config": 3, "results": []}', "line 1: not a JSON file of nccl-tests"),
            ("[1]", "not a JSON file of nccl-tests"),
        ],
    )
    def test_other_files(self, text: str, message: str) -> None:
        with pytest.raises(InputError, match=message) as caught:
            read_json(text, "x.json")
        assert "\n" not in str(caught.value)


def test_versions() -> None:
    assert [version_text(each) for each in (2708, 21805, 22907)] == ["2.7.8", "2.18.5", "2.29.7"]


def test_variables_that_change_no_time_are_left_out() -> None:
    pairs = [("NCCL_DEBUG", "INFO"), ("NCCL_PROTO", "simple"), ("NCCL_ALGO", "ring")]
    assert settings_of(pairs) == (("NCCL_ALGO", "ring"), ("NCCL_PROTO", "simple"))
