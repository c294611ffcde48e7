"""Files that cannot be written or read through no fault of their content, and damaged results.

Full disks and devices, missing permissions, truncated results, and a reader that closes its pipe:
one clear line, the right exit code, and nothing left behind.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from bad_files import GOOD, job, kineto, listing, program, whole_job, write

# --- full disks -----------------------------------------------------------------------------------

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
