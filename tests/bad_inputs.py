"""A table of bad inputs: what is wrong, the command that gets it, and what its error says."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bad_files import (
    AG,
    AR,
    GOOD,
    blocked,
    changed,
    file_of,
    job,
    kineto,
    program,
    spoiled,
    trace_event,
    whole_job,
    write,
)


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
        one({"traceEvents": [trace_event("kernel", "k", 0, 1), 5]}),
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
        one(kineto(0, 1) | {"traceEvents": [trace_event("cpu_op", "aten::mm", 0, 1)]}),
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
        "a slot that none binds",
        RUN,
        ["@/p.h5: rank 0: table 'table of rank 0' uses 2147483648 communicator slots, 2 are bound"],
        lambda f: spoiled(f / "p.h5", "rows/slot", 1, 2**31 - 1),
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
