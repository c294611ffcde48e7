"""Bad input of every kind: one clear line, the right exit code, nothing left behind, no hang.

One table (`bad_inputs`), run through the command line in one process and on two. On two processes
most cases share one launch, since starting costs more than they do; what ends a run differently
there (files that only the second process reads) is launched by itself.
"""

from __future__ import annotations

import json
import os

import pytest
from bad_files import changed, file_of, job, kineto, listing, write
from bad_inputs import TABLE, check, prepared

# --- in one process, each case by itself -------------------------------------------------------


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name)
def test_one_process(call_mpisim, tmp_path, bad):
    args = prepared(bad, tmp_path / "in")
    before = listing(tmp_path)
    done = call_mpisim(args)
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done
    assert lines[0].startswith("mpisim: error: ")
    check(bad, tmp_path / "in", lines[0])
    assert done.rc == bad.code
    assert done.stdout == "" or bad.args[0] == "validate"  # it prints the head of its table first
    assert listing(tmp_path) == before


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
