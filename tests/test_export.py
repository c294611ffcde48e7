"""Simulated runs as Kineto files: what is in them, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from recorded import exported, recordable_program

from mpisim.base.errors import InputError, MpisimError, OutputError
from mpisim.engine import Run, simulate
from mpisim.experiment import load
from mpisim.prediction.prepared import prepare
from mpisim.program import Flag, Kind, Operation, Program, ProgramBuilder
from mpisim.replay import read_job, replay
from mpisim.traces.export import export_kineto

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.two_processes

US = 1_000_000


def program() -> Program:
    """Two ranks: a kernel, an all-reduce of it, a message, and a step round it all."""
    builder = ProgramBuilder()
    both, pair = builder.communicator([0, 1], "data"), builder.communicator([1, 0])
    for rank in (0, 1):
        rows = builder.table()
        rows.tags(step=2)
        call: dict[str, Any] = {"host": 20 * US, "launch": 7 * US, "launch_cost": 5 * US}
        first = rows.kernel("gemm", 0, (100 + 50 * rank) * US, gap=US, **call)
        last = rows.collective(
            Operation.ALL_REDUCE, 0, 1, 4096, duration=30 * US, waits=[first], gap=US, **call
        )
        kind = Kind.RECV if rank == 0 else Kind.SEND
        last = rows.point_to_point(kind, 1, 2, 64, duration=10 * US, waits=[last], gap=US, **call)
        rows.host_wait([last], host=4 * US, tail=9 * US)
        builder.add_rank(builder.add_table(rows.build()), [both, pair])
    return builder.build()


def recorded(of: Program) -> Run:
    return simulate(of)


def events(path: Path) -> dict[str, Any]:
    """The file, with its intervals by name under the key "X"."""
    found = json.loads(gzip.decompress(path.read_bytes()))
    found["X"] = {}
    for event in found["traceEvents"]:
        if event["ph"] == "X":
            found["X"].setdefault(event["name"].split("(")[0], []).append(event)
    return found


def test_the_new_style(tmp_path: Path) -> None:
    of = program()
    folder = tmp_path / "traces"
    paths = export_kineto(of, recorded(of), folder, ranks=[4, 6])
    assert [path.name for path in paths] == ["kineto_rank4.json.gz", "kineto_rank6.json.gz"]
    assert sorted(folder.iterdir()) == paths
    file = events(paths[0])
    info = file["distributedInfo"]
    assert (info["rank"], info["world_size"], info["backend"]) == (4, 7, "nccl")
    assert [(group["pg_desc"], group["ranks"]) for group in info["pg_config"]] == [
        ("data", [4, 6]),
        ("group 1", [6, 4]),
    ]
    (gemm,) = file["X"]["gemm"]
    # 20 µs of CPU time, 7 until it starts.
    assert (gemm["ts"], gemm["dur"], gemm["args"]["stream"]) == (27, 100, 7)
    launch = next(
        e
        for e in file["traceEvents"]
        if e["ph"] == "X"
        and e["cat"] == "cuda_runtime"
        and e["args"]["correlation"] == gemm["args"]["correlation"]
    )
    assert (launch["name"], launch["ts"], launch["dur"]) == ("cudaLaunchKernel", 20, 5)
    (kernel,) = file["X"]["ncclDevKernel_AllReduce_Sum_f32_RING_LL"]
    # Ready at 27 + 100 + 1; rank 6 is at 27 + 150 + 1; 30 on the wire.
    assert (kernel["ts"], kernel["dur"]) == (128, 50 + 30)
    args = kernel["args"]
    assert (args["Collective name"], args["In msg nelems"], args["dtype"]) == (
        "allreduce",
        1024,
        "Float",
    )
    assert (args["Process Group Ranks"], args["Group size"], args["Seq"]) == ("[4, 6]", 2, 0)
    (message,) = file["X"]["ncclDevKernel_SendRecv"]
    assert (message["args"]["Src Rank"], message["args"]["Dst Rank"]) == (6, 4)
    (step,), (sync,) = file["X"]["ProfilerStep#2"], file["X"]["cudaStreamSynchronize"]
    assert (step["ts"], step["dur"]) == (0, sync["ts"] + sync["dur"])
    # Behind the two communications' own waits, the one that every file begins with.
    assert len(file["X"]["Stream Wait Event"]) == 3


def test_the_old_style(tmp_path: Path) -> None:
    of = program()
    paths = export_kineto(of, recorded(of), tmp_path / "traces", style="old")
    file = events(paths[1])
    assert set(file["distributedInfo"]) == {"backend", "rank", "world_size"}
    assert "baseTimeNanoseconds" not in file
    for each in file["traceEvents"]:
        assert isinstance(each["ts"], int)
    (kernel,) = file["X"]["ncclDevKernel_AllReduce_Sum_f32_RING_LL"]
    assert "Collective name" not in kernel["args"]
    # Before, inside and behind the launch of each communication; before, the wait that matters.
    assert len(file["X"]["cudaStreamWaitEvent"]) == 8
    assert "Stream Wait Event" not in file["X"]
    assert "cudaEventRecord" not in file["X"]
    assert len(file["X"]["c10d::send"]) == 1


def test_operators_enclose_their_launch(tmp_path: Path) -> None:
    of = program()
    for style in ("new", "old"):
        file = events(export_kineto(of, recorded(of), tmp_path / style, style=style)[0])
        launch = file["X"]["cudaLaunchKernelExC"][0]
        for name in ("c10d::allreduce_", "record_param_comms", "nccl:all_reduce"):
            (around,) = [
                e
                for e in file["X"][name]
                if e["ts"] <= launch["ts"] and launch["ts"] + launch["dur"] <= e["ts"] + e["dur"]
            ]
            assert around["tid"] == launch["tid"]


def test_calls_keep_their_order_without_cpu_time(tmp_path: Path) -> None:
    """Where there is no room for the small calls, launches move by ns; their order stays."""
    builder = ProgramBuilder()
    rows = builder.table()
    last = -1
    for n in range(20):
        waits = [last] if last >= 0 else []
        last = rows.kernel(f"k{n}", n % 3, 5 * US, waits=waits)
    rows.host_wait([last])
    builder.add_rank(builder.add_table(rows.build()))
    of = builder.build()
    file = events(export_kineto(of, recorded(of), tmp_path / "traces")[0])
    starts = [file["X"][f"k{n}"][0]["ts"] for n in range(20)]
    assert starts == [5 * n for n in range(20)]
    calls = [e for e in file["traceEvents"] if e.get("cat") == "cuda_runtime" and e["ph"] == "X"]
    order = [e["ts"] for e in sorted(calls, key=lambda e: e["args"]["correlation"])]
    launches = [e for e in calls if e["name"] == "cudaLaunchKernel"]
    assert [e["ts"] for e in launches] == sorted({e["ts"] for e in launches})
    assert max(e["ts"] for e in launches) < 0.2
    assert len(order) == len(calls)


def test_a_batch_is_one_kernel(tmp_path: Path) -> None:
    builder = ProgramBuilder()
    there, back = builder.communicator([0, 1]), builder.communicator([1, 0])
    for rank in (0, 1):
        rows = builder.table()
        rows.kernel("a", 0, 10 * US, host=50 * US)
        kinds = (Kind.SEND, Kind.RECV) if rank == 0 else (Kind.RECV, Kind.SEND)
        for slot, kind in enumerate(kinds):
            rows.point_to_point(
                kind,
                slot,
                1,
                64,
                duration=20 * US,
                host=0 if slot else 50 * US,
                flags=Flag.JOINED if slot else Flag.NONE,
            )
        builder.add_rank(builder.add_table(rows.build()), [there, back])
    of = builder.build()
    file = events(export_kineto(of, recorded(of), tmp_path / "traces")[1])
    (kernel,) = file["X"]["ncclDevKernel_SendRecv"]
    assert (kernel["ts"], kernel["dur"]) == (100, 20)
    assert kernel["args"]["Collective name"] == "coalesced"
    assert "Src Rank" not in kernel["args"]
    assert len(file["X"]["c10d::send"]) == len(file["X"]["c10d::recv_"]) == 1
    assert len(file["X"]["nccl:coalesced"]) == 1


def test_long_lists_of_ranks_are_cut_as_the_profiler_does(tmp_path: Path) -> None:
    builder = ProgramBuilder()
    everyone = builder.communicator(range(40))
    rows = builder.table()
    rows.collective(Operation.ALL_GATHER, 0, 1, 40 * 8, duration=US)
    table = builder.add_table(rows.build())
    for _ in range(40):
        builder.add_rank(table, [everyone])
    of = builder.build()
    file = events(export_kineto(of, recorded(of), tmp_path / "traces")[0])
    (kernel,) = file["X"]["ncclDevKernel_AllGather_RING_LL"]
    shown = kernel["args"]["Process Group Ranks"]
    assert shown.startswith("[0, 1, 2, ")
    assert ", 14, ..., 25, " in shown
    assert shown.endswith(", 38, 39]")
    assert file["distributedInfo"]["pg_config"][0]["ranks"] == list(range(40))
    # A share in, everything out.
    assert (kernel["args"]["In msg nelems"], kernel["args"]["Out msg nelems"]) == (2, 80)


def test_files_are_reproducible(tmp_path: Path) -> None:
    of = recordable_program(1)
    one = export_kineto(of, recorded(of), tmp_path / "one")
    other = export_kineto(of, recorded(of), tmp_path / "other")
    assert [p.read_bytes() for p in one] == [p.read_bytes() for p in other]


def test_clock_offsets(tmp_path: Path) -> None:
    of = program()
    plain = export_kineto(of, recorded(of), tmp_path / "plain")
    late = export_kineto(of, recorded(of), tmp_path / "late", clock_offset={1: 5 * US})
    assert plain[0].read_bytes() == late[0].read_bytes()
    times = [events(paths[1])["X"]["gemm"][0]["ts"] for paths in (plain, late)]
    assert times == [27, 32]


# --- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"style": "newer"}, "style 'newer' is not known; there are 'new' and 'old'"),
        ({"ranks": [0]}, "'ranks' has 1 entries"),
        ({"ranks": [3, 3]}, "1 of them different"),
        ({"clock_offset": {5: 1}}, "clock offset of rank 5, which is not in the program"),
    ],
)
def test_arguments_that_do_not_fit(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    of = program()
    with pytest.raises(InputError, match=said):
        export_kineto(of, recorded(of), tmp_path / "traces", **more)
    assert not (tmp_path / "traces").exists()


def test_traces_are_not_mixed(tmp_path: Path) -> None:
    of = program()
    folder = tmp_path / "traces"
    export_kineto(of, recorded(of), folder, ranks=[2, 3])
    with pytest.raises(OutputError, match=r"holds kineto_rank2\.json\.gz already"):
        export_kineto(of, recorded(of), folder)
    paths = export_kineto(of, recorded(of), folder, overwrite=True)
    assert sorted(folder.iterdir()) == paths  # those of ranks 2 and 3 are gone
    export_kineto(of, recorded(of), folder, chosen=[1], overwrite=True)
    assert sorted(folder.iterdir()) == paths[1:]
    (folder / "mine.json").write_text("{}")
    with pytest.raises(OutputError, match=r"holds mine\.json already"):
        export_kineto(of, recorded(of), folder, overwrite=True)


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    of = program()
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "nowhere" / "traces", tmp_path / "file", tmp_path / "file" / "traces"):
        with pytest.raises(OutputError, match=str(bad)):
            export_kineto(of, recorded(of), bad)


def test_nothing_is_left_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = program()
    opened = Path.open
    written: list[Path] = []

    def full(path: Path, *args: Any, **more: Any) -> Any:
        if path.suffix == ".part" and written:
            opened(path, *args, **more).close()
            raise OSError(28, "No space left on device")
        written.append(path)
        return opened(path, *args, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OutputError, match="No space left on device"):
        export_kineto(of, recorded(of), tmp_path / "traces")
    assert list(tmp_path.iterdir()) == []
    written.clear()
    with pytest.raises(OutputError, match="No space left on device"):
        export_kineto(of, recorded(of), tmp_path)  # which was there before
    assert list(tmp_path.iterdir()) == []


# --- on several processes -----------------------------------------------------------------------


@pytest.mark.mpi
def test_each_process_writes_its_ranks(comm: Intracomm) -> None:
    of = recordable_program(2, n_ranks=4)
    run = simulate(of, comm)
    with exported(run, comm) as folder:
        names = sorted(path.name for path in folder.iterdir())
        comm.barrier()  # all have looked before any adds a folder of its own
        alone = folder / f"alone{comm.rank}"
        export_kineto(of, simulate(of), alone)
        for name in names:
            assert (folder / name).read_bytes() == (alone / name).read_bytes()
        comm.barrier()
    assert names == [f"kineto_rank{rank}.json.gz" for rank in range(4)]


@pytest.mark.mpi
def test_errors_reach_all_processes(comm: Intracomm, tmp_path: Path) -> None:
    of = recordable_program(3, n_ranks=4, n_events=0)
    run = simulate(of, comm)
    with pytest.raises(MpisimError, match="nowhere"):
        export_kineto(of, run, tmp_path / "nowhere" / "traces", comm=comm)


# --- recorded traces and generated programs -----------------------------------------------------


def test_a_recorded_job_survives(comm: Intracomm, shared: Path) -> None:
    """A replayed job, exported and read again, has the same steps: the baseline of every tool."""
    job = read_job([shared / "traces" / "dlrm_v100_8rank"], comm)
    base = replay(job, comm)
    with exported(base.run, comm) as folder:
        again = replay(read_job([folder], comm), comm)
    before = np.array([step.replayed for step in base.steps])
    after = np.array([step.replayed for step in again.steps])
    np.testing.assert_allclose(after, before, rtol=1e-4)
    np.testing.assert_allclose([step.error for step in again.steps], 0, atol=1e-4)


def test_a_generated_step(comm: Intracomm) -> None:
    """A generated program: CPU times are short, and no clock shows too much."""
    case = prepare(load(changes=["model.layers=8", "plan.tp=2", "plan.dp=4", "plan.zero=1"])[1])
    run = simulate(case.program, comm, network=case.network)
    with exported(run, comm) as folder:
        job = read_job([folder], comm)
        again = replay(job, comm)
    assert job.counts["kernels without a partner"] == 0
    assert again.run.step_time == pytest.approx(run.step_time, rel=0.01)
