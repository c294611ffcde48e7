"""Bad input of every kind: one clear line, the right exit code, nothing left behind, no hang.

One table, run through the command line in one process and on two. On two processes most cases
share one launch, since starting costs more than they do; what ends a run differently there (files
that only the second process reads, failures while writing) is launched by itself.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import pytest

from mpisim.program import Operation, ProgramBuilder
from mpisim.program.store import save

# --- good inputs, to be spoiled -------------------------------------------------------------------


def kineto(rank: int | None = 0, world: int = 2, **info: Any) -> dict[str, Any]:
    """One rank's trace: a kernel, then an all-reduce on a stream of its own."""
    events = []

    def launch(number: int, at: float, kernel: str, stream: int, length: float) -> None:
        events.append(_event("cuda_runtime", "cudaLaunchKernel", at, 3.0, correlation=number))
        events.append(_event("kernel", kernel, at + 10, length, correlation=number, stream=stream))

    events.append(_event("cpu_op", "aten::mm", 1000.0, 8.0))
    launch(1, 1002.0, "gemm", 7, 9.5)
    launch(2, 1010.0, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 13, 30.0)
    events.append(_event("cuda_runtime", "cudaDeviceSynchronize", 1020.0, 41.0, correlation=3))
    about = {"backend": "nccl", "rank": rank, "world_size": world} | info
    about = {key: value for key, value in about.items() if value is not None}
    return {"distributedInfo": about, "traceEvents": events}


def _event(category: str, name: str, ts: float, dur: float, **args: int) -> dict[str, Any]:
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


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bad:
    """A bad input.

    Attributes
    ----------
    name : str
    args : list of str
        ``@`` stands for the folder that `make` fills.
    says : list of str
        What the line says, in this order; ``@`` as above.
    make : callable, optional
        Writes the input.
    code : int
        The exit code: 2 for bad input, 1 for what fails at run time.
    """

    name: str
    args: list[str]
    says: list[str]
    make: Callable[[Path], Any] = field(default=lambda folder: None)
    code: int = 2


def one(content: Any, name: str = "t.json") -> Callable[[Path], Path]:
    """Write one file."""
    return lambda folder: write(folder / name, content)


def file_of(trace: Any) -> bytes:
    return gzip.compress(json.dumps(trace).encode())


REPLAY = ["replay", "@/t.json"]
JOB = ["replay", "@/job"]
RUN = ["program", "run", "@/p.h5"]

TRACES = [
    Bad("not JSON", REPLAY, ["@/t.json: not valid JSON"], one("this is no JSON")),
    Bad("empty file", REPLAY, ["@/t.json: the file is empty"], one("")),
    Bad(
        "cut JSON",
        REPLAY,
        ["@/t.json: not valid JSON: Input data was truncated"],
        one(json.dumps(kineto())[:-200]),
    ),
    Bad(
        "truncated gzip",
        ["replay", "@/t.json.gz"],
        ["@/t.json.gz: damaged or truncated gzip"],
        one(file_of(kineto())[:-30], "t.json.gz"),
    ),
    Bad(
        "gzip of garbage",
        ["replay", "@/t.json.gz"],
        ["@/t.json.gz: not valid JSON"],
        one(gzip.compress(b"\x01\x02\x03 garbage"), "t.json.gz"),
    ),
    Bad("no trace", REPLAY, ["@/t.json: not a Kineto trace", "traceEvents"], one({"a": 1})),
    Bad(
        "events are no list",
        REPLAY,
        ["@/t.json: not a Kineto trace: Expected `array`"],
        one({"traceEvents": {"a": 1}}),
    ),
    Bad(
        "an event is no object",
        REPLAY,
        ["@/t.json: not a Kineto trace", "traceEvents[1]"],
        one({"traceEvents": [_event("kernel", "k", 0, 1), 5]}),
    ),
    Bad(
        "execution trace alone",
        REPLAY,
        ["@/t.json: an execution trace holds no times", "Kineto"],
        one({"schema": "1.1.1", "pid": 1, "nodes": []}),
    ),
    Bad(
        "missing rank",
        JOB,
        ["@/job: 2 of 3 ranks are here; missing: 1 "],
        lambda f: [write(f / f"job/r{r}.json", kineto(r, 3)) for r in (0, 2)],
    ),
    Bad(
        "duplicate rank",
        JOB,
        ["@/job/rank1.json: rank 0 is already given by @/job/rank0.json"],
        lambda f: job(f / "job", kineto(0), kineto(0)),
    ),
    Bad(
        "rank unknown",
        JOB,
        ["@/job/b.json: its rank is neither in 'distributedInfo' nor"],
        lambda f: [write(f / f"job/{n}.json", kineto(rank=r)) for n, r in (("a", 0), ("b", None))],
    ),
    Bad("rank negative", REPLAY, ["@/t.json: its rank is -1; it must be from 0"], one(kineto(-1))),
    Bad("rank beyond the job", REPLAY, ["@/t.json: rank 7 in a job of 2"], one(kineto(7, 2))),
    Bad(
        "world size impossible",
        REPLAY,
        ["@/t.json: 'world_size' is 1000000000000; it must be"],
        one(kineto(0, 10**12)),
    ),
    Bad(
        "two jobs by size",
        JOB,
        ["@/job/rank1.json: from a job of 4 ranks, but", "rank0.json"],
        lambda f: job(f / "job", kineto(0, 2), kineto(1, 4)),
    ),
    Bad(
        "two jobs by time",
        JOB,
        ["@/job/rank1.json: recorded at another time than @/job/rank0"],
        lambda f: job(f / "job", kineto(0), kineto(1) | {"baseTimeNanoseconds": 10**18}),
    ),
    Bad(
        "one file is empty",
        JOB,
        ["@/job/rank1.json: the file is empty"],
        lambda f: job(f / "job", kineto(0), ""),
    ),
    Bad(
        "no GPU kernels",
        REPLAY,
        ["@/t.json: no GPU kernels in this trace"],
        one(kineto(0, 1) | {"traceEvents": [_event("cpu_op", "aten::mm", 0, 1)]}),
    ),
    Bad(
        "no events",
        REPLAY,
        ["@/t.json: not a Kineto trace: no operators, calls or kernels"],
        one(kineto(0, 1) | {"traceEvents": []}),
    ),
    Bad(
        "negative duration",
        REPLAY,
        ["@/t.json: event 2 ('gemm'): the duration is negative", "-9.5"],
        one(changed(2, dur=-9.5)),
    ),
    Bad(
        "text for a time",
        REPLAY,
        ["@/t.json: event 2 ('gemm'): 'ts' is 'soon'; it must be a"],
        one(changed(2, ts="soon")),
    ),
    Bad(
        "no duration",
        REPLAY,
        ["@/t.json: event 2 ('gemm'): 'dur' is None; it must be a number"],
        one(changed(2, dur=None)),
    ),
    Bad("NaN for a time", REPLAY, ["@/t.json: not valid JSON"], one(changed(2, ts=float("nan")))),
    Bad(
        "NaN as text",
        REPLAY,
        ["@/t.json: event 2 ('gemm'): 'dur' is nan; it must be a number"],
        one(changed(2, dur="nan")),
    ),
    Bad(
        "endless duration",
        REPLAY,
        ["@/t.json: event 2 ('gemm'): 'dur' is 1e+300 µs; at most"],
        one(changed(2, dur=1e300)),
    ),
    Bad(
        "far in the future",
        REPLAY,
        ["@/t.json: event 2 ('gemm'): begins 1e+24 s after"],
        one(changed(2, ts=1e30)),
    ),
    Bad(
        "correlation too large",
        REPLAY,
        ["@/t.json: not a Kineto trace: ", "correlation"],
        one(changed(2, args={"correlation": 2**70, "stream": 7})),
    ),
    Bad(
        "group of no ranks",
        REPLAY,
        ["@/t.json: 'pg_config' has the rank 'a'"],
        one(kineto(0, 1, pg_config=[{"pg_name": "0", "ranks": ["a"]}])),
    ),
    Bad(
        "empty folder",
        JOB,
        ["@/job: no Kineto trace", "which holds 0 JSON files"],
        lambda f: (f / "job").mkdir(),
    ),
    Bad("no such path", ["replay", "@/nothing"], ["@/nothing: no such file or directory"]),
    Bad(
        "symbolic links in a circle",
        ["replay", "@/loop"],
        ["@/loop: too many levels of symbolic"],
        lambda f: (f / "loop").symlink_to(f / "loop"),
    ),
    Bad(
        "a pipe",
        ["trace", "show", "@/pipe.json"],
        ["@/pipe.json: neither a file nor a folder"],
        lambda f: os.mkfifo(f / "pipe.json"),
    ),
    Bad(
        "trace show: cut",
        ["trace", "show", "@/t.json"],
        ["@/t.json: not valid JSON"],
        one(json.dumps(kineto())[:-200]),
    ),
    Bad("validate: no such path", ["validate", "traces", "@/nothing"], ["@/nothing: no such file"]),
]

PROGRAMS = [
    Bad(
        "deadlock",
        RUN,
        ["deadlock", "rank 0", "rank 1"],
        lambda f: program(f / "p.h5", [(0, AR, 8), (1, AR, 8)], [(1, AR, 8), (0, AR, 8)]),
    ),
    Bad(
        "other operations",
        RUN,
        ["communicator 0 (tensor), operation 0: rank 0 has ALL_REDUCE", "rank 1 has ALL_GATHER"],
        lambda f: program(f / "p.h5", [(0, AR, 8)], [(0, AG, 8)]),
    ),
    Bad(
        "other sizes",
        RUN,
        ["communicator 1 (data), operation 0: rank 0 has", "8 bytes", "16 bytes"],
        lambda f: program(f / "p.h5", [(1, AR, 8)], [(1, AR, 16)]),
    ),
    Bad(
        "one operation more",
        RUN,
        ["communicator 0 (tensor): rank 0 does 2 operations on it", "rank 1 1"],
        lambda f: program(f / "p.h5", [(0, AR, 8), (0, AR, 8)], [(0, AR, 8)]),
    ),
    Bad(
        "unknown communicator",
        RUN,
        ["@/p.h5: rank 1, slot 0: unknown communicator 9", "there are 2"],
        lambda f: spoiled(f / "p.h5", "ranks/slots", 2, 9),
    ),
    Bad(
        "negative duration in a program",
        RUN,
        ["@/p.h5: table 'table of rank 0', row 0", "negative"],
        lambda f: spoiled(f / "p.h5", "rows/duration", 0, -5),
    ),
    Bad(
        "truncated program",
        RUN,
        ["@/p.h5: is truncated"],
        lambda f: write(f / "p.h5", program(f / "q.h5", GOOD, GOOD).read_bytes()[:3000]),
    ),
    Bad(
        "program is a trace",
        ["program", "show", "@/t.json"],
        ["@/t.json: is a recording", "mpisim replay @/t.json"],
        one(kineto()),
    ),
    Bad(
        "results are a program",
        ["report", "@/p.h5"],
        ["@/p.h5: is a program of mpisim", "mpisim run @/p.h5"],
        lambda f: program(f / "p.h5", GOOD, GOOD),
    ),
    Bad("no such results", ["report", "@/r.h5"], ["@/r.h5: there is no such file"]),
    Bad(
        "unknown key",
        ["run", "@/e.toml"],
        ["@/e.toml: unknown key 'bandwith'", "allowed: "],
        one("bandwith = 3\n", "e.toml"),
    ),
    Bad(
        "not TOML",
        ["run", "@/e.toml"],
        ["@/e.toml: not valid TOML", "line 1"],
        one("[model\n", "e.toml"),
    ),
    Bad(
        "rank of no program",
        ["program", "show", "@/p.h5", "--rank", "2"],
        ["there is no rank 2", "ranks 0 to 1"],
        lambda f: program(f / "p.h5", GOOD, GOOD),
    ),
]


def whole_job(folder: Path) -> None:
    job(folder / "job", kineto(0), kineto(1))


def blocked(folder: Path) -> None:
    """A good job, and a file and a folder where outputs would go."""
    whole_job(folder)
    write(folder / "there.h5", "precious")
    (folder / "folder").mkdir()


OPTIONS = [
    Bad(
        "unknown option",
        [*JOB, "--scale-com", "2"],
        ["unknown option '--scale-com' (did you mean '--scale-comm'?)"],
    ),
    Bad("unknown command", ["reply", "@/job"], ["'reply' is not one of", "did you mean 'replay'?"]),
    Bad("no action", ["program"], ["ACTION"]),
    Bad("factor is no number", [*JOB, "--scale-comm", "abc"], ["--scale-comm", "'abc' is not a"]),
    Bad("factor is negative", [*JOB, "--scale-host", "-1"], ["--scale-host", "0 or more"]),
    Bad("factor is not finite", [*JOB, "--scale-compute", "nan"], ["--scale-compute", "nan"]),
    Bad("delay without a rank", [*JOB, "--delay", "3"], ["--delay", "'3' is not RANK:SECONDS"]),
    Bad(
        "delay of no rank", [*JOB, "--delay", "99:1"], ["rank 99 is not in this", "0, 1"], whole_job
    ),
    Bad(
        "endless delay", [*JOB, "--delay", "1:1e30"], ["rank 1 is to start 1e+30 s late"], whole_job
    ),
    Bad(
        "two delays of a rank",
        [*JOB, "--delay", "0:1", "--delay", "0:2"],
        ["--delay is given twice for rank 0"],
        whole_job,
    ),
    Bad("endless factor", [*JOB, "--scale-comm", "1e30"], ["a factor of 1e+30 makes"], whole_job),
    Bad(
        "pattern of no kernel",
        [*JOB, "--scale-kernel", "conv=2"],
        ["no kernel name matches 'conv'"],
        whole_job,
    ),
    Bad("pattern without a factor", [*JOB, "--scale-kernel", "gemm"], ["not PATTERN=FACTOR"]),
    Bad("timeline without a file", [*JOB, "--timeline"], ["--timeline needs a file", "-o FILE"]),
    Bad("no lines", [*JOB, "--top", "0"], ["--top is 0; it must be 1 or more"]),
    Bad("no path", ["replay"], ["PATH"]),
]

OUTPUTS = [
    Bad("output exists", [*JOB, "-o", "@/there.h5"], ["@/there.h5: exists already"], blocked),
    Bad("output is a folder", [*JOB, "-o", "@/folder"], ["@/folder: is a folder"], blocked),
    Bad(
        "output in no folder",
        [*JOB, "-o", "@/no/r.h5"],
        ["@/no/r.h5: there is no folder @/no"],
        blocked,
    ),
    Bad(
        "output is a device",
        [*JOB, "-o", "/dev/full"],
        ["/dev/full: is not a regular file"],
        blocked,
    ),
    Bad("JSON to a folder", [*JOB, "--json", "@/folder"], ["@/folder: is a folder"], blocked),
    Bad(
        "program output exists",
        [*RUN, "-o", "@/q.h5"],
        ["@/q.h5: exists already"],
        lambda f: [program(f / name, GOOD, GOOD) for name in ("p.h5", "q.h5")],
    ),
    Bad(
        "output is the input",
        [*RUN, "-o", "@/p.h5", "--overwrite"],
        ["@/p.h5: -o would write"],
        lambda f: program(f / "p.h5", GOOD, GOOD),
    ),
    Bad(
        "figures over a trace",
        [*JOB, "--json", "@/job/rank1.json"],
        ["@/job/rank1.json: --json would write over the input"],
        whole_job,
    ),
    Bad(
        "two outputs in one",
        [*JOB, "-o", "@/r", "--json", "@/r"],
        ["@/r: -o and --json name the same file"],
        whole_job,
    ),
    Bad(
        "export over traces",
        ["export", "@/r.h5", "--format", "chrome", "-o", "@/job"],
        ["@/job: holds rank0.json already"],
        whole_job,
    ),
    Bad(
        "export to a file",
        ["export", "@/r.h5", "--format", "chrome", "-o", "@/there.h5"],
        ["@/there.h5: is not a folder"],
        blocked,
    ),
    Bad(
        "a folder that cannot be",
        ["export", "@/r.h5", "--format", "chrome", "-o", "@/no/e"],
        ["there is no folder @/no"],
        whole_job,
    ),
]

TABLE = [*TRACES, *PROGRAMS, *OPTIONS, *OUTPUTS]


def prepared(bad: Bad, folder: Path) -> list[str]:
    """Make the input and return the arguments."""
    folder.mkdir(parents=True)
    bad.make(folder)
    return [arg.replace("@", str(folder)) for arg in bad.args]


def check(bad: Bad, folder: Path, line: str) -> None:
    """The line says what it should, in one line without the words of an exception."""
    at = 0
    for part in bad.says:
        part = part.replace("@", str(folder))
        assert part in line[at:], f"{bad.name}: {part!r} is not in {line!r}"
        at = line.index(part, at) + len(part)
    assert "Error" not in line
    assert len(line) < 600


# --- in one process, each case by itself -------------------------------------------------------


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name)
def test_one_process(run_mpisim, tmp_path, bad):
    args = prepared(bad, tmp_path / "in")
    before = listing(tmp_path)
    done = run_mpisim(args, timeout=30)
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done
    assert lines[0].startswith("mpisim: error: ")
    check(bad, tmp_path / "in", lines[0])
    assert done.rc == bad.code
    assert done.stdout == "" or bad.args[0] == "validate"  # it prints the head of its table first
    assert listing(tmp_path) == before


def listing(folder: Path) -> dict[str, int]:
    """Everything below a folder, with sizes."""
    return {str(path): path.lstat().st_size for path in folder.rglob("*")}


# --- on two processes, one launch for all --------------------------------------------------------

# Runs the command line for every case of a list on all processes, and writes what each run left.
DRIVER = """\
import contextlib, io, json, os, sys

from mpi4py import MPI
from mpisim.cli import main

left = []
for args in json.load(open("cases.json")):
    MPI.COMM_WORLD.Barrier()
    stderr, stdout = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(stdout):
        code = main(args)
    everyone = MPI.COMM_WORLD.gather((code, stderr.getvalue(), stdout.getvalue()))
    if MPI.COMM_WORLD.rank == 0:
        left.append(everyone)
        json.dump(left, open("left.json", "w"))
"""


def test_two_processes(run_mpisim, tmp_path):
    """Every case once more: the first process prints the same line as one alone, others nothing."""
    folders = [tmp_path / f"case{i}" for i in range(len(TABLE))]
    cases = [prepared(bad, folder) for bad, folder in zip(TABLE, folders)]
    write(tmp_path / "cases.json", cases)
    write(tmp_path / "driver.py", DRIVER)
    before = {folder: listing(folder) for folder in folders}
    left = {}
    for nprocs in (1, 2):
        done = run_mpisim([], nprocs, program=tmp_path / "driver.py", timeout=100)
        left[nprocs] = json.loads((tmp_path / "left.json").read_text())
        assert len(left[nprocs]) == len(TABLE), f"{TABLE[len(left[nprocs])].name}: {done}"
        assert done.rc == 0, done
    for bad, folder, alone, both in zip(TABLE, folders, left[1], left[2]):
        (code, line, out), *others = both
        assert line.startswith("mpisim: error: "), (bad.name, line)
        assert line.count("\n") == 1, (bad.name, line)
        check(bad, folder, line)
        assert code == bad.code, bad.name
        assert [code, line, out] == alone[0], bad.name
        assert others == [[bad.code, "", ""]], bad.name
        assert listing(folder) == before[folder], bad.name


# --- on two processes, launched -------------------------------------------------------------------

# The first process reads rank 0, the second rank 1.
SECOND_RANK = [
    ("cut", json.dumps(kineto(1))[:-200], "not valid JSON: Input data was truncated"),
    ("truncated gzip", file_of(kineto(1))[:-30], "damaged or truncated gzip file"),
    ("no kernels", kineto(1) | {"traceEvents": kineto()["traceEvents"][:1]}, "no GPU kernels"),
    ("negative", kineto(1) | {"traceEvents": changed(2, dur=-1.0)["traceEvents"]}, "is negative"),
]


@pytest.mark.parametrize(("name", "content", "says"), SECOND_RANK, ids=[c[0] for c in SECOND_RANK])
def test_bad_file_on_the_second_process_alone(run_mpisim, tmp_path, name, content, says):
    folder = job(tmp_path / "job", kineto(0), content)
    lines = []
    for nprocs in (1, 2):
        done = run_mpisim(["replay", folder, "-o", tmp_path / "r.h5"], nprocs, timeout=30)
        assert done.rc == 2
        assert "Traceback" not in done.stderr + done.stdout
        assert sorted(os.listdir(tmp_path)) == ["job"]
        lines.append(done.errors)
    assert len(lines[0]) == 1
    assert lines[0] == lines[1]
    assert f"{folder}/rank1.json: " in lines[0][0]
    assert says in lines[0][0]


LAUNCHED = [
    bad for bad in TABLE if bad.name in ("deadlock", "duplicate rank", "output exists", "no path")
]


@pytest.mark.parametrize("bad", LAUNCHED, ids=lambda bad: bad.name)
def test_two_processes_launched(run_mpisim, tmp_path, bad):
    done = run_mpisim(prepared(bad, tmp_path / "in"), 2, timeout=30)
    assert done.rc == bad.code
    assert len(done.errors) == 1
    check(bad, tmp_path / "in", done.errors[0])
    assert "Traceback" not in done.stderr + done.stdout


# Runs the command line with a limit on the size of files, as on a disk that fills up: the limit
# comes after MPI has made its own files.
LIMITED = """\
import resource, sys

from mpisim.cli import main
from mpisim.cli.launch import world

comm = world()
if comm.rank == 0 or sys.argv[1] == "all":
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("nprocs", "who", "output"),
    [
        (1, "all", ["-o", "r.h5"]),
        (2, "all", ["-o", "r.h5", "--timeline"]),
        (2, "first", ["-o", "r.h5", "--timeline"]),  # the process that writes, alone
        (1, "all", ["--json", "r.json"]),
    ],
)
def test_full_disk(run_mpisim, tmp_path, nprocs, who, output):
    write(tmp_path / "limited.py", LIMITED)
    whole_job(tmp_path)
    before = listing(tmp_path)
    done = run_mpisim(
        [who, "replay", "job", *output], nprocs, program=tmp_path / "limited.py", timeout=30
    )
    assert done.rc == 1, done
    assert done.errors == [f"mpisim: error: {output[1]}: File too large"]
    assert "Traceback" not in done.stderr + done.stdout
    assert listing(tmp_path) == before


@pytest.mark.parametrize("nprocs", [1, 2])
def test_full_device(run_mpisim, tmp_path, nprocs):
    program(tmp_path / "p.h5", GOOD, GOOD)
    done = run_mpisim(["program", "run", "p.h5", "--json", "/dev/full"], nprocs, timeout=30)
    assert done.rc == 1
    assert done.errors == ["mpisim: error: /dev/full: No space left on device"]


# --- what permissions forbid --------------------------------------------------------------------

as_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")


@as_root
@pytest.mark.parametrize("nprocs", [1, 2])
def test_unreadable(run_mpisim, tmp_path, nprocs):
    folder = job(tmp_path / "job", kineto(0), kineto(1))
    (folder / "rank1.json").chmod(0)
    done = run_mpisim(["replay", folder], nprocs, timeout=30)
    assert done.rc == 2
    assert done.errors == [
        f"mpisim: error: {folder}/rank1.json: cannot be read (Permission denied)"
    ]


@as_root
@pytest.mark.parametrize("nprocs", [1, 2])
def test_unwritable_folder(run_mpisim, tmp_path, nprocs):
    whole_job(tmp_path)
    (tmp_path / "closed").mkdir(mode=0o500)
    done = run_mpisim(["replay", "job", "-o", "closed/r.h5"], nprocs, timeout=30)
    assert done.rc == 2
    assert done.errors == [
        f"mpisim: error: closed/r.h5: the folder {tmp_path}/closed is not writable"
    ]


# --- damaged results ---------------------------------------------------------------------------


def test_damaged_results(run_mpisim, tmp_path):
    whole_job(tmp_path)
    good = run_mpisim(["replay", "job", "-o", "r.h5", "--timeline"])
    assert good.rc == 0, good
    image = (tmp_path / "r.h5").read_bytes()

    def line() -> str:
        done = run_mpisim(["report", "r.h5"])
        assert (done.rc, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done
        return done.errors[0]

    (tmp_path / "r.h5").write_bytes(image[: len(image) // 2])
    assert "r.h5: is truncated" in line()
    (tmp_path / "r.h5").write_bytes(b"")
    assert "r.h5: is empty" in line()


def test_a_reader_that_has_seen_enough(launch_environment, tmp_path):
    """``mpisim program show FILE --rank 0 | head -1``: no word on standard error."""
    program(tmp_path / "p.h5", GOOD * 20_000, GOOD * 20_000)
    command = [sys.executable, "-m", "mpisim", "program", "show", str(tmp_path / "p.h5")]
    with subprocess.Popen(
        [*command, "--rank", "0", "--rows", "100000"],
        env=launch_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1
